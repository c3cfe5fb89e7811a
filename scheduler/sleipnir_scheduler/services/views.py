"""The views of runs that a scheduler caches between rounds, bounded by their size, not by their number.

A missing view is read from Redis, so dropping one costs a round trip. The last used ones are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from sleipnir.runs.run import RunView
from sleipnir.runs.visits import Commands

MOST_BYTES = 64 * 2**20
VIEW_BYTES = 2_000  # of a run itself: measured with its spec, counts and timings
VISIT_BYTES = 1_000
COMMAND_BYTES = 8  # a reference; the names are shared


class RunViews(Mapping[str, RunView]):
    """Views by run. `most_bytes` bounds the size of views that are not needed now."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._views: OrderedDict[str, RunView] = OrderedDict()
        self._bytes_of: dict[str, int] = {}
        self.bytes = 0
        """The estimated size of all views."""

    def __getitem__(self, run_id: str) -> RunView:
        return self._views[run_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __contains__(self, run_id: object) -> bool:
        return run_id in self._views

    def put(self, view: RunView) -> None:
        """Store the new view of a run. It counts as the last used one."""
        weight = bytes_of(view)
        self.bytes += weight - self._bytes_of.get(view.id, 0)
        self._bytes_of[view.id] = weight
        self._views[view.id] = view
        self._views.move_to_end(view.id)

    def use(self, run_ids: Iterable[str]) -> None:
        """Mark views as used now: they are dropped last."""
        for run_id in run_ids:
            self._views.move_to_end(run_id)

    def drop(self, run_id: str) -> None:
        """Drop a view, if it is cached."""
        if self._views.pop(run_id, None) is not None:
            self.bytes -= self._bytes_of.pop(run_id)

    def clear(self) -> None:
        self._views.clear()
        self._bytes_of.clear()
        self.bytes = 0

    def shrink(self, needed: int) -> None:
        """Drop the least recently used views until the rest is small enough; the last `needed` stay."""
        while self.bytes > self._most_bytes and len(self._views) > needed:
            self.drop(next(iter(self._views)))


def bytes_of(view: RunView) -> int:
    """The estimated size of a view."""
    frontier = view.frontier
    bodies = (frontier[seq].body for seq in getattr(frontier, "commands", ()))
    commands = sum(len(body.targets) for body in bodies if isinstance(body, Commands))
    return VIEW_BYTES + VISIT_BYTES * len(frontier) + COMMAND_BYTES * commands
