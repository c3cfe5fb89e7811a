"""Generations: the life of Redis' data set between restarts, fail-overs, restores and steps of its clock.

One hash in Redis is authoritative. Every scheduler pulses a few times per lease; the script compares the hash with the
server that it runs on and with the scheduler's last reply. A difference begins a new generation for all schedulers. A
person begins one after a restore that cannot be detected (`sleipnir doctor --after-restore`).

In a cluster every partition has such a hash, because nodes restart and fail over one by one. A partition that people
move to another node, while the one before goes on, stays in its generation.

In a new generation, older views of runs and cursors are dropped, no visit is taken back from a worker before
`steady_ms`, and a visit with `effect: once` that was queued under another `data` asks a person before it runs.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from sleipnir.runs.views import Generation
from sleipnir.store.connect import Client, clock_ms
from sleipnir.store.keys import Keys
from sleipnir.store.scripts import Arg, LuaScript, answers

_PULSE = LuaScript("pulse")
_MOVED = "moved?"
"""The reply of pulse.lua if another server than before has the partition, and the caller did not name all servers."""


class LastPulse(NamedTuple):
    """The generation of a partition, and when it was seen last."""

    generation: str
    at_ms: int


class Generations:
    """The hash of the deployment's generation."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def pulse(
        self,
        seen: Generation | None,
        *,
        lease_ms: int,
        gap_ms: int,
        stepped: bool = False,
        restored: bool = False,
        partition: int = 0,
    ) -> Generation:
        """The current generation of a partition: a new one if Redis has changed. `seen` is the caller's last reply.

        More than `gap_ms` without a pulse of any scheduler means that workers may have been disconnected too.
        Raises like any write while Redis refuses writes.
        """
        args: dict[str, Arg] = {
            "seen_id": seen.id if seen else "",
            "seen_pulse": seen.pulse if seen else 0,
            "fresh_id": secrets.token_hex(8),
            "lease_ms": lease_ms,
            "gap_ms": gap_ms,
            "stepped": int(stepped),
            "restored": int(restored),
            "servers": "" if self._keys.of_cluster else "-",
        }
        keys = {"generation": self._keys.generation_of(partition)}
        reply = _PULSE(self._client, keys, args)
        if reply[0] == _MOVED:
            reply = _PULSE(self._client, keys, args | {"servers": f"- {' '.join(self._client.primaries())}"})
        id_, data, since_ms, why, *numbers = reply
        return Generation(id_, data, int(since_ms), why, *map(int, numbers))

    def restored(self, *, lease_ms: int, gap_ms: int) -> Generation:
        """Begin a generation everywhere, because a person says that a backup was restored. Returns the last one."""
        for partition in range(len(self._keys.generations)):
            began = self.pulse(None, lease_ms=lease_ms, gap_ms=gap_ms, restored=True, partition=partition)
        return began

    def current(self) -> Generation | None:
        """The generation, for people; of a cluster the one that began last. None: no scheduler of a release with
        generations has run yet."""
        pipe = self._client.pipeline(transaction=False)
        for key in self._keys.generations:
            pipe.hgetall(key)
        found = [each for each in pipe.execute() if "id" in each]
        if not found:
            return None
        stored = max(found, key=lambda each: int(each.get("since_ms", 0)))
        numbers = (int(stored.get(name, 0)) for name in ("since_ms", "pulse", "steady_ms", "pulse_ms"))
        since_ms, pulse, steady_ms, pulse_ms = numbers
        id_, data, why = (stored.get(name, "") for name in ("id", "data", "why"))
        now_ms = clock_ms(self._client)
        return Generation(id_, data, since_ms, why, pulse, steady_ms, now_ms, pulse_ms)

    def last(self) -> dict[int, LastPulse]:
        """The id of each partition's generation, and when a scheduler has pulsed last, by the partition's clock. Those
        that have none yet, and those of a cluster's nodes that do not answer, are left out; raises the error of one if
        none does."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.hmget(self._keys.generation_of(partition), "id", "pulse_ms")
        replies = answers(pipe.execute(raise_on_error=False), (None, None))
        return {
            partition: LastPulse(id_, int(pulse_ms))
            for partition, (id_, pulse_ms) in enumerate(replies)
            if id_ is not None and pulse_ms is not None
        }

    def stopped(self) -> None:
        """Record that all services have stopped before Redis is stopped, so that nothing is lost. The next pulse clears
        it."""
        for key in self._keys.generations:
            if self._client.exists(key):
                self._client.hset(key, "stopped", 1)


def gap_ms(lease_s: float, heartbeat_s: float) -> int:
    """How long Redis may be unreachable without endangering a lease: half of the time between a heartbeat's end and the
    lease's end.

    The other half is for workers to reconnect. Below a second, a busy machine would look like an outage.
    """
    return int(max(1000.0, (lease_s - heartbeat_s) * 500))
