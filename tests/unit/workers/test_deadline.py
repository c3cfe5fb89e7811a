"""Interrupting Python calls: at the deadline, when the visit is lost, and never afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sleipnir_workers.execution.execution import VisitLost
from sleipnir_workers.functions import deadline


def spin(seconds: float = 30.0) -> str:
    """Python code that never blocks; ends by itself so that a broken watchdog fails the test soon."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "ended by itself"


def call(function: Callable[[], Any], timeout_s: float = 30.0, lost: threading.Event | None = None) -> Any:
    return deadline.call(function, timeout_s=timeout_s, lost=lost or threading.Event())


def test_a_call_in_time_returns_its_value() -> None:
    assert call(lambda: 42) == 42


def test_an_error_of_the_call_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError):
        call(lambda: 1 // 0)


def test_a_call_is_interrupted_at_its_deadline() -> None:
    started = time.monotonic()
    with pytest.raises(deadline.DeadlinePassed):
        call(spin, timeout_s=0.1)
    assert time.monotonic() - started < 20


def test_a_lost_visit_interrupts_its_call_within_a_second() -> None:
    lost = threading.Event()
    lost_at = 0.0

    def lose_and_spin() -> None:
        nonlocal lost_at
        lost_at = time.monotonic()
        lost.set()
        spin()

    with pytest.raises(VisitLost):
        call(lose_and_spin, lost=lost)
    assert time.monotonic() - lost_at < 20


def test_a_call_that_swallows_the_interrupt_is_interrupted_again() -> None:
    swallowed = 0

    def stubborn() -> None:
        nonlocal swallowed
        try:
            spin()
        except BaseException:
            swallowed += 1
        spin()

    with pytest.raises(deadline.DeadlinePassed):
        call(stubborn, timeout_s=0.05)
    assert swallowed == 1


def test_a_call_that_swallows_the_interrupt_and_returns_is_late_all_the_same() -> None:
    def swallow() -> str:
        try:
            return spin()
        except BaseException:
            return "pretends to be in time"

    with pytest.raises(deadline.DeadlinePassed):
        call(swallow, timeout_s=0.05)


def test_a_call_that_turns_the_interrupt_into_its_own_error_is_late_all_the_same() -> None:
    def translate() -> None:
        try:
            spin()
        except BaseException as error:
            raise ValueError("unlucky") from error

    with pytest.raises(deadline.DeadlinePassed):
        call(translate, timeout_s=0.05)


def test_nothing_strikes_after_the_call_returned() -> None:
    """Calls that end just when they are interrupted: each ends in one of two ways, and nothing comes later."""
    watchdog = deadline.Watchdog(tick_s=0.0)
    never = threading.Event()
    ended = {"in time": 0, "late": 0}
    until = time.monotonic() + 20.0
    while min(ended.values()) < 30 and time.monotonic() < until:
        turn = sum(ended.values())
        try:
            watchdog.call(lambda length=turn % 200: list(range(length)), timeout_s=turn % 50 * 1e-6, lost=never)
            ended["in time"] += 1
        except deadline.DeadlinePassed:
            ended["late"] += 1
    spin(0.1)
    assert min(ended.values()) >= 30


def test_calls_in_many_threads_are_interrupted_apart() -> None:
    outcomes: dict[int, str] = {}

    def work(number: int) -> None:
        try:
            outcomes[number] = call(lambda: spin(1.0), timeout_s=0.1 if number % 2 else 30.0)
        except deadline.DeadlinePassed:
            outcomes[number] = "interrupted"

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {number: "interrupted" if number % 2 else "ended by itself" for number in range(8)}


def test_an_outer_deadline_ends_an_inner_call() -> None:
    with pytest.raises(deadline.DeadlinePassed):
        call(lambda: call(spin, timeout_s=30.0), timeout_s=0.1)


def test_calls_share_one_watchdog_thread() -> None:
    call(lambda: None)
    before = set(threading.enumerate())
    for _ in range(100):
        call(lambda: None)
    assert set(threading.enumerate()) <= before
