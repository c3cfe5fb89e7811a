"""Prepares the submission of runs of an agent: graphs, bundles, knowledge bases, variables.

Rules. The folders and this process's environment are read at that time; later changes do not affect existing runs.
Agents are found and checked first, people are asked next, then missing bases are built; before the submission only
bases are stored. An agent's folder is read again only if it, or its environment variables, have changed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sleipnir.agents import finding
from sleipnir.agents.bundle import Bundle, folder_signature, pack, packed_part
from sleipnir.agents.variables import Asker, of_environment, resolved_variables
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
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.tools.folder import custom_tools

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

    def spec(
        self,
        roster: Roster,
        *,
        variables: Mapping[str, str] | None,
        cwd: Path | None,
        caller_dir: Path | None,
        strict: bool | None,
        ask_variable: Asker | None,
        ask_knowledge: knowledge.Asker | None,
        tell_knowledge: knowledge.Report | None,
    ) -> RunSpec:
        """The specification of runs, without a session. Client.submit describes the questions, builds and errors."""
        if strict is None:
            strict = self._settings.strict or self._settings.replay is not None
        agent, children = roster.agent, roster.children
        everybody = {**children, agent.folder.name: agent}
        presets = {name: of_environment(child.graph, os.environ) for name, child in children.items()}
        caller = str(caller_dir or Path.cwd())
        return RunSpec(
            agent=agent.folder.name,
            bundle=agent.bundle.digest,
            agents={name: child.bundle.digest for name, child in children.items()},
            descriptions=roster.descriptions(),
            overrides={name: each.overrides for name, each in everybody.items() if each.overrides},
            presets={name: given for name, given in presets.items() if given},
            variables=resolved_variables(agent.graph, variables or {}, os.environ, ask_variable),
            cwd=str(cwd) if cwd else None,
            caller_dir=caller,
            caller_marks=System.here().marks(caller),
            strict=strict,
            by_version=True,
            knowledge=self.knowledge(roster, ask_knowledge, tell_knowledge),
        )

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
