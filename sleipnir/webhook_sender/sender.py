"""Sends webhooks. Its rounds queue what commits have noted and start tries of what is due; each try is a task of its
own.

A receiver that does not answer holds up nobody but itself: it has AT_ONCE places, and the others have theirs. A
sender that dies loses nothing: what it had taken is taken by another one, or the next one, when its time is over.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, Protocol, TypeVar

import structlog

from sleipnir import failpoints
from sleipnir.errors import RecordUnreadable
from sleipnir.store.store import Store
from sleipnir.store.webhooks import TakenDelivery
from sleipnir.webhook_sender.linked_body import linked_body
from sleipnir.webhook_sender.request import ReceiverError, ReceiverResponse
from sleipnir.webhooks import signatures
from sleipnir.webhooks.records import Webhook, WebhookDelivery
from sleipnir.webhooks.retries import next_ms
from sleipnir.webhooks.signatures import SigningKeys

AT_ONCE: Final = 8
"""Tries of one webhook at once."""
MARGIN_MS: Final = 15_000
"""A delivery is taken for the time that a try may take, and this."""
STORE_THREADS: Final = 8
LOOK_AFTER: Final = 20
"""Rounds between two looks at what commits note."""

T = TypeVar("T")


class Receiver(Protocol):
    """What sends one request: request.ReceiverClient."""

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Awaitable[ReceiverResponse]:
        """Raises ReceiverError."""


class WebhookSender:
    """`clock` is Redis' time in ms; None: that of the store. For one event loop."""

    def __init__(
        self,
        store: Store,
        keys: SigningKeys,
        receiver: Receiver,
        *,
        name: str,
        timeout_ms: int,
        retry_ms: int,
        clock: Callable[[], int] | None = None,
        console_url: str = "",
    ) -> None:
        """`console_url` is the address of the console, for links to questions; empty: deliveries have none."""
        self._store, self._keys, self._receiver, self._name = store, keys, receiver, name
        self._timeout_ms, self._retry_ms = timeout_ms, retry_ms
        self._now_ms, self._console_url = clock or store.now_ms, console_url
        self._pool = ThreadPoolExecutor(STORE_THREADS, "store")
        self._tries: set[asyncio.Task[None]] = set()
        self._busy: Counter[str] = Counter()
        self._rounds = 0
        self._log = structlog.get_logger().bind(service="webhooks")
        self._warned: set[str] = set()

    async def round(self) -> bool:
        """Queue what was noted, and start tries of what is due. Returns whether there may be more at once. Raises
        StoreUnavailable."""
        webhooks, taken, has_more = await self._on_store(self._look)
        for each in taken:
            self._busy[each.token] += 1
            task = asyncio.create_task(self._try(webhooks[each.token], each))
            self._tries.add(task)
            task.add_done_callback(self._tries.discard)
        return has_more or bool(taken)

    async def settled(self) -> None:
        """Wait for the tries that have begun."""
        while self._tries:
            await asyncio.wait(self._tries)

    async def leave(self) -> None:
        """Say that this sender ends. Raises StoreUnavailable."""
        try:
            await self._on_store(lambda: self._store.webhooks.leave(self._name))
        finally:
            self._pool.shutdown(wait=False)

    def _look(self) -> tuple[dict[str, Webhook], list[TakenDelivery], bool]:
        now_ms, queues = self._now_ms(), self._store.webhooks
        tokens = queues.wanted() if self._rounds % LOOK_AFTER == 0 else None
        try:
            found = self._store.access.webhooks(of_all_releases=True)
        except RecordUnreadable as error:
            self._warn(f"no webhook is sent by this release: {error}")
            return {}, [], False
        webhooks = {webhook.token: webhook for webhook in found}
        if tokens is not None:
            queues.want_again(webhooks, tokens)
            queues.announce(self._name, self._store.now_ms())
        self._rounds += 1
        has_more = bool(queues.queue_noted(found, now_ms))
        queues.queue_expiring(webhooks, now_ms)
        lease_ms = self._timeout_ms + MARGIN_MS
        taken, unreadable = queues.take(self._free(found), now_ms, lease_ms=lease_ms) if found else ([], {})
        for token, why in unreadable.items():
            self._warn(f"a delivery of webhook {webhooks[token].name!r} cannot be read: {why}")
        return webhooks, taken, has_more

    def _free(self, webhooks: Sequence[Webhook]) -> dict[str, int]:
        """How many deliveries each webhook may have, by token. One that is paused, or whose secret is not known here,
        gets none."""
        free = {}
        for webhook in webhooks:
            is_known = webhook.key in self._keys.by_id
            if not is_known:
                self._warn(
                    f"webhook {webhook.name!r} is not sent: its secret is derived from key {webhook.key}, and "
                    f"this process has {', '.join(self._keys.by_id)} (SLEIPNIR_WEBHOOK_KEY)"
                )
            may = is_known and webhook.paused is None
            free[webhook.token] = max(0, AT_ONCE - self._busy[webhook.token]) if may else 0
        return free

    async def _try(self, webhook: Webhook, taken: TakenDelivery) -> None:
        try:
            after, now_ms = await self._tried(webhook, taken.delivery)
            failpoints.hit("webhook_sent.after")
            await self._on_store(lambda: self._store.webhooks.tried(taken, after, now_ms))
            self._report(webhook, after)
        except Exception as error:  # Redis is away, or a bug: it is taken again when its time is over
            self._log.warning("the end of a delivery was not noted", delivery=taken.delivery.id, error=str(error))
        finally:
            self._busy[webhook.token] -= 1

    async def _tried(self, webhook: Webhook, delivery: WebhookDelivery) -> tuple[WebhookDelivery, int]:
        """The delivery after a try, and the time."""
        secret = self._keys.secret(webhook.key, f"webhook {webhook.token}")
        assert secret is not None, "webhooks without a secret get no deliveries"
        body = linked_body(webhook, delivery, self._keys, self._console_url).encode()
        now_ms = await self._on_store(self._now_ms)
        headers = signatures.headers(secret, delivery.id, now_ms, body)
        code, problem, asked_s = None, None, 0
        try:
            response = await self._receiver.post(webhook.url, headers, body)
            code, asked_s = response.status_code, response.retry_after_s
            problem = None if 200 <= code < 300 else _problem(code)
        except ReceiverError as refused:
            problem = str(refused)[:500]
        now_ms = await self._on_store(self._now_ms)
        tried = replace(
            delivery, attempts=delivery.attempts + 1, tried_ms=now_ms, status_code=code, error=problem, next_ms=None
        )
        if problem is None:
            return replace(tried, status="delivered"), now_ms
        at_ms = next_ms(
            tried.id,
            tried.attempts,
            now_ms,
            created_ms=tried.created_ms,
            for_ms=self._retry_ms,
            asked_ms=asked_s * 1000,
        )
        return replace(tried, status="failed" if at_ms is None else "waiting", next_ms=at_ms), now_ms

    async def _on_store(self, call: Callable[[], T]) -> T:
        """Call the store in a thread of its own pool: names that do not resolve must not hold it up."""

        def called() -> T:
            with self._store.errors():
                return call()

        return await asyncio.get_running_loop().run_in_executor(self._pool, called)

    def _report(self, webhook: Webhook, after: WebhookDelivery) -> None:
        facts = {"webhook": webhook.name, "delivery": after.id, "of": after.of, "attempts": after.attempts}
        if after.status == "delivered":
            self._log.debug("delivered", **facts)
        elif after.status == "failed":
            self._log.error("a delivery has failed, and is not tried again", reason=after.error, **facts)
        else:
            self._log.warning("a delivery is tried again", reason=after.error, next_ms=after.next_ms, **facts)

    def _warn(self, text: str) -> None:
        """Once: the next rounds find the same."""
        if text not in self._warned:
            if len(self._warned) > 1000:
                self._warned.clear()
            self._warned.add(text)
            self._log.warning(text)


def _problem(code: int) -> str:
    if 300 <= code < 400:
        return f"status {code}: redirects are not followed"
    return f"status {code}"
