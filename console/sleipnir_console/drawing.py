"""SVG drawings as responses."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

SVG: Final[dict[int | str, dict[str, Any]]] = {200: {"description": "A drawing.", "content": {"image/svg+xml": {}}}}
_HEADERS: Final = {
    # Names of nodes are texts of others. They are escaped; and where one were not, it could load and run nothing.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "X-Content-Type-Options": "nosniff",
}


def drawing(text: str) -> Response:
    """The response with an SVG document."""
    return Response(text.encode("utf-8", "replace"), 200, dict(_HEADERS), "image/svg+xml")
