"""The form for a new batch: a file of rows, or a few pasted ones, which begin to run while the rest is read."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from sleipnir.batches.records import DEFAULT_PRIORITY, PRIORITIES
from sleipnir.batches.rows import BadRow, Row, read_from
from sleipnir.client.async_client import AsyncBatch
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import REFUSALS, body_of, number_of, refusal_of, typed
from sleipnir_console.pages.page_route import UploadRoute, form_of, next_page, upload_of
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.agents import list_agents
from sleipnir_console.routes.batches import RefusedRows
from sleipnir_console.strict_model import MOST_INT, AgentName, StrictModel
from sleipnir_console.uploaded_rows import UploadedRows

router = APIRouter(route_class=UploadRoute)

FIELDS: Final = (
    "agent", "name", "key", "priority", "parallel", "canary", "max_cost_usd", "variables", "rows", "format",
)  # fmt: skip
NUMBERS: Final = ("priority", "parallel", "canary", "max_cost_usd")
FORMATS: Final = (("auto", "By its name, or its first character"), ("jsonl", "JSON lines"), ("csv", "CSV"))


class NewBatch(StrictModel):
    """What the form has beside the rows."""

    agent: AgentName
    id: str = Field(pattern=r"^[0-9a-f]{12}$", description="Sent again, the form continues this batch.")
    name: str = Field(default="", max_length=200)
    key: str | None = Field(default=None, max_length=200)
    priority: int = Field(default=DEFAULT_PRIORITY, ge=PRIORITIES[0], le=PRIORITIES[-1])
    parallel: int | None = Field(default=None, gt=0, le=MOST_INT)
    canary: int | None = Field(default=None, gt=0, le=MOST_INT)
    max_cost_usd: Annotated[float, Field(strict=False)] | None = Field(default=None, gt=0)


@router.get("/new-batch", operation_id="show_new_batch")
@requires("operator")
async def show_new_batch(request: Request, agent: str = "") -> Response:
    """The form."""
    return await _form(request, agent=agent)


@router.post("/new-batch", operation_id="send_new_batch")
@requires("operator")
async def send_new_batch(request: Request) -> Response:
    """Submits a batch. What cannot be submitted is shown again with the reason. Sent again, it continues the batch."""
    refused = RefusedRows()
    try:
        batch = await _submitted(request, refused)
    except REFUSALS as error:
        if (upload := upload_of(request)) is not None:
            await upload.drain()
        return await _form(request, error)
    done = batch.batch.submitted
    if done is None or not done.bad:
        return next_page(f"/batches/{batch.id}")
    info = await batch.info()
    return render(request, "batch_submitted.html", title=f"{done.bad:,} rows were left out", info=info, done=done,
                  refused=refused.rows)  # fmt: skip


async def _submitted(request: Request, refused: RefusedRows) -> AsyncBatch:
    form, upload = form_of(request), upload_of(request)
    numbers = {name: number for name in NUMBERS if (number := number_of(form, name)) is not None}
    body = body_of(request, NewBatch, **numbers)
    variables = _variables(form.get("variables", ""))
    if upload is not None and upload.file_name:
        pieces, name = upload.pieces(), upload.file_name
    elif form.get("rows", "").strip():
        pieces, name = _pasted(form["rows"]), "rows"
    else:
        raise HttpProblem("refused", "choose a file with rows, or paste some")
    rows = _rows(UploadedRows(pieces), name, form.get("format", "auto"), body.key)
    return await client_of(request).batch(
        body.agent, rows, id=body.id, name=body.name, key=body.key, priority=body.priority, parallel=body.parallel,
        canary=body.canary, max_cost_usd=body.max_cost_usd, variables=variables, scratch=True, on_bad=refused.add,
        namespace=request.app.state.namespace,
    )  # fmt: skip


def _rows(file: UploadedRows, name: str, format: str, key: str | None) -> Iterator[Row | BadRow]:
    """The rows, read where the client may wait for them."""
    is_csv = format == "csv" or (format == "auto" and _looks_like_csv(name, file))
    yield from read_from(file, name[:80], key, as_csv=is_csv)  # type: ignore[arg-type]


def _looks_like_csv(name: str, file: UploadedRows) -> bool:
    ending = name.lower().rpartition(".")[2]
    if ending in ("csv", "jsonl", "json", "ndjson"):
        return ending == "csv"
    return not file.peek(16).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


async def _pasted(text: str) -> AsyncIterator[bytes]:
    yield text.encode("utf-8", "replace")


def _variables(text: str) -> dict[str, str] | None:
    """`name=value` in each line."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise HttpProblem("refused", f"a variable is given as name=value, not {line!r:.60}")
        found[name.strip()] = value.strip()
    return found or None


async def _form(request: Request, error: Exception | None = None, agent: str = "") -> Response:
    refused = None if error is None else refusal_of(request, error)
    given = {"agent": agent, "priority": str(DEFAULT_PRIORITY)} if refused is None else {}
    sent = form_of(request) if refused is not None else {}
    return render(
        request, "new_batch.html", status=200 if refused is None else refused.kind.status, title="New batch",
        refused=refused, typed={**typed(request, *FIELDS), **given}, formats=FORMATS,
        batch_id=sent.get("id") or secrets.token_hex(6), agents=[each.name for each in await list_agents(request)],
    )  # fmt: skip
