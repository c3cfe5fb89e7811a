"""The card of a remote agent: where its endpoint is, and which version of the protocol it speaks there.

A card is kept for TTL_S in this process, and dropped when its endpoint gives no answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from sleipnir.errors import NodeFailed

CARD_PATH: Final = "/.well-known/agent-card.json"
TTL_S: Final = 300.0
MOST_CARD_BYTES: Final = 256 * 1024
_KEPT: Final = 256

FetchCard = Callable[[str], Mapping[str, Any]]
"""The JSON object at a URL."""


@dataclass(frozen=True)
class RemoteEndpoint:
    """Where messages go. `is_new`: version 1.0 of the protocol, else 0.3; `may_push`: it pushes notifications."""

    url: str
    is_new: bool
    may_push: bool = False


class AgentCards:
    """The cards that this process has read, by their URL. For any number of threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._kept: dict[tuple[str, str], tuple[float, RemoteEndpoint]] = {}

    def endpoint(self, url: str, token_name: str, fetch: FetchCard) -> RemoteEndpoint:
        """The endpoint of the agent at `url`; a card that was read with another token may be another one. Raises
        NodeFailed, and what `fetch` raises."""
        key = (url, token_name)
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        found = endpoint_in(fetch(card_url(url)), url)
        with self._lock:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = self._clock() + TTL_S, found
        return found

    def forget(self, url: str, token_name: str) -> None:
        """Read the card again."""
        with self._lock:
            self._kept.pop((url, token_name), None)


def card_url(url: str) -> str:
    """The URL of the card of an agent that is named by that, or by its endpoint."""
    return url if urlsplit(url).path.endswith(".json") else url.rstrip("/") + CARD_PATH


def endpoint_in(card: Mapping[str, Any], url: str) -> RemoteEndpoint:
    """The endpoint of a card that can be used here. Raises NodeFailed if there is none."""
    given = card.get("supportedInterfaces")
    listed = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    offers = [(each.get("protocolBinding"), each.get("protocolVersion"), each.get("url")) for each in listed]
    if not listed:
        offers = [(card.get("preferredTransport") or "JSONRPC", card.get("protocolVersion"), card.get("url"))]
        others = card.get("additionalInterfaces")
        for each in others if isinstance(others, list) else []:
            if isinstance(each, dict):
                offers.append((each.get("transport"), card.get("protocolVersion"), each.get("url")))
    capabilities = card.get("capabilities")
    may_push = isinstance(capabilities, dict) and capabilities.get("pushNotifications") is True
    for version in ("1.0", "0.3"):
        for binding, spoken, at in offers:
            is_spoken = isinstance(spoken, str) and (spoken == version or spoken.startswith(f"{version}."))
            if binding == "JSONRPC" and is_spoken and isinstance(at, str) and _is_url(at):
                return RemoteEndpoint(at, version == "1.0", may_push)
    raise NodeFailed(f"the card of {url} has no endpoint for JSON-RPC in version 1.0 or 0.3 of A2A", "protocol")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    plain = text.isascii() and all(character > " " for character in text) and len(text) <= 2_000
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
