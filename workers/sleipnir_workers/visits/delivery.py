"""The end of an execution: its result is delivered to the store, or the visit is handed back.

A result counts only while its lease is held: the store refuses a late one.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import structlog

from sleipnir.errors import StoreUnavailable
from sleipnir.graph.model import Node
from sleipnir.messages import CACHE_HIT, ResultHeader, VisitCall, VisitResult
from sleipnir.runs.claims import Claim, VisitDelivery
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir_workers.consumer.drain import Drain
from sleipnir_workers.consumer.task_summary import shown_error
from sleipnir_workers.results.encoding import encoded

RETRY_S = (0.1, 0.3, 1.0, 2.0)
LATE: Final = {"refused": "late result"}


@dataclass(frozen=True)
class PreparedDelivery:
    """A result to deliver, and the summary that Flower shows once it is delivered."""

    delivery: VisitDelivery
    summary: dict[str, Any]


@dataclass(frozen=True)
class ResultDelivery:
    """The end of the executions of one worker process. Its methods return the summary that Flower shows."""

    worker: str
    settings: Settings
    store: Store
    drain: Drain

    def prepared(
        self, call: VisitCall, result: VisitResult, claim: Claim, node: Node | None, *, token: str, took_ms: int
    ) -> PreparedDelivery:
        """What to deliver for a result, and the summary once it is delivered."""
        result, values = encoded(result, call.node, self.settings.max_output_bytes)
        header = ResultHeader.of(result, worker=self.worker, started_ms=claim.started_ms, took_ms=took_ms)
        return PreparedDelivery(VisitDelivery(call, header, values, token), _summary(call, result, claim, node))

    def deliver(self, prepared: PreparedDelivery) -> dict[str, Any]:
        return prepared.summary if self._deliver_while_leased(prepared.delivery) else LATE

    def _deliver_while_leased(self, delivery: VisitDelivery) -> bool:
        """Deliver, and repeat while Redis does not answer: no visit is redelivered until it does, so the result still
        counts. A worker that drains gives up after the time of a lease."""
        deadline = time.monotonic() + self.settings.lease_s
        tries = 0
        while True:
            try:
                with self.store.errors():
                    return self.store.visits.deliver(
                        delivery.call, delivery.header, delivery.values, worker=self.worker, token=delivery.token
                    )
            except StoreUnavailable:
                if self.drain.begun.is_set() and time.monotonic() > deadline:
                    raise
                threading.Event().wait(RETRY_S[min(tries, len(RETRY_S) - 1)])
                tries += 1

    def end_without_result(self, call: VisitCall, token: str, reason: str = "") -> dict[str, Any]:
        """The executor has stopped without a result: the visit was lost, or this worker hands it back."""
        log = structlog.get_logger()
        if not reason and self.drain.over.is_set():
            reason = "drain"
        if reason and self._hand_back(call, token, reason):
            log.info("visit handed back", reason=reason)
            return {"later": f"handed back: {reason}"}
        log.info("visit stopped: cancelled or taken over")
        return {"lost": True}

    def _hand_back(self, call: VisitCall, token: str, reason: str) -> bool:
        """False also when Redis does not answer: then the lease lapses, and another worker starts the visit later."""
        try:
            with self.store.errors():
                return self.store.visits.hand_back(call, token=token, reason=reason)
        except StoreUnavailable as error:
            structlog.get_logger().warning("visit cannot be handed back", error=str(error))
            return False


def _summary(call: VisitCall, result: VisitResult, claim: Claim, node: Node | None) -> dict[str, Any]:
    if result.later_ms is not None:
        return {"later": shown_error(result.error or "put off", claim.state)}
    if result.interrupt is not None:
        return {"asks": result.interrupt.name}
    summary: dict[str, Any] = {"keys": sorted(result.delta), "next": _next_edge(call, result, claim, node)}
    summary["ok"] = result.ok
    if result.cache == CACHE_HIT:
        summary["cached"] = True
    if result.sends is not None:
        summary["sends"] = len(result.sends)
    if not result.ok:
        summary["error"] = shown_error(f"{result.error_kind or 'failed'}: {result.error or ''}", claim.state)
    return summary


def _next_edge(call: VisitCall, result: VisitResult, claim: Claim, node: Node | None) -> str | tuple[str, ...] | None:
    """The next nodes as far as the visit knows them: its own choice, or else its node's plain edges."""
    is_choice = result.next is not None or result.sends is not None
    if is_choice or not result.ok or result.calls or result.goes_on:
        return result.next
    if node is None or node.branch or claim.item is not None or call.role not in ("node", "turn"):
        return result.next
    return node.next if node.next is None or isinstance(node.next, str) else tuple(node.next)
