"""Prepares the submission of runs of an agent: graphs, bundles, knowledge bases, variables.

Rules. The folders and this process's environment are read at that time; later changes do not affect existing runs.
Agents are found and checked first, people are asked next, then missing bases are built; before the submission only
bases are stored. An agent's folder is read again only if it, or its environment variables, have changed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sleipnir.agents import finding
from sleipnir.agents.bundle import Bundle, folder_signature, pack, packed_part
from sleipnir.agents.variables import of_environment, resolved_variables
from sleipnir.batches.records import BatchPlan, check_plan
from sleipnir.client.options import RunOptions, refuse_unknown
from sleipnir.client.pinned_graph import pinned_graph
from sleipnir.client.texts import refuse_text
from sleipnir.errors import AgentNotFound, BundleError, GraphError, Problem, UsageError
from sleipnir.graph.check import check_loaded, format_headline
from sleipnir.graph.load import AgentFolder, load_agent, refusal
from sleipnir.graph.loaded import LoadedGraph
from sleipnir.graph.model import Graph, Json, agents_of
from sleipnir.graph.overrides import overridden
from sleipnir.graph.tools import may_spawn
from sleipnir.knowledge import preparing as knowledge
from sleipnir.knowledge.builder import Builder
from sleipnir.knowledge.files import index_store_name, is_missing, pin_name
from sleipnir.local.same_directory import System
from sleipnir.models.clients import clients_here
from sleipnir.runs import sessions
from sleipnir.runs.budgets import Budget, check_budget
from sleipnir.runs.initial_state import state_at_start
from sleipnir.runs.run import ID_ALPHABET, ID_LENGTH, RunSpec
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.tools.folder import custom_tools

BATCH_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

SHOWN_CHARS: Final = 300
"""Maximum characters of an agent's description for models that choose among agents."""

OFFERED_FOR_S: Final = (
    60.0  # bundles that Redis had within this time are not checked again; it keeps recently used ones
)


@dataclass(frozen=True)
class PreparedAgent:
    """An agent's folder, ready to submit, as of `signature` and `overrides`; `written` is the graph without
    overrides."""

    folder: AgentFolder
    signature: tuple[tuple[str, int, int], ...]
    written: Graph
    overrides: dict[str, Json]
    graph: Graph
    bundle: Bundle
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Roster:
    """An agent, and all agents that its runs and their children may start, by name: those that agent nodes name, and
    those that a model may choose."""

    agent: PreparedAgent
    named: Mapping[str, PreparedAgent]
    chosen: Mapping[str, PreparedAgent]

    @property
    def children(self) -> dict[str, PreparedAgent]:
        return {**self.chosen, **self.named}

    def descriptions(self) -> dict[str, str]:
        """One-line descriptions of the agents that a model may choose."""
        told = {name: " ".join(each.graph.description.split()) for name, each in self.chosen.items()}
        return {name: text[:SHOWN_CHARS] for name, text in told.items() if text}

    def sessions(self) -> dict[str, str]:
        """The sessions of children; a temporary one has no use for a single run."""
        loops = {name: child.graph.loop for name, child in self.children.items()}
        wanted = {name: loop.agent_session for name, loop in loops.items() if loop is not None}
        return {name: session for name, session in wanted.items() if session is not None and session != sessions.TEMP}


@dataclass(frozen=True)
class PreparedRun:
    """A run that is not stored yet."""

    id: str
    spec: RunSpec
    state: Mapping[str, Any]
    roster: Roster


@dataclass(frozen=True)
class PreparedBatch:
    """A batch that gets rows: a new one, or one that a submission continues. Rows are checked against `graph`."""

    id: str
    spec: RunSpec
    plan: BatchPlan
    graph: Graph


class Preparation:
    """Prepares agents for one client; thread-safe."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings, self._store = settings, store
        self._prepared: dict[AgentFolder, PreparedAgent] = {}
        self._offered_s: dict[str, float] = {}

    def agent(self, agent: str | Path) -> PreparedAgent:
        """The checked graph and the bundle of an agent, by name or folder. Raises AgentNotFound, GraphError (with all
        problems) and BundleError."""
        return self._prepare(finding.look_up(agent, self._settings))

    def roster(self, agent: str | Path) -> Roster:
        """An agent and those that its runs may start. Raises like `agent`, also for an agent that an agent node
        names."""
        top = self.agent(agent)
        named = self._named(top.graph)
        may_choose = any(may_spawn(each.graph) for each in (top, *named.values()))
        return Roster(top, named, self._all_that_work() if may_choose else {})

    def run(
        self,
        agent: str | Path,
        prompt: str,
        *,
        state: Mapping[str, Any] | None,
        session: str | None,
        budget: Budget,
        options: RunOptions,
    ) -> PreparedRun:
        """A run that can be stored once its bundles are offered. Raises as Client.submit describes."""
        refuse_unknown(options)
        check_budget(budget.max_cost_usd, budget.max_tokens)
        roster = self.roster(agent)
        name, graph = roster.agent.folder.name, roster.agent.graph
        refuse_text("the prompt", prompt, self._settings.max_prompt_bytes)
        begin = state_at_start(graph, prompt, {} if state is None else state, self._settings.max_output_bytes)
        in_session = _session(graph, name, session)
        spec = replace(
            self.spec(roster, options),
            session=in_session,
            sessions=roster.sessions(),
            max_cost_usd=budget.max_cost_usd,
            max_tokens=budget.max_tokens,
        )
        return PreparedRun(self._new_id(spec), spec, begin, roster)

    def batch(self, agent: str | Path, batch_id: str | None, plan: BatchPlan, options: RunOptions) -> PreparedBatch:
        """A batch that rows can be added to; its bundles are offered. Raises as Client.batch describes."""
        refuse_unknown(options)
        check_plan(plan)
        if batch_id is not None:
            known = self._spec_of_batch(batch_id, finding.look_up(agent, self._settings).name)
            if known is not None:
                with self._store.errors():
                    return PreparedBatch(batch_id, known, plan, pinned_graph(self._store, known))
        roster = self.roster(agent)
        spec = self.spec(roster, options)
        with self._store.errors():
            self.offer(roster)
        return PreparedBatch(batch_id or self._new_id(spec), spec, plan, roster.agent.graph)

    def _spec_of_batch(self, batch_id: str, agent: str) -> RunSpec | None:
        """The specification of an existing batch. Raises UsageError for a batch of another agent."""
        if not BATCH_ID.fullmatch(batch_id):
            raise UsageError(f"{batch_id!r} cannot name a batch: up to 64 letters, digits, '.', '_' and '-' can")
        with self._store.errors():
            spec = self._store.batches.spec(batch_id)
        if spec is not None and spec.agent != agent:
            raise UsageError(f"batch {batch_id!r} is of agent {spec.agent!r}; submit rows of another as another batch")
        return spec

    def spec(self, roster: Roster, options: RunOptions) -> RunSpec:
        """The specification of runs, without a session."""
        cwd, strict = options.get("cwd"), options.get("strict")
        if strict is None:
            strict = self._settings.strict or self._settings.replay is not None
        agent, children = roster.agent, roster.children
        everybody = {**children, agent.folder.name: agent}
        presets = {name: of_environment(child.graph, os.environ) for name, child in children.items()}
        variables, ask_variable = options.get("variables") or {}, options.get("ask_variable")
        caller = str(options.get("caller_dir") or Path.cwd())
        return RunSpec(
            agent=agent.folder.name,
            bundle=agent.bundle.digest,
            agents={name: child.bundle.digest for name, child in children.items()},
            descriptions=roster.descriptions(),
            overrides={name: each.overrides for name, each in everybody.items() if each.overrides},
            presets={name: given for name, given in presets.items() if given},
            variables=resolved_variables(agent.graph, variables, os.environ, ask_variable),
            cwd=str(cwd) if cwd else None,
            caller_dir=caller,
            caller_marks=System.here().marks(caller),
            strict=strict,
            by_version=True,
            knowledge=self.knowledge(roster, options.get("ask_knowledge"), options.get("tell_knowledge")),
        )

    def _new_id(self, spec: RunSpec) -> str:
        """A run lives in the partition of its id: that of its session, if it is in one."""
        keys = self._store.keys
        session = None if spec.session is None else str(sessions.SessionName(spec.agent, spec.session))
        partition = None if session is None else keys.partition_of(session)
        while True:
            run_id = "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))
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
            self._offer(each.bundle)

    def _named(self, graph: Graph) -> dict[str, PreparedAgent]:
        """The agents that agent nodes of a graph start, recursively, by name."""
        found: dict[str, PreparedAgent] = {}
        names = agents_of(graph)
        while names:
            name = names.pop()
            if name not in found:
                found[name] = self.agent(name)
                names += agents_of(found[name].graph)
        return found

    def _all_that_work(self) -> dict[str, PreparedAgent]:
        """All agents except broken ones, by name."""
        found: dict[str, PreparedAgent] = {}
        for name in finding.names(self._settings):
            with contextlib.suppress(AgentNotFound, GraphError, BundleError, UsageError):
                found[name] = self.agent(name)
        return found

    def _prepare(self, agent: AgentFolder) -> PreparedAgent:
        signature = folder_signature(agent.path, agent.config_file)
        known = self._prepared.get(agent)
        changed = known is None or known.signature != packed_part(signature, known.graph)
        if known is None or changed or known.overrides != finding.overrides(known.written, agent.name):
            known = self._prepared[agent] = self._read(agent, signature)
        return known

    def _read(self, agent: AgentFolder, signature: tuple[tuple[str, int, int], ...]) -> PreparedAgent:
        loaded = load_agent(agent)
        if loaded.graph is None:
            headline = refusal(agent.kind, str(agent.file), agent.name)
            raise GraphError(headline, self._problems(loaded, agent, None))
        overrides = finding.overrides(loaded.graph, agent.name)
        graph = overridden(loaded.graph, overrides)
        problems = self._problems(loaded, agent, graph) if graph.settings.validate_before_run else loaded.problems
        if any(problem.level == "error" for problem in problems):
            raise GraphError(format_headline(problems), problems)
        limit_bytes = self._settings.max_bundle_bytes
        bundle = pack(
            agent.path,
            limit_bytes=limit_bytes,
            graph=graph,
            config_file=agent.config_file,
            definition=loaded.text,
            unpacked_bytes=self._settings.max_unpacked_bytes,
        )
        signature = packed_part(signature, graph)
        return PreparedAgent(agent, signature, loaded.graph, overrides, graph, bundle, tuple(problems))

    def _problems(self, loaded: LoadedGraph, agent: AgentFolder, graph: Graph | None) -> Sequence[Problem]:
        """All problems of an agent, except tools and MCP servers that may be missing only on this machine."""
        return check_loaded(
            loaded,
            agent.file,
            agent.path,
            lambda name: finding.folder_or_none(name, self._settings),
            read_tools=custom_tools,
            clients=clients_here(os.environ, is_local=False),
            graph=graph,
        )

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


def _session(graph: Graph, agent: str, name: str | None) -> str | None:
    if name is None:
        return None
    if graph.loop is None:
        raise UsageError(sessions.NO_SESSIONS.format(agent=agent))
    return sessions.checked(name)
