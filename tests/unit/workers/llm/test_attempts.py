"""How often a call is made, and how long the pauses are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sleipnir.errors import NodeFailed
from sleipnir_workers.llm.attempts import LONGEST_PAUSE_S, LONGEST_RETRY_AFTER_S, Attempts, pause_s
from sleipnir_workers.llm.failures import CallFailed


def made(most: int, *outcomes: str | CallFailed) -> tuple[str, list[float]]:
    pauses: list[float] = []
    left: Iterator[str | CallFailed] = iter(outcomes)

    def call() -> str:
        outcome = next(left)
        if isinstance(outcome, CallFailed):
            raise outcome
        return outcome

    return Attempts(most, pauses.append).run(call), pauses


@pytest.mark.conformance("M08")
def test_only_transient_failures_are_followed_by_another_attempt() -> None:
    busy = CallFailed("busy", transient=True)
    answer, pauses = made(3, busy, busy, "yes")
    assert (answer, len(pauses)) == ("yes", 2)
    with pytest.raises(NodeFailed, match="busy") as caught:
        made(2, busy, busy)
    assert caught.value.transient


@pytest.mark.conformance("M09")
def test_another_failure_ends_it_and_keeps_its_kind() -> None:
    with pytest.raises(NodeFailed, match="no") as caught:
        made(5, CallFailed("no", kind="model_call"))
    assert (caught.value.kind, caught.value.transient) == ("model_call", False)


def test_no_attempt_at_all_is_a_failure() -> None:
    with pytest.raises(NodeFailed, match="llm node exhausted retries"):
        made(0)


def test_pauses_grow_and_end_somewhere() -> None:
    assert all(0.125 <= pause_s(1) <= 0.25 for _ in range(20))
    assert all(LONGEST_PAUSE_S / 2 <= pause_s(10_000) <= LONGEST_PAUSE_S for _ in range(20))


def test_a_pause_is_at_least_what_the_provider_asks_for_within_reason() -> None:
    assert pause_s(1, 7.0) == 7.0
    assert pause_s(1, 3_600.0) == LONGEST_RETRY_AFTER_S
    assert pause_s(9, 0.0) > 1.0
    _, pauses = made(2, CallFailed("later", transient=True, retry_after_s=3.0), "yes")
    assert pauses == [3.0]
