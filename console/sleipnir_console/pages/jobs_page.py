"""Jobs: the list, and one: what it asks of which runs, how far it is, what was refused and why, and stopping it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir.jobs.records import MOST_RATE, JobInfo, JobState
from sleipnir.runs.plain_text import one_line
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.pages.new_job_page import WORDS
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_states import MOST_REASON, Colour, StateSummary
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.jobs import JobId, StopRequest, stop_job

router = APIRouter(route_class=PageRoute)

STATES: Final[Mapping[JobState, tuple[Colour, str]]] = {
    "waiting": ("submitted", "Begins soon"), "running": ("running", "Running"),
    "stopping": ("cancelled", "Is being stopped"), "done": ("completed", "Done"), "stopped": ("cancelled", "Stopped"),
}  # fmt: skip
SHOWN_REFUSALS: Final = 200
PARAMETERS: Final[Mapping[str, str]] = {
    "statuses": "status", "reasons": "reason", "agents": "agent", "tags": "tag", "with_children": "children",
    "with_rows": "rows",
}  # fmt: skip
"""Fields of a stored filter, and the parameters of `/runs` that they are."""


@dataclass(frozen=True)
class JobRow:
    """A job as pages show it. `parts`: words, number, fill, and from where to where of the bar each is, in percent."""

    job: JobInfo
    state: StateSummary
    title: str
    parts: Sequence[tuple[str, int, str, float, float]]
    left: int

    @property
    def words(self) -> str:
        return ", ".join(f"{number:,} {word.lower()}" for word, number, *_ in self.parts)


@router.get("/jobs", operation_id="show_jobs")
@requires("viewer")
@same_as("/jobs")
async def show_jobs(
    request: Request,
    after: Annotated[str | None, Query(max_length=20)] = None,
    namespace: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """A page of jobs, the newest first."""
    client = client_of(request)
    now_ms = await client.now_ms()
    found = await client.jobs.page(50, after=after, namespace=seen_namespace(request, namespace))
    kept = {} if namespace is None else {"namespace": namespace}
    return render(
        request, "jobs.html", title="Jobs", rows=[row_of(job, now_ms) for job in found], is_first=after is None,
        first="/jobs" + (f"?{urlencode(kept)}" if kept else ""), now_ms=now_ms,
        next=None if found.after is None else f"/jobs?{urlencode({**kept, 'after': found.after})}",
    )  # fmt: skip


@router.get("/jobs/{job_id}", operation_id="show_job")
@requires("viewer")
@same_as("/jobs/{job_id}")
async def show_job(request: Request, job_id: JobId) -> Response:
    """One job."""
    client = client_of(request)
    job = await client.jobs.get(job_id)
    if job.unreadable is not None:
        raise HttpProblem("unreadable-record", job.unreadable)
    now_ms = await client.now_ms()
    row = row_of(job, now_ms)
    refusals = await client.jobs.refusals(job_id, SHOWN_REFUSALS) if job.progress.refused else []
    begun = job.progress.started_ms
    took_ms = None if begun is None else (job.progress.ended_ms or now_ms) - begun
    asked = job.progress.done + job.progress.refused
    return render(
        request, "job.html", title=f"{row.state.word}: {row.title}", row=row, job=job, refusals=refusals,
        begins_s=max(0, -(-(job.plan.start_ms - now_ms) // 1000)), took_ms=took_ms,
        rate=asked * 1000 / took_ms if took_ms and asked else None, most_rate=job.plan.rate or MOST_RATE,
        filter_path=_path_of(job), filters=_filters(job), may_stop=caller_of(request).may("operator"),
        api=f"/api/v1/jobs/{job.id}", now_ms=now_ms,
    )  # fmt: skip


@router.post("/jobs/{job_id}/stop", operation_id="send_job_stop")
@requires("operator")
async def send_job_stop(request: Request, job_id: JobId) -> Response:
    """Lets it ask no more runs."""
    await stop_job(request, job_id, StopRequest(why=form_of(request).get("why", "").strip()[:1_000]))
    return next_page(f"/jobs/{job_id}")


def row_of(job: JobInfo, now_ms: int) -> JobRow:
    """A job of a list."""
    if job.unreadable is not None:
        state = StateSummary("failed", "Cannot be read", one_line(job.unreadable, MOST_REASON))
        return JobRow(job, state, job.id, (), 0)
    progress, plan = job.progress, job.plan
    colour, word = STATES[progress.state]
    reason = ""
    if progress.stopped_by is not None:
        reason = one_line(f"by {progress.stopped_by}" + (f": {progress.stopped_why}" if progress.stopped_why else ""),
                          MOST_REASON)  # fmt: skip
    if progress.state == "done" and progress.refused:
        colour, reason = "partial", f"{progress.refused:,} refused"
    counts = (("Asked", progress.done, "ok"), ("Needed nothing", progress.left, "off"),
              ("Refused", progress.refused, "bad"))  # fmt: skip
    known = sum(number for _, number, _ in counts)
    whole, at, parts = max(plan.expected, known, 1), 0.0, []
    for name, number, fill in counts:
        width = 100 * number / whole
        parts.append((name, number, fill, round(at, 3), round(width, 3)))
        at += width
    over = "" if plan.is_exact else "over "
    title = f"{WORDS[plan.action].verb} {over}{plan.expected:,} run{'s' if plan.expected != 1 else ''}"
    return JobRow(job, StateSummary(colour, word, reason), title, parts,
                  0 if progress.is_over else max(0, plan.expected - known))  # fmt: skip


def _filters(job: JobInfo) -> list[tuple[str, str]]:
    """The filter of a job as parameters of `/runs`."""
    found: list[tuple[str, str]] = []
    for name, value in job.plan.filter.items():
        parameter = PARAMETERS.get(name, name)
        if isinstance(value, Mapping):
            found += [(parameter, f"{key}={text}") for key, text in value.items()]
        elif isinstance(value, list):
            found += [(parameter, str(each)) for each in value]
        elif isinstance(value, bool):
            found.append((parameter, "true" if value else "false"))
        else:
            found.append((parameter, str(value)))
    return found


def _path_of(job: JobInfo) -> str | None:
    """The list of the runs that fit now. They may be others than those that were asked."""
    pairs: list[tuple[str, Any]] = [pair for pair in _filters(job) if pair[0] != "before_ms"]
    return f"/runs?{urlencode(pairs)}" if job.plan.filter else None
