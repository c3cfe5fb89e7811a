"""What opened a visit: its predecessors, read from the journal of its run.

Of a `bsp` graph one super-step is open at a time. What its visits led to (`next`, `routes`) opens with the next one, or
waits for a join or as a deferred node, which the `closing` says. In a `dag` the lineage of a visit is a hash of its
cause; a visit whose lineage no ended visit gives was opened by a join, or by the run. A visit that a list of commands
opened names its source (`sent_by`); steps of earlier releases do not, and then all visits that led to its node count.

A journal may have a million entries: what is kept is what has led somewhere and has not opened it, and of a `dag` the
last MOST_CAUSES ended visits.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from sleipnir.runs.checkpoints import several
from sleipnir.runs.transitions import Step
from sleipnir.runs.visits import Rank, lineage_after

MOST_CAUSES: Final = 30_000

Ids = tuple[str, ...]
"""Ids of trace steps, `RUN/VISIT`."""


def id_of(run: str, seq: int) -> str:
    """The id of the trace step of a visit."""
    return f"{run}/{seq}"


def is_visit(step: Step) -> bool:
    """Whether it is the end of a visit of its super-step: no request, item, turn, call or function of the agent."""
    return step.seq is not None and step.role == "node" and step.item is None and step.part is None


class PredecessorReader:
    """Follows the journal of a run; that of a fork after those of its sources."""

    def __init__(self) -> None:
        self._steps, self._visits = _SuperSteps(), _DagVisits()
        self._is_dag = False

    def add(self, run: str, step: Step) -> Ids:
        """The predecessors of the visit that ends with this step, which is the next one of its run. Of another step
        they mean nothing."""
        if is_visit(step):
            self._is_dag = step.rank is not None
        if not self._is_dag:
            return self._steps.add(run, step)
        return self._visits.add(run, step)

    def of_live(self, node: str) -> Ids:
        """Those of a live visit of a node."""
        return self._visits.of_live(node) if self._is_dag else self._steps.opened_by(node)


class _SuperSteps:
    """`led` are the visits of the open super-step that have ended, by number, with what they led to; `waiting` those
    of closed ones that have led to nodes which have not opened; `opened` those that opened the nodes of the open one.
    `_arrived` and `_deferred` are the nodes that wait for further sources of a join, or to the end."""

    def __init__(self) -> None:
        self._led: dict[int, tuple[str, ...]] = {}
        self._waiting: dict[str, list[str]] = {}
        self._opened: dict[str, Ids] = {}
        self._arrived: frozenset[str] = frozenset()
        self._deferred: frozenset[str] = frozenset()

    def opened_by(self, node: str) -> Ids:
        return self._opened.get(node, ())

    def add(self, run: str, step: Step) -> Ids:
        found: Ids = ()
        if is_visit(step) and step.seq is not None:
            found = self.opened_by(step.node or "") if step.sent_by is None else (id_of(run, step.sent_by),)
            self._led[step.seq] = several(step.next)
        for seq, ways in (step.routes or {}).items():
            self._led[int(seq)] = ways
        if step.is_checkpoint and step.step:
            self._close(run, step)
        return found

    def _close(self, run: str, step: Step) -> None:
        leads: dict[str, list[str]] = {}
        for seq, targets in self._led.items():
            for target in targets:
                leads.setdefault(target, []).append(id_of(run, seq))
        self._led = {}
        closing = step.closing
        if closing is not None and closing.arrived is not None:
            self._arrived = frozenset(map(_target_of, closing.arrived))
        if closing is not None and closing.deferred is not None:
            self._deferred = frozenset(closing.deferred)
        nodes = several(step.next) if closing is None else closing.nodes
        self._opened = {node: (*self._waiting.pop(node, ()), *leads.get(node, ())) for node in nodes}
        for target, ids in leads.items():
            if target in self._opened:
                continue
            if target in self._arrived or target in self._deferred:
                self._waiting.setdefault(target, []).extend(ids)
            elif closing is not None and closing.commands:
                self._opened[target] = tuple(ids)


class _DagVisits:
    """`_causes` are ended visits by the lineage of what they open; `_waiting` those that led to a node and are not
    known to have opened a visit of it, by that node and their own."""

    def __init__(self) -> None:
        self._causes: OrderedDict[tuple[int, str], str] = OrderedDict()
        self._waiting: dict[str, dict[str, list[tuple[str, int]]]] = {}
        self._ranks: OrderedDict[int, Rank] = OrderedDict()
        """Of visits whose ways a later step says."""

    def of_live(self, node: str) -> Ids:
        return tuple(id_ for arrivals in self._waiting.get(node, {}).values() for id_, _ in arrivals)

    def add(self, run: str, step: Step) -> Ids:
        found: Ids = ()
        if is_visit(step) and step.seq is not None and step.rank is not None:
            found = self._opened_by(run, step, step.rank)
            self._lead(id_of(run, step.seq), step.rank, step)
            if step.next is None:
                self._ranks[step.seq] = step.rank
                _forget(self._ranks)
        for seq, ways in (step.routes or {}).items():
            if (rank := self._ranks.pop(int(seq), None)) is not None:
                self._wait(id_of(run, int(seq)), rank[1], ways, step.at_ms)
        return found

    def _opened_by(self, run: str, step: Step, rank: Rank) -> Ids:
        depth, node, lineage, _ = rank
        cause = id_of(run, step.sent_by) if step.sent_by is not None else self._causes.get((depth, lineage))
        arrivals = self._waiting.get(node, {})
        if cause is not None:
            for waiting in arrivals.values():
                waiting[:] = [each for each in waiting if each[0] != cause]
            return (cause,)
        had = [waiting for waiting in arrivals.values() if waiting and waiting[0][1] <= step.opened_ms]
        return tuple(waiting.pop(0)[0] for waiting in had)

    def _lead(self, id_: str, rank: Rank, step: Step) -> None:
        for of_list in (False, True):
            self._causes[rank[0] + 1, lineage_after(rank, is_one_of_a_list=of_list)] = id_
        _forget(self._causes)
        self._wait(id_, rank[1], several(step.next), step.at_ms)

    def _wait(self, id_: str, node: str, targets: Iterable[str], at_ms: int) -> None:
        for target in targets:
            self._waiting.setdefault(target, {}).setdefault(node, []).append((id_, at_ms))


def _forget(kept: OrderedDict[tuple[int, str], str] | OrderedDict[int, Rank]) -> None:
    while len(kept) > MOST_CAUSES:
        kept.popitem(last=False)


def _target_of(join: str) -> str:
    """The node that a join opens (planner/engines/joins.py names joins)."""
    try:
        return str(json.loads(join)[0])
    except (ValueError, LookupError, TypeError):
        return ""
