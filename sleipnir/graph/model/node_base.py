"""What all nodes have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sleipnir.graph.model.edges import Branch, Join
from sleipnir.graph.model.values import Flag, Json


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
    value_updates: dict[str, Json] = field(default_factory=dict)
    """Added, in sleipnir/1 only: the `state_updates` that are lists or mappings, with templates in their texts."""
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
    interrupt: Literal["before", "after", "both"] | None = None
    """Added, in sleipnir/1 only: the run stops before the node starts, or after it has ended, until a person resumes
    it."""

    @property
    def targets(self) -> list[str]:
        """The targets of the plain edges."""
        return [self.next] if isinstance(self.next, str) else self.next or []
