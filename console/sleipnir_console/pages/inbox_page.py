"""The inbox: open questions as one person sees them, the oldest first, with the one that is looked at beside them."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir.runs.gate_filters import GateView
from sleipnir.runs.views import GateInfo
from sleipnir_console.asked_runs import seen_namespace
from sleipnir_console.connection import client_of
from sleipnir_console.pages.gate_rows import is_refusal, name_of, question_of, row_of
from sleipnir_console.pages.markdown import markdown_html
from sleipnir_console.pages.page_route import PageRoute, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import caller_of, requires

router = APIRouter(route_class=PageRoute)

AT_ONCE: Final = 50
VIEWS: Final[tuple[tuple[GateView, str], ...]] = (
    ("mine", "Mine"), ("role", "My role's"), ("all", "All"), ("overdue", "Overdue"), ("snoozed", "Snoozed"),
)  # fmt: skip
EMPTY: Final = {
    "mine": "You hold no question, none is assigned to you, and none names you.",
    "role": "No open question is for you.",
    "all": "Nothing waits for a person.",
    "overdue": "No question has been open for too long.",
    "snoozed": "You have snoozed nothing.",
}


@router.get("/inbox", operation_id="show_inbox")
@requires("viewer")
@same_as("/gates")
async def show_inbox(request: Request) -> Response:
    """What is the person's own, else what its role may answer."""
    counts = await client_of(request).gate_inbox.counts(namespace=seen_namespace(request, None))
    return next_page("/inbox/mine" if counts.mine else "/inbox/role")


@router.get("/inbox/{view}", operation_id="show_inbox_view")
@requires("viewer")
@same_as("/gates?view={view}")
async def show_inbox_view(
    request: Request,
    view: GateView,
    at: Annotated[str | None, Query(max_length=100)] = None,
    node: Annotated[str | None, Query(max_length=500)] = None,
    agent: Annotated[str | None, Query(max_length=500)] = None,
    after: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:
    """A page of a view. `at` is the question that is shown beside the list."""
    inbox, namespace = client_of(request).gate_inbox, seen_namespace(request, None)
    counts = await inbox.counts(namespace=namespace)
    page = await inbox.page(view=view, node=node, agent=agent, namespace=namespace, after=after, limit=AT_ONCE)
    now_ms = await client_of(request).now_ms()
    overdue_ms = round(request.app.state.settings.gate_overdue_s * 1000)
    rows = [row_of(gate, caller_of(request), now_ms, overdue_ms) for gate in page]
    shown = next((row for row in rows if row.name == at), rows[0] if rows else None)
    chosen = [(name, value) for name, value in (("node", node), ("agent", agent)) if value]

    def path(view: str, *more: tuple[str, str]) -> str:
        pairs = [*chosen, *more]
        return f"/inbox/{view}" + (f"?{urlencode(pairs)}" if pairs else "")

    return render(
        request,
        "inbox.html",
        title=f"({counts.role}) Inbox" if counts.role else "Inbox",
        view=view,
        views=[(name, label, path(name), getattr(counts, name), name in ("mine", "overdue")) for name, label in VIEWS],
        counts=counts,
        rows=rows,
        shown=shown,
        shown_html=markdown_html(question_of(shown.gate)) if shown else None,
        ways=_ways(shown.gate) if shown and shown.may else [],
        chips=chosen,
        unfiltered=f"/inbox/{view}",
        here_of=lambda gate: path(view, ("at", name_of(gate))),
        live=path(view, *((("after", after),) if after else ())),
        next=path(view, ("after", page.after)) if page.after else None,
        is_first=after is None,
        looked=page.looked,
        empty=EMPTY[view],
        now_ms=now_ms,
        api=f"/api/v1/gates?{urlencode([('view', view), *chosen])}",
    )  # fmt: skip


def _ways(gate: GateInfo) -> list[tuple[str, str]]:
    """The options that one click can answer, with their keys: not where a comment is needed."""
    if gate.rules is not None and gate.rules.comment:
        return []
    refused = next((option for option in gate.options if is_refusal(option)), None)
    first = next((option for option in gate.options if option != refused), None)
    return [(option, "a" if option == first else "r" if option == refused else "") for option in gate.options]
