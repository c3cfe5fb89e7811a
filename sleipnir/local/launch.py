"""Start a command that dies with its parent:
`python -I -S launch.py PARENT_PID SIGNAL TELL_FD MARK EVENTS_FD -- COMMAND...`.

Run as a file, by path, so that no package is imported and it costs one bare interpreter start. It asks the kernel to
send SIGNAL when the parent thread dies (PR_SET_PDEATHSIG), makes sure that the parent is still PARENT_PID (it may have
died before we asked), switches core dumps off, and becomes the command. On platforms without prctl it only becomes the
command. With a TELL_FD (else -1) it first writes `+<its pid>` there: the reader knows the pid before the command runs.
With a MARK (else -1) the command becomes a child subreaper, and MARK its limit of bytes in POSIX message queues
(processes/descendants.py of the workers). With an EVENTS_FD (else -1) the command has it as EVENTS. preexec_fn is not
used, because it runs between fork and exec in a process that may hold other threads' locks.
"""

import ctypes
import os
import resource
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
EVENTS = 3  # the descriptor on which a script emits
SIGKILL = 9  # not from the signal module, because importing enum takes a third of the time of such a start


def command(
    argv: list[str], *, signum: int = SIGKILL, tell_fd: int = -1, mark: int = -1, events_fd: int = -1
) -> list[str]:
    """The argument vector that starts `argv` tied to the calling process. `tell_fd` and `events_fd` must be passed on
    to it."""
    numbers = (os.getpid(), int(signum), tell_fd, mark, events_fd)
    return [sys.executable, "-I", "-S", __file__, *map(str, numbers), "--", *argv]


def main() -> None:
    """Tie this process to its parent, and become the command of its arguments."""
    parent, signum, tell_fd, mark, events_fd = map(int, sys.argv[1:6])
    argv = sys.argv[7:]
    if tell_fd >= 0:
        os.write(tell_fd, b"+%d\n" % os.getpid())
        os.close(tell_fd)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(f"launch: parent {parent} has ended")
        if mark >= 0:
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            resource.setrlimit(resource.RLIMIT_MSGQUEUE, (mark, mark))
    if events_fd >= 0:
        os.dup2(events_fd, EVENTS)
        if events_fd != EVENTS:
            os.close(events_fd)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"launch: cannot start {argv[0]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
