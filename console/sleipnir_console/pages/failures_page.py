"""Failed runs in groups that failed alike, and one group with a sample and its runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from sleipnir.jobs.records import JobAction
from sleipnir.runs.run_filters import FailureGroup
from sleipnir.runs.views import RunInfo
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import body_of
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_states import StateSummary
from sleipnir_console.pages.runs_page import FilterLink
from sleipnir_console.permissions import caller_of, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.failures import (
    DiscardRequest,
    Fingerprint,
    ReopenRequest,
    discard_failures,
    reopen_failures,
)
from sleipnir_console.strict_model import StrictModel

router = APIRouter(route_class=PageRoute)

Last: TypeAlias = Literal["1h", "1d", "7d"]
SPANS: Final[dict[Last, tuple[str, int]]] = {
    "1h": ("Last hour", 3_600_000), "1d": ("Last 24 hours", 24 * 3_600_000), "7d": ("Last 7 days", 7 * 24 * 3_600_000),
}  # fmt: skip
MOST_GROUPS: Final = 100
MOST_RUNS: Final = 20
MOST_VERSIONS: Final = 20
FRESH_MS: Final = 24 * 3_600_000
WORDS: Final = ("agent", "node", "text")
"""The filters beside `last`, which a search names with a colon."""


class AskedFailures(StrictModel):
    """The filters of the page. `q` is the text of its search field, `version` that of the group that is shown."""

    agent: str | None = Field(default=None, max_length=500)
    node: str | None = Field(default=None, max_length=500)
    text: str | None = Field(default=None, max_length=500)
    last: Last | None = None
    version: str | None = Field(default=None, max_length=100)
    q: str | None = Field(default=None, max_length=1_000)

    def pairs(self, *without: str) -> list[tuple[str, str]]:
        """The filters that are set, as parameters."""
        given = (("agent", self.agent), ("node", self.node), ("text", self.text), ("last", self.last))
        return [(name, value) for name, value in given if value and name not in without]


@dataclass(frozen=True)
class GroupRow:
    """A group of the list. `tag` says whether its first failure is of the last 24 hours."""

    group: FailureGroup
    path: str
    is_new: bool
    is_shown: bool


@dataclass(frozen=True)
class GroupDetail:
    """A group with all that is shown of it. `others` are the same failure in other versions, `filters` choose its
    runs."""

    group: FailureGroup
    sample: RunInfo | None
    runs: Sequence[RunInfo]
    others: Sequence[FailureGroup]
    filters: Sequence[tuple[str, str]]

    @property
    def list_path(self) -> str:
        return f"/runs?{urlencode(self.filters)}"

    def job_path(self, action: JobAction) -> str:
        """The page that counts its runs before a job asks them."""
        return f"/new-job?{urlencode([('action', action), ('all', 'true'), *self.filters])}"


@router.get("/failures", operation_id="show_failures")
@requires("viewer")
@same_as("/failures")
async def show_failures(request: Request, asked: Annotated[AskedFailures, Query()]) -> Response:
    """Groups, the latest failure first, with the first one beside them."""
    if asked.q is not None:
        return next_page(_path("", [*asked.pairs(*dict(_searched(asked.q))), *_searched(asked.q)]))
    groups = await _groups(request, asked)
    shown = await _shown(request, groups[0]) if groups else None
    return await _page(request, asked, groups, shown, is_one=False)


@router.get("/failures/{fingerprint}", operation_id="show_failure_group")
@requires("viewer")
@same_as("/failures?fingerprint={fingerprint}")
async def show_failure_group(
    request: Request,
    fingerprint: Fingerprint,
    asked: Annotated[AskedFailures, Query()],
) -> Response:
    """One group: of a version, or of the one that failed last."""
    namespace = seen_namespace(request, None)
    found = await client_of(request).failures(fingerprint=fingerprint, limit=MOST_VERSIONS, namespace=namespace)
    group = next((each for each in found if asked.version in (None, each.version)), None)
    if group is None:
        raise HttpProblem(
            "not-found", "No failed run has this failure any more: its runs were retried, or have expired."
        )
    return await _page(request, asked, await _groups(request, asked), await _shown(request, group), is_one=True)


@router.post("/failures/{fingerprint}/discard", operation_id="send_discard")
@requires("operator")
async def send_discard(request: Request, fingerprint: Fingerprint) -> Response:
    """Notes what was done about a group."""
    await discard_failures(request, fingerprint, body_of(request, DiscardRequest))
    return _group_again(request, fingerprint)


@router.post("/failures/{fingerprint}/reopen", operation_id="send_reopen")
@requires("operator")
async def send_reopen(request: Request, fingerprint: Fingerprint) -> Response:
    """Takes the note of a group back."""
    await reopen_failures(request, fingerprint, ReopenRequest())
    return _group_again(request, fingerprint)


def _group_again(request: Request, fingerprint: str) -> Response:
    version = form_of(request).get("version", "")
    return next_page(_path(f"/{quote(fingerprint, safe='')}", [("version", version)] if version else []))


async def _groups(request: Request, asked: AskedFailures) -> list[FailureGroup]:
    client = client_of(request)
    since_ms = None if asked.last is None else await client.now_ms() - SPANS[asked.last][1]
    found = await client.failures(
        agent=asked.agent,
        node=asked.node,
        since_ms=since_ms,
        limit=500 if asked.text else MOST_GROUPS + 1,
        namespace=seen_namespace(request, None),
    )
    if asked.text:
        found = [group for group in found if asked.text.lower() in group.message.lower()]
    return found[: MOST_GROUPS + 1]


async def _shown(request: Request, group: FailureGroup) -> GroupDetail:
    client, namespace = client_of(request), seen_namespace(request, None)
    runs = await client.runs(
        MOST_RUNS, ["failed"], fingerprint=group.fingerprint, version=group.version, namespace=namespace, children=True
    )
    versions = await client.failures(fingerprint=group.fingerprint, limit=MOST_VERSIONS, namespace=namespace)
    pairs = [("status", "failed"), ("fingerprint", group.fingerprint), ("version", group.version), ("children", "true")]
    others = [each for each in versions if each.version != group.version]
    return GroupDetail(group, runs[0] if runs else None, runs, others, pairs)


async def _page(
    request: Request, asked: AskedFailures, groups: Sequence[FailureGroup], shown: GroupDetail | None, *, is_one: bool
) -> Response:
    now_ms = await client_of(request).now_ms()
    more = len(groups) > MOST_GROUPS
    groups = groups[:MOST_GROUPS]
    rows = [_row(group, asked, shown, now_ms) for group in groups]
    total = sum(group.count for group in groups)
    spans: list[tuple[Last | None, str, str]] = [(None, "All", _path("", asked.pairs("last")))]
    spans += [(last, label, _path("", [*asked.pairs("last"), ("last", last)])) for last, (label, _) in SPANS.items()]
    title = f"{shown.group.count:,} failed runs: {shown.group.message[:60]}" if shown and is_one else "Failures"
    return render(
        request, "failures.html", title=title, rows=rows, shown=shown, is_one=is_one, total=total, more=more,
        state=StateSummary("failed", f"{shown.group.count:,} failed run{'' if shown.group.count == 1 else 's'}")
        if shown else None,
        spans=spans, last=asked.last, kept=asked.pairs(), now_ms=now_ms,
        chips=[FilterLink(name, value, _path("", asked.pairs(name))) for name, value in asked.pairs("last")],
        back=_path("", asked.pairs()), may_steer=caller_of(request).may("operator"),
        api=f"/api/v1/failures{f'?fingerprint={quote(shown.group.fingerprint)}' if shown and is_one else ''}",
    )  # fmt: skip


def _row(group: FailureGroup, asked: AskedFailures, shown: GroupDetail | None, now_ms: int) -> GroupRow:
    path = path_of_group(group, asked.pairs())
    is_shown = shown is not None and (shown.group.fingerprint, shown.group.version) == (
        group.fingerprint,
        group.version,
    )
    return GroupRow(group, path, now_ms - group.first_ms < FRESH_MS, is_shown)


def path_of_group(group: FailureGroup, filters: Sequence[tuple[str, str]] = ()) -> str:
    """The page of a group."""
    return _path(f"/{quote(group.fingerprint, safe='')}", [*filters, ("version", group.version)])


def _path(of: str, pairs: Sequence[tuple[str, str]]) -> str:
    return f"/failures{of}" + (f"?{urlencode(pairs)}" if pairs else "")


def _searched(text: str) -> list[tuple[str, str]]:
    """The filters that a search names; other words are a part of the message."""
    found: dict[str, str] = {}
    words = []
    for word in text.split():
        name, colon, value = word.partition(":")
        if colon and value and name in ("agent", "node"):
            found[name] = value
        else:
            words.append(word)
    if words:
        found["text"] = " ".join(words)
    return list(found.items())
