"""One call of a compiled graph: its run in memory, and the chunks that its commits make."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from sleipnir.commands import START, Command
from sleipnir.memory.store import Entry, MemoryRun, MemoryStore
from sleipnir.memory.values import json_text
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.errors import EmptyInputError, GraphRecursionError, run_failure
from sleipnir.python_graph.initial_state import first_state
from sleipnir.python_graph.objects import instance
from sleipnir.python_graph.runtime import Call, Interrupt, Runtime, current, merged_config
from sleipnir.runs.events import Resulted
from sleipnir.runs.failure_text import RECURSION_LIMIT_REACHED
from sleipnir.runs.run import Gate, RunSpec
from sleipnir.runs.transitions import Transition
from sleipnir_inprocess.execution import Executor
from sleipnir_inprocess.runner import Runner
from sleipnir_inprocess.streams import Chunk, Form, Output, Stream

RECURSION_LIMIT: Final = 10_007
BUNDLE: Final = "in process"

INTERRUPT: Final = "__interrupt__"
"""The key under which a result holds the questions that its run waits for."""


class Run:
    """A run of a graph. Called by a node of another graph, it has that one's configuration and context, and its stream
    gets the chunks."""

    def __init__(
        self,
        graph: CompiledGraph,
        input: Any,
        config: Mapping[str, Any] | None,
        context: Any,
        form: Form,
        output: Output,
    ) -> None:
        above = current.get()
        self.output = output
        self._graph = graph
        below: dict[str, Any] = {"configurable": {}, "metadata": {}, "tags": None}
        self._config = merged_config(below, above.config if above is not None else {}, graph.config, config or {})
        self._limit = self._config.get("recursion_limit", RECURSION_LIMIT)
        if self._limit < 1:
            raise ValueError("recursion_limit must be at least 1")
        # The steps are counted here: each call that goes on with a run has a limit of its own.
        most = self._config.get("max_concurrency")
        if most is not None and most < 1:
            raise ValueError("max_concurrency must be at least 1")
        self._limits = {} if most is None else {"max_concurrency": most}
        parent = above.stream if above is not None else None
        self._stream = Stream(form, parent, parent.modes if parent is not None else frozenset())
        self._executor = Executor(graph, self._config, self._runtime(context, above), self._stream, self._thread)
        self._has_start = graph.model.start == START
        self._store, self._run_id = self._resumed(input) if resumes(input) else self._created(input)
        self._runner = Runner(self._store, self._run_id, lambda spec: graph.model, self._executor, self._committed)
        self._steps, self._has_written = self._runner.run.view.steps, False

    def _runtime(self, context: Any, above: Call | None) -> Runtime[Any]:
        if context is None and above is not None:
            context = above.runtime.context
        schema = self._graph.parts.context_schema
        if isinstance(context, Mapping) and schema is not None and not issubclass(schema, dict):
            context = instance(schema, dict(context))
        return Runtime(context, stream_writer=lambda value: self._stream.add("custom", value))

    def _created(self, input: Any) -> tuple[MemoryStore, str]:
        """A new run with this input."""
        store, run_id = MemoryStore(), f"run{next(self._graph.run_numbers)}"
        spec = RunSpec(self._graph.name, BUNDLE, by_version=True, config=self._limits)
        store.create(run_id, spec, self._first_state(input))
        return store, run_id

    def _resumed(self, command: Command[Any]) -> tuple[MemoryStore, str]:
        """The run of the thread that waits for answers, with these answers. Raises EmptyInputError and RuntimeError."""
        last = self._graph.threads.get(self._thread or "")
        if last is None:
            raise EmptyInputError("Received no input for __start__: no run of this thread waits for an answer")
        store, run_id = last
        gates = store.runs[run_id].gates
        for gate, answer in answers(run_id, gates.values(), command.resume):
            text = answer if isinstance(answer, str) else json_text(answer)
            store.answer(run_id, gate.seq, text, gate.attempt)
        return store, run_id

    # The first state

    def _first_state(self, input: Any) -> dict[str, str]:
        """The state of the thread, with the input written to it, as JSON texts."""
        thread = self._thread_before()
        before = {name: json.loads(text) for name, text in thread.values.state.items()} if thread is not None else None
        state = first_state(self._graph.parts, self._graph.objects, input, before)
        return {name: json_text(value) for name, value in state.items()}

    @property
    def _thread(self) -> str | None:
        thread = self._config["configurable"].get("thread_id")
        return str(thread) if thread is not None else None

    def _thread_before(self) -> MemoryRun | None:
        """The last run of the thread, if the graph remembers threads."""
        last = self._graph.threads.get(self._thread or "") if self._graph.remembers else None
        return last[0].runs[last[1]] if last is not None else None

    # Going on

    def drive(self) -> None:
        """Run to the end. Raises the error of a failed run."""
        for _ in self.chunks():
            pass

    def chunks(self) -> Iterator[Chunk]:
        """The same, with the chunks as they come."""
        self._add_values()
        try:
            for _ in self._runner.steps():
                while self._stream.chunks:
                    yield self._stream.chunks.popleft()
        finally:
            self._runner.close()
            self._keep()
        self._raise_failure()
        if self.interrupts:
            self._stream.add("updates", {INTERRUPT: self.interrupts})
        while self._stream.chunks:
            yield self._stream.chunks.popleft()

    def _keep(self) -> None:
        """Keep the run for the next call of its thread, if there can be one."""
        if self._thread is None:
            return
        if self._graph.remembers or self._runner.run.gates:
            self._graph.threads[self._thread] = (self._store, self._run_id)
        else:
            self._graph.threads.pop(self._thread, None)

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """The questions that the run waits for."""
        gates = self._runner.run.gates
        return tuple(Interrupt(question(gates[seq]), interrupt_id(self._run_id, gates[seq])) for seq in sorted(gates))

    def state(self) -> dict[str, Any]:
        """The state as objects."""
        texts = self._runner.run.values.state
        return self._graph.objects.decoded(
            {name: json.loads(texts[name]) for name in self._graph.parts.keys if name in texts}
        )

    def _add_values(self) -> None:
        if self._stream.wants("values") and (chunk := self.output.of(self.state())) is not None:
            self._stream.add("values", chunk)

    def _committed(self, entry: Entry, transition: Transition, run: MemoryRun) -> None:
        """A commit was applied: add its chunks, and check the limit where it ends a super-step."""
        event = entry.event
        for notice in transition.notices:
            if notice.type == "join_starved":
                warnings.warn(notice.data["message"], stacklevel=2)
        if not isinstance(event, Resulted):
            self._steps = transition.steps
            return
        if event.header.ok:
            self._has_written = self._has_written or bool(event.header.keys)
            updates = self._executor.updates.pop(event.seq, None)
            if updates is not None and self._stream.wants("updates"):
                self._add_updates(updates, event.seq, transition)
        if transition.steps != self._steps or run.view.is_final:
            if not (self._has_start and self._steps == 1):
                if self._has_written:
                    self._add_values()
                self._check_limit()
            self._has_written = False
        self._steps = transition.steps

    def _add_updates(self, updates: Sequence[Mapping[str, Any] | None], seq: int, transition: Transition) -> None:
        node = next((write.step.node for write in transition.writes if write.step.seq == seq), None)
        if node is None or node == START:
            return
        parts = [self.output.part(update) for update in updates]
        self._stream.add("updates", {node: parts[0] if len(parts) == 1 else parts})

    def _check_limit(self) -> None:
        if self._steps - self._has_start >= self._limit:
            raise GraphRecursionError(RECURSION_LIMIT_REACHED.format(limit=self._limit))

    def _raise_failure(self) -> None:
        run = self._runner.run
        if run.view.status != "failed":
            return
        own = self._executor.errors.get(run.failure.seq or 0) if run.failure is not None else None
        raise own or run_failure(run.error or "the run failed", run.failure)


def resumes(input: Any) -> bool:
    """Whether an input answers questions."""
    return isinstance(input, Command) and input.resume is not None


def question(gate: Gate) -> dict[str, Any]:
    """What a question shows to the caller."""
    shown = {"node": gate.node, "question": gate.question, "options": list(gate.options), "default": gate.default}
    return {name: value for name, value in shown.items() if value not in (None, [])}


def interrupt_id(run_id: str, gate: Gate) -> str:
    """32 hexadecimal digits: the same for a question whenever it is shown."""
    return hashlib.sha256(f"{run_id}/{gate.seq}/{gate.attempt}".encode()).hexdigest()[:32]


def answers(run_id: str, gates: Collection[Gate], resume: Any) -> Iterator[tuple[Gate, Any]]:
    """The answer to each question: `resume` itself if one is open, else by id. Raises RuntimeError for several open
    questions without ids, and for ids that none has."""
    by_id = {interrupt_id(run_id, gate): gate for gate in gates}
    if isinstance(resume, Mapping) and resume and all(re.fullmatch("[0-9a-f]{32}", str(key)) for key in resume):
        if unknown := [key for key in resume if key not in by_id]:
            raise RuntimeError(f"no open question has the id {unknown[0]}; open are {', '.join(by_id) or 'none'}")
        yield from ((by_id[key], value) for key, value in resume.items())
    elif len(by_id) > 1:
        raise RuntimeError(
            "When there are multiple pending interrupts, you must specify the interrupt id when resuming. "
            f"Open are {', '.join(by_id)}"
        )
    else:
        yield from ((gate, resume) for gate in by_id.values())
