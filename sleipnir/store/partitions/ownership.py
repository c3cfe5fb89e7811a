"""Which scheduler owns which partition: services/ownership.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sleipnir.runs.deployment_holds import DeploymentHolds, holds_in
from sleipnir.store.connect import BLOCK_MS_MAX
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import Arg, LuaScript, answers, run_batch
from sleipnir.store.streams import entries

_OWN = LuaScript("own")

CHANGE_S = 60  # all instances have seen it long before


@dataclass(frozen=True)
class OwnedPartition:
    """A partition that this scheduler owns: the epoch that fences its commits, and what is held."""

    epoch: int
    holds: DeploymentHolds


@dataclass(frozen=True)
class PartitionState:
    """The owner of a partition, None: it is free; and its events per second, as its last owner has measured them.
    `has_load`: the owner has; one of an earlier release does not."""

    owner: str | None
    load: float
    has_load: bool


class PartitionOwnership(PartitionConnection):
    """Own partitions, and see who owns the others."""

    def own(
        self,
        partitions: Iterable[int] | Mapping[int, str],
        instance: str,
        ttl_ms: int,
        loads: Mapping[int, float] = MappingProxyType({}),
    ) -> dict[int, OwnedPartition]:
        """Take or keep partitions; returns those that the instance owns now. `ttl_ms` 0 releases them. They may have
        their generations: a new one gives a partition a new epoch. `loads`: events per second, to be recorded.
        Partitions of a cluster's nodes that do not answer are not owned; raises the error of one if none answers."""
        wanted = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions, "")
        vectors = []
        for number, generation in wanted.items():
            partition = self._of(number)
            keys = {"owner": partition.owner, "paused": partition.paused, "holds": partition.holds}
            args: dict[str, Arg] = {"instance": instance, "ttl_ms": ttl_ms, "generation": generation}
            args["load"] = round(loads[number]) if number in loads else ""
            vectors.append(_OWN.vector(keys, args))
        replies = answers(run_batch(self._client, _OWN, vectors), (0, None, []))
        return {
            partition: OwnedPartition(int(epoch), holds_in(paused, _fields(holds)))
            for partition, (epoch, paused, holds) in zip(wanted, replies, strict=True)
            if epoch
        }

    def owners(self, partitions: Iterable[int] | None = None, ttl_ms: int = 60_000) -> dict[int, str]:
        """The current owners of these partitions (None: all); see `states`."""
        numbers = range(self._keys.partitions) if partitions is None else partitions
        states = self.states(numbers, ttl_ms)
        return {number: state.owner for number, state in states.items() if state.owner is not None}

    def states(self, partitions: Iterable[int], ttl_ms: int) -> dict[int, PartitionState]:
        """The owners and loads of these partitions. An ownership that lasts much longer than `ttl_ms` was granted
        before the clock was set back and is ignored, as in own.lua. Partitions of a cluster's nodes that do not answer
        are left out."""
        clocks = self.clocks_ms(partitions)
        pipe = self._client.pipeline(transaction=False)
        for partition in clocks:
            pipe.hmget(self._of(partition).owner, "instance", "until_ms", "load", "load_of")
        replies = answers(pipe.execute(raise_on_error=False), None)
        states: dict[int, PartitionState] = {}
        for (number, now_ms), reply in zip(clocks.items(), replies, strict=True):
            if reply is not None:
                instance, until_ms, load, load_of = reply
                is_owned = until_ms and now_ms < int(until_ms) <= now_ms + 10 * max(ttl_ms, 1_000)
                states[number] = PartitionState(instance if is_owned else None, float(load or 0), load_of == instance)
        return states

    def join(self, instance: str, ttl_ms: int) -> set[str]:
        """Register an instance as alive for `ttl_ms`; 0 removes it. Returns the instances that are alive."""
        now_ms, key = self.now_ms(), self._keys.instances
        pipe = self._client.pipeline(transaction=False)
        if ttl_ms:
            pipe.zadd(key, {instance: now_ms + ttl_ms})
        else:
            pipe.zrem(key, instance)
        pipe.zremrangebyscore(key, "-inf", now_ms - 60_000)
        # An instance that counts as alive for much longer was registered before the clock was set back.
        pipe.zrangebyscore(key, f"({now_ms}", now_ms + 10 * max(ttl_ms, 1_000))
        return set(pipe.execute()[-1])

    def tell_change(self, instance: str) -> None:
        """Let all instances look at once: this one has come, goes, or has released partitions."""
        pipe = self._client.pipeline(transaction=False)
        pipe.xadd(self._keys.instance_changes, {"instance": instance}, maxlen=1, approximate=False)
        pipe.expire(self._keys.instance_changes, CHANGE_S)
        pipe.execute()

    def await_change(self, after: str, block_ms: int) -> str | None:
        """Wait up to `block_ms` for a change after the one with this id. Returns the id of the last one; None: there
        was none."""
        reply: Any = self._client.xread({self._keys.instance_changes: after}, block=min(block_ms, BLOCK_MS_MAX))
        ids = [id_ for id_, _ in entries(reply)]
        return ids[-1] if ids else None


def _fields(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
