"""The nodes that ask, wait, route, repeat others or end, and do no work of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sleipnir.graph.answer_rules import AnsweringRole, AnswerRules
from sleipnir.graph.model.node_base import NodeBase
from sleipnir.graph.model.values import Count, Flag, LookBack, Seconds, WaitTime, Whole


@dataclass(frozen=True, kw_only=True)
class AskingNode(NodeBase):
    """What approvals and inputs have. Added, in sleipnir/1 only: who may answer, as in AnswerRules."""

    assignees: list[str] = field(default_factory=list)
    role: AnsweringRole | None = None
    not_author: Flag = False
    quorum: Count = 1
    comment: Literal["required"] | None = None

    @property
    def answer_rules(self) -> AnswerRules | None:
        """None: everybody who may answer at all."""
        rules = AnswerRules(tuple(self.assignees), self.role, self.not_author, self.quorum, self.comment == "required")
        return None if rules == AnswerRules() else rules


@dataclass(frozen=True, kw_only=True)
class ApprovalNode(AskingNode):
    kind = "approval"
    scoped = "choice"
    question: str
    options: list[str]
    routes: dict[str, str]
    on_other: str
    timeout: Seconds | None = None
    on_timeout: str | None = None

    def target_of_answer(self, text: str) -> str:
        """The target that an answer leads to."""
        return self.routes.get(text, self.on_other)


@dataclass(frozen=True, kw_only=True)
class InputNode(AskingNode):
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
class RouterNode(NodeBase):
    """Added: only routes, by `next` and `branch`."""

    kind = "router"


@dataclass(frozen=True, kw_only=True)
class JoinNode(NodeBase):
    """Added: only waits, by `wait_for`, and routes."""

    kind = "join"


@dataclass(frozen=True, kw_only=True)
class WaitNode(NodeBase):
    """Added, in sleipnir/1 only: waits for a time or a signal, and routes.

    Exactly one of these says what it waits for: `duration`, which has the key `for`; `until`, a template of a time;
    `event`, a template of the name of a signal. The other keys belong to `event`.
    """

    kind = "wait"
    duration: WaitTime | None = field(default=None, metadata={"key": "for"})
    until: str | None = None
    event: str | None = None
    timeout: WaitTime | None = None
    on_timeout: str | None = None
    filter: str | None = None
    look_back: LookBack | None = None
    consume: Literal["all", "one"] = "all"

    @property
    def scoped(self) -> str | None:  # type: ignore[override]
        """The signal is the result of a node that waits for one."""
        return None if self.event is None else "event"
