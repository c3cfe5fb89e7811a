"""How far a run's maps are, as bars at the bottom of the terminal while it is followed.

Rule. Only on a terminal: elsewhere the narration tells of it now and then. rich is imported for the first map.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from sleipnir.cli import terminal

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sleipnir.views import RunEvent


def shows_bars() -> bool:
    """Whether narration goes to a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


class MapBars:
    """One bar for each map under way; none where they cannot be drawn. A context manager: no bar is left behind."""

    def __init__(self) -> None:
        self._can_draw = shows_bars()
        self._drawn: Progress | None = None
        self._bars: dict[int, TaskID] = {}

    def see(self, event: RunEvent) -> None:
        """Draw what an event changes."""
        if not self._can_draw:
            return
        if event.type == "map_progress":
            seq, done, total = event.data["seq"], event.data["done"], event.data["total"]
            if done < total:
                self._draw(seq, event.data["node"], done, total, event.data.get("failed") or 0)
            else:
                self._remove(seq)
        elif event.type == "visit_closed":
            self._remove(event.data["seq"])
        elif event.type == "run_ended":
            self._clear()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Without bars for a while: a person is asked something."""
        if self._drawn is not None:
            self._drawn.stop()
        try:
            yield
        finally:
            if self._drawn is not None:
                self._drawn.start()

    def _draw(self, seq: int, node: str, done: int, total: int, failed: int) -> None:
        if self._drawn is None:
            self._drawn = _bars()
            self._drawn.start()
        if seq not in self._bars:
            self._bars[seq] = self._drawn.add_task(terminal.one_line(node, 40), total=total, failed="")
        self._drawn.update(self._bars[seq], completed=done, failed=f"{failed:,} failed" if failed else "")

    def _remove(self, seq: int) -> None:
        bar = self._bars.pop(seq, None)
        if bar is None or self._drawn is None:
            return
        self._drawn.remove_task(bar)
        if not self._bars:
            self._clear()

    def _clear(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()
        self._drawn = None
        self._bars = {}

    def __enter__(self) -> MapBars:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, color_system="auto" if terminal.wants_colour(sys.stderr) else None)
    name = TextColumn("map {task.description}", markup=False)
    failed = TextColumn("{task.fields[failed]}", style="red", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), failed, TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, refresh_per_second=5)
