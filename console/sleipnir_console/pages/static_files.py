"""Files of pages: stylesheet, scripts, fonts, icons. Their URLs name a digest of all of them, so that browsers keep
them for ever and a new release has new URLs."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from sleipnir_console.pages.page_route import PageRoute
from sleipnir_console.permissions import requires
from sleipnir_console.problems import HttpProblem

router = APIRouter(route_class=PageRoute)

FOLDER: Final = Path(__file__).parents[1] / "static"
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
    ".woff2": "font/woff2", ".txt": "text/plain; charset=utf-8", ".md": "text/plain; charset=utf-8",
}  # fmt: skip
_KEPT: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True)
class StaticFile:
    """A file as it is sent: as it is, and compressed where that saves something."""

    body: bytes
    compressed: bytes | None
    media_type: str


@cache
def files() -> dict[str, StaticFile]:
    """All files by their paths below the folder."""
    return {path.relative_to(FOLDER).as_posix(): _read(path) for path in sorted(FOLDER.rglob("*")) if path.is_file()}


def _read(path: Path) -> StaticFile:
    body = path.read_bytes()
    compressed = None if path.suffix == ".woff2" else gzip.compress(body, mtime=0)
    return StaticFile(body, compressed, MEDIA_TYPES.get(path.suffix, "application/octet-stream"))


@cache
def digest() -> str:
    """Of the names and contents of all files."""
    found = hashlib.sha256()
    for name, file in files().items():
        found.update(f"{name}\0{len(file.body)}\0".encode() + file.body)
    return found.hexdigest()[:12]


def url_of(name: str) -> str:
    """The URL of a file. Raises KeyError if there is none."""
    files()[name]
    return f"/static/{digest()}/{name}"


@router.get("/static/{version}/{name:path}", operation_id="get_static_file")
@requires("public")
async def get_static_file(request: Request, version: str, name: str) -> Response:
    """A file; one of another release (while servers are replaced) is not kept by the browser."""
    file = files().get(name)
    if file is None:
        raise HttpProblem("not-found", f"there is no file {name[:100]!r}")
    headers = {"Cache-Control": _KEPT if version == digest() else "no-store", "X-Content-Type-Options": "nosniff",
               "Vary": "Accept-Encoding"}  # fmt: skip
    body = file.body
    if file.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = file.compressed, "gzip"
    return Response(body, 200, headers, file.media_type)
