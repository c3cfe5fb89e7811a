"""The chunks of the stream modes `tasks`, `checkpoints`, `debug` and `messages` (spec/langgraph-api.md 5).

A task is a visit of a node, from the first execution to its end or its question: retries do not begin it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from sleipnir.python_graph.interrupts import Interrupt
from sleipnir.python_graph.messages import BaseMessage
from sleipnir.python_graph.snapshots import StateSnapshot
from sleipnir_inprocess.streams import Stream

Updates: TypeAlias = Sequence[Mapping[str, Any] | None]
"""What a visit has returned, as objects."""


@dataclass
class TaskChunks:
    """Adds the chunks of one run to its stream. `now_ms` is the time of its clock. `seen` are the ids of messages that
    are not new."""

    stream: Stream
    now_ms: Callable[[], int]
    seen: set[str] = field(default_factory=set)
    _open: set[str] = field(default_factory=set)

    def begin(self, id: str, node: str, step: int, input: Callable[[], Any]) -> None:
        """A visit is executed. It has its input as objects."""
        if self.wants_tasks and id not in self._open:
            self._open.add(id)
            self._add("tasks", "task", step, {"id": id, "name": node, "input": input(), "triggers": ()})

    def end(
        self,
        id: str,
        node: str,
        step: int,
        *,
        written: Mapping[str, Any],
        error: str | None,
        asked: Sequence[Interrupt] = (),
    ) -> None:
        """It has ended, has failed for good, or asks."""
        if self.wants_tasks:
            self._open.discard(id)
            interrupts = [interrupt_part(each) for each in asked]
            payload = {"id": id, "name": node, "error": error, "result": written, "interrupts": interrupts}
            self._add("tasks", "task_result", step, payload)

    def checkpoint(self, snapshot: StateSnapshot) -> None:
        """The run is at a checkpoint."""
        step = (snapshot.metadata or {}).get("step", 0)
        self._add("checkpoints", "checkpoint", step, checkpoint_part(snapshot))

    def messages(self, id: str, node: str, step: int, updates: Updates) -> None:
        """The new messages of what a visit has returned."""
        if not self.stream.wants("messages"):
            return
        metadata = {
            "langgraph_node": node, "langgraph_step": step, "langgraph_triggers": (),
            "langgraph_path": ("__pregel_pull", node), "langgraph_checkpoint_ns": f"{node}:{id}",
        }  # fmt: skip
        for message in messages_in(value for update in updates for value in (update or {}).values()):
            if message.id is None or message.id not in self.seen:
                self.stream.add("messages", (message, metadata))
            if message.id is not None:
                self.seen.add(message.id)

    def see(self, values: Mapping[str, Any]) -> None:
        """The messages of these values are not new."""
        self.seen |= {message.id for message in messages_in(values.values()) if message.id is not None}

    @property
    def wants_tasks(self) -> bool:
        return self.stream.wants("tasks") or self.stream.wants("debug")

    def _add(self, mode: str, type_: str, step: int, payload: dict[str, Any]) -> None:
        if self.stream.wants(mode):
            self.stream.add(mode, payload)
        if self.stream.wants("debug"):
            timestamp = datetime.fromtimestamp(self.now_ms() / 1000, UTC).isoformat()
            self.stream.add("debug", {"step": step, "timestamp": timestamp, "type": type_, "payload": payload})


def messages_in(values: Iterable[Any]) -> Iterator[BaseMessage]:
    """The message objects among these values, and in the lists among them."""
    for value in values:
        if isinstance(value, BaseMessage):
            yield value
        elif isinstance(value, list | tuple):
            yield from (each for each in value if isinstance(each, BaseMessage))


def interrupt_part(interrupt: Interrupt) -> dict[str, Any]:
    return {"value": interrupt.value, "id": interrupt.id}


def checkpoint_part(snapshot: StateSnapshot) -> dict[str, Any]:
    """A snapshot as LangGraph streams it."""
    return {
        "config": snapshot.config,
        "parent_config": snapshot.parent_config,
        "values": snapshot.values,
        "metadata": snapshot.metadata,
        "next": list(snapshot.next),
        "tasks": [
            {
                "id": task.id,
                "name": task.name,
                **({} if task.error is None else {"error": task.error}),
                **({} if task.result is None else {"result": task.result}),
                "interrupts": [interrupt_part(each) for each in task.interrupts],
                "state": task.state,
            }
            for task in snapshot.tasks
        ],
    }
