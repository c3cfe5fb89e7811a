"""Batches: submit many runs at once, watch and steer them, read their results."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal, TypeAlias

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from sleipnir.batches.records import DEFAULT_PRIORITY, PRIORITIES, BatchInfo, ErrorGroup, RowState
from sleipnir.batches.rollups import MOST_CELLS, BatchRowPage, EndedRows, RowGrid
from sleipnir.batches.rows import BadRow, read_from
from sleipnir.client.async_client import AsyncBatch
from sleipnir.runs.comparison import ComparisonPage
from sleipnir.runs.run_filters import ANY_NAMESPACE
from sleipnir_console.asked_runs import AskedNamespace, seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.json_lines import LINES, JsonLines
from sleipnir_console.permissions import GuardedRoute, caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.run_steering import ForkChangesRequest
from sleipnir_console.strict_model import MOST_INT, AgentName, Limit, PauseTimeout, StrictModel
from sleipnir_console.uploaded_rows import UploadedRows

router = APIRouter(prefix="/batches", tags=["batches"], route_class=GuardedRoute)

MOST_BAD_ROWS: Final = 100
FORMATS: Final = {"application/x-ndjson": False, "application/jsonl": False, "text/csv": True}
"""The media types of rows: whether it is CSV."""
ROWS: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "Per line a row: an object of columns, `prompt` and values of state keys; or CSV with a header.",
        "content": {name: {"schema": {"type": "string"}} for name in FORMATS},
    }
}
BatchId: TypeAlias = Annotated[str, Path(description="The id or the name of a batch, or a unique prefix of its id.")]


class BatchDetail(BaseModel):
    """A batch, with what follows from its numbers; null: not known yet. `question` is the decision that it waits
    for."""

    batch: BatchInfo
    question: str | None
    rate_per_s: float | None
    eta_s: float | None
    forecast_usd: float | None

    @classmethod
    def of(cls, info: BatchInfo) -> BatchDetail:
        return cls(
            batch=info, question=info.question, rate_per_s=info.rate_per_s, eta_s=info.eta_s,
            forecast_usd=info.forecast_usd,
        )  # fmt: skip


class RefusedRow(BaseModel):
    """A row that was left out, and why."""

    place: str
    message: str


class BatchSubmitted(BaseModel):
    """What became of the rows: `added`, already there (`known`), or left out (`bad`; the first 100 are in
    `bad_rows`)."""

    id: str
    added: int
    known: int
    bad: int
    bad_rows: list[RefusedRow]


class RefusedRows:
    """The first rows that were left out."""

    def __init__(self) -> None:
        self.rows: list[RefusedRow] = []

    def add(self, row: BadRow) -> None:
        if len(self.rows) < MOST_BAD_ROWS:
            self.rows.append(RefusedRow(place=row.place, message=row.message[:1_000]))


class BatchForkRequest(ForkChangesRequest):
    """Which rows are forked, where the forks begin, what they have in the place of what their sources have, and how the
    new batch is run."""

    failed: bool = Field(default=False, description="Only rows that failed.")
    where: str | None = Field(
        default=None,
        max_length=10_000,
        description="Only rows for which this CEL expression holds.",
        examples=['output.contains("unsure")'],
    )
    tags: dict[str, str] | None = Field(default=None, description="Of the new runs.")
    id: str | None = Field(default=None, description="Of the new batch; with it the request can be repeated.")
    name: str = Field(default="", max_length=200, description="For people.")
    priority: int = Field(default=DEFAULT_PRIORITY, ge=PRIORITIES[0], le=PRIORITIES[-1])
    parallel: int | None = Field(default=None, gt=0, le=MOST_INT, description="Rows that may be active at once.")
    canary: int | None = Field(default=None, gt=0, le=MOST_INT, description="Rows that run first.")
    max_cost_usd: Annotated[float, Field(strict=False)] | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0, le=MOST_INT)


class BatchPauseRequest(StrictModel):
    """How a batch is paused."""

    timeout_s: PauseTimeout = None


class BatchResumeRequest(StrictModel):
    """A larger budget, for a batch that has used its own."""

    max_cost_usd: Annotated[float, Field(strict=False)] | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0, le=MOST_INT)


class ParallelRequest(StrictModel):
    """How many rows may be active at once; null: the default."""

    parallel: int | None = Field(gt=0, le=MOST_INT)


class RetriedRows(BaseModel):
    """How many failed rows go on."""

    rows: int


class PausedRows(BaseModel):
    """How many active rows were asked to pause; 0 without `timeout_s`."""

    rows: int


class CancelledBatch(BaseModel):
    """false: all rows had already ended, and nothing was changed."""

    cancelled: bool


@router.post("", status_code=201, operation_id="submit_batch", summary="Submit a batch", openapi_extra=ROWS)
@requires("operator")
async def submit_batch(
    request: Request,
    response: Response,
    agent: Annotated[AgentName, Query(description="The agent that each row is a run of.")],
    id: Annotated[
        str | None, Query(description="Continue the batch of this id: rows that it has are not added.")
    ] = None,
    name: Annotated[str, Query(max_length=200, description="For people.")] = "",
    key: Annotated[str | None, Query(description="The column that identifies rows. Default: their numbers.")] = None,
    priority: Annotated[int, Query(ge=1, le=5, description="Its share of the workers.")] = 3,
    parallel: Annotated[int | None, Query(gt=0, le=MOST_INT, description="Rows that may be active at once.")] = None,
    canary: Annotated[
        int | None, Query(gt=0, le=MOST_INT, description="Rows that run first; then it waits for `resume`.")
    ] = None,
    max_cost_usd: Annotated[float | None, Query(gt=0, description="Above it the batch waits for `resume`.")] = None,
    max_tokens: Annotated[int | None, Query(gt=0, le=MOST_INT, description="The same for tokens.")] = None,
    strict: Annotated[bool | None, Query(description="A row fails at every failed visit.")] = None,
    variables: Annotated[str | None, Query(description="Values of agent variables: a JSON object of texts.")] = None,
) -> BatchSubmitted:
    """The body has the rows, of any number: they are read as they come, and begin to run meanwhile. Rows that cannot
    run are left out. With an `id` an interrupted request can be repeated."""
    refused = RefusedRows()
    rows = read_from(UploadedRows(request.stream()), "rows", key, as_csv=_is_csv(request))  # type: ignore[arg-type]
    batch = await client_of(request).batch(
        agent, rows, id=id, name=name, key=key, priority=priority, parallel=parallel, canary=canary,
        max_cost_usd=max_cost_usd, max_tokens=max_tokens, strict=strict, variables=_variables(variables), scratch=True,
        on_bad=refused.add, namespace=request.app.state.namespace,
    )  # fmt: skip
    return _submitted(response, batch, refused)


def _submitted(response: Response, batch: AsyncBatch, refused: RefusedRows) -> BatchSubmitted:
    response.headers["Location"] = f"/api/v1/batches/{batch.id}"
    done = batch.batch.submitted
    assert done is not None
    return BatchSubmitted(id=batch.id, added=done.added, known=done.known, bad=done.bad, bad_rows=refused.rows)


def _is_csv(request: Request) -> bool:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in FORMATS:
        raise HttpProblem("unsupported-media-type", f"rows are sent as {', '.join(FORMATS)}, not {given[:60]!r}")
    return FORMATS[given]


def _variables(text: str | None) -> dict[str, str] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        wrong = {"field": "query.variables", "message": "must be a JSON object of texts"}
        raise HttpProblem("invalid-request", "query.variables: must be a JSON object of texts", {"errors": [wrong]})
    return found


@router.get("", operation_id="list_batches", summary="Batches, newest first")
@requires("viewer")
async def list_batches(
    request: Request,
    limit: Limit = 50,
    namespace: AskedNamespace = None,
    after: Annotated[
        str | None, Query(max_length=64, description="The id of the last batch of the page before.")
    ] = None,
) -> list[BatchDetail]:
    """The newest batches of a namespace, or those that began before the batch `after`."""
    seen = seen_namespace(request, namespace)
    return [BatchDetail.of(info) for info in await client_of(request).batches(limit, namespace=seen, after=after)]


@router.get("/{batch_id}", operation_id="get_batch", summary="One batch")
@requires("viewer")
async def get_batch(request: Request, batch_id: BatchId) -> BatchDetail:
    """State, rows by state, usage, rate and forecast."""
    return BatchDetail.of(await (await batch_of(request, batch_id)).info())


@router.get("/{batch_id}/errors", operation_id="list_batch_errors", summary="Why rows failed")
@requires("viewer")
async def list_batch_errors(
    request: Request,
    batch_id: BatchId,
    among: Annotated[
        int | None, Query(ge=1, le=MOST_INT, description="Only of so many failed rows, the first ones.")
    ] = None,
) -> list[ErrorGroup]:
    """Grouped by node and cause, the largest group first. All failed rows are read, unless `among` says how many."""
    return await (await batch_of(request, batch_id)).errors(among)


@router.get("/{batch_id}/rows", operation_id="list_batch_rows", summary="Rows with their runs")
@requires("viewer")
async def list_batch_rows(
    request: Request,
    batch_id: BatchId,
    state: Annotated[RowState | None, Query(description="Only rows in this state.")] = None,
    start: Annotated[int, Query(ge=0, le=MOST_INT, description="The first row; `after` of the page before.")] = 0,
    limit: Limit = 50,
) -> BatchRowPage:
    """In their order, from 0. A page may have fewer rows than asked for: `after` is null at the end."""
    return await (await batch_of(request, batch_id)).rows(state, start=start, limit=limit)


@router.get(
    "/{batch_id}/grid", operation_id="get_batch_grid", summary="All rows in cells, with the worst state in each"
)
@requires("viewer")
async def get_batch_grid(
    request: Request,
    batch_id: BatchId,
    cells: Annotated[int, Query(ge=1, le=MOST_CELLS, description="At most so many.")] = MOST_CELLS,
) -> RowGrid:
    """A picture of a batch of any size. The worst is `failed`, then `active`, `cancelled`, `waiting`, `completed`."""
    return await (await batch_of(request, batch_id)).grid(cells)


@router.get("/{batch_id}/ended-rows", operation_id="list_batch_ended_rows", summary="How many rows had ended when")
@requires("viewer")
async def list_batch_ended_rows(
    request: Request,
    batch_id: BatchId,
    points: Annotated[int, Query(ge=2, le=500, description="At most so many times.")] = 60,
) -> list[EndedRows]:
    """In order of time. Rates follow from the differences."""
    return await (await batch_of(request, batch_id)).ended_rows(points)


@router.get(
    "/{batch_id}/compare/{other_batch_id}", operation_id="compare_batches", summary="Rows of two batches side by side"
)
@requires("viewer")
async def compare_batches(
    request: Request,
    batch_id: BatchId,
    other_batch_id: BatchId,
    start: Annotated[int, Query(ge=0, le=MOST_INT, description="`after` of the page before.")] = 0,
    limit: Limit = 50,
) -> ComparisonPage:
    """Rows with the same keys: those of the first batch, then those that only the other has. A page may be empty:
    `after` is null at the end."""
    other = await batch_of(request, other_batch_id)
    return await (await batch_of(request, batch_id)).comparisons(other.id, start=start, limit=limit)


@router.get("/{batch_id}/results", operation_id="read_batch_results", summary="The ended rows", responses=LINES)
@requires("viewer")
async def read_batch_results(
    request: Request,
    batch_id: BatchId,
    order: Annotated[Literal["row", "done"], Query(description="By row, or as they ended.")] = "row",
    start: Annotated[int, Query(ge=0, le=MOST_INT, description="The `position` of the last result that was read.")] = 0,
    follow: Annotated[bool, Query(description="Wait for rows that have not ended.")] = False,
) -> Response:
    """One JSON object per line, read as it is sent. A response that is cut off has no end of its last chunk: go on with
    `start`."""
    batch = await batch_of(request, batch_id)
    await batch.info()

    async def results() -> AsyncIterator[dict[str, Any]]:
        async for result in batch.results(order, start=start, follow=follow):
            yield dict(vars(result))

    return JsonLines(results(), request.app.state.is_stopping)


@router.post("/{batch_id}/pause", operation_id="pause_batch", summary="Start no more rows")
@requires("operator")
async def pause_batch(request: Request, batch_id: BatchId, body: BatchPauseRequest | None = None) -> PausedRows:
    """Active rows go on; with `timeout_s` they are paused too."""
    batch = await batch_of(request, batch_id)
    steered = await batch.pause(timeout=(body or BatchPauseRequest()).timeout_s)
    return PausedRows(rows=steered.requested)


@router.post("/{batch_id}/resume", operation_id="resume_batch", summary="Resume a batch")
@requires("operator")
async def resume_batch(request: Request, batch_id: BatchId, body: BatchResumeRequest | None = None) -> BatchDetail:
    """Resume a batch that is paused, has run its canary rows, or is over its budget."""
    batch = await batch_of(request, batch_id)
    await batch.resume(**(body or BatchResumeRequest()).model_dump())
    return BatchDetail.of(await batch.info())


@router.post("/{batch_id}/parallel", operation_id="set_batch_parallel", summary="How many rows may be active at once")
@requires("operator")
async def set_batch_parallel(request: Request, batch_id: BatchId, body: ParallelRequest) -> BatchDetail:
    """Active rows go on."""
    batch = await batch_of(request, batch_id)
    await batch.set_parallel(body.parallel)
    return BatchDetail.of(await batch.info())


@router.post("/{batch_id}/retry-failed", operation_id="retry_failed_rows", summary="Continue all failed rows")
@requires("operator")
async def retry_failed_rows(request: Request, batch_id: BatchId) -> RetriedRows:
    """From where they failed, after the waiting rows."""
    return RetriedRows(rows=await (await batch_of(request, batch_id)).retry_failed())


@router.post("/{batch_id}/fork", status_code=201, operation_id="fork_batch", summary="Fork the rows of a batch")
@requires("operator")
async def fork_batch(
    request: Request, response: Response, batch_id: BatchId, body: BatchForkRequest | None = None
) -> BatchSubmitted:
    """A new batch, whose rows go on from the runs of the rows of this one, which stay as they are. Rows without a run
    are left out. With an `id` the request can be repeated."""
    refused = RefusedRows()
    source = await batch_of(request, batch_id)
    batch = await client_of(request).fork_batch(
        source.batch, on_bad=refused.add, **(body or BatchForkRequest()).model_dump()
    )
    return _submitted(response, batch, refused)


@router.post("/{batch_id}/cancel", operation_id="cancel_batch", summary="Cancel a batch")
@requires("operator")
async def cancel_batch(request: Request, batch_id: BatchId) -> CancelledBatch:
    """Start no more rows, and cancel active ones."""
    return CancelledBatch(cancelled=await (await batch_of(request, batch_id)).cancel())


async def batch_of(request: Request, batch_id: str) -> AsyncBatch:
    """The batch of that id or name. Others than those of the namespaces that the caller may see are not there."""
    own: str = request.app.state.namespace
    seen = ANY_NAMESPACE if caller_of(request).may("viewer", everywhere=True) else own
    return await client_of(request).open_batch(batch_id, namespace=seen)
