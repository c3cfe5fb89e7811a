"""Slots of agents with a limit of concurrent runs (`concurrency:`): their holders and waiters.

1. The runs of an agent with the same key share a set of slots in one partition. A run asks there by an effect of its
   own partition, and is notified by an effect of this one.
2. A run is identified by its ticket: repeated requests and releases change nothing, and a late release does not free a
   slot that the run has requested since. Requests and releases of one partition arrive in order: an effect that arrives
   after a later one of its partition changes nothing, for KNOWN_MS.
3. A slot is held until the run of its ticket is over. The owner of the partition checks this every LOOK_MS, in case a
   late message left a slot that would never be freed; it also notifies runs again that have not received their slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from sleipnir.decoding import decoded_object
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import FINAL
from sleipnir.runs.events import SLOT_GRANTED
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys, SlotKeys
from sleipnir.store.record_text import dumps
from sleipnir.store.runs import Runs
from sleipnir.store.runs.requests import NO_FENCE, Fence
from sleipnir.store.scripts import LuaScript, RedisCommand, run_in_order

_SLOTS = LuaScript("slots")

LOOK_MS: Final = 60_000
KNOWN_MS: Final = 3_600_000  # after the last change of a set: no scheduler is frozen for so long
SETS = 1000  # sets that one check visits, and slots of each


class Slots:
    """`runs` notifies the runs that are granted a slot."""

    def __init__(self, client: Client, keys: Keys, runs: Runs) -> None:
        self._client, self._keys, self._runs = client, keys, runs

    def ask(self, fence: Fence, run_id: str, agent: str, key: str, ticket: int, limit: int) -> RedisCommand:
        """Let a run have a slot, or wait for one; slots.lua says how it replies. `fence`: of a partition."""
        return self._command(self._keys.of_slots(agent, key), "ask", run_id, ticket, limit, fence)

    def free(self, fence: Fence, run_id: str, agent: str, key: str, ticket: int) -> RedisCommand:
        """Give up the slot that a run holds or waits for."""
        return self._command(self._keys.of_slots(agent, key), "free", run_id, ticket, 0, fence)

    def look(self, partition: int, now_ms: int, limit: int = SETS) -> int:
        """Free slots of finished or missing runs in the sets of the partition that are due for a check; up to `limit`
        sets and slots of each. Returns how many were freed."""
        sets = self._keys.of_partition(partition).slots
        freed = 0
        for digest in self._client.zrangebyscore(sets, "-inf", now_ms, start=0, num=limit):
            keys = self._keys.of_slot_set(digest)
            held = self._client.zrangebyscore(keys.holders, "-inf", now_ms - LOOK_MS, start=0, num=limit)
            freed += self._look_at(keys, held, now_ms)
            if len(held) < limit:
                self._client.zadd(sets, {digest: now_ms + LOOK_MS}, xx=True)
        return freed

    def _look_at(self, keys: SlotKeys, held: Sequence[str], now_ms: int) -> int:
        pipe = self._client.pipeline(transaction=False)
        for run_id, _ in map(_parsed, held):
            pipe.hmget(self._keys.of_run(run_id).run, ["status", "slot"])
        over: list[RedisCommand] = []
        late: list[RedisCommand] = []
        needed: list[str] = []
        for name, (status, slot) in zip(held, pipe.execute(), strict=True):
            run_id, ticket = _parsed(name)
            try:
                asked = decoded_object(slot, "slot", run_id) if slot and status not in FINAL else {}
            except RecordUnreadable:  # its run is parked, and keeps its slot
                needed.append(name)
                continue
            if asked.get("ticket") != ticket:
                over.append(self._command(keys, "free", run_id, ticket))
                continue
            needed.append(name)
            if not asked.get("granted"):
                late.append(
                    self._runs.notification(run_id, "told", "what", SLOT_GRANTED, "data", dumps({"ticket": ticket}))
                )
        if needed:
            self._client.zadd(keys.holders, dict.fromkeys(needed, now_ms), xx=True)
        for reply in run_in_order(self._client, [*over, *late]):
            if isinstance(reply, Exception):
                raise reply
        return len(over)

    def _command(
        self,
        keys: SlotKeys,
        wish: Literal["ask", "free"],
        run_id: str,
        ticket: int,
        limit: int = 0,
        fence: Fence = NO_FENCE,
    ) -> RedisCommand:
        partition = self._keys.of_partition(keys.partition)
        slots = {
            "limit": keys.limit,
            "holders": keys.holders,
            "waiters": keys.waiters,
            "sets": partition.slots,
            "effects": partition.effects,
            "known": keys.known,
        }
        args: dict[str, Any] = {"digest": keys.digest, "wish": wish, "run_id": run_id, "ticket": ticket}
        args |= {"most": limit, "look_ms": LOOK_MS, "source": fence.source, "number": fence.number}
        return RedisCommand(_SLOTS, _SLOTS.vector(slots, args | {"known_ms": KNOWN_MS}))


def _parsed(member: str) -> tuple[str, int]:
    run_id, ticket = member.rsplit("/", 1)
    return run_id, int(ticket)
