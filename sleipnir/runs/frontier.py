"""The live visits of a run, with counts that limit which others may start.

A run may have thousands of live visits, and each event asks which are on workers and which may start. The counts are
updated with each change, so the cost of an event depends on its changes, not on the number of live visits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from typing import Any

from sleipnir.messages import QUEUE_OF
from sleipnir.runs.visits import (
    BRANCH,
    AgentFunction,
    Call,
    ChildWait,
    Commands,
    Fan,
    Item,
    Loop,
    RunFunction,
    Turn,
    Visit,
    VisitState,
    WholeRun,
    Work,
)

FEW = 64
"""Up to this number of changes a frontier is copied rather than shared, even if it has few visits."""

_ABSENT: Any = object()
_NOTHING: Mapping[int, Visit] = {}
_SLOTLESS = (Turn, Call, WholeRun, RunFunction)
_HOLD_A_SLOT = (Work, Loop, ChildWait)


class Frontier(Mapping[int, Visit]):
    """Visits by number. `put` and `drop` are the only ways to change one.

    Sets of numbers: `ready` are the visits that wait for a slot, `ready_for_workers` those of them that need a slot of
    the run (not items, which use slots of their map), `maps` the maps that wait for their items, `commands` the visits
    with commands that have not become visits yet.

    Counts: `branches` are visits on workers, loops, and visits that wait for a child run; `items_of`, by map, the
    started items; `nodes`, by node, the visits under way, without items and visits of lists of commands; `failed` the
    failed visits, without items; `queued` and `waiting` all visits in that state.

    `members` and `unfinished` count, by super-step, its visits and those that have not ended. In a `dag`, where each
    visit is its own step, `rested` are the ended visits and `agent_functions` the visits that call a function of the
    agent for an ended visit. `run_functions` are the visits that call functions of the agent around the whole run.

    Copies share visits: a copy costs the changes since the visits were shared last, at most about the square root of
    the number of visits.
    """

    __slots__ = (
        "_changes",
        "_shared",
        "_size",
        "agent_functions",
        "branches",
        "commands",
        "failed",
        "items_of",
        "maps",
        "members",
        "nodes",
        "queued",
        "ready",
        "ready_for_workers",
        "rested",
        "run_functions",
        "unfinished",
        "waiting",
    )  # fmt: skip

    def __init__(self) -> None:
        self._shared = _NOTHING
        self._changes: dict[int, Visit | None] = {}
        """The differences from the shared visits; None: dropped."""
        self._size = 0
        self.ready: set[int] = set()
        self.ready_for_workers: set[int] = set()
        self.maps: set[int] = set()
        self.commands: set[int] = set()
        self.rested: set[int] = set()
        self.agent_functions: set[int] = set()
        self.run_functions: set[int] = set()
        self.branches = self.failed = self.queued = self.waiting = 0
        self.items_of: dict[int, int] = {}
        self.nodes: dict[str, int] = {}
        self.members: dict[int, int] = {}
        self.unfinished: dict[int, int] = {}

    @classmethod
    def of(cls, visits: Mapping[int, Visit]) -> Frontier:
        """An independent frontier with these visits."""
        if not isinstance(visits, Frontier):
            new = cls()
            for visit in visits.values():
                new.put(visit)
            return new
        if len(visits._changes) > FEW:
            visits._share()
        new = cls.__new__(cls)
        new._shared, new._changes, new._size = visits._shared, visits._changes.copy(), visits._size
        new.ready, new.ready_for_workers = visits.ready.copy(), visits.ready_for_workers.copy()
        new.maps, new.commands = visits.maps.copy(), visits.commands.copy()
        new.rested, new.agent_functions = visits.rested.copy(), visits.agent_functions.copy()
        new.run_functions = visits.run_functions.copy()
        new.branches, new.failed = visits.branches, visits.failed
        new.queued, new.waiting = visits.queued, visits.waiting
        new.items_of, new.nodes = visits.items_of.copy(), visits.nodes.copy()
        new.members, new.unfinished = visits.members.copy(), visits.unfinished.copy()
        return new

    def _share(self) -> None:
        """Share all visits with later copies, if enough have changed since the last sharing."""
        if len(self._changes) > FEW + isqrt(len(self._shared)):
            self._shared, self._changes = dict(self.items()), {}

    # Reading

    def get(self, seq: int, default: Any = None) -> Visit | Any:
        visit = self._changes.get(seq, _ABSENT)
        if visit is _ABSENT:
            return self._shared.get(seq, default)
        return default if visit is None else visit

    def __getitem__(self, seq: int) -> Visit:
        visit: Visit | None = self.get(seq)
        if visit is None:
            raise KeyError(seq)
        return visit

    def __contains__(self, seq: object) -> bool:
        return self.get(seq) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[int]:
        return (visit.seq for visit in self._visits())

    def values(self) -> Any:
        return self._visits() if self._shared else self._changes.values()

    def items(self) -> Any:
        return ((visit.seq, visit) for visit in self._visits())

    def _visits(self) -> Iterator[Visit]:
        changes = self._changes
        for seq, visit in self._shared.items():
            changed = changes.get(seq, visit)
            if changed is not None:
                yield changed
        for seq, new in changes.items():
            if new is not None and seq not in self._shared:
                yield new

    # Changing

    def put(self, visit: Visit) -> None:
        """Add a visit, or replace the one with its number."""
        seq = visit.seq
        before = self._changes.get(seq, _ABSENT)
        if before is _ABSENT:
            before = self._shared.get(seq)
        if before is None:
            self._size += 1
        else:
            self._count(before, -1)
        self._changes[seq] = visit
        self._count(visit, 1)

    def drop(self, seq: int) -> None:
        self._count(self[seq], -1)
        self._size -= 1
        if seq in self._shared:
            self._changes[seq] = None
        else:
            del self._changes[seq]

    def drop_members(self, group: int, seqs: Sequence[int]) -> None:
        """Drop visits that only count as members of their super-step: they have ended successfully, and are not
        branches of a `dag`. Thousands are dropped without reading each."""
        shared, changes = self._shared, self._changes
        for seq in seqs:
            if seq in shared:
                changes[seq] = None
            else:
                del changes[seq]
        self._size -= len(seqs)
        if count := self.members[group] - len(seqs):
            self.members[group] = count
        else:
            del self.members[group]

    def _count(self, visit: Visit, by: int) -> None:  # several times for each event of each run
        place, body = visit.place, visit.body
        state, is_branch = body.state, place.is_branch
        if state == "queued":
            self.queued += by
        elif state == "waiting":
            self.waiting += by
        if is_branch:
            self._count_member(visit, state, by)
        elif isinstance(place, RunFunction):
            _note(self.run_functions, visit.seq, by)
        if state == "failed":
            self.failed += 0 if isinstance(place, Item) else by
        elif state == "ready":
            _note(self.ready, visit.seq, by)
            if is_branch and visit.kind in QUEUE_OF:
                _note(self.ready_for_workers, visit.seq, by)
        elif isinstance(place, _SLOTLESS):
            return  # its loop has the slot; a question about the budget belongs to no node
        elif isinstance(place, Item):
            self.items_of[place.map] = self.items_of.get(place.map, 0) + by
        elif isinstance(body, Commands):
            _note(self.commands, visit.seq, by)
        elif state != "ended":
            if isinstance(body, Fan):
                _note(self.maps, visit.seq, by)
            elif isinstance(body, _HOLD_A_SLOT):
                self.branches += by
            if place is BRANCH:
                self.nodes[visit.node] = self.nodes.get(visit.node, 0) + by

    def _count_member(self, visit: Visit, state: VisitState, by: int) -> None:
        if visit.lineage:  # a visit of a `dag`
            if state == "ended":
                _note(self.rested, visit.seq, by)
            if isinstance(visit.place, AgentFunction):
                _note(self.agent_functions, visit.seq, by)
            return
        group = visit.group
        if count := self.members.get(group, 0) + by:
            self.members[group] = count
        else:
            del self.members[group]
        if state != "ended":
            if count := self.unfinished.get(group, 0) + by:
                self.unfinished[group] = count
            else:
                del self.unfinished[group]


def _note(numbers: set[int], seq: int, by: int) -> None:
    (numbers.add if by > 0 else numbers.discard)(seq)
