"""Interrupt a Python call at its deadline, or as soon as its visit is lost, without a thread per call.

One watchdog thread per process checks all running calls every TICK_S and raises an exception in the
thread of a call that must stop (PyThreadState_SetAsyncExc). Arming and disarming touch one set and one
lock and wake no thread, so a call that ends in time costs microseconds.

The exception arrives at the next bytecode: a call that blocks in C (time.sleep, a socket without a
timeout) is interrupted only when it returns to Python. Code that swallows the exception gets it
again every REPEAT_S.

The race at the end. The exception may arrive anywhere, even while the call is being disarmed.
Disarming is therefore safe to repeat and is repeated until one pass was not interrupted; the watchdog
raises only while it holds the call's lock and the call is not done; and a pending exception
is awaited before the lock is released. After `call` has returned, no exception can arrive.

It is awaited and not cancelled, although PyThreadState_SetAsyncExc can do that: CPython 3.11 then never
clears its flag to look for exceptions. This slows down each loop of the process, and
the next function that a profiler or debugger follows (sys.setprofile) never ends.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sleipnir_workers.execution.execution import VisitLost

TICK_S = 0.05
REPEAT_S = 1.0
_IDLE_S = 1.0  # with no call for this long the watchdog sleeps until it is woken

T = TypeVar("T")


class DeadlinePassed(Exception):
    """The call did not end before its deadline."""


class _Interrupt(BaseException):
    """Raised in the thread of a call that must stop. A BaseException, so that `except Exception` does not catch it."""


class _Watch:
    """One running call. The lock is reentrant because its holder may be interrupted while taking it."""

    __slots__ = ("deadline", "done", "is_interrupted", "lock", "lost", "raise_at", "thread")

    def __init__(self, deadline: float, lost: threading.Event) -> None:
        self.thread = threading.get_ident()
        self.deadline = deadline
        self.lost = lost
        self.raise_at = 0.0
        self.is_interrupted = False
        self.done = False
        self.lock = threading.RLock()


def call(function: Callable[[], T], *, timeout_s: float, lost: threading.Event) -> T:
    """Call `function` in this thread, under this process's watchdog.

    Raises DeadlinePassed after about `timeout_s`, VisitLost once `lost` is set; both also when the call
    ended by itself after it was interrupted. Calls may nest.
    """
    return _of_this_process.call(function, timeout_s=timeout_s, lost=lost)


class Watchdog:
    """One thread that checks the calls made through it every `tick_s`. `call` is the function above."""

    def __init__(self, tick_s: float = TICK_S) -> None:
        self._tick_s = tick_s
        self._armed: set[_Watch] = set()
        self._wake = threading.Condition()
        self._asleep = True
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], *, timeout_s: float, lost: threading.Event) -> T:
        watch = _Watch(time.monotonic() + timeout_s, lost)
        try:
            try:
                self._armed.add(watch)
                if self._asleep:
                    self._wake_thread()
                return function()
            finally:
                self._disarm(watch)
        except _Interrupt:
            self._disarm_uninterrupted(watch)
            if not watch.is_interrupted:  # meant for a call around this one
                raise
        finally:
            _raise_verdict(watch)
        raise AssertionError("unreachable: an interrupted call has a verdict")

    def _disarm(self, watch: _Watch) -> None:
        """Make sure that no exception arrives any more. Safe to interrupt and to repeat."""
        with watch.lock:
            watch.done = True
            self._armed.discard(watch)
            if watch.is_interrupted:
                _await_interrupt()

    def _disarm_uninterrupted(self, watch: _Watch) -> None:
        while True:
            try:
                return self._disarm(watch)
            except _Interrupt:
                continue

    def _wake_thread(self) -> None:
        with self._wake:
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch_calls, name="deadline-watchdog", daemon=True)
                self._thread.start()
            self._asleep = False
            self._wake.notify()

    def _watch_calls(self) -> None:
        idle_since = time.monotonic()
        while True:
            now = time.monotonic()
            calls = tuple(self._armed)
            for watch in calls:
                _interrupt_if_due(watch, now)
            if calls:
                idle_since = now
            if now - idle_since > _IDLE_S:
                self._sleep()
                idle_since = time.monotonic()
            time.sleep(self._tick_s)

    def _sleep(self) -> None:
        with self._wake:
            self._asleep = True
            if self._armed:  # by a call that did not see `_asleep` yet
                self._asleep = False
            while self._asleep:
                self._wake.wait()


def _raise_verdict(watch: _Watch) -> None:
    if not watch.is_interrupted:
        return
    if watch.lost.is_set():
        raise VisitLost("the visit was lost while its function was running") from None
    raise DeadlinePassed from None


def _interrupt_if_due(watch: _Watch, now: float) -> None:
    if now < watch.raise_at or not (watch.lost.is_set() or now >= watch.deadline):
        return
    # Not blocking: the holder of the lock is disarming, and may have been interrupted while doing so.
    if not watch.lock.acquire(blocking=False):
        return
    try:
        if not watch.done:
            watch.is_interrupted = True
            watch.raise_at = now + REPEAT_S
            _interrupt(watch.thread)
    finally:
        watch.lock.release()


def _interrupt(thread: int) -> None:
    """Raise in `thread`. It replaces an exception that was raised there and has not arrived yet."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Interrupt))


def _await_interrupt() -> None:
    """Leave none pending in this thread: raise another one, which replaces a pending one and arrives here."""
    try:
        _interrupt(threading.get_ident())
        while True:
            pass
    except _Interrupt:
        pass


_of_this_process = Watchdog()


def _after_fork() -> None:
    """A child has none of its parent's threads, which may hold the locks that it has copied."""
    global _of_this_process
    _of_this_process = Watchdog()


os.register_at_fork(after_in_child=_after_fork)
