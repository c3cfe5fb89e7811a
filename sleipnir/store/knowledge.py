"""Knowledge bases in Redis: builds in progress, and shared indexes.

1. One builder at a time builds a base in the whole deployment: it holds a lease and renews it. The lease of a killed
   builder lapses. A second builder learns who is building since when, and asks again.
2. The lease only saves work and money. A base is written atomically, so a builder that was frozen while another took
   over does no harm: one of the two bases remains, complete.
3. The contents of the index store are listed by digest, so that clients need not read the index store. The list is a
   hint, the index store is authoritative: a missing index is built again.

All times are of Redis' clock.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import redis

from sleipnir.store.connect import Client, clock_ms
from sleipnir.store.keys import Keys
from sleipnir.store.scripts import LuaScript

_LEASE = LuaScript("build_lease")


@dataclass(frozen=True)
class RunningBuild:
    """A build in progress. `who` is for people: `host:pid`."""

    who: str
    since_ms: int


@dataclass(frozen=True)
class SharedIndex:
    """A base in an index store; `shelf` is the index store's name (knowledge.files.index_store_name)."""

    digest: str
    agent: str
    node: str
    bytes_: int
    shelf: str
    at_ms: int


class Knowledge:
    """`base` is knowledge.files.lease_name of a base's file."""

    def __init__(self, client: Client, keys: Keys, *, lease_ms: int) -> None:
        self._client, self._keys, self._lease_ms = client, keys, lease_ms

    def take(self, base: str, token: str, who: str) -> RunningBuild | None:
        """Take the lease, or renew it for `lease_ms`. None: the caller has it; else the running build."""
        return self._lease(base, token, who, self._lease_ms)

    def release(self, base: str, token: str) -> None:
        """Release the caller's lease. If the call is lost, the lease lapses."""
        self._lease(base, token, "", 0)

    def _lease(self, base: str, token: str, who: str, ttl_ms: int) -> RunningBuild | None:
        arguments: dict[str, str | bytes | int | float] = {"token": token, "who": who, "ttl_ms": ttl_ms}
        taken, holder, since_ms = _LEASE(self._client, {"build": self._keys.build(base)}, arguments)
        return None if taken else RunningBuild(str(holder), int(since_ms))

    def building(self, base: str) -> RunningBuild | None:
        """The running build of a base."""
        who, since_ms = self._client.hmget(self._keys.build(base), "who", "since_ms")
        return None if who is None else RunningBuild(who, int(since_ms))

    def share(self, digest: str, *, agent: str, node: str, bytes_: int, shelf: str) -> SharedIndex:
        """List a base that is in an index store. Safe to repeat: the last entry wins."""
        shared = SharedIndex(digest, agent, node, bytes_, shelf, clock_ms(self._client))
        record = {name: value for name, value in asdict(shared).items() if name != "digest"}
        self._client.hset(self._keys.shelf, digest, json.dumps({"v": 1, **record}))
        return shared

    def shared(self, digest: str) -> SharedIndex | None:
        text = self._client.hget(self._keys.shelf, digest)
        return None if text is None else _shared(digest, text)

    def use(self, digest: str) -> SharedIndex | None:
        """The entry as of `shared`; also records a use, so that `gc` keeps a base that a submission needs or that is
        about to be shared."""
        self._client.zadd(self._keys.bases_used, {digest: clock_ms(self._client)})
        return self.shared(digest)

    def unused_since(self, before_ms: int) -> list[SharedIndex]:
        """Listed bases that were listed before then, and that no submission has used since."""
        used = dict(self._client.zrange(self._keys.bases_used, 0, -1, withscores=True))
        return [each for each in self.all_shared() if max(each.at_ms, used.get(each.digest, 0)) <= before_ms]

    def used_since(self, before_ms: int) -> set[str]:
        """The digests that submissions and builders have used since then."""
        return set(self._client.zrange(self._keys.bases_used, before_ms + 1, "+inf", byscore=True))

    def forget_unused(self, digest: str, before_ms: int) -> bool:
        """Remove a base from the list, unless a submission has used it since; WATCH makes the check and the removal
        atomic."""
        with self._client.pipeline() as pipe:
            try:
                pipe.watch(self._keys.bases_used, self._keys.shelf)
                used_ms = pipe.zscore(self._keys.bases_used, digest)
                if used_ms is not None and used_ms > before_ms:
                    return False
                pipe.multi()
                pipe.hdel(self._keys.shelf, digest)
                pipe.zrem(self._keys.bases_used, digest)
                pipe.execute()
            except redis.exceptions.WatchError:
                return False
        return True

    def all_shared(self) -> list[SharedIndex]:
        """All listed bases, the newest first."""
        indexes = [_shared(digest, text) for digest, text in self._client.hgetall(self._keys.shelf).items()]
        return sorted(indexes, key=lambda shared: (-shared.at_ms, shared.digest))

    def forget(self, digest: str) -> bool:
        """Remove a base from the list. False: it was not listed. The caller removes it from the index store."""
        self._client.zrem(self._keys.bases_used, digest)
        return bool(self._client.hdel(self._keys.shelf, digest))


def _shared(digest: str, text: str) -> SharedIndex:
    record = json.loads(text)
    names = ("agent", "node", "bytes_", "shelf", "at_ms")
    return SharedIndex(digest, **{name: record[name] for name in names})
