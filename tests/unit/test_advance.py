"""The scheduler's main loop over a store that is played: what is planned with what, and what a bug does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Lock
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Resulted, Submitted
from sleipnir.runs.run import RunSpec, RunView
from sleipnir.runs.transitions import Transition
from sleipnir.runs.values import KnownValues, WantedValues
from sleipnir.store.partitions.commits import APPLIED, Commit
from sleipnir.store.partitions.entries import Entry
from sleipnir.store.pending_replies import PendingReplies, Sending
from sleipnir_scheduler.services import advance
from sleipnir_scheduler.services.advance import Advance
from tests.model_store import graph_of

TEXT = """
name: g
version: sleipnir/1
start: a
nodes:
  a: {type: script, script: s.sh, branch: {by: "{{way}}"}}
  b: {type: script, script: s.sh}
  c: {type: script, script: s.sh}
"""


class PlayedStore:
    """One state per run; the commits that it was asked for, each of which it applies."""

    def __init__(self, views: Mapping[str, RunView], states: Mapping[str, dict[str, Any]], *entries: Entry) -> None:
        self._views, self._states, self._entries = dict(views), states, entries
        self.transitions: dict[str, Transition] = {}

    def partition_of(self, run_id: str) -> int:
        return 0

    def read(self, partitions: object, **_: object) -> Sequence[Entry]:
        return self._entries

    def parked(self, partition: int) -> dict[str, str]:
        return {}

    def load(self, run_ids: Sequence[str], unreadable: object = None) -> dict[str, RunView]:
        return {run_id: self._views[run_id] for run_id in run_ids}

    def read_values(self, wanted: Sequence[tuple[Entry, WantedValues]]) -> list[KnownValues]:
        return [KnownValues(want, self._states[entry.run]) for entry, want in wanted]

    def send(self, commits: Sequence[Commit], epochs: object) -> PendingReplies[list[int]]:
        def sending() -> Sending[list[int]]:
            self.transitions |= {commit.run.id: commit.transition for commit in commits}
            yield
            return [APPLIED] * len(commits)

        return PendingReplies(sending())

    def discard(self, drops: Sequence[object], epochs: object) -> list[int]:
        return [APPLIED] * len(drops)


def advance_over(store: PlayedStore) -> Advance:
    ownership = SimpleNamespace(epochs={0: 1, 1: 1}, holds={}, working=Lock())
    graphs = SimpleNamespace(get=lambda digest, agent, overrides=None: graph_of(TEXT))
    dispatcher = SimpleNamespace(publish=lambda calls: SimpleNamespace(ahead=0))
    parts: Any = (store, ownership, graphs, dispatcher)
    return Advance(*parts, max_redeliveries=3)


def new_run(name: str) -> RunView:
    return RunView(name, RunSpec("agent", "digest"))


def at_a(name: str) -> RunView:
    """A run whose node `a` is at work."""
    fresh = new_run(name)
    store = PlayedStore({name: fresh}, {}, Entry("1-0", 0, name, Submitted()))
    advance_over(store).run_once()
    return store.transitions[name].apply(fresh)


def test_entries_of_two_partitions_with_the_same_id_are_planned_each_with_its_own_values() -> None:
    """Redis numbers the entries of each partition by the millisecond: equal ids are common."""
    ended = Resulted(1, 1, ResultHeader(ok=True))
    entries = Entry("5-0", 0, "one", ended), Entry("5-0", 1, "two", ended)
    store = PlayedStore({"one": at_a("one"), "two": at_a("two")}, {"one": {"way": "b"}, "two": {"way": "c"}}, *entries)
    assert advance_over(store).run_once() == 2
    opened = {run: [visit.node for visit in found.open] for run, found in store.transitions.items()}
    assert opened == {"one": ["b"], "two": ["c"]}


@pytest.mark.conformance("LM-10")
def test_a_bug_in_planning_fails_that_run_visibly_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's executor sends an error event when its loop panics; this one ends the run, and goes on with the
    others."""
    plan = advance.plan

    def breaks(graph: Any, run: RunView, *args: Any, **more: Any) -> Any:
        if run.id == "one":
            raise ZeroDivisionError("oops")
        return plan(graph, run, *args, **more)

    monkeypatch.setattr(advance, "plan", breaks)
    entries = Entry("5-0", 0, "one", Submitted()), Entry("5-0", 1, "two", Submitted())
    store = PlayedStore({"one": new_run("one"), "two": new_run("two")}, {}, *entries)
    assert advance_over(store).run_once() == 2
    one, two = store.transitions["one"], store.transitions["two"]
    assert (one.status, two.status) == ("failed", "running")
    assert "internal error: ZeroDivisionError: oops" in cast(str, one.error)


def test_a_run_is_committed_before_the_rows_of_batches_that_came_before_it() -> None:
    views = {"row1": new_run("row1"), "row2": new_run("row2"), "single": new_run("single")}
    views |= {name: replace(views[name], batch="b/1") for name in ("row1", "row2")}
    entries = [Entry(f"{number}-0", 0, name, Submitted()) for number, name in enumerate(views)]
    store = PlayedStore(views, {}, *entries)
    assert advance_over(store).run_once() == 3
    assert list(store.transitions) == ["single", "row1", "row2"]
