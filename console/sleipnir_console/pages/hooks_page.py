"""Hooks, for admins of the whole deployment: the list, one with the request that it takes, and the form for a new one.

Requests to hooks come to `/hooks/NAME`, so these pages have another path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import Response

from sleipnir.webhooks.hooks import FORMS, PER_MINUTE
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import REFUSALS, body_of, number_of, refusal_of, typed
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.permissions import requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.routes.hooks import (
    HookBody,
    HookPath,
    HookView,
    NewHookView,
    SecretRequest,
    add_hook,
    get_hook,
    list_hooks,
    remove_hook,
    rotate_hook,
)

router = APIRouter(route_class=PageRoute)

FIELDS: Final = (
    "name", "form", "agent", "signal", "prompt", "inputs", "header", "algorithm", "id_header", "id_field", "namespace",
    "per_minute", "own_secret", "reason",
)  # fmt: skip
FORM_WORDS: Final[Mapping[str, str]] = {
    "standard": "Standard Webhooks: a signature of id, time and body",
    "github": "GitHub: a signature of the body",
    "stripe": "Stripe: a signature of time and body",
    "token": "A bearer token",
}


@router.get("/incoming", operation_id="show_hooks")
@requires("admin", everywhere=True)
@same_as("/hooks")
async def show_hooks(request: Request) -> Response:
    """All hooks, by name."""
    return render(
        request, "hooks.html", title="Hooks", rows=await list_hooks(request), forms=FORM_WORDS,
        now_ms=await client_of(request).now_ms(),
    )  # fmt: skip


@router.get("/new-hook", operation_id="show_new_hook")
@requires("admin", everywhere=True)
async def show_new_hook(request: Request) -> Response:
    """The form for a new hook."""
    return _form(request)


@router.post("/new-hook", operation_id="send_new_hook")
@requires("admin", everywhere=True)
async def send_new_hook(request: Request) -> Response:
    """Adds a hook, and shows its secret this once. What cannot be added is shown again with the reason."""
    form = form_of(request)
    try:
        per_minute = number_of(form, "per_minute")
        body = body_of(
            request, HookBody, inputs=_inputs(form.get("inputs", "")), own_secret=bool(form.get("own_secret")),
            per_minute=PER_MINUTE if per_minute is None else per_minute,
        )  # fmt: skip
        made = await add_hook(request, body)
    except REFUSALS as error:
        return _form(request, error)
    return await _page(request, body.name, made=made)


@router.get("/incoming/{name}", operation_id="show_hook")
@requires("admin", everywhere=True)
@same_as("/hooks/{name}")
async def show_hook(request: Request, name: HookPath) -> Response:
    """One hook: what its requests do, and how one is made."""
    return await _page(request, name)


@router.post("/incoming/{name}/rotate", operation_id="send_hook_rotation")
@requires("admin", everywhere=True)
async def send_hook_rotation(request: Request, name: HookPath) -> Response:
    """Gives a hook a new secret, and shows it this once."""
    try:
        overlap_s = number_of(form_of(request), "overlap_s") or 0
        body = body_of(request, SecretRequest, overlap_s=float(overlap_s))
        made = await rotate_hook(request, name, body)
    except REFUSALS as error:
        return await _page(request, name, error=error)
    return await _page(request, name, made=made)


@router.post("/incoming/{name}/remove", operation_id="send_hook_removal")
@requires("admin", everywhere=True)
async def send_hook_removal(request: Request, name: HookPath) -> Response:
    """Removes a hook."""
    await remove_hook(request, name)
    return next_page("/incoming")


def _inputs(text: str) -> dict[str, str]:
    """State keys and their templates, `key = template` on each line. Raises HttpProblem for another line."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        key, is_pair, template = line.partition("=")
        if not is_pair or not key.strip():
            raise HttpProblem("refused", f"an input is `key = template` on a line of its own, not {line!r:.80}")
        found[key.strip()] = template.strip()
    return found


def _form(request: Request, error: Exception | None = None) -> Response:
    refused = None if error is None else refusal_of(request, error)
    given = {"form": "standard", "per_minute": str(PER_MINUTE)} if refused is None else {}
    return render(
        request, "new_hook.html", status=200 if refused is None else refused.kind.status, title="New hook",
        refused=refused, typed={**typed(request, *FIELDS), **given}, forms=[(form, FORM_WORDS[form]) for form in FORMS],
    )  # fmt: skip


async def _page(
    request: Request, name: str, *, made: NewHookView | None = None, error: Exception | None = None
) -> Response:
    hook = await get_hook(request, name)
    refused = None if error is None else refusal_of(request, error)
    origin = str(request.base_url).rstrip("/")
    return render(
        request, "hook.html", status=200 if refused is None else refused.kind.status, title=f"Hook {hook.name}",
        hook=hook, made=made, refused=refused, form=FORM_WORDS.get(hook.form, hook.form),
        address=f"{origin}/hooks/{quote(hook.name, safe='')}", request_text=_request(hook, origin),
        page_path=f"/incoming/{quote(hook.name, safe='')}", api=f"/api/v1/hooks/{quote(hook.name, safe='')}",
        now_ms=await client_of(request).now_ms(),
    )  # fmt: skip


def _request(hook: HookView, origin: str) -> str:
    """A request to the hook, as `curl`. What begins with `$` is the sender's."""
    headers = [f"{hook.header}: {_PROOFS.get(hook.form, '$PROOF').replace('sha256', hook.algorithm)}"]
    if hook.form == "standard":
        headers.append("webhook-timestamp: $SECONDS")
    if hook.id_header:
        headers.append(f"{hook.id_header}: $ID")
    body: object = {"title": "..."}
    for part in reversed((hook.id_field or "").split(".") if hook.id_field else ()):
        body = {part: "..." if body == {"title": "..."} else body}
    lines = [f"curl -X POST {origin}/hooks/{quote(hook.name, safe='')}", *(f'  -H "{header}"' for header in headers)]
    return " \\\n".join([*lines, f"  --json '{json.dumps(body)}'"])


_PROOFS: Final[Mapping[str, str]] = {
    "standard": "v1,$SIGNATURE", "github": "sha256=$SIGNATURE", "stripe": "t=$SECONDS,v1=$SIGNATURE",
    "token": "Bearer $SECRET",
}  # fmt: skip
"""What each form of proof looks like in its header (webhooks/proofs.py)."""
