"""The lease of a running build (sleipnir/store/knowledge.py): take it or wait for it, renew it, release it."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import structlog

from sleipnir.errors import KnowledgeError, StoreUnavailable
from sleipnir.knowledge.files import lease_name, pin_name
from sleipnir.knowledge.order import Order, Progress
from sleipnir.settings import Settings
from sleipnir.store.knowledge import RunningBuild
from sleipnir.store.store import Store

RETRY_S = 0.2


class Lease:
    """A lease that this process holds, or held."""

    def __init__(self, store: Store, order: Order) -> None:
        self.name = pin_name(order.agent, order.node)
        self._store, self._base = store, lease_name(Path(order.folder), order.node)
        self._token, self._who = secrets.token_hex(16), f"{socket.gethostname()}:{os.getpid()}"
        self._holder: RunningBuild | None = None

    def take(self) -> RunningBuild | None:
        """Take or renew it. Returns the build that holds it instead, or None. Raises StoreUnavailable."""
        with self._store.errors():
            return self._store.knowledge.take(self._base, self._token, self._who)

    def keep(self) -> None:
        """Renew it. While Redis is away it may lapse; the next renewal takes it again."""
        try:
            self._holder = self.take()
        except StoreUnavailable as error:
            structlog.get_logger().warning("the lease of a build cannot be renewed; repeating", error=str(error))

    def check(self) -> None:
        """Raises KnowledgeError once another builder has it: it has lapsed while this process or Redis was frozen."""
        if self._holder is not None:
            raise KnowledgeError(
                f"the build of knowledge base {self.name!r} was taken over by {self._holder.who}, because "
                "this builder did not renew its lease in time",
                "store",
                transient=True,
            )

    def give_back(self) -> None:
        """Release it. If Redis is away, it lapses."""
        try:
            with self._store.errors():
                self._store.knowledge.release(self._base, self._token)
        except StoreUnavailable as error:
            structlog.get_logger().warning("the lease of a build lapses", error=str(error))


@contextmanager
def leased(
    store: Store,
    order: Order,
    settings: Settings,
    report: Callable[[Progress], None],
    also: Callable[[], None] = lambda: None,
) -> Iterator[Lease]:
    """Hold the lease of a base; `also` is called with each heartbeat.

    Waits while another builder has it, which `report` gets; raises KnowledgeError if the order does not wait.
    """
    lease = Lease(store, order)
    try:
        waited = _wait(lease, order, report)
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(lease, store, settings, stop, also), name="lease", daemon=True)
        beat.start()
        try:
            yield waited
        finally:
            stop.set()
            beat.join()
    finally:
        lease.give_back()


def _wait(lease: Lease, order: Order, report: Callable[[Progress], None]) -> Lease:
    began_s, pause = time.monotonic(), threading.Event()
    reported: tuple[int, str] | None = None
    while (holder := lease.take()) is not None:
        since = datetime.fromtimestamp(holder.since_ms / 1000).astimezone()
        what = f"{holder.who} builds {lease.name} since {since:%H:%M:%S}"
        if not order.wait:
            raise KnowledgeError(f"knowledge base {lease.name!r} is being built: {what}", "store", transient=True)
        progress = (int(time.monotonic() - began_s), what)
        if progress != reported:
            report(Progress("wait", progress[0], None, what))
            reported = progress
        pause.wait(RETRY_S)
    return lease


def _beat(lease: Lease, store: Store, settings: Settings, stop: threading.Event, also: Callable[[], None]) -> None:
    while not stop.wait(settings.heartbeat_s):
        try:
            lease.keep()
            with store.errors():
                also()
        except StoreUnavailable:
            pass  # keep() has logged it
        except Exception:
            # The thread must outlive any single failure: without it the lease lapses.
            structlog.get_logger().exception("heartbeat failed; repeating")
