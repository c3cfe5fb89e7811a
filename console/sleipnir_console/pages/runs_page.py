"""The runs: filters in the URL, counts by state, pages by cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from sleipnir.errors import RunNotFound
from sleipnir.runs.run_filters import ANY_NAMESPACE, RunCounts
from sleipnir.runs.views import RunInfo
from sleipnir_console.asked_runs import AskedPage
from sleipnir_console.connection import client_of
from sleipnir_console.pages.page_route import PageRoute, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_search import may_be_run, parameters_of
from sleipnir_console.pages.run_states import Colour, StateSummary, state_of
from sleipnir_console.permissions import caller_of, requires

router = APIRouter(route_class=PageRoute)

Parameters = Sequence[tuple[str, str]]
CHOSEN: Final = ("status", "reason")
"""The parameters that a view chooses; the others are filters beside it."""
NEVER_KEPT: Final = ("after", "q", "limit")
MOST_COUNTED: Final = 2_000
"""Runs that are counted one by one, where no list has the number: each page that is open counts again every few
seconds, and 10,000 take a fifth of a second."""


@dataclass(frozen=True)
class View:
    """A list that is one click away. `standings` are what its number counts; None: all."""

    label: str
    query: Parameters
    standings: tuple[str, ...] | None = None
    is_due: bool = False


VIEWS: Final = (
    View("All", ()),
    View("Live", (("status", "submitted"), ("status", "running"), ("status", "waiting"), ("status", "paused")),
         ("submitted", "running", "waiting", "paused")),
    View("Wait for a person", (("status", "waiting"), ("reason", "person")), ("waiting:person",), is_due=True),
    View("Failed", (("status", "failed"),), ("failed",)),
)  # fmt: skip
COUNTED: Final[tuple[tuple[Colour, str, str, Parameters], ...]] = (
    ("running", "running", "running", (("status", "running"),)),
    ("person", "waiting:person", "wait for a person", (("status", "waiting"), ("reason", "person"))),
    ("waiting", "waiting", "wait", (("status", "waiting"),)),
    ("paused", "paused", "paused", (("status", "paused"),)),
    ("completed", "completed", "completed", (("status", "completed"),)),
    ("failed", "failed", "failed", (("status", "failed"),)),
    ("cancelled", "cancelled", "cancelled", (("status", "cancelled"),)),
)
STEERING: Final = (
    ("retry", "Retry", "retry"), ("fork", "Fork", "fork"), ("pause", "Pause", "pause"),
    ("resume", "Resume", "s-running"), ("cancel", "Cancel", "stop"),
)  # fmt: skip
"""What can be asked of selected runs: action, button, icon."""
FILTERS: Final[Mapping[str, str]] = {
    "agent": "agent", "version": "version", "tag": "tag", "batch": "batch", "thread": "thread", "parent": "parent",
    "node": "failed at", "text": "failed with", "fingerprint": "failure", "cost_min": "cost from",
    "cost_max": "cost to",
    "since_ms": "since", "before_ms": "before", "ended_since_ms": "ended since", "ended_before_ms": "ended before",
    "namespace": "namespace", "children": "children", "rows": "rows of batches", "status": "state", "reason": "reason",
}  # fmt: skip
"""The words for filters."""


class AskedRunsPage(AskedPage):
    """What the page is asked for. `q` is the text of its search field."""

    q: str | None = Field(default=None, max_length=1_000)


@dataclass(frozen=True)
class FilterLink:
    """A filter that is set, and the page without it."""

    name: str
    value: str
    without: str


@dataclass(frozen=True)
class CountLink:
    """How many runs are in a state, and their list."""

    colour: Colour
    count: int
    label: str
    path: str
    is_chosen: bool


@dataclass(frozen=True)
class RunRow:
    """A run of the table."""

    run: RunInfo
    state: StateSummary
    took_ms: int
    tags: tuple[str, ...]


@router.get("/runs", operation_id="show_runs")
@requires("viewer")
@same_as("/runs")
async def show_runs(request: Request, asked: Annotated[AskedRunsPage, Query()]) -> Response:
    """A page of runs, newest first. A search is turned into filters, or opens the run that it names."""
    given = [(name, value) for name, value in request.query_params.multi_items() if name not in NEVER_KEPT]
    if asked.q is not None:
        return next_page(await _found(request, asked.q, given))
    client = client_of(request)
    query = asked.query(request)
    is_of_all = query["namespace"] == ANY_NAMESPACE  # whose numbers are in no rollup
    counts = RunCounts({}, {}, True) if is_of_all else await client.run_counts(
        namespace=query["namespace"], children=asked.children, rows=asked.rows
    )  # fmt: skip
    page = await client.runs(asked.limit, after=asked.after, **query)
    now_ms = await client.now_ms()
    beside = [pair for pair in given if pair[0] not in CHOSEN]
    is_plain = not is_of_all and not [name for name, _ in beside if name not in ("namespace", "children", "rows")]
    fitting = None if is_plain else await client.run_count(among=MOST_COUNTED, **{**query, "children": asked.children})
    return render(
        request,
        "runs.html",
        title=_title(given),
        rows=[_row(run, now_ms) for run in page],
        chips=[_chip(given, place) for place in range(len(given))],
        views=[(view, _path([*beside, *view.query]), _number(view.standings, counts) if is_plain else None,
                _chosen(given) == sorted(view.query)) for view in VIEWS],
        counts=_count_links(counts, given, beside) if is_plain else [],
        is_exact=counts.is_exact,
        fitting=fitting,
        kept=given,
        first=_path([pair for pair in given]),
        is_first=asked.after is None,
        next=None if page.after is None else _path([*given, ("after", page.after)]),
        looked=page.looked,
        live=_path([*given, ("limit", str(asked.limit)), ("after", _anchor(page, asked.after))]),
        total=_total(counts, given) if fitting is None else int(fitting) if fitting.is_exact else None,
        api=f"/api/v1{_path(given)}",
        now_ms=now_ms,
        clear="/runs",
        text=asked.text,
        steering=STEERING if caller_of(request).may("operator") else (),
    )  # fmt: skip


def _total(counts: RunCounts, given: Parameters) -> int:
    """The number of runs of a view, in which the page tells of new ones."""
    view = next((view for view in VIEWS if sorted(view.query) == _chosen(given)), None)
    return _number(None if view is None else view.standings, counts)


def _anchor(page: Sequence[RunInfo], after: str | None) -> str:
    """A cursor before the first run of the page, so that the page which is asked for again has the same runs."""
    if after is not None:
        return after
    return f"{page[0].created_ms + 1 if page else 0}.0"


async def _found(request: Request, text: str, given: Parameters) -> str:
    if may_be_run(text):
        try:
            return f"/runs/{(await client_of(request).run(text.strip())).id}"
        except RunNotFound:
            pass
    added = parameters_of(text)
    single = {name for name, _ in added} - {"tag", "agent", "status", "reason"}
    return _path([*(pair for pair in given if pair[0] not in single), *added])


def _path(parameters: Parameters) -> str:
    pairs = list(dict.fromkeys((name, value) for name, value in parameters if value != ""))
    return "/runs" + (f"?{urlencode(pairs)}" if pairs else "")


def _chosen(given: Parameters) -> list[tuple[str, str]]:
    return sorted(pair for pair in given if pair[0] in CHOSEN)


def _chip(given: Parameters, place: int) -> FilterLink:
    name, value = given[place]
    return FilterLink(FILTERS.get(name, name), value, _path([*given[:place], *given[place + 1 :]]))


def _title(given: Parameters) -> str:
    named = [f"{FILTERS.get(name, name)} {value}" for name, value in given]
    return "Runs" + (f": {', '.join(named)}"[:120] if named else "")


def _number(standings: tuple[str, ...] | None, counts: RunCounts) -> int:
    wanted = counts.counts.items()
    return sum(
        number
        for standing, number in wanted
        if standings is None or standing in standings or standing.partition(":")[0] in standings
    )


def _count_links(counts: RunCounts, given: Parameters, beside: Parameters) -> list[CountLink]:
    links = []
    for colour, standing, label, query in COUNTED:
        number = _number((standing,), counts)
        if standing == "waiting":
            number -= counts.counts.get("waiting:person", 0)
            query = (*query, *(("reason", each.partition(":")[2]) for each in counts.counts
                               if each.startswith("waiting:") and each != "waiting:person"))  # fmt: skip
        links.append(CountLink(colour, number, label, _path([*beside, *query]), _chosen(given) == sorted(query)))
    return links


def _row(run: RunInfo, now_ms: int) -> RunRow:
    begun = run.started_ms or run.created_ms
    took_ms = max(0, (run.ended_ms or now_ms) - (begun if run.is_final else run.created_ms))
    return RunRow(run, state_of(run, now_ms), took_ms, tuple(f"{key}={value}" for key, value in run.tags.items()))
