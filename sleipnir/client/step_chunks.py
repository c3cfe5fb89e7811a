"""The stream modes `values`, `tasks`, `checkpoints` and `debug` of a run: chunks of its journal, with LangGraph's forms
(spec/langgraph-api.md 5). Values are in their stored form.

The journal is complete however long the run is, and never changes, so nothing of these modes is ever lost. Only the
beginning of a task is in no journal: it comes with the notice that its visit was opened.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sleipnir.errors import UsageError
from sleipnir.python_graph.snapshots import StepVisit, checkpoint_id, config_of
from sleipnir.runs.checkpoints import CheckpointReader, is_of_node
from sleipnir.runs.journal import StateFold
from sleipnir.runs.run import Checkpoint, RunSpec
from sleipnir.runs.transitions import Step
from sleipnir.runs.views import STEP_MODES, StreamMode

if TYPE_CHECKING:
    from sleipnir.graph.model import Graph

Entry: TypeAlias = tuple[Step, Mapping[str, str]]
"""A journal step, and the JSON texts by key that it wrote."""


class StepChunk(NamedTuple):
    """A chunk of a mode; `type` is that of its event."""

    mode: StreamMode
    type: str
    data: Any


@dataclass(frozen=True)
class ChunkedRun:
    """What is known of a run before its journal is read. `parent` names the checkpoint before its first one. Raises
    UsageError for modes that its engine does not have."""

    id: str
    spec: RunSpec
    graph: Graph
    wanted: frozenset[StreamMode]
    parent: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        refused = sorted(self.wanted & {"checkpoints", "debug"})
        if refused and self.graph.engine != "bsp":
            raise UsageError(
                f"run {self.id!r} is of the engine {self.graph.engine!r}, where nothing comes next as a whole: it has "
                f"no stream mode {refused[0]!r}; `values` and `tasks` it has"
            )


class StepChunks:
    """Follows the journal of a run. `fold` is what its journal continues."""

    def __init__(self, run: ChunkedRun, fold: StateFold) -> None:
        self._run, self._fold = run, fold
        fork = run.spec.fork
        start = Checkpoint(0, (run.graph.start,)) if fork is None else replace(fork.checkpoint, step=0)
        self._reader, self._parent = CheckpointReader(start), run.parent

    def skip(self, step: Step, texts: Mapping[str, str]) -> None:
        """Follow a step whose chunks are known."""
        if self._follow(step, texts):
            self._parent = config_of(self._run.spec.thread, checkpoint_id(self._run.id, step.step))

    def add(self, step: Step, texts: Mapping[str, str]) -> list[StepChunk]:
        """The chunks of the next step."""
        before = self._number()
        is_point = self._follow(step, texts)
        return [*self._ended(step, texts, before), *(self._reached(step) if is_point else ())]

    def begun(self, data: Mapping[str, Any], at_ms: int) -> list[StepChunk]:
        """The chunks of a visit that has been opened, or goes on with an answer. The input of a visit with values of
        its own is not known."""
        if self._run.wanted.isdisjoint(("tasks", "debug")):
            return []
        payload = {"id": self._task(data), "name": data["node"], "input": self._fold.state(), "triggers": ()}
        return list(self._both("tasks", "task", self._number(), at_ms, payload))

    def asked(self, data: Mapping[str, Any], at_ms: int) -> list[StepChunk]:
        """The chunks of a visit that asks."""
        if self._run.wanted.isdisjoint(("tasks", "debug")):
            return []
        asked = {"value": data["question"], "id": data.get("key") or data["node"]}
        payload: dict[str, Any] = {
            "id": self._task(data),
            "name": data["node"],
            "error": None,
            "result": {},
            "interrupts": [asked],
        }
        return list(self._both("tasks", "task_result", self._number(), at_ms, payload))

    def _follow(self, step: Step, texts: Mapping[str, str]) -> bool:
        """Returns whether the run is at a checkpoint after it."""
        self._fold.add(step, texts)
        if self._run.graph.engine != "bsp":
            return step.is_checkpoint
        return self._reader.add(step) or step.step == 0

    def _ended(self, step: Step, texts: Mapping[str, str], number: int) -> Iterator[StepChunk]:
        if self._run.wanted.isdisjoint(("tasks", "debug")) or not is_of_node(step):
            return
        payload: dict[str, Any] = {
            "id": self._task({"node": step.node, "seq": step.seq}), "name": step.node, "error": step.error,
            "result": {name: json.loads(text) for name, text in texts.items()}, "interrupts": [],
        }  # fmt: skip
        yield from self._both("tasks", "task_result", number, step.at_ms, payload)

    def _reached(self, step: Step) -> Iterator[StepChunk]:
        wanted, values = self._run.wanted, None
        if not wanted.isdisjoint(STEP_MODES):
            values = self._fold.state()
        if "values" in wanted and values:
            yield StepChunk("values", "values", values)
        if wanted.isdisjoint(("checkpoints", "debug")):
            return
        last, fork = self._reader.last, self._run.spec.fork
        name = checkpoint_id(self._run.id, step.step)
        config = config_of(self._run.spec.thread, name)
        source = "loop" if step.step else "input" if fork is None else "fork"
        payload: dict[str, Any] = {
            "config": config,
            "parent_config": self._parent,
            "values": values,
            "metadata": {"source": source, "step": last.steps, "parents": {}, "run_id": self._run.id},
            "next": list(last.nodes),
            "tasks": [
                {"id": StepVisit(node).task_id(self._run.id, name), "name": node, "interrupts": [], "state": None}
                for node in last.nodes
            ],
        }
        self._parent = config
        yield from self._both("checkpoints", "checkpoint", last.steps, step.at_ms, payload)

    def _both(self, mode: StreamMode, type_: str, number: int, at_ms: int, payload: Any) -> Iterator[StepChunk]:
        if mode in self._run.wanted:
            yield StepChunk(mode, type_, payload)
        if "debug" in self._run.wanted:
            timestamp = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
            yield StepChunk(
                "debug", "debug", {"step": number, "timestamp": timestamp, "type": type_, "payload": payload}
            )

    def _task(self, data: Mapping[str, Any]) -> str:
        return StepVisit(data["node"], data["seq"]).task_id(self._run.id, "")

    def _number(self) -> int:
        """The number of the open super-step."""
        return self._reader.last.steps + 1 if self._run.graph.engine == "bsp" else 0


@dataclass
class UnreadJournal:
    """What a reader has not seen of a journal. `read` returns the entries from a step on; those that were read ahead
    are kept until they are wanted."""

    chunks: StepChunks
    read: Callable[[int], Iterable[Entry]]
    _next: int = 0
    _ahead: deque[Entry] = field(default_factory=deque)

    def skip(self, count: int) -> None:
        """Follow the first entries, whose chunks the reader has."""
        if count:
            self._read()
        while self._ahead and self._ahead[0][0].step < count:
            self.chunks.skip(*self._ahead.popleft())

    def of_event(self, type_: str, data: Mapping[str, Any]) -> list[Entry]:
        """The entries that come before an event of the run, or with it."""
        if type_ == "visit_closed":
            return self.until(data["seq"])
        if type_ == "run_ended":
            return self.rest()
        if type_ == "visit_opened" and self._next == 0:
            self._read()
        return [self._ahead.popleft()] if self._ahead and self._ahead[0][0].step == 0 else []

    def begun(self, type_: str, data: Mapping[str, Any], at_ms: int) -> list[StepChunk]:
        """The chunks of an event, which no entry has."""
        if "path" in data:  # of a run below
            return []
        if type_ == "visit_opened" or (type_ == "gate_answered" and data.get("key") is not None):
            return self.chunks.begun(data, at_ms)
        if type_ == "gate_opened" and data.get("key") is not None:
            return self.chunks.asked(data, at_ms)
        return []

    def until(self, seq: int) -> list[Entry]:
        """The next entries up to the end of the visit `seq`; none, if that is not among them."""
        known = self._place_of(seq)
        if known is None:
            self._read()
            known = self._place_of(seq)
        return [self._ahead.popleft() for _ in range(known or 0)]

    def rest(self) -> list[Entry]:
        """All entries that there are."""
        self._read()
        return [self._ahead.popleft() for _ in range(len(self._ahead))]

    def _place_of(self, seq: int) -> int | None:
        return next((count for count, (step, _) in enumerate(self._ahead, 1) if step.seq == seq), None)

    def _read(self) -> None:
        for step, texts in self.read(self._next):
            self._ahead.append((step, texts))
            self._next = step.step + 1
