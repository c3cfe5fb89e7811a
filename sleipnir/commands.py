"""Values that a Python function node may return besides a dict of new state: commands, and operations on messages.

    from sleipnir.commands import Command, append, remove_all

    def plan(state):
        return [Command(goto="check", update={"rule": rule}) for rule in state["rules"]]

    def ask(state):
        return {"messages": [remove_all(), append("user", state["question"])]}

Semantics: spec/graph-package.md F10 and F14 for commands, F03 for operations. Everything here is plain JSON once it
leaves the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Command:
    """New state and the next node.

    Alone: `update` is written as if the function had returned it, through reducers, and `goto` (a node, a named end, or
    several of them) is used instead of the node's edges; without `goto` the edges apply. In a list: one visit each of
    `goto` (None: of the same node again); only that visit has `update` on top of the state. An empty list ends the
    branch.
    """

    update: Mapping[str, Any] = field(default_factory=dict)
    goto: str | Sequence[str] | None = None


def append(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Add a message to a `messages` key."""
    return {"op": "append", "role": role, "content": content, **more}


def replace_last_user(content: Any) -> dict[str, Any]:
    """Put `content` into the last user message, whose other fields stay; without one, add a user message."""
    return {"op": "replace_last_user", "content": content}


def remove_all() -> dict[str, Any]:
    """Empty the list of messages."""
    return {"op": "remove_all"}
