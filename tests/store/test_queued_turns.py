"""Queued turns of threads on a real Redis: each begins once, in order, with the state at the end of the run before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sleipnir.errors import ThreadBusy, TooManyQueued, UsageError
from sleipnir.runs.run import QueuedTurn
from sleipnir.runs.threads import HELD_MS, MOST_QUEUED
from sleipnir.store.store import Store
from tests.store.test_threads import NAME, SPEC, Talk


class QueuingTalk(Talk):
    """The runs of one thread whose turns may wait."""

    def queue(self, state: Mapping[str, Any] | None = None, *defaults: str, folds: tuple[str, ...] = ()) -> str:
        live = self.store.threads.live(NAME)
        assert live is not None
        run = next(self.ids)
        spec = SPEC.in_thread(NAME.name, live.turns + 1, live.before)
        self.store.threads.queue(run, spec, state or {}, QueuedTurn(defaults, folds))
        self.advance.run_once()
        return run

    def status(self, run: str) -> str:
        info = self.store.runs.info(run)
        return "queued" if info.is_queued else info.status

    def cancel(self, run: str) -> None:
        self.store.runs.cancel(run)
        self.go_on()

    def go_on(self) -> None:
        while self.advance.run_once() > 0:
            pass

    def finish(self, run: str, *, ok: bool = True, **delta: Any) -> None:
        self.end(run, ok=ok, **delta)
        self.go_on()


@pytest.fixture
def talk(store: Store) -> QueuingTalk:
    return QueuingTalk(store)


def test_a_queued_turn_begins_when_the_run_before_it_has_ended(talk: QueuingTalk) -> None:
    first = talk.begin(a=1, b=2)
    second = talk.queue({"a": 10, "b": 20, "c": 30}, "b", "c")
    third = talk.queue({"a": 100})
    assert [talk.status(run) for run in (first, second, third)] == ["running", "queued", "queued"]
    [thread] = talk.store.threads.page("agent", None, 500, None)
    assert (thread.run, thread.queued, thread.turns, thread.status) == (first, (second, third), 3, "running")
    assert talk.store.runs.info(third).previous == second
    talk.finish(first, said="hi", b=3)
    assert [talk.status(run) for run in (first, second, third)] == ["completed", "running", "queued"]
    begins = {"a": 10, "b": 3, "c": 30, "said": "hi"}
    assert talk.store.runs.state(second) == begins, "values replace, defaults only add what is missing"
    assert talk.store.runs.fold(second, 0) == begins, "its journal needs no other run"
    assert talk.expires_ms(first) not in (None, HELD_MS) and all(ms > 0 for ms in talk.ttl_ms(first).values())
    talk.finish(second, said="ho")
    talk.finish(third, said="end")
    assert talk.store.runs.state(third) == {"a": 100, "b": 3, "c": 30, "said": "end"}
    info = talk.store.threads.info(NAME)
    assert info is not None and (info.run, info.queued, info.status) == (third, (), "completed")
    assert talk.expires_ms(third) == HELD_MS


@pytest.mark.parametrize("end", ["fails", "cancelled"])
def test_it_begins_whatever_the_end_of_the_run_before_it(talk: QueuingTalk, end: str) -> None:
    first = talk.begin(a=1)
    second = talk.queue()
    if end == "fails":
        talk.finish(first, ok=False)
    else:
        talk.cancel(first)
    assert talk.status(second) == "running"
    assert talk.store.runs.state(second) == {"a": 1}, "without the error of the run before it"
    assert [step.kind for step in talk.store.runs.history(second)] == ["submitted"]


def test_a_cancelled_one_never_begins_and_the_next_one_takes_its_place(talk: QueuingTalk) -> None:
    first = talk.begin(a=1)
    second, third, last = talk.queue({"a": 2}), talk.queue({"b": 3}), talk.queue()
    talk.cancel(second)
    assert [talk.status(run) for run in (first, second, third)] == ["running", "cancelled", "queued"]
    assert talk.expires_ms(second) not in (None, HELD_MS), "it is not of the thread, and expires"
    talk.finish(first, said="x")
    assert talk.store.runs.state(third) == {"a": 1, "b": 3, "said": "x"}
    talk.cancel(last)
    talk.finish(third)
    info = talk.store.threads.info(NAME)
    assert info is not None and (info.run, info.queued) == (third, ())
    assert talk.turn(said="y")


def test_a_held_one_takes_its_turn_and_starts_nothing_until_it_is_resumed(talk: QueuingTalk) -> None:
    first = talk.begin()
    second = talk.queue()
    talk.store.runs.pause(second, by="ann")
    talk.go_on()
    talk.finish(first, said="x")
    assert talk.status(second) == "paused" and talk.store.runs.state(second) == {"said": "x"}
    assert [each for each in talk.store.partitions.load([second])[second].frontier.values() if each.queue] == []
    talk.store.runs.resume(second)
    talk.go_on()
    talk.finish(second, said="y")
    assert talk.status(second) == "completed"


def test_nothing_overtakes_a_queued_turn(talk: QueuingTalk) -> None:
    first = talk.begin()
    second = talk.queue()
    last = talk.store.threads.last
    talk.end(first)  # the message that it is the turn of the second one is in the inbox
    assert talk.status(second) == "queued"
    with pytest.raises(ThreadBusy, match=second):
        last(NAME)
    with pytest.raises(ThreadBusy, match=second):
        talk.fork(first)
    with pytest.raises(ThreadBusy, match=second):
        talk.store.threads.remove(NAME)
    third = talk.queue()
    talk.go_on()
    assert (talk.status(second), talk.status(third)) == ("running", "queued")


def test_a_thread_that_is_free_queues_nothing_and_a_full_one_no_more(talk: QueuingTalk) -> None:
    assert talk.store.threads.live(NAME) is None
    first = talk.begin()
    live = talk.store.threads.live(NAME)
    assert live is not None
    spec = SPEC.in_thread(NAME.name, live.turns + 1, live.before)
    talk.finish(first)
    assert talk.store.threads.live(NAME) is None
    late = next(talk.ids)
    with pytest.raises(ThreadBusy, match="goes on with other turns"):
        talk.store.threads.queue(late, spec, {}, QueuedTurn())
    assert talk.store.runs.find([late]) == [None]
    talk.begin()
    queued = [talk.queue() for _ in range(MOST_QUEUED)]
    with pytest.raises(TooManyQueued, match="100 queued turns"):
        talk.queue()
    talk.cancel(queued[50])
    assert talk.status(talk.queue()) == "queued"


def test_a_run_that_is_retried_before_the_next_turn_begins_goes_first(talk: QueuingTalk) -> None:
    first = talk.begin()
    second = talk.queue()
    talk.end(first, ok=False)
    talk.store.runs.retry(first)
    talk.go_on()
    assert (talk.status(first), talk.status(second)) == ("running", "queued")
    talk.finish(first, said="x")
    assert talk.status(second) == "running" and talk.store.runs.state(second) == {"said": "x"}


@pytest.mark.parametrize("damage", ["expired", "unreadable"])
def test_a_turn_without_a_state_to_take_fails_and_lets_the_next_one_begin(talk: QueuingTalk, damage: str) -> None:
    first = talk.begin()
    second = talk.queue(folds=("a",)) if damage == "unreadable" else talk.queue()
    talk.end(first)
    client, keys = talk.store._client, talk.store.keys.of_run(first)
    if damage == "expired":
        client.delete(keys.run, keys.state)
        talk.go_on()
        assert talk.status(second) == "failed"
        assert f"the last run {first} of thread 'talk' is gone" in str(talk.store.runs.info(second).error)
        with pytest.raises(UsageError, match="cannot be retried"):
            talk.store.runs.retry(second)
    else:
        client.hset(keys.state, "a", "{")
        talk.go_on()
        assert talk.store.runs.info(second).parked is not None


def test_a_queued_turn_keeps_its_own_values_of_one_run_and_no_others(talk: QueuingTalk) -> None:
    first = talk.begin(**{"invocation:case": 1, "temp:a": 1})
    live = talk.store.threads.live(NAME)
    assert live is not None and live.state == {}
    second = talk.queue({"invocation:case": 2})
    talk.finish(first, **{"temp:b": 2, "said": "x"})
    assert talk.store.runs.state(second) == {"invocation:case": 2, "said": "x"}
