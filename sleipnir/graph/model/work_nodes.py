"""The nodes whose visits do work: on a worker, by a model, as a run of another agent or graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from sleipnir.graph.model.edges import Router
from sleipnir.graph.model.node_base import NodeBase
from sleipnir.graph.model.values import Duration, Flag, Json, Number, Seconds, Whole


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


@dataclass(frozen=True, kw_only=True)
class NodeCache:
    """Added: how results of a node are kept for later visits of any run (spec/graph-package.md F39). They are found by
    the agent, the node, its definition and code, and a key.

    `ttl` None or 0: until they are cleared, or the deployment's retention is over. `key` lists state keys, or is a
    template (`{{n}}`) or a CEL expression over `state`; `key_func` is a function of the state. Neither: the key is all
    that the node may read. Another `version` finds none of the earlier results.
    """

    ttl: Duration | None = None
    key: list[str] | str | None = None
    key_func: str | None = None
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class CallCallbacks:
    """Added: functions that run around each call of a model, or of a tool (spec/graph-package.md F42, F23). `before`
    may change what the call is given, or give the result in its place; `after` another result, or a failure."""

    before: list[str] | str = field(default_factory=list)
    after: list[str] | str = field(default_factory=list)

    def of(self, phase: CallbackPhase) -> list[str]:
        return _listed(getattr(self, phase)) if phase in ("before", "after") else []


@dataclass(frozen=True, kw_only=True)
class NodeCallbacks:
    """Added: functions that run around a node (spec/graph-package.md F41), each `file.py:name` or
    `package.module:name`. `before` may change what the node sees, or give the result in the place of the node, `after`
    another result or a failure, `error` sees each failure. `agent_event` sees the events of the child of an agent node.
    `model` and `tool` run around the calls of the node. Only a graph has those around a whole run (`agent`): `before`
    may give its output, `after` another one."""

    before: list[str] | str = field(default_factory=list)
    after: list[str] | str = field(default_factory=list)
    error: list[str] | str = field(default_factory=list)
    agent_event: list[str] | str = field(default_factory=list)
    model: CallCallbacks | None = None
    tool: CallCallbacks | None = None
    agent: CallCallbacks | None = None

    def of(self, phase: CallbackPhase, kind: CallbackKind = "node") -> list[str]:
        if kind == "node":
            return _listed(getattr(self, phase))
        around: CallCallbacks | None = getattr(self, kind)
        return [] if around is None else around.of(phase)


def _listed(named: list[str] | str) -> list[str]:
    return [named] if isinstance(named, str) else list(named)


CallbackPhase: TypeAlias = Literal["before", "after", "error", "agent_event"]

CallbackKind: TypeAlias = Literal["node", "model", "tool", "agent"]
"""What a callback runs around."""

CallbackLevel: TypeAlias = Literal["plugin", "node", "graph"]
"""Who has asked for a callback."""

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
    cache: NodeCache | Flag | None = None
    """Added, in sleipnir/1 only. True: the graph's `cache`, or the defaults. False: none. None: the graph's, if any."""
    callbacks: NodeCallbacks | None = None
    """Added, in sleipnir/1 only, besides those of the graph."""
    stream_input: str | None = None
    """Added, in sleipnir/1 only: the node stream that it reads, on its stdin."""


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
    cache: NodeCache | Flag | None = None
    callbacks: NodeCallbacks | None = None
    stream_input: str | None = None


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
class ModelSettings:
    """Added: how a model generates, as OpenAI's protocol names it. None: the model's own setting."""

    temperature: Number | None = None
    top_p: Number | None = None
    max_tokens: Whole | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    stream: Flag | None = None


@dataclass(frozen=True, kw_only=True)
class LlmNode(SkillKeys, NodeBase):
    """A node without `prompt` has an `input`: it sends messages of the state, and adds the model's reply to them.
    `input` says which: `auto` the first that there are of one-shot messages, the user's input and the history; the
    others their own, else the history."""

    kind = "llm"
    scoped = "output"
    prompt: str = ""
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
    cache: NodeCache | Flag | None = None
    callbacks: NodeCallbacks | None = None
    tool_timeout: Duration | None = None
    """Added: the limit of one tool call. None: the workers' limit (workers' tools/timeouts.py)."""
    input: Literal["auto", "one_shot", "user", "history"] | None = None
    """Added, in sleipnir/1 only. None: the node has a prompt."""
    user_input_key: str = "user_input"
    """Added, in sleipnir/1 only: the key of the user's input."""
    generation: ModelSettings | None = None
    """Added, in sleipnir/1 only."""
    tools_node: str | None = None
    """Added, in sleipnir/1 only: the node that executes the tool calls of a reply. The next node after such a reply."""
    placeholders: Literal["trpc"] | None = None
    """Added, in sleipnir/1 only: the form of placeholders in `instructions` (graph/placeholders.py)."""
    stream_output: str | None = None
    """Added, in sleipnir/1 only: the node stream that gets its text."""
    repair_calls: Flag = False
    """Added, in sleipnir/1 only: calls in the history whose arguments are no JSON object are sent with an object."""
    few_shot: list[dict[str, str]] | None = None
    """Added, in sleipnir/1 only: examples, as messages that are sent after the instructions and stored nowhere."""

    @property
    def has_loop(self) -> bool:
        """Whether its calls of tools are executed in visits of its own."""
        return bool(self.tools) and self.input is None


@dataclass(frozen=True, kw_only=True)
class AgentInput:
    """Added: the message for the run of an agent, in one of three forms: the value of a state key (or of a path in
    one), a template, or a list of messages, whose texts are templates. The child finds a list under `messages`, and the
    last message of a user as its prompt."""

    source: str | None = field(default=None, metadata={"key": "from"})
    template: str | None = None
    messages: list[dict[str, str]] | None = None


@dataclass(frozen=True, kw_only=True)
class ChildOptions:
    """Added: options of the run of an agent, as a submission has them. None: it has no such option."""

    recursion_limit: Whole | None = None
    max_concurrency: Whole | None = None
    max_cost_usd: Number | None = None
    max_tokens: Whole | None = None
    strict: Flag = False


@dataclass(frozen=True, kw_only=True)
class NodeTool:
    """Added: a tool that a tools node declares. `schema` is the JSON Schema of its arguments, an object. An `external`
    tool is executed by the program or person who watches the run; `call` is a Python function."""

    name: str
    description: str = ""
    schema: dict[str, Json] | None = None
    external: Flag = False
    call: str | None = None


@dataclass(frozen=True, kw_only=True)
class ToolGroup:
    """Added: at most `limit` calls of these tools of one visit are executed at once."""

    tools: list[str]
    limit: Annotated[int, Field(strict=True, ge=1, le=2**53 - 1)] = 1


@dataclass(frozen=True, kw_only=True)
class ToolConcurrency:
    """Added: at most `max` calls of one visit are executed at once."""

    max: Annotated[int, Field(strict=True, ge=1, le=2**53 - 1)] = 8
    groups: list[ToolGroup] = field(default_factory=list)


Permission: TypeAlias = Literal["allow", "deny", "ask"]


@dataclass(frozen=True, kw_only=True)
class ToolsNode(NodeBase):
    """Added, in sleipnir/1 only: executes the tool calls of the newest message of a model, each in a visit of its own,
    and adds their results to the messages. `parallel` None: one after the other. With `answers_errors` the model reads
    errors as results; without it, the first one fails the node."""

    kind = "tools"
    scoped = "output"
    tools: list[str | NodeTool]
    parallel: ToolConcurrency | None = None
    tool_retry: list[Retry] = field(default_factory=list)
    permissions: dict[str, Permission] = field(default_factory=dict)
    answers_errors: Flag = False
    timeout: Seconds | None = None
    tool_timeout: Duration | None = None
    callbacks: NodeCallbacks | None = None

    @property
    def names(self) -> list[str]:
        """The names of its tools."""
        return [tool if isinstance(tool, str) else tool.name for tool in self.tools]

    @property
    def declared_names(self) -> list[str]:
        """The names of those that it declares itself."""
        return [tool.name for tool in self.tools if isinstance(tool, NodeTool)]

    def declared(self, name: str) -> NodeTool | None:
        """The tool of this name that the node itself declares."""
        return next((tool for tool in self.tools if isinstance(tool, NodeTool) and tool.name == name), None)


@dataclass(frozen=True, kw_only=True)
class AgentNode(NodeBase):
    """`prompt` is required in version 1.0. The fields after `timeout` are added: `map_in` gives the first values of the
    child's state and `map_out` is what the node writes, each as templates by key or as a function of the agent's own.
    An `isolated` child is in no session. `event_scope` names the child among those that watch the run. Without `prompt`
    and `input`, `user_input_key` is the state key of the prompt, which the node then clears."""

    kind = "agent"
    scoped = "output"
    agent: str
    prompt: str | None = None
    output_schema: dict[str, Json] | None = None
    timeout: Seconds = 300
    input: AgentInput | None = None
    map_in: dict[str, Json] | str | None = None
    map_out: dict[str, Json] | str | None = None
    isolated: Flag = False
    event_scope: str | None = None
    options: ChildOptions | None = None
    user_input_key: str | None = None
    callbacks: NodeCallbacks | None = None
    stream_output: str | None = None

    @property
    def takes_user_input(self) -> bool:
        """Whether the child's prompt is the user's input, which no other node uses then."""
        return self.user_input_key is not None and self.prompt is None and self.input is None

    @property
    def message(self) -> str | None:
        """The template of the child's prompt. None: it has a list of messages, or no prompt."""
        if self.takes_user_input:
            return f"{{{{{self.user_input_key}}}}}"
        if self.input is None:
            return self.prompt
        return self.input.template if self.input.source is None else f"{{{{{self.input.source}}}}}"

    @property
    def messages(self) -> list[dict[str, str]] | None:
        """The templates of the messages that the child is given."""
        return None if self.input is None else self.input.messages

    @property
    def mappers(self) -> tuple[str, ...]:
        """The functions of the agent's own that a worker calls for a visit."""
        return tuple(mapper for mapper in (self.map_in, self.map_out) if isinstance(mapper, str))


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
    cache: NodeCache | Flag | None = None
    callbacks: NodeCallbacks | None = None


@dataclass(frozen=True, kw_only=True)
class ToolNode(NodeBase):
    """Runs a function of the agent's own tools file without arguments and stores the returned text under
    `output_key`. Never written in a file: it runs the dynamic instructions of a config.yaml agent."""

    kind = "tool"
    tool: str
    output_key: str
