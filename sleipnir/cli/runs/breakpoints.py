"""Runs that stand at a breakpoint, while they are followed: when that is so, and which command goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol, TypeAlias

from sleipnir.cli.terminal import terminal

if TYPE_CHECKING:
    from sleipnir.cli.options import GlobalOptions
    from sleipnir.runs.views import RunEvent, RunInfo


OnStop: TypeAlias = "Callable[[Collection[RunInfo]], None]"


class AtBreakpoint(Exception):
    """The run, or one that it waits for, stands at a breakpoint, and nothing else is under way."""

    def __init__(self, stopped: Collection[RunInfo]) -> None:
        super().__init__("at a breakpoint")
        self.stopped = stopped


class ActiveRun(Protocol):
    """A run of a deployment, or one in this process."""

    def active(self) -> list[RunInfo]:
        """The run and the child runs that it waits for."""


class StopWatch:
    """Sees the events of a run, and calls `on_stop` when it stands still at a breakpoint that these have reached."""

    def __init__(self, run: ActiveRun, on_stop: OnStop) -> None:
        self._run, self._on_stop = run, on_stop
        self._stopped_ms: int | None = None

    def see(self, event: RunEvent) -> None:
        if event.type == "run_stopped":
            self._stopped_ms = event.data["at_ms"]
        if self._stopped_ms is None:
            return
        active = self._run.active()
        stopped = [info for info in active if self._is_at(info)]
        if not stopped:
            self._stopped_ms = None  # that was in the past
        elif not any(map(_is_moving, active)):
            self._stopped_ms = None
            self._on_stop(stopped)

    def _is_at(self, info: RunInfo) -> bool:
        """Whether it is at a breakpoint that was seen; a later one has events of its own."""
        return any(hold.breakpoint is not None and hold.at_ms <= (self._stopped_ms or 0) for hold in info.holds)


def _is_moving(info: RunInfo) -> bool:
    """Whether work of it is under way."""
    return info.status in ("submitted", "running") or any(
        visit.state in ("started", "delivered") for visit in info.visits
    )


def ignore(stopped: Collection[RunInfo]) -> None:
    """The narration has said it."""


def leave(stopped: Collection[RunInfo]) -> None:
    """Raises AtBreakpoint."""
    raise AtBreakpoint(stopped)


def how_to_resume(info: RunInfo, options: GlobalOptions) -> str:
    """Where a run has stopped, and the command that goes on."""
    places = [f"run {info.id} has stopped at a breakpoint {point.in_words}" for point in info.breakpoints]
    return "\n".join([*places, f"  {options.command('resume', info.id)}"])


def say(stopped: Collection[RunInfo], options: GlobalOptions) -> None:
    """On stderr, for each run."""
    for info in stopped:
        terminal.note(how_to_resume(info, options))
