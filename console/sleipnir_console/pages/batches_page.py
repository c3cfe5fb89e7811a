"""The batches, the newest first, by state and agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir.batches.records import BatchInfo
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.pages.batch_states import BarPart, bar_of, batch_state_of, in_words
from sleipnir_console.pages.page_route import PageRoute, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_states import StateSummary
from sleipnir_console.permissions import caller_of, requires

router = APIRouter(route_class=PageRoute)

MOST_READ: Final = 500
"""The batches among which a page looks: the next one goes on after them."""
SHOWN: Final = 100

View: TypeAlias = Literal["all", "live", "due", "over"]
VIEWS: Final[Sequence[tuple[View, str]]] = (
    ("all", "All"), ("live", "Live"), ("due", "Wait for a person"), ("over", "Over"),
)  # fmt: skip


@dataclass(frozen=True)
class BatchListRow:
    """A batch of the table."""

    info: BatchInfo
    state: StateSummary
    bar: Sequence[BarPart]

    @property
    def words(self) -> str:
        return in_words(self.bar)

    def is_in(self, view: View) -> bool:
        match view:
            case "live":
                return not self.info.is_over
            case "due":
                return self.info.question is not None
            case "over":
                return self.info.is_over
        return True


@router.get("/batches", operation_id="show_batches")
@requires("viewer")
@same_as("/batches")
async def show_batches(
    request: Request,
    view: View = "all",
    agent: Annotated[str | None, Query(max_length=200)] = None,
    q: Annotated[str, Query(max_length=200)] = "",
    namespace: Annotated[str | None, Query(max_length=64)] = None,
    after: Annotated[str | None, Query(max_length=64)] = None,
) -> Response:
    """The newest batches, those of an agent, or those with a text in their name or id: after the batch `after`, if it
    is given."""
    client, seen = client_of(request), seen_namespace(request, namespace)
    found = [_row(info) for info in await client.batches(MOST_READ, namespace=seen, after=after)]
    wanted = q.strip().lower()
    fitting = [
        row
        for row in found
        if agent in (None, "", row.info.agent) and (wanted in row.info.name.lower() or row.info.id.startswith(wanted))
    ]
    shown = [row for row in fitting if row.is_in(view)]
    kept = {"agent": agent or "", "q": q, "namespace": namespace or ""}
    last = shown[SHOWN - 1] if len(shown) > SHOWN else found[-1] if len(found) == MOST_READ else None
    return render(
        request, "batches.html", title="Batches", rows=shown[:SHOWN], fitting=len(shown), looked=len(found),
        is_cut=len(found) == MOST_READ, after=after, view=view, q=q, agent=agent, kept=kept,
        views=[(name, label, path_of(kept, view=name), sum(row.is_in(name) for row in fitting))
               for name, label in VIEWS],
        newest=path_of(kept, view=view), older=last and path_of({**kept, "after": last.info.id}, view=view),
        agents=sorted({row.info.agent for row in found}), clear=path_of({}, view=view),
        may_start=caller_of(request).may("operator"), now_ms=await client.now_ms(),
    )  # fmt: skip


def path_of(kept: dict[str, str], *, view: View) -> str:
    """The page with these parameters."""
    pairs = {name: value for name, value in {**kept, "view": "" if view == "all" else view}.items() if value}
    return "/batches" + (f"?{urlencode(pairs)}" if pairs else "")


def _row(info: BatchInfo) -> BatchListRow:
    return BatchListRow(info, batch_state_of(info), bar_of(info))
