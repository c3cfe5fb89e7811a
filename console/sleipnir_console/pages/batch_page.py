"""One batch: how far it is, its rows in a grid and in a table, what it costs, why rows failed, and what can be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from sleipnir.batches.records import DEFAULT_PARALLEL, BatchInfo, ErrorGroup, RowState
from sleipnir.batches.rollups import BatchRow, EndedRows, rows_per_minute
from sleipnir.client.async_client import AsyncBatch, AsyncClient
from sleipnir_console.connection import client_of
from sleipnir_console.pages.batch_actions import ACTIONS, actions_of
from sleipnir_console.pages.batch_states import ROW_WORDS, bar_of, batch_state_of, in_words
from sleipnir_console.pages.page_route import PageRoute, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.row_grid import drawing_of
from sleipnir_console.pages.run_states import StateSummary, state_of
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.batches import BatchId, batch_of
from sleipnir_console.strict_model import MOST_INT

router = APIRouter(route_class=PageRoute)

SHOWN_ROWS: Final = 50
MOST_FAILED: Final = 1_000
"""Failed rows that are read to group their errors."""
SHOWN_GROUPS: Final = 20
SHOWN_OTHERS: Final = 20
POINTS, BINS = 60, 30
"""Times that the chart is made from, and its parts."""


@dataclass(frozen=True)
class RowLine:
    """A row of the table. `took_ms` is that of its run; None: it has not begun."""

    row: BatchRow
    state: StateSummary
    took_ms: int | None


@dataclass(frozen=True)
class RateLine:
    """Rows that ended a minute, as a line and its ground in a square of 100, and the times below it."""

    line: str
    ground: str
    times: Sequence[int]
    label: str
    most: float


@dataclass(frozen=True)
class CostLine:
    """What the batch has cost, of what, in percent of the larger of forecast and budget."""

    spent: float
    forecast: float | None
    budget: float | None

    @property
    def whole(self) -> float:
        return max(self.spent, self.forecast or 0.0, self.budget or 0.0)

    def percent(self, usd: float | None) -> float:
        return round(100 * (usd or 0.0) / self.whole, 2) if self.whole else 0.0


@router.get("/batches/{batch_id}", operation_id="show_batch")
@requires("viewer")
@same_as("/batches/{batch_id}")
async def show_batch(
    request: Request,
    batch_id: BatchId,
    state: Annotated[RowState | None, Query()] = None,
    row: Annotated[int, Query(ge=1, le=MOST_INT)] = 1,
) -> Response:
    """The page of a batch. Its table has rows in a state (none: all), from a row on, counted from 1."""
    batch = await batch_of(request, batch_id)
    if batch.id != batch_id:
        query = f"?{request.url.query}" if request.url.query else ""
        return next_page(f"/batches/{quote(batch.id)}{query}")
    info = await batch.info()
    if info.unreadable is not None:
        raise HttpProblem("unreadable-record", info.unreadable)
    client = client_of(request)
    page = await batch.rows(state, start=row - 1, limit=SHOWN_ROWS)
    shown, bar = batch_state_of(info), bar_of(info)
    groups = await batch.errors(MOST_FAILED) if info.failed else []
    failed_read = min(info.failed, MOST_FAILED)
    points = await batch.ended_rows(POINTS)
    path = f"/batches/{quote(info.id)}"
    others = [each for each in await client.batches(50) if each.id != info.id and each.agent == info.agent]
    may_steer = caller_of(request).may("operator")
    return render(
        request, "batch.html", title=_title(info, shown), info=info, state=shown, bar=bar, bar_words=in_words(bar),
        ends_ms=None if info.eta_s is None else info.now_ms + int(info.eta_s * 1000),
        grid=drawing_of(await batch.grid(), info.total), chart=_chart(points, info), cost=_cost(info),
        groups=[(group, _path_of_group(info, group)) for group in groups[:SHOWN_GROUPS]],
        group_count=len(groups), failed_read=failed_read,
        rows=[_line(each, info.now_ms) for each in page.rows], row_state=state, first=row, looked=page.looked,
        next=None if page.after is None else _path(path, state=state, row=page.after + 1),
        row_views=[(each, word, getattr(info, each), _path(path, state=each)) for each, word in ROW_WORDS.items()],
        all_rows=path, limits=await _limits(client, info), parallel=info.plan.parallel or DEFAULT_PARALLEL,
        parallel_most=max(200, 2 * (info.plan.parallel or 0), info.active),
        actions=actions_of(info) if may_steer else [], may_steer=may_steer, others=others[:SHOWN_OTHERS],
        batch_path=path, api=f"/api/v1{path}", now_ms=info.now_ms,
    )  # fmt: skip


@router.post("/batches/{batch_id}/{action}", operation_id="steer_batch")
@requires("operator")
async def steer_batch(
    request: Request, batch_id: BatchId, action: Annotated[str, Path(pattern=f"^({'|'.join(ACTIONS)})$")]
) -> Response:
    """Does what a button of the page says."""
    batch: AsyncBatch = await batch_of(request, batch_id)
    return next_page(f"/batches/{quote(await ACTIONS[action].does(request, batch))}")


def _title(info: BatchInfo, state: StateSummary) -> str:
    done = f"{100 * info.ended // info.total} %" if info.total else "no rows"
    return f"{info.name or info.id} {done}, {state.word.lower()}"


def _path(path: str, **query: Any) -> str:
    pairs = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(pairs)}#rows" if pairs else path


def _path_of_group(info: BatchInfo, group: ErrorGroup) -> str:
    """The runs of an error group. Rows that did not become runs are not among them."""
    pairs = {"batch": info.id, "status": "failed", "node": group.node or "", "text": group.message[:120]}
    return f"/runs?{urlencode({name: value for name, value in pairs.items() if value})}"


def _line(row: BatchRow, now_ms: int) -> RowLine:
    run = row.info
    if run is not None and row.state != "waiting":
        begun = run.started_ms or run.created_ms
        return RowLine(row, state_of(run, now_ms), max(0, (run.ended_ms or now_ms) - begun))
    match row.state:
        case "waiting":
            return RowLine(row, StateSummary("submitted", "Not begun", "waits in the batch"), None)
        case "active":
            return RowLine(row, StateSummary("submitted", "Not begun", "its run is being made"), None)
        case "failed":
            return RowLine(row, StateSummary("failed", "Failed", row.error or "its run has expired"), None)
        case "cancelled":
            return RowLine(row, StateSummary("cancelled", "Cancelled", "before it began"), None)
    return RowLine(row, StateSummary("completed", "Completed", "its run has expired"), None)


def _chart(points: Sequence[EndedRows], info: BatchInfo) -> RateLine | None:
    """None: too few rows have ended to say a rate."""
    if points and info.started_ms is not None and info.started_ms < points[0].at_ms:
        points = [EndedRows(info.started_ms, 0), *points]
    rates = rows_per_minute(points, min(BINS, len(points) // 2))
    if len(rates) < 3:
        return None
    most = max(rates) or 1.0
    step = 100 / (len(rates) - 1)
    places = [(f"{at * step:.2f}".rstrip("0").rstrip("."), f"{100 - 96 * rate / most:.1f}") for at, rate in
              enumerate(rates)]  # fmt: skip
    line = "M" + "L".join(f"{x} {y}" for x, y in places)
    first, last = points[0].at_ms, points[-1].at_ms
    label = f"Rows a minute: {rates[-1]:,.0f} at the end, at most {most:,.0f}, from {_time(first)} to {_time(last)}"
    return RateLine(line, f"{line}L100 100L0 100Z", (first, (first + last) // 2, last), label, most)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S")


def _cost(info: BatchInfo) -> CostLine | None:
    """None: no price is known, or nothing was spent and nothing is limited."""
    spent = info.usage.cost_usd
    if spent is None or not (spent or info.plan.max_cost_usd):
        return None
    return CostLine(spent, info.forecast_usd, info.plan.max_cost_usd)


async def _limits(client: AsyncClient, info: BatchInfo) -> list[tuple[str, str, str]]:
    """What else than `parallel` bounds how many rows are under way: text, link, and its words."""
    if info.is_over:
        return []
    found = []
    health = await client.health()
    slots, busy = sum(each.slots for each in health.workers), sum(each.busy for each in health.workers)
    if not health.workers:
        found.append(("There is no worker: nothing is done. ", "/fleet", "Fleet"))
    elif busy >= slots:
        found.append(
            (f"All {slots:,} slots of the workers are busy: more rows would wait for one. ", "/fleet", "Fleet")
        )
    for use in await client.limits():
        if use.waiting:
            text = f"{use.waiting:,} calls wait for the limit {use.limit.pattern}: more rows would wait for it. "
            found.append((text, "/fleet", "Limits"))
    return found
