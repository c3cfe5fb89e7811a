"""The progress of a run's maps, as bars at the bottom of the terminal (status_area.py draws them)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sleipnir.runs.plain_text import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

    from sleipnir.runs.views import RunEvent


class MapBars:
    """One bar for each active map. rich is imported for the first."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._bars: dict[int, TaskID] = {}

    def __len__(self) -> int:
        return len(self._bars)

    def see(self, event: RunEvent) -> bool:
        """Process an event. Returns whether it changes a bar."""
        if event.type == "map_progress":
            seq, done, total = event.data["seq"], event.data["done"], event.data["total"]
            if done == total:
                return self._remove(seq)
            self._update(seq, event.data["node"], done, total, event.data.get("failed") or 0)
            return True
        if event.type == "visit_closed":
            return self._remove(event.data["seq"])
        return event.type == "run_ended" and any([self._remove(seq) for seq in list(self._bars)])

    def drawn(self) -> RenderableType:
        """There must be a bar."""
        assert self._progress is not None
        return self._progress.get_renderable()

    def _update(self, seq: int, node: str, done: int, total: int, failed: int) -> None:
        if self._progress is None:
            self._progress = _progress()
        if seq not in self._bars:
            self._bars[seq] = self._progress.add_task(one_line(node, 40), total=total, failed="")
        self._progress.update(self._bars[seq], completed=done, failed=f"{failed:,} failed" if failed else "")

    def _remove(self, seq: int) -> bool:
        bar = self._bars.pop(seq, None)
        if bar is None or self._progress is None:
            return False
        self._progress.remove_task(bar)
        return True


def _progress() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("map {task.description}", markup=False)
    failed = TextColumn("{task.fields[failed]}", style="red", markup=False)
    return Progress(name, BarColumn(), MofNCompleteColumn(), failed, TimeRemainingColumn(), auto_refresh=False)
