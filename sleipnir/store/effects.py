"""What commits owe to other runs: start a child, tell a child or a parent. Delivered by the owner of the partition.

Entries of a partition are delivered in order, each at least once; every delivery may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from sleipnir.runs import RunSpec
from sleipnir.store.commit import dumps
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.runs import Runs
from sleipnir.store.scripts import Script
from sleipnir.store.streams import entries
from sleipnir.transitions import Effect, effect_of
from sleipnir.views import RunInfo

_CHILD_ENDED = Script("child_ended")

BLOCK_MS_MAX = 2_000  # shorter than the connection's own patience


@dataclass(frozen=True)
class Owed:
    """An effect of a commit of `run`. `effect` is None for one of a newer release."""

    id: str
    partition: int
    run: str
    effect: Effect | None


class Effects:
    """`runs` is how runs are created and told."""

    def __init__(self, client: Client, keys: Keys, runs: Runs) -> None:
        self._client, self._keys, self._runs = client, keys, runs

    def read(self, partitions: Collection[int], *, limit: int, block_ms: int) -> list[Owed]:
        """The oldest undelivered effects, up to `limit` per partition; waits up to `block_ms` for the first."""
        streams = {self._keys.of_partition(partition).effects: partition for partition in partitions}
        if not streams:
            return []
        start: dict[Any, Any] = dict.fromkeys(streams, "0-0")
        reply: Any = self._client.xread(start, count=limit, block=min(block_ms, BLOCK_MS_MAX))
        found = []
        for name, batches in dict(reply or {}).items():
            for id_, fields in entries({name: batches}):
                found.append(Owed(id_, streams[name], fields["run"], effect_of(json.loads(fields["e"]))))
        return found

    def is_owed(self, owed: Owed) -> bool:
        """Whether nobody has delivered it yet."""
        return bool(self._client.xrange(self._keys.of_partition(owed.partition).effects, owed.id, owed.id))

    def delivered(self, owed: Owed) -> None:
        """It is done, and need not come again."""
        self._client.xdel(self._keys.of_partition(owed.partition).effects, owed.id)

    def spec(self, run_id: str) -> RunSpec | None:
        """What a run was submitted with; None when it has expired."""
        text = self._client.get(self._keys.of_run(run_id).spec)
        return RunSpec(**json.loads(text)) if text else None

    def start(self, child: str, spec: RunSpec, state: dict[str, Any]) -> None:
        """Accept a child run; one that exists is left alone."""
        self._runs.create(child, spec, state)

    def tell(self, child: str, what: str, by: str) -> None:
        """Pass on to a child what became of its parent; one that is over, or gone, is left alone."""
        self._runs.tell(child, what, *(("by", by, "reason", "") if what == "paused" else ()))

    def tell_run(self, run_id: str, what: str, data: dict[str, Any]) -> None:
        """Let a run know something; one that is over, or gone, is left alone."""
        self._runs.tell(run_id, "told", "what", what, "data", dumps(data))

    def result(self, run_id: str) -> tuple[RunInfo, str | None] | None:
        """How a run has ended, and its output; None when it has expired."""
        [info] = self._runs.found([run_id])
        return None if info is None else (info, self._runs.output(run_id))

    def tell_parent(self, spec: RunSpec, info: RunInfo, output: str | None) -> None:
        """Let the visit that waits for a child know how that has ended."""
        assert spec.parent is not None
        self._child_ended(
            spec.parent, spec.parent_seq, spec.parent_attempt, info.id, info.status, info.error or "",
            dumps(asdict(info.usage)) if info.usage.calls else "", dumps(output) if output is not None else "",
        )  # fmt: skip

    def tell_watchers(self, run_id: str, type_: str, data: dict[str, Any]) -> None:
        """An event for those who watch a run, if there is one. It may come twice."""
        event = dumps([[type_, data]])
        self._client.xadd(self._keys.of_run(run_id).events, {"e": event}, maxlen=1000, nomkstream=True)

    def refuse(self, run_id: str, seq: int, attempt: int, child: str, error: str) -> None:
        """Let a visit know that its child cannot be started."""
        self._child_ended(run_id, seq, attempt, child, "failed", error, "", "")

    def _child_ended(
        self, run_id: str, seq: int, attempt: int, child: str, status: str, error: str, usage: str, output: str
    ) -> None:
        run, partition = self._keys.of_run(run_id), self._keys.of_partition(self._keys.partition_of(run_id))
        _CHILD_ENDED(
            self._client,
            {"run": run.run, "inbox": partition.inbox, "delta": run.delta(seq, attempt)},
            {
                "run_id": run_id,
                "seq": seq,
                "attempt": attempt,
                "child": child,
                "status": status,
                "error": error,
                "usage": usage,
                "output": output,
            },
        )
