"""The overview: what needs a person, whether the deployment is healthy, and what is full.

It reads sizes of lists, rollups and the first entries of indices: its cost does not depend on the number of runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from sleipnir.batches.records import BatchInfo
from sleipnir.client.async_client import AsyncClient
from sleipnir.errors import ConfigError
from sleipnir.runs.failure_text import in_one_line
from sleipnir.runs.gate_filters import GateCounts
from sleipnir.runs.plain_text import one_line
from sleipnir.runs.run_filters import FailureGroup, RunCounts
from sleipnir.runs.throughput import Throughput
from sleipnir.runs.views import GateInfo
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.pages.failures_page import path_of_group
from sleipnir_console.pages.fleet_page import (
    BoundedUse,
    LimitRow,
    QueueRow,
    bounds_of,
    queue_names,
    queue_of,
)
from sleipnir_console.pages.formats import count, duration, rounded
from sleipnir_console.pages.gate_rows import question_of
from sleipnir_console.pages.line_chart import LineChart, line_chart
from sleipnir_console.pages.markdown import title_of
from sleipnir_console.pages.page_route import PageRoute, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_states import Colour, StateSummary
from sleipnir_console.permissions import caller_of, requires

router = APIRouter(route_class=PageRoute)

MOST_NEEDS: Final = 7
MOST_GROUPS: Final = 3
MOST_BATCHES: Final = 50
"""The newest batches are looked at."""
MOST_LIMITS: Final = 6
DAY_MS: Final = 24 * 3600 * 1000
STANDINGS: Final[dict[str, tuple[Colour, str]]] = {
    "running": ("running", "Running"),
    "waiting:person": ("person", "Waits for a person"),
    "waiting:limit": ("waiting", "Waits for a limit"),
    "waiting:retry": ("waiting", "Waits to try again"),
    "waiting:slot": ("waiting", "Waits for a slot"),
    "waiting:child": ("waiting", "Waits for another run"),
    "waiting:event": ("waiting", "Waits for a signal"),
    "waiting:timer": ("waiting", "Waits for a time"),
    "waiting:other": ("waiting", "Waits for something else"),
    "running:slot": ("waiting", "Waits for a slot, begun"),
    "submitted": ("submitted", "Submitted"),
    "submitted:slot": ("waiting", "Waits for a slot, not begun"),
    "submitted:turn": ("waiting", "Waits for its turn"),
    "paused:person": ("paused", "Paused by a person"),
    "paused:breakpoint": ("paused", "At a breakpoint"),
    "paused:budget": ("paused", "Budget used up"),
    "paused:parent": ("paused", "Paused with its parent"),
    "paused": ("paused", "Paused"),
}
"""Standings of live runs, in the order of the table, with their words."""


@dataclass(frozen=True)
class Need:
    """Something that a person has to do. `since` says for how long, in words; `action` is the text of the button."""

    colour: Colour
    what: str
    detail: str
    since: str
    path: str
    action: str


@dataclass(frozen=True)
class StandingRow:
    """How many live runs have a state and a reason, of the most that one has, and for how long the oldest."""

    state: StateSummary
    meter: BoundedUse
    oldest_ms: int
    path: str


@router.get("/", operation_id="show_overview")
@requires("viewer")
@same_as("/throughput")
async def show_overview(request: Request) -> Response:
    """What needs a person, and the state of the deployment."""
    client, namespace = client_of(request), seen_namespace(request, None)
    counts = await client.run_counts(namespace=namespace)
    throughput = await client.throughput(namespace=namespace)
    health = await client.health()
    gates = await client.gate_inbox.counts(namespace=namespace)
    oldest = await client.gate_inbox.page(view="role" if gates.role else "overdue", namespace=namespace, limit=1)
    groups = await client.failures(since_ms=health.now_ms - DAY_MS, limit=MOST_GROUPS + 1, namespace=namespace)
    batches = await client.batches(MOST_BATCHES, namespace=namespace)
    limits, limits_error = await _limits(client)
    queues = [queue_of(name, health) for name in queue_names(health)]
    now_ms = health.now_ms
    needs = [
        *_gate_needs(gates, next(iter(oldest), None), now_ms),
        *_failure_needs(groups, now_ms),
        *_queue_needs(queues),
        *_budget_needs(counts, batches, now_ms),
        *_canary_needs(batches),
    ]
    live = sum(
        number for status, number in counts.by_status.items() if status not in ("completed", "failed", "cancelled")
    )
    return render(
        request, "overview.html", title=f"({gates.role}) Overview" if gates.role else "Overview",
        needs=needs[:MOST_NEEDS], need_count=len(needs), gates=gates, counts=counts, live=live,
        has_runs=bool(counts.counts),
        standings=_standings(counts, now_ms), throughput=throughput, groups=groups,
        group_count=f"{MOST_GROUPS} or more" if len(groups) > MOST_GROUPS else str(len(groups)),
        budget=_budget(throughput), visits_chart=_visits_chart(throughput), hops_chart=_hops_chart(throughput),
        queues=queues, limits=limits[:MOST_LIMITS], limit_count=len(limits), limits_error=limits_error,
        no_scheduler=not health.schedulers, midnight_ms=now_ms - now_ms % DAY_MS, now_ms=now_ms,
        live_path=_runs_path(*(("status", each) for each in ("submitted", "running", "waiting", "paused"))),
        may_pause=caller_of(request).may("operator"),
    )  # fmt: skip


async def _limits(client: AsyncClient) -> tuple[list[LimitRow], str]:
    """Bounds of limits, the fullest first; and why they cannot be read, if the file of this server has an error."""
    try:
        uses = await client.limits()
    except ConfigError as error:
        return [], str(error)
    rows = [row for use in uses for row in bounds_of(use)]
    return sorted(rows, key=lambda row: (-row.meter.percent, row.pattern)), ""


def _gate_needs(gates: GateCounts, oldest: GateInfo | None, now_ms: int) -> Iterator[Need]:
    if oldest is None or not (gates.role or gates.overdue):
        return
    at_least = "" if gates.is_exact else "at least "
    overdue = f", {count(gates.overdue)} overdue in all" if gates.overdue else ""
    if gates.role:
        what = (
            f"{at_least}{_number(gates.role, 'decision')} {'is' if gates.role == 1 else 'are'} yours to make{overdue}"
        )
    else:
        what = f"{_number(gates.overdue, 'decision')} of others {'is' if gates.overdue == 1 else 'are'} overdue"
    yield Need(
        "person", what[0].upper() + what[1:], f"Oldest: “{title_of(question_of(oldest))}” in {oldest.agent}",
        rounded(now_ms - oldest.opened_ms), "/inbox/role" if gates.role else "/inbox/overdue", "Open inbox",
    )  # fmt: skip


def _failure_needs(groups: Sequence[FailureGroup], now_ms: int) -> Iterator[Need]:
    for group in groups[:MOST_GROUPS]:
        if group.discarded is not None:
            continue
        where = f" at {group.node}" if group.node else ""
        yield Need(
            "failed", f"{_number(group.count, 'run')} failed{where}",
            f"{one_line(in_one_line(group.message), 160)} · {group.agent} {group.version[:6]}",
            f"last {rounded(now_ms - group.last_ms)} ago",
            path_of_group(group), "See group",
        )  # fmt: skip


def _queue_needs(queues: Sequence[QueueRow]) -> Iterator[Need]:
    for row in queues:
        if row.trouble is not None:
            yield Need(
                "waiting", f"{_number(row.length, 'visit')} wait{'s' if row.length == 1 else ''} in queue {row.name}",
                f"{row.trouble} · sleipnir worker --queues {row.name}", rounded(row.oldest_ms), "/fleet", "See fleet",
            )  # fmt: skip


def _budget_needs(counts: RunCounts, batches: Sequence[BatchInfo], now_ms: int) -> Iterator[Need]:
    if used := counts.counts.get("paused:budget", 0):
        yield Need(
            "paused", f"{_number(used, 'run')} used {'its' if used == 1 else 'their'} budget",
            "Paused until a person decides whether they may cost more",
            rounded(now_ms - counts.oldest_ms.get("paused:budget", now_ms)),
            _runs_path(("status", "paused"), ("reason", "budget")), "See runs",
        )  # fmt: skip
    for batch in batches:
        if batch.state == "over_budget":
            yield Need(
                "paused", f"Batch {batch.name or batch.id} used its budget", batch.question or "",
                rounded(now_ms - batch.created_ms), f"/batches/{batch.id}", "See batch",
            )  # fmt: skip


def _canary_needs(batches: Sequence[BatchInfo]) -> Iterator[Need]:
    for batch in batches:
        if batch.state == "canary":
            yield Need(
                "person", f"Batch {batch.name or batch.id} ended its canary", batch.question or "",
                rounded(batch.now_ms - batch.created_ms), f"/batches/{batch.id}", "See batch",
            )  # fmt: skip


def _standings(counts: RunCounts, now_ms: int) -> list[StandingRow]:
    """A row for each state and reason that live runs have."""
    found = {standing: counts.counts[standing] for standing in STANDINGS if counts.counts.get(standing)}
    most = max(found.values(), default=0)
    rows = []
    for standing, number in found.items():
        status, _, reason = standing.partition(":")
        query = (("status", status), *((("reason", reason),) if reason else ()))
        age_ms = max(0, now_ms - counts.oldest_ms[standing])
        rows.append(
            StandingRow(StateSummary(*STANDINGS[standing]), BoundedUse(number, most), age_ms, _runs_path(*query))
        )
    return rows


def _budget(throughput: Throughput) -> str:
    """What the spend of today is of the daily budget, in words."""
    budget, spent = throughput.daily_budget_usd, throughput.cost_today_usd
    if budget is None:
        return "since 00:00 UTC"
    if spent >= budget:
        return f"of ${budget:,.2f}: used up"
    return f"of ${budget:,.2f}, {100 * spent / budget:.0f} %"


def _visits_chart(throughput: Throughput) -> LineChart:
    rates = [point.visits / 60 for point in throughput.minutes]
    label = f"Visits a second in the last hour: now {throughput.visits_per_s:.1f}, at most {max(rates):.1f}"
    return line_chart(label, [point.at_ms for point in throughput.minutes], [("l1", rates)])


def _hops_chart(throughput: Throughput) -> LineChart:
    label = (
        f"Time of a hop in the last hour: now 99 % within {duration(throughput.hop_p99_ms)}, "
        f"half of them within {duration(throughput.hop_p50_ms)}"
    )
    slow, half = [point.hop_p99_ms for point in throughput.minutes], [point.hop_p50_ms for point in throughput.minutes]
    return line_chart(label, [point.at_ms for point in throughput.minutes], [("l3", slow), ("l2", half)])


def _runs_path(*query: tuple[str, str]) -> str:
    return f"/runs?{urlencode(query)}"


def _number(number: int, noun: str) -> str:
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"
