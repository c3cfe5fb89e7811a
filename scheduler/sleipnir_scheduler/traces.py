"""The scheduler's spans in the trace of a run: the run, each visit, and its waiting times.

A visit's span is that of its attempt; its worker adds spans below it. All spans are recorded afterwards, by the commit
that ends their subject.
"""

from __future__ import annotations

from collections.abc import Callable

from sleipnir import tracing
from sleipnir.runs.events import Resulted
from sleipnir.runs.transitions import Step
from sleipnir.runs.visits import Visit
from sleipnir.store.partitions.commits import Commit
from sleipnir_scheduler.counters.tally import outcome


def trace_commit(commit: Commit, clock_ms: Callable[[], float]) -> None:
    """Record the spans that a commit ends, if tracing is on. The clock is Redis', like all times of a commit."""
    if not tracing.is_on():
        return
    now_ms = clock_ms()
    run, after, event = commit.run, commit.after, commit.entry.event
    seq: int | None = None
    if isinstance(event, Resulted) and (visit := run.frontier.get(event.seq)) is not None:
        _worked(commit, event, visit, now_ms)
        seq = event.seq
    for write in commit.transition.writes:
        if write.step.seq not in (seq, None):
            _stepped(commit, write.step)
    if after.is_final and not run.is_final:
        _ended(commit, now_ms)


def _worked(commit: Commit, event: Resulted, visit: Visit, now_ms: float) -> None:
    run, header, place = commit.run, event.header, (commit.run.id, event.seq, event.attempt)
    began_ms = visit.opened_ms if visit.attempt == 1 else header.started_ms
    became = outcome(run, commit.after, event)
    attributes: dict[str, str | int | float] = {
        "sleipnir.run": run.id, "sleipnir.agent": run.spec.agent, "sleipnir.node": visit.node,
        "sleipnir.visit": visit.seq, "sleipnir.attempt": visit.attempt, "sleipnir.type": visit.kind,
        "sleipnir.role": visit.role, "sleipnir.queue": str(visit.queue), "sleipnir.outcome": became,
    }  # fmt: skip
    error = (header.error_kind or "failed") if became in ("failed", "retried") else None
    tracing.record(
        f"visit {run.spec.agent}.{visit.node}", place, began_ms, now_ms, attributes, within=run.id, error=error
    )
    if visit.attempt == 1:
        tracing.record("queue", place, began_ms, header.started_ms, {}, within=place)
    tracing.record("commit", place, commit.entry.at_ms, now_ms, {}, within=place)


def _stepped(commit: Commit, step: Step) -> None:
    """A visit that needed no worker, or whose lease was lost."""
    run, place = commit.run, (commit.run.id, int(step.seq or 0), step.attempt)
    attributes: dict[str, str | int | float] = {
        "sleipnir.run": run.id, "sleipnir.agent": run.spec.agent, "sleipnir.node": str(step.node),
        "sleipnir.visit": int(step.seq or 0), "sleipnir.attempt": step.attempt, "sleipnir.type": step.kind,
        "sleipnir.role": step.role, "sleipnir.outcome": "ok" if step.ok else "failed",
    }  # fmt: skip
    error = None if step.ok else "failed"
    tracing.record(
        f"visit {run.spec.agent}.{step.node}", place, step.opened_ms, step.at_ms, attributes, within=run.id, error=error
    )


def _ended(commit: Commit, now_ms: float) -> None:
    run, after, spec = commit.run, commit.after, commit.run.spec
    attributes = {"sleipnir.run": run.id, "sleipnir.agent": spec.agent, "sleipnir.status": after.status}
    parent = (spec.parent, spec.parent_seq, spec.parent_attempt) if spec.parent is not None else None
    error = "failed" if after.status == "failed" else None
    tracing.record(
        f"run {spec.agent}", run.id, after.started_ms or now_ms, commit.transition.ended_ms or now_ms, attributes,
        link=parent, error=error,
    )  # fmt: skip
