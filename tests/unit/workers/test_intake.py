"""Which queues a worker takes, and when it tries one again that its machine could not serve."""

from __future__ import annotations

from itertools import pairwise

from sleipnir.errors import MachineFailed
from sleipnir_workers.consumer.intake import Intake

FULL = MachineFailed("disk", "No space left on device")


class Loop:
    """An intake, with what its worker did, on a machine that is sound or not."""

    def __init__(self) -> None:
        self.intake = Intake(first_pause_s=5, longest_pause_s=60)
        self.acts: list[str] = []
        self.checks = 0
        self.is_sound = False

    def look(self, now: float) -> list[str]:
        before = len(self.acts)
        self.intake.look(self._check, lambda q: self.acts.append(f"-{q}"), lambda q: self.acts.append(f"+{q}"), now)
        return self.acts[before:]

    def _check(self) -> None:
        self.checks += 1
        if not self.is_sound:
            raise FULL


def test_a_queue_is_left_alone_until_the_machine_is_sound() -> None:
    """Finding C18."""
    loop = Loop()
    for _ in range(3):
        loop.intake.report("scripts", FULL)
    assert loop.look(100) == ["-scripts"]
    assert loop.intake.stopped() == {"scripts": "disk: No space left on device"}
    assert loop.look(104) == []
    assert loop.checks == 0, "the first check is after 5 s"
    assert loop.look(105) == []
    loop.is_sound = True
    assert loop.look(106) == []
    assert loop.look(115) == ["+scripts"]
    assert loop.intake.stopped() == {}


def test_the_pause_grows_to_a_minute_and_is_reset_after_a_time_without_failures() -> None:
    """Finding C18."""
    loop = Loop()
    loop.intake.report("scripts", FULL)
    loop.look(1000)
    checked_at, now = [], 1000.0
    while len(checked_at) < 6:
        now += 1
        before = loop.checks
        loop.look(now)
        if loop.checks > before:
            checked_at.append(now)
    pauses = [later - earlier for earlier, later in pairwise([1000.0, *checked_at])]
    assert pauses == [5, 10, 20, 40, 60, 60]
    loop.is_sound = True
    assert loop.look(now + 60) == ["+scripts"]
    loop.intake.report("scripts", FULL)
    assert loop.look(now + 61) == ["-scripts"], "the check passes, and visits still fail"
    assert loop.look(now + 61 + 59) == []
    assert loop.look(now + 61 + 60) == ["+scripts"]
    loop.intake.report("scripts", FULL)
    assert loop.look(now + 1000) == ["-scripts"]
    assert loop.look(now + 1005) == ["+scripts"]


def test_one_queue_does_not_stop_another() -> None:
    """Finding C18."""
    loop = Loop()
    loop.intake.report("scripts", FULL)
    assert loop.look(1) == ["-scripts"]
    loop.intake.report("rag", FULL)
    assert loop.look(2) == ["-rag"]
    assert set(loop.intake.stopped()) == {"scripts", "rag"}


def test_reports_of_any_length_and_number_neither_block_nor_mix() -> None:
    """Finding C18."""
    loop = Loop()
    for number in range(5000):
        loop.intake.report(f"q{number % 3}", MachineFailed("disk", "é" * 5000))
    assert loop.look(1) == ["-q0", "-q1", "-q2"]
    while loop.look(2):
        pass
    assert set(loop.intake.stopped()) == {"q0", "q1", "q2"}
