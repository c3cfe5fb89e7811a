"""What a graph can say: one frozen dataclass per node type, every field with its default.

A `Graph` is what was written; it never holds anything that happened. Fields, defaults and meaning
follow spec/graph-agents.md 2.3-2.5; the few keys of our own are marked "ours".
Durations are whole seconds unless the name says otherwise. These classes do no checking: `load.py` turns
YAML into them and holds it against their types, `check.py` looks at the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NewType, TypeAlias

from pydantic import BeforeValidator, Field

from sleipnir.graph.duration import milliseconds

NodeId = NewType("NodeId", str)

Json: TypeAlias = Any
"""Any JSON value: None, bool, int, float, str, list of Json, dict of str to Json."""


Whole: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=2**53 - 1)]
"""A whole number, not negative; beyond 2**53 a JSON reader would round it."""

Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]

Flag: TypeAlias = Annotated[bool, Field(strict=True)]

Duration: TypeAlias = Annotated[int, BeforeValidator(milliseconds)]
"""Milliseconds, written as `500ms`, `8s`, `5m`, `2h` or a number of seconds."""


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Ours: one retry policy (spec/graph-package.md F37). Tries are counted apart from redeliveries after lost workers.

    `max_attempts` counts the first try. The pause before try n+1 is initial_interval * backoff**(n-1), at most
    max_interval; jitter adds up to as much again. `max_elapsed` counts from the visit's start. `on` lists what is
    tried again: `any`, `transient`, `timeout`, a kind of failure (`exit`, `exception`, ...) or an exception's name.
    """

    max_attempts: Whole = 3
    initial_interval: Duration = 500
    backoff: Number = 2.0
    max_interval: Duration = 8_000
    jitter: Flag = True
    max_elapsed: Duration | None = None
    on: list[str] = field(default_factory=lambda: ["any"])


@dataclass(frozen=True, kw_only=True)
class NodeBase:
    """What every node has. A list as `next` is for parallel edges, later: the loader makes it text or refuses it."""

    kind: ClassVar[str]
    scoped: ClassVar[str | None] = None
    """The name under which state_updates see the node's own result, and nothing else does."""

    id: str = ""
    description: str = ""
    next: str | list[str] | None = None
    state_updates: dict[str, str] | None = None
    queue: str | None = None
    """Ours: the Celery queue for this node's visits; default by node type (messages.QUEUE_OF)."""


Effect: TypeAlias = Literal["once"]
"""Ours: `once` for work that must not be repeated blindly. A visit that was started and left no result is not run
again by itself: a person is asked."""


@dataclass(frozen=True, kw_only=True)
class ScriptNode(NodeBase):
    kind = "script"
    script: str
    fallback: str | None = None
    timeout: Whole = 30
    retry: list[Retry] | None = None
    effect: Effect | None = None


@dataclass(frozen=True, kw_only=True)
class FunctionNode(NodeBase):
    """Ours: a Python callable, state dict in, dict out; routing and failure rules as script."""

    kind = "function"
    call: str
    fallback: str | None = None
    timeout: Whole = 30
    retry: list[Retry] | None = None
    effect: Effect | None = None


@dataclass(frozen=True, kw_only=True)
class LlmNode(NodeBase):
    kind = "llm"
    scoped = "output"
    prompt: str
    instructions: str | None = None
    tools: list[str] | None = None
    model: str | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    fallback: str | None = None
    max_attempts: Whole = 1
    max_iterations: Whole = 10
    output_schema: dict[str, Json] | None = None
    timeout: Whole | None = None
    retry: list[Retry] | None = None


@dataclass(frozen=True, kw_only=True)
class AgentNode(NodeBase):
    kind = "agent"
    scoped = "output"
    agent: str
    prompt: str
    output_schema: dict[str, Json] | None = None
    timeout: Whole = 300


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
    timeout: Whole = 120


@dataclass(frozen=True, kw_only=True)
class ApprovalNode(NodeBase):
    kind = "approval"
    scoped = "choice"
    question: str
    options: list[str]
    routes: dict[str, str]
    on_other: str
    timeout: Whole | None = None
    on_timeout: str | None = None


@dataclass(frozen=True, kw_only=True)
class InputNode(NodeBase):
    kind = "input"
    scoped = "input"
    question: str
    default: str | None = None
    validation: str | None = None
    timeout: Whole | None = None
    on_timeout: str | None = None


@dataclass(frozen=True, kw_only=True)
class EndNode(NodeBase):
    kind = "end"
    output: str = ""


Node: TypeAlias = AgentNode | ScriptNode | ApprovalNode | InputNode | LlmNode | RagNode | EndNode | FunctionNode

NODE_TYPES: Mapping[str, type[Node]] = {
    "agent": AgentNode,
    "script": ScriptNode,
    "approval": ApprovalNode,
    "input": InputNode,
    "llm": LlmNode,
    "rag": RagNode,
    "end": EndNode,
    "function": FunctionNode,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The `settings:` block (spec 2.4). `timeout` is for the whole run, None means unlimited.

    `interrupt_on_timeout` is ours: the timeout ends a run also while one of its nodes is running.
    """

    max_loop_iterations: Whole = 100
    timeout: Whole | None = None
    interrupt_on_timeout: Flag = False
    log_state_snapshots: Flag = True
    validate_before_run: Flag = True
    max_concurrency: Whole = 8


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An agent variable; reaches scripts as LLM_AGENT_VAR_<NAME>. `default` None means required."""

    name: str
    description: str
    default: str | None = None


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One validated graph.yaml. Node order is file order."""

    name: str
    start: str
    nodes: dict[str, Node]
    description: str = ""
    version: str = "1.0"
    model: str | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    global_tools: list[str] = field(default_factory=list)
    mcp_servers: list[str] = field(default_factory=list)
    conversation_starters: list[str] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    initial_state: dict[str, Json] = field(default_factory=dict)
    retry: list[Retry] | None = None
    """Ours: the retry policies of nodes that declare none."""

    def retries_of(self, node: Node) -> list[Retry]:
        """The policies that hold for a node, in the order they are asked; empty: a failure is final."""
        if not isinstance(node, ScriptNode | FunctionNode | LlmNode):
            return []
        return (self.retry or []) if node.retry is None else node.retry

    @property
    def can_spawn_agents(self) -> bool:
        """Derived, never declared (spec 2.3): the graph has at least one agent node."""
        return any(isinstance(node, AgentNode) for node in self.nodes.values())


EdgeKind: TypeAlias = Literal["next", "routes", "on_other", "fallback", "on_timeout"]


@dataclass(frozen=True, slots=True)
class Edge:
    """A declared edge. `label` is the option of an approval route, else the empty string."""

    source: str
    target: str
    kind: EdgeKind
    label: str = ""


def edges_of(node: Node) -> list[Edge]:
    """Declared edges in the validator's order (spec 2.12, check 2): next, routes, on_other, fallback; then ours."""
    found: list[Edge] = []
    targets = [node.next] if isinstance(node.next, str) else node.next or []
    found += [Edge(node.id, target, "next") for target in targets]
    if isinstance(node, ApprovalNode):
        found += [Edge(node.id, target, "routes", option) for option, target in node.routes.items()]
        found.append(Edge(node.id, node.on_other, "on_other"))
    if isinstance(node, ScriptNode | FunctionNode | LlmNode) and node.fallback is not None:
        found.append(Edge(node.id, node.fallback, "fallback"))
    if isinstance(node, ApprovalNode | InputNode) and node.on_timeout is not None:
        found.append(Edge(node.id, node.on_timeout, "on_timeout"))
    return found
