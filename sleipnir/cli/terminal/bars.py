"""The progress of a run's maps, and of nodes that emit it, as bars at the bottom of the terminal (status_area.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sleipnir.runs.plain_text import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

    from sleipnir.runs.views import RunEvent


class Bars:
    """One bar for each active map, and for each visit that has emitted its progress. rich is imported for the first."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._bars: dict[int, TaskID] = {}

    def __len__(self) -> int:
        return len(self._bars)

    def see(self, event: RunEvent) -> bool:
        """Process an event. Returns whether it changes a bar."""
        data = event.data
        if event.type == "map_progress":
            done, total, failed = data["done"], data["total"], data.get("failed") or 0
            if done == total:
                return self._remove(data["seq"])
            failures = f"{failed:,} failed" if failed else ""
            self._update(data["seq"], f"map {one_line(data['node'], 40)}", done, total, f"{done}/{total}", failures)
            return True
        if event.type == "custom" and data.get("category") == "progress":
            name, message = one_line(data["node"], 40), one_line(data["message"], 60)
            self._update(data["seq"], name, data["progress"], 100, f"{data['progress']:.0f} %", message)
            return True
        if event.type in _ATTEMPT_ENDS:
            return self._remove(data["seq"])
        return event.type == "run_ended" and any([self._remove(seq) for seq in list(self._bars)])

    def drawn(self) -> RenderableType:
        """There must be a bar."""
        assert self._progress is not None
        return self._progress.get_renderable()

    def _update(self, seq: int, name: str, done: float, total: int, count: str, note: str) -> None:
        if self._progress is None:
            self._progress = _progress()
        if seq not in self._bars:
            self._bars[seq] = self._progress.add_task(name, total=total, count="", note="")
        self._progress.update(self._bars[seq], completed=done, count=count, note=note)

    def _remove(self, seq: int) -> bool:
        bar = self._bars.pop(seq, None)
        if bar is None or self._progress is None:
            return False
        self._progress.remove_task(bar)
        return True


_ATTEMPT_ENDS = frozenset({"visit_closed", "visit_retrying", "visit_handed_back", "worker_lost"})


def _progress() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("{task.description}", markup=False)
    count = TextColumn("{task.fields[count]}", markup=False)
    note = TextColumn("{task.fields[note]}", style="yellow", markup=False)
    return Progress(name, BarColumn(), count, note, TimeRemainingColumn(), auto_refresh=False)
