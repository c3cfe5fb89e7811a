"""The keys of webhooks. Their records are in keys.AccessKeys' tag, because the script that changes those writes the
audit; what waits for them is noted beside the runs of each partition."""

from __future__ import annotations

from dataclasses import dataclass

from sleipnir.store.keys import Keys


@dataclass(frozen=True)
class NoteKeys:
    """The notes of a partition: what has happened that a webhook is about."""

    tag: str

    @property
    def notes(self) -> str:
        """STREAM t (run_ended, gate, batch_done, budget_reached), of (the id of the run or batch), and fields by t:
        lua/shared/webhooks.lua. At most MOST_NOTES. The sender deletes an entry when its deliveries are queued."""
        return f"{self.tag}:webhooks"

    @property
    def wanted(self) -> str:
        """HASH token of a webhook -> the kinds of notes that it needs, with a space on both sides. There is none
        without webhooks."""
        return f"{self.tag}:webhooks:wanted"

    @property
    def lost(self) -> str:
        """HASH kind -> how many notes were not made, because too many were there, or not read before their runs
        expired. Never dies."""
        return f"{self.tag}:webhooks:lost"


@dataclass(frozen=True)
class WebhookKeys:
    """The deliveries of one webhook. All of them live until it is removed."""

    webhook: str

    @property
    def stats(self) -> str:
        """HASH since_ms, delivered, failed, lost, failing_ms. Without it nothing is queued."""
        return f"{self.webhook}:stats"

    @property
    def deliveries(self) -> str:
        """HASH id -> JSON (webhooks.records.WebhookDelivery). A field lives until the delivery is forgotten."""
        return f"{self.webhook}:deliveries"

    @property
    def lanes(self) -> str:
        """HASH id of a run or batch -> the ids of its deliveries that wait, in order, with spaces between."""
        return f"{self.webhook}:lanes"

    @property
    def due(self) -> str:
        """ZSET id of a run or batch by the time when its first delivery is tried next. While that is being tried, it is
        the time at which another sender may."""
        return f"{self.webhook}:due"

    @property
    def log(self) -> str:
        """ZSET id of a delivery that is over, by the time of its end. An entry lives as long as webhook_retention_s,
        and MOST_KEPT at most are kept."""
        return f"{self.webhook}:log"

    @property
    def all(self) -> tuple[str, ...]:
        return self.stats, self.deliveries, self.lanes, self.due, self.log


def notes_of(keys: Keys, partition: int) -> NoteKeys:
    return NoteKeys(keys.of_partition(partition).tag)


def keys_of(keys: Keys, token: str) -> WebhookKeys:
    return WebhookKeys(f"{keys.prefix}:{{webhooks}}:{token}")


def later(keys: Keys) -> str:
    """ZSET JSON (store.webhooks.ExpiringGate) by the time when its webhook is told that a question expires."""
    return f"{keys.prefix}:{{webhooks}}:later"


def senders(keys: Keys) -> str:
    """ZSET name of a sender by the time of its last round. The senders drop silent ones."""
    return f"{keys.prefix}:{{webhooks}}:senders"


def hooks(keys: Keys) -> str:
    """HASH name -> JSON (webhooks.hooks.Hook). A field lives until the hook is removed."""
    return f"{keys.access.tag}:hooks"


def hook_requests(keys: Keys, token: str, minute: int) -> str:
    """STRING how many requests to a hook came in a minute. Dies two minutes later."""
    return f"{keys.prefix}:{{webhooks}}:hook:{token}:{minute}"
