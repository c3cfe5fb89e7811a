"""What a node says about the way on: conditional edges, routers, joins, and the names of ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sleipnir.graph.model.values import Flag, Whole

END: Final = "end"
"""Added: as a target, the end of a branch, in a graph of version sleipnir/1 without a node of that name. PYTHON_END is
the same in every graph."""

FAIL: Final = "fail"
"""Added: a value of `on_error`. The run fails."""

CONTINUE: Final = "continue"
"""Added: a value of `on_error`. The run follows the node's edges and counts a failed visit."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Added: one case of a `branch` list. The first case whose `when` (CEL over `state`) is true is taken."""

    when: str
    to: str


@dataclass(frozen=True, kw_only=True)
class Branch:
    """Added: a conditional edge (spec/graph-package.md F11, F13). Exactly one of `by`, `call` and `cases` is set.

    `by` is a template that renders to a label; `call` names a function `file.py:name` that maps the state to one.
    `tools` is the target if the last message of the state has tool calls, in sleipnir/1 only. With `many`, each gives
    a list of labels. An empty label selects no target. `Graph.target_of` maps labels to targets.
    """

    by: str | None = None
    call: str | None = None
    tools: str | None = None
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
