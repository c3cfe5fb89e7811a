"""Runs that are over without a scheduler and workers: created, and ended by one commit of the test's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sleipnir.messages import RunStatus
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import Step, Transition, Write
from sleipnir.store.partitions.commits import Commit
from sleipnir.store.store import Store


def created(store: Store, run_id: str, *, bundle: str = "digest", **spec: Any) -> None:
    assert store.runs.create(run_id, RunSpec("agent", bundle, **spec), {"initial_prompt": "hi"})


def ended(
    store: Store,
    run_id: str,
    *steps: Mapping[str, Any],
    status: RunStatus = "completed",
    revives: bool = False,
    **fields: Any,
) -> None:
    """End a run that exists, with a step for each mapping of what it writes."""
    partition = store.keys.partition_of(run_id)
    epochs = {partition: store.partitions.own([partition], "me", 60_000)[partition].epoch}
    entry = next(e for e in store.partitions.read([partition], limit=1000, block_ms=None) if e.run == run_id)
    run = store.partitions.load([run_id])[run_id]
    writes = tuple(
        Write(Step(step=run.step + number, kind="script", at_ms=5, seq=number, node="a"), values=values)
        for number, values in enumerate(steps, 1)
    )
    change = Transition(status=status, ended_ms=entry.at_ms, writes=writes, revives=revives, **fields)
    assert store.partitions.commit([Commit(entry, run, change)], epochs) == [1]


def finished(store: Store, run_id: str, *steps: Mapping[str, Any], output: str | None = "done", **spec: Any) -> None:
    """Create a run, and end it."""
    created(store, run_id, **spec)
    ended(store, run_id, *steps, output=output)
