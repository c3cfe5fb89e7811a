"""The links in deliveries about questions. They are made when a delivery is sent: what is stored has no secret."""

from __future__ import annotations

import json
from typing import Any, Final

from sleipnir.graph.plain import compact_json
from sleipnir.webhooks.gate_links import WEBHOOK_MS, GateLink, token_of, url_of
from sleipnir.webhooks.records import Webhook, WebhookDelivery
from sleipnir.webhooks.signatures import SigningKeys

_OF_GATES: Final = ("gate_opened", "gate_expiring")


def linked_body(webhook: Webhook, delivery: WebhookDelivery, keys: SigningKeys, console_url: str) -> str:
    """The body of a delivery, with the address of the question's page, and for a webhook with `links` a signed link for
    each assignee. It is the same in each try, as long as the keys are."""
    if not console_url or delivery.occasion not in _OF_GATES:
        return delivery.body
    body: dict[str, Any] = json.loads(delivery.body)
    data = body["data"]
    if "attempt" not in data:  # it was not open any more, or an earlier release has noted it
        return delivery.body
    run, seq, attempt = delivery.of, data["visit"], data["attempt"]
    data["url"] = f"{console_url.rstrip('/')}/decisions/{run}/{seq}.{attempt}"
    if webhook.links:
        until_ms = min(delivery.created_ms + WEBHOOK_MS, data["due_ms"] or delivery.created_ms + WEBHOOK_MS)
        by = f"webhook {webhook.name}"
        links = [GateLink(keys.newest, run, seq, attempt, name, until_ms, by) for name in data["assignees"]]
        data["links"] = [
            {"person": link.person, "url": url_of(console_url, token_of(link, keys)), "until_ms": until_ms}
            for link in links
        ]
    return compact_json(body)
