"""A graph as a whole, and the rules that depend on the version of its language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

from sleipnir.commands import END as PYTHON_END
from sleipnir.commands import START as PYTHON_START
from sleipnir.graph.error_records import ERRORS_KEY
from sleipnir.graph.model.config_agent import LoopAgent
from sleipnir.graph.model.control_nodes import ApprovalNode, EndNode, InputNode
from sleipnir.graph.model.edges import END, Branch, Join
from sleipnir.graph.model.limits import Concurrency, ErrorRules, Limits, SessionRules, Settings, SummaryRules
from sleipnir.graph.model.node_base import NodeBase
from sleipnir.graph.model.nodes import Node
from sleipnir.graph.model.remotes import REMOTE, REMOTE_OUTPUT, RemoteAgent, RemoteNode
from sleipnir.graph.model.state import SINGLE, StateField, Variable
from sleipnir.graph.model.values import Flag, Json, Number
from sleipnir.graph.model.work_nodes import (
    AgentNode,
    CallbackKind,
    CallbackLevel,
    CallbackPhase,
    FunctionNode,
    GraphNode,
    LlmNode,
    NodeCache,
    NodeCallbacks,
    RagNode,
    Retry,
    ScriptNode,
    SkillKeys,
    ToolsNode,
)

Engine: TypeAlias = Literal["bsp", "dag"]
"""Added: `bsp` starts the next super-step when all visits of this one have ended; `dag` starts a node as soon as its
own trigger arrives."""

Phase: TypeAlias = Literal["before", "after"]
"""Added: when a run stops at a node with a breakpoint: before it starts, or after it has ended."""

LOKI: Final = "1.0"
"""The version of a graph in Loki's format. Keys marked "Added" are allowed too. Loki's rules apply."""

SLEIPNIR: Final = "sleipnir/1"
"""The version of a graph in the Sleipnir language."""

VERSIONS: Final = (LOKI, SLEIPNIR)


@dataclass(frozen=True, kw_only=True)
class Graph(SkillKeys):
    """One validated graph.yaml, or a config.yaml converted to a graph. Node order is file order."""

    name: str
    start: str
    nodes: dict[str, Node]
    description: str = ""
    version: str = LOKI
    model: str | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    reasoning_effort: str | None = None
    global_tools: list[str] = field(default_factory=list)
    mcp_servers: list[str] = field(default_factory=list)
    conversation_starters: list[str] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    initial_state: dict[str, Json] = field(default_factory=dict)
    reducers: dict[str, str] = field(default_factory=dict)
    retry: list[Retry] | None = None
    """Added: the retry policies of nodes that declare none."""
    callbacks: NodeCallbacks | None = None
    """Added, in sleipnir/1 only: callbacks of all nodes that can have some."""
    cache: NodeCache | Flag | None = None
    """Added, in sleipnir/1 only: the cache of nodes that declare none, where results may be cached. True: the
    defaults."""
    on_error: str | None = None
    """Added: `on_error` of nodes that declare none. None: the language's default (`fails_by_default`)."""
    engine: Engine = "bsp"
    state: dict[str, StateField] = field(default_factory=dict)
    state_classes: list[str] = field(default_factory=list)
    """Added: the Python classes that declare the state of a graph written in Python. With them the rules of
    `is_state_graph` apply, whatever the types of its nodes are."""
    graphs: dict[str, Graph] = field(default_factory=dict)
    """Added: the graphs that nodes of type graph run, at any depth, by the names that these nodes use."""
    agents: dict[str, RemoteAgent] = field(default_factory=dict)
    """Added, in sleipnir/1 only: remote agents, by the names that agent nodes use."""
    input_keys: list[str] | None = None
    """Added, of one of the `graphs`: the state keys that its runs are given. None: all."""
    output_keys: list[str] | None = None
    """Added, of one of the `graphs`: the state keys that its runs return: their output is a JSON object of these."""
    limits: Limits = field(default_factory=Limits)
    interrupt_before: list[str] = field(default_factory=list)
    """Added, in sleipnir/1 only: nodes that have `interrupt: before` in effect."""
    interrupt_after: list[str] = field(default_factory=list)
    """Added, in sleipnir/1 only: nodes that have `interrupt: after` in effect."""
    concurrency: Concurrency | None = None
    """Added. None: any number of runs are active at once."""
    has_additions: bool = False
    """Derived by the loader: whether it has a key or a node type that selected the language in earlier releases."""
    has_messages: bool = False
    """Derived by the loader: whether its state has the built-in keys of messages (message_keys.py)."""
    by_keys: bool = False
    """Set for a run that an earlier release submitted: `has_additions` selects the language."""
    errors: ErrorRules | None = None
    """Added, in sleipnir/1 only. None: no failure is recorded or recovered from."""
    session: SessionRules | None = None
    """Added, in sleipnir/1 only. None: the defaults."""
    history: Literal["full", "request", "isolated_request", "isolated_invocation"] = "full"
    """Added, in sleipnir/1 only: whether a turn of a thread begins with the messages of earlier turns (`full`), and
    whether llm nodes send those of other agents (not if isolated)."""
    loop: LoopAgent | None = None
    """Set for a config.yaml agent; None for a graph.yaml."""

    @property
    def queues_turns(self) -> bool:
        """Whether a turn of a busy thread waits, instead of being refused."""
        return self.session is not None and self.session.concurrent == "queue"

    @property
    def max_history(self) -> int | None:
        """About how many messages of earlier turns a turn of a thread begins with; None: all."""
        return None if self.session is None else self.session.max_history

    @property
    def summary(self) -> SummaryRules | None:
        """How a summary takes the place of older messages; None: there is none."""
        rules = None if self.session is None else self.session.summary
        return rules if rules is not None and rules.enabled else None

    def retries_of(self, node: Node) -> list[Retry]:
        """The retry policies of a node, in the order they are tried; empty: a failure is final."""
        if not isinstance(node, ScriptNode | FunctionNode | LlmNode):
            return []
        return (self.retry or []) if node.retry is None else node.retry

    def callbacks_of(
        self, node: Node, phase: CallbackPhase, kind: CallbackKind = "node"
    ) -> list[tuple[CallbackLevel, str]]:
        """The callbacks of a node in the order in which they run, with who has asked for each: those of the graph
        around those of the node."""
        if self.callbacks is None and getattr(node, "callbacks", None) is None:
            return []
        if not calls_back(node, kind) or (phase == "agent_event" and not isinstance(node, AgentNode)):
            return []
        own: NodeCallbacks | None = getattr(node, "callbacks", None)
        of_graph = [] if self.callbacks is None else self.callbacks.of(phase, kind)
        of_node = [] if own is None else own.of(phase, kind)
        named: list[tuple[CallbackLevel, str]] = [("graph", name) for name in of_graph]
        at_node: list[tuple[CallbackLevel, str]] = [("node", name) for name in of_node]
        return [*at_node, *named] if phase == "after" else [*named, *at_node]

    def has_callbacks(self, node: Node, *phases: CallbackPhase) -> bool:
        """Whether the graph or the node names callbacks around the node, in one of these phases."""
        return any(self.callbacks_of(node, phase) for phase in phases)

    def calls_around_run(self, phase: CallbackPhase) -> bool:
        """Whether functions of the agent are called before its runs, or after."""
        return self.callbacks is not None and bool(self.callbacks.of(phase, "agent"))

    def cache_of(self, node: Node) -> NodeCache | None:
        """How results of the node are cached; None: they are not. Never those of work that must happen once, of a model
        with tools, or of a run below."""
        if not isinstance(node, CACHED) or isinstance(node, GraphNode):
            return None
        own = self.cache if node.cache is None else node.cache
        if not own or why_not_cached(node) is not None:
            return None
        if not isinstance(own, NodeCache):
            own = self.cache if isinstance(self.cache, NodeCache) else NodeCache()
        return own

    def on_error_of(self, node: Node) -> str | None:
        """The declared reaction to a failure of the node: FAIL, CONTINUE or a target. None: none is declared."""
        return self.on_error if node.on_error is None else node.on_error

    @property
    def fails_by_default(self) -> bool:
        """Whether a failed visit fails the run when no `on_error` is declared."""
        return self.version == SLEIPNIR

    @cached_property
    def is_loki(self) -> bool:
        """Whether Loki's rules apply."""
        return self.version != SLEIPNIR and not (self.by_keys and self.has_additions)

    @cached_property
    def of_earlier_release(self) -> Graph:
        """The same graph for a run that an earlier release submitted: it keeps the rules it started with."""
        return replace(self, by_keys=True) if self.has_additions else self

    @cached_property
    def joins(self) -> Mapping[str, list[tuple[str, Join]]]:
        """The joins that a node is a source of, each with the waiting node."""
        joins: dict[str, list[tuple[str, Join]]] = {}
        for target, node in self.nodes.items():
            for join in node.wait_for:
                for source in join.sources:
                    joins.setdefault(source, []).append((target, join))
        return joins

    @property
    def is_state_graph(self) -> bool:
        """Whether the graph is one written in Python, with rules of LangGraph: writes of visits that commands started
        fold after those of all others of a super-step; a join may stay without some of its sources; an edge starts its
        target even if that waits for the source; joins and edges together start a node once per super-step."""
        return bool(self.state_classes)

    @property
    def begins_at_start(self) -> bool:
        """Whether it is one whose START is a node, because several edges or a router lead on from it."""
        return self.start == PYTHON_START

    @cached_property
    def rag_nodes(self) -> list[RagNode]:
        return [node for node in self.nodes.values() if isinstance(node, RagNode)]

    @cached_property
    def deferred(self) -> frozenset[str]:
        """The nodes with `defer`."""
        return frozenset(name for name, node in self.nodes.items() if node.defer)

    @cached_property
    def breakpoints(self) -> Mapping[Phase, frozenset[str]]:
        """The nodes before and after which a run stops, unless its submission names others."""
        before, after = set(self.interrupt_before), set(self.interrupt_after)
        for name, node in self.nodes.items():
            if node.interrupt in ("before", "both"):
                before.add(name)
            if node.interrupt in ("after", "both"):
                after.add(name)
        return {"before": frozenset(before), "after": frozenset(after)}

    @cached_property
    def has_breakpoints(self) -> bool:
        return any(self.breakpoints.values())

    def waits_for(self, target: str, source: str) -> bool:
        """Whether `target` has a join of `source`: an edge between them is an arrival and starts no visit."""
        return any(waiting == target for waiting, _ in self.joins.get(source, ()))

    @property
    def max_concurrency(self) -> int:
        """How many visits of one run may be active at once."""
        return self.settings.max_concurrency if self.limits.max_concurrency is None else self.limits.max_concurrency

    def reducer_of(self, key: str) -> str | None:
        """The name of the reducer that folds writes to a key; None: no reducer, the last write wins."""
        declared = self.state.get(key)
        if key == ERRORS_KEY and self.errors is not None and self.errors.collect:
            return "append"
        if declared is not None and declared.reducer is not None:
            return None if declared.reducer == SINGLE else declared.reducer
        if declared is not None and declared.type == "messages":
            return "messages"
        return self.reducers.get(key)

    def takes_one_write(self, key: str) -> bool:
        """Whether two writes to a key in one super-step are an error."""
        declared = self.state.get(key)
        return declared is not None and declared.reducer == SINGLE

    def is_node_or_end(self, target: str) -> bool:
        return target in self.nodes or self.ends_branch(target)

    def ends_branch(self, target: str) -> bool:
        """Whether a target is the end of the branch, not a node."""
        return target in (END, PYTHON_END) and target not in self.nodes and not self.is_loki

    def target_of(self, node: Node, label: str) -> str | None:
        """The target of a label that a node chose: by its `ends`, else the label itself. None: no target."""
        target = node.ends.get(label, label)
        return target if self.is_node_or_end(target) else None

    def target_of_choice(self, node: Node, label: str) -> str | None:
        """The target of a label that a node's `branch` chose: by its `to`, else as `target_of`, else its `default`."""
        branch = node.branch or Branch()
        if label in branch.to:
            return self.target_of(node, branch.to[label])
        target = self.target_of(node, label)
        return target if target is not None or branch.default is None else self.target_of(node, branch.default)

    @property
    def can_spawn_agents(self) -> bool:
        """For a graph this is derived, never declared (spec 2.3): it has at least one agent node."""
        if self.loop is not None:
            return self.loop.can_spawn_agents
        return any(isinstance(node, AgentNode) for node in self.nodes.values())


ANSWER_KEYS: Final = ("assignees", "role", "not_author", "quorum", "comment")
"""Who may answer the question of a node."""

SLEIPNIR_KEYS: Final[Mapping[type[Any], tuple[str, ...]]] = {
    Graph: (
        "state_classes",
        "graphs",
        "agents",
        "input_keys",
        "output_keys",
        "interrupt_before",
        "interrupt_after",
        "cache",
        "errors",
        "callbacks",
        "session",
        "history",
    ),
    FunctionNode: ("protocol", "reads", "state_class", "routers", "cache", "callbacks", "stream_input"),
    ScriptNode: ("cache", "callbacks", "stream_input"),
    LlmNode: (
        "input",
        "user_input_key",
        "generation",
        "tools_node",
        "placeholders",
        "few_shot",
        "repair_calls",
        "cache",
        "callbacks",
        "stream_output",
    ),
    RagNode: ("cache", "callbacks"),
    ApprovalNode: ANSWER_KEYS,
    InputNode: ANSWER_KEYS,
    AgentNode: (
        "input",
        "map_in",
        "map_out",
        "isolated",
        "event_scope",
        "options",
        "user_input_key",
        "callbacks",
        "stream_output",
    ),
    Branch: ("tools",),
    NodeBase: ("interrupt",),
}
"""The keys that a graph of version 1.0 cannot have, by the model of their mapping; NodeBase: of all nodes."""


CACHED: Final = (ScriptNode, FunctionNode, LlmNode, RagNode)
"""The types of nodes that can have a `cache`; a GraphNode is a FunctionNode without."""

CALLING_BACK: Final[Mapping[CallbackKind, tuple[type[Any], ...]]] = {
    "node": (ScriptNode, FunctionNode, LlmNode, RagNode, AgentNode),
    "model": (LlmNode,),
    "tool": (LlmNode, ToolsNode),
    "agent": (),
}
"""The types of nodes that callbacks of each kind run around; a GraphNode has none. Those of an agent run around a whole
run."""


def calls_back(node: Node, kind: CallbackKind = "node") -> bool:
    """Whether callbacks of the kind run around the node."""
    return isinstance(node, CALLING_BACK[kind]) and not isinstance(node, GraphNode) and node.id != PYTHON_START


def why_not_cached(node: Node) -> str | None:
    """Why results of the node cannot be cached; None: they can. Of nodes that can have a `cache`."""
    if isinstance(node, ScriptNode | FunctionNode) and node.effect == "once":
        return "its work must happen for each visit (`effect: once`)"
    if isinstance(node, ScriptNode | FunctionNode) and node.stream_input is not None:
        return "it reads a stream, which is no part of the key (`stream_input`)"
    if isinstance(node, LlmNode) and node.stream_output is not None:
        return "another node reads its text while it comes (`stream_output`)"
    if isinstance(node, LlmNode) and node.tools:
        return "its model calls tools, whose effects a cached result would leave out"
    if isinstance(node, LlmNode) and node.input is not None:
        return "it adds its reply to messages, which a cached result would replace (it has no `prompt`)"
    return None


def writer_of_stream(graph: Graph, name: str) -> str | None:
    """The node that writes a node stream. None: no node does."""
    writes = (node for node in graph.nodes.values() if isinstance(node, LlmNode | AgentNode))
    return next((node.id for node in writes if node.stream_output == name), None)


def sleipnir_keys(model: type[Any]) -> tuple[str, ...]:
    """The keys of a mapping of this model that a graph of version 1.0 cannot have."""
    of_nodes = SLEIPNIR_KEYS[NodeBase] if issubclass(model, NodeBase) else ()
    return (*SLEIPNIR_KEYS.get(model, ()), *of_nodes)


def graph_below(graph: Graph, name: str) -> Graph:
    """One of the `graphs` of a graph, which has the others too: its nodes may run them; or the graph of one of its
    remote agents. Raises KeyError."""
    if name not in graph.graphs:
        return _graph_of_remote(name, remotes_of(graph)[name])
    return replace(graph.graphs[name], graphs=graph.graphs)


def agents_of(graph: Graph) -> list[str]:
    """The agents that the nodes of a graph, and of its `graphs`, name, without remote ones."""
    graphs = (graph, *graph.graphs.values())
    nodes = ((each, node) for each in graphs for node in each.nodes.values() if isinstance(node, AgentNode))
    return [node.agent for each, node in nodes if node.agent not in each.agents]


def remotes_of(graph: Graph) -> dict[str, RemoteAgent]:
    """The remote agents of a graph, and of its `graphs`."""
    return {name: remote for each in (*graph.graphs.values(), graph) for name, remote in each.agents.items()}


def _graph_of_remote(name: str, remote: RemoteAgent) -> Graph:
    node = RemoteNode(id=REMOTE, url=remote.a2a, token=remote.token, next="end")
    end = EndNode(id="end", output=f"{{{{{REMOTE_OUTPUT}}}}}")
    return Graph(name=name, version=SLEIPNIR, start=REMOTE, nodes={REMOTE: node, "end": end})
