"""Child processes for work on foreign data that may never end: parsing documents, evaluating conditions.

Rules. A child answers one request at a time, in order; it keeps its imported modules. One that has not answered at its
deadline is killed, and the next request starts another. Concurrent requests get a child each; KEPT idle ones are kept.
A child has no secrets: its environment holds none, and each request brings what it needs. Its memory is bounded. It
dies with its worker (group_guard.py).

A request and its answer are a JSON object and bytes each; `helper_main.py` is the child's side.
"""

from __future__ import annotations

import json
import os
import resource
import select
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import IO, Any, Final

from sleipnir.errors import MachineFailed
from sleipnir_workers.processes import group_guard

KEPT: Final = 2
"""Idle children."""

LOOK_S: Final = 0.2
"""Between two looks whether the visit that waits for an answer was lost."""

MEMORY_BYTES: Final = 4 * 2**30
_LENGTHS = struct.Struct(">QQ")
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")


class HelperFailed(Exception):
    """The request was not answered. Its text is one line that ends a sentence."""


class TookTooLong(HelperFailed):
    """The child was killed at the deadline."""


class HelperProcesses:
    """Children that run one module, which has `answer(request, body) -> (answer, body)`. Safe to use from any thread
    and after a fork."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        _all.add(self)

    def ask(
        self,
        request: Mapping[str, Any],
        body: bytes = b"",
        *,
        timeout_s: float,
        lost: threading.Event | None = None,
    ) -> tuple[dict[str, Any], bytes]:
        """The answer. Raises HelperFailed, also once `lost` is set, and MachineFailed when no child can be started."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
        if child is not None and not child.is_alive:
            child.end()
            child = None
        child = child or _Child(self._module)
        try:
            answer = child.ask(json.dumps(request).encode(), body, timeout_s, lost)
        except BaseException:
            child.end()
            raise
        with self._lock:
            if len(self._idle) < KEPT:
                self._idle.append(child)
                return answer
        child.end()
        return answer

    def close(self) -> None:
        """End the idle children. The helper may be used again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    def forget(self) -> None:
        """In a forked process: drop the idle children, which are the parent's."""
        self._lock = threading.Lock()
        for child in self._idle:
            child.forget()
        self._idle = []


class _Child:
    def __init__(self, module: str) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sleipnir_workers.processes.helper_main", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # messages of libraries about a hostile document do not belong in the log
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,
            )
            resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
            resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))
            group_guard.guard.add(self._process.pid)
        except OSError as error:
            raise MachineFailed.of(error, "a helper process cannot be started", part="processes") from error

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(
        self, request: bytes, body: bytes, timeout_s: float, lost: threading.Event | None
    ) -> tuple[dict[str, Any], bytes]:
        late = threading.Event()
        timer = threading.Timer(timeout_s, self._kill, [late])
        timer.daemon = True
        timer.start()
        try:
            self._write(request, body)
            self._await_answer(lost)
            return self._read()
        except (OSError, EOFError, ValueError) as error:
            if late.is_set():
                raise TookTooLong(f"took longer than {timeout_s:g} s and was ended") from None
            raise HelperFailed(f"ended its process (exit status {self._process.wait()})") from error
        finally:
            timer.cancel()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        group_guard.guard.remove(self._process.pid)
        self.forget()
        self._process.wait()

    def forget(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # unwritten data
                    continue

    def _kill(self, late: threading.Event) -> None:
        late.set()
        self._process.kill()

    def _await_answer(self, lost: threading.Event | None) -> None:
        """Wait for the beginning of the answer. Raises HelperFailed once `lost` is set."""
        if lost is None:
            return
        stdout, poll = self._process.stdout, select.poll()
        assert stdout is not None
        poll.register(stdout.fileno(), select.POLLIN)
        while not poll.poll(LOOK_S * 1000):
            if lost.is_set():
                raise HelperFailed("was stopped, because its visit was lost")

    def _write(self, request: bytes, body: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(_LENGTHS.pack(len(request), len(body)))
        stdin.write(request)
        stdin.write(body)
        stdin.flush()

    def _read(self) -> tuple[dict[str, Any], bytes]:
        stdout = self._process.stdout
        assert stdout is not None
        answer_bytes, body_bytes = _LENGTHS.unpack(_exactly(stdout, _LENGTHS.size))
        answer = json.loads(_exactly(stdout, answer_bytes))
        return answer, _exactly(stdout, body_bytes)


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


_all: weakref.WeakSet[HelperProcesses] = weakref.WeakSet()


def _after_fork() -> None:
    for helper in list(_all):
        helper.forget()


os.register_at_fork(after_in_child=_after_fork)
