"""What all operations of schedulers use: the connection, the names of keys and some settings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import structlog

from sleipnir.access.audit import KEEP_MS
from sleipnir.store.connect import Client, clock_ms, clocks_ms
from sleipnir.store.keys import Keys, PartitionKeys, is_member


class PartitionConnection:
    """`redispatch_after_ms` and `retention_ms` are settings; a session keeps about `session_messages` messages, and the
    audit an entry for `audit_ms`."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        *,
        redispatch_after_ms: int,
        retention_ms: int,
        session_messages: int = 10_000,
        audit_ms: int = KEEP_MS,
    ) -> None:
        self._client, self._keys = client, keys
        self._redispatch_after_ms, self._retention_ms = redispatch_after_ms, retention_ms
        self._session_messages, self._audit_ms = session_messages, audit_ms

    def now_ms(self) -> int:
        return clock_ms(self._client)

    @property
    def has_nodes(self) -> bool:
        """Whether some partitions may be reachable and others not."""
        return self._keys.of_cluster

    def clocks_ms(self, partitions: Iterable[int]) -> dict[int, int]:
        """The clock of each partition: in a cluster, every node has its own. Partitions of nodes that do not answer are
        left out. One round trip."""
        inboxes = {self._of(number).inbox: number for number in partitions}
        return {inboxes[key]: now_ms for key, now_ms in clocks_ms(self._client, list(inboxes)).items()}

    def partition_of(self, run_id: str) -> int:
        return self._keys.partition_of(run_id)

    def _of(self, partition: int) -> PartitionKeys:
        return self._keys.of_partition(partition)

    def _first_ms(self, indexes: Sequence[str]) -> list[float]:
        """The lowest score of each index; of an empty one, infinity; minus infinity of one that cannot be read, which
        shows when it is used. One round trip: most rounds of an idle scheduler find that nothing is due anywhere."""
        pipe = self._client.pipeline(transaction=False)
        for index in indexes:
            pipe.zrange(index, 0, 0, withscores=True)
        replies = pipe.execute(raise_on_error=False)
        return [-math.inf if isinstance(first, Exception) else first[0][1] if first else math.inf for first in replies]

    def _members(self, index: str, names: Sequence[str]) -> list[str]:
        """The members that name a visit's attempt; others are removed, because they would stay at the head of the
        index."""
        members = [name for name in names if is_member(name)]
        if len(members) < len(names):
            others = [name for name in names if not is_member(name)]
            structlog.get_logger().warning(
                "members of an index that name no visit are removed", names=ascii(others[:5])
            )
            self._client.zrem(index, *(name.encode(errors="surrogateescape") for name in others))
        return members
