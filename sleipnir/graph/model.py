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

from pydantic import Field

NodeId = NewType("NodeId", str)

Json: TypeAlias = Any
"""Any JSON value: None, bool, int, float, str, list of Json, dict of str to Json."""


Whole: TypeAlias = Annotated[int, Field(strict=True, ge=0, le=2**53 - 1)]
"""A whole number, not negative; beyond 2**53 a JSON reader would round it."""

Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]

Flag: TypeAlias = Annotated[bool, Field(strict=True)]


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


@dataclass(frozen=True, kw_only=True)
class ScriptNode(NodeBase):
    kind = "script"
    script: str
    fallback: str | None = None
    timeout: Whole = 30


@dataclass(frozen=True, kw_only=True)
class FunctionNode(NodeBase):
    """Ours: a Python callable, state dict in, dict out; routing and failure rules as script."""

    kind = "function"
    call: str
    fallback: str | None = None
    timeout: Whole = 30


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


@dataclass(frozen=True, kw_only=True)
class InputNode(NodeBase):
    kind = "input"
    scoped = "input"
    question: str
    default: str | None = None
    validation: str | None = None


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
    """The `settings:` block (spec 2.4). `timeout` is for the whole run, None means unlimited."""

    max_loop_iterations: Whole = 100
    timeout: Whole | None = None
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

    @property
    def can_spawn_agents(self) -> bool:
        """Derived, never declared (spec 2.3): the graph has at least one agent node."""
        return any(isinstance(node, AgentNode) for node in self.nodes.values())


EdgeKind: TypeAlias = Literal["next", "routes", "on_other", "fallback"]


@dataclass(frozen=True, slots=True)
class Edge:
    """A declared edge. `label` is the option of an approval route, else the empty string."""

    source: str
    target: str
    kind: EdgeKind
    label: str = ""


def edges_of(node: Node) -> list[Edge]:
    """Declared edges in the order of the validator: next, routes, on_other, fallback (spec 2.12, check 2)."""
    found: list[Edge] = []
    targets = [node.next] if isinstance(node.next, str) else node.next or []
    found += [Edge(node.id, target, "next") for target in targets]
    if isinstance(node, ApprovalNode):
        found += [Edge(node.id, target, "routes", option) for option, target in node.routes.items()]
        found.append(Edge(node.id, node.on_other, "on_other"))
    if isinstance(node, ScriptNode | FunctionNode | LlmNode) and node.fallback is not None:
        found.append(Edge(node.id, node.fallback, "fallback"))
    return found
