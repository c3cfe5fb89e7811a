"""Signals: sent by clients, told to the visits that wait for them (`type: wait` with `event`, `wait()`).

1. The signals of a name, and the visits that wait for them, are in the partition that follows from the name. A visit
   comes and goes by effects of its own partition; its run is told by an effect of this one.
2. A signal is kept for KEEP_MS, so that it does not matter whether it came before the visit was known here. Each visit
   remembers the last signal that it was told of, so it is told of each once. A repeated id is the same signal.
3. A signal of which visits want one for themselves (`consume: one`) is offered to one of them at a time, in order of
   arrival: when that declines it or leaves without it, the next one is asked.
4. While its run is parked, a visit is passed over: what was offered to it goes to the next one, and it gets in line
   again, at the end, when its run goes on.
5. One call of signals.lua tells PAGE visits; an effect goes on with the rest.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Final

from sleipnir.graph.model import LONGEST_LOOK_BACK_MS
from sleipnir.runs.signals import SignalInfo, SignalReceipt
from sleipnir.runs.transitions import AwaitSignal, DeclineSignal, LeaveSignal, PassSignal, SpreadSignals
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys, member, parse_member
from sleipnir.store.runs.requests import NO_FENCE, Fence
from sleipnir.store.scripts import LuaScript, RedisCommand, run_in_order

_SIGNALS = LuaScript("signals")

KEEP_MS: Final = LONGEST_LOOK_BACK_MS + 3_600_000
"""How long a signal is kept: longer than a wait may look back."""

MOST: Final = 10_000
MOST_BYTES: Final = 16 * 2**20
"""The signals of a name that are kept, and the bytes of their data."""

PAGE: Final = 200
LOOK_MS: Final = 60_000
LOOKED_AT_ONCE: Final = 1_000  # names, and visits of each


class Signals:
    """Send and list signals, and deliver the effects about them."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def send(self, name: str, id_: str, data: str) -> SignalReceipt:
        """Send a signal with this id, and data as JSON text. A known id changes nothing."""
        [reply] = run_in_order(self._client, [self._command(name, "send", id_, data=data)])
        if isinstance(reply, Exception):
            raise reply
        number, is_new, told = reply
        return SignalReceipt(id_, name, int(number) // 1000, int(told), is_new=bool(is_new))

    def recent(self, limit: int) -> list[SignalInfo]:
        """The signals that were sent last, newest first."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.xrevrange(self._keys.of_partition(partition).signals, count=limit)
        found = [fields for entries in pipe.execute() for _, fields in entries]
        newest = heapq.nlargest(limit, found, key=lambda fields: int(fields["number"]))
        return [self._info(fields["name"], fields["id"], fields["number"], data) for fields, data in self._data(newest)]

    def _data(self, found: Sequence[dict[str, str]]) -> list[tuple[dict[str, str], str | None]]:
        pipe = self._client.pipeline(transaction=False)
        for fields in found:
            pipe.hget(self._keys.of_signals(fields["name"]).board, f"d:{fields['number']}")
        return list(zip(found, pipe.execute(), strict=True))

    @staticmethod
    def _info(name: str, id_: str, number: str, data: str | None) -> SignalInfo:
        return SignalInfo(id_, name, int(number) // 1000, data)

    # Effects

    def deliver(
        self,
        fence: Fence,
        run_id: str,
        effect: AwaitSignal | LeaveSignal | DeclineSignal | PassSignal | SpreadSignals,
    ) -> RedisCommand:
        """What an effect of a run changes. `fence`: of a partition."""
        match effect:
            case AwaitSignal(name, seq, attempt, since_ms, one, sure):
                kind = ("sure" if sure else "one") if one else "every"
                since = str(max(0, since_ms) * 1000)
                return self._command(name, "await", member(run_id, seq, attempt), since, kind, fence=fence)
            case LeaveSignal(name, seq, attempt, took):
                return self._command(name, "leave", member(run_id, seq, attempt), took, fence=fence)
            case DeclineSignal(name, seq, attempt, number):
                return self._command(name, "decline", member(run_id, seq, attempt), number, fence=fence)
            case PassSignal(name, seq, attempt, number):
                return self._command(name, "pass", member(run_id, seq, attempt), number, fence=fence)
            case SpreadSignals(name):
                return self._command(name, "spread")

    def gone(self, name: str, run_id: str, seq: int, attempt: int) -> RedisCommand:
        """The run of a visit that waits is over, or not there."""
        return self._command(name, "leave", member(run_id, seq, attempt))

    def look(self, partition: int, now_ms: int) -> int:
        """Forget visits of runs that are over or missing, of the names that are due for a check. Returns how many."""
        waits = self._keys.of_partition(partition).waits
        forgotten = 0
        for name in self._client.zrangebyscore(waits, "-inf", now_ms, start=0, num=LOOKED_AT_ONCE):
            keys = self._keys.of_signals(name)
            forgotten += self._look_at(name, [*self._sample(keys.every), *self._sample(keys.one)])
            self._client.zadd(waits, {name: now_ms + LOOK_MS}, xx=True)
        return forgotten

    def _sample(self, key: str) -> list[str]:
        """All members, or some by chance of a set that is large."""
        found: Any = self._client.zrandmember(key, LOOKED_AT_ONCE)
        return list(found or ())

    def _look_at(self, name: str, visits: Sequence[str]) -> int:
        pipe = self._client.pipeline(transaction=False)
        parsed = [parse_member(visit) for visit in visits]
        for run_id, seq, _ in parsed:
            pipe.hexists(self._keys.of_run(run_id).frontier, str(seq))
        gone = [visit for visit, is_there in zip(parsed, pipe.execute(), strict=True) if not is_there]
        for reply in run_in_order(self._client, [self.gone(name, *visit) for visit in gone]):
            if isinstance(reply, Exception):
                raise reply
        return len(gone)

    def _command(
        self, name: str, wish: str, who: str = "", number: str = "", kind: str = "", *, data: str = "",
        fence: Fence = NO_FENCE,
    ) -> RedisCommand:  # fmt: skip
        keys = self._keys.of_signals(name)
        partition = self._keys.of_partition(keys.partition)
        sets = {"every": keys.every, "one": keys.one, "due": keys.due, "left": keys.left}
        shared = {"waits": partition.waits, "awaited": partition.awaited, "waiting": partition.waiting}
        shared |= {"recent": partition.signals, "effects": partition.effects}
        args: dict[str, Any] = {"name": name, "wish": wish, "who": who, "number": number, "kind": kind, "data": data}
        args |= {"source": fence.source, "fence": fence.number, "keep_ms": KEEP_MS, "most": MOST, "bytes": MOST_BYTES}
        return RedisCommand(
            _SIGNALS, _SIGNALS.vector({"board": keys.board, "log": keys.log, **sets, **shared}, args | {"page": PAGE})
        )
