"""Knowledge bases in Redis: who builds one now, and which ones are shared.

1. A base is built by one builder at a time in the whole deployment: it holds a lease, and renews it. That of a killed
   builder lapses. Who comes second is told who builds since when, and asks again.
2. The lease saves work and money; it guards nothing that could break. A base is written in one step, so a builder that
   was frozen while another took over does no harm: one of the two bases is there in the end, complete.
3. What is on the shelf is listed by digest, so that clients know it without asking the shelf. The list is a hint, the
   shelf is the truth: who does not find what is listed indexes the base again.

All times are of Redis' clock.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.scripts import Script

_LEASE = Script("build_lease")


@dataclass(frozen=True)
class Building:
    """A build that somebody does now. `who` is for people: `host:pid`."""

    who: str
    since_ms: int


@dataclass(frozen=True)
class Shared:
    """A base on a shelf; `shelf` is the shelf's name (knowledge.files.shelf_name)."""

    digest: str
    agent: str
    node: str
    bytes_: int
    shelf: str
    at_ms: int


class Knowledge:
    """`base` is what knowledge.files.lease_name says of a base's file."""

    def __init__(self, client: Client, keys: Keys, *, lease_ms: int) -> None:
        self._client, self._keys, self._lease_ms = client, keys, lease_ms

    def take(self, base: str, token: str, who: str) -> Building | None:
        """Take the lease, or keep it for another `lease_ms`. None: it is ours; else whose it is."""
        return self._lease(base, token, who, self._lease_ms)

    def release(self, base: str, token: str) -> None:
        """Give it back; another's stays. If this is lost, it lapses."""
        self._lease(base, token, "", 0)

    def _lease(self, base: str, token: str, who: str, ttl_ms: int) -> Building | None:
        arguments: dict[str, str | bytes | int | float] = {"token": token, "who": who, "ttl_ms": ttl_ms}
        ours, holder, since_ms = _LEASE(self._client, {"build": self._keys.build(base)}, arguments)
        return None if ours else Building(str(holder), int(since_ms))

    def building(self, base: str) -> Building | None:
        """Who builds it now."""
        who, since_ms = self._client.hmget(self._keys.build(base), "who", "since_ms")
        return None if who is None else Building(who, int(since_ms))

    def share(self, digest: str, *, agent: str, node: str, bytes_: int, shelf: str) -> Shared:
        """List a base that is on a shelf. Listing it twice is safe: the last one counts."""
        seconds, micros = self._client.time()
        shared = Shared(digest, agent, node, bytes_, shelf, int(seconds) * 1000 + int(micros) // 1000)
        record = {name: value for name, value in asdict(shared).items() if name != "digest"}
        self._client.hset(self._keys.shelf, digest, json.dumps({"v": 1, **record}))
        return shared

    def shared(self, digest: str) -> Shared | None:
        text = self._client.hget(self._keys.shelf, digest)
        return None if text is None else _shared(digest, text)

    def all_shared(self) -> list[Shared]:
        """Every base that is listed, the newest first."""
        found = [_shared(digest, text) for digest, text in self._client.hgetall(self._keys.shelf).items()]
        return sorted(found, key=lambda shared: (-shared.at_ms, shared.digest))

    def forget(self, digest: str) -> bool:
        """Take a base off the list. False: it was not there. Removing it from the shelf is the caller's."""
        return bool(self._client.hdel(self._keys.shelf, digest))


def _shared(digest: str, text: str) -> Shared:
    record = json.loads(text)
    names = ("agent", "node", "bytes_", "shelf", "at_ms")
    return Shared(digest, **{name: record[name] for name in names})
