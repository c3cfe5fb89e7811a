"""The end of an execution: its result is delivered to the store, or the visit is handed back.

A result counts only while its lease is held: the store refuses a late one.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from sleipnir.errors import NodeFailed, StoreUnavailable
from sleipnir.graph.model import Node
from sleipnir.graph.plain import compact_json
from sleipnir.messages import (
    INSTEAD,
    MOST_KEYS,
    OVERLAY_END,
    OVERLAYS,
    SAID,
    ResultHeader,
    VisitCall,
    VisitResult,
    overlay_text,
)
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.store.visits import Claim
from sleipnir_workers.consumer.drain import Drain
from sleipnir_workers.consumer.task_summary import shown_error

RETRY_S = (0.1, 0.3, 1.0, 2.0)


@dataclass(frozen=True)
class ResultDelivery:
    """The end of the executions of one worker process. Its methods return the summary that Flower shows."""

    worker: str
    settings: Settings
    store: Store
    drain: Drain

    def deliver(
        self, call: VisitCall, result: VisitResult, claim: Claim, node: Node | None, *, token: str, took_ms: int
    ) -> dict[str, Any]:
        result, values = encoded(result, call.node, self.settings.max_output_bytes)
        header = ResultHeader.of(result, worker=self.worker, started_ms=claim.started_ms, took_ms=took_ms)
        if not self._deliver_while_leased(call, header, values, token):
            return {"refused": "late result"}
        if result.later_ms is not None:
            return {"later": shown_error(result.error or "put off", claim.state)}
        summary: dict[str, Any] = {"keys": sorted(result.delta), "next": _next_edge(call, result, claim, node)}
        summary["ok"] = result.ok
        if result.sends is not None:
            summary["sends"] = len(result.sends)
        if not result.ok:
            summary["error"] = shown_error(f"{result.error_kind or 'failed'}: {result.error or ''}", claim.state)
        return summary

    def _deliver_while_leased(
        self, call: VisitCall, header: ResultHeader, values: Mapping[str, str], token: str
    ) -> bool:
        """Deliver, and repeat while Redis does not answer: no visit is redelivered until it does, so the result still
        counts. A worker that drains gives up after the time of a lease."""
        deadline = time.monotonic() + self.settings.lease_s
        tries = 0
        while True:
            try:
                with self.store.errors():
                    return self.store.visits.deliver(call, header, values, worker=self.worker, token=token)
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


def _next_edge(call: VisitCall, result: VisitResult, claim: Claim, node: Node | None) -> str | tuple[str, ...] | None:
    """The next nodes as far as the visit knows them: its own choice, or else its node's plain edges."""
    is_choice = result.next is not None or result.sends is not None
    if is_choice or not result.ok or result.calls or result.goes_on:
        return result.next
    if node is None or node.branch or claim.item is not None or call.role not in ("node", "turn"):
        return result.next
    return node.next if node.next is None or isinstance(node.next, str) else tuple(node.next)


def encoded(result: VisitResult, node: str, limit_bytes: int) -> tuple[VisitResult, dict[str, str]]:
    """The JSON texts that the visit writes, by state key, and under OVERLAYS the updates of its commands.

    A value that cannot be stored fails the visit; the message names its key. A reserved key is left out.
    """
    if OVERLAYS in result.delta:
        result = replace(result, delta={key: value for key, value in result.delta.items() if key != OVERLAYS})
    try:
        values = {key: _json(key, value) for key, value in result.delta.items()}
        if len(values) > MOST_KEYS:
            raise NodeFailed(
                f"writes {len(values):,} state keys, at most {MOST_KEYS:,} are possible; nest them", "too_large"
            )
        if result.sends and any(send.update for send in result.sends):
            overlays = ({key: _json(key, value) for key, value in send.update.items()} for send in result.sends)
            values[OVERLAYS] = OVERLAY_END.join(map(overlay_text, overlays))
        if result.said is not None:
            lines = [_json(SAID, message) for message in result.said.messages]
            values[SAID] = "\n".join([INSTEAD, *lines] if result.said.instead else lines)
        size = sum(len(key) + len(text) for key, text in values.items())
        if size > limit_bytes:
            raise NodeFailed(
                f"writes {size:,} bytes to the state, more than SLEIPNIR_MAX_OUTPUT_BYTES={limit_bytes:,}; "
                f"the largest {_largest(values)}. Store the data in a file and write its path",
                "too_large",
            )
        return result, values
    except NodeFailed as error:
        message = f"node '{node}' {error}"
        delta = {"_error": {"node": node, "message": message}, "last_error": message}
        failure = VisitResult(ok=False, delta=delta, error=message, error_kind=error.kind, usage=result.usage)
        return failure, {key: json.dumps(value) for key, value in delta.items()}


def _largest(values: Mapping[str, str]) -> str:
    largest = max(values, key=lambda key: len(values[key]))
    return "part are the updates of its commands" if largest == OVERLAYS else f"key is {largest!r}"


def _json(key: str, value: Any) -> str:
    try:
        text = compact_json(value, allow_nan=False)
        if not (text.isascii() and key.isascii()):
            f"{key}{text}".encode()  # refuses half a surrogate pair, which could not be stored
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise NodeFailed(f"state key {key!r} is not JSON: {error}", "not_json") from None
