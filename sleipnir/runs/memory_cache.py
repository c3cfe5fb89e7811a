"""The cache of results in the memory of one process, with the rules of that in Redis (store/cache.py)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from sleipnir.runs.cached_results import CacheAnswer, CacheBusy, CacheHit, CacheLease, CachePlace

MOST_ENTRIES: Final = 10_000
MOST_CHARACTERS: Final = 256 * 2**20
_HELD_MS: Final = 60_000  # of a lease, for those who ask: in one process it ends with the execution


class MemoryCache:
    """Thread-safe. `clock` gives milliseconds. When it is full, the oldest results make room."""

    def __init__(self, clock: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._entries: dict[CachePlace, tuple[str, int | None]] = {}
        self._leases: dict[CachePlace, str] = {}
        self._epochs: dict[tuple[str, str], int] = {}
        self._characters = 0

    def take(self, place: CachePlace, token: str, *, fresh: bool = False) -> CacheAnswer:
        with self._lock:
            text, until_ms = self._entries.get(place, ("", None))
            if until_ms is not None and until_ms <= self._clock():
                self._drop(place)
            elif place in self._entries and not fresh:
                return CacheHit(text)
            if self._leases.setdefault(place, token) != token:
                return CacheBusy(_HELD_MS)
            return CacheLease(place, token, self._epoch(place))

    def put(self, lease: CacheLease, text: str, ttl_ms: int | None) -> bool:
        place = lease.place
        with self._lock:
            is_ours = self._leases.get(place) == lease.token
            if not is_ours or self._epoch(place) != lease.epoch:
                return False
            del self._leases[place]
            self._drop(place)
            self._entries[place] = text, self._clock() + ttl_ms if ttl_ms else None
            self._characters += len(text)
            while len(self._entries) > MOST_ENTRIES or self._characters > MOST_CHARACTERS:
                self._drop(next(iter(self._entries)))
            return True

    def release(self, lease: CacheLease) -> None:
        with self._lock:
            if self._leases.get(lease.place) == lease.token:
                del self._leases[lease.place]

    def now_ms(self) -> int:
        return self._clock()

    def clear(self, agent: str, node: str) -> int:
        """Remove the results of a node. Returns how many."""
        with self._lock:
            self._epochs[agent, node] = self._epochs.get((agent, node), 0) + 1
            places = [place for place in self._entries if (place.agent, place.node) == (agent, node)]
            for place in places:
                self._drop(place)
            return len(places)

    def _drop(self, place: CachePlace) -> None:
        if place in self._entries:
            self._characters -= len(self._entries.pop(place)[0])

    def _epoch(self, place: CachePlace) -> str:
        return str(self._epochs.get((place.agent, place.node), 0))
