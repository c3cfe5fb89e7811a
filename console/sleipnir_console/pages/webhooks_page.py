"""Webhooks, for admins of the whole deployment: the list, one with its deliveries, and the form for a new one."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from sleipnir.runs.cards import tag_of
from sleipnir.webhooks.records import OCCASIONS, WebhookDelivery
from sleipnir_console.connection import client_of
from sleipnir_console.pages.forms import REFUSALS, body_of, refusal_of, typed
from sleipnir_console.pages.page_route import PageRoute, form_of, next_page, same_as
from sleipnir_console.pages.rendering import render
from sleipnir_console.pages.run_states import StateSummary
from sleipnir_console.permissions import requires
from sleipnir_console.routes.webhooks import (
    NewWebhookView,
    WebhookChange,
    WebhookPath,
    WebhookRequest,
    WebhookView,
    add_webhook,
    get_webhook,
    list_webhooks,
    pause_webhook,
    redeliver_webhook,
    remove_webhook,
    resume_webhook,
)

router = APIRouter(route_class=PageRoute)

SHOWN_DELIVERIES: Final = 100
FIELDS: Final = ("name", "url", "agent", "namespace", "tags", "reason", "links", *OCCASIONS)
WORDS: Final[Mapping[str, str]] = {
    "run_ended": "A run has ended", "gate_opened": "A question was asked", "gate_expiring": "A question will expire",
    "batch_done": "A batch is over", "budget_reached": "A budget is used up",
}  # fmt: skip
STATES: Final[Mapping[str, StateSummary]] = {
    "waiting": StateSummary("waiting", "Waits"),
    "delivered": StateSummary("completed", "Delivered"),
    "failed": StateSummary("failed", "Failed"),
}
Action: TypeAlias = Literal["pause", "resume", "remove"]


@dataclass(frozen=True)
class WebhookRow:
    """A webhook with its state in words."""

    webhook: WebhookView
    state: StateSummary


@dataclass(frozen=True)
class DeliveryRow:
    """A delivery with its state, the path of what it is about, and its body for people."""

    delivery: WebhookDelivery
    state: StateSummary
    path: str
    body: str


@router.get("/webhooks", operation_id="show_webhooks")
@requires("admin", everywhere=True)
@same_as("/webhooks")
async def show_webhooks(request: Request) -> Response:
    """All webhooks, by name."""
    client = client_of(request)
    rows = [_row(each) for each in await list_webhooks(request)]
    return render(
        request, "webhooks.html", title="Webhooks", rows=rows, senders=await client.webhooks.senders(),
        lost=await client.webhooks.lost_notes(), words=WORDS, now_ms=await client.now_ms(),
    )  # fmt: skip


@router.get("/new-webhook", operation_id="show_new_webhook")
@requires("admin", everywhere=True)
async def show_new_webhook(request: Request) -> Response:
    """The form for a new webhook."""
    return _form(request)


@router.post("/new-webhook", operation_id="send_new_webhook")
@requires("admin", everywhere=True)
async def send_new_webhook(request: Request) -> Response:
    """Adds a webhook, and shows its secret this once. What cannot be added is shown again with the reason."""
    form = form_of(request)
    try:
        on = [name for name in OCCASIONS if form.get(name)]
        tags = dict(map(tag_of, filter(None, map(str.strip, form.get("tags", "").splitlines()))))
        body = body_of(request, WebhookRequest, on=on, tags=tags, links=bool(form.get("links")))
        made = await add_webhook(request, body)
    except REFUSALS as error:
        return _form(request, error)
    return await _page(request, body.name, made=made)


@router.get("/webhooks/{name}", operation_id="show_webhook")
@requires("admin", everywhere=True)
@same_as("/webhooks/{name}")
async def show_webhook(request: Request, name: WebhookPath) -> Response:
    """One webhook: what it is about, its deliveries, and what can be done with it."""
    return await _page(request, name)


@router.post("/webhooks/{name}/{action}", operation_id="steer_webhook")
@requires("admin", everywhere=True)
async def steer_webhook(request: Request, name: WebhookPath, action: Annotated[Action, Path()]) -> Response:
    """Does what a button of the page says."""
    return next_page(await _ACTIONS[action](request, name))


@router.post("/webhooks/{name}/deliveries/{delivery_id}/redeliver", operation_id="send_redelivery")
@requires("admin", everywhere=True)
async def send_redelivery(
    request: Request, name: WebhookPath, delivery_id: Annotated[str, Path(max_length=64)]
) -> Response:
    """Sends a delivery again."""
    await redeliver_webhook(request, delivery_id)
    return next_page(_path(name))


async def _pause(request: Request, name: str) -> str:
    await pause_webhook(request, name, body_of(request, WebhookChange))
    return _path(name)


async def _resume(request: Request, name: str) -> str:
    await resume_webhook(request, name, body_of(request, WebhookChange))
    return _path(name)


async def _remove(request: Request, name: str) -> str:
    await remove_webhook(request, name)
    return "/webhooks"


_ACTIONS: Final[Mapping[Action, Callable[[Request, str], Awaitable[str]]]] = {
    "pause": _pause, "resume": _resume, "remove": _remove,
}  # fmt: skip
"""Each returns the path of the page to show then."""


def _path(name: str) -> str:
    return f"/webhooks/{quote(name, safe='')}"


def _form(request: Request, error: Exception | None = None) -> Response:
    refused = None if error is None else refusal_of(request, error)
    return render(
        request, "new_webhook.html", status=200 if refused is None else refused.kind.status, title="New webhook",
        refused=refused, typed=typed(request, *FIELDS), words=WORDS,
    )  # fmt: skip


async def _page(request: Request, name: str, *, made: NewWebhookView | None = None) -> Response:
    client = client_of(request)
    row = _row(await get_webhook(request, name))
    deliveries = await client.webhooks.deliveries(name, SHOWN_DELIVERIES)
    return render(
        request, "webhook.html", title=f"{row.state.word}: webhook {name}", row=row, webhook=row.webhook, made=made,
        path=_path(name), api=f"/api/v1/webhooks/{quote(name, safe='')}", words=WORDS,
        deliveries=[_delivery(each) for each in deliveries], shown=SHOWN_DELIVERIES,
        has_senders=bool(await client.webhooks.senders()), now_ms=await client.now_ms(),
    )  # fmt: skip


def _row(webhook: WebhookView) -> WebhookRow:
    if webhook.paused_by is not None:
        return WebhookRow(webhook, StateSummary("paused", "Paused", f"by {webhook.paused_by}"))
    if webhook.failing_ms is not None:
        return WebhookRow(webhook, StateSummary("failed", "Fails", "every try since then"))
    return WebhookRow(webhook, StateSummary("running", "Active"))


def _delivery(delivery: WebhookDelivery) -> DeliveryRow:
    subject = "batches" if delivery.occasion == "batch_done" else "runs"
    state = STATES.get(delivery.status, StateSummary("waiting", delivery.status))
    return DeliveryRow(delivery, state, f"/{subject}/{quote(delivery.of, safe='')}", _readable(delivery.body))


def _readable(body: str) -> str:
    """A body as JSON in lines, as it was sent, if it cannot be read."""
    try:
        found: Any = json.loads(body)
    except ValueError:
        return body
    return json.dumps(found, indent=2, ensure_ascii=False)
