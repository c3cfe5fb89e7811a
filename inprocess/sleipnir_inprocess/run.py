"""One call of a compiled graph: its run in memory, and the chunks that its commits make."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from sleipnir.commands import START, Command
from sleipnir.memory.store import Entry, MemoryRun, MemoryStore
from sleipnir.memory.values import json_text
from sleipnir.python_graph import calling
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.errors import (
    EmptyInputError,
    GraphInterrupt,
    GraphRecursionError,
    InvalidAnswerError,
    run_failure,
)
from sleipnir.python_graph.initial_state import first_state
from sleipnir.python_graph.interrupts import Interrupt, answering
from sleipnir.python_graph.objects import instance
from sleipnir.python_graph.run_config import RECURSION_LIMIT
from sleipnir.python_graph.runtime import Call, Runtime, current, merged_config
from sleipnir.python_graph.schema import keys_of
from sleipnir.runs.events import Resulted
from sleipnir.runs.failure_text import RECURSION_LIMIT_REACHED
from sleipnir.runs.interrupts import INTERRUPT as INTERRUPT_KIND
from sleipnir.runs.interrupts import text_of
from sleipnir.runs.run import Gate, RunSpec
from sleipnir.runs.transitions import Transition
from sleipnir.runs.visits import Ended, Visit
from sleipnir_inprocess.clocks import RealClock, RunClock
from sleipnir_inprocess.execution import CalledRun, Executor, NodeEnvironment
from sleipnir_inprocess.runner import Runner
from sleipnir_inprocess.streams import INTERRUPT, Chunk, Form, Output, Stream

BUNDLE: Final = "in process"


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
        *,
        clock: RunClock | None = None,
        environment: NodeEnvironment | None = None,
    ) -> None:
        above = current.get()
        self.output = output
        self._graph = graph
        below: dict[str, Any] = {"configurable": {}, "metadata": {}, "tags": None}
        self._config = merged_config(below, above.config if above is not None else {}, graph.config, config or {})
        self._limit = self._config.get("recursion_limit", RECURSION_LIMIT)
        if self._limit < 1:
            raise ValueError("recursion_limit must be at least 1")
        most = self._config.get("max_concurrency")
        if most is not None and most < 1:
            raise ValueError("max_concurrency must be at least 1")
        self._limits = {} if most is None else {"max_concurrency": most}
        parent = above.stream if above is not None else None
        self._stream = Stream(form, parent, parent.modes if parent is not None else frozenset())
        runtime, around = self._runtime(context, above), environment or NodeEnvironment()
        self._executor = Executor(graph, self._config, runtime, self._stream, self._thread, around)
        self._clock = clock or RealClock()
        self._has_start = graph.model.start == START
        self._asker = answering.get()
        self._called = above.called if above is not None else None
        self._number = self._called.next_number() if self._called is not None else 0
        self._given = 0
        self._goes_on = False
        self.store, self.run_id = self._begun(input)
        self._executor.called = self.store.called.setdefault(self.run_id, {})
        self._runner = Runner(self.store, self.run_id, lambda spec: graph.model, self._executor, clock=self._clock)
        if "custom" in form.modes:  # the caller gets them while the node runs, which is then in another thread
            self._runner.inline, self._runner.looks, self._stream.notify = False, True, self._runner.look
        self._steps, self._has_written = self._runner.run.view.steps, False
        # As in LangGraph, a call that goes on with a run has a limit of its own; a new input counts as a step.
        self._before = self._steps or int(self._has_start)

    def _runtime(self, context: Any, above: Call | None) -> Runtime[Any]:
        if context is None and above is not None:
            context = above.runtime.context
        schema = self._graph.parts.context_schema
        if isinstance(context, Mapping) and schema is not None and not issubclass(schema, dict):
            context = instance(schema, dict(context))
        return Runtime(context, stream_writer=partial(self._stream.add, "custom"))

    def _begun(self, input: Any) -> tuple[MemoryStore, str]:
        """The run that this call is about: one that waits for answers, or a new one."""
        kept = self._called.get(self._number) if self._called is not None else None
        if kept is not None and self._asker is not None:
            self._asker.skip(kept.answers)
            self._given = kept.answers
            return kept.store, kept.run_id
        if resumes(input):
            return self._resumed(input)
        last: tuple[MemoryStore, str] | None = None
        if input is None:
            last = self._graph.threads.get(self._thread or "")
        if last is not None and last[0].runs[last[1]].gates:  # it still waits for answers
            self._goes_on = True
            return last
        return self._created(input)

    def _created(self, input: Any) -> tuple[MemoryStore, str]:
        """A new run with this input."""
        store, run_id = MemoryStore(self._clock.now_ms), f"run{next(self._graph.run_numbers)}"
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
        given = [(gate, sent_text(gate, answer)) for gate, answer in answers(run_id, gates.values(), command.resume)]
        for gate, text in given:
            store.answer(run_id, gate.seq, text, gate.attempt)
        self._goes_on = True
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
        """The same, with the chunks as they come. Of a graph that a node calls, GraphInterrupt says that the node
        waits for an answer."""
        self._add_values()
        if self._goes_on:
            self._add_cached_updates()
        asked: GraphInterrupt | None = None
        self._runner.watch = self._committed
        try:
            while True:
                for _ in self._runner.steps():
                    yield from self._taken()
                try:
                    if not self._answer_from_above():
                        break
                except GraphInterrupt as interrupt:
                    asked = interrupt
                    break
        finally:
            self._end()
        self._raise_failure()
        for question in self.interrupts:
            self._stream.add("updates", {INTERRUPT: (question,)})
        if self.interrupts:
            self._add_values(self.interrupts)
        yield from self._taken()
        if asked is not None:
            raise asked

    def _taken(self) -> Iterator[Chunk]:
        while self._stream.chunks:
            yield self._stream.chunks.popleft()

    def _answer_from_above(self) -> bool:
        """Let the node that has called this graph ask its first open question. False: none is open, or no node has
        called it. Raises GraphInterrupt while there is no answer."""
        gates = self._runner.run.gates
        if self._asker is None or not gates:
            return False
        gate = gates[min(gates)]
        answer = self._asker.take(shown_value(gate), None, gate.schema, None)
        self._given += 1
        self.store.answer(self.run_id, gate.seq, sent_text(gate, answer), gate.attempt)
        return True

    def steps(self, *, expire: bool = False) -> Iterator[None]:
        """Run to the end, one commit at a time; raises only GraphRecursionError. `expire` is that of Runner."""
        self._runner.expire, self._runner.watch = expire, self._committed
        try:
            yield from self._runner.steps()
        finally:
            self._end()

    def _end(self) -> None:
        """Nothing is executed any more. The runner no longer leads back to this run, so the memory of both becomes free
        without a garbage collection."""
        self._runner.close()
        self._runner.watch = None
        self._keep()

    def _keep(self) -> None:
        """Keep the run for the next call of its thread, if there can be one, or for the next execution of the node that
        has called this graph. Of a run that has completed, these need only the state."""
        if self._called is None and self._thread is None:
            return
        run = self._runner.run
        store = self.store.with_state_alone(self.run_id) if run.view.status == "completed" else self.store
        if self._called is not None and run.view.status != "failed":
            self._called.keep(self._number, CalledRun(store, self.run_id, self._given))
        if self._thread is None:
            return
        if self._graph.remembers or (run.gates and self._asker is None):
            self._graph.threads[self._thread] = (store, self.run_id)
        else:
            self._graph.threads.pop(self._thread, None)

    @property
    def record(self) -> MemoryRun:
        return self._runner.run

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """The questions that the run waits for."""
        gates = self._runner.run.gates
        return tuple(
            Interrupt(shown_value(gate), interrupt_id(self.run_id, gate), response_schema=gate.schema)
            for _, gate in sorted(gates.items())
        )

    def state(self) -> dict[str, Any]:
        """The state as objects. While the run waits for answers, the writes of ended visits count, though their
        super-step has not closed."""
        texts, keys, objects = self._runner.run.values.state, self._graph.parts.keys, self._graph.objects
        state = objects.decoded({name: json.loads(texts[name]) for name in keys if name in texts})
        if not self._runner.run.gates:
            return state
        held: dict[str, list[Any]] = {}
        for _, written in self._held_writes():
            for name, text in written.items():
                held.setdefault(name, []).append(json.loads(text))
        for name, stored in held.items():
            key = keys[name]
            if key.reducer is None:
                state[name] = objects.decoded({name: stored[-1]})[name]
            else:
                writes = objects.writes(name, stored)
                state[name] = calling.folded_writes(key, state.get(name, key.first), writes)
        return state

    def _held_writes(self) -> list[tuple[str, dict[str, str]]]:
        """The nodes of visits that have ended in a super-step that has not, and what they write, in visit order."""
        run, keys = self._runner.run, self._graph.parts.keys
        held: list[tuple[Visit, int]] = []
        for visit in run.view.frontier.values():
            body = visit.body
            if isinstance(body, Ended) and body.step and not body.applied:
                held.append((visit, body.step))
        held.sort(key=lambda pair: pair[0].rank)
        journal = run.values.journal
        return [
            (visit.node, {name: text for name, text in journal[step][1].items() if name in keys})
            for visit, step in held
        ]

    def _add_cached_updates(self) -> None:
        """The updates of visits that ended before the run waited, again, as LangGraph gives them."""
        if self._stream.wants("updates"):
            for node, written in self._held_writes():
                update = self._graph.objects.decoded({name: json.loads(text) for name, text in written.items()})
                self._stream.add("updates", {node: self.output.part(update), "__metadata__": {"cached": True}})

    def _add_values(self, interrupts: tuple[Interrupt, ...] = ()) -> None:
        if not self._stream.wants("values"):
            return
        chunk = self.output.of(self.state())
        if interrupts and isinstance(chunk, dict | None):
            chunk = {**(chunk or {}), INTERRUPT: interrupts}
        if chunk is not None:
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
        if self._steps - self._before >= self._limit:
            raise GraphRecursionError(RECURSION_LIMIT_REACHED.format(limit=self._limit))

    def _raise_failure(self) -> None:
        run = self._runner.run
        if run.view.status != "failed":
            return
        own = self._executor.errors.get(run.failure.seq or 0) if run.failure is not None else None
        raise own or run_failure(run.error or "the run failed", run.failure)


def output_of(graph: CompiledGraph, keys: str | Sequence[str] | None = None) -> Output:
    """The part of the state that a caller gets: `keys`, or all that is declared for output."""
    names = graph.parts.output_schema
    # The classes of nodes add keys of their own, which are no output.
    is_whole = names is graph.parts.state_schema and len(graph.parts.classes) == 1
    return Output(keys, None if is_whole else list(keys_of(names)))


def resumes(input: Any) -> bool:
    """Whether an input answers questions."""
    return isinstance(input, Command) and input.resume is not None


def shown_value(gate: Gate) -> Any:
    """What a question shows to the caller."""
    if gate.kind == INTERRUPT_KIND:
        return gate.payload
    shown = {"node": gate.node, "question": gate.question, "options": list(gate.options), "default": gate.default}
    return {name: value for name, value in shown.items() if value not in (None, [])}


def sent_text(gate: Gate, answer: Any) -> str:
    """An answer as the run takes it. Raises InvalidAnswerError."""
    if gate.kind != INTERRUPT_KIND:
        return answer if isinstance(answer, str) else json_text(answer)
    try:
        return text_of(gate, answer)
    except ValueError as error:
        raise InvalidAnswerError(f"question {gate.key!r}: {error}") from None


def interrupt_id(run_id: str, gate: Gate) -> str:
    """32 hexadecimal digits: the same for a question whenever it is shown."""
    return hashlib.sha256(f"{run_id}/{gate.seq}/{gate.attempt}".encode()).hexdigest()[:32]


def answers(run_id: str, gates: Collection[Gate], resume: Any) -> Iterator[tuple[Gate, Any]]:
    """The answer to each question: `resume` itself if one is open, else by id. Raises RuntimeError for several open
    questions without ids, and for ids that none has."""
    by_id = {interrupt_id(run_id, gate): gate for gate in gates}
    if isinstance(resume, Mapping) and all(re.fullmatch("[0-9a-f]{32}", str(key)) for key in resume):
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
