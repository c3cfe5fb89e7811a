"""Results of nodes in Redis, for later visits of any run (docs/graph-language.md, "Cached results").

1. A result is a key of its own that dies with its time to live. An index by node, with sizes, bounds what a node keeps
   and lets people list and clear it; it dies with its last entry.
2. One execution at a time makes the result of a key in the whole deployment: it holds a lease, and renews it. If it
   dies, the lease lapses, and exactly one of those that wait takes it.
3. Clearing begins an epoch of each listed node: a result whose execution began before is not kept. A node is listed
   with its first result; so clearing an agent, or all, is noted with its time too, which listing a node reads.
4. Everything here may be lost, and any call may be repeated.

All times are of Redis' clock.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator

from sleipnir.runs.cached_results import CacheAnswer, CacheBusy, CacheHit, CacheLease, CachePlace, CacheUse
from sleipnir.settings import Settings
from sleipnir.store.connect import Client, clock_ms
from sleipnir.store.keys import CacheKeys, Keys, cache_name, cache_of_name
from sleipnir.store.scripts import LuaScript, run_batch

_TAKE = LuaScript("cache_take")
_PUT = LuaScript("cache_put")
_LEASE = LuaScript("cache_lease")
_CLEAR = LuaScript("cache_clear")

MOST_ENTRIES = 100_000
"""Of one node."""

_PAGE = 1_000
_MOST_OTHERS = 100
"""Entries that make room for one."""
_DAY_MS = 24 * 3_600_000


class CacheStore:
    """The cache of a deployment: a ResultCache for workers, and what people ask."""

    def __init__(self, client: Client, keys: Keys, *, lease_ms: int, longest_ms: int, node_bytes: int) -> None:
        self._client, self._keys = client, keys
        self._lease_ms, self._longest_ms, self._node_bytes = lease_ms, longest_ms, node_bytes

    @classmethod
    def of(cls, client: Client, keys: Keys, settings: Settings) -> CacheStore:
        longest_ms = int(settings.cache_retention_s * 1000)
        lease_ms = int(settings.lease_s * 1000)
        return cls(client, keys, lease_ms=lease_ms, longest_ms=longest_ms, node_bytes=settings.cache_node_bytes)

    # Workers

    def take(self, place: CachePlace, token: str, *, fresh: bool = False) -> CacheAnswer:
        keys = self._of(place)
        kind, answer, *begun_ms = _TAKE(
            self._client,
            {"entry": keys.entry(place.digest), "lease": keys.lease(place.digest), "use": keys.use},
            {"token": token, "lease_ms": self._lease_ms, "fresh": int(fresh)},
        )
        match kind:
            case 2:
                return CacheHit(answer)
            case 1:
                return CacheLease(place, token, answer, *begun_ms)
        return CacheBusy(int(answer))

    def put(self, lease: CacheLease, text: str, ttl_ms: int | None) -> bool:
        place, keys = lease.place, self._of(lease.place)
        ttl_ms = min(ttl_ms or self._longest_ms, self._longest_ms)
        others, cleared_ms = self._list(place, ttl_ms, len(text.encode()))
        if cleared_ms >= lease.begun_ms:
            self.release(lease)
            return False
        kept = _PUT(
            self._client,
            [keys.entry(place.digest), keys.lease(place.digest), keys.index, keys.sizes, keys.use]
            + [keys.entry(digest) for digest in others],
            {
                "token": lease.token,
                "epoch": lease.epoch,
                "digest": place.digest,
                "text": text,
                "ttl_ms": ttl_ms,
                "most_entries": MOST_ENTRIES,
                "most_bytes": self._node_bytes,
            },
            others,
        )
        return bool(kept)

    def _list(self, place: CachePlace, ttl_ms: int, more_bytes: int) -> tuple[list[str], int]:
        """List the node for people. Before there is a result: afterwards, a repeated call would not know of it. Returns
        the digests of entries that may make room for one of so many bytes, those that expire first at the front (if
        too few are found, the next result finds more), and when its agent, or all, were cleared last."""
        now_ms, keys = self.now_ms(), self._of(place)
        pipe = self._client.pipeline(transaction=False)
        pipe.zadd(self._keys.caches, {cache_name(place.agent, place.node): now_ms + ttl_ms}, gt=True)
        pipe.zremrangebyscore(self._keys.caches, "-inf", now_ms)
        pipe.zrangebyscore(keys.index, "-inf", now_ms, start=0, num=_MOST_OTHERS)
        pipe.zcard(keys.index)
        pipe.hget(keys.use, "bytes")
        pipe.zmscore(self._keys.caches_cleared, [cache_name("", ""), cache_name(place.agent, "")])
        _, _, expired, entries, bytes_, cleared = pipe.execute()
        cleared_ms = int(max((score for score in cleared if score is not None), default=-1))
        if entries >= MOST_ENTRIES or int(bytes_ or 0) + more_bytes > self._node_bytes:
            return list(self._client.zrange(keys.index, 0, _MOST_OTHERS)), cleared_ms
        return list(expired), cleared_ms

    def release(self, lease: CacheLease) -> None:
        self._leases([lease], 0)

    def renew(self, leases: Iterable[CacheLease]) -> None:
        """Renew these leases: one round trip for all. One that has lapsed is another one's, or free."""
        self._leases(leases, self._lease_ms)

    def _leases(self, leases: Iterable[CacheLease], lease_ms: int) -> None:
        vectors = [
            _LEASE.vector(
                {"lease": self._of(lease.place).lease(lease.place.digest)}, {"token": lease.token, "lease_ms": lease_ms}
            )
            for lease in leases
        ]
        for reply in run_batch(self._client, _LEASE, vectors):
            if isinstance(reply, Exception):
                raise reply

    def now_ms(self) -> int:
        return clock_ms(self._client)

    def _of(self, place: CachePlace) -> CacheKeys:
        return self._keys.of_cache(place.agent, place.node)

    # People

    def uses(self, agent: str | None = None, node: str | None = None) -> list[CacheUse]:
        """The nodes with cached results, by agent and node; only those of an agent, or one node of it."""
        now_ms = self.now_ms()
        self._client.zremrangebyscore(self._keys.caches, "-inf", now_ms)
        return sorted(self._uses(agent, node, now_ms), key=lambda use: (use.agent, use.node))

    def _uses(self, agent: str | None, node: str | None, now_ms: int) -> Iterator[CacheUse]:
        for page in self._names():
            names = [name for name in page if _is_of(name, agent, node)]
            pipe = self._client.pipeline(transaction=False)
            for name in names:
                keys = self._keys.of_cache(*name)
                pipe.zcount(keys.index, f"({now_ms}", "+inf")
                pipe.zrange(keys.index, -1, -1, withscores=True)
                pipe.hget(keys.use, "bytes")
            replies = iter(pipe.execute())
            for name in names:
                entries, last, size = next(replies), next(replies), next(replies)
                if entries:
                    yield CacheUse(*name, int(entries), int(size or 0), int(last[0][1]))

    def _names(self) -> Iterator[list[tuple[str, str]]]:
        start = 0
        while page := self._client.zrange(self._keys.caches, start, start + _PAGE - 1):
            yield [cache_of_name(name) for name in page]
            start += _PAGE

    def clear(self, agent: str | None = None, node: str | None = None) -> int:
        """Remove the cached results of all agents, of one, or of one node of it. Returns how many. What is executed now
        is not kept. Safe to repeat."""
        if agent is not None and node is not None:
            return self._clear(self._keys.of_cache(agent, node))
        self._note_cleared(agent or "")
        names = [name for page in self._names() for name in page if _is_of(name, agent, node)]
        return sum(self._clear(self._keys.of_cache(*name)) for name in names)

    def _note_cleared(self, agent: str) -> None:
        """First results that are being made now, of nodes that are not listed yet, will not be kept."""
        now_ms, key = self.now_ms(), self._keys.caches_cleared
        pipe = self._client.pipeline(transaction=False)
        pipe.zadd(key, {cache_name(agent, ""): now_ms})
        pipe.zremrangebyscore(key, "-inf", now_ms - _DAY_MS)
        pipe.pexpire(key, _DAY_MS)
        pipe.execute()

    def _clear(self, keys: CacheKeys) -> int:
        """The first call begins the epoch: what is put into the index afterwards is of executions that began later."""
        removed, page, epoch = 0, list[str](), secrets.token_hex(8)
        while True:
            removed += int(
                _CLEAR(
                    self._client,
                    [keys.index, keys.sizes, keys.use, *map(keys.entry, page)],
                    {"epoch": epoch, "keep_ms": self._longest_ms + _DAY_MS},
                    page,
                )
            )
            is_last = 0 < len(page) < _PAGE
            page = [] if is_last else list(self._client.zrange(keys.index, 0, _PAGE - 1))
            if not page:
                return removed


def _is_of(name: tuple[str, str], agent: str | None, node: str | None) -> bool:
    return agent in (None, name[0]) and node in (None, name[1])
