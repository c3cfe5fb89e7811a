"""How a run of a thread begins: with an input, or in the middle of its graph, at a checkpoint of an earlier run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sleipnir.commands import START
from sleipnir.graph import history
from sleipnir.memory.store import MemoryStore
from sleipnir.memory.values import Texts, json_text
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.initial_state import first_state, written_by
from sleipnir.runs.run import Checkpoint, RunSpec
from sleipnir_inprocess.clocks import RunClock
from sleipnir_inprocess.states import texts_of_values
from sleipnir_inprocess.threads import BEFORE_INPUT, SentVisit, Source, ThreadPlace, ThreadPoint, ThreadRun, going_on

BUNDLE: Final = "in process"

_FIRST: Final = -1
"""The number of the first checkpoint of a thread that an input begins."""


@dataclass(frozen=True)
class ThreadCreation:
    """Creates runs of a graph. `limits` are those of the call's configuration, `metadata` is its own."""

    graph: CompiledGraph
    clock: RunClock
    limits: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def of_input(self, input: Any, before: Texts | None = None, parent: ThreadPlace | None = None) -> ThreadRun:
        """A run that an input begins, above the state `before`, after the checkpoint `parent`. Raises EmptyInputError,
        InvalidUpdateError, and what reducers raise."""
        texts = self.state_of_input(input, before)
        run = self._new("input", parent)
        run.before, run.input, run.hides = before, {}, self.graph.model.start == START
        if self.graph.remembers:
            run.input = self._input_texts(input, texts)
        self._submit(run, texts)
        return run

    def state_of_input(self, input: Any, before: Texts | None) -> Texts:
        """A state with an input written to it. Raises as `of_input`."""
        values = None if before is None else {name: json.loads(text) for name, text in before.items()}
        past = None if values is None else history.at_start(self.graph.model, values)
        state = first_state(self.graph.parts, self.graph.objects, input, past)
        return {name: json_text(value) for name, value in state.items()}

    def _input_texts(self, input: Any, texts: Texts) -> Texts:
        """What an input has written, as a task of the history shows it."""
        keys, writes = self.graph.parts.keys, written_by(self.graph.parts, input)
        folded = {name: value for name, value in writes.items() if keys[name].reducer is not None}
        encoded = texts_of_values(self.graph, folded) if folded else {}
        return {name: encoded.get(name) or texts[name] for name in writes}

    def of_point(self, point: ThreadPoint, texts: Texts, source: Source = "fork") -> ThreadRun:
        """A run that goes on from a checkpoint with these values."""
        if point.at == BEFORE_INPUT:
            run = self._new(source, point.place)
            run.before, run.input, run.hides = point.run.before, point.run.input, point.run.hides
            self._submit(run, next(iter(point.run.journal()))[1])
            return run
        return self.in_the_middle(source, point.place, texts, point.checkpoint, point.sent, point.writers)

    def in_the_middle(
        self,
        source: Source,
        parent: ThreadPlace | None,
        texts: Texts,
        checkpoint: Checkpoint,
        sent: tuple[SentVisit, ...] = (),
        writers: tuple[str, ...] = (START,),
    ) -> ThreadRun:
        """A run that opens the nodes of a checkpoint, and the visits that were `sent`."""
        run = self._new(source, parent)
        run.begin, run.writers, run.store = replace(checkpoint, step=0), writers, MemoryStore(self.clock.now_ms)
        if sent:
            run.sent = {0: sent}
        kinds = {name: node.kind for name, node in self.graph.model.nodes.items()}
        going_on(run.store, run.run_id, self.spec, run.begin, sent, texts, kinds)
        return run

    def _new(self, source: Source, parent: ThreadPlace | None) -> ThreadRun:
        first = parent.step + 1 if parent is not None else _FIRST if source == "input" else 0
        run_id = f"run{next(self.graph.run_numbers)}"
        run = ThreadRun(run_id, source, first, self.clock.now_ms(), None, None if parent is None else parent.id)
        if self.metadata:
            run.metadata = dict(self.metadata)
        return run

    def _submit(self, run: ThreadRun, texts: Texts) -> None:
        run.store = MemoryStore(self.clock.now_ms)
        run.store.create(run.run_id, self.spec, texts)

    @property
    def spec(self) -> RunSpec:
        """That of a run in this process."""
        return RunSpec(self.graph.name, BUNDLE, by_version=True, config=dict(self.limits))
