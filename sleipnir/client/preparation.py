"""Prepares the submission of runs of an agent: what agent_preparation.py does, with bundles and knowledge bases stored.

Rules. Agents are found and checked first, people are asked next, then missing bases are built; before the submission
only bases are stored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sleipnir import waiting
from sleipnir.agents import finding
from sleipnir.agents.bundle import Bundle
from sleipnir.batches.records import BatchPlan, check_plan
from sleipnir.client import forked_spec, requested_run
from sleipnir.client.agent_preparation import AgentPreparation, PreparedAgent, Roster
from sleipnir.client.options import ForkChanges, RunOptions, overrides_in, refuse_unknown
from sleipnir.client.pinned_graph import pinned_graph
from sleipnir.errors import BatchNotFound, ThreadBusy, UsageError
from sleipnir.graph import node_overrides
from sleipnir.graph.agent_names import folder_of
from sleipnir.graph.check_models import is_model
from sleipnir.graph.key_scopes import SHARED
from sleipnir.graph.model import AgentNode, Graph, LlmNode, Node
from sleipnir.graph.overrides import with_every_model
from sleipnir.graph.shared_keys import with_shared
from sleipnir.knowledge import preparing as knowledge
from sleipnir.knowledge.builder import Builder
from sleipnir.knowledge.files import index_store_name, is_missing, pin_name
from sleipnir.python_graph.agent_modules import refuse_while_loading
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.run_config import thread_id_of
from sleipnir.runs import sessions, threads
from sleipnir.runs.actor import Person
from sleipnir.runs.budgets import Budget, check_budget
from sleipnir.runs.cards import checked_tags
from sleipnir.runs.initial_state import queued_turn
from sleipnir.runs.run import QueuedTurn, RunSpec, changed
from sleipnir.runs.shared_values import names_of
from sleipnir.settings import Settings
from sleipnir.store.runs.requests import random_id
from sleipnir.store.store import Store
from sleipnir.store.threads import LastTurn, LiveTurn

BATCH_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

NO_BATCH_ID: Final = "{!r} cannot name a batch: up to 64 letters, digits, '.', '_' and '-' can"

OFFERED_FOR_S: Final = (
    60.0  # bundles that Redis had within this time are not checked again; it keeps recently used ones
)


OWED_S: Final = 2.0  # for which a turn waits for what the run before it has written


@dataclass(frozen=True)
class PreparedRun:
    """A run that is not stored yet. Of a run in a thread, `state` is what it changes of the state that the thread has
    after the run `last` (None: it is the first one). A `queued` one waits for the runs before it."""

    id: str
    spec: RunSpec
    state: Mapping[str, Any]
    roster: Roster
    last: LastTurn | None = None
    queued: QueuedTurn | None = None

    def by(self, person: Person) -> PreparedRun:
        """The same, submitted by this person: preparations are shared by the clients of a server."""
        return changed(self, spec=self.spec.of_author(person.name))

    @property
    def may_be_queued(self) -> bool:
        """Whether it waits if its thread is busy."""
        return self.spec.thread is not None and self.roster.agent.graph.queues_turns


@dataclass(frozen=True)
class PreparedBatch:
    """A batch that gets rows: a new one, or one that a submission continues. Rows are checked against `graph`; those of
    `program`, a graph that a program has built, are its inputs. `file` is the graph.py of the agent, if it has one."""

    id: str
    spec: RunSpec
    plan: BatchPlan
    graph: Graph
    program: CompiledGraph | None = None
    file: Path | None = None

    def by(self, person: Person) -> PreparedBatch:
        """The same, submitted by this person; rows that continue a batch are of who began it."""
        return changed(self, spec=self.spec.of_author(person.name))


class Preparation:
    """Prepares agents for one client; thread-safe."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings, self._store = settings, store
        self.agents = AgentPreparation(settings)
        self._offered_s: dict[str, float] = {}

    def run(
        self,
        agent: str | Path | CompiledGraph,
        prompt: Any,
        *,
        state: Mapping[str, Any] | None,
        session: str | None,
        thread: str | None,
        budget: Budget,
        options: RunOptions,
        run_id: str | None = None,
    ) -> PreparedRun:
        """A run that can be stored once its bundles are offered, with this id (None: a new one). Raises as
        Client.submit describes."""
        refuse_unknown(options)
        refuse_while_loading()
        check_budget(budget.max_cost_usd, budget.max_tokens)
        roster = self.agents.roster(agent)
        name = self._thread(roster.agent, agent, thread, session, options)
        last = None if name is None else self._turn_before(name, queues=roster.agent.graph.queues_turns)
        before = None if last is None else last.state
        in_session = _session(roster.agent.graph, roster.agent.folder.name, session)
        given: Mapping[str, Any] = state or {}
        spec = self._spec(agent, roster, options, name)
        shared = self._shared(spec, None if last is None else last.before if isinstance(last, LiveTurn) else last.run)
        if isinstance(agent, CompiledGraph):
            if state is not None:
                raise UsageError("a graph gets its input as the second argument; leave `state` out")
            begin = self.agents.state_of_input(roster.agent, agent, prompt, before)
            if shared:
                given = self.agents.written_by_input(agent, prompt)
                begin = {**begin, **{key: value for key, value in shared.items() if key not in given}}
        else:
            begin = self.agents.state_at_start(roster.agent.sharing(shared), prompt, state, before)
        spec = changed(
            spec,
            session=in_session,
            sessions=roster.sessions(),
            max_cost_usd=budget.max_cost_usd,
            max_tokens=budget.max_tokens,
        )
        if spec.session is not None or spec.sessions:
            spec = spec.naming_in_its_namespace()
        if name is None:
            return PreparedRun(run_id or self._new_id(spec), spec, begin, roster)
        run_id, past = run_id or self._id_in(self._store.keys.partition_of(str(name))), before or {}
        if isinstance(last, LiveTurn):
            spec = spec.in_thread(name.name, last.turns + 1, last.before)
            if isinstance(agent, CompiledGraph):
                given = self.agents.written_by_input(agent, prompt)
            queued, changes = queued_turn(roster.agent.graph, name, begin, given, past)
            return PreparedRun(run_id, spec, changes, roster, queued=queued)
        turn, previous = (1, None) if last is None else (last.turns + 1, last.run)
        spec = spec.in_thread(name.name, turn, previous)
        changes = {key: value for key, value in begin.items() if key not in past or value is not past[key]}
        return PreparedRun(run_id, spec, changes, roster, last)

    def _shared(self, spec: RunSpec, before: str | None = None) -> dict[str, Any]:
        """The shared values that a run begins with. Those that the run before it in its thread has written, which are
        there within moments of its end, are waited for."""
        if not spec.scopes:
            return {}
        values, until_s = self._store.shared_values, time.monotonic() + OWED_S
        with self._store.errors():
            while before is not None and values.is_owed_by(before) and time.monotonic() < until_s:
                waiting.sleep(0.01)
            return values.for_state(names_of(spec))

    def requested(
        self,
        request_id: str,
        agent: str | Path | CompiledGraph,
        prompt: Any,
        *,
        state: Mapping[str, Any] | None,
        session: str | None,
        thread: str | None,
        options: RunOptions,
    ) -> tuple[str, bool]:
        """The id of the run of a caller's request, and whether it was submitted before. Raises UsageError for an id
        that belongs to another request."""
        requested_run.checked(request_id)
        prepared = self.agents.roster(agent).agent
        name: object = self._thread(prepared, agent, thread, session, options)
        if name is not None:
            begin = {} if isinstance(agent, CompiledGraph) else {"initial_prompt": prompt}
        elif isinstance(agent, CompiledGraph):
            begin = self.agents.state_of_input(prepared, agent, prompt)
        else:
            begin = self.agents.state_at_start(prepared, prompt, state)
        begin = {key: value for key, value in begin.items() if not key.startswith(SHARED) or key in (state or {})}
        if (in_session := _session(prepared.graph, prepared.folder.name, session)) is not None:
            name = sessions.SessionName(prepared.folder.name, in_session, self.agents.namespace(options))
        keys = self._store.keys
        run_id = requested_run.run_id_of(request_id, keys, None if name is None else keys.partition_of(str(name)))
        with self._store.errors():
            return run_id, requested_run.is_known(
                self._store, run_id, request_id, prepared.folder.name, begin, options.get("user")
            )

    def _thread(
        self,
        prepared: PreparedAgent,
        agent: str | Path | CompiledGraph,
        thread: str | None,
        session: str | None,
        options: RunOptions,
    ) -> threads.ThreadName | None:
        """The thread of a run: the named one, or for a graph that remembers threads that of its configuration. Raises
        UsageError."""
        configured = thread_id_of(options.get("config"))
        if thread is None and configured is not None and isinstance(agent, CompiledGraph) and agent.remembers:
            thread = str(configured)
        if thread is None:
            return None
        if prepared.graph.loop is not None:
            raise UsageError(threads.NO_THREADS.format(agent=prepared.folder.name))
        if session is not None:
            raise UsageError("a run is in a session or in a thread, not in both")
        return threads.ThreadName(prepared.folder.name, threads.checked(thread), self.agents.namespace(options))

    def _turn_before(self, name: threads.ThreadName, *, queues: bool) -> LastTurn | LiveTurn | None:
        """What the turn goes on from, or is queued behind. Raises ThreadBusy."""
        with self._store.errors():
            try:
                return self._store.threads.last(name)
            except ThreadBusy:
                live = self._store.threads.live(name) if queues else None
                if live is None:
                    raise
                return live

    def batch(
        self, agent: str | Path | CompiledGraph, batch_id: str | None, plan: BatchPlan, options: RunOptions
    ) -> PreparedBatch:
        """A batch that rows can be added to; its bundles are offered. Raises as Client.batch describes."""
        refuse_unknown(options)
        refuse_while_loading()
        check_plan(plan)
        program = agent if isinstance(agent, CompiledGraph) else None
        folder = (
            self.agents.agent(agent).folder
            if isinstance(agent, CompiledGraph)
            else finding.look_up(agent, self._settings)
        )
        file = folder.file if program is None and folder.is_python else None
        if batch_id is not None:
            known = self._spec_of_batch(batch_id, folder.name, options.get("namespace"))
            if known is not None:
                with self._store.errors():
                    graph = pinned_graph(self._store, known)
                self._refuse_other_overrides(batch_id, known, graph, options)
                if options.get("user") not in (None, known.user):
                    raise UsageError(f"batch {batch_id!r} exists and is for user {known.user!r}: leave the user out")
                return PreparedBatch(batch_id, known, plan, with_shared(graph, self._shared(known)), program, file)
        roster = self.agents.roster(agent)
        spec = self._spec(agent, roster, options)
        with self._store.errors():
            self.offer(roster)
        graph = with_shared(roster.agent.graph, self._shared(spec))
        return PreparedBatch(batch_id or self._new_id(spec), spec, plan, graph, program, file)

    def _spec_of_batch(self, batch_id: str, agent: str, namespace: str | None) -> RunSpec | None:
        """The specification of an existing batch. Raises UsageError for a batch of another agent, and BatchNotFound for
        one of another namespace than the named one."""
        if not BATCH_ID.fullmatch(batch_id):
            raise UsageError(NO_BATCH_ID.format(batch_id))
        with self._store.errors():
            spec = self._store.batches.spec(batch_id)
        if spec is not None and namespace not in (None, spec.namespace):
            raise BatchNotFound(f"no batch {batch_id!r} in the namespace {namespace!r}; another namespace has this id")
        if spec is not None and spec.agent != agent:
            raise UsageError(f"batch {batch_id!r} is of agent {spec.agent!r}; submit rows of another as another batch")
        return spec

    def _refuse_other_overrides(self, batch_id: str, known: RunSpec, graph: Graph, options: RunOptions) -> None:
        """Raises UsageError for overrides and patches that are not those of the existing batch, which all rows have."""
        overrides, patches = overrides_in(options)
        if not overrides and not patches:
            return
        if node_overrides.checked(overrides, patches, graph, partial(self._stored, known)) != known.of_nodes:
            has = "other overrides and patches" if known.of_nodes else "no overrides and patches"
            raise UsageError(
                f"batch {batch_id!r} exists and has {has}, as all its rows: leave them out, or give another name"
            )

    def _spec(
        self,
        agent: str | Path | CompiledGraph,
        roster: Roster,
        options: RunOptions,
        thread: threads.ThreadName | None = None,
    ) -> RunSpec:
        graph = agent if isinstance(agent, CompiledGraph) else None
        name = None if thread is None else thread.name
        config, context = self.agents.config_and_context(roster.agent, options, graph, name)
        before, after = self.agents.breakpoints(roster.agent, options)
        nodes = self.agents.of_nodes(roster, *overrides_in(options))
        found = self.knowledge(roster, options.get("ask_knowledge"), options.get("tell_knowledge"))
        spec = changed(self.agents.spec(roster, options, found), config=config, context=context)
        spec = spec.stopping(before, after)
        return spec.overriding(nodes) if nodes else spec

    def fork(self, spec: RunSpec, changes: ForkChanges) -> tuple[RunSpec, Graph, Roster | None]:
        """What a fork of a run with this spec is submitted with, besides its `fork`, and its graph: with the definition
        of its source and its overrides of nodes, or with the current definition of another agent, whose bundles are to
        be offered. Raises like `run`, and UsageError for a model that nothing would use."""
        again, graph, roster = self._fork(spec, changes.agent)
        if roster is not None:
            nodes = self.agents.of_nodes(roster, changes.overrides, changes.patches)
        else:
            given = node_overrides.checked(changes.overrides, changes.patches, graph, partial(self._stored, again))
            node_overrides.refuse_unnamed_tools(given, graph)
            nodes = node_overrides.merged(spec.of_nodes, given)
            graph = node_overrides.overridden(graph, given)
        if changes.model is not None:
            nodes = node_overrides.without_models(nodes)
        if changes.tags:
            again = replace(again, tags=checked_tags({**(spec.tags or {}), **checked_tags(changes.tags)}))
        if nodes or spec.of_nodes:
            again = again.overriding(nodes)
        return (again if changes.model is None else _with_model(again, graph, changes.model)), graph, roster

    def _stored(self, spec: RunSpec, node: Node, graph: Graph) -> Graph | None:
        """The definition of the agent that a node starts, as a run with this spec knows it."""
        digest = spec.agents.get(node.agent) if isinstance(node, AgentNode) else None
        if digest is None or not isinstance(node, AgentNode) or node.agent in graph.agents:
            return None
        with self._store.errors():
            return pinned_graph(self._store, replace(spec, agent=node.agent, bundle=digest))

    def _fork(self, spec: RunSpec, agent: str | Path | None) -> tuple[RunSpec, Graph, Roster | None]:
        again = forked_spec.without_its_place(spec)
        if agent is None:
            with self._store.errors():
                return again, pinned_graph(self._store, spec), None
        roster = self.agents.roster(agent)
        known = {variable.name for variable in roster.agent.graph.variables}
        variables = {name: value for name, value in spec.variables.items() if name in known}
        options: RunOptions = {"variables": variables, "strict": spec.strict, "user": spec.user}
        now = self.agents.spec(roster, options, self.knowledge(roster, None, None))
        again = forked_spec.in_the_place_of(spec, replace(now, sessions=roster.sessions()))
        return again, roster.agent.graph, roster

    def batch_id(self) -> str:
        """A new id of a batch."""
        return self._id_in(None)

    def fork_id(self, place: str) -> str:
        """A new id in the partition of a run or a thread: a script copies its state, or takes a turn."""
        return self._id_in(self._store.keys.partition_of(place))

    def _new_id(self, spec: RunSpec) -> str:
        """A run lives in the partition of its id: that of its session, if it is in one."""
        session = sessions.SessionName.of(spec)
        return self._id_in(None if session is None else self._store.keys.partition_of(str(session)))

    def _id_in(self, partition: int | None) -> str:
        keys = self._store.keys
        while True:
            run_id = random_id()
            if partition in (None, keys.partition_of(run_id)):
                return run_id

    def knowledge(self, roster: Roster, ask: knowledge.Asker | None, report: knowledge.Report | None) -> dict[str, str]:
        """The knowledge bases that runs may use, as in RunSpec. Missing ones of the agent and of agents that nodes name
        are built; of agents that a model may choose only existing usable ones are included.

        Raises UsageError, KnowledgeError and ConfigError.
        """
        found: dict[str, str] = {}
        builder = Builder(self._settings)
        for each in (roster.agent, *roster.named.values()):
            bases = knowledge.bases_of(
                each.folder, each.graph, builder.carry_out, self._is_shared, ask, report or knowledge.report_nothing
            )
            found |= {pin_name(each.folder.name, node): digest for node, digest in bases.items()}
        for each in roster.children.values():
            for node, digest in knowledge.existing_bases(each.folder, each.graph).items():
                if self._is_shared(digest):
                    found.setdefault(pin_name(each.folder.name, node), digest)
        return found

    def offer(self, roster: Roster) -> None:
        """Make sure that Redis has all bundles."""
        for each in (roster.agent, *roster.children.values()):
            if each.bundle is not None:
                self._offer(each.bundle)

    def _offer(self, bundle: Bundle) -> None:
        if self._was_offered(bundle.digest):
            return
        now_ms = self._store.now_ms()
        if not self._store.bundles.touch(bundle.digest, now_ms):
            self._store.bundles.put(bundle.digest, bundle.packed, now_ms)
        self._offered_s[bundle.digest] = time.monotonic()

    def _is_shared(self, digest: str) -> bool:
        """Whether workers can find the index of a base."""
        if self._was_offered(digest):
            return True
        with self._store.errors():
            shared = self._store.knowledge.use(digest)
        index_store = index_store_name(self._settings)
        if shared is None or shared.shelf != index_store or is_missing(index_store, digest):
            return False
        self._offered_s[digest] = time.monotonic()
        return True

    def _was_offered(self, digest: str) -> bool:
        lately_s = min(OFFERED_FOR_S, self._settings.retention_s / 4)
        return time.monotonic() - self._offered_s.get(digest, -lately_s) < lately_s


def _with_model(again: RunSpec, graph: Graph, model: str) -> RunSpec:
    """The same with this model of all llm nodes. Raises UsageError."""
    if not is_model(model):
        raise UsageError(f"{model!r} cannot name a model: write it as client:model, for example openai:gpt-4o-mini")
    if not (again.agents or graph.graphs or any(isinstance(node, LlmNode) for node in graph.nodes.values())):
        raise UsageError(f"the graph {graph.name!r} has no llm nodes and starts no agents: no model is used")
    agents = {again.agent, folder_of(again.agent), *again.agents}
    return replace(again, overrides=with_every_model(again.overrides, agents, model))


def _session(graph: Graph, agent: str, name: str | None) -> str | None:
    if name is None:
        return None
    if graph.loop is None:
        raise UsageError(sessions.NO_SESSIONS.format(agent=agent))
    return sessions.checked(name)
