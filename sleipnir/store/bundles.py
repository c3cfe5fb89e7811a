"""Packed agent folders by digest. Content-addressed: writing one again changes nothing."""

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
        """Store a bundle, or record a new use of it. Call before creating the run that needs it."""
        self._client.zadd(self._keys.bundles, {digest: now_ms})
        self._client.set(self._keys.bundle(digest), packed, nx=True)

    def touch(self, digest: str, now_ms: int) -> bool:
        """Record a use of a bundle; False if it is missing and must be put."""
        self._client.zadd(self._keys.bundles, {digest: now_ms})
        return bool(self._client.exists(self._keys.bundle(digest)))

    def get(self, digest: str) -> bytes | None:
        packed: bytes | None = self._client.get(self._keys.bundle(digest))
        return packed

    def unused_since(self, before_ms: int) -> list[str]:
        """Digests without a submission since `before_ms`."""
        digests = self._client.zrangebyscore(self._keys.bundles, "-inf", before_ms)
        return [digest.decode() for digest in digests]

    def keep(self, digests: Sequence[str], now_ms: int) -> None:
        """Record that stored runs use these bundles. A bundle that was dropped meanwhile is not added again."""
        if digests:
            self._client.zadd(self._keys.bundles, dict.fromkeys(digests, now_ms), xx=True)

    def size(self, digest: str) -> int:
        """The size in bytes; 0 if it does not exist."""
        return int(self._client.strlen(self._keys.bundle(digest)))

    def drop(self, digest: str, before_ms: int) -> bool:
        """Delete a bundle unless a submission has used it since; WATCH makes the check and the deletion atomic."""
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
