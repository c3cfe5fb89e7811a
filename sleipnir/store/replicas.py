"""Whether the replicas of Redis have what was written of a run or of a batch: a fail-over loses what they have not.

WAIT counts the replicas that have all earlier writes of its own connection. So a mark is written before it, in the
partition of the run: a replica that has the mark has everything that the node wrote before, for all clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sleipnir.store.cluster import BROKEN, REDIRECTED, ClusterClient
from sleipnir.store.connect import Client
from sleipnir.store.fast_client import execute_all
from sleipnir.store.keys import Keys
from sleipnir.store.scripts import checked

MARK_S: Final = 60
TRIES: Final = 5  # the partition moves to another node, or that fails over


class Replicas:
    """Wait for replicas. `timeout_ms` is below the socket timeout."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def have_run(self, run_id: str, *, replicas: int, timeout_ms: int, with_agent: bool = False) -> bool:
        """Whether so many replicas have what was written of a run so far, and its agent if that is asked; waits up to
        `timeout_ms`, in a cluster for the node of the run and for that of the agent."""
        return self._have(self._keys.partition_of(run_id), replicas, timeout_ms, with_agent)

    def have_batch(self, batch: str, *, replicas: int, timeout_ms: int) -> bool:
        """The same for a batch and its agent."""
        return self._have(self._keys.partition_of_batch(batch), replicas, timeout_ms, True)

    def _have(self, partition: int, replicas: int, timeout_ms: int, with_agent: bool) -> bool:
        marks = [self._keys.of_partition(partition).marked]
        if with_agent and self._keys.of_cluster:
            marks.append(self._keys.marked_bundles)
        return all(self._has(mark, replicas, timeout_ms) for mark in marks)

    def _has(self, mark: str, replicas: int, timeout_ms: int) -> bool:
        """Whether so many replicas have what the node of a mark has written."""
        for _ in range(TRIES):
            written, count = _at_once(self._client, ("SET", mark, "1", "EX", MARK_S), ("WAIT", replicas, timeout_ms))
            if not isinstance(written, (*REDIRECTED, *BROKEN)):
                checked(written)
                return int(checked(count)) >= replicas
            self._client.set(mark, "1", ex=MARK_S)  # finds the node that has the partition now
        return False


def _at_once(client: Client, *commands: Sequence[Any]) -> list[Any]:
    """The replies to commands on one connection: a WAIT on another node's would confirm nothing."""
    return client.try_at_once(commands) if isinstance(client, ClusterClient) else execute_all(client, commands)
