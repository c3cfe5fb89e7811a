"""Be a Python that has the libraries loaded: fork for every command, and run its module or code as `__main__` there.

`starter.py` starts it as `python starter_server.py KIND CONTROL_FD` and says why, and which kinds there are.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

LIBRARIES = (
    "cel", "celery.apps.worker", "celery.bin.celery", "celery.concurrency.prefork", "celery.concurrency.solo",
    "celery.concurrency.thread", "celery.worker.consumer", "celery.worker.strategy", "click", "jsonschema",
    "kombu.transport.redis", "pydantic", "redis", "rich.console", "structlog", "yaml",
)  # fmt: skip
ENGINE = (
    "sleipnir.cli.app", "sleipnir.client.client", "sleipnir_scheduler.planner.plan", "sleipnir_workers.visits.claim",
)  # fmt: skip
OF_A_PROCESS = ("sleipnir_scheduler.dispatch", "sleipnir_workers.app")  # the mark of its messages; its settings
LOADED = {"bare": LIBRARIES, "engine": LIBRARIES + ENGINE, "models": (*LIBRARIES, *ENGINE, "litellm")}
REQUEST_BYTES = 256 * 1024
FDS = 4  # stdin, stdout, stderr, and where the pid and the end are told
PR_SET_PDEATHSIG = 1


class Server:
    """The loop of the parent. `serve` returns in every child, with the request it is to become."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.poll = select.poll()
        self.children: dict[int, tuple[int, int]] = {}
        """By pidfd: the pid, and where its end is told."""

    def serve(self) -> dict[str, Any]:
        self.poll.register(self.control, select.POLLIN)
        while True:
            for fd, _ in self.poll.poll():
                if fd != self.control.fileno():
                    self.tell_end(fd)
                elif (request := self.receive()) is not None:
                    return request

    def receive(self) -> dict[str, Any] | None:
        """Fork for the next request; what it says in the child, None in the parent."""
        data, fds, _, _ = socket.recv_fds(self.control, REQUEST_BYTES, FDS)
        if not data:  # the tests have ended
            os._exit(0)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.let_go()
            take(fds, parent)
            request: dict[str, Any] = json.loads(data)
            return request
        *streams, told = fds
        for fd in streams:
            os.close(fd)
        os.write(told, b"%d\n" % pid)
        pidfd = os.pidfd_open(pid)
        self.children[pidfd] = pid, told
        self.poll.register(pidfd, select.POLLIN)
        return None

    def tell_end(self, pidfd: int) -> None:
        pid, told = self.children.pop(pidfd)
        self.poll.unregister(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(told, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(told)
        os.close(pidfd)

    def let_go(self) -> None:
        """Close, in a child, what is the parent's."""
        self.control.close()
        for pidfd, (_, told) in self.children.items():
            os.close(pidfd)
            os.close(told)


def take(fds: list[int], parent: int) -> None:
    """What launch.py does for a process that is started cold: tied to its parent, without core dumps."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    *streams, told = fds
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.close(told)


def renew_streams() -> None:
    """Python looks at its standard streams once, at its start: whether one is a terminal, and can be sought in."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        mode, buffering = ("w" if number else "r"), (1 if os.isatty(number) or name == "stderr" else -1)
        stream = open(number, mode, buffering, encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class Ending:
    """How a child ends: without the interpreter's own end, which takes apart all that was loaded, for most of the CPU
    that a short command costs. It comes after the wait for threads and after all other exit functions.

    The interpreter ends what raised, what has no number for its exit code, and whatever cannot write its last output:
    it has the words and the codes for that.
    """

    code: int | None = None

    def __call__(self) -> None:
        if self.code is None:
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except Exception:
            return
        os._exit(self.code & 0xFF)

    def of(self, run: Callable[[], object]) -> None:
        """Run it, and remember its exit code."""
        try:
            run()
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                self.code = end.code or 0
            raise
        self.code = 0


def main() -> None:
    ending = Ending()
    atexit.register(ending)  # before all others, which are called in the opposite order
    _, kind, fd = sys.argv
    control = socket.socket(fileno=int(fd))
    del sys.path[0]  # this folder; a child gets its own, as from `python -m`
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # as a worker sets it, which must not ask the internet either
    for name in LOADED[kind]:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a fork has only the thread that forks"
    assert not sys.modules.keys() & OF_A_PROCESS, "each process must make these itself"
    gc.collect()
    gc.freeze()
    request = Server(control).serve()
    renew_streams()
    os.chdir(request["cwd"])
    sys.path.insert(0, request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    how, what, *arguments = request["arguments"]
    sys.argv = [how, *arguments]
    if how == "-m":
        ending.of(lambda: runpy.run_module(what, run_name="__main__", alter_sys=True))
    else:
        ending.of(lambda: exec(compile(what, "<string>", "exec"), {"__name__": "__main__"}))


if __name__ == "__main__":
    main()
