"""Threads on a real Redis: one run at a time, each begins where the last one ended, and nothing of a thread is lost."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest

from sleipnir.errors import ThreadBusy, UsageError
from sleipnir.messages import ResultHeader, VisitCall
from sleipnir.runs.claims import Claim
from sleipnir.runs.run import Checkpoint, Fork, RunSpec
from sleipnir.runs.threads import HELD_MS, ThreadName, checked
from sleipnir.runs.views import ThreadInfo
from sleipnir.store.runs.creation import TurnRefused
from sleipnir.store.store import Store
from sleipnir.store.threads import LastTurn, NextTurn
from tests.store.test_advance import advance_of

GRAPH = """
name: agent
version: sleipnir/1
start: work
nodes:
  work: {type: script, script: w.sh, next: e}
  e: {type: end, output: "{{said}}"}
"""
NAME = ThreadName("agent", "talk")
SPEC = RunSpec("agent", "digest")


class Talk:
    """The runs of one thread."""

    def __init__(self, store: Store) -> None:
        self.store, self.advance = store, advance_of(store, GRAPH)
        partition = store.keys.partition_of(str(NAME))
        ids = (f"run{number:09}" for number in itertools.count())
        self.ids = (run for run in ids if store.keys.partition_of(run) == partition)

    def begin(self, last: LastTurn | None = None, **changes: Any) -> str:
        """The next turn, after `last` or what is last now."""
        last = last or self.store.threads.last(NAME)
        turn, previous = (1, None) if last is None else (last.turns + 1, last.run)
        run = next(self.ids)
        self.store.threads.start(run, SPEC.in_thread(NAME.name, turn, previous), changes, last)
        self.advance.run_once()
        return run

    def fork(
        self, source: str, turn: NextTurn | None = None, run: str = "", *, rewinds: bool = False, **changes: Any
    ) -> str:
        """A fork of the source at its submission, as this turn, or what is the next one now."""
        turn = turn or self.store.threads.next_turn(NAME)
        run = run or next(self.ids)
        spec = replace(SPEC, fork=Fork(source, Checkpoint(0, ("work",))))
        spec = spec.in_thread(NAME.name, turn.number, turn.previous)
        state = self.store.runs.fold(source, 0)
        try:
            assert self.store.runs.fork(run, spec, last_step=None, state=state, changes=changes, cancels_source=rewinds)
        except TurnRefused as refused:
            raise self.store.threads.refusal(NAME, refused.code, refused.run) from None
        self.advance.run_once()
        return run

    def end(self, run: str, *, ok: bool = True, **delta: Any) -> None:
        """The run's script ends, with this."""
        [visit] = [each for each in self.store.partitions.load([run])[run].frontier.values() if each.queue]
        call = VisitCall(run, visit.node, visit.seq, visit.attempt, "agent", "digest", visit.role)
        claim = self.store.visits.claim(call, worker="w", token="t", lease_ms=60_000, wanted=())
        assert isinstance(claim, Claim)
        texts = {key: json.dumps(value) for key, value in delta.items()}
        header = ResultHeader(ok=ok, keys=tuple(delta), error=None if ok else "boom", worker="w")
        assert self.store.visits.deliver(call, header, texts, worker="w", token="t")
        self.advance.run_once()

    def turn(self, **delta: Any) -> str:
        run = self.begin()
        self.end(run, **delta)
        return run

    def ttl_ms(self, run: str) -> dict[str, int]:
        """The remaining time of the run's keys."""
        client = self.store.runs._client
        return {key: client.pttl(key) for key in client.scan_iter(f"{self.store.keys.prefix}:*:run:{run}*")}

    def expires_ms(self, run: str) -> float | None:
        partition = self.store.keys.of_partition(self.store.keys.partition_of(run))
        return self.store.runs._client.zscore(partition.expiring, run)


@pytest.fixture
def talk(store: Store) -> Talk:
    return Talk(store)


def test_a_turn_begins_with_the_state_at_the_end_of_the_last_one_and_with_changes(talk: Talk) -> None:
    assert talk.store.threads.info(NAME) is None and talk.store.threads.last(NAME) is None
    first = talk.begin(a=1, b=[2])
    talk.end(first, said="hi", b=3)
    second = talk.begin(a={"new": True})
    assert talk.store.runs.state(second) == {"a": {"new": True}, "b": 3, "said": "hi"}
    assert talk.store.runs.fold(second, 0) == talk.store.runs.state(second), "its journal needs no other run"
    assert talk.store.runs.state(first) == {"a": 1, "b": 3, "said": "hi"}
    info = talk.store.runs.info(second)
    assert (info.thread, info.turn, info.previous) == ("talk", 2, first)
    [submitted] = talk.store.runs.history(second, limit=1)
    assert submitted.reason == f"turn 2 of thread talk, after run {first}, completed"
    [thread] = talk.store.threads.page("agent", None, 500, None)
    assert (thread.name, thread.turns, thread.run, thread.status) == ("talk", 2, second, "running")
    assert talk.store.threads.all() == [thread] and talk.store.threads.page("other", None, 500, None) == []


@pytest.mark.conformance("SV-06")
def test_the_last_run_of_a_thread_is_kept_until_the_next_has_begun(talk: Talk) -> None:
    first = talk.turn(said=1)
    assert set(talk.ttl_ms(first).values()) == {-1}
    assert talk.expires_ms(first) == HELD_MS
    assert talk.store.partitions.unarchived(0, 2**50, 100) == []
    second = talk.begin()
    left = talk.ttl_ms(first)
    assert left and all(0 < ttl_ms <= talk.store.partitions._retention_ms for ttl_ms in left.values())
    assert (talk.expires_ms(first) or 0) < HELD_MS
    assert set(talk.ttl_ms(second).values()) == {-1}
    for key in left:
        talk.store.runs._client.delete(key)
    talk.end(second, said=2)
    assert talk.store.runs.state(talk.begin()) == {"said": 2}
    assert {key for key in talk.ttl_ms(second)} >= {talk.store.keys.of_run(second).state}


@pytest.mark.parametrize("how", ["running", "paused", "asked to retry"])
def test_a_thread_takes_one_run_at_a_time_and_says_how_to_go_on_with_it(talk: Talk, how: str) -> None:
    run = talk.begin()
    verb = "watch"
    if how == "paused":
        talk.store.runs.pause(run)
        talk.advance.run_once()
        verb = "resume"
    if how == "asked to retry":
        talk.end(run, ok=False)
        talk.store.runs.retry(run)
    with pytest.raises(ThreadBusy, match=rf"goes on with run {run}, which is .*`sleipnir {verb} {run}`"):
        talk.begin()
    with pytest.raises(ThreadBusy, match=rf"`sleipnir cancel {run}` ends it"):
        talk.store.threads.remove(NAME)


@pytest.mark.conformance("SV-09")
def test_of_two_turns_at_once_exactly_one_begins(talk: Talk) -> None:
    first = talk.turn(said=1)
    last = talk.store.threads.last(NAME)
    second = talk.begin(last)
    with pytest.raises(ThreadBusy, match=rf"has gone on with run {second} while this one was submitted"):
        talk.begin(last)
    talk.end(second, said=2)
    with pytest.raises(ThreadBusy, match=rf"has gone on with run {second} while this one was submitted"):
        talk.begin(last)
    assert [info.id for info in talk.store.runs.recent(10)] == [second, first]
    with pytest.raises(ThreadBusy, match=rf"has gone on with run {second}"):
        talk.store.threads.start(next(talk.ids), SPEC.in_thread("talk", 1, None), {}, None)


def test_a_turn_that_read_the_thread_before_its_run_was_retried_is_refused(talk: Talk) -> None:
    run = talk.begin()
    talk.end(run, ok=False)
    stale = talk.store.threads.last(NAME)
    talk.store.runs.retry(run)
    talk.advance.run_once()
    talk.end(run, said="at last")
    with pytest.raises(ThreadBusy, match=rf"has gone on with run {run}"):
        talk.begin(stale)
    assert talk.store.runs.state(talk.begin()) == {"said": "at last"}


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_turn_after_a_run_that_did_not_complete_begins_with_its_last_state(talk: Talk, how: str) -> None:
    talk.turn(said=1)
    second = talk.begin(more=2)
    if how == "failed":
        talk.end(second, ok=False, _error={"node": "work", "message": "boom"}, last_error="boom")
        assert talk.store.runs.state(second)["last_error"] == "boom"
    else:
        talk.store.runs.cancel(second)
        talk.advance.run_once()
    assert talk.store.runs.info(second).status == how
    assert set(talk.ttl_ms(second).values()) == {-1}
    third = talk.begin()
    assert talk.store.runs.state(third) == {"said": 1, "more": 2}
    [submitted] = talk.store.runs.history(third, limit=1)
    assert submitted.reason == f"turn 3 of thread talk, after run {second}, {how}"


def test_a_run_that_its_thread_has_left_cannot_be_retried(talk: Talk) -> None:
    first = talk.begin()
    talk.end(first, ok=False)
    second = talk.begin()
    with pytest.raises(UsageError, match=r"its thread 'talk' has continued without it\. Fork it: `sleipnir fork run"):
        talk.store.runs.retry(first)
    talk.end(second, ok=False)
    talk.store.runs.retry(second)
    talk.advance.run_once()
    talk.end(second, said=2)
    assert talk.store.runs.info(second).status == "completed"
    assert talk.expires_ms(second) == HELD_MS


@pytest.mark.conformance("SV-07")
def test_a_removed_thread_lets_its_last_run_expire_and_its_name_begins_anew(talk: Talk) -> None:
    run = talk.begin()
    talk.end(run, ok=False)
    assert talk.store.threads.remove(NAME)
    assert not talk.store.threads.remove(NAME)
    assert talk.store.threads.all() == [] and talk.store.threads.info(NAME) is None
    assert all(ttl_ms > 0 for ttl_ms in talk.ttl_ms(run).values())
    talk.store.runs.retry(run)
    talk.advance.run_once()
    talk.end(run, said=1)
    assert all(ttl_ms > 0 for ttl_ms in talk.ttl_ms(run).values()), "no thread keeps it"
    second = talk.begin(x=1)
    assert talk.store.runs.state(second) == {"x": 1}
    info = talk.store.threads.info(NAME)
    assert info is not None and info.turns == 1
    assert talk.store.runs._client.pttl(talk.store.keys.of_thread(NAME)) == -1


def test_a_thread_whose_state_is_gone_says_so_and_can_be_removed(talk: Talk) -> None:
    run = talk.turn(said=1)
    last = talk.store.threads.last(NAME)
    talk.store.runs._client.delete(*talk.ttl_ms(run))
    with pytest.raises(UsageError, match=rf"the last run {run} .* is gone.*`sleipnir threads rm agent talk`"):
        talk.begin()
    with pytest.raises(UsageError, match="is gone"):
        talk.begin(last)
    [info] = talk.store.threads.all()
    assert info.status is None
    assert talk.store.threads.remove(NAME)
    assert talk.store.runs.state(talk.begin(a=1)) == {"a": 1}


def test_the_run_that_an_earlier_scheduler_has_ended_keeps_the_thread_while_it_is_there(talk: Talk) -> None:
    run = talk.turn(said=1)
    keys = talk.ttl_ms(run)
    for key in keys:
        talk.store.runs._client.pexpire(key, 50_000)
    second = talk.begin()
    assert talk.store.runs.state(second) == {"said": 1}
    assert talk.store.runs._client.pttl(talk.store.keys.of_run(second).state) == -1
    assert all(0 < ttl_ms <= 50_000 for ttl_ms in talk.ttl_ms(run).values())


def test_a_fork_is_the_next_turn_with_the_state_of_its_checkpoint(talk: Talk) -> None:
    first = talk.begin(a=1)
    talk.end(first, said=1)
    second = talk.turn(said=2)
    fork = talk.fork(first, b=3)
    assert talk.store.runs.state(fork) == {"a": 1, "b": 3}
    info = talk.store.runs.info(fork)
    assert (info.thread, info.turn, info.previous, info.forked_from) == ("talk", 3, second, first)
    assert talk.store.runs.history(fork)[0].reason == f"from run {first} after step 0, as turn 3 of thread talk"
    assert all(ttl_ms > 0 for ttl_ms in talk.ttl_ms(second).values()), "it is no longer the last one"
    with pytest.raises(ThreadBusy, match=f"goes on with run {fork}"):
        talk.begin()
    talk.end(fork, said=3)
    assert set(talk.ttl_ms(fork).values()) == {-1} and talk.expires_ms(fork) == HELD_MS
    assert talk.store.runs.state(talk.begin()) == {"a": 1, "b": 3, "said": 3}


def test_a_fork_begins_a_thread_in_another_partition_than_that_of_its_source(talk: Talk) -> None:
    keys = talk.store.keys
    ids = (f"other{number:07}" for number in itertools.count())
    source = next(run for run in ids if keys.partition_of(run) != keys.partition_of(str(NAME)))
    talk.store.runs.create(source, SPEC, {"x": 1})
    fork = talk.fork(source, rewinds=True)
    assert talk.store.runs.state(fork) == {"x": 1}
    info = talk.store.threads.info(NAME)
    assert info is not None and (info.run, info.turns) == (fork, 1)
    while talk.advance.run_once():
        pass
    assert talk.store.runs.info(source).status == "cancelled"
    inboxes = [keys.of_partition(keys.partition_of(run)).inbox for run in (source, fork)]
    assert [talk.store.runs._client.xlen(inbox) for inbox in inboxes] == [0, 0], "each had the entries of its runs"


def test_of_forks_and_turns_at_once_exactly_one_begins_and_a_repeated_one_counts_once(talk: Talk) -> None:
    first = talk.turn(said=1)
    last, turn = talk.store.threads.last(NAME), talk.store.threads.next_turn(NAME)
    fork = talk.fork(first, turn)
    for late in (lambda: talk.fork(first, turn), lambda: talk.begin(last)):
        with pytest.raises(ThreadBusy, match=rf"has gone on with run {fork} while this one was submitted"):
            late()
    with pytest.raises(ThreadBusy, match=rf"goes on with run {fork}, which is .*`sleipnir watch {fork}`"):
        talk.fork(first)
    assert talk.fork(first, turn, fork) == fork
    info = talk.store.threads.info(NAME)
    assert info is not None and (info.run, info.turns) == (fork, 2)
    assert [info.id for info in talk.store.runs.recent(10)] == [fork, first]
    talk.end(fork, ok=False)
    talk.store.runs.retry(fork)
    with pytest.raises(ThreadBusy, match=rf"goes on with run {fork}"):
        talk.fork(first)
    talk.advance.run_once()
    talk.end(fork, said=2)
    removed = talk.store.threads.next_turn(NAME)
    assert talk.store.threads.remove(NAME)
    with pytest.raises(ThreadBusy, match="was removed while"):
        talk.fork(first, removed)
    again = talk.turn(said=3)
    talk.store.runs._client.delete(*talk.ttl_ms(again))
    with pytest.raises(UsageError, match=rf"the last run {again} .* is gone"):
        talk.fork(first)


def test_a_run_without_a_thread_leaves_no_trace_of_one(talk: Talk) -> None:
    run = next(talk.ids)
    talk.store.runs.create(run, SPEC, {})
    talk.advance.run_once()
    talk.end(run, said=1)
    client = talk.store.runs._client
    assert [key for key in client.scan_iter(f"{talk.store.keys.prefix}:*thread*")] == []
    assert "thread" not in str(client.get(talk.store.keys.of_run(run).spec))


@pytest.mark.parametrize("name", ["", "-x", "a/b", "a b", "x" * 129, "é", "a\n", 3])
def test_what_names_no_thread_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="cannot name a thread"):
        checked(name)


def test_a_thread_of_a_long_history_and_a_large_state_begins_fast(talk: Talk) -> None:
    run = talk.begin()
    talk.end(run, **{f"key{number}": "x" * 10_000 for number in range(1_000)})
    second = talk.begin()
    assert len(talk.store.runs.state(second)) == 1_000


def test_a_turn_does_not_begin_with_values_of_one_run(talk: Talk) -> None:
    first = talk.begin(**{"invocation:case": 1, "temp:a": 1, "temperature": 1})
    talk.end(first, **{"temp:b": 2, "said": "x"})
    assert talk.store.runs.state(first)["temp:b"] == 2, "the run keeps them"
    last = talk.store.threads.last(NAME)
    assert last is not None and last.state.keys() == {"temperature", "said"}
    second = talk.begin(last, **{"invocation:case": 2})
    assert talk.store.runs.state(second) == {"temperature": 1, "said": "x", "invocation:case": 2}
    assert talk.store.runs.fold(second, 0) == talk.store.runs.state(second)


def test_a_turn_of_an_earlier_release_goes_on_in_the_thread_that_it_began_in(talk: Talk) -> None:
    run = next(talk.ids)
    spec = replace(SPEC.in_thread(NAME.name, 1, None), namespace="acme")
    talk.store.threads.start(run, spec, {}, None)
    talk.advance.run_once()
    talk.end(run, said="hi")
    last = talk.store.threads.last(NAME)
    assert last is not None and (last.run, last.state) == (run, {"said": "hi"})


def test_pages_of_threads_have_each_once_and_end(store: Store) -> None:
    """Also with more threads of the same moment than are read at once, and with few that fit."""
    partitions = store.keys.partitions
    names = [ThreadName(f"a{number % 3}", f"t{number:03}", ("default", "acme")[number % 2]) for number in range(120)]
    for number, name in enumerate(names):
        place = store.keys.of_partition(store.keys.partition_of(str(name)))
        at_ms = 1_000 + number // 40
        store._client.zadd(place.threads, {str(name): at_ms})
        fields = {"run": f"run{number:09}", "turns": 1, "created_ms": 1, "used_ms": at_ms}
        store._client.hset(store.keys.of_thread(name), mapping=fields)
    for agent, namespace, count in ((None, None, 120), ("a1", None, 40), ("a1", "acme", 20), ("none", None, 0)):
        found, after = list[ThreadInfo](), None
        for _ in range(200):
            page = store.threads.page(agent, namespace, 7, after)
            found += page
            after = page.after
            if after is None:
                break
        assert after is None and len(found) == len({(each.namespace, each.name) for each in found}) == count
        assert [each.used_ms for each in found] == sorted((each.used_ms for each in found), reverse=True)
    for cursor in ("", "x", "1", "1.?", "1." + "A" * 2000, "-1.YQ=="):
        with pytest.raises(UsageError, match="is no cursor"):
            store.threads.page(None, None, 5, cursor)
    for limit in (0, 501):
        with pytest.raises(UsageError, match="a page has 1 to 500"):
            store.threads.page(None, None, limit, None)
    for partition in range(partitions):
        store._client.delete(store.keys.of_partition(partition).threads)
    for name in names:
        store._client.delete(store.keys.of_thread(name))
