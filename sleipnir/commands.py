"""Values that a Python function node may return besides a dict of new state: commands, sends, and operations on
messages.

    from sleipnir.commands import Command, append, remove_all

    def plan(state):
        return [Command(goto="check", update={"rule": rule}) for rule in state["rules"]]

    def ask(state):
        return {"messages": [remove_all(), append("user", state["question"])]}

Semantics: spec/graph-package.md F10 and F14 for commands, F03 for operations; spec/langgraph-api.md 3 and 4 for both
where a function is a node of a StateGraph. Everything here is plain JSON once it leaves the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar

START: Final = "__start__"
"""As the source of an edge of a StateGraph: the beginning of a run."""

END: Final = "__end__"
"""As a target in a StateGraph: the end of the branch."""

Targets = TypeVar("Targets")


@dataclass(frozen=True)
class Send:
    """In a StateGraph: one visit of `node`, whose whole input is `arg`, in place of the state."""

    node: str
    arg: Any


@dataclass(frozen=True)
class Overwrite:
    """In a StateGraph: a write that replaces the value of a key past its reducer. Other writes to the key in the same
    super-step do not count."""

    value: Any


@dataclass(frozen=True)
class NodeInfo:
    """What a callback is told of the node that it runs around: `visit` is the number of the visit in its `run`, `step`
    that of its super-step, `session` the name of the run's session. `failures` of this visit were retried before.
    `context` holds what callbacks have put there for those after them, in the same execution; JSON only."""

    node: str
    type: str
    agent: str
    run: str
    visit: int
    attempt: int
    step: int
    failures: int = 0
    session: str | None = None
    context: dict[str, Any] = field(default_factory=dict)


Goto: TypeAlias = str | Send | Sequence[str | Send]


@dataclass(frozen=True)
class Command(Generic[Targets]):
    """New state and the next node.

    Alone: `update` is written as if the function had returned it, through reducers, and `goto` (a node, a named end, or
    several of them) is used instead of the node's edges; without `goto` the edges apply. In a list: one visit each of
    `goto` (None: of the same node again); only that visit has `update` on top of the state. An empty list ends the
    branch.

    In a StateGraph `goto` adds to the node's edges and may hold Sends, and every Command of a list is written and
    followed. `graph=Command.PARENT` addresses the graph above. As the input of `invoke`, `resume` answers a question:
    a value, or a mapping of interrupt ids to values.

    `Command[Literal["a", "b"]]` as the return annotation of a function names its targets for drawings and checks.
    """

    PARENT: ClassVar[str] = "__parent__"

    update: Any = field(default_factory=dict)
    goto: Goto | None = None
    resume: Any = None
    graph: str | None = None


def append(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Add a message to a `messages` key."""
    return {"op": "append", "role": role, "content": content, **more}


def replace_last_user(content: Any) -> dict[str, Any]:
    """Put `content` into the last user message, whose other fields stay; without one, add a user message."""
    return {"op": "replace_last_user", "content": content}


def one_shot(messages: Sequence[dict[str, Any]], node: str | None = None) -> dict[str, Any]:
    """An update: these messages are the whole input of the llm node `node`, or (None) of the next one that has none of
    its own. An empty list takes an earlier one back."""
    if node is None:
        return {"one_shot_messages": list(messages)}
    return {"one_shot_messages_by_node": {node: list(messages)}}


def remove(id: str) -> dict[str, Any]:
    """Remove the message with this id; without one, nothing changes."""
    return {"op": "remove", "id": id}


def remove_all() -> dict[str, Any]:
    """Empty the list of messages."""
    return {"op": "remove_all"}
