"""One call of a compiled graph: its run in memory, and the chunks that its commits make."""

from __future__ import annotations

import itertools
import json
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, TypeAlias

from sleipnir.commands import START, Command
from sleipnir.errors import UsageError
from sleipnir.graph import node_overrides
from sleipnir.graph.check_breakpoints import Breakpoints, breakpoint_nodes
from sleipnir.graph.model import AgentNode
from sleipnir.graph.node_overrides import NodeOverrides
from sleipnir.memory.node_streams import MemoryStreams
from sleipnir.memory.store import Entry, MemoryRun, MemoryStore
from sleipnir.memory.values import json_text
from sleipnir.messages import CACHE_HIT, VisitCall
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.errors import (
    EmptyInputError,
    GraphInterrupt,
    GraphRecursionError,
    InvalidAnswerError,
    run_failure,
)
from sleipnir.python_graph.interrupts import Interrupt, answering
from sleipnir.python_graph.objects import instance
from sleipnir.python_graph.run_config import RECURSION_LIMIT
from sleipnir.python_graph.runtime import Call, Runtime, current, merged_config
from sleipnir.python_graph.schema import keys_of
from sleipnir.python_graph.snapshots import CHECKPOINT, TASKS, THREAD, StateSnapshot
from sleipnir.runs.claims import Claim
from sleipnir.runs.events import Resulted
from sleipnir.runs.failure_text import RECURSION_LIMIT_REACHED
from sleipnir.runs.interrupts import INTERRUPT as INTERRUPT_KIND
from sleipnir.runs.interrupts import text_of
from sleipnir.runs.run import Gate, changed, limited_from
from sleipnir.runs.transitions import Transition
from sleipnir_inprocess.clocks import RealClock, RunClock
from sleipnir_inprocess.creation import ThreadCreation
from sleipnir_inprocess.execution import CalledRun, Executor, NodeEnvironment
from sleipnir_inprocess.questions import OpenQuestion, answered, give, given_below, open_questions
from sleipnir_inprocess.runner import Runner
from sleipnir_inprocess.states import decoded_state, empty_state, held_writes, seen_by, state_of
from sleipnir_inprocess.streams import INTERRUPT, Chunk, Form, Output, Stream
from sleipnir_inprocess.task_chunks import TaskChunks
from sleipnir_inprocess.threads import (
    Thread,
    ThreadPoint,
    ThreadRun,
    finished,
    point_named,
    points,
    texts_of,
)
from sleipnir_inprocess.updates import UPDATED, StateUpdate

BREAKPOINT: Final = "__breakpoint__"
"""The key of what a node shows whose graph is at a breakpoint."""


NewSnapshots: TypeAlias = Callable[[str | None], Iterable[tuple[str, StateSnapshot]]]
"""The checkpoints after the one with this id, with their ids."""
_NO_AGENTS = (
    "node '{node}' runs another agent, '{agent}', which a call of a graph cannot find. Use a compiled graph as the "
    "node, or run the agent's folder: sleipnir run --in-process, or sleipnir.testing.run"
)
OVERRIDES: Final = "overrides"


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
        breakpoints: tuple[Breakpoints, Breakpoints] = (None, None),
    ) -> None:
        """`breakpoints` are the nodes before and after which this call stops, instead of those of the graph. Raises
        ValueError for a name that is no node, and for limits that allow nothing."""
        above = current.get()
        if (
            agent := next((node for node in graph.model.nodes.values() if isinstance(node, AgentNode)), None)
        ) is not None:
            raise UsageError(_NO_AGENTS.format(node=agent.id, agent=agent.agent))
        self.output = output
        below: dict[str, Any] = {"configurable": {}, "metadata": {}, "tags": None}
        self._config = merged_config(below, above.config if above is not None else {}, graph.config, config or {})
        nodes = overrides_of_call(graph, self._config.pop(OVERRIDES, None), above)
        graph = self._graph = graph.overriding(nodes) if nodes else graph
        self._checkpoint = self._config["configurable"].pop(CHECKPOINT, None)
        if self.thread == "":
            raise ValueError(f"{THREAD} is empty: a thread needs a name")
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
        self._executor = Executor(graph, self._config, runtime, self._stream, self.thread, around, of_nodes=nodes)
        self._clock = clock or RealClock()
        self._has_start = graph.model.start == START
        self._asker = answering.get()
        self._called = above.called if above is not None else None
        self._number = self._called.next_number() if self._called is not None else 0
        self._given = 0
        self.goes_on = False
        self._late_answer: Any = None
        """Answers what the run asks next: nothing was open when it was given."""
        before = breakpoint_nodes(graph.model, breakpoints[0], "before")
        after = breakpoint_nodes(graph.model, breakpoints[1], "after")
        self.kept = self._begun(input)
        self.store = self.kept.store or finished(self.kept, MemoryStore(self._clock.now_ms), self._creation.spec)
        self.run_id = self.kept.run_id
        record = self.store.runs[self.run_id]  # each call has breakpoints of its own
        record.view = changed(record.view, spec=record.view.spec.stopping(before, after))
        self._executor.streams = MemoryStreams(self.store)
        self._executor.called = self.store.called.setdefault(self.run_id, {})
        self._runner = Runner(self.store, self.run_id, lambda spec: graph.model, self._executor, clock=self._clock)
        self._tasks = TaskChunks(self._stream, self._clock.now_ms)
        self.snapshots: NewSnapshots | None = None
        """For the caller of a stream that has checkpoints."""
        self._checkpoint_seen: str | None = None
        if self._tasks.wants_tasks:
            self._runner.started = self._add_task
        if not {"custom", "tasks", "debug"}.isdisjoint(form.modes):
            # The caller gets them while the node runs, which is then in another thread.
            self._runner.inline, self._runner.looks, self._stream.notify = False, True, self._runner.look
        self._steps, self._has_written = self._runner.run.view.steps, False
        if self._steps:  # the call goes on with a run: it has a limit of its own
            self._executor.limited_from = limited_from(self._steps)
        self._before = self._executor.limited_from or int(self._has_start)

    def _runtime(self, context: Any, above: Call | None) -> Runtime[Any]:
        if context is None and above is not None:
            context = above.runtime.context
        schema = self._graph.parts.context_schema
        if isinstance(context, Mapping) and schema is not None and not issubclass(schema, dict):
            context = instance(schema, dict(context))
        return Runtime(context, stream_writer=partial(self._stream.add, "custom"))

    def _begun(self, input: Any) -> ThreadRun:
        """The run that this call is about: one that goes on, or a new one."""
        kept = self._called.get(self._number) if self._called is not None else None
        if kept is not None and self._asker is not None:
            self._asker.skip(kept.answers)
            self._given = kept.answers
            waiting: ThreadRun = kept.run
            return waiting
        if input is None or resumes(input):
            return self._going_on(input)
        return self._edited(input) if isinstance(input, StateUpdate) else self._created(input)

    def _created(self, input: Any) -> ThreadRun:
        """A new run with this input. It begins with the state of its thread."""
        thread, parent, before = self._thread_before(), None, None
        if self._checkpoint:
            point = point_of(self._graph, thread, self._checkpoint)
            parent, before = point.place, texts_of(point, empty_state(self._graph))
        elif thread is not None:
            parent = thread.newest.newest()
            before = thread.newest.values_at(parent)
        run = self._creation.of_input(input, before, parent)
        self._remember(run)
        return run

    def _edited(self, edit: StateUpdate) -> ThreadRun:
        """A run that an update begins. Raises RuntimeError while the thread is executed."""
        thread, base = self._thread_before(), self._point_before()
        if thread is not None and thread.newest.is_driven:
            raise RuntimeError(f"the run of thread {self.thread!r} is executed by another call: it cannot be updated")
        is_newest = base is not None and thread is not None and base.run is thread.newest and not self._checkpoint
        if edit.as_node != START:
            self._executor.stand_ins[UPDATED] = partial(edit.result, self._graph)
        return edit.begin(self._creation, base, is_newest=is_newest)

    def _point_before(self) -> ThreadPoint | None:
        """The checkpoint that an update follows: the one that the call names, or the newest."""
        thread = self._thread_before()
        if self._checkpoint:
            return point_of(self._graph, thread, self._checkpoint)
        return None if thread is None else points(thread.newest, self._graph.model.start)[-1]

    def _going_on(self, input: Command[Any] | None) -> ThreadRun:
        """The newest run of the thread, or a fork from one of its earlier checkpoints; with answers to what it asks, or
        will ask. Raises EmptyInputError and RuntimeError."""
        thread = self._graph.threads.get(self.thread or "")
        if thread is None:
            raise EmptyInputError("Received no input for __start__, and no run of this thread could go on")
        run = self._forked(thread) or thread.newest
        if run.is_driven:
            raise RuntimeError(f"the run of thread {self.thread!r} is executed by another call: end its stream first")
        self.goes_on = True
        if (record := run.record) is None or run.store is None:
            return run
        if input is not None and record.gates:
            answer_all(run.store, run.run_id, input.resume)
        else:
            self._late_answer = None if input is None else input.resume
            pass_breakpoints(run.store, run.run_id)
        if record.status == "failed":
            run.store.retry(run.run_id)
            run.errors = {}
        return run

    def _forked(self, thread: Thread) -> ThreadRun | None:
        """A run from the checkpoint that the call names. None: it names none, or the newest one."""
        if not self._checkpoint:
            return None
        point = point_of(self._graph, thread, self._checkpoint)
        if point.run is thread.newest and point.after is None:
            return None
        run = self._creation.of_point(point, texts_of(point, empty_state(self._graph)))
        self._remember(run)
        return run

    @property
    def _creation(self) -> ThreadCreation:
        return ThreadCreation(self._graph, self._clock, self._limits, self._config["metadata"])

    @property
    def thread(self) -> str | None:
        thread = self._config["configurable"].get(THREAD)
        return str(thread) if thread is not None else None

    def _thread_before(self) -> Thread | None:
        """The thread so far, if the graph remembers threads."""
        return self._graph.threads.get(self.thread or "") if self._graph.remembers else None

    def _remember(self, run: ThreadRun) -> None:
        """Make a run the newest of its thread, if the graph remembers threads."""
        if self.thread is None or not self._graph.remembers:
            return
        thread = self._graph.threads.get(self.thread)
        if thread is None:
            self._graph.threads[self.thread] = Thread([run])
        elif not (thread.newest.is_driven and self._called is not None):  # else the run that has called this graph
            thread.add(run)

    # Going on

    def edit(self) -> str:
        """Let the update count, but execute nothing of what follows it. Returns the id of its checkpoint. Raises what
        the routers of its node raise, and the error of an update that fails."""
        self._runner.watch = lambda entry, transition, run: self._note(transition)
        try:
            if self.kept.hides:
                self._runner.close_step()
        finally:
            self._runner.close()
            self._runner.watch = None
        self._raise_failure()
        self._executor.stand_ins.clear()
        self._remember(self.kept)
        point = points(self.kept, self._graph.model.start)[-1]
        if self._runner.run.view.is_final:
            self.kept.leave()
        return point.id

    def drive(self) -> None:
        """Run to the end. Raises the error of a failed run."""
        for _ in self.chunks():
            pass

    def chunks(self) -> Iterator[Chunk]:
        """The same, with the chunks as they come. Of a graph that a node calls, GraphInterrupt says that the node
        waits for an answer."""
        self._add_values()
        self._add_checkpoint()
        self._tasks.see(self.state() if self._stream.wants("messages") else {})
        if self.goes_on:
            self._add_cached_updates()
        asked: GraphInterrupt | None = None
        self._begin_driving()
        try:
            while True:
                for _ in self._runner.steps():
                    yield from self._taken()
                try:
                    if not (self._answer_late() or self._answer_from_above()):
                        break
                except GraphInterrupt as interrupt:
                    asked = interrupt
                    break
        finally:
            self._end()
        self._raise_failure()
        for _, asked_by_visit in itertools.groupby(self._open_questions(), lambda question: question.visit):
            self._stream.add("updates", {INTERRUPT: tuple(map(interrupt_of, asked_by_visit))})
        if not self.interrupts and self._is_at_breakpoint():
            self._stream.add("updates", {INTERRUPT: ()})
        if self.interrupts:
            self._add_values(self.interrupts)
        yield from self._taken()
        if asked is not None:
            raise asked

    def _taken(self) -> Iterator[Chunk]:
        while self._stream.chunks:
            yield self._stream.chunks.popleft()

    def _begin_driving(self) -> None:
        if self._tasks.wants_tasks or self._stream.wants("messages"):
            _ = self._first_number  # before the first commit
        self._runner.watch, self._runner.goes_on, self.kept.is_driven = self._committed, self.goes_on, True

    def _answer_late(self) -> bool:
        """Give the answer that came before its question. False: there is none, or nothing is open. Raises
        RuntimeError."""
        gates = self._runner.run.gates
        if self._late_answer is None or not gates:
            return False
        answer_all(self.store, self.run_id, self._late_answer)
        self._late_answer = None
        return True

    def _answer_from_above(self) -> bool:
        """Let the node that has called this graph ask its first open question, or whether it passes a breakpoint.
        False: there is none, or no node has called it. Raises GraphInterrupt while there is no answer."""
        gates = self._runner.run.gates
        held = [hold.breakpoint.in_words for hold in self._runner.run.view.holds if hold.breakpoint is not None]
        if self._asker is None or not (gates or held):
            return False
        if held:
            self._asker.take({BREAKPOINT: held}, None, None, None)
            self._given += 1
            self.store.resume(self.run_id)
            return True
        gate = gates[min(gates)]
        # Where this run is kept, its own question has the schema: an answer may also be for another question of it.
        schema = gate.schema if self._called is None else None
        answer = self._asker.take(shown_value(gate), None, schema, None)
        self._given += 1
        below = given_below(gates, answer)
        for each, text in [(gate, sent_text(gate, answer))] if below is None else below:
            self.store.answer(self.run_id, each.seq, text, each.attempt)
        return True

    def steps(self, *, expire: bool = False) -> Iterator[None]:
        """Run to the end, one commit at a time; raises only GraphRecursionError. `expire` is that of Runner."""
        self._runner.expire = expire
        self._begin_driving()
        try:
            yield from self._runner.steps()
        finally:
            self._end()

    def _end(self) -> None:
        """Nothing is executed any more. The runner no longer leads back to this run, so the memory of both becomes free
        without a garbage collection."""
        self._runner.close()
        self._runner.watch = None
        self.kept.is_driven = False
        self._keep()

    def _keep(self) -> None:
        """Keep the run for the next call of its thread, if there can be one, or for the next execution of the node that
        has called this graph. Of a run that has completed, these need only its history."""
        kept, run = self.kept, self._runner.run
        if self._called is None and self.thread is None:
            return
        if run.view.status == "completed":
            kept.leave()
        elif run.view.status == "failed":
            kept.note_errors(self._executor.errors)
        if self._called is not None and run.view.status != "failed":
            self._called.keep(self._number, CalledRun(self._graph, kept, self._given))
        if self.thread is None or self._graph.remembers:
            return
        if (run.gates or run.view.is_held) and self._asker is None:
            self._graph.threads[self.thread] = Thread([kept])
        else:
            self._graph.threads.pop(self.thread, None)

    @property
    def record(self) -> MemoryRun:
        return self._runner.run

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """The questions that the run waits for, with those of graphs that its nodes have called."""
        return tuple(map(interrupt_of, self._open_questions()))

    def _open_questions(self) -> list[OpenQuestion]:
        return [each for each in open_questions(self.store, self.run_id) if not is_breakpoint(each.gate)]

    def _is_at_breakpoint(self) -> bool:
        """Whether the run, or a graph that a node of it has called, is at a breakpoint."""
        run = self._runner.run
        return run.view.is_held or any(map(is_breakpoint, run.gates.values()))

    def check_thread(self) -> None:
        """Raise ValueError for breakpoints in a run that nothing could go on with."""
        spec, model = self._runner.run.view.spec, self._graph.model
        names = [
            *(model.breakpoints["before"] if spec.interrupt_before is None else spec.interrupt_before),
            *(model.breakpoints["after"] if spec.interrupt_after is None else spec.interrupt_after),
        ]
        if names and self.thread is None and self._called is None:
            raise ValueError(
                f"the breakpoint at {names[0]!r} needs a thread to go on with: "
                'give config={"configurable": {"thread_id": ...}}'
            )

    def state(self) -> dict[str, Any]:
        """The state as objects. While the run waits for answers, the writes of ended visits count, though their
        super-step has not closed."""
        run = self._runner.run
        return state_of(self._graph, run) if run.gates else decoded_state(self._graph, run.values.state)

    def _add_cached_updates(self) -> None:
        """The updates of visits that ended before the run waited, again, as LangGraph gives them."""
        if self._stream.wants("updates"):
            for node, written in held_writes(self._graph, self._runner.run):
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
        self._note(transition)
        for notice in transition.notices:
            if notice.type == "join_starved":
                warnings.warn(notice.data["message"], stacklevel=2)
        if not isinstance(event, Resulted):
            self._steps = transition.steps
            return
        updates = self._executor.updates.pop(event.seq, None) if event.header.ok else None
        if self._tasks.wants_tasks or self._stream.wants("messages"):
            self._end_task(event, updates, transition, run)
        if event.header.ok:
            self._has_written = self._has_written or bool(event.header.keys)
            if updates is not None and self._stream.wants("updates"):
                self._add_updates(updates, event.seq, transition, cached=event.header.cache == CACHE_HIT)
        if transition.steps != self._steps or run.view.is_final:
            if not (self._has_start and self._steps == 1):
                if self._has_written:
                    self._add_values()
                self._add_checkpoint()
                self._check_limit()
            else:
                self._add_checkpoint()
            self._has_written = False
        self._steps = transition.steps

    def _note(self, transition: Transition) -> None:
        """Keep what the journal lacks of questions and of visits that were sent."""
        for gate in transition.gates:
            asked = (each for each in self._open_questions() if each.visit == gate.seq)
            self.kept.note_questions(gate.seq, tuple(map(interrupt_of, asked)))
        for write in transition.writes:
            if write.step.closing is not None and write.step.closing.commands:
                self.kept.note_sent(write.step.step)

    def _add_updates(
        self, updates: Sequence[Mapping[str, Any] | None], seq: int, transition: Transition, *, cached: bool
    ) -> None:
        node = next((write.step.node for write in transition.writes if write.step.seq == seq), None)
        if node is None or node == START:
            return
        parts = [self.output.part(update) for update in updates]
        mark = {"__metadata__": {"cached": True}} if cached else {}
        self._stream.add("updates", {node: parts[0] if len(parts) == 1 else parts, **mark})

    def _add_checkpoint(self) -> None:
        if self.snapshots is not None:
            for id_, snapshot in self.snapshots(self._checkpoint_seen):
                self._checkpoint_seen = id_
                self._tasks.checkpoint(snapshot)

    def _add_task(self, call: VisitCall, claim: Claim) -> None:
        """A visit is about to be executed."""
        if call.run == self.run_id and call.role == "node" and call.node != START:
            input = partial(seen_by, self._graph, call.node, claim)
            self._tasks.begin(self._task_id(call.node, call.seq), call.node, self._open_step(), input)

    def _end_task(
        self,
        event: Resulted,
        updates: Sequence[Mapping[str, Any] | None] | None,
        transition: Transition,
        run: MemoryRun,
    ) -> None:
        """The visit of an event has ended, or asks; or is retried, which is no end."""
        step = next((write.step for write in transition.writes if write.step.seq == event.seq), None)
        asked = next((gate.node for gate in transition.gates if gate.seq == event.seq), None)
        node = asked if step is None else step.node
        if node is None or node == START or (step is not None and step.role != "node"):
            return
        id_, number = self._task_id(node, event.seq), self._steps + self._first_number
        if step is None:
            questions = [each for each in self._open_questions() if each.visit == event.seq]
            self._tasks.end(id_, node, number, written={}, error=None, asked=list(map(interrupt_of, questions)))
            return
        if not step.ok:
            raised = self._executor.errors.get(event.seq)
            self._tasks.end(id_, node, number, written={}, error=repr(raised) if raised is not None else step.error)
            return
        if updates is None:
            written = run.values.journal[step.step][1]
            updates = [self._graph.objects.decoded({name: json.loads(text) for name, text in written.items()})]
        self._tasks.messages(id_, node, number, updates)
        self._tasks.end(
            id_, node, number, written={k: v for each in updates for k, v in (each or {}).items()}, error=None
        )

    def _task_id(self, node: str, seq: int) -> str:
        return str(uuid.uuid5(TASKS, f"{self.run_id}:{node}:{seq}"))

    def _open_step(self) -> int:
        """The number of the open super-step, as checkpoints are numbered."""
        return self._runner.run.view.steps + self._first_number

    @cached_property
    def _first_number(self) -> int:
        """What the numbers of super-steps in the thread are ahead of those in the run; asked for before the first."""
        steps = self._runner.run.view.steps
        if self._graph.model.engine == "dag":
            return 0
        return points(self.kept, self._graph.model.start)[-1].step + (1 - steps if steps else 0)

    def _check_limit(self) -> None:
        if self._steps - self._before >= self._limit:
            raise GraphRecursionError(RECURSION_LIMIT_REACHED.format(limit=self._limit))

    def _raise_failure(self) -> None:
        run = self._runner.run
        if run.view.status != "failed":
            return
        own = self._executor.errors.get(run.failure.seq or 0) if run.failure is not None else None
        raise own or run_failure(run.error or "the run failed", run.failure)


def point_of(graph: CompiledGraph, thread: Thread | None, name: Any) -> ThreadPoint:
    """The checkpoint with this id. Raises ValueError."""
    refuse_dag(graph)
    if (point := None if thread is None else point_named(thread, str(name), graph.model.start)) is None:
        raise ValueError(f"the thread has no checkpoint {name!r}: get_state_history lists them")
    return point


def refuse_dag(graph: CompiledGraph) -> None:
    """Raises ValueError for a graph whose journal does not say what comes after a step."""
    if graph.model.engine == "dag":
        raise ValueError("a graph of the engine 'dag' has no checkpoints to read or to go on from; 'bsp' has")


def output_of(graph: CompiledGraph, keys: str | Sequence[str] | None = None) -> Output:
    """The part of the state that a caller gets: `keys`, or all that is declared for output."""
    names = graph.parts.output_schema
    # The classes of nodes add keys of their own, which are no output.
    is_whole = names is graph.parts.state_schema and len(graph.parts.classes) == 1
    return Output(keys, None if is_whole else list(keys_of(names)))


def resumes(input: Any) -> bool:
    """Whether an input answers questions."""
    return isinstance(input, Command) and input.resume is not None


def interrupt_of(question: OpenQuestion) -> Interrupt:
    """A question as callers see it."""
    return Interrupt(shown_value(question.gate), question.id, response_schema=question.gate.schema)


def is_breakpoint(gate: Gate) -> bool:
    """Whether a node asks because a graph that it has called is at a breakpoint."""
    return gate.kind == INTERRUPT_KIND and isinstance(gate.payload, dict) and gate.payload.keys() == {BREAKPOINT}


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


def pass_breakpoints(store: MemoryStore, run_id: str) -> None:
    """Let a run, and those below it, go on that are at breakpoints."""
    give([(each, "true") for each in open_questions(store, run_id) if is_breakpoint(each.gate)])
    if store.runs[run_id].view.is_held:
        store.resume(run_id)


def answer_all(store: MemoryStore, run_id: str, resume: Any) -> None:
    """Answer the open questions of a run, and of those below it. Raises RuntimeError and InvalidAnswerError; nothing is
    answered then."""
    open_now = list(open_questions(store, run_id))
    give([(question, sent_text(question.gate, answer)) for question, answer in answered(open_now, resume)])


def overrides_of_call(graph: CompiledGraph, given: Any, above: Call | None) -> NodeOverrides:
    """The overrides of nodes of a call of a graph, with those from the graph above. Raises UsageError for those that do
    not fit."""
    inherited = above.of_nodes if above is not None else {}
    if not given:
        return inherited
    return node_overrides.merged(inherited, node_overrides.checked(given, None, graph.model, graph.find_graph))
