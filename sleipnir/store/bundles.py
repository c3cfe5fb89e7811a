"""Packed agent folders by digest. Content-addressed: writing one twice is writing it once."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys


class Bundles:
    """`client` must not decode responses: a bundle is bytes."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def put(self, digest: str, packed: bytes, now_ms: int) -> None:
        """Store a bundle, or note that it is used again. Call before the run that needs it is created."""
        self._client.zadd(self._keys.bundles, {digest: now_ms})
        self._client.set(self._keys.bundle(digest), packed, nx=True)

    def touch(self, digest: str, now_ms: int) -> bool:
        """Note a use of a bundle that may be there; False when it is not and must be put."""
        self._client.zadd(self._keys.bundles, {digest: now_ms})
        return bool(self._client.exists(self._keys.bundle(digest)))

    def get(self, digest: str) -> bytes | None:
        packed: bytes | None = self._client.get(self._keys.bundle(digest))
        return packed

    def unused_since(self, before_ms: int) -> list[str]:
        """Digests that no submit has named since `before_ms`."""
        found = self._client.zrangebyscore(self._keys.bundles, "-inf", before_ms)
        return [digest.decode() for digest in found]

    def keep(self, digests: Sequence[str], now_ms: int) -> None:
        """Note that kept runs use these. One that was dropped meanwhile stays so."""
        if digests:
            self._client.zadd(self._keys.bundles, dict.fromkeys(digests, now_ms), xx=True)

    def size(self, digest: str) -> int:
        """In bytes; 0: it is not there."""
        return int(self._client.strlen(self._keys.bundle(digest)))

    def drop(self, digest: str, before_ms: int) -> bool:
        """Delete a bundle unless a submit named it since; WATCH makes the look and the deletion one step."""
        with self._client.pipeline() as pipe:
            try:
                pipe.watch(self._keys.bundles)
                used_ms = pipe.zscore(self._keys.bundles, digest)
                if used_ms is not None and used_ms > before_ms:
                    return False
                pipe.multi()
                pipe.zrem(self._keys.bundles, digest)
                pipe.delete(self._keys.bundle(digest))
                pipe.execute()
            except redis.exceptions.WatchError:
                return False
        return True
