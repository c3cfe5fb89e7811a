"""The record of a batch, as its readers see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sleipnir.batches.records import BatchCounts, BatchInfo, BatchPlan, state_of
from sleipnir.decoding import number, read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import Usage
from sleipnir.runs.actor import changes_of
from sleipnir.runs.run import RunSpec

FORK_PLAN: Final = "fork_plan"
"""The field of the plan of a batch of forks: earlier schedulers, which could not start its rows, find no plan."""

_COUNTS: Final = ("total", "waiting", "active", "completed", "failed", "cancelled", "admitted")
_FLAGS: Final = ("sealed", "paused", "cancelling", "cancel_at", "retry")
_USAGE: Final = ("tokens_in", "tokens_out", "model_calls", "cost_usd", "unpriced_calls")
_TIMES: Final = ("created_ms", "started_ms", "ended_ms")
_CHANGES: Final = ("paused", "resumed", "replanned", "retried", "cancelled")
OPEN_FIELDS: Final = ("plan", FORK_PLAN, "rev", *_COUNTS, *_FLAGS, *_USAGE, *_TIMES)
"""What `open_batch` is made of."""
FIELDS: Final = ("spec", "failed_visits", *OPEN_FIELDS, *(f"by:{what}" for what in _CHANGES))
"""What `batch_info` is made of."""


@dataclass(frozen=True)
class OpenBatch:
    """An unfinished batch, as admission sees it. `rev` is its revision, which a decision must match. `unreadable`: why
    its record cannot be read; none of its rows are admitted then."""

    id: str
    created_ms: int = 0
    kept: BatchCounts = field(default_factory=BatchCounts)
    plan: BatchPlan = field(default_factory=BatchPlan)
    rev: int = 0
    unreadable: str | None = None


def open_batch(batch: str, texts: Sequence[str | None]) -> OpenBatch | None:
    """The batch from its record; None: it is over or has expired."""
    fields = dict(zip(OPEN_FIELDS, texts, strict=True))
    plan = fields[FORK_PLAN] or fields["plan"]
    if plan is None or fields["ended_ms"] is not None:
        return None
    try:
        return OpenBatch(batch, _number(fields["created_ms"]), _kept(fields), plan_of(plan), _number(fields["rev"]))
    except RecordUnreadable as error:
        return OpenBatch(batch, unreadable=error.why)


def batch_info(batch: str, texts: Sequence[str | None], now_ms: int) -> BatchInfo | None:
    fields = dict(zip(FIELDS, texts, strict=True))
    if fields["spec"] is None:
        return None
    try:
        return _readable_info(batch, fields, now_ms)
    except RecordUnreadable as error:
        return BatchInfo(batch, "", "unreadable", created_ms=0, now_ms=now_ms, unreadable=str(error))


def _readable_info(batch: str, fields: Mapping[str, str | None], now_ms: int) -> BatchInfo:
    """Raises RecordUnreadable."""
    spec, plan = read_text(RunSpec, str(fields["spec"]), "spec"), plan_of(str(fields[FORK_PLAN] or fields["plan"]))
    calls = _number(fields["model_calls"])
    priced = calls > 0 and not _number(fields["unpriced_calls"])
    usage = Usage(
        input_tokens=_number(fields["tokens_in"]),
        output_tokens=_number(fields["tokens_out"]),
        calls=calls,
        cost_usd=round(number(fields["cost_usd"] or "0", "cost"), 8) if priced else None,
    )
    return BatchInfo(
        id=batch,
        agent=spec.agent,
        state=state_of(_kept(fields), plan),
        now_ms=now_ms,
        plan=plan,
        usage=usage,
        created_ms=_number(fields["created_ms"]),
        started_ms=_number(fields["started_ms"]) or None,
        ended_ms=_number(fields["ended_ms"]) or None,
        unreadable=None,
        failed_visits=_number(fields["failed_visits"]),
        changes=changes_of(fields),
        namespace=spec.namespace,
        tags=spec.tags or {},
        **{name: _number(fields[name]) for name in _COUNTS if name != "admitted"},
    )


def plan_field(plan: BatchPlan) -> str:
    return "plan" if plan.fork is None else FORK_PLAN


def plan_of(text: str) -> BatchPlan:
    return read_text(BatchPlan, text, "plan")


def _number(text: str | None) -> int:
    return int(number(text or "0", "count"))


def _kept(fields: Mapping[str, str | None]) -> BatchCounts:
    return BatchCounts(
        waiting=_number(fields["waiting"]),
        active=_number(fields["active"]),
        admitted=_number(fields["admitted"]),
        sealed=fields["sealed"] is not None,
        paused=fields["paused"] is not None,
        cancelling=fields["cancelling"] is not None,
        tokens=_number(fields["tokens_in"]) + _number(fields["tokens_out"]),
        cost_usd=number(fields["cost_usd"] or "0", "cost"),
        has_work=fields["cancel_at"] is not None or fields["retry"] is not None,
    )
