"""Results of nodes that are kept for later visits, and what a cache answers to a worker, or to this process.

A cache may lose everything at any time, and answers to no one but the executors of visits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from sleipnir.decoding import read_text
from sleipnir.graph.plain import compact_json
from sleipnir.messages import CACHE_HIT, VERSION, Send, VisitResult


@dataclass(frozen=True)
class CachedResult:
    """What a visit wrote, and where it led, as the cache holds it. `updates` are what a node of a graph written in
    Python returned, where a caller in this process gets it."""

    delta: Mapping[str, Any]
    next: str | tuple[str, ...] | None = None
    sends: tuple[tuple[str, Mapping[str, Any]], ...] | None = None
    updates: tuple[Any, ...] | None = None
    v: int = VERSION

    @classmethod
    def text_of(cls, result: VisitResult, updates: tuple[Any, ...] | None = None) -> str:
        """The record of a result. Raises TypeError and ValueError for one that JSON cannot hold."""
        sends = None if result.sends is None else tuple((send.to, send.update) for send in result.sends)
        kept = cls(result.delta, result.next, sends, updates)
        text = compact_json({name: value for name, value in vars(kept).items() if value is not None}, allow_nan=False)
        text.encode()
        return text

    @classmethod
    def read(cls, text: str) -> CachedResult:
        """Raises RecordUnreadable."""
        return read_text(cls, text, "cached result")

    def result(self) -> VisitResult:
        """As of a visit that was executed: its commands route again. Nothing was used."""
        sends = None if self.sends is None else tuple(Send(to, update) for to, update in self.sends)
        return VisitResult(
            True, self.delta, next=self.next, sends=sends, notes=("result from the cache",), cache=CACHE_HIT
        )


def may_be_kept(result: VisitResult) -> bool:
    """Whether a later visit may have the same result: it has succeeded, asks nothing, and has no effect besides."""
    others = (result.interrupt, result.later_ms, result.said)
    if any(mark.startswith("recovered") for mark in result.callbacks):
        return False
    return result.ok and not (result.calls or result.goes_on or result.returns or any(o is not None for o in others))


@dataclass(frozen=True)
class CachePlace:
    """Where a result is kept: by its node, and under the digest of what it depends on."""

    agent: str
    node: str
    digest: str


@dataclass(frozen=True)
class CacheHit:
    """The result is there."""

    text: str


@dataclass(frozen=True)
class CacheLease:
    """The caller executes the visit, and others wait for its result. It counts if the cache was not cleared since."""

    place: CachePlace
    token: str
    epoch: str
    begun_ms: int = 0


@dataclass(frozen=True)
class CacheBusy:
    """Another visit is executed whose result this one will have. Its lease lapses in `lease_ms` unless renewed."""

    lease_ms: int


CacheAnswer: TypeAlias = CacheHit | CacheLease | CacheBusy


class ResultCache(Protocol):
    """What an executor asks of a cache. Any method may raise StoreUnavailable."""

    def take(self, place: CachePlace, token: str, *, fresh: bool = False) -> CacheAnswer:
        """The result, or the lease to make it. `fresh`: the result that is there cannot be used."""

    def put(self, lease: CacheLease, text: str, ttl_ms: int | None) -> bool:
        """Keep a result, and release the lease. False: it is not kept."""

    def release(self, lease: CacheLease) -> None:
        """There is no result to keep; the next one may execute. Safe to repeat."""

    def now_ms(self) -> int:
        """The clock of the runs."""


@dataclass(frozen=True)
class CacheUse:
    """The cached results of one node: how many, how large in bytes, and until when the last one is kept."""

    agent: str
    node: str
    entries: int
    bytes_: int
    until_ms: int

    def to_data(self) -> dict[str, Any]:
        return {name.rstrip("_"): value for name, value in dataclasses.asdict(self).items()}
