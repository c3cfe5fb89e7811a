"""Webhooks: `client.webhooks`.

    made = client.webhooks.add("orders", "https://example.com/hook", ["run_ended"], agent="order")
    print(made.secret)

Each change is written with its entry of the audit, at once. Deliveries are sent by `sleipnir webhooks send`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from sleipnir.access.audit import audit_text
from sleipnir.errors import StoreUnavailable, UsageError, WebhookNotFound
from sleipnir.runs.cards import checked_namespace, checked_tags
from sleipnir.webhooks.records import (
    MOST_REASON,
    MOST_WEBHOOKS,
    Webhook,
    WebhookDelivery,
    WebhookInfo,
    WebhookPause,
    checked_name,
    checked_occasions,
    checked_url,
)
from sleipnir.webhooks.signatures import SigningKeys, secret_text

if TYPE_CHECKING:
    from sleipnir.settings import Settings
    from sleipnir.store.access import Stored
    from sleipnir.store.store import Store

MOST_TRIES: Final = 20
"""Of a change that others come before."""


@dataclass(frozen=True)
class NewWebhook:
    """`secret` signs its deliveries (`whsec_...`); it is stored nowhere, and shown this once."""

    secret: str = field(repr=False)
    info: WebhookInfo


class Webhooks:
    """The operations on webhooks. Every one raises StoreUnavailable, RecordUnreadable for a damaged record, and
    UsageError for an unknown webhook. `reason` is for the audit, and so is `by`, the actor as text: without it, that of
    the client."""

    def __init__(self, store: Store, settings: Settings, by: str) -> None:
        self._store, self._settings, self._by = store, settings, by

    def add(
        self,
        name: str,
        url: str,
        on: Collection[str],
        *,
        agent: str | None = None,
        namespace: str | None = None,
        tags: Mapping[str, str] | None = None,
        links: bool = False,
        reason: str | None = None,
        by: str = "",
    ) -> NewWebhook:
        """A new webhook: what happens from now on is sent to `url`, as far as it is about `on` (`run_ended`,
        `gate_opened`, `gate_expiring`, `batch_done`, `budget_reached`), the agent, the namespace and all of the tags;
        None: about any. With `links`, deliveries about questions have signed links for their assignees: who receives
        them can answer in their names. Raises UsageError for a name that is taken and for what is invalid, ConfigError
        without a key."""
        checked_name(name)
        url, on, tags = checked_url(url), checked_occasions(list(on)), checked_tags(tags)
        namespace = None if namespace is None else checked_namespace(namespace)
        keys = SigningKeys.of_file_or_new(self._settings.webhook_key_file)
        token = secrets.token_hex(12)
        with self._store.errors():
            if self._store.access.webhook_count() >= MOST_WEBHOOKS:
                raise UsageError(f"there are {MOST_WEBHOOKS} webhooks, and there may be no more")
            now_ms = self._store.now_ms()
            webhook = Webhook(
                name,
                url,
                on,
                token,
                keys.newest,
                now_ms,
                by or self._by,
                agent,
                namespace,
                tags,
                changed=_unique(),
                links=links,
            )
            self._store.webhooks.open(token, now_ms)
            entry = audit_text(
                "webhook added", f"webhook {name}", by or self._by, after=_audited(webhook), reason=reason
            )
            if not self._store.access.change_webhook(name, None, webhook, entry):
                raise UsageError(f"there is a webhook {name!r} already")
            self._store.webhooks.begin(webhook)
        secret = keys.secret(webhook.key, f"webhook {token}")
        assert secret is not None, "the newest key is there"
        return NewWebhook(secret_text(secret), WebhookInfo(webhook))

    def all(self) -> list[WebhookInfo]:
        """All webhooks by name, with the numbers of their deliveries. One that cannot be read is left out: `get` says
        why."""
        with self._store.errors():
            return self._store.webhooks.infos(self._store.access.webhooks())

    def get(self, name: str) -> WebhookInfo:
        """One of them."""
        with self._store.errors():
            [info] = self._store.webhooks.infos([self._known(name).value])
        return info

    def remove(self, name: str, *, reason: str | None = None, by: str = "") -> Webhook:
        """Remove a webhook with all of its deliveries. One that is just being tried may still arrive."""
        removed = self._change(name, "webhook removed", lambda webhook, now_ms: None, reason, by)
        with self._store.errors():
            self._store.webhooks.remove(removed.token)
        return removed

    def pause(self, name: str, *, reason: str | None = None, by: str = "") -> Webhook:
        """Let its deliveries wait until `resume`."""
        pause_reason = (reason or "")[:MOST_REASON]
        return self._change(
            name,
            "webhook paused",
            lambda webhook, now_ms: replace(webhook, paused=WebhookPause(by or self._by, now_ms, pause_reason)),
            reason,
            by,
        )

    def resume(self, name: str, *, reason: str | None = None, by: str = "") -> Webhook:
        """Send again what waits."""
        return self._change(name, "webhook resumed", lambda webhook, now_ms: replace(webhook, paused=None), reason, by)

    def deliveries(self, name: str, limit: int = 50) -> list[WebhookDelivery]:
        """Those that wait, the next ones first, then those that are over, the last ones first."""
        with self._store.errors():
            return self._store.webhooks.deliveries(self._known(name).value.token, limit)

    def redeliver(self, delivery_id: str, *, reason: str | None = None, by: str = "") -> WebhookDelivery:
        """Send a delivery again that is over, with the same id and body, after those about its run that wait. One that
        waits already stays as it is."""
        with self._store.errors():
            queues = self._store.webhooks
            found = queues.find(self._store.access.webhooks(), delivery_id)
            if found is None:
                raise WebhookNotFound(
                    f"there is no delivery {delivery_id[:80]!r}; `sleipnir webhooks deliveries NAME` lists those of a "
                    "webhook"
                )
            webhook, known = found
            if known.status == "waiting":
                return known
            now_ms = self._store.now_ms()
            again = replace(known, status="waiting", attempts=0, created_ms=now_ms, next_ms=None)
            if queues.again(webhook.token, again, now_ms) < 0:
                raise UsageError(f"too many deliveries of webhook {webhook.name!r} wait")
            entry = audit_text(
                "webhook delivery repeated",
                f"webhook {webhook.name}",
                by or self._by,
                after={"delivery": known.id},
                reason=reason,
            )
            self._store.access.note(entry)
        return again

    def senders(self) -> list[str]:
        """The processes that send webhooks now."""
        with self._store.errors():
            return self._store.webhooks.senders()

    def lost_notes(self) -> int:
        """How much happened that no webhook was told of, because no sender ran for long."""
        with self._store.errors():
            return self._store.webhooks.lost_notes()

    def _change(
        self,
        name: str,
        what: str,
        change: Callable[[Webhook, int], Webhook | None],
        reason: str | None,
        by: str,
    ) -> Webhook:
        """The webhook after a change, or the one that was removed."""
        with self._store.errors():
            for _ in range(MOST_TRIES):
                was, now_ms = self._known(name), self._store.now_ms()
                after = change(was.value, now_ms)
                after = None if after is None else replace(after, changed=_unique())
                entry = audit_text(
                    what,
                    f"webhook {name}",
                    by or self._by,
                    before=_audited(was.value),
                    after=None if after is None else _audited(after),
                    reason=reason,
                )
                if self._store.access.change_webhook(name, was, after, entry):
                    return after or was.value
        raise StoreUnavailable(f"webhook {name!r} is being changed by others again and again")

    def _known(self, name: str) -> Stored[Webhook]:
        found = self._store.access.webhook(name)
        if found is None:
            raise WebhookNotFound(f"there is no webhook {name[:80]!r}; `sleipnir webhooks ls` lists them")
        return found


def _audited(webhook: Webhook) -> dict[str, Any]:
    """What the audit has of a webhook."""
    fields = {
        "url": webhook.url, "on": list(webhook.on), "agent": webhook.agent, "namespace": webhook.namespace,
        "tags": dict(webhook.tags), "paused": webhook.paused is not None, "links": webhook.links,
    }  # fmt: skip
    return {name: value for name, value in fields.items() if value not in (None, {}, False)}


def _unique() -> str:
    return secrets.token_hex(6)
