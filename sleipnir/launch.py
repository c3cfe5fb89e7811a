"""Start a command that dies with its parent: `python -I -S launch.py PARENT_PID SIGNAL TELL_FD -- COMMAND...`.

Run as a file, by path, so that no package is imported and it costs one bare interpreter start. It asks the
kernel to send SIGNAL when the parent thread dies (PR_SET_PDEATHSIG), makes sure that the parent is still
PARENT_PID (it may have died before we asked), switches core dumps off, and becomes the command. On
platforms without prctl it only becomes the command. With a TELL_FD (else -1) it first writes `+<its pid>`
there: whoever reads it knows of the command before the command does anything. We do not use preexec_fn: it
runs between fork and exec in a process that may hold other threads' locks.
"""

import ctypes
import os
import resource
import sys

PR_SET_PDEATHSIG = 1
SIGKILL = 9  # not from the signal module: it imports enum, a third of what a start through here costs


def command(argv: list[str], *, signum: int = SIGKILL, tell_fd: int = -1) -> list[str]:
    """The argument vector that starts `argv` tied to the calling process. `tell_fd` must be passed on to it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(signum)), str(tell_fd), "--", *argv]


def main() -> None:
    parent, signum, tell_fd, argv = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[5:]
    if tell_fd >= 0:
        os.write(tell_fd, b"+%d\n" % os.getpid())
        os.close(tell_fd)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(f"launch: parent {parent} is gone")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"launch: cannot start {argv[0]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
