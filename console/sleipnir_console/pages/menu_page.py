"""The menu of narrow screens."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from sleipnir_console.pages.page_route import PageRoute
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import requires

router = APIRouter(route_class=PageRoute)


@router.get("/menu", operation_id="show_menu")
@requires("user")
async def show_menu(request: Request) -> Response:
    """All pages, the theme, logging out: what has no room beside narrow pages."""
    return render(request, "menu.html", title="More")
