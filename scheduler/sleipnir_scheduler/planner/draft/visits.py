"""The visits of a run while one event is planned: opened, moved along the table of states.py, and dropped.

Bookkeeping only: callers decide which visits open and move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sleipnir.messages import Role
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.run import changed
from sleipnir.runs.visits import BRANCH, READY, Body, Branch, Ended, Place, Rank, Ready, Visit
from sleipnir_scheduler.planner.states import MOVES, Closed, IllegalMove, New, State


class Member(NamedTuple):
    """A visit of a step, with the fields that closing the step reads; each visit is read once, because there may be
    thousands. `rests`: it has ended, and nothing else is stored of it."""

    rank: Rank
    seq: int
    role: Role
    ended: Ended | None
    overlay: str | None
    rests: bool
    visit: Visit


def member(visit: Visit) -> Member:
    body = visit.body
    ended = body if type(body) is Ended else None
    rests = ended is not None and type(visit.place) is Branch and not visit.lineage
    rank = (visit.depth, visit.node, visit.lineage, visit.index)
    return Member(rank, visit.seq, visit.place.role, ended, visit.overlay, rests, visit)


@dataclass
class LiveVisits:
    """Used within one call of plan(). Each method that changes a visit returns the changed visit.

    `last_seq` is the number that was given last; `touched` are the visits that this event has opened (None), moved or
    dropped, as they were before it. `gone` are visits that are closed at once with their super-step, by its number.
    `continues`: the run goes on with an event of its own (events.Continued), after those of other runs. `starts` counts
    visits that this event has started.
    """

    before: Mapping[int, Visit]
    now_ms: int
    frontier: Frontier
    last_seq: int
    touched: dict[int, Visit | None] = field(default_factory=dict)
    gone: dict[int, tuple[int, ...]] = field(default_factory=dict)
    continues: bool = False
    starts: int = 0

    # Changing

    def number(self) -> int:
        """A number for something other than a visit."""
        self.last_seq += 1
        return self.last_seq

    def open(self, node: str, kind: str, *, place: Place = BRANCH, body: Body = READY, **fields: Any) -> Visit:
        """A new visit. `fields` are its group, depth, lineage, index and overlay; a group of None is its own number."""
        self.last_seq = seq = self.last_seq + 1
        if fields.get("group", 0) is None:
            fields["group"] = seq
        if type(body) is not Ready:
            _check(seq, node, New, type(body))
        return self._put(Visit(seq, node, kind, 1, self.now_ms, place, body, **fields))

    def move(self, visit: Visit, body: Body, **fields: Any) -> Visit:
        """The visit has another body. Raises IllegalMove for what states.MOVES does not have."""
        _check(visit.seq, visit.node, type(visit.body), type(body))
        return self._put(changed(visit, body=body, **fields))

    def begin(self, visit: Visit, body: Body) -> Visit:
        """A visit starts, or (with its current body) ends immediately. Its time begins with its first attempt."""
        if body is not visit.body:
            _check(visit.seq, visit.node, type(visit.body), type(body))
        if visit.attempt > 1:
            return self._put(changed(visit, body=body))
        return self._put(changed(visit, body=body, opened_ms=self.now_ms))

    def drop(self, visit: Visit) -> None:
        """The visit is over."""
        _check(visit.seq, visit.node, type(visit.body), Closed)
        self.frontier.drop(visit.seq)
        self._touch(visit.seq)

    def drop_step(self, group: int, members: Sequence[Member]) -> list[str]:
        """Drop the visits of a closed step. Returns their overlays."""
        had, have, overlays = self.before, self.frontier, []
        resting: list[int] = []
        for _, seq, _, _, overlay, rests, visit in members:
            if overlay is not None:
                overlays.append(overlay)
            if rests and had.get(seq) is visit and have.get(seq) is visit:
                resting.append(seq)
            else:
                self.drop(visit)
        if resting:
            self.frontier.drop_members(group, resting)
            self.gone[group] = tuple(resting)
        return overlays

    def stay(self, visit: Visit, body: Body, group: int) -> Visit:
        """Keep a visit of a closed step, in another super-step and without its overlay."""
        _check(visit.seq, visit.node, type(visit.body), type(body))
        return self._put(changed(visit, body=body, group=group, place=BRANCH, overlay=None))

    def _put(self, visit: Visit) -> Visit:
        self.frontier.put(visit)
        self._touch(visit.seq)
        return visit

    def _touch(self, seq: int) -> None:
        if seq not in self.touched:
            self.touched[seq] = self.before.get(seq)

    # Reading

    def all(self) -> list[Visit]:
        """Live visits, those that ended and wait for others, and those that failed, by number."""
        return list(self.frontier.values())

    def get(self, seq: int) -> Visit | None:
        visit: Visit | None = self.frontier.get(seq)
        return visit

    def group(self, number: int) -> list[Visit]:
        """The visits of a super-step in visit order; without items of maps."""
        members = self._members(number)
        return sorted(members, key=lambda visit: visit.rank) if len(members) > 1 else members

    def ranked(self, number: int) -> list[Member]:
        """The visits of a super-step in visit order, as members."""
        return sorted(map(member, self._members(number)))

    def has_mates(self, visit: Visit) -> bool:
        """Whether there are other visits of its step. There may be thousands, and this is asked for each."""
        if (count := self.frontier.members.get(visit.group)) is not None and not visit.lineage:
            return count > 1
        return len(self._members(visit.group)) > 1

    def has_ended_step(self, group: int) -> bool:
        """Whether all visits of a step have ended."""
        if group in self.frontier.members:
            return group not in self.frontier.unfinished
        return all(visit.state == "ended" for visit in self._members(group))

    def _members(self, number: int) -> list[Visit]:
        if number in self.frontier.members:
            return [visit for visit in self.frontier.values() if visit.group == number and visit.place.is_branch]
        # of a `dag`: a visit, and the functions of the agent that are called for it
        seqs = {number, *self.frontier.agent_functions}
        visits = [visit for seq in seqs if (visit := self.frontier.get(seq)) is not None]
        return [visit for visit in visits if visit.group == number and visit.place.is_branch]


def _check(seq: int, node: str, before: State, after: State) -> None:
    """Raise IllegalMove unless the table has this move of a visit."""
    if after not in MOVES[before]:
        raise IllegalMove(f"visit {seq} of node '{node}' cannot go from {before.__name__} to {after.__name__}")
