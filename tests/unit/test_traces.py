"""Spans that the scheduler makes of commits: transitions of the real planner, and spans kept in memory."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sleipnir import tracing
from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Answered, Event, LeaseLost, Resulted, Submitted
from sleipnir.runs.run import RunSpec, RunView
from sleipnir.runs.transitions import Transition
from sleipnir.store.partitions.commits import Commit
from sleipnir.store.partitions.entries import Entry
from sleipnir_scheduler.planner.plan import plan
from sleipnir_scheduler.traces import trace_commit
from tests.model_store import graph_of
from tests.unit.metrics.test_tally import GRAPH


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(id_generator=tracing._ids(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    return exporter


def happen(run: RunView, event: Event, at_ms: int) -> RunView:
    transition = plan(graph_of(GRAPH), run, event, at_ms)
    assert isinstance(transition, Transition), transition
    commit = Commit(Entry(f"{at_ms}-0", 0, run.id, event), run, transition)
    trace_commit(commit, lambda: at_ms + 5)
    return commit.after


def result(*, ok: bool = True, **more: Any) -> Resulted:
    return Resulted(1, 1, ResultHeader(ok=ok, started_ms=1_500, took_ms=400, **more))


def times(span: ReadableSpan) -> tuple[float, float]:
    """In ms."""
    return (span.start_time or 0) / 1e6, (span.end_time or 0) / 1e6


def test_a_visit_is_traced_from_its_queue_to_its_commit(kept: InMemorySpanExporter) -> None:
    run = happen(RunView("r", RunSpec("agent", "d")), Submitted(), 1_000)
    assert kept.get_finished_spans() == ()
    happen(run, result(), 2_000)
    visit, queue, commit = kept.get_finished_spans()
    assert (visit.name, queue.name, commit.name) == ("visit agent.a", "queue", "commit")
    assert (times(visit), times(queue), times(commit)) == ((1_000, 2_005), (1_000, 1_500), (2_000, 2_005))
    assert visit.context.span_id == tracing._span_id(("r", 1, 1)) == queue.parent.span_id == commit.parent.span_id
    assert visit.parent.span_id == tracing._span_id("r")
    assert visit.attributes["sleipnir.outcome"] == "ok"
    assert visit.status.is_ok or visit.status.is_unset


def test_a_run_ends_with_a_span_from_its_start_and_a_question_is_one_too(kept: InMemorySpanExporter) -> None:
    run = happen(RunView("r", RunSpec("agent", "d")), Submitted(), 1_000)
    run = happen(run, result(), 2_000)
    kept.clear()
    happen(run, Answered(2, "yes"), 90_000)
    asked, end, whole = kept.get_finished_spans()
    assert [span.name for span in (asked, end, whole)] == ["visit agent.ask", "visit agent.e", "run agent"]
    assert (times(asked), times(whole)) == ((2_000, 90_000), (1_000, 90_000))
    assert whole.parent is None
    assert whole.context.span_id == tracing._span_id("r")
    assert {span.context.trace_id for span in (asked, end, whole)} == {tracing._trace_id("r")}


def test_a_failure_has_its_kind_and_not_its_text(kept: InMemorySpanExporter) -> None:
    run = happen(RunView("r", RunSpec("agent", "d")), Submitted(), 1_000)
    happen(run, result(ok=False, error="the s3cret is out", error_kind="script"), 2_000)
    visit, *_ = kept.get_finished_spans()
    assert not visit.status.is_ok
    assert (visit.attributes["error.type"], visit.attributes["sleipnir.outcome"]) == ("script", "retried")
    assert all("s3cret" not in span.to_json() for span in kept.get_finished_spans())


def test_a_lost_worker_leaves_no_span_and_the_next_attempt_has_its_own(kept: InMemorySpanExporter) -> None:
    run = happen(RunView("r", RunSpec("agent", "d")), Submitted(), 1_000)
    run = happen(run, LeaseLost(1, 1, "w"), 9_000)
    assert kept.get_finished_spans() == ()
    happen(run, Resulted(1, 2, ResultHeader(ok=True, started_ms=9_500, took_ms=400)), 10_000)
    visit, commit = kept.get_finished_spans()
    assert (visit.context.span_id, times(visit)[0]) == (tracing._span_id(("r", 1, 2)), 9_500)
    assert commit.name == "commit", "since when the second attempt was queued nobody knows"


def test_a_child_run_is_linked_to_the_visit_that_started_it(kept: InMemorySpanExporter) -> None:
    spec = RunSpec("agent", "d", parent="above", parent_seq=7, parent_attempt=2)
    run = happen(RunView("r", spec), Submitted(), 1_000)
    run = happen(run, result(), 2_000)
    happen(run, Answered(2, "yes"), 3_000)
    *_, whole = kept.get_finished_spans()
    [link] = whole.links
    assert link.context.trace_id == tracing._trace_id("above")
    assert link.context.span_id == tracing._span_id(("above", 7, 2))
