"""What a webhook can be about, and the text of a delivery: `{"type": ..., "timestamp": ..., "data": {...}}`, as the
Standard Webhooks specification recommends."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sleipnir.graph.plain import compact_json
from sleipnir.webhooks.records import EXPIRING_MS, Webhook, WebhookDelivery

MOST_TEXT: Final = 2_000
"""Characters of a question or an error in a delivery."""


@dataclass(frozen=True)
class Occasion:
    """Something that happened. `id` is the same whenever it is read again. `of` is the id of a run or a batch."""

    id: str
    name: str
    of: str
    at_ms: int
    agent: str
    namespace: str
    tags: Mapping[str, str] = field(default_factory=dict)
    is_child: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)


def is_wanted(webhook: Webhook, occasion: Occasion) -> bool:
    """Whether a webhook is about it. The end of a child run is that of its parent's visit, and tells nobody."""
    return (
        occasion.name in webhook.on
        and occasion.at_ms >= webhook.created_ms
        and not (occasion.is_child and occasion.name == "run_ended")
        and webhook.agent in (None, occasion.agent)
        and webhook.namespace in (None, occasion.namespace)
        and all(occasion.tags.get(key) == value for key, value in webhook.tags.items())
    )


def delivery_of(webhook: Webhook, occasion: Occasion) -> WebhookDelivery:
    """The delivery of an occasion to a webhook. Its id follows from both, so that making it twice is making it once."""
    digest = hashlib.sha256(f"{webhook.token}\n{occasion.name}\n{occasion.id}".encode()).hexdigest()
    place = {"agent": occasion.agent, "namespace": occasion.namespace, "tags": dict(occasion.tags)}
    subject = {"batch" if occasion.name == "batch_done" else "run": occasion.of}
    body = {
        "type": occasion.name,
        "timestamp": _iso(occasion.at_ms),
        "data": {**subject, **place, **occasion.data},
    }
    return WebhookDelivery(f"msg_{digest[:24]}", occasion.name, occasion.of, compact_json(body), occasion.at_ms)


def expiring_at_ms(opened_ms: int, due_ms: int) -> int:
    """When `gate_expiring` comes: an hour before the end, or in the middle of a shorter time."""
    return due_ms - min(EXPIRING_MS, max(0, due_ms - opened_ms) // 2)


def _iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
