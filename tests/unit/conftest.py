"""Keeps the promise of this folder: a unit test starts no process and connects no socket.

So unit tests are fast, need nothing of the machine, and do not fail because it is busy. Python reports such calls as
audit events. During a unit test they raise here; if the tested code handles the error, the test fails at its end.
A test that needs a process or a socket belongs in tests/integration. Socket pairs are allowed: event loops use them.
"""

from __future__ import annotations

import multiprocessing.process
import sys
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

RULE = "a unit test may not start processes or connect sockets"
REFUSED = frozenset(
    {
        "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen",
        "socket.connect", "socket.sendto",
    }
)  # fmt: skip

UNIT_HISTORIES = 15
"""Histories per state machine in the profile `unit` (`make test-unit`); `make test` plays as many as the test names."""


class Guard:
    """Refuses the calls while a unit test runs. An audit hook cannot be removed, so there is one for all tests."""

    def __init__(self) -> None:
        self._active = False
        self._calls: list[str] = []
        self._older_threads: set[int | None] = set()
        """Threads that an earlier test of another folder has left in this process."""

    def begin(self) -> None:
        self._older_threads = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        self._active = True

    def end(self) -> list[str]:
        """The calls of the test that were refused."""
        self._active = False
        calls, self._calls = self._calls, []
        return calls

    def refuse(self, call: str) -> None:
        self._calls.append(call)
        pytest.fail(f"{RULE}: {call}")

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._active and event in REFUSED and threading.get_ident() not in self._older_threads:
            self.refuse(f"{event} {arguments[:2]!r:.200}")


_guard = Guard()
sys.addaudithook(_guard.hook)

_start = multiprocessing.process.BaseProcess.start


def _start_unless_refused(process: multiprocessing.process.BaseProcess) -> None:
    """Python's start method `spawn` reports no audit event."""
    _guard.hook("subprocess.Popen", (repr(process),))
    _start(process)


multiprocessing.process.BaseProcess.start = _start_unless_refused


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    _guard.begin()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    calls = _guard.end()
    yield
    if calls:
        pytest.fail(f"{RULE}: {'; '.join(calls)}", pytrace=False)


def pytest_itemcollected(item: pytest.Item) -> None:
    settings = getattr(getattr(item, "cls", None), "settings", None)
    if isinstance(settings, hypothesis.settings) and settings.get_current_profile_name() == "unit":
        examples = min(settings.max_examples, UNIT_HISTORIES)
        item.cls.settings = hypothesis.settings(settings, max_examples=examples)  # type: ignore[attr-defined]
