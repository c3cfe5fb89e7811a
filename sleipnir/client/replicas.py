"""Requests that are answered only when replicas of Redis have them (the setting ack_wait_replicas)."""

from __future__ import annotations

from typing import Final

from sleipnir.errors import NotReplicated
from sleipnir.settings import Settings
from sleipnir.store.store import Store

WAIT_MS: Final = 2_000  # below the socket timeout


def confirm(store: Store, settings: Settings, run_id: str, done: str, *, with_agent: bool = False) -> None:
    """Wait until replicas have what was `done` to a run, and its agent if that was stored too. Raises
    NotReplicated, and StoreUnavailable."""
    replicas = settings.ack_wait_replicas
    with store.errors():
        if not replicas or store.replicas.have_run(
            run_id, replicas=replicas, timeout_ms=WAIT_MS, with_agent=with_agent
        ):
            return
    advice = "do not submit or answer it anew, unless with the same request id or the same answer"
    raise _not_replicated(f"run {run_id!r} is {done}", replicas, advice)


def confirm_batch(store: Store, settings: Settings, batch: str) -> None:
    """Wait until replicas have a batch with its rows. Raises NotReplicated, and StoreUnavailable."""
    replicas = settings.ack_wait_replicas
    with store.errors():
        if not replicas or store.replicas.have_batch(batch, replicas=replicas, timeout_ms=WAIT_MS):
            return
    raise _not_replicated(f"batch {batch!r} is accepted", replicas, "submit its rows again only with its id")


def _not_replicated(what: str, replicas: int, advice: str) -> NotReplicated:
    return NotReplicated(
        f"{what}, but after {WAIT_MS / 1000:g} s fewer than {replicas} replicas of Redis have that "
        f"(SLEIPNIR_ACK_WAIT_REPLICAS): a fail-over now would lose it. It goes on; {advice}"
    )
