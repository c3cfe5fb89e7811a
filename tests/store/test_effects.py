"""Effects on a real Redis: owed by the commit, delivered in order and more than once, without any harm."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from sleipnir.errors import BundleError, UsageError
from sleipnir.runs.run import Hold, RunSpec, child_id
from sleipnir.runs.sessions import SessionName
from sleipnir.store import dead_letters
from sleipnir.store.effects import OwedEffect
from sleipnir.store.runs.requests import Fence
from sleipnir.store.scripts import run_in_order
from sleipnir.store.store import Store
from sleipnir_scheduler.services.deliveries import AT_ONCE, Deliveries
from tests.model_store import graph_of
from tests.store.test_advance import advance_of
from tests.unreadable import Unreadable, cases

RUN = "run000000001"
CHILD = child_id(RUN, 1)
PARENT = """
name: parent
start: call
nodes:
  call: {type: agent, agent: child, prompt: "hi", state_updates: {said: "{{output}}"}, next: e}
  e: {type: end, output: "{{said}}"}
"""
ASKS = """
name: child
start: q
nodes:
  q: {type: input, question: "Well, {{initial_prompt}}?", state_updates: {a: "{{input}}"}, next: e}
  e: {type: end, output: "so {{a}}"}
"""
MIDDLE = PARENT.replace("agent: child", "agent: leaf")


class World:
    """Schedulers of a parent and of its child."""

    def __init__(self, store: Store, agents: dict[str, str] | None = None, run: str = RUN, **spec: Any) -> None:
        self.store = store
        self.advance = advance_of(store, "")
        self._graphs: Any = SimpleNamespace(get=self._graph)
        self.advance._graphs = self._graphs
        self.deliveries = Deliveries(store.effects, self._graphs, max_state_bytes=1_000_000)
        known = {"child": "c1"} if agents is None else agents
        store.runs.create(run, RunSpec("parent", "p1", agents=known, **spec), {"initial_prompt": ""})

    def _graph(self, digest: str, agent: str, overrides: Any = None) -> Any:
        if digest == "gone":
            raise BundleError("it is gone")
        return graph_of({"p1": PARENT, "m1": MIDDLE, "c1": ASKS}[digest])

    def plan(self) -> None:
        while self.advance.run_once() > 0:
            pass

    def deliver(self) -> int:
        return self.deliveries.run_once(range(self.store.keys.partitions))

    def go_on(self) -> None:
        self.plan()
        while self.deliver() > 0:
            self.plan()

    def owed(self, run: str) -> str:
        """The stream of effects of a run's partition."""
        return self.store.keys.of_partition(self.store.keys.partition_of(run)).effects


def test_a_child_is_started_once_even_if_its_start_is_delivered_repeatedly(store: Store) -> None:
    world = World(store)
    world.plan()
    [(_, fields)] = store._client.xrange(world.owed(RUN))
    world.deliver()
    assert store._client.xlen(world.owed(RUN)) == 0
    world.plan()
    store._client.xadd(world.owed(RUN), fields)
    world.go_on()
    [gate] = store.runs.gates(CHILD)
    assert (gate.question, gate.path) == ("Well, hi?", ("call",))
    assert [child.id for child in store.runs.children([RUN])[RUN]] == [CHILD]
    assert store.runs.gates_below(RUN) == [gate]


def test_a_parent_is_notified_once_and_repetitions_leave_no_keys(store: Store) -> None:
    world = World(store)
    world.go_on()
    store.runs.answer(CHILD, 1, "well")
    world.plan()
    *_, (_, fields) = store._client.xrange(world.owed(CHILD))
    world.go_on()
    assert store.runs.output(RUN) == "so well"
    store._client.xadd(world.owed(CHILD), fields)
    world.go_on()
    assert store.runs.output(RUN) == "so well"
    assert store._client.exists(store.keys.of_run(RUN).delta(1, 1)) == 0
    assert store._client.xlen(store.keys.of_partition(store.keys.partition_of(RUN)).inbox) == 0


def test_a_child_that_cannot_be_started_fails_its_parent_with_the_reason(store: Store) -> None:
    for agents, why in (
        ({}, "there was no agent 'child' when the run was submitted"),
        ({"child": "gone"}, "it is gone"),
    ):
        store._client.flushall()
        World(store, agents).go_on()
        assert str(store.runs.info(RUN).error).endswith(f"Agent 'child' failed: {why}")


def test_what_another_has_delivered_meanwhile_is_not_delivered_again(store: Store) -> None:
    """A scheduler that was frozen after it had read: its `paused` must not come after the other one's `resumed`."""
    world = World(store)
    world.go_on()
    store.runs.pause(RUN, "me")
    world.plan()
    everywhere = dict.fromkeys(range(store.keys.partitions), "0-0")
    stale = store.effects.read(everywhere, limit=10, block_ms=None)
    world.deliver()
    store.runs.resume(RUN)
    world.go_on()
    world.deliveries._deliver(stale)
    world.plan()
    assert [store.runs.info(run).status for run in (RUN, CHILD)] == ["waiting", "waiting"]


def all_owed(store: Store) -> list[OwedEffect]:
    return store.effects.read(dict.fromkeys(range(store.keys.partitions), "0-0"), limit=100, block_ms=None)


def deliver_as_one_that_was_frozen(world: World, stale: list[OwedEffect], monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read them, and has looked whether they are owed; then others went on, and now it sends."""
    with monkeypatch.context() as patched:
        patched.setattr(world.store.effects, "_still_owed", list)
        world.deliveries._deliver(stale)


def test_a_pause_that_is_delivered_again_after_its_resume_holds_no_child(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding C9: a scheduler that freezes between the look and the delivery."""
    world = World(store)
    world.go_on()
    store.runs.pause(RUN, "me")
    world.plan()
    stale = all_owed(store)
    world.deliver()
    store.runs.resume(RUN)
    world.go_on()
    deliver_as_one_that_was_frozen(world, stale, monkeypatch)
    world.plan()
    assert [store.runs.info(run).status for run in (RUN, CHILD)] == ["waiting", "waiting"]


def test_the_resume_of_a_parent_ends_no_pause_of_a_person(store: Store) -> None:
    """Finding C10; `show` has both holds."""
    world = World(store)
    world.go_on()
    store.runs.pause(CHILD, "ann", "mine")
    store.runs.pause(RUN, "bob")
    world.go_on()
    [child] = store.explained(store.runs.infos([CHILD]))
    assert [(hold.owner, hold.by, hold.reason) for hold in child.holds] == [
        ("person", "ann", "mine"), ("parent", "bob", None)
    ]  # fmt: skip
    store.runs.resume(RUN)
    world.go_on()
    assert [store.runs.info(run).status for run in (RUN, CHILD)] == ["waiting", "paused"]
    store.runs.resume(CHILD)
    world.go_on()
    assert (store.runs.info(CHILD).status, store.runs.info(CHILD).holds) == ("waiting", ())
    assert not store._client.hmget(store.keys.of_run(CHILD).run, "paused", "holds")[0]


def test_holds_that_older_releases_have_written_or_ended_are_read(store: Store) -> None:
    """Finding C10: they know the field `paused` alone."""
    world = World(store)
    world.go_on()
    key = store.keys.of_run(CHILD).run
    old = {"by": "ann@host", "at_ms": 5, "v": 1}
    store._client.hset(key, mapping={"paused": json.dumps(old), "status": "paused"})
    assert store.partitions.load([CHILD])[CHILD].holds == (Hold("ann@host", 5),)
    store._client.hset(key, "holds", json.dumps([{"by": "bob", "at_ms": 4, "owner": "parent"}]))
    assert store.partitions.load([CHILD])[CHILD].holds == (Hold("ann@host", 5),), "those `holds` have ended"
    store._client.hdel(key, "paused")
    assert store.partitions.load([CHILD])[CHILD].holds == ()


def test_an_effect_that_is_delivered_again_after_all_that_followed_changes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding C9, for every effect of a tree of three runs that fails, is retried, paused, resumed and completes."""
    world = World(store, {"child": "m1", "leaf": "c1"})
    leaf, stale = child_id(CHILD, 1), []

    def go_on() -> None:
        world.plan()
        while found := all_owed(store):
            stale.extend(found)
            world.deliver()
            world.plan()

    def look() -> list[Any]:
        seen: list[Any] = []
        for run in (RUN, CHILD, leaf):
            keys = store.keys.of_run(run)
            record = store._client.hgetall(keys.run)
            seen += [record["status"], record.get("paused"), record["step"], record.get("model_calls")]
            seen.append(
                [kind for _, fields in store._client.xrange(keys.events) for kind, _ in json.loads(fields["e"])]
            )
        return seen

    def again() -> None:
        before = look()
        deliver_as_one_that_was_frozen(world, stale, monkeypatch)
        go_on_quietly = len(stale)
        world.go_on()
        assert look() == before
        assert len(stale) == go_on_quietly

    for wish in (lambda: store.runs.pause(RUN, "me"), lambda: store.runs.resume(RUN)):
        go_on()
        wish()
        go_on()
        again()
    store.runs.cancel(leaf)
    go_on()
    again()
    assert store.runs.info(RUN).status == "failed"
    store.runs.retry(RUN)
    go_on()
    again()
    [gate] = store.runs.gates_below(RUN)
    store.runs.answer(gate.run, gate.seq, "well", gate.attempt)
    go_on()
    again()
    assert store.runs.output(RUN) == "so well"


def test_an_effect_that_redis_refuses_is_not_overtaken_by_one_to_the_same_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding C9: else the fence would take the one that was refused for an old one, and it would be lost."""
    world = World(store)
    world.go_on()
    store.runs.pause(RUN, "me")
    world.plan()
    store.runs.resume(RUN)
    world.plan()
    assert len(all_owed(store)) == 2
    sent: list[int] = []

    def refuse_the_first(client: Any, commands: Any) -> list[Any]:
        sent.append(len(commands))
        return [ResponseError("OOM command not allowed")] * len(commands)

    with monkeypatch.context() as patched, pytest.raises(ResponseError):
        patched.setattr("sleipnir.store.effects.run_in_order", refuse_the_first)
        world.deliver()
    assert sent[0] == 1
    assert len(all_owed(store)) == 2
    world.go_on()
    assert [store.runs.info(run).status for run in (RUN, CHILD)] == ["waiting", "waiting"]


def test_a_bug_in_starting_a_child_fails_its_parent_and_delays_no_other_run(store: Store) -> None:
    world = World(store)
    world.plan()
    world.deliveries._graphs = SimpleNamespace(get=lambda *_: None)  # type: ignore[assignment]
    world.go_on()
    assert "Agent 'child' failed: internal error: AttributeError" in str(store.runs.info(RUN).error)


def test_a_cancelled_parent_takes_its_child_along(store: Store) -> None:
    world = World(store)
    world.go_on()
    store.runs.cancel(RUN)
    world.go_on()
    assert [store.runs.info(run).status for run in (RUN, CHILD)] == ["cancelled", "cancelled"]
    assert store.runs.open_gates() == []


def test_what_cancelled_runs_have_cost_is_added_up_to_the_top_once(store: Store) -> None:
    """Every effect is delivered twice, the second time after all that followed from the first."""
    world = World(store, {"child": "m1", "leaf": "c1"})
    world.go_on()
    leaf = child_id(CHILD, 1)
    for run, calls in ((RUN, 1), (CHILD, 10), (leaf, 100)):
        store._client.hincrby(store.keys.of_run(run).run, "model_calls", calls)
    store.runs.cancel(RUN)
    world.plan()
    again = []
    while found := [
        (name, fields) for name in {world.owed(run) for run in (RUN, CHILD, leaf)}
        for _, fields in store._client.xrange(name)
    ]:  # fmt: skip
        again += found
        world.deliver()
        world.plan()
    for name, fields in again:
        store._client.xadd(name, fields)
    world.go_on()
    assert [store.runs.info(run).status for run in (RUN, CHILD, leaf)] == ["cancelled"] * 3
    assert [store.runs.info(run).usage.calls for run in (RUN, CHILD, leaf)] == [111, 110, 100]
    for run in (RUN, CHILD, leaf):
        assert store._client.ttl(store.keys.of_run(run).run) > 0
        assert store._client.exists(store.keys.of_run(run).delta(1, 1)) == 0


PASSES_OVER = """
name: leaf
on_error: continue
start: first
nodes:
  first: {type: agent, agent: nobody, prompt: p, next: second}
  second: {type: agent, agent: nobody, prompt: p, next: e}
  e: {type: end, output: "done all the same"}
"""


def below(agents: dict[str, str], store: Store, *, strict: bool = False) -> World:
    """A run, its child and the child of that, which passes over two failures. All that is owed is delivered twice, the
    second time after all that followed from the first."""
    world = World(store, agents, strict=strict)
    texts = {"p1": PARENT, "m1": MIDDLE, "x1": PASSES_OVER}
    world._graphs.get = lambda digest, agent, overrides=None: graph_of(texts[digest])
    world.plan()
    again = []
    while found := [
        (name, fields)
        for name in sorted({world.owed(run) for run in (RUN, CHILD, child_id(CHILD, 1))})
        for _, fields in store._client.xrange(name)
    ]:
        again += found
        world.deliver()
        world.plan()
    for name, fields in again:
        store._client.xadd(name, fields)
    world.go_on()
    return world


def test_failed_visits_of_child_runs_count_up_to_the_top_once(store: Store) -> None:
    """Finding U1 of the second review: a run whose child has passed over failures does not look clean."""
    below({"child": "m1", "leaf": "x1"}, store)
    leaf = child_id(CHILD, 1)
    infos = {run: store.runs.info(run) for run in (RUN, CHILD, leaf)}
    assert [info.status for info in infos.values()] == ["completed"] * 3
    assert [(info.failed_visits.count, info.failed_visits.own) for info in infos.values()] == [(2, 0), (2, 0), (2, 2)]
    assert [(each.node, each.run) for each in infos[RUN].failed_visits.first] == [
        ("call/call/first", leaf), ("call/call/second", leaf)
    ]  # fmt: skip
    assert "there was no agent 'nobody'" in infos[RUN].failed_visits.first[0].error


def test_a_strict_run_fails_for_a_failed_visit_of_a_child_run(store: Store) -> None:
    """Finding U1 of the second review."""
    below({"child": "m1", "leaf": "x1"}, store, strict=True)
    infos = [store.runs.info(run) for run in (RUN, CHILD, child_id(CHILD, 1))]
    assert [(info.status, info.failed_visits.count) for info in infos] == [("failed", 1)] * 3
    assert "there was no agent 'nobody'" in str(infos[0].error)


def test_the_end_of_a_child_from_an_older_release_has_no_failed_visits(store: Store) -> None:
    world = World(store)
    world.go_on()
    inbox = store.keys.of_partition(store.keys.partition_of(RUN)).inbox
    entry = {"t": "child_ended", "run": RUN, "seq": 1, "attempt": 1, "child": CHILD, "status": "failed", "error": "no"}
    store._client.xadd(inbox, {**entry, "usage": ""})
    world.go_on()
    info = store.runs.info(RUN)
    assert (info.status, info.failed_visits.count, info.failed_visits.own) == ("failed", 1, 1)


DESK = SessionName("child", "desk")
IN_SESSION = child_id(RUN, 1, str(DESK))


def busy(store: Store) -> str:
    """A run that has the session."""
    other = child_id("other", 1, str(DESK))
    assert store.runs.create(other, RunSpec("child", "c1", session="desk"), {"initial_prompt": ""})
    return other


def test_a_child_continues_in_the_session_of_its_agent(store: Store) -> None:
    world = World(store, sessions={"child": "desk"})
    world.go_on()
    session = store.sessions.info(DESK)
    assert session is not None
    assert session.run == IN_SESSION
    [gate] = store.runs.gates(IN_SESSION)
    store.runs.answer(IN_SESSION, gate.seq, "well")
    world.go_on()
    session = store.sessions.info(DESK)
    assert session is not None
    assert (session.run, store.runs.output(RUN)) == (None, "so well")


def test_a_child_whose_session_another_run_has_is_refused(store: Store) -> None:
    other = busy(store)
    World(store, sessions={"child": "desk"}).go_on()
    why = f"Agent 'child' failed: its session is busy with run {other}, and takes one at a time"
    assert str(store.runs.info(RUN).error).endswith(why)
    assert store.runs.find([IN_SESSION]) == [None]


def test_a_child_that_starts_after_it_was_refused_is_cancelled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has refused it may die before that is noted; then its start is delivered again."""
    other = busy(store)
    world = World(store, sessions={"child": "desk"})
    world.plan()
    with monkeypatch.context() as patched, pytest.raises(ConnectionError):
        patched.setattr(store.effects, "_done", lambda *_: (_ for _ in ()).throw(ConnectionError()))
        world.deliver()
    store.runs.cancel(other)
    world.plan()
    assert store.runs.info(RUN).status == "failed"
    world.go_on()
    assert store.runs.info(IN_SESSION).status == "cancelled"
    assert store.runs.info(RUN).status == "failed"


def test_a_notice_of_an_expired_run_creates_no_key(store: Store) -> None:
    run_in_order(
        store._client, [store.effects.notify_watchers(Fence("tell_root:0", "1-1"), "gone00000000", "gate_opened", {})]
    )
    assert store._client.exists(store.keys.of_run("gone00000000").events) == 0


def test_effects_of_a_newer_release_are_passed_over_once_and_hide_no_others(store: Store) -> None:
    world = World(store)
    newer = ['{"do": "dance"}', '{"do": "tell_child", "children": ["a"]}', "{}"]
    for number in range(2 * AT_ONCE + 1):
        store._client.xadd(world.owed(RUN), {"run": RUN, "e": newer[number % 3]})
    with capture_logs() as logs:
        world.plan()
        assert [world.deliver() for _ in range(3)] == [0, 0, 1]
        world.plan()
        while world.deliver():
            pass
    assert store._client.xlen(world.owed(RUN)) == 2 * AT_ONCE + 1
    assert [gate.run for gate in store.runs.open_gates()] == [CHILD]
    told = [each for each in logs if each["event"] == "an effect is skipped"]
    assert len(told) == len({each["entry"] for each in told}) == 2 * AT_ONCE + 1


def test_what_redis_refuses_for_good_becomes_a_dead_letter_and_keeps_no_other_waiting(store: Store) -> None:
    """Finding C23: one effect that Redis refuses blocked all effects of the instance."""
    world = World(store)
    world.plan()
    first, last = (
        {"do": "tell_run", "run": RUN, "what": "a", "data": {}},
        {"do": "tell_child", "child": "b", "what": "resumed"},
    )
    bad = {"do": "tell_run", "run": "bad000000000", "what": "a", "data": {}}
    for effect in (first, bad, bad, last):
        store._client.xadd(world.owed(RUN), {"run": RUN, "e": json.dumps(effect)})
    wrong = store.keys.of_run("bad000000000").run
    store._client.set(wrong, "no hash")
    while world.deliver():
        pass
    assert store._client.xlen(world.owed(RUN)) == 0
    assert store.dead_letters.count() == 2
    letters = list(store.dead_letters.all())
    assert [json.loads(letter.effect) for letter in letters] == [bad, bad]
    assert [letter.run for letter in letters] == [RUN, RUN]
    assert all("WRONGTYPE" in letter.reason for letter in letters)
    store._client.delete(wrong)
    assert [store.dead_letters.redeliver(letters[0].id) for _ in range(2)] == [True, False]
    assert store._client.xrange(world.owed(RUN))[0][1] == {"run": RUN, "e": json.dumps(bad)}
    while world.deliver():
        pass
    assert [store.dead_letters.remove(letters[1].id) for _ in range(2)] == [True, False]
    assert (store.dead_letters.count(), store._client.xlen(world.owed(RUN))) == (0, 0)


@pytest.mark.parametrize("case", cases("effect"), ids=str)
def test_an_effect_that_cannot_be_read_keeps_no_other_waiting(store: Store, case: Unreadable) -> None:
    """Finding C23. One of a newer release stays among the effects, one that no release can read is a dead letter."""
    world = World(store)
    store._client.xadd(world.owed(RUN), case.of(RUN))
    world.go_on()
    world.deliver()
    assert [gate.run for gate in store.runs.open_gates()] == [CHILD]
    left = (store._client.xlen(world.owed(RUN)), store.dead_letters.count())
    assert left == ((1, 0) if case.why == "newer" else (0, 1))


def test_more_dead_letters_than_a_partition_holds_stay_effects_and_keep_no_other_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding C23: the stream is bounded, and nothing is dropped."""
    monkeypatch.setattr(dead_letters, "MOST", 5)
    world = World(store)
    for _ in range(2 * AT_ONCE + 5):
        store._client.xadd(world.owed(RUN), {"run": RUN, "e": "damaged"})
    world.plan()
    for _ in range(4):
        world.deliver()
        world.plan()
    assert [gate.run for gate in store.runs.open_gates()] == [CHILD]
    assert (store._client.xlen(world.owed(RUN)), store.dead_letters.count()) == (2 * AT_ONCE, 5)


def test_effects_that_were_passed_over_are_looked_at_again(store: Store) -> None:
    """Finding C23: what was left alone is delivered once it can be read."""
    world = World(store)
    now_s = [0.0]
    world.deliveries._clock = lambda: now_s[0]
    spec = store._client.get(store.keys.of_run(RUN).spec)
    world.plan()
    store._client.set(store.keys.of_run(RUN).spec, '{"agent": "parent", "bundle": "p1", "v": 5}')
    world.go_on()
    assert (store._client.xlen(world.owed(RUN)), store.dead_letters.count()) == (1, 0)
    store._client.set(store.keys.of_run(RUN).spec, spec)
    assert world.deliver() == 0
    now_s[0] += 1_000
    world.go_on()
    assert [gate.run for gate in store.runs.open_gates()] == [CHILD]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    junk=st.lists(
        st.dictionaries(
            st.sampled_from(["run", "e", "x"]),
            st.binary(max_size=10)
            | st.sampled_from(
                [RUN.encode(), b'{"do":"tell_parent"}', b'{"do":"tell_batch","place":"","version":1}', b"{}"]
            ),
            min_size=1,
        ),
        max_size=10,
    )
)
def test_any_junk_among_effects_keeps_no_other_waiting(store: Store, junk: list[dict[str, bytes]]) -> None:
    """Finding C23."""
    store._client.flushdb()
    world = World(store)
    for fields in junk:
        store._client.xadd(world.owed(RUN), fields)
    world.plan()
    for _ in range(3):
        world.deliver()
        world.plan()
    assert [gate.run for gate in store.runs.open_gates()] == [CHILD]


def test_an_id_that_is_no_dead_letter_is_refused(store: Store) -> None:
    for name in ("", "p00", "p99/1-1", "p00/1-1 ", "../1-1"):
        with pytest.raises(UsageError, match="is not a dead letter"):
            store.dead_letters.redeliver(name)


def test_a_server_that_has_lost_its_scripts_gets_them_again(store: Store) -> None:
    world = World(store)
    world.plan()
    store._client.script_flush()
    assert world.deliver() == 1
    assert store.runs.info(CHILD).parent == RUN


def test_a_child_whose_session_has_continued_without_it_is_not_continued(store: Store) -> None:
    """Finding C23: `retry` of its parent set it going in a session that another run had, or has changed since."""
    world = World(store, sessions={"child": "desk"})
    world.go_on()
    store.runs.cancel(IN_SESSION)
    world.go_on()
    assert store.runs.info(RUN).status == "failed"
    other = busy(store)
    store.runs.retry(RUN)
    world.plan()
    world.deliver()
    assert store.runs.info(IN_SESSION).status == "cancelled"
    session = store.sessions.info(DESK)
    assert session is not None and session.run == other


def test_a_child_that_continues_has_its_session_to_itself(store: Store) -> None:
    """Finding C23: the session was free for others meanwhile."""
    world = World(store, sessions={"child": "desk"})
    world.go_on()
    store._client.hset(store.keys.of_run(IN_SESSION).run, "status", "failed")
    store._client.hdel(store.keys.of_session(DESK).session, "busy")
    command = store.effects.retry(RUN, IN_SESSION, 2, 1, DESK)
    assert run_in_order(store._client, [command, command]) == [1, 1]
    session = store.sessions.info(DESK)
    assert session is not None and session.run == IN_SESSION
