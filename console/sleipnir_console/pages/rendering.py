"""What all pages have: the templates, the navigation of the caller's role, headers.

Rule. Templates escape every value; nothing in them is marked as safe but drawings and Markdown, which escape by
themselves. The policy of content forbids scripts and styles in pages, also for what would slip through.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from sleipnir.runs.deployment_holds import DEPLOYMENT
from sleipnir_console.pages import formats, static_files
from sleipnir_console.permissions import Caller, Permission

THEME_COOKIE: Final = "sleipnir_theme"
THEMES: Final = ("light", "auto", "dark")
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "Cookie, Accept, HX-Request",
}


@dataclass(frozen=True)
class NavigationLink:
    """A page in the navigation, for callers with the permission: in all namespaces, if it is `everywhere`. Links of one
    `group` stand together. `is_main`: also in the bar of narrow screens."""

    path: str
    icon: str
    label: str
    permission: Permission = "viewer"
    group: str = ""
    everywhere: bool = False
    is_main: bool = False

    def is_for(self, caller: Caller) -> bool:
        return caller.may(self.permission, everywhere=self.everywhere)


NAVIGATION: Final = (
    NavigationLink("/", "overview", "Overview", is_main=True),
    NavigationLink("/inbox", "inbox", "Inbox", is_main=True),
    NavigationLink("/runs", "runs", "Runs", is_main=True),
    NavigationLink("/batches", "batches", "Batches", is_main=True),
    NavigationLink("/jobs", "jobs", "Jobs"),
    NavigationLink("/failures", "failures", "Failures"),
    NavigationLink("/agents", "agents", "Agents", group="Build"),
    NavigationLink("/threads", "chat", "Threads", group="Build"),
    NavigationLink("/schedules", "clock", "Schedules", group="Triggers"),
    NavigationLink("/webhooks", "out", "Webhooks", "admin", group="Triggers", everywhere=True),
    NavigationLink("/incoming", "hook", "Hooks", "admin", group="Triggers", everywhere=True),
    NavigationLink("/fleet", "fleet", "Fleet", group="System"),
    NavigationLink("/incident", "pause", "Incident", group="System"),
    NavigationLink("/audit", "audit", "Audit", "admin", group="System", everywhere=True),
    NavigationLink("/users", "users", "Users", "admin", group="System"),
)
"""In their order."""


@cache
def templates() -> Environment:
    """The templates. A name that is not given is an error, and every value is escaped."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1] / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for name in ("duration", "rounded", "count", "short_count", "cost", "size", "clock", "instant", "visible",
                 "json_text", "beginning"):  # fmt: skip
        made.filters[name] = getattr(formats, name)
    made.globals["static"] = static_files.url_of
    return made


def compile_templates() -> None:
    """All of them, which takes half a second: else the first request for each page waits for its own."""
    for name in templates().list_templates(extensions=["html"]):
        templates().get_template(name)


def theme_of(request: Request) -> str:
    """The chosen theme; `auto` follows the system."""
    chosen = request.cookies.get(THEME_COOKIE, "auto")
    return chosen if chosen in THEMES else "auto"


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page as a response. Each page gives its `title`."""
    caller: Caller | None = getattr(request.state, "caller", None)
    identity = caller.identity if caller is not None else None
    is_linked = getattr(request.state, "link", None) is not None
    holds = getattr(request.state, "holds", ()) if caller is not None and not is_linked else ()
    shown = {
        "links": [link for link in NAVIGATION if caller is not None and not is_linked and link.is_for(caller)],
        "path": request.url.path,
        "here": str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
        "origin": str(request.base_url).rstrip("/"),
        "theme": theme_of(request),
        "caller": caller,
        "user": identity.user if identity is not None else None,
        "csrf": (identity.csrf if identity is not None else None) or "",
        "namespace": request.app.state.namespace,
        "holds": [held for held in holds if _sees(caller, held.scope, request.app.state.namespace)],
        "now_ms": 0,
        **values,
    }
    return HTMLResponse(templates().get_template(template).render(shown).encode("utf-8", "replace"), status, HEADERS)


def _sees(caller: Caller | None, scope: str, own: str) -> bool:
    """Whether the hold of a scope concerns the caller."""
    return scope in (DEPLOYMENT, own) or (caller is not None and caller.may("viewer", everywhere=True))
