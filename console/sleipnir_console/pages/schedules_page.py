"""Schedules: the list, one with its fires, and the form for a new one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from sleipnir.client.async_client import AsyncSchedule
from sleipnir.schedules.records import Fire, ScheduledRun, ScheduleInfo, SchedulePlan
from sleipnir.schedules.words import fire_in_words, in_zone, when
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import REFUSALS, body_of, refusal_of, typed
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_states import Colour, StateSummary
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.routes.schedules import NewSchedule, ScheduleName, add_schedule
from sleipnir_console.strict_model import Limit

router = APIRouter(route_class=PageRoute)

SHOWN_FIRES: Final = 100
STATES: Final[Mapping[str, tuple[Colour, str]]] = {
    "active": ("running", "Active"), "paused": ("paused", "Paused"), "over": ("completed", "Over"),
    "unreadable": ("failed", "Unreadable"),
}  # fmt: skip
FIELDS: Final = ("name", "agent", "prompt", "timing", "time", "tz", "overlap", "catch_up", "jitter")
TIMINGS: Final = (("cron", "Cron expression"), ("every", "Interval"), ("at", "Once, at a time"))
OVERLAPS: Final = (
    ("skip", "Skip the fire"), ("queue", "Let it wait, one at most"), ("allow", "Start it too"),
    ("cancel", "Cancel the run before"),
)  # fmt: skip

Action: TypeAlias = Literal["pause", "resume", "run-now", "remove"]


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule of the table. `when` is its plan in words; `paused`: by whom, and why."""

    info: ScheduleInfo
    state: StateSummary
    when: str


@dataclass(frozen=True)
class FireRow:
    """A fire of the log, with what became of it in words."""

    fire: Fire
    at: str
    words: str
    colour: Colour


@router.get("/schedules", operation_id="show_schedules")
@requires("viewer")
@same_as("/schedules")
async def show_schedules(
    request: Request,
    limit: Limit = 50,
    after: Annotated[str | None, Query(max_length=64)] = None,
    namespace: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """A page of schedules, by name."""
    client = client_of(request)
    seen = seen_namespace(request, namespace) or request.app.state.namespace
    found = await client.schedules(limit, after=after, namespace=None if seen == "*" else seen)
    kept = {} if namespace is None else {"namespace": namespace}
    following = None if found.after is None else f"/schedules?{urlencode({**kept, 'after': found.after})}"
    return render(
        request, "schedules.html", title="Schedules", rows=[_row(info) for info in found], next=following,
        is_first=after is None, first=f"/schedules?{urlencode(kept)}" if kept else "/schedules",
        may_add=caller_of(request).may("operator"), now_ms=await client.now_ms(),
    )  # fmt: skip


@router.get("/new-schedule", operation_id="show_new_schedule")
@requires("operator")
async def show_new_schedule(request: Request) -> Response:
    """The form for a new schedule."""
    return await _form(request)


@router.post("/new-schedule", operation_id="send_new_schedule")
@requires("operator")
async def send_new_schedule(request: Request) -> Response:
    """Adds a schedule. What cannot be added is shown again with the reason."""
    form = form_of(request)
    try:
        timing = form.get("timing", "")
        given = {timing: form.get("time", "").strip()} if timing in dict(TIMINGS) else {}
        body = body_of(request, NewSchedule, **given)
        await add_schedule(request, Response(), body)
    except REFUSALS as error:
        return await _form(request, error)
    return next_page(f"/schedules/{quote(body.name)}")


@router.get("/schedules/{schedule}", operation_id="show_schedule")
@requires("viewer")
@same_as("/schedules/{schedule}")
async def show_schedule(request: Request, schedule: ScheduleName) -> Response:
    """One schedule: its plan, its next times, its last fires with their runs, and what can be done with it."""
    client = client_of(request)
    opened = await client.open_schedule(schedule)
    info = await opened.info()
    fires, runs = await opened.fires(SHOWN_FIRES), await opened.runs(SHOWN_FIRES)
    found = {run.id: run for run in runs}
    row = _row(info)
    return render(
        request, "schedule.html", title=f"{row.state.word}: schedule {info.name}", row=row, info=info,
        next=[in_zone(ms, info.plan.tz) for ms in info.next] if info.state == "active" else [],
        fires=[_fire_row(fire, found.get(fire.run or ""), info.plan) for fire in fires],
        may_steer=caller_of(request).may("operator") and info.unreadable is None,
        api=f"/api/v1/schedules/{quote(info.name)}", now_ms=await client.now_ms(),
    )  # fmt: skip


@router.post("/schedules/{schedule}/{action}", operation_id="steer_schedule")
@requires("operator")
async def steer_schedule(request: Request, schedule: ScheduleName, action: Annotated[Action, Path()]) -> Response:
    """Does what a button of the page says."""
    opened = await client_of(request).open_schedule(schedule)
    return next_page(await _ACTIONS[action](opened, form_of(request).get("reason", "").strip()))


async def _pause(schedule: AsyncSchedule, reason: str) -> str:
    await schedule.pause(reason)
    return f"/schedules/{quote(schedule.name)}"


async def _resume(schedule: AsyncSchedule, reason: str) -> str:
    await schedule.resume()
    return f"/schedules/{quote(schedule.name)}"


async def _run_now(schedule: AsyncSchedule, reason: str) -> str:
    if (await schedule.info()).plan.batch is not None:
        return f"/batches/{(await schedule.batch_now()).id}"
    return f"/runs/{(await schedule.run_now()).id}"


async def _remove(schedule: AsyncSchedule, reason: str) -> str:
    await schedule.remove(reason)
    return "/schedules"


_ACTIONS: Final[Mapping[Action, Callable[[AsyncSchedule, str], Awaitable[str]]]] = {
    "pause": _pause, "resume": _resume, "run-now": _run_now, "remove": _remove,
}  # fmt: skip
"""Each returns the path of the page to show then."""


async def _form(request: Request, error: Exception | None = None) -> Response:
    refused = None if error is None else refusal_of(request, error)
    given = {"timing": "cron", "tz": "UTC", "overlap": "skip"} if refused is None else {}
    return render(
        request, "new_schedule.html", status=200 if refused is None else refused.kind.status, title="New schedule",
        refused=refused, typed={**typed(request, *FIELDS), **given}, timings=TIMINGS, overlaps=OVERLAPS,
    )  # fmt: skip


def _row(info: ScheduleInfo) -> ScheduleRow:
    colour, word = STATES[info.state]
    paused = info.progress.paused
    reason = info.unreadable or ""
    if paused is not None:
        reason = f"by {paused.by}" + (f": {paused.reason}" if paused.reason else "")
    return ScheduleRow(info, StateSummary(colour, word, reason), "" if info.unreadable else when(info.plan))


def _fire_row(fire: Fire, run: ScheduledRun | None, plan: SchedulePlan) -> FireRow:
    status = None if run is None else run.status
    state = None if run is None else run.batch or run.status
    colour: Colour = "submitted" if status is None or fire.outcome != "started" else status
    words = fire_in_words(fire, state, plan.work).removeprefix(f"{plan.work} {fire.run} ")
    return FireRow(fire, in_zone(fire.at_ms, plan.tz), words.removeprefix(f"{fire.outcome}: "), colour)
