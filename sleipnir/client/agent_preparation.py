"""Prepares agents for runs, without a store: checked graphs, bundles, variables, specs.

Rules. The folders and this process's environment are read at that time; later changes do not affect existing runs. An
agent's folder is read again only if it, or its environment variables, have changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeGuard
from weakref import WeakKeyDictionary

from sleipnir.agents import finding
from sleipnir.agents.bundle import Bundle, folder_signature, pack, packed_part
from sleipnir.agents.variables import of_environment, resolved_variables
from sleipnir.client import graph_bundle
from sleipnir.client.options import RunOptions
from sleipnir.client.texts import refuse_text
from sleipnir.errors import AgentNotFound, BundleError, GraphError, Problem, UsageError
from sleipnir.graph import history, node_overrides, python_file
from sleipnir.graph.check import check_loaded, format_headline
from sleipnir.graph.check_breakpoints import breakpoint_nodes
from sleipnir.graph.load import AgentFolder, load_agent, read_agent, refusal
from sleipnir.graph.loaded import LoadedGraph
from sleipnir.graph.model import AgentNode, Graph, GraphNode, Json, Node, agents_of
from sleipnir.graph.node_overrides import MORE_TOOLS, TOOLS, NodeOverrides
from sleipnir.graph.overrides import overridden
from sleipnir.graph.shared_keys import scopes_of, with_shared
from sleipnir.graph.structure import Structure, structure_of
from sleipnir.graph.tools import may_spawn
from sleipnir.local.same_directory import System
from sleipnir.messages import VERSION
from sleipnir.models.clients import clients_here
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.initial_state import first_state, written_by
from sleipnir.python_graph.objects import stored_context
from sleipnir.python_graph.run_config import refuse_size, refuse_unfit, stored_config, thread_id_of
from sleipnir.python_graph.runtime import merged_config
from sleipnir.python_graph.sources import references_to
from sleipnir.runs import sessions
from sleipnir.runs.cards import checked_namespace, checked_tags
from sleipnir.runs.initial_state import first_state_of, is_folded_by_code, state_at_start, state_of_turn
from sleipnir.runs.run import WITH_SHARED, RunSpec
from sleipnir.runs.shared_values import NO_SHARED_VALUES, checked_user
from sleipnir.settings import Settings
from sleipnir.tools.folder import custom_tools

SHOWN_CHARS: Final = 300
"""Maximum characters of an agent's description for models that choose among agents."""


@dataclass(frozen=True)
class PreparedAgent:
    """An agent's folder, ready to submit, as of `signature` and `overrides`; `written` is the graph without
    overrides. `bundle` is None where runs use the folder itself. `config` is what a graph written in Python has by
    `with_config`, and `loaded` its definition, if a program has built it."""

    folder: AgentFolder
    signature: tuple[tuple[str, int, int], ...]
    written: Graph
    overrides: dict[str, Json]
    graph: Graph
    bundle: Bundle | None
    warnings: tuple[Problem, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    loaded: LoadedGraph | None = None

    def sharing(self, shared: Mapping[str, Json]) -> PreparedAgent:
        """The same agent, whose runs begin with these shared values."""
        return replace(self, graph=with_shared(self.graph, shared)) if shared else self

    @cached_property
    def agent_names(self) -> list[str]:
        """The agents that its nodes name."""
        return agents_of(self.graph)

    @cached_property
    def may_choose(self) -> bool:
        """Whether a model of it may choose agents to start."""
        return may_spawn(self.graph)

    @property
    def digest(self) -> str:
        """What a run's spec names it by: the digest of its bundle, or its folder."""
        return str(self.folder.path) if self.bundle is None else self.bundle.digest


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


class AgentPreparation:
    """Prepares agents for one client, or for runs in this process; thread-safe. `packs`: with their bundles."""

    def __init__(self, settings: Settings, *, packs: bool = True) -> None:
        self._settings, self._packs = settings, packs
        self._prepared: dict[tuple[Path, str, Path | None], PreparedAgent] = {}
        self._prepared_graphs: WeakKeyDictionary[CompiledGraph, PreparedAgent] = WeakKeyDictionary()

    def agent(self, agent: str | Path | CompiledGraph) -> PreparedAgent:
        """The checked graph and the bundle of an agent, by name or folder, or of a graph. Raises AgentNotFound,
        GraphError (with all problems) and BundleError."""
        if isinstance(agent, CompiledGraph):
            return self._prepare_graph(agent)
        return self._prepare(finding.place_of(agent, self._settings))

    def roster(self, agent: str | Path | CompiledGraph) -> Roster:
        """An agent and those that its runs may start. Raises like `agent`, also for an agent that an agent node
        names."""
        top = self.agent(agent)
        named = self._named(top)
        may_choose = any(each.may_choose for each in (top, *named.values()))
        return Roster(top, named, self._all_that_work() if may_choose else {})

    def state_at_start(
        self,
        agent: PreparedAgent,
        prompt: str,
        state: Mapping[str, Any] | None,
        before: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The first state of a run; `before` is the state of its thread. Values that reducers in a graph.py get go
        through these, in the process that executes the file. Raises UsageError."""
        refuse_text("the prompt", prompt, self._settings.max_prompt_bytes)
        if before is not None:
            return self._state_of_turn(agent, prompt, {} if state is None else state, before)
        begin = state_at_start(agent.graph, prompt, {} if state is None else state, self._settings.max_output_bytes)
        reduced = {key: begin[key] for key in state or {} if is_folded_by_code(agent.graph, key)}
        if reduced and agent.folder.is_python:
            folded = python_file.first_state(agent.folder.file, reduced)
            begin |= {key: folded[key] for key in reduced if key in folded}
        return begin

    def _state_of_turn(
        self, agent: PreparedAgent, prompt: str, given: Mapping[str, Any], before: Mapping[str, Any]
    ) -> dict[str, Any]:
        begin = state_of_turn(agent.graph, prompt, given, before, self._settings.max_output_bytes)
        if given and agent.folder.is_python:
            folded = python_file.state_of_turn(agent.folder.file, given, before)
            begin |= {key: folded[key] for key in given if key in folded}
        return begin

    def state_of_input(
        self, agent: PreparedAgent, graph: CompiledGraph, input: Any, before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The first state of a run of a graph; `before` is the state of its thread. Raises what `graph.invoke` raises
        for the input, and UsageError."""
        past = None if before is None else history.at_start(agent.graph, before)
        state = first_state(graph.parts, graph.objects, input, past)
        return first_state_of(agent.graph, state, self._settings.max_output_bytes)

    def written_by_input(self, graph: CompiledGraph, input: Any) -> dict[str, Any]:
        """What the input of a graph writes, before its reducers. Raises like `state_of_input`."""
        return graph.objects.encoded(written_by(graph.parts, input))

    def breakpoints(self, agent: PreparedAgent, options: RunOptions) -> tuple[list[str] | None, list[str] | None]:
        """The nodes before and after which runs stop, as RunSpec has them. Raises UsageError for an unknown name."""
        try:
            before = breakpoint_nodes(agent.graph, options.get("interrupt_before"), "before")
            return before, breakpoint_nodes(agent.graph, options.get("interrupt_after"), "after")
        except ValueError as error:
            raise UsageError(f"agent {agent.folder.name!r}: {error}") from None

    def structure(self, agent: str | Path | CompiledGraph) -> Structure:
        """The structure of an agent with those that its nodes name, as their files say, whatever the environment does.
        Raises like `roster`."""
        roster = self.roster(agent)

        def find_graph(node: Node, graph: Graph) -> Graph | None:
            return roster.named[node.agent].written if _is_of_folder(node, graph) else None

        return structure_of(roster.agent.written, find_graph)

    def of_nodes(
        self, roster: Roster, overrides: Mapping[str, Any] | None, patches: Mapping[str, Any] | None
    ) -> dict[str, dict[str, Json]]:
        """Overrides and patches of nodes, as RunSpec has them. Raises UsageError for those that do not fit the agent,
        or the agents that they name."""

        def find_graph(node: Node, graph: Graph) -> Graph | None:
            return roster.named[node.agent].graph if _is_of_folder(node, graph) else None

        given = roster.agent.config.get("overrides") if overrides is None else overrides
        nodes = node_overrides.checked(given, patches, roster.agent.graph, find_graph)
        if nodes:
            self._check_overridden(roster, roster.agent, roster.agent.graph, nodes, ())
        return nodes

    def _check_overridden(
        self, roster: Roster, agent: PreparedAgent, graph: Graph, nodes: NodeOverrides, path: tuple[str, ...]
    ) -> None:
        """Check the definition with its overrides, and that of agents under those of its nodes that a path names."""
        has_tools = any(MORE_TOOLS in given or TOOLS in given for given in nodes.values())
        if has_tools and graph is agent.graph:
            self._refuse_problems(agent, node_overrides.overridden(graph, nodes), path)
        for name in {each.partition("/")[0] for each in nodes if "/" in each}:
            node = graph.nodes.get(name)
            below = node_overrides.of_child(nodes, name)
            if isinstance(node, GraphNode) and graph is agent.graph:
                inner = node_overrides.overridden(graph.graphs[node.graph], below)
                self._refuse_problems(agent, replace(graph, graphs={**graph.graphs, node.graph: inner}), path)
            elif _is_of_folder(node, graph) and node.agent in roster.named:
                child = roster.named[node.agent]
                self._check_overridden(roster, child, child.graph, below, (*path, name))

    def _refuse_problems(self, agent: PreparedAgent, graph: Graph, path: tuple[str, ...]) -> None:
        """Raises UsageError for errors that an agent has only with its overrides."""
        loaded = agent.loaded if agent.loaded is not None else load_agent(agent.folder)
        found = self._problems(loaded, agent.folder, graph)
        for problem in found:
            if problem.level == "error":
                where = f" under {'/'.join(path)!r}" if path else ""
                hint = f". {problem.hint}" if problem.hint else ""
                raise UsageError(f"the patches do not fit agent {agent.folder.name!r}{where}: {problem.message}{hint}")

    def config_and_context(
        self,
        agent: PreparedAgent,
        options: RunOptions,
        graph: CompiledGraph | None = None,
        thread: str | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """The configuration and the context of runs, as RunSpec has them; `graph` is the agent, if a program has built
        it, and `thread` their thread. Raises UsageError, and what the class of the context raises in this process."""
        given, context = options.get("config"), options.get("context")
        if not agent.folder.is_python:
            for name, value in (("config", given), ("context", context)):
                if value is not None:
                    raise UsageError(
                        f"agent {agent.folder.name!r} takes no {name}=, because its graph is not written in Python; "
                        "give it `state` or variables"
                    )
            return {}, None
        merged = merged_config(agent.config, {} if given is None else given)
        merged.pop("overrides", None)  # `of_nodes`
        config = stored_config(merged)
        named = thread_id_of(config)
        if thread is not None:
            if named is not None and str(named) != thread:
                raise UsageError(f"the run is in the thread {thread!r}, but its configuration says {named!r}")
            config["configurable"] = {**config.get("configurable", {}), "thread_id": thread}
        elif graph is not None and graph.remembers and named is not None and thread_id_of(given) is None:
            raise UsageError(
                f"the thread {named!r} is bound to the graph by with_config: submit the graph without that, and name "
                "the thread of the run by thread= or config= (rows of batches are in no thread)"
            )
        elif graph is not None and graph.remembers and named is not None:
            raise UsageError("rows of batches are in no thread: leave out thread_id, and give their state as the input")
        stored = None if context is None else self._stored_context(agent, context, graph)
        refuse_size(config, stored)
        return config, stored

    def _stored_context(self, agent: PreparedAgent, context: Any, graph: CompiledGraph | None) -> dict[str, Any]:
        if graph is not None:
            references = references_to(agent.folder.path)
            stored = stored_context(context, graph.parts.context_schema, references.to)
            if references.unreachable:
                raise UsageError(f"workers cannot find the class of the context: {type(context).__qualname__}")
        else:
            if not isinstance(context, Mapping):
                raise UsageError(f"the context of an agent is a mapping, not {type(context).__qualname__}")
            refuse_unfit("context", context)
            stored = python_file.stored_context(agent.folder.file, context)
        refuse_unfit("context", {"context": stored["value"]})
        return stored

    def spec(self, roster: Roster, options: RunOptions, knowledge: Mapping[str, str]) -> RunSpec:
        """The specification of runs, without a session. `knowledge` is as in RunSpec."""
        cwd, strict = options.get("cwd"), options.get("strict")
        if strict is None:
            strict = self._settings.strict or self._settings.replay is not None
        agent, children = roster.agent, roster.children
        user = self._user(agent, options)
        scopes = scopes_of(agent.graph, user)
        everybody = {**children, agent.folder.name: agent}
        presets = {name: of_environment(child.graph, os.environ) for name, child in children.items()}
        variables, ask_variable = options.get("variables") or {}, options.get("ask_variable")
        caller = None if options.get("scratch") else str(options.get("caller_dir") or Path.cwd())
        return RunSpec(
            agent=agent.folder.name,
            bundle=agent.digest,
            agents={name: child.digest for name, child in children.items()},
            descriptions=roster.descriptions(),
            overrides={name: each.overrides for name, each in everybody.items() if each.overrides},
            presets={name: given for name, given in presets.items() if given},
            variables=resolved_variables(agent.graph, variables, os.environ, ask_variable),
            cwd=str(cwd) if cwd else None,
            caller_dir=caller,
            caller_marks="" if caller is None else System.here().marks(caller),
            strict=strict,
            by_version=True,
            knowledge=dict(knowledge),
            user=user,
            scopes=scopes,
            v=WITH_SHARED if scopes else VERSION,
            namespace=self.namespace(options),
            tags=checked_tags(options.get("tags")) or None,
        )

    def namespace(self, options: RunOptions) -> str:
        """The namespace of runs. Raises UsageError."""
        return checked_namespace(options.get("namespace") or self._settings.namespace)

    def _user(self, agent: PreparedAgent, options: RunOptions) -> str | None:
        """The user of runs. Raises UsageError."""
        user = options.get("user")
        if user is not None and agent.graph.loop is not None:
            raise UsageError(NO_SHARED_VALUES.format(agent=agent.folder.name))
        return None if user is None else checked_user(user)

    def _named(self, top: PreparedAgent) -> dict[str, PreparedAgent]:
        """The agents that agent nodes of an agent start, recursively, by name."""
        found: dict[str, PreparedAgent] = {}
        names = [*top.agent_names]
        while names:
            name = names.pop()
            if name not in found:
                found[name] = self.agent(name)
                names += found[name].agent_names
        return found

    def _all_that_work(self) -> dict[str, PreparedAgent]:
        """All agents except broken ones, by name."""
        found: dict[str, PreparedAgent] = {}
        for name in finding.names(self._settings):
            with contextlib.suppress(AgentNotFound, GraphError, BundleError, UsageError):
                found[name] = self.agent(name)
        return found

    def _prepare_graph(self, graph: CompiledGraph) -> PreparedAgent:
        """Once per graph: its code in this process does not change either."""
        known = self._prepared_graphs.get(graph)
        if known is None:
            folder, loaded = graph_bundle.defined(graph)
            if loaded.graph is None:
                raise GraphError(refusal("graph", str(folder.file), folder.name), loaded.problems)
            overrides = finding.overrides(loaded.graph, folder.name)
            model, problems = self._checked(folder, loaded, overrides)
            bundle = graph_bundle.packed(graph, folder, loaded, self._settings) if self._packs else None
            known = PreparedAgent(
                folder, (), loaded.graph, overrides, model, bundle, tuple(problems), graph.config, loaded
            )
            self._prepared_graphs[graph] = known
        return known

    def _prepare(self, place: tuple[Path, str, Path | None]) -> PreparedAgent:
        known = self._prepared.get(place)
        if known is None or self._has_changed(known):
            known = self._prepared[place] = self._read(read_agent(*place))
        return known

    def _has_changed(self, known: PreparedAgent) -> bool:
        signature = folder_signature(known.folder.path, known.folder.config_file)
        if known.signature != packed_part(signature, known.graph):
            return True
        return known.overrides != finding.overrides(known.written, known.folder.name)

    def _read(self, agent: AgentFolder) -> PreparedAgent:
        signature = folder_signature(agent.path, agent.config_file)
        loaded = load_agent(agent)
        if loaded.graph is None:
            headline = refusal(agent.kind, str(agent.file), agent.name)
            raise GraphError(headline, self._problems(loaded, agent, None))
        overrides = finding.overrides(loaded.graph, agent.name)
        graph, problems = self._checked(agent, loaded, overrides)
        bundle = self._pack(agent, loaded, graph) if self._packs else None
        signature = packed_part(signature, graph)
        return PreparedAgent(agent, signature, loaded.graph, overrides, graph, bundle, tuple(problems), loaded.config)

    def _pack(self, agent: AgentFolder, loaded: LoadedGraph, graph: Graph) -> Bundle:
        return pack(
            agent.path,
            limit_bytes=self._settings.max_bundle_bytes,
            graph=graph,
            config_file=agent.config_file,
            definition=loaded.text,
            unpacked_bytes=self._settings.max_unpacked_bytes,
        )

    def _checked(
        self, agent: AgentFolder, loaded: LoadedGraph, overrides: Mapping[str, Json]
    ) -> tuple[Graph, Sequence[Problem]]:
        """The graph with its overrides, and its warnings. Raises GraphError with all problems."""
        assert loaded.graph is not None
        graph = overridden(loaded.graph, overrides)
        problems = self._problems(loaded, agent, graph) if graph.settings.validate_before_run else loaded.problems
        if any(problem.level == "error" for problem in problems):
            raise GraphError(format_headline(problems), problems)
        return graph, problems

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


def _is_of_folder(node: Node | None, graph: Graph) -> TypeGuard[AgentNode]:
    """Whether a node runs an agent that has a folder."""
    return isinstance(node, AgentNode) and node.agent not in graph.agents
