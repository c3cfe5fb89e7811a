"""Each request has an id, and one line in the log.

Rules. The log has the path without its query and no headers, because these may hold secrets. A caller may choose the id
(`X-Request-ID`), so that its log and ours have the same; one that is no plain word is replaced.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Any, Final

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER: Final = "X-Request-ID"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
MOST_SHOWN: Final = 300
LINKS: Final = "/d/"
"""What the paths of signed links begin with."""
QUIET: Final = ("/api/v1/health/live", "/api/v1/health/ready")
"""Paths that probes ask every few seconds: logged at the level debug, unless they fail."""


class RequestLog:
    """Middleware: the outermost one, so that every answer has the id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = scope["sleipnir_request_id"] = _request_id(scope)
        began_s, status, sent_bytes = time.monotonic(), 0, 0

        async def stamped(message: Message) -> None:
            nonlocal status, sent_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            elif message["type"] == "http.response.body":
                sent_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, stamped)
        finally:
            facts: dict[str, Any] = {
                "request": request_id, "method": scope["method"], "path": _shown(scope["path"]),
                "status": status, "took_ms": round((time.monotonic() - began_s) * 1000, 1), "bytes": sent_bytes,
                "client": (scope.get("client") or ("",))[0],
            }  # fmt: skip
            caller = scope.get("state", {}).get("caller")
            if caller is not None:
                facts["by"] = str(caller.by)
            log = structlog.get_logger()
            (log.debug if scope["path"] in QUIET and status < 500 else log.info)("request", **facts)


def _shown(path: str) -> str:
    """A path without the token of a signed link, which opens its question to who reads it."""
    if path.startswith(LINKS):
        path = f"{LINKS}[token]{'/answer' if path.endswith('/answer') else ''}"
    return path[:MOST_SHOWN]


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ID.fullmatch(text := value.decode("latin-1")):
            return str(text)
    return secrets.token_hex(8)
