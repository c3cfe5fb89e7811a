"""Forks: runs that go on from a checkpoint of another run, their source, which stays as it is.

The past is referred to, not repeated: the journal of a fork begins with a step that names the run and the step that it
goes on from, and the nodes of the next super-step open as they would have in the source. A fork is a run of its own:
its visits, gates and child runs are new, and its cost begins at zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sleipnir.errors import UsageError
from sleipnir.graph.plain import first_not_json
from sleipnir.graph.state import problem, to_json
from sleipnir.runs.checkpoints import CheckpointReader
from sleipnir.runs.run import Checkpoint, Fork, RunSpec

if TYPE_CHECKING:
    from sleipnir.client.preparation import Preparation
    from sleipnir.graph.model import Graph
    from sleipnir.store.store import Store

TRIES = 5
"""How often a fork of a run that goes on meanwhile is tried."""


@dataclass(frozen=True)
class ForkPoint:
    """A checkpoint to fork from. `last` is the last step of the source; `is_present`: no step after the checkpoint has
    written anything, so that its state is the current one."""

    checkpoint: Checkpoint
    last: int
    is_present: bool


def fork(
    store: Store,
    preparation: Preparation,
    source: str,
    *,
    at: int | None,
    before: str | None,
    state: Mapping[str, Any],
    agent: str | Path | None,
) -> str:
    """Submit a fork of the run `source`; its id. Raises as Run.fork."""
    if at is not None and before is not None:
        raise UsageError("a fork begins at a step or before a node, not both")
    with store.errors():
        spec = store.runs.spec(source)
    again, graph, roster = preparation.fork(spec, agent)
    _refuse_kind(source, spec, graph)
    changes = _changes(graph, state)
    with store.errors():
        if roster is not None:
            preparation.offer(roster)
        for _ in range(TRIES):
            point = _point(store, source, spec, graph, at, before)
            _refuse_open(source, point.checkpoint, graph, is_other=agent is not None)
            copied = {} if point.is_present else store.runs.fold(source, point.checkpoint.step)
            run_id = preparation.fork_id(source)
            last = point.last if point.is_present else None
            submitted = replace(again, fork=Fork(source, point.checkpoint))
            if store.runs.fork(run_id, submitted, last_step=last, state=copied, changes=changes):
                return run_id
    raise UsageError(f"run {source!r} goes on while it is forked; pause it, or name a step that has passed (--at)")


def _refuse_kind(source: str, spec: RunSpec, graph: Graph) -> None:
    if graph.engine != "bsp":
        raise UsageError(
            f"run {source!r} is of the engine {graph.engine!r}; only runs of the engine 'bsp' can be forked"
        )
    if spec.session is not None:
        raise UsageError(f"run {source!r} is in the session {spec.session!r}; runs in sessions cannot be forked")


def _changes(graph: Graph, state: Mapping[str, Any]) -> dict[str, Any]:
    """The given values in their stored form. Raises UsageError with all that do not fit."""
    declared = graph.state
    values = {key: to_json(declared[key], value) if key in declared else value for key, value in state.items()}
    wrong = [f"state key {key!r} {why}" for key in values if (why := first_not_json({key: values[key]}))]
    wrong += [f"state key {key!r} is written by the runtime" for key in values if key == "_next"]
    if not wrong:
        wrong = [
            f"state key {key!r} {why}"
            for key, value in values.items()
            if key in declared and (why := problem(declared[key], value))
        ]
    if wrong:
        raise UsageError("a fork cannot begin with these values:" + "".join(f"\n  - {why}" for why in wrong))
    return values


def _point(store: Store, source: str, spec: RunSpec, graph: Graph, at: int | None, before: str | None) -> ForkPoint:
    """The checkpoint that is meant: at a step, the last one before a node, or the last one that leads on."""
    first = Checkpoint(0, (graph.start,)) if spec.fork is None else replace(spec.fork.checkpoint, step=0)
    reader, last, written, found = CheckpointReader(first), 0, 0, None
    checkpoint: Checkpoint | None = first
    for step, wrote in store.runs.entries(source):
        last = step.step
        if wrote:
            written = last
        if last:
            checkpoint = reader.last if reader.add(step) else None
        if checkpoint is not None and _is_meant(checkpoint, at, before):
            found = checkpoint
        if at is not None and found is not None and written > at:
            break  # its state is folded, whatever follows
    if found is None:
        raise UsageError(_nowhere(store, source, last, at, before, reader.last))
    return ForkPoint(found, last, written <= found.step)


def _is_meant(checkpoint: Checkpoint, at: int | None, before: str | None) -> bool:
    if at is not None:
        return checkpoint.step == at
    return before in checkpoint.nodes if before is not None else bool(checkpoint.nodes or checkpoint.commands)


def _nowhere(store: Store, source: str, last: int, at: int | None, before: str | None, newest: Checkpoint) -> str:
    if at is not None and not 0 <= at <= last:
        return f"run {source!r} has no step {at:,}; it has the steps 0 to {last:,}: `sleipnir history {source}`"
    if at is not None:
        near = store.runs.checkpoint(source, at)
        return (
            f"step {at} of run {source!r} is no checkpoint: a super-step was open there. The last one before it is "
            f"{near}; `sleipnir history {source}` marks all"
        )
    if before is not None:
        return (
            f"no checkpoint of run {source!r} leads to node {before!r}, or only commands do; "
            f"`sleipnir history {source}` shows its path"
        )
    return f"run {source!r} leads nowhere after its step {newest.step}: it has ended there. Name an earlier step (--at)"


def _refuse_open(source: str, point: Checkpoint, graph: Graph, *, is_other: bool) -> None:
    """Refuse what a fork cannot take over. Raises UsageError that names it."""
    where = f"run {source!r} cannot be forked at step {point.step}"
    if not point.nodes and not point.commands:
        raise UsageError(
            f"{where}: it ended there, and nothing follows. Name an earlier step, or a node to begin before"
        )
    if point.commands:
        raise UsageError(
            f"{where}: it leads to {point.commands:,} visits with values of their own (commands), which the journal "
            "does not keep. Name another checkpoint"
        )
    if len(set(point.nodes)) < len(point.nodes):
        raise UsageError(f"{where}: a join and an edge open the same node twice. Name another checkpoint")
    missing = [node for node in point.nodes if node not in graph.nodes]
    if missing:
        names = ", ".join(map(repr, missing))
        raise UsageError(
            f"{where}: the graph {graph.name!r} lacks the node to go on at: {names}. It has: {', '.join(graph.nodes)}"
        )
    if is_other and (point.arrived or point.deferred):
        what = "a join waits for some of its sources" if point.arrived else "deferred nodes wait"
        raise UsageError(f"{where} with another definition: {what}. Name another checkpoint, or leave out the agent")
