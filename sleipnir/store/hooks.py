"""Hooks in Redis, and how many requests came to each in this minute. No secret is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sleipnir.decoding import read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.store import webhook_keys
from sleipnir.store.access import AccessRecords, Stored
from sleipnir.store.connect import Client, clock_ms
from sleipnir.store.record_text import record
from sleipnir.webhooks.hooks import Hook

if TYPE_CHECKING:
    from sleipnir.store.keys import Keys

MINUTE_MS: Final = 60_000


class HookRecords:
    """`access` writes the audit with each change."""

    def __init__(self, client: Client, keys: Keys, access: AccessRecords) -> None:
        self._client, self._keys, self._access = client, keys, access
        self._records = webhook_keys.hooks(keys)

    def all(self) -> list[Hook]:
        """By name. One that cannot be read is left out: `get` says why."""
        found = []
        for name, text in sorted(self._client.hgetall(self._records).items()):
            try:
                found.append(read_text(Hook, text, "hook", name))
            except RecordUnreadable:
                continue
        return found

    def count(self) -> int:
        return int(self._client.hlen(self._records))

    def get(self, name: str) -> Stored[Hook] | None:
        """Raises RecordUnreadable."""
        text = self._client.hget(self._records, name)
        return None if text is None else Stored(read_text(Hook, text, "hook", name), text)

    def change(self, name: str, was: Stored[Hook] | None, hook: Hook | None, entry: str) -> bool:
        """Store a hook, new if `was` is None, or remove it. False: it has changed since."""
        before, after = was.text if was else "", record(hook) if hook else ""
        return self._access.change_record(self._records, name, before, after, entry)

    def count_request(self, token: str) -> tuple[int, int]:
        """Count a request to a hook. Returns how many came in this minute, and its rest in ms."""
        now_ms = clock_ms(self._client)
        key = webhook_keys.hook_requests(self._keys, token, now_ms // MINUTE_MS)
        pipe = self._client.pipeline(transaction=True)
        pipe.incr(key)
        pipe.pexpire(key, 2 * MINUTE_MS)
        return int(pipe.execute()[0]), MINUTE_MS - now_ms % MINUTE_MS
