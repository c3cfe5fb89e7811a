"""Webhooks, for admins of the whole deployment: they hear of all namespaces, and make this deployment send requests."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import structlog
from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field

from sleipnir.errors import ConfigError
from sleipnir.webhooks.records import OccasionName, WebhookDelivery, WebhookInfo, WebhookPause
from sleipnir_console.connection import client_of
from sleipnir_console.permissions import GuardedRoute, requires
from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import Limit, Reason, StrictModel

router = APIRouter(tags=["webhooks"], route_class=GuardedRoute)

WebhookPath: TypeAlias = Annotated[str, Path(max_length=64, description="The name of a webhook.")]


class WebhookRequest(StrictModel):
    """A new webhook. What happens is sent to `url`, if it is about `on`, the agent, the namespace and all of the
    tags; null: about any."""

    name: str = Field(max_length=64, examples=["orders"])
    url: str = Field(max_length=2000, examples=["https://example.com/sleipnir"])
    on: list[OccasionName] = Field(min_length=1, max_length=5)
    agent: str | None = Field(None, max_length=200)
    namespace: str | None = Field(None, max_length=63)
    tags: dict[str, str] = Field(default_factory=dict, max_length=16)
    links: bool = Field(False, description="Deliveries about questions have signed links for their assignees.")
    reason: Reason = None


class WebhookChange(StrictModel):
    """Why something is changed, for the audit."""

    reason: Reason = None


class WebhookView(BaseModel):
    """A webhook and the numbers of its deliveries: those that wait, that were delivered, that have failed for good, and
    that were never queued because too many waited. `failing_ms`: since when every try has failed."""

    name: str
    url: str
    on: list[str]
    agent: str | None
    namespace: str | None
    tags: dict[str, str]
    links: bool
    created_ms: int
    created_by: str
    paused_by: str | None
    paused: WebhookPause | None
    waiting: int
    delivered: int
    failed: int
    lost: int
    failing_ms: int | None

    @classmethod
    def of(cls, info: WebhookInfo) -> WebhookView:
        webhook = info.webhook
        return cls(
            name=webhook.name,
            url=webhook.url,
            on=list(webhook.on),
            agent=webhook.agent,
            namespace=webhook.namespace,
            tags=dict(webhook.tags),
            links=webhook.links,
            created_ms=webhook.created_ms,
            created_by=webhook.created_by,
            paused_by=webhook.paused.by if webhook.paused else None,
            paused=webhook.paused,
            waiting=info.waiting,
            delivered=info.delivered,
            failed=info.failed,
            lost=info.lost,
            failing_ms=info.failing_ms,
        )


class NewWebhookView(BaseModel):
    """`secret` signs the deliveries (`whsec_...`). It is stored nowhere, and shown this once."""

    secret: str
    webhook: WebhookView


@router.get("/webhooks", operation_id="list_webhooks", summary="All webhooks")
@requires("admin", everywhere=True)
async def list_webhooks(request: Request) -> list[WebhookView]:
    """By name."""
    return [WebhookView.of(info) for info in await client_of(request).webhooks.all()]


@router.post("/webhooks", operation_id="add_webhook", summary="Add a webhook", status_code=201)
@requires("admin", everywhere=True)
async def add_webhook(request: Request, body: WebhookRequest) -> NewWebhookView:
    """What happens from now on is sent. 422 `refused` if the name is taken."""
    try:
        made = await client_of(request).webhooks.add(
            body.name,
            body.url,
            body.on,
            agent=body.agent,
            namespace=body.namespace,
            tags=body.tags,
            links=body.links,
            reason=body.reason,
        )
    except ConfigError as error:  # the key of this server: its path is for the log
        structlog.get_logger().error("no key of webhooks", error=str(error))
        raise HttpProblem("refused", "this server has no usable key of webhooks: its log says why") from None
    return NewWebhookView(secret=made.secret, webhook=WebhookView.of(made.info))


@router.get("/webhooks/{name}", operation_id="get_webhook", summary="One webhook")
@requires("admin", everywhere=True)
async def get_webhook(request: Request, name: WebhookPath) -> WebhookView:
    """With the numbers of its deliveries."""
    return WebhookView.of(await client_of(request).webhooks.get(name))


@router.delete("/webhooks/{name}", operation_id="remove_webhook", summary="Remove a webhook", status_code=204)
@requires("admin", everywhere=True)
async def remove_webhook(request: Request, name: WebhookPath) -> None:
    """With all of its deliveries."""
    await client_of(request).webhooks.remove(name)


@router.post("/webhooks/{name}/pause", operation_id="pause_webhook", summary="Pause a webhook")
@requires("admin", everywhere=True)
async def pause_webhook(request: Request, name: WebhookPath, body: WebhookChange | None = None) -> WebhookView:
    """Its deliveries wait until it is resumed."""
    webhooks = client_of(request).webhooks
    await webhooks.pause(name, reason=body.reason if body else None)
    return WebhookView.of(await webhooks.get(name))


@router.post("/webhooks/{name}/resume", operation_id="resume_webhook", summary="Resume a webhook")
@requires("admin", everywhere=True)
async def resume_webhook(request: Request, name: WebhookPath, body: WebhookChange | None = None) -> WebhookView:
    """What waits is sent."""
    webhooks = client_of(request).webhooks
    await webhooks.resume(name, reason=body.reason if body else None)
    return WebhookView.of(await webhooks.get(name))


@router.get("/webhooks/{name}/deliveries", operation_id="list_webhook_deliveries", summary="Deliveries of a webhook")
@requires("admin", everywhere=True)
async def list_webhook_deliveries(request: Request, name: WebhookPath, limit: Limit = 50) -> list[WebhookDelivery]:
    """Those that wait, the next ones first, then those that are over, the last ones first."""
    return await client_of(request).webhooks.deliveries(name, limit)


@router.post(
    "/webhook-deliveries/{delivery_id}/redeliver",
    operation_id="redeliver_webhook",
    summary="Send a delivery again",
    status_code=202,
)
@requires("admin", everywhere=True)
async def redeliver_webhook(
    request: Request, delivery_id: Annotated[str, Path(max_length=64)], body: WebhookChange | None = None
) -> WebhookDelivery:
    """With the same id and the same body, after those about its run that wait."""
    reason = body.reason if body else None
    return await client_of(request).webhooks.redeliver(delivery_id, reason=reason)
