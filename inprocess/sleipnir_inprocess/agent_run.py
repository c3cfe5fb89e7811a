"""A run of an agent in this process, with the runs that it starts: the same planner, checks and executors as on the
fleet, over a store in memory.

It is not durable. It is in no session, its models are called without the limits of a deployment (docs/limits.md), and
a missing knowledge base is not built.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from sleipnir.client.agent_preparation import AgentPreparation, PreparedAgent, Roster
from sleipnir.client.options import RunOptions, overrides_in, refuse_unknown
from sleipnir.client.step_chunks import ChunkedRun, StepChunks, UnreadJournal
from sleipnir.errors import Problem, UsageError
from sleipnir.graph.agent_names import name_below
from sleipnir.graph.model import Graph, Json, graph_below
from sleipnir.knowledge import preparing
from sleipnir.knowledge.files import index_store_name, is_missing, pin_name
from sleipnir.knowledge.order import BuildMessage, Order
from sleipnir.memory.node_streams import MemoryStreams
from sleipnir.memory.shared_values import OF_PROCESS, MemoryValues
from sleipnir.memory.store import MemoryRun, MemoryStore
from sleipnir.memory.values import json_text
from sleipnir.messages import RunStatus
from sleipnir.runs.budgets import check_budget
from sleipnir.runs.child_events import Visits
from sleipnir.runs.execution_trace import MOST_DEPTH, MOST_STEPS, Trace, trace_of
from sleipnir.runs.interrupts import text_of
from sleipnir.runs.journal import StateFold
from sleipnir.runs.memory_cache import MemoryCache
from sleipnir.runs.run import ID_ALPHABET, ID_LENGTH, RunSpec, changed
from sleipnir.runs.shared_values import names_of
from sleipnir.runs.skips import refuse_output
from sleipnir.runs.trace_tree import lines_of
from sleipnir.runs.transitions import StartChild
from sleipnir.runs.views import (
    DEFAULT_MODES,
    STEP_MODES,
    GateInfo,
    MissingProcesses,
    RunEvent,
    RunInfo,
    StreamEvent,
    StreamMode,
    mode_of,
)
from sleipnir.settings import Settings
from sleipnir_inprocess.agent_execution import AgentExecutor, graph_with
from sleipnir_inprocess.clocks import RealClock, RunClock
from sleipnir_inprocess.runner import Committed, Runner
from sleipnir_inprocess.texts import StreamedTexts
from sleipnir_inprocess.traces import MemoryTraces
from sleipnir_scheduler.child_run import child_run
from sleipnir_workers.execution.execution import Emissions, Execution, TextSink
from sleipnir_workers.machine.host import Host
from sleipnir_workers.visits.caching import VisitCache

LOOK_S = 0.05
"""How often streamed text of models, and what nodes emit, are passed on."""


class AgentRun:
    """A handle on one run, with the methods of client.Run that a run in this process can have.

    `steps` and `stream` execute it; meanwhile questions may be answered, and the run be cancelled.
    """

    def __init__(
        self,
        agent: str | Path,
        prompt: str = "",
        *,
        state: Mapping[str, Any] | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        settings: Settings | None = None,
        env: Mapping[str, str] | None = None,
        clock: RunClock | None = None,
        by: str = "",
        values: MemoryValues = OF_PROCESS,
        **options: Unpack[RunOptions],
    ) -> None:
        """Prepare the run; nothing is executed. The parameters are those of Client.submit, whose errors this raises;
        `env` are environment variables for nodes and models, above those of this process; `by` is who answers.
        `values` has the shared values of runs for a user: those of this process."""
        refuse_unknown(options)
        check_budget(max_cost_usd, max_tokens)
        settings = settings or Settings.from_env()
        preparation = AgentPreparation(settings, packs=False)
        self.roster = preparation.roster(agent)
        spec = preparation.spec(self.roster, options, existing_bases(self.roster, settings))
        shared = values.for_state(names_of(spec))
        begin = preparation.state_at_start(self.roster.agent.sharing(shared), prompt, state)
        config, context = preparation.config_and_context(self.roster.agent, options)
        spec = changed(spec, max_cost_usd=max_cost_usd, max_tokens=max_tokens, config=config, context=context)
        spec = spec.stopping(*preparation.breakpoints(self.roster.agent, options))
        if nodes := preparation.of_nodes(self.roster, *overrides_in(options)):
            spec = spec.overriding(nodes)
        self.id = "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))
        self._agents = _with_graphs({**self.roster.children, self.roster.agent.folder.name: self.roster.agent})
        self._host = Host({**os.environ, **(env or {})}, settings)
        self._clock, self._by = clock or RealClock(), by
        self._texts: StreamedTexts | None = None
        self._streams_models = False
        self._store = MemoryStore(self._clock.now_ms, values)
        self._streams = MemoryStreams(self._store)
        self._caching = VisitCache.in_process(MemoryCache(self._clock.now_ms), settings)
        self._store.create(self.id, spec, {key: json_text(value) for key, value in begin.items()})

    # Execution

    def steps(
        self,
        watch: Committed | None = None,
        *,
        inline: bool = True,
        expire: bool = False,
        look_s: float | None = None,
    ) -> Iterator[None]:
        """Execute the run until it is over, or only waits for answers; yields after each commit. The parameters are
        those of Runner."""
        runner = Runner(
            self._store,
            self.id,
            self._graph_of,
            AgentExecutor(
                self._agents,
                self._host,
                lambda: self._streams,
                self._open_text,
                self._emissions,
                self._caching,
                self._child_visits,
            ),
            watch,
            self._begin,
            self._clock,
            inline=inline,
            expire=expire,
            look_s=look_s,
        )
        try:
            yield from runner.steps()
        finally:
            runner.close()

    def stream(self, modes: Collection[StreamMode] | None = DEFAULT_MODES) -> Iterator[StreamEvent]:
        """Execute the run, and yield what happens: see views.StreamEvent. `modes` None means all of them."""
        wanted = frozenset(("messages", "custom", "updates", "tools", "events") if modes is None else modes)
        self._texts = None if wanted.isdisjoint(("messages", "custom")) else StreamedTexts(self.id)
        self._streams_models = "messages" in wanted
        passed, journal = 0, self._journal_tail(wanted)
        for _ in self.steps(inline=False, look_s=LOOK_S if self._texts is not None else None):
            for mode, data in self._texts.taken() if self._texts is not None else ():
                if mode in wanted:
                    yield StreamEvent("", self._clock.now_ms(), "text" if mode == "messages" else mode, data, mode)
            for event in [event for event in self.record.events if int(event.id) > passed]:
                passed, mode = int(event.id), mode_of(event.type)
                if journal is not None:
                    chunks = [
                        c for entry in journal.of_event(event.type, event.data) for c in journal.chunks.add(*entry)
                    ]
                    for chunk in [*chunks, *journal.begun(event.type, event.data, event.at_ms)]:
                        yield StreamEvent(event.id, event.at_ms, chunk.type, chunk.data, chunk.mode)
                is_failure = event.type == "visit_closed" and not event.data["ok"]
                if mode in wanted or event.type == "run_ended" or is_failure:
                    yield StreamEvent(event.id, event.at_ms, event.type, event.data, mode)

    def _child_visits(self, run: str) -> Visits:
        record = self._store.runs.get(run)
        return [] if record is None else [(step, texts.keys()) for step, texts in list(record.values.journal)]

    def _journal_tail(self, wanted: frozenset[StreamMode]) -> UnreadJournal | None:
        if wanted.isdisjoint(STEP_MODES):
            return None
        spec = self.record.view.spec
        chunks = StepChunks(ChunkedRun(self.id, spec, self._graph_of(spec), wanted), StateFold())
        return UnreadJournal(chunks, lambda first: self.record.values.journal[first:])

    def _graph_of(self, spec: RunSpec) -> Graph:
        return graph_with(self._agents[spec.agent].graph, spec.of_nodes)

    def _begin(self, parent: str, above: RunSpec, effect: StartChild) -> tuple[RunSpec, dict[str, Any]]:
        limit = self._host.settings.max_output_bytes
        return child_run(parent, above, effect, lambda _, agent, __: self._agents[agent].graph, max_state_bytes=limit)

    def _open_text(self, execution: Execution) -> AbstractContextManager[TextSink | None]:
        return self._texts.open(execution) if self._texts is not None and self._streams_models else nullcontext()

    def _emissions(self, execution: Execution) -> Emissions | None:
        return self._texts.emissions(execution) if self._texts is not None else None

    # Looking at it

    @property
    def record(self) -> MemoryRun:
        return self._store.runs[self.id]

    @property
    def status(self) -> RunStatus:
        return self.record.status

    @property
    def output(self) -> str | None:
        return self.record.output

    @property
    def error(self) -> str | None:
        return self.record.error

    def info(self) -> RunInfo:
        """Status and usage; live visits are left out."""
        return self._store.info(self.id)

    def trace(self, *, depth: int = MOST_DEPTH, limit: int = MOST_STEPS) -> Trace:
        """What its visits did, what opened each of them, and the same of the runs below it, as client.Run.trace."""
        return trace_of(MemoryTraces(self._store, self._graph_of), self.id, depth=depth, limit=limit)

    def trace_lines(self, *, depth: int = 3, limit: int = 100) -> Iterator[str]:
        """The trace as lines that draw a tree, as client.Run.trace_lines."""
        return lines_of(MemoryTraces(self._store, self._graph_of), self.id, depth=depth, limit=limit)

    def state(self) -> dict[str, Any]:
        """The committed state."""
        return {key: json.loads(text) for key, text in self.record.values.state.items()}

    def events(self, after: str = "0", follow: bool = False) -> Iterator[RunEvent]:
        """The events after event id `after`; `follow` makes no difference."""
        return (event for event in list(self.record.events) if int(event.id) > int(after))

    def missing(self) -> MissingProcesses:
        """No process is missing that this run needs."""
        return MissingProcesses(scheduler=False, queues={})

    def nodes(self) -> set[str]:
        """The names of the nodes of the agent and of all that it may start."""
        return {node for agent in self._agents.values() for node in agent.graph.nodes}

    def warnings(self) -> list[Problem]:
        """The warnings for the agent and for agents that its nodes name."""
        return [problem for each in (self.roster.agent, *self.roster.named.values()) for problem in each.warnings]

    # Questions

    def gates(self) -> list[GateInfo]:
        """The open questions, in the order in which they were asked, including those of child runs."""
        return self._store.gates_below(self.id)

    def answer(self, value: Json, gate: GateInfo) -> None:
        """Answer an open question. Raises GateError, and UsageError for an answer that it does not accept."""
        try:
            text = text_of(gate, value)
        except ValueError as error:
            raise UsageError(f"question {gate.key or gate.seq} of run {gate.run!r}: {error}") from None
        self._store.answer(gate.run, gate.seq, text, gate.attempt, self._by)

    def skip(
        self, node: str | int, value: Json = None, *, to: str | Sequence[str] = (), reason: str | None = None
    ) -> int:
        """Finish a visit that waits, or has failed the run, with an output, as client.Run.skip: the next step does so.
        Returns its number. Raises UsageError if there is no such visit, or if the value does not fit."""
        view, targets = self.record.view, (to,) if isinstance(to, str) else tuple(to)
        states = ("failed",) if view.is_final else ("ready", "queued", "waiting")
        visits = [each for each in view.frontier.values() if each.state in states and each.role == "node"]
        found = [each for each in visits if node in (each.seq, str(each.seq), each.node)]
        if len(found) != 1:
            listed = ", ".join(f"{each.seq} ({each.node})" for each in found or visits) or "none"
            raise UsageError(f"run {self.id!r} has {len(found)} visits {node!r} to skip; it has: {listed}")
        refuse_output(self.id, self._graph_of(view.spec), found[0].seq, found[0].node, value, targets)
        self._store.skip(self.id, found[0].seq, value, targets, by=self._by, reason=reason)
        return found[0].seq

    def retry(self) -> None:
        """Continue a failed run where it failed: the next step does so. Raises UsageError if it did not fail."""
        self._store.retry(self.id, by=self._by)

    def active(self) -> list[RunInfo]:
        """The run, and those that it has started and that are not over."""
        return [self._store.info(run_id) for run_id, run in self._store.runs.items() if not run.is_final]

    def resume(self) -> bool:
        """Let the run, and those that it has started, go past their breakpoints: the next step does so. False: none is
        at one."""
        return self._store.pass_breakpoints()

    def cancel(self) -> None:
        """Cancel the run: the next step ends it. Raises UsageError if it has ended."""
        self._store.cancel(self.id, self._by)


def _with_graphs(agents: Mapping[str, PreparedAgent]) -> dict[str, PreparedAgent]:
    """Agents by name, with the graphs that nodes of theirs run."""
    below = {
        name_below(name, graph): replace(agent, graph=graph_below(agent.graph, graph))
        for name, agent in agents.items()
        for graph in agent.graph.graphs
    }
    return {**agents, **below}


def existing_bases(roster: Roster, settings: Settings) -> dict[str, str]:
    """The knowledge bases of an agent and of those that it may start, as in RunSpec. Raises UsageError for a missing
    one, with the command that builds it."""
    store_name = index_store_name(settings)

    def is_shelved(digest: str) -> bool:
        return not is_missing(store_name, digest)

    found: dict[str, str] = {}
    for each in (roster.agent, *roster.named.values()):
        for node, digest in preparing.bases_of(each.folder, each.graph, _refuse_to_build, is_shelved).items():
            found[pin_name(each.folder.name, node)] = digest
    for each in roster.children.values():
        for node, digest in preparing.existing_bases(each.folder, each.graph).items():
            if is_shelved(digest):
                found.setdefault(pin_name(each.folder.name, node), digest)
    return found


def _refuse_to_build(order: Order, report: Callable[[BuildMessage], None]) -> Mapping[str, Any]:
    raise UsageError(
        f"the knowledge base {pin_name(order.agent, order.node)!r} is not built, and a run in this process builds "
        f"none. Build it first: sleipnir kb build {order.agent}"
    )
