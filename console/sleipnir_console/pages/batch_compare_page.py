"""Two batches side by side: what they add up to, and a page of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir.batches.records import BatchInfo
from sleipnir.runs.comparison import ComparedRun, Comparison
from sleipnir_console.connection import client_of
from sleipnir_console.pages.comparisons import FactRow, changed_in_words, fact_of
from sleipnir_console.pages.formats import cost, count, duration
from sleipnir_console.pages.page_route import PageRoute, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.batches import BatchId, batch_of
from sleipnir_console.strict_model import MOST_INT

router = APIRouter(route_class=PageRoute)

PAGE_ROWS: Final = 50


@dataclass(frozen=True)
class ComparedRow:
    """A row of both batches. `words` say what differs; `path` is the page of both runs, if both have one."""

    comparison: Comparison
    words: str
    path: str | None
    cost: FactRow

    @property
    def is_changed(self) -> bool:
        return self.comparison.outcome != "same"


@router.get("/batches/{batch_id}/compare", operation_id="choose_compared_batch")
@requires("viewer")
async def choose_compared_batch(
    request: Request, batch_id: BatchId, other: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Leads to the comparison with the batch whose id or name was typed."""
    if not other.strip():
        raise HttpProblem("refused", "give the id or the name of the other batch")
    return next_page(f"/batches/{quote(batch_id)}/compare/{quote(other.strip(), safe='')}")


@router.get("/batches/{batch_id}/compare/{other_batch_id}", operation_id="show_batch_comparison")
@requires("viewer")
@same_as("/batches/{batch_id}/compare/{other_batch_id}")
async def show_batch_comparison(
    request: Request,
    batch_id: BatchId,
    other_batch_id: BatchId,
    start: Annotated[int, Query(ge=0, le=MOST_INT)] = 0,
) -> Response:
    """Two batches side by side: 50 rows from a row on, first those of the first batch."""
    batch, other = await batch_of(request, batch_id), await batch_of(request, other_batch_id)
    if (batch.id, other.id) != (batch_id, other_batch_id):
        return next_page(f"/batches/{quote(batch.id)}/compare/{quote(other.id)}")
    a, b = await batch.info(), await other.info()
    page = await batch.comparisons(other.id, start=start, limit=PAGE_ROWS)
    path = f"/batches/{quote(a.id)}/compare/{quote(b.id)}"
    return render(
        request, "batch_comparison.html", title=f"{a.name or a.id} and {b.name or b.id}", a=a, b=b,
        facts=_facts(a, b), rows=[_row(each) for each in page.comparisons], start=start,
        is_only_b=start >= a.total, first=path,
        next=None if page.after is None else f"{path}?{urlencode({'start': page.after})}",
        api=f"/api/v1{path}", now_ms=await client_of(request).now_ms(),
    )  # fmt: skip


def _facts(a: BatchInfo, b: BatchInfo) -> Sequence[FactRow]:
    return (
        FactRow("Agent", a.agent, b.agent, "" if a.agent == b.agent else "differs"),
        fact_of("Rows", a.total, b.total, count),
        fact_of("Completed", a.completed, b.completed, count),
        fact_of("Failed", a.failed, b.failed, count),
        fact_of("Cost", a.usage.cost_usd, b.usage.cost_usd, cost),
        fact_of("Tokens", a.usage.input_tokens + a.usage.output_tokens,
                b.usage.input_tokens + b.usage.output_tokens, count),
        fact_of("Took", _took_ms(a), _took_ms(b), duration),
    )  # fmt: skip


def _took_ms(info: BatchInfo) -> int | None:
    return None if info.ended_ms is None or info.started_ms is None else info.ended_ms - info.started_ms


def _row(comparison: Comparison) -> ComparedRow:
    a, b = comparison.a, comparison.b
    has_runs = a is not None and b is not None and _has_run(a) and _has_run(b)
    path = f"/runs/{a.id}/compare/{b.id}" if has_runs and a is not None and b is not None else None
    costs = fact_of("Cost", None if a is None else a.cost_usd, None if b is None else b.cost_usd, cost)
    return ComparedRow(comparison, changed_in_words(comparison), path, costs)


def _has_run(side: ComparedRun) -> bool:
    return side.visits > 0
