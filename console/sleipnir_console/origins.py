"""Refuses requests that a browser makes for the page of another site.

A page of any site can make the browser of its visitor send requests to 127.0.0.1, and with a name that it points there
(DNS rebinding) read the answers. So the host must be one that this server is known by, and a request that changes
something comes from no other origin.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from sleipnir_console.error_responses import response_of
from sleipnir_console.problems import HttpProblem

SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))


class OriginGuard:
    """Middleware. `hosts` are the names that this server is known by; None: any, as where users must log in."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (wrong := self._wrong(scope)) is not None:
            problem = HttpProblem("cross-origin", wrong)
            await response_of(problem, scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _wrong(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._hosts is not None and _name(f"//{host}") not in self._hosts:
            return f"this server is not known as {host[:100]!r}"
        if scope["method"] in SAFE_METHODS:
            return None
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return "the page of another site may not change anything here"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return f"a page of {origin[:100]!r} may not change anything here"
        return None


def _name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
