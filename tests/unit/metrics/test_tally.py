"""What is counted of commits: transitions of the real planner, counted as if they were in Redis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Answered, ChildEnded, Event, LeaseLost, Resulted, Submitted
from sleipnir.runs.run import FailedVisits, RunSpec, RunView, child_id
from sleipnir.runs.transitions import Transition
from sleipnir.store.partitions.commits import Commit
from sleipnir.store.partitions.entries import Entry
from sleipnir_scheduler.counters.series import Counter, Histogram
from sleipnir_scheduler.counters.tally import Tally
from sleipnir_scheduler.planner.plan import plan
from tests.model_store import graph_of, work_of

GRAPH = """
name: g
start: a
nodes:
  a: {type: script, script: s.sh, next: ask, retry: {max_attempts: 2, initial_interval: 1, on: [any]}}
  ask: {type: approval, question: "ok?", options: [yes, no], routes: {yes: e, no: e}, on_other: e}
  e: {type: end}
"""


class Watched:
    """A run, its tally, and the time."""

    def __init__(self, graph: str = GRAPH) -> None:
        self.tally, self.run, self.now_ms = Tally(), RunView("r", RunSpec("agent", "d")), 1_000_000
        self.graph = graph_of(graph)
        self.tally.clock.now_ms = lambda: self.now_ms + 20.0  # type: ignore[method-assign]  # a commit takes 20 ms

    def happen(self, event: Event, after_ms: int = 0) -> None:
        self.now_ms += after_ms
        entry = Entry(f"{self.now_ms}-0", 0, "r", event)
        transition = plan(self.graph, self.run, event, self.now_ms)
        assert isinstance(transition, Transition), transition
        commit = Commit(entry, self.run, transition)
        self.tally.applied(commit)
        self.run = commit.after

    def result(self, *, ok: bool = True, waited_ms: int = 500, took_ms: int = 3000, **more: Any) -> None:
        [visit] = self.run.frontier.values()
        started_ms = visit.opened_ms + waited_ms
        header = ResultHeader(ok=ok, started_ms=started_ms, took_ms=took_ms, worker="w", **more)
        self.now_ms = started_ms + took_ms
        self.happen(Resulted(visit.seq, visit.attempt, header))


def values(counter: Counter) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels.values()): sample.value for sample in counter.family().samples if sample.value}


def seen(histogram: Histogram) -> dict[tuple[str, ...], tuple[float, float]]:
    """Number and sum by labels."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for sample in histogram.family().samples:
        if "le" not in sample.labels:
            found.setdefault(tuple(sample.labels.values()), {})[sample.name.rpartition("_")[2]] = sample.value
    return {labels: (each["count"], round(each["sum"], 3)) for labels, each in found.items()}


def test_a_run_is_counted_from_its_start_to_its_end_with_each_part_of_its_way() -> None:
    watched = Watched()
    watched.happen(Submitted())
    watched.result()
    watched.happen(Answered(2, "yes"), after_ms=60_000)
    tally = watched.tally
    assert watched.run.status == "completed"
    assert values(tally.runs_started) == {("agent",): 1}
    assert values(tally.runs_changed) == {("agent", "running"): 1, ("agent", "waiting"): 1, ("agent", "completed"): 1}
    assert seen(tally.run_time) == {("agent", "completed"): (1, 63.5)}
    assert values(tally.visits) == {
        ("script", "node", "ok"): 1,
        ("approval", "node", "ok"): 1,
        ("end", "node", "ok"): 1,
    }
    assert seen(tally.hops) == {
        ("accept",): (1, 0.02), ("queue",): (1, 0.5), ("execute",): (1, 3.0), ("commit",): (1, 0.02)
    }  # fmt: skip
    assert seen(tally.queue_wait) == {("scripts",): (1, 0.5)}
    assert seen(tally.visit_time) == {("script",): (1, 3.0)}
    assert values(tally.entries) == {
        ("submitted", "applied"): 1,
        ("resulted", "applied"): 1,
        ("answered", "applied"): 1,
    }


def test_a_failure_that_is_tried_again_is_no_end_and_the_last_one_is() -> None:
    watched = Watched()
    watched.happen(Submitted())
    watched.result(ok=False, error="no", error_kind="script")
    assert values(watched.tally.visits) == {("script", "node", "retried"): 1}
    [visit] = watched.run.frontier.values()
    watched.run = replace(watched.run, frontier={visit.seq: replace(visit, body=work_of(visit))})  # its timer has fired
    watched.result(ok=False, error="no", error_kind="script")
    assert values(watched.tally.visits) == {("script", "node", "retried"): 1, ("script", "node", "failed"): 1}
    assert seen(watched.tally.queue_wait) == {("scripts",): (1, 0.5)}, "only of first attempts is it known"


def test_lost_workers_limits_and_drains_are_counted_apart() -> None:
    watched = Watched()
    watched.happen(Submitted())
    watched.happen(LeaseLost(1, 1, "w"), after_ms=1000)
    watched.happen(LeaseLost(1, 2, "w", handed_back=True), after_ms=1000)
    watched.result(ok=False, error="limit", error_kind="limit", later_ms=9_000_000)
    assert values(watched.tally.visits) == {
        ("script", "node", "worker_lost"): 1, ("script", "node", "handed_back"): 1, ("script", "node", "limited"): 1
    }  # fmt: skip


def test_tokens_and_cost_are_counted_by_model_and_an_unknown_price_is_not_zero() -> None:
    priced = {"input_tokens": 100, "output_tokens": 20, "calls": 2, "model": "openai:a", "cost_usd": 0.5}
    unknown = {"input_tokens": 7, "output_tokens": 3, "calls": 1, "model": None, "cost_usd": None}
    tally = Tally()
    for usage in (priced, priced, unknown):
        watched = Watched()
        watched.tally = tally
        watched.tally.clock.now_ms = lambda: 0.0  # type: ignore[method-assign]
        watched.happen(Submitted())
        watched.result(usage=usage)
    assert values(tally.calls) == {("openai:a",): 4, ("unknown",): 1}
    assert values(tally.tokens) == {
        ("openai:a", "input"): 200, ("openai:a", "output"): 40, ("unknown", "input"): 7, ("unknown", "output"): 3
    }  # fmt: skip
    assert values(tally.cost) == {("openai:a",): 1.0}
    assert values(tally.unpriced) == {("unknown",): 1}


def test_a_result_that_changes_nothing_is_a_late_one() -> None:
    tally = Tally()
    tally.dropped(Entry("1-0", 0, "r", Resulted(1, 1, ResultHeader(ok=True))))
    tally.dropped(Entry("2-0", 0, "r", Submitted()))
    assert values(tally.late_results) == {("commit",): 1}
    assert values(tally.entries) == {("resulted", "dropped"): 1, ("submitted", "dropped"): 1}


def test_every_series_has_a_name_and_a_help_of_its_own() -> None:
    families = list(Tally().families())
    assert len({family.name for family in families}) == len(families) > 15
    assert all(family.name.startswith("sleipnir_") and family.documentation.endswith(".") for family in families)


def test_a_failed_visit_of_a_child_run_is_counted_for_the_agent_of_the_child_alone() -> None:
    graph = "name: g\nstart: a\nnodes:\n  a: {type: agent, agent: x, prompt: p, on_error: continue, next: e}\n"
    watched = Watched(graph + "  e: {type: end}\n")
    watched.happen(Submitted())
    passed_over = FailedVisits().plus("search", "no", ends_run=False)
    watched.happen(ChildEnded(1, 1, child_id("r", 1), "failed", "boom", failed_visits=passed_over))
    assert (watched.run.status, watched.run.failed_visits.count) == ("completed", 2)
    assert values(watched.tally.failed_visits) == {("agent",): 1}
