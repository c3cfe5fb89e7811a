"""Two runs side by side: numbers, outputs, state, paths."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir_console.connection import client_of
from sleipnir_console.pages.comparisons import (
    changed_in_words,
    facts_of,
    path_difference,
    state_differences,
    text_difference,
)
from sleipnir_console.pages.page_route import PageRoute, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import RunId

router = APIRouter(route_class=PageRoute)


@router.get("/runs/{run_id}/compare", operation_id="choose_compared_run")
@requires("viewer")
async def choose_compared_run(
    request: Request, run_id: RunId, other: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Leads to the comparison with the run whose id was typed."""
    if not other.strip():
        raise HttpProblem("refused", "give the id of the other run, or its beginning")
    return next_page(f"/runs/{quote(run_id)}/compare/{quote(other.strip(), safe='')}")


@router.get("/runs/{run_id}/compare/{other_id}", operation_id="show_run_comparison")
@requires("viewer")
@same_as("/runs/{run_id}/compare/{other_id}")
async def show_run_comparison(request: Request, run_id: RunId, other_id: RunId) -> Response:
    """Two runs side by side."""
    client = client_of(request)
    run, other = await client.run(run_id), await client.run(other_id)
    if (run.id, other.id) != (run_id, other_id):
        return next_page(f"/runs/{run.id}/compare/{other.id}")
    comparison = await client.compare(run.id, other.id)
    a, b = comparison.a, comparison.b
    assert a is not None and b is not None
    words = changed_in_words(comparison)
    return render(
        request, "run_comparison.html", title=f"{run.id} and {other.id}: {words}", a=a, b=b, words=words,
        comparison=comparison, facts=facts_of(a, b),
        output=text_difference(a.output, b.output), error=text_difference(a.error, b.error),
        states=state_differences(comparison), path_lines=path_difference(a, b),
        api=f"/api/v1/runs/{run.id}/compare/{other.id}", now_ms=await client.now_ms(),
    )  # fmt: skip
