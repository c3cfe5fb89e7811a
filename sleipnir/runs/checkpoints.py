"""What a run goes on with after a checkpoint, read from its journal: what the fold of the values (journal.py) lacks.

Of a `bsp` graph one super-step is open at a time, so a run goes on at the nodes that the visits of the closed one lead
to. A visit that was alone names them (`next`), otherwise the `closing` does. Commands give their visits values of their
own, which no journal keeps; a closing counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sleipnir.runs.run import Checkpoint
from sleipnir.runs.transitions import Closing, Step


class CheckpointReader:
    """Follows the journal of a run of a `bsp` graph. `last` is the last checkpoint, that of the submission at first."""

    def __init__(self, first: Checkpoint) -> None:
        self.last = first
        self._ended: set[str] = set()
        self._counts = Counter(first.counts)

    def over(self, steps: Iterable[Step]) -> CheckpointReader:
        """This reader, after the next steps."""
        for step in steps:
            self.add(step)
        return self

    def add(self, step: Step) -> bool:
        """Follow the next step. True: `last` is now the checkpoint after it."""
        if step.kind == "retried" and step.seq is None:
            for node in several(step.next):
                self._counts[node] = 0
            return False
        if step.seq is not None and step.node is not None and step.role == "node" and not (step.item or step.part):
            self._ended.add(step.node)
        if not step.is_checkpoint or step.step == 0:
            return False
        self._counts.update(self._ended)
        self._ended = set()
        closing, last = step.closing or Closing(several(step.next)), self.last
        self.last = Checkpoint(
            step.step,
            closing.nodes,
            {node: count for node, count in self._counts.items() if count},
            last.steps + 1,
            last.arrived if closing.arrived is None else closing.arrived,
            last.deferred if closing.deferred is None else closing.deferred,
            closing.commands,
        )
        return True


def several(targets: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The targets of a step (`next`)."""
    return (targets,) if isinstance(targets, str) else targets or ()
