"""What a job would do, before it is submitted: how many runs it is for, and what can be said with it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from sleipnir.jobs.records import MOST_RUNS, STATUSES_OF, JobAction, JobPreview
from sleipnir_console.asked_runs import AskedRuns
from sleipnir_console.pages.forms import REFUSALS, body_of, number_of, refusal_of, typed
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.runs_page import FILTERS
from sleipnir_console.permissions import requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.jobs import NewJob, WantedRuns, preview_job, submit_job

router = APIRouter(route_class=PageRoute)

FIELDS: Final = ("why", "rate", "before", "agent", "model")
OWN: Final = ("action", "run", "all")
"""Parameters that are no filter."""


@dataclass(frozen=True)
class JobWords:
    """`verb` is that of the button, `can` says what its runs are, `means` what happens to each."""

    verb: str
    can: str
    means: str
    destroys: bool = False


WORDS: Final[Mapping[JobAction, JobWords]] = {
    "retry": JobWords("Retry", "failed", "Each goes on from what failed, with its current state."),
    "fork": JobWords("Fork", "of any state", "A new run goes on from an earlier step of each. They stay as they are."),
    "pause": JobWords("Pause", "not over, and not paused", "Active visits finish; no other visit starts."),
    "resume": JobWords("Resume", "paused", "Each goes on, also past a breakpoint."),
    "cancel": JobWords("Cancel", "not over", "Scripts and model calls stop within one heartbeat. It cannot be undone.",
                          destroys=True),
}  # fmt: skip


class AskedJob(AskedRuns):
    """The runs of a job, in the URL: those that are named, or with `all` those that fit the filters."""

    action: JobAction
    run: list[Annotated[str, Field(max_length=64)]] = Field(default=[], max_length=MOST_RUNS)
    all: bool = False


@router.get("/new-job", operation_id="show_new_job")
@requires("operator")
async def show_new_job(request: Request, asked: Annotated[AskedJob, Query()]) -> Response:
    """Counts the runs, and asks. Nothing is done."""
    return await _page(request, asked)


@router.post("/new-job", operation_id="send_new_job")
@requires("operator")
async def send_new_job(request: Request, asked: Annotated[AskedJob, Query()]) -> Response:
    """Submits the job. Sent twice, it is one job."""
    form = form_of(request)
    try:
        rate = number_of(form, "rate")
        body = body_of(request, NewJob, **_wanted(asked), **({} if rate is None else {"rate": rate}))
        job = await submit_job(request, Response(), body, form.get("request") or secrets.token_hex(16))
    except REFUSALS as error:
        return await _page(request, asked, error)
    return next_page(f"/jobs/{job.id}")


def _wanted(asked: AskedJob) -> dict[str, Any]:
    if not asked.all:
        if not asked.run:
            raise HttpProblem("refused", "select runs first, or all that fit")
        return {"action": asked.action, "runs": asked.run}
    filters = asked.model_dump(include=set(AskedRuns.model_fields))
    return {"action": asked.action, "filter": AskedRuns(**filters)}


async def _page(request: Request, asked: AskedJob, error: Exception | None = None) -> Response:
    refused = None if error is None else refusal_of(request, error)
    seen: JobPreview | None = None
    try:
        seen = await preview_job(request, WantedRuns(**_wanted(asked)))
    except REFUSALS as why:
        refused = refused or refusal_of(request, why)
    words = WORDS[asked.action]
    given = request.query_params.multi_items()
    filters = [(FILTERS.get(name, name), value) for name, value in given if name not in OWN] if asked.all else []
    number = (
        "" if seen is None else f"{'' if seen.is_exact else 'over '}{seen.count:,} run{'s' if seen.count != 1 else ''}"
    )
    back = [(name, value) for name, value in given if name not in OWN]
    return render(
        request, "new_job.html", status=200 if refused is None else refused.kind.status,
        title=f"{words.verb} {number or 'runs'}?", words=words, seen=seen, number=number, action=asked.action,
        filters=filters, is_all=asked.all, selected=len(asked.run), refused=refused, typed=typed(request, *FIELDS),
        statuses=sorted(STATUSES_OF[asked.action]), send=f"/new-job?{urlencode(given)}",
        back="/runs" + (f"?{urlencode(back)}" if back else ""), request_id=secrets.token_hex(16),
        body=_body(asked, back),
    )  # fmt: skip


def _body(asked: AskedJob, filters: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The body of the same call of the API."""
    if not asked.all:
        return {"action": asked.action, "runs": asked.run[:3] + (["..."] if len(asked.run) > 3 else [])}
    lists = [name for name, info in AskedRuns.model_fields.items() if info.default == []]
    found: dict[str, Any] = {}
    for name, value in filters:
        if name in lists:
            found.setdefault(name, []).append(value)
        else:
            found[name] = value
    return {"action": asked.action, "filter": found}
