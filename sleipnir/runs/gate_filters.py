"""Which open questions a person wants to see. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from sleipnir.errors import UsageError
from sleipnir.runs.actor import NOBODY, Person
from sleipnir.runs.views import GateInfo

GateView: TypeAlias = Literal["mine", "role", "all", "overdue", "snoozed"]
VIEWS: Final[tuple[GateView, ...]] = get_args(GateView)
_RANKS: Final = {"viewer": 0, "approver": 1, "operator": 2, "admin": 3}


def may_answer(gate: GateInfo, person: Person) -> bool:
    """Whether the rules of a question let a person answer it, as store/lua/shared/handling.lua decides."""
    if gate.author is not None and gate.author == person.name:
        return False
    rules = gate.rules
    if rules is None or not (rules.assignees or rules.role) or person.name in rules.assignees:
        return True
    return rules.role is not None and _RANKS.get(person.role or "", -1) >= _RANKS[rules.role]


def is_of(gate: GateInfo, person: Person, now_ms: int) -> bool:
    """Whether a question is this person's: claimed by it, or assigned to it, or its rules name it and nobody else has
    taken it."""
    holder = gate.handling.holder(now_ms)
    assigned = gate.handling.assigned
    if person.name in (holder, assigned.person if assigned else None):
        return True
    return holder is None and assigned is None and gate.rules is not None and person.name in gate.rules.assignees


@dataclass(frozen=True)
class GateFilter:
    """What a page of questions has. `mine`: see is_of; `role`: all that the person may answer; `overdue`: those that
    have been open since before `overdue_since_ms`; `snoozed`: those that the person has snoozed, which `mine` and
    `role` do not have. `node` is the node that asks, `agent` that of its run."""

    view: GateView = "all"
    person: Person = NOBODY
    node: str | None = None
    agent: str | None = None
    overdue_since_ms: int = 0

    def fits(self, gate: GateInfo, now_ms: int, *, is_snoozed: bool = False) -> bool:
        """Whether a question, which the person may have snoozed, is among them."""
        if self.view != "all" and self.view != "overdue" and is_snoozed != (self.view == "snoozed"):
            return False
        if self.node not in (None, gate.node) or self.agent not in (None, gate.agent):
            return False
        match self.view:
            case "mine":
                return is_of(gate, self.person, now_ms)
            case "role":
                return may_answer(gate, self.person)
            case "overdue":
                return gate.opened_ms <= self.overdue_since_ms
        return True


@dataclass(frozen=True, order=True)
class GatePosition:
    """A place in the list of questions, which is in order of time."""

    opened_ms: int
    name: str

    def __str__(self) -> str:
        return f"{self.opened_ms}.{self.name.replace('/', '.')}"

    @classmethod
    def of(cls, cursor: str) -> GatePosition:
        """Raises UsageError."""
        parts = cursor.split(".")
        if len(parts) != 3 or not (parts[0].isascii() and parts[0].isdigit() and len(parts[0]) < 16):
            raise UsageError(f"{cursor[:80]!r} is no cursor of a list of questions")
        return cls(int(parts[0]), f"{parts[1]}/{parts[2]}")


@dataclass(frozen=True)
class PageOfGates:
    """Questions, the oldest first. `after` is the cursor of the next page; None: there is none. `looked` questions were
    looked at, at most about MOST_LOOKED: a page may be short, or empty, and have a next one."""

    items: tuple[GateInfo, ...]
    after: str | None
    looked: int

    def __iter__(self) -> Iterator[GateInfo]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


MOST_LOOKED: Final = 1_000


@dataclass(frozen=True)
class GateCounts:
    """How many questions each view has. `all` and `overdue` are exact; the others are among the oldest `looked` ones,
    and exact if `is_exact`."""

    all: int
    overdue: int
    mine: int
    role: int
    snoozed: int
    looked: int
    is_exact: bool
