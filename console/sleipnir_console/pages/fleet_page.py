"""The fleet: queues, workers, limits, schedulers, Redis, and what keeps them from working."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from sleipnir.messages import QUEUES
from sleipnir.models.limits import LimitChange, LimitUse
from sleipnir.runs.views import Health, WorkerInfo
from sleipnir.runs.worker_health import why_not
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import body_of, number_of
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_states import StateSummary
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.routes.fleet import ChangedLimit, ResetLimit, reset_limit, set_limit

router = APIRouter(route_class=PageRoute)

WITHIN_S: Final = 30.0
"""A worker announces itself every few seconds; after so long without it, or without consuming, it is in trouble."""
MOST_WORKERS: Final = 500
MOST_HOLDERS: Final = 3
FULL: Final = 0.95


BOUNDS: Final[Mapping[str, str]] = {
    "requests_per_minute": "requests a minute", "tokens_per_minute": "tokens a minute",
    "max_parallel": "parallel calls",
}  # fmt: skip
"""What the bounds of a limit count."""


@dataclass(frozen=True)
class BoundedUse:
    """How much of something is used. `most` 0: it has no limit."""

    used: int
    most: int

    @property
    def percent(self) -> float:
        return min(100.0, round(100 * self.used / self.most, 1)) if self.most else 0.0

    @property
    def is_full(self) -> bool:
        return self.most > 0 and self.used >= FULL * self.most


@dataclass(frozen=True)
class QueueRow:
    """A queue with what its live workers can do. `trouble`: why nobody takes from it; None: somebody does."""

    name: str
    length: int
    oldest_ms: int | None
    workers: int
    slots: BoundedUse
    trouble: str | None


@dataclass(frozen=True)
class WorkerRow:
    """A worker, and whether it consumes."""

    worker: WorkerInfo
    state: StateSummary
    slots: BoundedUse


@dataclass(frozen=True)
class LimitRow:
    """A bound of a limit: what it counts, how much of that is used. `holders` are runs that hold a permit. With a
    `change` of this bound, `written` is what limits.yaml says of it. `kept` are the other bounds that were changed,
    which a request for this one names too."""

    pattern: str
    counts: str
    meter: BoundedUse
    waiting: int
    cooling_until_ms: int | None
    holders: Sequence[str]
    bound: str
    change: LimitChange | None = None
    written: int | None = None
    kept: Mapping[str, int] = field(default_factory=dict)
    is_changed: bool = False


@dataclass(frozen=True)
class FleetFinding:
    """What is wrong, gravest first, and what to do."""

    what: str
    remedy: str


@router.get("/fleet", operation_id="show_fleet")
@requires("viewer")
@same_as("/health")
async def show_fleet(request: Request) -> Response:
    """Everything that works on runs, those in trouble first."""
    client = client_of(request)
    health, limits = await client.health(), await client.limits()
    workers = sorted((_worker(each, health.now_ms) for each in health.workers), key=_by_trouble)
    queues = [queue_of(name, health) for name in queue_names(health)]
    bounds = [row for use in limits for row in bounds_of(use)]
    return render(
        request, "fleet.html", title=f"{len(workers)} workers: fleet", health=health,
        workers=workers[:MOST_WORKERS], worker_count=len(workers), slots=_slots(health.workers), queues=queues,
        limits=sorted(bounds, key=lambda row: (-row.meter.percent, row.pattern)), troubles=findings_of(health, queues),
        memory=BoundedUse(health.used_memory, health.maxmemory), now_ms=health.now_ms,
        may_change=caller_of(request).may("operator", everywhere=True),
    )  # fmt: skip


@router.post("/fleet/limits/set", operation_id="send_limit")
@requires("operator", everywhere=True)
async def send_limit(request: Request) -> Response:
    """Gives a limit another bound; the others stay as they are now."""
    form = form_of(request)
    pattern, bound = form.get("pattern", ""), form.get("bound", "")
    bounds: dict[str, int | float | None] = {}
    for use in await client_of(request).limits():
        if use.limit.pattern == pattern and use.change is not None:
            bounds |= use.change.bounds
    if bound in BOUNDS:
        bounds[bound] = number_of(form, "value")
    await set_limit(request, body_of(request, ChangedLimit, **bounds))
    return next_page("/fleet#limits")


@router.post("/fleet/limits/reset", operation_id="send_limit_reset")
@requires("operator", everywhere=True)
async def send_limit_reset(request: Request) -> Response:
    """Gives a limit the bounds of limits.yaml again."""
    await reset_limit(request, body_of(request, ResetLimit))
    return next_page("/fleet#limits")


def queue_names(health: Health) -> list[str]:
    """The default queues, then those with workers or messages."""
    others = {*health.queues, *(queue for worker in health.workers for queue in worker.queues)} - set(QUEUES)
    return [*QUEUES, *sorted(others)]


def findings_of(health: Health, queues: Sequence[QueueRow]) -> list[FleetFinding]:
    """What keeps runs from going on, gravest first."""
    found = []
    if not health.schedulers:
        found.append(FleetFinding("No scheduler is seen: no run goes on.", "sleipnir scheduler"))
    if not health.persists:
        found.append(
            FleetFinding(
                "Redis cannot write to its disk: what it accepts now is lost if it restarts.", "sleipnir doctor"
            )
        )
    found += [
        FleetFinding(f"Queue {row.name}: {row.trouble}", f"sleipnir worker --queues {row.name}")
        for row in queues
        if row.trouble is not None
    ]
    if health.parked:
        found.append(
            FleetFinding(
                f"{health.parked:,} runs are parked: no scheduler here can read or plan them.", "sleipnir doctor"
            )
        )
    if health.dead_letters:
        found.append(FleetFinding(f"{health.dead_letters:,} effects cannot be delivered.", "sleipnir dead-letters ls"))
    return found


def queue_of(name: str, health: Health) -> QueueRow:
    """A queue, and what its live workers can do."""
    serving = [worker for worker in health.workers if name in worker.queues]
    length, oldest_ms = health.queues.get(name, 0), health.oldest_ms.get(name)
    stopped: Mapping[str, str] = {each.name: each.stopped[name] for each in health.workers if name in each.stopped}
    trouble = None
    if length and not serving:
        why = next(iter(stopped.values()), "no worker serves it")
        trouble = f"{length:,} messages wait, and {why}"
    return QueueRow(name, length, oldest_ms or None, len(serving), _slots(serving), trouble)


def _slots(workers: Sequence[WorkerInfo]) -> BoundedUse:
    return BoundedUse(sum(worker.busy for worker in workers), sum(worker.slots for worker in workers))


def _worker(worker: WorkerInfo, now_ms: int) -> WorkerRow:
    reason = why_not(worker, now_ms, WITHIN_S)
    if reason is not None:
        silent = now_ms - worker.seen_ms > WITHIN_S * 1000
        state = StateSummary("waiting" if silent else "failed", "Silent" if silent else "In trouble", reason)
    elif worker.stopped:
        stopped = "; ".join(f"{queue}: {why}" for queue, why in sorted(worker.stopped.items()))
        state = StateSummary("waiting", "Does not take all", stopped)
    else:
        state = StateSummary("completed", "Consumes")
    return WorkerRow(worker, state, BoundedUse(worker.busy, worker.slots))


def _by_trouble(row: WorkerRow) -> tuple[int, str]:
    return ({"failed": 0, "waiting": 1}.get(row.state.colour, 2), row.worker.name)


def bounds_of(use: LimitUse) -> list[LimitRow]:
    """A row for each bound that a limit has."""
    limit, changed = use.limit, use.change.bounds if use.change is not None else {}
    holders = [permit.holder.partition("/")[0] for permit in use.slots]
    return [
        LimitRow(limit.pattern, counts, BoundedUse(used, most), use.waiting, use.cooling_until_ms,
                 list(dict.fromkeys(holders))[:MOST_HOLDERS] if counts == "parallel calls" else (), bound,
                 use.change if bound in changed else None, None if use.written is None else getattr(use.written, bound),
                 {name: value for name, value in changed.items() if name != bound}, bool(changed))
        for (bound, counts), used in zip(
            BOUNDS.items(), (use.requests, use.tokens, len(use.slots)), strict=True
        )
        if (most := getattr(limit, bound)) is not None
    ]  # fmt: skip
