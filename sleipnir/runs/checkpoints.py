"""What a run goes on with after a checkpoint, read from its journal: what the fold of the values (journal.py) lacks.

Of a `bsp` graph one super-step is open at a time, so a run goes on at the nodes that the visits of the closed one lead
to. A visit that was alone names them (`next`), otherwise the `closing` does. Commands give their visits values of their
own: a closing has their targets, and the steps of the visits that gave them have the values.

dag_checkpoints.py reads the journals of `dag` graphs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from sleipnir.runs.run import Checkpoint, CommandList, changed
from sleipnir.runs.transitions import Closing, Step
from sleipnir.runs.visits import Rank


class KeptCheckpoint(NamedTuple):
    """A checkpoint, and the updates of the commands that it leads to, as in Step.overlays."""

    checkpoint: Checkpoint
    overlays: Mapping[str, str]


class JournalReader(Protocol):
    """Follows a journal, and keeps the checkpoint that is meant."""

    @property
    def step(self) -> int:
        """The step of the last checkpoint."""

    @property
    def is_whole(self) -> bool:
        """Whether what follows the last checkpoint is decided."""

    @property
    def leads_on(self) -> bool:
        """Whether the run goes on after the last checkpoint."""

    def leads_to(self, node: str) -> bool:
        """Whether it goes on at this node."""

    def keep(self) -> None:
        """Keep the last checkpoint, in the place of an earlier one."""

    @property
    def has_kept(self) -> bool: ...

    @property
    def kept(self) -> KeptCheckpoint | None: ...

    def add(self, step: Step) -> bool:
        """Follow the next step. True: the last checkpoint is now the one after it."""


class CheckpointReader:
    """Follows the journal of a run of a `bsp` graph, at a cost that depends on what a step changes. `nodes` and
    `commands` are those of the last checkpoint, that of the submission at first."""

    def __init__(self, first: Checkpoint) -> None:
        self._last, self._counts = first, Counter(first.counts)
        self._kept: Checkpoint | None = None
        self._before: dict[str, int] = {}
        """The counts at the checkpoint that is kept, of the nodes whose count has changed since."""
        self._ended: set[str] = set()
        self._given: dict[str, tuple[Rank, str]] = {}
        """The commands of visits of this super-step: where these ended, and the updates."""
        self._overlays: Mapping[str, str] = {}
        self._kept_overlays: Mapping[str, str] = {}

    @property
    def step(self) -> int:
        return self._last.step

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._last.nodes

    @property
    def commands(self) -> int:
        return self._last.commands

    @property
    def is_whole(self) -> bool:
        return True

    @property
    def leads_on(self) -> bool:
        return bool(self._last.nodes or self._last.commands)

    def leads_to(self, node: str) -> bool:
        return node in self._last.opens

    @property
    def last(self) -> Checkpoint:
        """The last checkpoint."""
        return changed(self._last, counts=_positive(self._counts))

    def keep(self) -> None:
        self._kept, self._before, self._kept_overlays = self._last, {}, self._overlays

    @property
    def has_kept(self) -> bool:
        return self._kept is not None

    @property
    def kept(self) -> KeptCheckpoint | None:
        if self._kept is None:
            return None
        counts = _positive({**self._counts, **self._before})
        return KeptCheckpoint(changed(self._kept, counts=counts), self._kept_overlays)

    def over(self, steps: Iterable[Step]) -> CheckpointReader:
        """This reader, after the next steps."""
        for step in steps:
            self.add(step)
        return self

    def add(self, step: Step) -> bool:
        """As in JournalReader. A retry closes a super-step whose visits have all ended."""
        if step.kind == "retried" and step.seq is None:
            for node in several(step.next):
                self._count(node, 0)
        if step.node is not None and is_of_node(step):
            self._ended.add(step.node)
        if step.overlays and step.step == 0:
            self._overlays = step.overlays
        elif step.overlays:
            self._given |= {seq: ((0, step.node or "", "", 0), text) for seq, text in step.overlays.items()}
        if not step.is_checkpoint or step.step == 0:
            return False
        for node in self._ended:
            self._count(node, self._counts[node] + 1)
        self._ended = set()
        closing, last = step.closing or Closing(several(step.next)), self._last
        lists = {seq: targets for seq, targets in closing.lists.items() if seq in self._given}
        self._overlays = {seq: self._given[seq][1] for seq in lists}
        self._last = Checkpoint(
            step.step,
            closing.nodes,
            {},
            last.steps + 1,
            last.arrived if closing.arrived is None else closing.arrived,
            last.deferred if closing.deferred is None else closing.deferred,
            closing.commands,
            tuple(CommandList(int(seq), self._given[seq][0], targets) for seq, targets in lists.items())
            if len(lists) == len(closing.lists)
            else (),
        )
        self._given = {}
        return True

    def _count(self, node: str, count: int) -> None:
        self._before.setdefault(node, self._counts[node])
        self._counts[node] = count


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {node: count for node, count in counts.items() if count}


def is_visit(step: Step) -> bool:
    """Whether a step is that of a visit of a node that has ended well."""
    return step.ok and step.step > 0 and is_of_node(step)


def is_of_node(step: Step) -> bool:
    """Whether a step is that of a visit of a node that has ended, well or not."""
    return step.seq is not None and step.node is not None and step.role == "node" and not (step.item or step.part)


def several(targets: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The targets of a step (`next`)."""
    return (targets,) if isinstance(targets, str) else targets or ()
