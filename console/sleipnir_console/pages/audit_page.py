"""The audit: what was changed, by whom, from where and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from sleipnir.access.audit import AuditEntry
from sleipnir.graph.plain import compact_json
from sleipnir_console.connection import client_of
from sleipnir_console.pages.page_route import PageRoute
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import requires
from sleipnir_console.strict_model import Limit

router = APIRouter(route_class=PageRoute)

MOST_SHOWN: Final = 400
PATHS: Final = {"run": "/runs/{}", "schedule": "/schedules/{}", "user": "/users/{}", "batch": "/runs?batch={}"}
"""The pages of what entries are on."""

Text = Annotated[str, Query(max_length=200)]


@dataclass(frozen=True)
class EntryRow:
    """An entry of the table. `path`: the page of what it is on; None: there is none."""

    entry: AuditEntry
    path: str | None
    before: str
    after: str


@router.get("/audit", operation_id="show_audit")
@requires("admin", everywhere=True)
async def show_audit(
    request: Request,
    by: Text = "",
    on: Text = "",
    what: Text = "",
    limit: Limit = 100,
    after: Annotated[str | None, Query(max_length=40)] = None,
) -> Response:
    """A page of entries, the newest first."""
    filters = {name: value for name, value in (("by", by), ("on", on), ("what", what)) if value}
    client = client_of(request)
    page = await client.access.audit_page(limit, after=after, **filters)
    first = "/audit" + (f"?{urlencode(filters)}" if filters else "")
    return render(
        request, "audit.html", title="Audit" + (": " + ", ".join(filters.values()) if filters else ""),
        rows=[_row(entry) for entry in page], looked=page.looked, filters={"by": by, "on": on, "what": what},
        is_filtered=bool(filters), is_first=after is None, first=first,
        next=None if page.after is None else f"/audit?{urlencode({**filters, 'after': page.after})}",
        now_ms=await client.now_ms(),
    )  # fmt: skip


def _row(entry: AuditEntry) -> EntryRow:
    kind, _, name = entry.on.partition(" ")
    path = PATHS.get(kind) if name else None
    return EntryRow(
        entry, None if path is None else path.format(quote(name, safe="")), _text(entry.before), _text(entry.after)
    )


def _text(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else compact_json(value)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"
