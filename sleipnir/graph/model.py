"""The model of a graph: one frozen dataclass per node type, every field with its default.

A `Graph` is the definition; it never holds data of a run. Fields, defaults and meaning
follow spec/graph-agents.md 2.3-2.5; keys that Loki does not have are marked "Added".
Durations are whole seconds unless the type says otherwise. These classes do not validate: `load.py` builds
them from YAML and checks the types, `check.py` checks the graph as a whole.
Where a key has two spellings (Loki's and an added one), there is one field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, NewType, TypeAlias

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from sleipnir.commands import END as PYTHON_END
from sleipnir.commands import START as PYTHON_START
from sleipnir.graph.duration import milliseconds, seconds

NodeId = NewType("NodeId", str)

Json: TypeAlias = Any
"""Any JSON value: None, bool, int, float, str, list of Json, dict of str to Json."""


Whole: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=2**53 - 1)]
"""A whole number, not negative; JSON readers round numbers above 2**53."""

Seconds: TypeAlias = Annotated[Whole, BeforeValidator(seconds)]
"""Whole seconds, written as a number or as `30s`, `5m`, `2h`."""

Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]

Flag: TypeAlias = Annotated[bool, Field(strict=True)]

Duration: TypeAlias = Annotated[int, BeforeValidator(milliseconds)]
"""Milliseconds, written as `500ms`, `8s`, `5m`, `2h` or a number of seconds."""

LONGEST_WAIT_MS: Final = 365 * 24 * 3_600_000


def _wait_time(value: object) -> int:
    ms = milliseconds(value)
    if not 0 < ms <= LONGEST_WAIT_MS:
        raise PydanticCustomError("wait_time", "not the time of a wait node")
    return ms


WaitTime: TypeAlias = Annotated[int, BeforeValidator(_wait_time)]
"""A duration longer than 0, and at most 365 days."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Added: one retry policy (spec/graph-package.md F37). Redeliveries after a lost worker do not count as tries.

    `max_attempts` includes the first try. The pause before try n+1 is initial_interval * backoff**(n-1), at most
    max_interval; jitter at most doubles it. `max_elapsed` counts from the visit's start. `on` lists the failures that
    are retried: `any`, `transient`, `timeout`, a kind of failure (`exit`, `exception`, ...) or an exception's name.
    """

    max_attempts: Whole = 3
    initial_interval: Duration = 500
    backoff: Number = 2.0
    max_interval: Duration = 8_000
    jitter: Flag = True
    max_elapsed: Duration | None = None
    on: list[str] = field(default_factory=lambda: ["any"])


END: Final = "end"
"""Added: as a target, the end of a branch, in a graph of version sleipnir/1 without a node of that name. PYTHON_END is
the same in every graph."""

SINGLE: Final = "single"
"""Added: a value of `reducer`. At most one visit of a super-step may write the key, which begins absent."""

FAIL: Final = "fail"
"""Added: a value of `on_error`. The run fails."""

CONTINUE: Final = "continue"
"""Added: a value of `on_error`. The run follows the node's edges and counts a failed visit."""

Engine: TypeAlias = Literal["bsp", "dag"]
"""Added: `bsp` starts the next super-step when all visits of this one have ended; `dag` starts a node as soon as its
own trigger arrives."""

LOKI: Final = "1.0"
"""The version of a graph in Loki's format. Keys marked "Added" are allowed too. Loki's rules apply."""

SLEIPNIR: Final = "sleipnir/1"
"""The version of a graph in the Sleipnir language."""

VERSIONS: Final = (LOKI, SLEIPNIR)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Added: one case of a `branch` list. The first case whose `when` (CEL over `state`) is true is taken."""

    when: str
    to: str


@dataclass(frozen=True, kw_only=True)
class Branch:
    """Added: a conditional edge (spec/graph-package.md F11, F13). Exactly one of `by`, `call` and `cases` is set.

    `by` is a template that renders to a label; `call` names a function `file.py:name` that maps the state to one.
    With `many`, each gives a list of labels. An empty label selects no target. `Graph.target_of` maps labels to
    targets.
    """

    by: str | None = None
    call: str | None = None
    cases: list[Choice] = field(default_factory=list)
    to: dict[str, str] = field(default_factory=dict)
    default: str | None = None
    many: Flag = False


@dataclass(frozen=True, kw_only=True)
class Router:
    """Added: a function that chooses next nodes, as a part of its node's attempt (spec/langgraph-api.md 4).

    It gets the state with the writes of its own node, and returns a label, a node, a Send, or a list of these. `to`
    maps labels to targets; without `to`, a label is a target itself.
    """

    call: str
    to: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Join:
    """Added: one `wait_for` of a node. The node runs once enough of the (sorted) sources have ended since its last run.

    No two joins of one node have the same sources. `min` None: all sources are needed.
    """

    sources: tuple[str, ...]
    min: Whole | None = None

    @property
    def needed(self) -> int:
        """How many sources must have ended."""
        return len(self.sources) if self.min is None else self.min


@dataclass(frozen=True, kw_only=True)
class NodeBase:
    """The fields of every node. `next` as a list holds at least two distinct targets: parallel edges."""

    kind: ClassVar[str]
    scoped: ClassVar[str | None] = None
    """The name of the node's own result, visible in its state_updates only."""

    id: str = ""
    description: str = ""
    next: str | list[str] | None = None
    state_updates: dict[str, str] | None = None
    queue: str | None = None
    """Added: the Celery queue for this node's visits; default by node type (messages.QUEUE_OF)."""
    branch: Branch | None = None
    ends: dict[str, str] = field(default_factory=dict)
    """Added: named targets for `_next`, commands and conditional edges (spec/graph-package.md F12)."""
    wait_for: list[Join] = field(default_factory=list)
    defer: Flag = False
    """Added: edges and joins start the node only when nothing else of the run is left to run."""
    on_error: str | None = None
    """Added: what happens when a visit of this node fails: FAIL, CONTINUE, or the next node. None: the graph's
    `on_error` applies."""

    @property
    def targets(self) -> list[str]:
        """The targets of the plain edges."""
        return [self.next] if isinstance(self.next, str) else self.next or []


Effect: TypeAlias = Literal["once"]
"""Added: `once` for work that must not be repeated without confirmation. A visit that started and left no result is not
repeated automatically: a person is asked."""


STATE_GRAPH_TIMEOUT_S: Final = 3_600
"""Added: `timeout` of a function node of the protocol state_graph that declares none."""

STATE_GRAPH: Final = "state_graph"

Protocol: TypeAlias = Literal["plain", "state_graph"]
"""Added: how a function node is called, and what its return value means."""


@dataclass(frozen=True, kw_only=True)
class ScriptNode(NodeBase):
    kind = "script"
    script: str
    fallback: str | None = None
    timeout: Seconds = 30
    retry: list[Retry] | None = None
    effect: Effect | None = None


@dataclass(frozen=True, kw_only=True)
class FunctionNode(NodeBase):
    """Added: a Python callable, state dict in, dict out; routes and fails like a script node.

    `protocol: state_graph` calls it as a node of StateGraph (spec/langgraph-api.md 3): it takes its arguments by name,
    it sees only the keys that it `reads` (None: all) as an instance of its `state_class`, its Command.goto and its
    `routers` add to the node's edges, and a Send replaces the state.
    """

    kind = "function"
    call: str
    protocol: Protocol = "plain"
    reads: list[str] | None = None
    state_class: str | None = None
    routers: list[Router] = field(default_factory=list)
    fallback: str | None = None
    timeout: Seconds = 30
    retry: list[Retry] | None = None
    effect: Effect | None = None


@dataclass(frozen=True, kw_only=True)
class GraphNode(FunctionNode):
    """Added: a node of a graph written in Python whose function is another graph, one of the `graphs` of the document.

    Its visit is a child run of that graph. The first state of the child is made of the keys that the node reads, as of
    an input; what the child returns is written as what a function returns. `timeout` 0: the child has no time limit.
    """

    kind = "graph"
    graph: str
    call: str = ""
    protocol: Protocol = "state_graph"
    timeout: Seconds = 0


@dataclass(frozen=True, kw_only=True)
class SkillKeys:
    """The skill settings of an agent or of one of its llm nodes (spec/coyote.md 3.2). None: a node inherits from its
    agent; an agent has skills only if it names some or enables them."""

    skills_enabled: Flag | None = None
    enabled_skills: list[str] | None = None
    inject_skill_instructions: Flag | None = None
    skill_instructions: str | None = None


@dataclass(frozen=True, kw_only=True)
class LlmNode(SkillKeys, NodeBase):
    kind = "llm"
    scoped = "output"
    prompt: str
    instructions: str | None = None
    tools: list[str] | None = None
    model: str | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    reasoning_effort: str | None = None
    fallback: str | None = None
    max_attempts: Whole = 1
    max_iterations: Whole = 10
    output_schema: dict[str, Json] | None = None
    timeout: Seconds | None = None
    retry: list[Retry] | None = None
    tool_timeout: Duration | None = None
    """Added: the limit of one tool call. None: the workers' limit (workers' tools/timeouts.py)."""


@dataclass(frozen=True, kw_only=True)
class AgentNode(NodeBase):
    kind = "agent"
    scoped = "output"
    agent: str
    prompt: str
    output_schema: dict[str, Json] | None = None
    timeout: Seconds = 300


@dataclass(frozen=True, kw_only=True)
class RagNode(NodeBase):
    kind = "rag"
    scoped = "output"
    documents: list[str]
    query: str = "{{initial_prompt}}"
    top_k: Whole | None = None
    embedding_model: str | None = None
    chunk_size: Whole | None = None
    chunk_overlap: Whole | None = None
    reranker_model: str | None = None
    batch_size: Whole | None = None
    sources: list[str] | None = None
    per_source: Whole | None = None
    timeout: Seconds = 120


@dataclass(frozen=True, kw_only=True)
class ApprovalNode(NodeBase):
    kind = "approval"
    scoped = "choice"
    question: str
    options: list[str]
    routes: dict[str, str]
    on_other: str
    timeout: Seconds | None = None
    on_timeout: str | None = None


@dataclass(frozen=True, kw_only=True)
class InputNode(NodeBase):
    kind = "input"
    scoped = "input"
    question: str
    default: str | None = None
    validation: str | None = None
    timeout: Seconds | None = None
    on_timeout: str | None = None


@dataclass(frozen=True, kw_only=True)
class EndNode(NodeBase):
    kind = "end"
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class MapNode(NodeBase):
    """Runs `body` once per item of a list, in parallel; a `body` of several nodes is a chain.

    Loki's keys: over, as, branch, collect_into, max_concurrency. Added keys: for_each, as, node, collect, max_parallel,
    on_item_error. The field `item` is the key `as`. The result of an item is the value of `output_key` after its last
    body.
    """

    kind = "map"
    over: str
    item: str
    body: list[str]
    collect_into: str
    output_key: str = "output"
    max_concurrency: Whole | None = None
    on_item_error: Literal["fail", "skip", "collect"] = "fail"


@dataclass(frozen=True, kw_only=True)
class ToolNode(NodeBase):
    """Runs a function of the agent's own tools file without arguments and stores the returned text under
    `output_key`. Never written in a file: it runs the dynamic instructions of a config.yaml agent."""

    kind = "tool"
    tool: str
    output_key: str


@dataclass(frozen=True, kw_only=True)
class RouterNode(NodeBase):
    """Added: only routes, by `next` and `branch`."""

    kind = "router"


@dataclass(frozen=True, kw_only=True)
class JoinNode(NodeBase):
    """Added: only waits, by `wait_for`, and routes."""

    kind = "join"


@dataclass(frozen=True, kw_only=True)
class WaitNode(NodeBase):
    """Added, in sleipnir/1 only: waits for a time, which has the key `for`, and routes."""

    kind = "wait"
    duration: WaitTime = field(metadata={"key": "for"})


Node: TypeAlias = (
    AgentNode
    | ScriptNode
    | ApprovalNode
    | InputNode
    | LlmNode
    | RagNode
    | EndNode
    | MapNode
    | FunctionNode
    | GraphNode
    | RouterNode
    | JoinNode
    | WaitNode
    | ToolNode
)

NODE_TYPES: Mapping[str, type[Node]] = {
    "agent": AgentNode,
    "script": ScriptNode,
    "approval": ApprovalNode,
    "input": InputNode,
    "llm": LlmNode,
    "rag": RagNode,
    "end": EndNode,
    "map": MapNode,
    "function": FunctionNode,
    "router": RouterNode,
    "join": JoinNode,
    "wait": WaitNode,
    "graph": GraphNode,
}

LOKI_NODE_TYPES: Mapping[str, type[Node]] = {
    kind: node for kind, node in NODE_TYPES.items() if node not in (WaitNode, GraphNode)
}
"""The node types of a graph of version 1.0: Loki's, and those that were added before sleipnir/1."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The `settings:` block (spec 2.4). `timeout` applies to the whole run; None means unlimited.

    `interrupt_on_timeout` is added: the timeout ends a run even while a node is running.
    """

    max_loop_iterations: Whole = 100
    timeout: Seconds | None = None
    interrupt_on_timeout: Flag = False
    log_state_snapshots: Flag = True
    validate_before_run: Flag = True
    max_concurrency: Whole = 8


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Added: the `limits:` block (spec/graph-package.md F49). None: no limit.

    `max_steps` counts super-steps, or visits in a `dag`. `max_concurrency` applies to one run across all machines.
    """

    max_steps: Whole | None = None
    on_max_steps: Literal["error", "stop"] = "error"
    max_concurrency: Whole | None = None
    step_timeout: Duration | None = None
    node_timeout: Duration | None = None


@dataclass(frozen=True, kw_only=True)
class Concurrency:
    """Added: the `concurrency:` block of an agent. At most `limit` of its runs with the same rendered `key` are active
    at once in the whole deployment."""

    key: str = ""
    limit: Annotated[int, Field(strict=True, ge=1, le=2**53 - 1)]


@dataclass(frozen=True, kw_only=True)
class StateField:
    """Added: the declaration of one state key (spec/graph-package.md F01). `type` is one of `state.TYPES`, or the path
    `file.py:Name` of a pydantic model. `default` None: the zero value of the type."""

    type: str = "any"
    items: str | None = None
    schema: dict[str, Json] | None = None
    reducer: str | None = None
    default: Json = None
    required: Flag = False
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An agent variable; scripts see it as LLM_AGENT_VAR_<NAME>. `default` None means required."""

    name: str
    description: str
    default: str | None = None


@dataclass(frozen=True, kw_only=True)
class LoopAgent:
    """The settings of a config.yaml that a graph.yaml does not have (spec 3.1). Such an agent is a graph whose node
    `agent` is an llm node with all of the agent's tools and, in practice, no limit of turns.

    `instructions` are unrendered: variables are inserted when the model is called. `escalation_timeout` is in seconds,
    `summarization_threshold` in bytes, `compression_threshold` in tokens (None: the default of the deployment),
    `max_tool_result_chars` in bytes (None: the application's, 0: no limit of this kind).
    `spawnable_agents` are the agents that its model may start; None: any, [] none.
    """

    instructions: str = ""
    dynamic_instructions: Flag = False
    agent_session: str | None = None
    auto_continue: Flag = False
    max_auto_continues: Whole = 10
    inject_todo_instructions: Flag = True
    continuation_prompt: str | None = None
    can_spawn_agents: Flag = False
    spawnable_agents: list[str] | None = None
    max_concurrent_agents: Whole = 4
    max_agent_depth: Whole = 3
    inject_spawn_instructions: Flag = True
    summarization_model: str | None = None
    summarization_threshold: Whole = 4000
    escalation_timeout: Seconds = 300
    compression_threshold: Whole | None = None
    max_tool_result_chars: Whole | None = None
    documents: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ConfigAgent(SkillKeys, LoopAgent):
    """The keys of a config.yaml (spec 3.1): those of its loop, and those shared with graphs."""

    name: str
    model: str | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    reasoning_effort: str | None = None
    description: str = ""
    version: str = ""
    mcp_servers: list[str] = field(default_factory=list)
    global_tools: list[str] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    conversation_starters: list[str] = field(default_factory=list)
    concurrency: Concurrency | None = None


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
    on_error: str | None = None
    """Added: `on_error` of nodes that declare none. None: the language's default (`fails_by_default`)."""
    engine: Engine = "bsp"
    state: dict[str, StateField] = field(default_factory=dict)
    state_classes: list[str] = field(default_factory=list)
    """Added: the Python classes that declare the state of a graph written in Python. With them the rules of
    `is_state_graph` apply, whatever the types of its nodes are."""
    graphs: dict[str, Graph] = field(default_factory=dict)
    """Added: the graphs that nodes of type graph run, at any depth, by the names that these nodes use."""
    input_keys: list[str] | None = None
    """Added, of one of the `graphs`: the state keys that its runs are given. None: all."""
    output_keys: list[str] | None = None
    """Added, of one of the `graphs`: the state keys that its runs return: their output is a JSON object of these."""
    limits: Limits = field(default_factory=Limits)
    concurrency: Concurrency | None = None
    """Added. None: any number of runs are active at once."""
    has_additions: bool = False
    """Derived by the loader: whether it has a key or a node type that selected the language in earlier releases."""
    by_keys: bool = False
    """Set for a run that an earlier release submitted: `has_additions` selects the language."""
    loop: LoopAgent | None = None
    """Set for a config.yaml agent; None for a graph.yaml."""

    def retries_of(self, node: Node) -> list[Retry]:
        """The retry policies of a node, in the order they are tried; empty: a failure is final."""
        if not isinstance(node, ScriptNode | FunctionNode | LlmNode):
            return []
        return (self.retry or []) if node.retry is None else node.retry

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
    def deferred(self) -> frozenset[str]:
        """The nodes with `defer`."""
        return frozenset(name for name, node in self.nodes.items() if node.defer)

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


SLEIPNIR_KEYS: Final[Mapping[type[Any], tuple[str, ...]]] = {
    Graph: ("state_classes", "graphs", "input_keys", "output_keys"),
    FunctionNode: ("protocol", "reads", "state_class", "routers"),
}
"""The keys that a graph of version 1.0 cannot have, by the model of their mapping."""


def graph_below(graph: Graph, name: str) -> Graph:
    """One of the `graphs` of a graph, which has the others too: its nodes may run them. Raises KeyError."""
    return replace(graph.graphs[name], graphs=graph.graphs)


def agents_of(graph: Graph) -> list[str]:
    """The agents that the nodes of a graph, and of its `graphs`, name."""
    nodes = (node for each in (graph, *graph.graphs.values()) for node in each.nodes.values())
    return [node.agent for node in nodes if isinstance(node, AgentNode)]


EdgeKind: TypeAlias = Literal[
    "next",
    "routes",
    "on_other",
    "fallback",
    "body",
    "on_timeout",
    "branch",
    "default",
    "routers",
    "ends",
    "wait_for",
    "on_error",
]


@dataclass(frozen=True, slots=True)
class Edge:
    """A declared edge. `label` selects it: the option of an approval route, the label of a branch or a router, the
    condition of a branch, the name of an end; else the empty string."""

    source: str
    target: str
    kind: EdgeKind
    label: str = ""


def edges_of(node: Node) -> list[Edge]:
    """Declared edges in the validator's order (spec 2.12, check 2): next, routes, on_other, fallback, body; then the
    added ones.

    Targets are as written: a name in the node's `ends` is not resolved (see Graph.target_of).
    """
    edges = [Edge(node.id, target, "next") for target in node.targets]
    if isinstance(node, ApprovalNode):
        edges += [Edge(node.id, target, "routes", option) for option, target in node.routes.items()]
        edges.append(Edge(node.id, node.on_other, "on_other"))
    if isinstance(node, ScriptNode | FunctionNode | LlmNode) and node.fallback is not None:
        edges.append(Edge(node.id, node.fallback, "fallback"))
    if node.on_error not in (None, FAIL, CONTINUE):
        edges.append(Edge(node.id, str(node.on_error), "on_error"))
    if isinstance(node, MapNode):
        edges += [Edge(node.id, body, "body") for body in node.body]
    if isinstance(node, ApprovalNode | InputNode) and node.on_timeout is not None:
        edges.append(Edge(node.id, node.on_timeout, "on_timeout"))
    return (
        edges + _conditional_edges(node) + [Edge(node.id, target, "ends", name) for name, target in node.ends.items()]
    )


def _conditional_edges(node: Node) -> list[Edge]:
    routers = node.routers if isinstance(node, FunctionNode) else []
    chosen = [Edge(node.id, target, "routers", label) for router in routers for label, target in router.to.items()]
    return chosen + _branch_edges(node)


def _branch_edges(node: Node) -> list[Edge]:
    if node.branch is None:
        return []
    edges = [Edge(node.id, choice.to, "branch", choice.when) for choice in node.branch.cases]
    edges += [Edge(node.id, target, "branch", label) for label, target in node.branch.to.items()]
    if node.branch.default is not None:
        edges.append(Edge(node.id, node.branch.default, "default"))
    return edges
