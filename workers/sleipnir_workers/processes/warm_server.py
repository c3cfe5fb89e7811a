"""A python3 that is kept running: it forks for every script, and runs the script's file as `__main__` there; or for
every command, which replaces the forked process.

A worker starts it as `python3 warm_server.py CONTROL_FD` (warm_python.py, which describes their protocol).
It is the python3 of the scripts, of any version from 3.9 on. So this file uses the standard library only, is never
imported, and affects a script as little as it can: the file is run by the same C function that `python3 FILE`
uses, in a fresh `__main__`. The worker is told which modules are loaded here beyond a bare start; it starts a script
cold if a file of such a name is beside it.

The holder of the other end of its channel owns a script. When that end is closed, the script's group is killed. The
script is not reaped before, so that until then no other process has its number.
"""

PRISTINE = dict(globals())  # of a `__main__` that has not executed anything

import sys  # noqa: E402

NATIVE = frozenset(sys.modules)
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the folder of this file; a script gets its own

import _io  # noqa: E402
import _locale  # noqa: E402
import _socket  # noqa: E402  (socket, with its enums, costs as much as all else of this start)
import _weakref  # noqa: E402
import atexit  # noqa: E402
import ctypes  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402, F401  (nearly every script reads its state with it)
import os  # noqa: E402
import select  # noqa: E402

TYPE_CHECKING = False  # typing itself would take longer to import than all else here
if TYPE_CHECKING:
    import typing

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIGKILL = 9
CLD_EXITED = 1
REQUEST_BYTES = 256 * 1024
FDS = 4  # a channel, stdout, stderr and a pipe for emissions, which becomes EVENTS if the request says so
EVENTS = 3

libc = ctypes.CDLL(None, use_errno=True)
prctl = libc.prctl  # looked up here once, and not in every child
libc.fopen.restype = ctypes.c_void_p
libc.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
run_file = ctypes.PyDLL(None).PyRun_SimpleFileExFlags
run_file.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]


class ForkedScript:
    """A script that was forked and is not reaped yet."""

    def __init__(self, pid: int, pidfd: int, channel: _socket.socket) -> None:
        self.pid, self.pidfd, self.channel = pid, pidfd, channel
        self.has_exited = self.is_released = False

    def report_end(self) -> None:
        """Send how it ended. It stays a zombie."""
        self.has_exited = True
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert status is not None
        word = b"exited" if status.si_code == CLD_EXITED else b"killed"
        send(self.channel, b"%s %d" % (word, status.si_status))

    def release(self) -> None:
        """The worker does not wait for it any more: kill its group."""
        self.is_released = True
        try:
            os.killpg(self.pid, SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def reap(self) -> None:
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        self.channel.close()


class Server:
    """The loop of the parent. `serve` returns in every child, with what it needs to become a script."""

    def __init__(self, control: _socket.socket) -> None:
        self.control = control
        self.poll = select.poll()
        self.scripts: dict[int, ForkedScript] = {}  # by pidfd and by channel
        self.is_closed = False

    def serve(self) -> tuple[_socket.socket, list[int]]:
        self.poll.register(self.control.fileno(), select.POLLIN)
        while not self.is_closed or self.scripts:
            for fd, _ in self.poll.poll():  # in the order of registration: no descriptor of a round is reused in it
                if fd == self.control.fileno():
                    forked = self.receive()
                    if forked is not None:
                        return forked
                elif fd in self.scripts:
                    self.note(self.scripts[fd], fd)
        os._exit(0)

    def receive(self) -> "tuple[_socket.socket, list[int]] | None":
        """Fork for the next request; the child's part, or None in the parent."""
        data, ancillary, _, _ = self.control.recvmsg(1, _socket.CMSG_SPACE(FDS * 4))
        if not data:  # the worker has ended, or does not need this server any more
            self.poll.unregister(self.control.fileno())
            self.is_closed = True
            return None
        fds = [int.from_bytes(ancillary[0][2][at : at + 4], sys.byteorder) for at in range(0, FDS * 4, 4)]
        channel, outputs = _socket.socket(fileno=fds[0]), fds[1:]
        launcher = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no process or memory left: the worker sees the channel close
            channel.close()
            for fd in outputs:
                os.close(fd)
            return None
        if pid == 0:
            self.close_inherited()
            become_leader(launcher)
            return channel, outputs
        for fd in outputs:
            os.close(fd)
        self.watch(ForkedScript(pid, os.pidfd_open(pid), channel))
        return None

    def watch(self, script: ForkedScript) -> None:
        self.scripts[script.pidfd] = self.scripts[script.channel.fileno()] = script
        self.poll.register(script.pidfd, select.POLLIN)
        self.poll.register(script.channel.fileno(), 0)  # POLLHUP is always reported

    def note(self, script: ForkedScript, fd: int) -> None:
        self.poll.unregister(fd)
        if fd == script.pidfd:
            script.report_end()
        else:
            script.release()
        if script.has_exited and script.is_released:
            del self.scripts[script.pidfd], self.scripts[script.channel.fileno()]
            script.reap()

    def close_inherited(self) -> None:
        """In a child: close what belongs to the parent."""
        self.control.close()
        for script in set(self.scripts.values()):
            os.close(script.pidfd)
            script.channel.close()


def send(channel: _socket.socket, message: bytes) -> None:
    """Send, unless the other end is closed."""
    try:
        channel.send(message, _socket.MSG_NOSIGNAL)
    except OSError:
        return


def become_leader(launcher: int) -> None:
    """As launch.py does: start a new session, die with the parent, and adopt orphaned descendants."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(1)


def become_script(channel: _socket.socket, outputs: list[int]) -> tuple[int, bytes]:
    """Set up this process as the request describes. Returns the open file and its path.

    A request is `script \\0 cwd \\0 argv[0] \\0 path \\0 name=value \\0 ...`, or for a command `command \\0 cwd \\0
    <number of words> \\0 word \\0 ... \\0 name=value \\0 ...`, which this process becomes. Without one it ends.
    """
    # Both ends are non-blocking if the worker made them while it had a default timeout for sockets, as Celery sets one
    # while it connects.
    channel.setblocking(True)
    send(channel, b"ready %d" % os.getpid())
    try:
        request = channel.recv(REQUEST_BYTES)
    except ConnectionResetError:
        request = b""
    if not request:
        os._exit(0)
    try:
        kind, cwd, *fields = request.split(b"\0")
        count = int(fields.pop(0)) if kind == b"command" else 2
        words, variables = fields[:count], fields[count:]
        emits = any(variable.startswith(b"GRAPH_EVENTS_FD=") for variable in variables)
        if emits and channel.fileno() == EVENTS:
            other = os.dup(EVENTS)
            channel.close()
            channel = _socket.socket(fileno=other)
        for number in (1, 2):
            os.dup2(outputs[number - 1], number)
            os.close(outputs[number - 1])
        keep_events(outputs[2], emits)
        os.chdir(cwd)
        values = {name: value for name, _, value in (variable.partition(b"=") for variable in variables)}
        if kind == b"command":
            os.set_inheritable(channel.fileno(), False)  # closed by the command, or the worker hears that there is none
            os.execvpe(words[0], words, {**values, **character_type(values)})
        os.environb.update(values)
        program, path = words
        set_arguments(os.fsdecode(program), os.fsdecode(path))
        file = libc.fopen(path, b"rb")
        if not file:
            raise OSError(path)
    except BaseException:
        send(channel, b"refused")
        os._exit(1)
    channel.close()
    return file, path


def character_type(env: "dict[bytes, bytes]") -> "dict[bytes, bytes]":
    """What an interpreter that becomes a command adds to its environment: UTF-8 in place of the locale C (PEP 538)."""
    if env.get(b"LC_ALL"):
        return {}
    if not env.get(b"LC_CTYPE") and not env.get(b"LANG"):
        return UTF_8_OF_C
    os.environb.clear()
    os.environb.update(env)
    try:
        return {} if _locale.setlocale(_locale.LC_CTYPE, "") != "C" else utf_8_of_c()
    except Exception:  # there is no such locale
        return {}


def utf_8_of_c() -> "dict[bytes, bytes]":
    try:
        return {b"LC_CTYPE": _locale.setlocale(_locale.LC_CTYPE, "C.UTF-8").encode()}
    except Exception:  # there is no such locale
        return {}


def keep_events(pipe: int, emits: bool) -> None:
    """Make the pipe the descriptor EVENTS, which children inherit; or close it. Nothing else is there then."""
    if emits:
        os.dup2(pipe, EVENTS)
        os.set_inheritable(EVENTS, True)
    if not emits or pipe != EVENTS:
        os.close(pipe)


def set_arguments(program: str, path: str) -> None:
    """Set what `python3 PATH` finds in sys, and its `__main__`."""
    sys.argv = [path]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [program, path]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    main = type(sys)("__main__")
    fresh = {name: value for name, value in PRISTINE.items() if name not in ("__file__", "__cached__")}
    vars(main).update(fresh, __doc__=None)
    if "__annotations__" in fresh:
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main


def end(status: int) -> None:
    """End this process in the order of CPython's Py_FinalizeEx, but keep the modules that the launcher had loaded: to
    free their objects would copy every page of them, which takes longer than all else of a short script. Returns if
    only the interpreter itself can end it: it has more threads, or its output cannot be written."""
    if is_threaded():
        return
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()
    try:  # noqa: SIM105
        atexit._run_exitfuncs()
    except BaseException:  # Python 3.9 prints it and raises it
        pass
    if is_threaded() or not has_flushed(sys.stdout, sys.stderr):
        return
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    for name in ("stdout", "stderr", "displayhook", "excepthook", "unraisablehook"):
        setattr(sys, name, getattr(sys, f"__{name}__"))
    files = open_files()  # open until all finalizers have run, some of which write to them
    clear_modules()
    has_flushed(*files)
    files.clear()  # closes them: what cannot be written is told on stderr
    has_flushed(sys.stdout, sys.stderr)
    libc.exit(status)  # and not os._exit: libraries in C may have functions that are called at the end


def is_threaded() -> bool:
    return len(sys._current_frames()) > 1


def has_flushed(*files: "typing.Any") -> bool:
    """False: one cannot be written. Closed ones do not count."""
    written = True
    for file in files:
        try:
            if file is not None and not getattr(file, "closed", False):
                file.flush()
        except BaseException:
            written = False
    return written


def open_files() -> "list[typing.Any]":
    """What writes to a file of the system, directly or through a buffer, after it has written what it held back."""
    found: list[typing.Any] = []
    for each in gc.get_objects():
        if type(each) in (_io.FileIO, _io.BufferedWriter, _io.BufferedRandom, _io.TextIOWrapper):
            has_flushed(each)
            if is_of_system(each):
                found.append(each)
    return found


def is_of_system(file: "typing.Any") -> bool:
    while type(file) in (_io.BufferedWriter, _io.BufferedRandom, _io.TextIOWrapper):
        try:
            file = file.buffer if type(file) is _io.TextIOWrapper else file.raw
        except ValueError:  # it was detached
            return False
    return type(file) is _io.FileIO


def clear_modules() -> None:
    """Free what the script's modules refer to: objects may have finalizers, and files have content to write."""
    names = [name for name in sys.modules if name not in LOADED or name == "__main__"]
    modules = [sys.modules.pop(name) for name in names]
    references = [_weakref.ref(module) for module in modules if isinstance(module, type(sys))]
    del modules
    gc.collect()  # finalizers run while the names that they use exist
    for reference in reversed(references):
        values = vars(reference() or type(sys)("freed"))
        for is_private in (True, False):
            for name in list(values):
                if name != "__builtins__" and is_private == (name[:1] == "_" and name[1:2] != "_"):
                    values[name] = None
    gc.collect()


at_start = _locale.setlocale(_locale.LC_CTYPE, None)
UTF_8_OF_C = utf_8_of_c()
"""What a command gets whose environment names no locale. To load it takes longer than the rest of a child's work."""
_locale.setlocale(_locale.LC_CTYPE, at_start)
control = _socket.socket(fileno=int(sys.argv[1]))
if len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208
    sys.exit("python3 has started threads of its own: it cannot be forked")
gc.collect()
gc.freeze()  # otherwise a collection in a script would touch, and so copy, every page of the objects that exist now
control.send(b"ready " + ",".join(sorted(set(sys.modules) - NATIVE)).encode())
file, path = become_script(*Server(control).serve())
del control
LOADED = frozenset(sys.modules)
# Prints an exception and exits for SystemExit, all as `python3 FILE` does. The interpreter remembers an uncaught
# KeyboardInterrupt, and dies of SIGINT if this file ends normally.
failed = run_file(file, path, 1, None) != 0
if not failed or sys.last_type is not KeyboardInterrupt:
    try:  # noqa: SIM105
        end(int(failed))
    except BaseException:  # what a script has replaced in the library may raise anything
        pass
    sys.exit(int(failed))
