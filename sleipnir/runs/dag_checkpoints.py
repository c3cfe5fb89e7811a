"""What a run of a `dag` goes on with after a checkpoint, read from its journal.

A consistent point of a `dag` is a prefix of its journal, with the set of visits that were unfinished then. The visits
that an ended one opens follow from its targets and its rank, and joins from the visits that have ended before them
(arrivals.py); a `closing` has what these do not tell. A visit whose writes do not count yet is unfinished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, Final, NamedTuple

from sleipnir.graph.model import Graph
from sleipnir.messages import OVERLAY_END
from sleipnir.runs.arrivals import arrive
from sleipnir.runs.checkpoints import KeptCheckpoint, several
from sleipnir.runs.run import Checkpoint, CommandList, UnfinishedVisit
from sleipnir.runs.transitions import Closing, Step
from sleipnir.runs.visits import WIDE, Rank, lineage_after, lineage_of

_NOTHING: Final = Closing()
_GONE: Final = object()
_NO_RANK: Final[Rank] = (0, "", "", 0)


def plain_ways(graph: Graph, node: str, targets: Sequence[str]) -> list[str]:
    """The nodes of which an ended visit of `node` opens visits itself, by its targets in the journal: not those that
    wait for it."""
    return [target for target in targets if not graph.waits_for(target, node)]


class _Open(NamedTuple):
    """A visit that has not ended, or whose ways on are not chosen. The step `since` has opened it; infinite: it has
    failed, so nothing of it is in doubt. It is the command `number` of the list `list_`; '': of none."""

    rank: Rank
    since: float
    list_: str = ""
    number: int = 0


class DagReader:
    """Follows the journal of a run of a `dag`, at a cost that depends on what a step changes. `graph` is that of the
    run."""

    def __init__(self, graph: Graph, first: Checkpoint) -> None:
        self._graph = graph
        self._step = first.step
        self._changes: list[tuple[dict[Any, Any], Any, Any]] | None = None
        """How the dictionaries were before each change since a checkpoint was kept."""
        self._kept_step = 0
        self._unfinished: dict[Rank, _Open] = {}
        self._names: dict[str, int] = {}
        """How many unfinished visits a node has."""
        self._held: dict[str, Rank] = {}
        self._held_steps: dict[int, str] = {}
        self._unrouted: dict[str, _Open] = {}
        self._lists: dict[str, CommandList] = {}
        self._left: dict[tuple[str, str], int] = {}
        """How many visits of a list and a node have not ended."""
        self._overlays: dict[str, str] = {}
        self._arrived: dict[str, Mapping[str, int]] = dict(first.arrived)
        self._counts: dict[str, int] = dict(first.counts)
        self._steps: dict[None, int] = {None: first.steps}
        self.is_strange = False
        """Whether the journal has visits that its earlier steps do not tell of."""
        for visit in first.visits:
            self._add(_Open(visit.rank, -1 if visit.begun else 0))
        for each in first.lists:
            self._add_list(each, -1 if each.begun else 0)
        if not (first.visits or first.lists):
            for node in first.nodes:
                self._add(_Open((1, node, lineage_of(""), 0), 0))

    # Reading

    @property
    def step(self) -> int:
        return self._step

    @property
    def leads_on(self) -> bool:
        return bool(self._unfinished)

    @property
    def is_whole(self) -> bool:
        """Whether the ways on of all ended visits are chosen."""
        return not self._unrouted

    def leads_to(self, node: str) -> bool:
        return node in self._names

    def keep(self) -> None:
        self._changes, self._kept_step = [], self._step

    @property
    def has_kept(self) -> bool:
        return self._changes is not None

    @property
    def kept(self) -> KeptCheckpoint | None:
        if self._changes is None:
            return None
        tables: tuple[dict[Any, Any], ...] = (
            self._unfinished, self._lists, self._overlays, self._arrived, self._counts, self._steps,
        )  # fmt: skip
        copies = {id(table): dict(table) for table in tables}
        for table, key, before in reversed(self._changes):
            copy = copies.get(id(table))
            if copy is None:
                continue
            if before is _GONE:
                copy.pop(key, None)
            else:
                copy[key] = before
        return self._checkpoint(*(copies[id(table)] for table in tables))

    def _checkpoint(
        self,
        unfinished: Mapping[Rank, _Open],
        lists: Mapping[str, CommandList],
        overlays: Mapping[str, str],
        arrived: Mapping[str, Mapping[str, int]],
        counts: Mapping[str, int],
        steps: Mapping[None, int],
    ) -> KeptCheckpoint:
        step = self._kept_step
        plain = sorted(visit for visit in unfinished.values() if not visit.list_)
        numbers: dict[str, dict[int, _Open]] = {}
        for visit in unfinished.values():
            if visit.list_:
                numbers.setdefault(visit.list_, {})[visit.number] = visit
        remaining = {
            seq: _remaining(lists[seq], of, begun=any(visit.since < step for visit in of.values()))
            for seq, of in sorted(numbers.items(), key=lambda each: lists[each[0]].rank)
        }
        point = Checkpoint(
            step,
            tuple(visit.rank[1] for visit in plain),
            {node: count for node, count in counts.items() if count},
            steps[None],
            dict(arrived),
            commands=sum(map(len, numbers.values())),
            lists=tuple(remaining.values()),
            visits=tuple(UnfinishedVisit(visit.rank, visit.since < step) for visit in plain),
        )
        return KeptCheckpoint(
            point, {seq: _without(overlays[seq], numbers[seq]) for seq in remaining if seq in overlays}
        )

    @property
    def _stops(self) -> bool:
        """Whether the run has used up its steps, and opens no visits any more."""
        limits = self._graph.limits
        opened = self._steps[None] + len(self._unfinished) + len(self._unrouted)
        return limits.max_steps is not None and limits.on_max_steps == "stop" and opened >= limits.max_steps

    # Following the journal

    def add(self, step: Step) -> bool:
        """As in JournalReader."""
        if step.kind == "retried" and step.seq is None:
            for node in several(step.next):
                self._set(self._counts, node, 0)
            for rank, visit in self._unfinished.items():
                if visit.since == inf:
                    self._set(self._unfinished, rank, visit._replace(since=step.step))
        for seq, text in (step.overlays or {}).items():
            self._set(self._overlays, seq, text)
        if step.rank is not None and not step.item:
            self._follow(step, step.rank)
        for seq, targets in (step.routes or {}).items():
            waits = self._unrouted.get(seq) or self._unfinished.get(self._held.get(seq, _NO_RANK))
            if waits is None:
                self.is_strange = True
            else:
                self._close(seq, waits, targets, step)
        for number in step.applies:
            if (seq := self._held_steps.get(number, "")) in self._held:
                self._wait_for_routes(seq, self._unfinished[self._held[seq]])
        if not step.is_checkpoint:
            return False
        self._step = step.step
        return step.step > 0

    def _follow(self, step: Step, rank: Rank) -> None:
        """A visit, or a function of the agent for it, has ended."""
        if step.role != "node":
            return
        seq, visit = str(step.seq), self._unfinished.get(rank)
        if visit is None:
            self.is_strange = True
            return
        leads = step.next is not None or seq in (step.closing or _NOTHING).ways
        fails = not leads and (not step.ok or self._is_dead_end(step))
        if fails and not step.unrouted:
            self._set(self._unfinished, rank, visit._replace(since=inf))
        if step.held and step.step not in step.applies:
            self._set(self._held, seq, rank)
            self._set(self._held_steps, step.step, seq)
        elif step.unrouted:
            self._wait_for_routes(seq, visit)
        elif not fails:
            self._close(seq, visit, several(step.next), step)

    def _is_dead_end(self, step: Step) -> bool:
        """Whether a visit that has ended well, without targets and ways, has failed by that, as in version 1.0."""
        node = self._graph.nodes.get(step.node or "")
        if not self._graph.is_loki or node is None or node.kind == "end":
            return False
        return not (step.overlays or node.targets or node.branch or node.id in self._graph.joins)

    def _wait_for_routes(self, seq: str, visit: _Open) -> None:
        """The writes of a visit count, and its ways on are still to be chosen."""
        self._end(visit)
        self._drop(self._held, seq)
        self._set(self._unrouted, seq, visit)

    def _close(self, seq: str, visit: _Open, targets: Sequence[str], step: Step) -> None:
        """A visit is over, and what it leads to opens."""
        closing, rank, graph = step.closing or _NOTHING, visit.rank, self._graph
        if seq in self._unrouted:
            self._drop(self._unrouted, seq)
        else:
            self._end(visit)
        self._drop(self._held, seq)
        is_last = not visit.list_ or self._forget_command(visit)
        if is_last:
            self._set(self._counts, rank[1], self._counts.get(rank[1], 0) + 1)
        self._set(self._steps, None, self._steps[None] + 1)
        lineage = lineage_after(rank, is_one_of_a_list=bool(visit.list_))
        for node in closing.ways.get(seq, plain_ways(graph, rank[1], targets)):
            self._add(_Open((rank[0] + 1, node, lineage, 0), step.step))
        if (commands := closing.lists.get(seq)) is not None:
            is_narrow = sum(count for node, count in commands if node) <= WIDE
            self._add_list(CommandList(int(seq), rank, commands, sent=bool(visit.list_) and is_narrow), step.step)
        if is_last:
            self._arrive(rank, step.step)

    def _arrive(self, rank: Rank, step: int) -> None:
        if rank[1] not in self._graph.joins:
            return
        arrived, fired = arrive(self._graph, self._arrived, [(rank[1], rank[0])])
        for join in self._arrived.keys() | arrived.keys():
            if join not in arrived:
                self._drop(self._arrived, join)
            elif arrived[join] is not self._arrived.get(join):
                self._set(self._arrived, join, arrived[join])
        for each in fired:
            firing = self._counts.get(f"\0{each.name}", 0)
            self._set(self._counts, f"\0{each.name}", firing + 1)
            self._add(_Open((each.depth + 1, each.target, lineage_of(each.name), firing), step))

    def _add(self, visit: _Open) -> None:
        if self._stops:
            return  # it was dropped
        if visit.rank in self._unfinished:
            self.is_strange = True
        node = visit.rank[1]
        self._set(self._unfinished, visit.rank, visit)
        self._names[node] = self._names.get(node, 0) + 1

    def _add_list(self, each: CommandList, since: float) -> None:
        seq, nodes = str(each.seq), each.nodes
        self._set(self._lists, seq, each)
        for node, count in Counter(filter(None, nodes)).items():
            self._set(self._left, (seq, node), count)
        lineage = lineage_after(each.rank, is_one_of_a_list=each.sent)
        for number, node in enumerate(nodes):
            if node:
                self._add(_Open((each.rank[0] + 1, node, lineage, number), since, seq, number))

    def _end(self, visit: _Open) -> None:
        self._drop(self._unfinished, visit.rank)
        node = visit.rank[1]
        self._names[node] -= 1
        if not self._names[node]:
            del self._names[node]

    def _forget_command(self, visit: _Open) -> bool:
        """A visit of a list of commands is over. True: it was the last one of its node."""
        left = self._left.get((visit.list_, visit.rank[1]), 0) - 1
        if left:
            self._set(self._left, (visit.list_, visit.rank[1]), left)
            return False
        self._drop(self._left, (visit.list_, visit.rank[1]))
        if not any(seq == visit.list_ for seq, _ in self._left):
            self._drop(self._lists, visit.list_)
            self._drop(self._overlays, visit.list_)
        return True

    # Changes that can be undone

    def _set(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        if self._changes is not None:
            self._changes.append((table, key, table.get(key, _GONE)))
        table[key] = value

    def _drop(self, table: dict[Any, Any], key: Any) -> None:
        if key in table:
            if self._changes is not None:
                self._changes.append((table, key, table[key]))
            del table[key]


def _remaining(each: CommandList, left: Mapping[int, _Open], *, begun: bool) -> CommandList:
    """The commands of a list that are still to be done."""
    nodes = [node if number in left else "" for number, node in enumerate(each.nodes)]
    targets = tuple((node, len([*same])) for node, same in groupby(nodes))
    return CommandList(each.seq, each.rank, targets, each.sent, begun)


def _without(overlays: str, left: Mapping[int, _Open]) -> str:
    """The updates of these commands only."""
    texts = overlays.split(OVERLAY_END)
    return OVERLAY_END.join(text if number in left else "" for number, text in enumerate(texts))
