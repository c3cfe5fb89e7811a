"""Holds of namespaces and of the deployment, and what of them goes on, on a real Redis."""

from __future__ import annotations

import itertools
import json

import pytest

from sleipnir.errors import UsageError
from sleipnir.messages import VisitCall
from sleipnir.runs.claims import Claim
from sleipnir.runs.deployment_holds import DEPLOYMENT, NO_HOLDS, HeldRun, holds_in
from sleipnir.runs.run import Hold, RunSpec
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Visit, Work
from sleipnir.store.partitions.commits import Commit
from sleipnir.store.runs.deployment_hold import _RESUME_ALL
from sleipnir.store.store import Store
from sleipnir_scheduler.services.resuming import Resuming

T = 1_800_000_000_000


class Fleet:
    """All partitions of a store with runs that have one queued visit each; nothing publishes or claims."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.partitions = range(store.keys.partitions)
        owned = store.partitions.own(self.partitions, "me", 60_000)
        self.epochs = {partition: lease.epoch for partition, lease in owned.items()}
        self.resuming = Resuming(store.partitions, partitions=store.keys.partitions)

    def queue(self, run: str, agent: str = "agent", namespace: str = "default", parent: str | None = None) -> VisitCall:
        spec = RunSpec(agent, "digest", namespace=namespace, parent=parent)
        assert self.store.runs.create(run, spec, {"initial_prompt": "hi"})
        partition = self.store.keys.partition_of(run)
        [entry] = [
            each for each in self.store.partitions.read([partition], limit=100, block_ms=None) if each.run == run
        ]
        view = self.store.partitions.load([run])[run]
        visit = Visit(1, "a", "script", 1, entry.at_ms, body=Work("scripts"))
        transition = Transition(open=(visit,), counts={"a": 1}, started_ms=entry.at_ms)
        assert self.store.partitions.commit([Commit(entry, view, transition)], self.epochs) == [1]
        return VisitCall(run, "a", 1, 1, agent, "digest")

    def starts(self, call: VisitCall) -> bool:
        """Whether a worker can claim the visit; if so it is claimed."""
        reply = self.store.visits.claim(call, worker="w", token=call.run, lease_ms=1000, wanted=())
        assert isinstance(reply, Claim) or reply.reason == "paused"
        return isinstance(reply, Claim)

    def round(self, now_ms: int = T) -> int:
        holds = {number: found for number in self.partitions if (found := self.store.partitions.holds(number)).scopes}
        return self.resuming.run_once(self.partitions, holds, now_ms)

    def due(self) -> set[str]:
        """The runs whose visits the outbox publishes next."""
        return {
            visit.call.run
            for partition in self.partitions
            for visit in self.store.partitions.due(partition, 0, 1000)
            if not visit.held
        }


@pytest.fixture
def fleet(store: Store) -> Fleet:
    return Fleet(store)


def test_a_held_namespace_starts_no_visit_and_others_go_on(fleet: Fleet) -> None:
    before = fleet.queue("a", namespace="shop")
    fleet.store.runs.pause_all(Hold("ann", 1, "wrong prices"), "shop")
    later, other = fleet.queue("b", namespace="shop"), fleet.queue("c")
    assert [fleet.starts(call) for call in (before, later, other)] == [False, False, True]
    [held] = fleet.store.runs.all_holds()
    assert (held.scope, held.hold.by, held.hold.reason, held.resumption) == ("shop", "ann", "wrong prices", None)
    [info] = fleet.store.runs.with_leases([fleet.store.runs.info("a")])
    assert [(hold.owner, hold.by, hold.reason) for hold in info.holds] == [("namespace", "ann", "wrong prices")]
    assert [(visit.reason.code, visit.reason.by) for visit in info.visits] == [("paused", "ann")]
    assert fleet.store.runs.with_leases([fleet.store.runs.info("c")])[0].holds == ()


def test_a_second_pause_changes_nothing(fleet: Fleet) -> None:
    for scope in ("shop", DEPLOYMENT):
        fleet.store.runs.pause_all(Hold("ann", 1, "first"), scope)
        fleet.store.runs.resume_part(scope, agents=["a"])
        fleet.store.runs.pause_all(Hold("bob", 2, "second"), scope)
    assert [(held.hold.by, held.resumption and held.resumption.agents) for held in fleet.store.runs.all_holds()] == [
        ("ann", ("a",)),
        ("ann", ("a",)),
    ]


@pytest.mark.parametrize("scope", ["default", DEPLOYMENT])
def test_agents_go_on_and_their_visits_are_published(fleet: Fleet, scope: str) -> None:
    triage, refund = fleet.queue("a", "triage"), fleet.queue("b", "refund")
    fleet.store.runs.pause_all(Hold("ann", 1), scope)
    fleet.store.runs.resume_part(scope, agents=["triage"])
    fleet.round()
    assert fleet.due() == {"a"}
    assert [fleet.starts(call) for call in (triage, refund)] == [True, False]
    fleet.store.runs.resume_part(scope, agents=["refund"])
    fleet.round()
    assert fleet.due() == {"b"}
    assert fleet.starts(refund)


@pytest.mark.parametrize("scope", ["default", DEPLOYMENT])
def test_a_rate_lets_so_many_runs_go_on_the_oldest_first(fleet: Fleet, scope: str) -> None:
    calls = [fleet.queue(f"r{number}") for number in range(6)]
    order = sorted(calls, key=lambda call: (fleet.store.runs.info(call.run).created_ms, call.run))
    fleet.store.runs.pause_all(Hold("ann", T), scope)
    fleet.store.runs.resume_part(scope, rate=2)
    assert fleet.round(T) == 0
    assert fleet.round(T + 1000) == 2
    assert fleet.round(T + 1100) == 0
    assert fleet.due() == {call.run for call in order[:2]}
    assert [fleet.starts(call) for call in order] == [True, True, False, False, False, False]
    assert fleet.round(T + 100_000) == 2, "no more than those of a second come at once"
    assert [fleet.starts(call) for call in order[2:]] == [True, True, False, False]
    [held] = fleet.store.runs.all_holds()
    assert held.resumed_runs == 4
    another = Resuming(fleet.store.partitions, partitions=fleet.store.keys.partitions)
    fleet.resuming = another
    assert fleet.round(T + 101_000) == 0, "a scheduler that takes over has saved nothing up"
    assert fleet.round(T + 102_000) == 2
    assert all(fleet.starts(call) for call in order[4:])


def test_a_mark_of_an_earlier_hold_means_nothing(fleet: Fleet) -> None:
    call = fleet.queue("a")
    fleet.store.runs.pause_all(Hold("ann", 1))
    fleet.store.runs.resume_part(DEPLOYMENT, rate=5)
    fleet.round(T)
    assert fleet.round(T + 1000) == 1
    fleet.store.runs.resume_all()
    assert fleet.store.runs.all_holds() == []
    fleet.store.runs.pause_all(Hold("ann", 2))
    fleet.store.runs.resume_part(DEPLOYMENT, rate=5)
    assert not fleet.starts(call)


def test_all_visits_of_a_run_go_on_together(fleet: Fleet) -> None:
    """Also those beyond the ones that were looked at."""
    fleet.queue("a")
    partition = fleet.store.keys.partition_of("a")
    view = fleet.store.partitions.load(["a"])["a"]
    fleet.store._client.xadd(fleet.store.keys.of_partition(partition).inbox, {"t": "continued", "run": "a"})
    [entry] = fleet.store.partitions.read([partition], limit=10, block_ms=None)
    visits = tuple(Visit(seq, "b", "script", 1, entry.at_ms, body=Work("scripts")) for seq in range(2, 700))
    commit = Commit(entry, view, Transition(open=visits, counts={"b": len(visits)}))
    assert fleet.store.partitions.commit([commit], fleet.epochs) == [1]
    fleet.store.runs.pause_all(Hold("ann", 1))
    fleet.store.runs.resume_part(DEPLOYMENT, rate=1)
    fleet.round(T)
    assert fleet.round(T + 1000) == 1
    assert len(fleet.store.partitions.due(partition, 0, 1000)) == 699


def test_the_hold_of_a_namespace_ends_when_all_of_it_is_published(fleet: Fleet) -> None:
    calls = [fleet.queue(f"r{number}", namespace="shop") for number in range(20)]
    fleet.queue("other")
    fleet.store.runs.pause_all(Hold("ann", 1), "shop")
    assert fleet.store.runs.resume_namespace("shop") is True
    assert fleet.starts(calls[0]), "it goes on at once"
    for _ in range(3):
        fleet.round()
    assert fleet.store.runs.all_holds() == []
    assert fleet.due() == {call.run for call in calls[1:]}, "visits of others keep their places"
    assert fleet.store.runs.resume_namespace("shop") is False
    assert not any(fleet.store._client.exists(fleet.store.keys.of_partition(p).holds) for p in fleet.partitions)


def test_a_namespace_that_is_paused_again_while_its_hold_ends_is_paused(fleet: Fleet) -> None:
    call = fleet.queue("a", namespace="shop")
    fleet.store.runs.pause_all(Hold("ann", 1), "shop")
    fleet.store.runs.resume_namespace("shop")
    fleet.store.runs.pause_all(Hold("bob", 2), "shop")
    assert not fleet.starts(call)
    for _ in range(3):
        fleet.round()
    assert [held.hold.by for held in fleet.store.runs.all_holds()] == ["bob"]


def test_what_is_not_paused_has_no_part_that_goes_on(fleet: Fleet) -> None:
    for scope in ("shop", DEPLOYMENT):
        with pytest.raises(UsageError, match="is not paused"):
            fleet.store.runs.resume_part(scope, rate=1)
    for wrong in (0, -1, 1001, float("nan")):
        with pytest.raises(UsageError, match="the rate of a resumption"):
            fleet.store.runs.resume_part("shop", rate=wrong)
    with pytest.raises(UsageError, match="say what to resume"):
        fleet.store.runs.resume_part("shop")


def test_the_rules_of_workers_are_those_of_schedulers(fleet: Fleet) -> None:
    """Each combination of holds, parts that go on, and runs: claim.lua and deployment_holds.py decide the same."""
    number = itertools.count()
    parts: list[dict[str, object] | None] = [
        None, {"agents": ["triage"]}, {"rate": 5, "paced_ms": 1}, {"rate": 5, "paced_ms": 2**50}, {"everything": True},
        {"v": 99, "everything": True}, {"agents": ["triage"], "rate": 5, "paced_ms": 2**50},
    ]  # fmt: skip
    client, decided = fleet.store._client, set()
    for all_part, own_part in itertools.product([*parts, "none"], repeat=2):
        keys = [fleet.store.keys.of_partition(partition) for partition in fleet.partitions]
        for part in keys:
            client.delete(part.paused, part.holds)
            for scope, found in (("*", all_part), ("shop", own_part)):
                if found == "none":
                    continue
                hold = json.dumps({"by": "ann", "at_ms": 7, "v": 1})
                client.set(part.paused, hold) if scope == "*" else client.hset(part.holds, "hold:shop", hold)
                if found is not None:
                    client.hset(part.holds, f"resumption:{scope}", json.dumps({"at_ms": 8, "v": 1, **found}))
        for agent, parent, marks in itertools.product(
            ("triage", "other"), (None, "p"), ((None, None), ("7", "7"), ("6", "7"))
        ):
            run = f"r{next(number)}"
            call = fleet.queue(run, agent, "shop", parent)
            for name, mark in zip(("resumed_all", "resumed_ns"), marks, strict=True):
                if mark is not None:
                    client.hset(fleet.store.keys.of_run(run).run, name, mark)
            info = fleet.store.runs.info(run)
            about = HeldRun("shop", agent, info.created_ms, parent is not None, marks)
            holds = fleet.store.partitions.holds(fleet.store.keys.partition_of(run))
            may = not holds.over(about)
            assert fleet.starts(call) is may, (all_part, own_part, agent, parent, marks)
            if may:
                assert not holds.holds_back("shop", agent), "what may start is published"
            decided.add(may)
    assert decided == {True, False}


def test_records_of_another_release_hold_and_resume_nothing() -> None:
    assert holds_in(None, {}) is NO_HOLDS
    holds = holds_in("{}", {"hold:shop": "[", "resumption:*": '{"v": 99, "everything": true}', "else": "x"})
    assert set(holds.scopes) == {DEPLOYMENT, "shop"}
    assert all(held.resumption is None and held.hold.reason for held in holds.scopes.values())
    assert holds.over(HeldRun("default", "a", 1, is_child=False))


def test_a_deployment_whose_resumption_has_died_half_way_is_paused_again(fleet: Fleet) -> None:
    call = fleet.queue("a")
    fleet.store.runs.pause_all(Hold("ann", 1))
    part = fleet.store.keys.of_partition(fleet.store.keys.partition_of("a"))
    fleet.store._client.zadd(part.outbox, {f"gone{number:08}/1/1": 5 for number in range(2500)})
    keys = {
        "paused": part.paused, "outbox": part.outbox, "resumed": part.resumed, "audit": part.audit, "holds": part.holds,
    }  # fmt: skip
    assert _RESUME_ALL(fleet.store._client, keys, {"by": "died", "entry": "", "keep_ms": 1}) == 1
    fleet.store.runs.pause_all(Hold("bob", 2))
    assert not fleet.starts(call)
    assert fleet.store.runs.resume_all()
    assert fleet.starts(call)
