"""What get_state and get_state_history return (spec/langgraph-api.md 7), for runs in this process and on a fleet.

A checkpoint is named `<run>:<journal step>`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from sleipnir.graph.reducers import OVERWRITE
from sleipnir.python_graph.interrupts import Interrupt
from sleipnir.python_graph.objects import SEVERAL, GraphObjects

THREAD: Final = "thread_id"
CHECKPOINT: Final = "checkpoint_id"
NAMESPACE: Final = "checkpoint_ns"

TASKS: Final = uuid.UUID(int=0)
"""The namespace of the ids of tasks."""

UpdateMode: TypeAlias = Literal["reduce", "set"]
"""How update_state writes a key with a reducer: through it, or in the place of its value."""


class PregelTask(NamedTuple):
    """A visit of the super-step that follows a checkpoint: what it wrote (`result`; None: it has not ended), the error
    that it failed with, what it asked. `state` is that of the graph that the visit calls: a StateSnapshot, or the
    configuration that get_state gives it for."""

    id: str
    name: str
    path: tuple[Any, ...] = ()
    error: str | None = None
    interrupts: tuple[Interrupt, ...] = ()
    state: Any = None
    result: Any = None


class StateSnapshot(NamedTuple):
    """A checkpoint: the `values` of the state, and the nodes that come `next` (none: the run has ended there). `config`
    names it, `parent_config` the one before it; `metadata` has `source` (input, loop, update or fork) and `step`."""

    values: dict[str, Any]
    next: tuple[str, ...]
    config: dict[str, Any]
    metadata: dict[str, Any] | None
    created_at: str | None
    parent_config: dict[str, Any] | None
    tasks: tuple[PregelTask, ...]
    interrupts: tuple[Interrupt, ...]


@dataclass(frozen=True)
class StepVisit:
    """A visit of the super-step after a checkpoint, with the JSON texts that it has `written` (None: it has not ended).
    `seq` None: it has not been opened. `is_sent`: a Send asked for it."""

    node: str
    seq: int | None = None
    written: Mapping[str, str] | None = None
    is_sent: bool = False

    @property
    def path(self) -> tuple[str, str]:
        return ("__pregel_push" if self.is_sent else "__pregel_pull", self.node)

    def task_id(self, run_id: str, checkpoint: str) -> str:
        """The same whenever it is asked for, and of no other visit."""
        name = f"{checkpoint}:{self.node}" if self.seq is None else f"{run_id}:{self.node}:{self.seq}"
        return str(uuid.uuid5(TASKS, name))

    def result(self, keys: Collection[str], objects: GraphObjects | None = None) -> dict[str, Any] | None:
        """What it has written to these keys, as `objects` (None: in the stored form)."""
        if self.written is None:
            return None
        stored = {name: json.loads(text) for name, text in self.written.items() if name in keys}
        return stored if objects is None else {name: _written(name, value, objects) for name, value in stored.items()}


def _written(name: str, stored: Any, objects: GraphObjects) -> Any:
    is_plain = not (isinstance(stored, dict) and stored.keys() in ({SEVERAL}, {OVERWRITE}))
    writes = [objects.decoded({name: stored})[name]] if is_plain else objects.writes(name, [stored])
    return writes[0] if len(writes) == 1 else writes


def in_order(visits: Sequence[StepVisit], nodes: Collection[str]) -> list[StepVisit]:
    """Visits that were sent first, then the others in the order of `nodes`, in which these were added."""
    added = {node: number for number, node in enumerate(nodes)}
    return sorted(visits, key=lambda visit: (not visit.is_sent, 0 if visit.is_sent else added.get(visit.node, -1)))


def checkpoint_id(run_id: str, at: int | str) -> str:
    return f"{run_id}:{at}"


def config_of(thread_id: str | None, checkpoint: str, namespace: str = "") -> dict[str, Any]:
    """The configuration that names a checkpoint. None: its run is in no thread."""
    named = {} if thread_id is None else {THREAD: thread_id}
    return {"configurable": {**named, NAMESPACE: namespace, CHECKPOINT: checkpoint}}


def snapshot_of(
    values: dict[str, Any],
    tasks: Sequence[PregelTask],
    ended: Sequence[bool],
    config: dict[str, Any],
    metadata: dict[str, Any],
    at_ms: int,
    parent: dict[str, Any] | None,
) -> StateSnapshot:
    """A checkpoint whose super-step has these `tasks`; those that have not `ended` come next."""
    return StateSnapshot(
        values,
        tuple(task.name for task, has_ended in zip(tasks, ended, strict=True) if not has_ended),
        config,
        metadata,
        datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(),
        parent,
        tuple(tasks),
        tuple(question for task in tasks for question in task.interrupts),
    )
