"""The states that queued turns of threads take from the runs before them (queue_turn.lua, begin_turn.lua)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleipnir.errors import RecordUnreadable
from sleipnir.messages import FINAL
from sleipnir.runs.threads import ThreadName
from sleipnir.runs.values import TurnState, WantedTurn
from sleipnir.store.keys import last_run_keys
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import Arg, LuaScript

_BEGIN_TURN = LuaScript("begin_turn")
_BEGUN, _GONE = 1, -3


class TurnStates(PartitionConnection):
    """Let queued turns begin."""

    def take_turn(self, run_id: str, wanted: WantedTurn) -> TurnState | RecordUnreadable:
        """Make a queued turn the last run of its thread, with its state, or read the values that it folds; safe to
        repeat."""
        if (name := ThreadName.of(wanted.spec)) is None:
            raise TypeError("a turn needs its thread")
        last = self._client.hget(self._keys.of_thread(name), "run") or ""
        try:
            state = self._unfolded(run_id, last, wanted) if wanted.folds else None
        except (ValueError, RecursionError) as error:
            return RecordUnreadable("state", run_id, f"damaged: {ascii(str(error))[1:200]}")
        return self._begin(run_id, name, last, wanted) if state is None else state

    def _unfolded(self, run_id: str, last: str, wanted: WantedTurn) -> TurnState | None:
        """The values to fold. None: it has begun."""
        run, before = self._keys.of_run(run_id), self._keys.of_run(last)
        pipe = self._client.pipeline()  # one moment
        pipe.hexists(run.run, "queued")
        pipe.hmget(run.state, wanted.folds)
        pipe.hmget(before.run, "status", "ended_ms")
        pipe.hmget(before.state, wanted.folds)
        is_queued, own, (status, ended_ms), values = pipe.execute()
        if not is_queued or status is None:
            return None  # the script says which
        if status not in FINAL or ended_ms is None:
            return TurnState()
        return TurnState(own=_read(wanted, own), before=_read(wanted, values), ended_ms=ended_ms)

    def _begin(self, run_id: str, name: ThreadName, last: str, wanted: WantedTurn) -> TurnState:
        run, partition = self._keys.of_run(run_id), self._of(self.partition_of(run_id))
        keys = {
            "run": run.run, "state": run.state, "journal": run.journal, "thread": self._keys.of_thread(name),
            "threads": partition.threads, "expiring": partition.expiring, **last_run_keys(self._keys.of_run(last)),
        }  # fmt: skip
        args: dict[str, Arg] = {
            "run_id": run_id, "name": str(name), "last": last, "ended_ms": wanted.ended_ms,
            "expire_ms": self._retention_ms,
        }  # fmt: skip
        folded: list[Arg] = [part for pair in wanted.folded.items() for part in pair]
        code, other = _BEGIN_TURN(self._client, keys, args, folded)
        if code == _GONE:
            return TurnState(lost=f"the last run {other} of thread {name.name!r} is gone, and its state with it")
        return TurnState(begun=code == _BEGUN)


def _read(wanted: WantedTurn, texts: list[str | None]) -> Mapping[str, Any]:
    return {key: json.loads(text) for key, text in zip(wanted.folds, texts, strict=True) if text is not None}
