"""Send webhooks until a stop signal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from sleipnir import hardening
from sleipnir.errors import ConfigError, SleipnirError, StoreUnavailable
from sleipnir.logs import configure
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.webhook_sender.request import ReceiverClient
from sleipnir.webhook_sender.sender import WebhookSender
from sleipnir.webhooks.addresses import AddressGuard
from sleipnir.webhooks.signatures import SigningKeys

IDLE_S: Final = 0.25
SOON_S: Final = 0.01
RETRY_S: Final = 2.0
RESOLVING: Final = 256
"""Names that are resolved at once, each by a thread while it lasts: a name server that does not answer holds up few."""


def main() -> None:
    """Read settings, send until SIGTERM or SIGINT. Exit code 1 with a message if it cannot begin."""
    hardening.refuse_inspection()
    try:
        settings = Settings.from_env()
        configure(settings)
        if settings.redis_url is None:
            raise ConfigError("SLEIPNIR_REDIS_URL is not set: name the Redis of the deployment, or use `sleipnir up`")
        allowed = AddressGuard.of(settings.webhook_networks)
        keys = SigningKeys.of_file_or_new(settings.webhook_key_file)
        asyncio.run(serve(settings, allowed, keys))
    except SleipnirError as error:
        sys.exit(f"error: {error}")


async def serve(settings: Settings, allowed: AddressGuard, keys: SigningKeys) -> None:
    """Send until a stop signal; tries that have begun are ended first. Raises StoreUnavailable if Redis does not answer
    at the start."""
    stop = asyncio.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(RESOLVING, "resolve"))
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    store = await asyncio.to_thread(Store.open, settings, client_name="sleipnir-webhooks")
    try:
        sender = WebhookSender(
            store,
            keys,
            ReceiverClient(allowed, timeout_s=settings.webhook_timeout_s),
            name=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}",
            timeout_ms=int(settings.webhook_timeout_s * 1000),
            retry_ms=int(settings.webhook_retry_s * 1000),
            console_url=settings.console_url,
        )
        structlog.get_logger().info("webhook sender starts", keys=list(keys.by_id), **settings.to_log())
        await _rounds(sender, stop)
        await sender.settled()
        with contextlib.suppress(StoreUnavailable):
            await sender.leave()
    finally:
        store.close()


async def _rounds(sender: WebhookSender, stop: asyncio.Event) -> None:
    log, is_away = structlog.get_logger(), False
    while not stop.is_set():
        try:
            pause_s = SOON_S if await sender.round() else IDLE_S
            is_away = False
        except StoreUnavailable as error:
            if not is_away:
                log.warning("the store does not answer; retrying", error=str(error))
            is_away, pause_s = True, RETRY_S
        except Exception:  # a bug in one round must not end the process; the next round starts from Redis again
            log.exception("a round failed; retrying")
            pause_s = RETRY_S
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause_s)
