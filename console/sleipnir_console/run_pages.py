"""Pages of runs, newest first. A cursor is the time of the last run of the page before, and how many of that time it
has shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from sleipnir.client.async_client import AsyncClient
from sleipnir.runs.views import RunInfo
from sleipnir_console.problems import HttpProblem

_CURSOR: Final = re.compile(r"(\d{1,15})\.(\d{1,6})", re.ASCII)


class RunPage(BaseModel):
    """Runs, newest first. `after` is the cursor of the next page; null: there is none."""

    items: list[RunInfo]
    after: str | None


async def page_of(client: AsyncClient, limit: int, after: str | None, chosen: Mapping[str, Any]) -> RunPage:
    """The page after a cursor. `chosen` are keywords of Client.runs. Raises HttpProblem for what is no cursor."""
    last_ms, shown = _place(after)
    before_ms = chosen.get("before_ms")
    if last_ms is not None:
        before_ms = last_ms + 1 if before_ms is None else min(before_ms, last_ms + 1)
    among = await client.run_count()
    found = await client.runs(limit + shown + 1, **{**chosen, "before_ms": before_ms, "among": max(1, among)})
    items = found[shown:][:limit]
    if len(found) <= shown + limit:
        return RunPage(items=items, after=None)
    end_ms = items[-1].created_ms
    same = sum(run.created_ms == end_ms for run in found[: shown + limit])
    return RunPage(items=items, after=f"{end_ms}.{same}")


def _place(after: str | None) -> tuple[int | None, int]:
    if after is None:
        return None, 0
    match = _CURSOR.fullmatch(after)
    if match is None:
        raise HttpProblem("refused", f"{after!r} is no cursor: give the `after` of a page of runs")
    return int(match[1]), int(match[2])
