"""The clocks of a run while one event is planned: its start, its holds and their durations, its timers.

Bookkeeping only: holds.py decides on holds and their effects.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sleipnir.runs.budgets import Budget
from sleipnir.runs.events import RUN_DEADLINE
from sleipnir.runs.run import Hold


@dataclass
class Clock:
    """`idle_ms` is the duration of ended holds, `budget` the current budget (None: no limit). While a question about
    the budget is open, the budget also holds the run. `is_started`: the run's time begins with this event."""

    run_id: str
    now_ms: int
    started_ms: int
    idle_ms: int
    holds: tuple[Hold, ...]
    budget: Budget | None
    is_held: bool
    is_started: bool = False
    timers: dict[str, int] = field(default_factory=dict)
    untimers: dict[str, None] = field(default_factory=dict)

    def start(self) -> None:
        """The run's time begins now. If the run is held, earlier hold time does not count."""
        self.is_started, self.started_ms = True, self.now_ms
        self.idle_ms = 0 if self.held_since_ms is None else self.held_since_ms - self.now_ms

    def hold(self, holds: tuple[Hold, ...]) -> None:
        """Replace the holds of the run, except that of its budget."""
        self.holds = holds
        self._count_holds()

    def allow(self, budget: Budget) -> None:
        """Set the budget of the run, which may hold it."""
        self.budget = budget
        self._count_holds()

    def _count_holds(self) -> None:
        self.is_held = bool(self.holds) or (self.budget is not None and self.budget.asked is not None)

    @property
    def holder(self) -> str | None:
        """Who holds the run. None: it is not held."""
        if self.holds:
            return self.holds[0].by
        return f"the budget of run {self.run_id}" if self.is_held else None

    @property
    def stop_ms(self) -> int | None:
        """When holds stop the visits that still run, or have done so; None: they let them end."""
        return min((hold.due_ms for hold in self.holds if hold.due_ms is not None), default=None)

    @property
    def pending_ms(self) -> int | None:
        """When the next hold stops what still runs. None: none will."""
        return min((at for hold in self.holds if (at := hold.pending_ms) is not None), default=None)

    @property
    def held_since_ms(self) -> int | None:
        """The start of the hold time that `idle_ms` does not include yet. None: the run is not held."""
        since = [hold.at_ms for hold in self.holds]
        if self.budget is not None and self.budget.asked is not None:
            since.append(self.budget.asked_ms)
        return min(since, default=None)

    def arm(self, timer: str, due_ms: int) -> None:
        self.timers[timer] = due_ms

    def arm_deadline(self, deadline_ms: int) -> None:
        """One millisecond later: the rule is "elapsed > timeout", strictly."""
        self.timers[RUN_DEADLINE] = deadline_ms + 1

    def disarm(self, timer: str) -> None:
        """Remove a timer that this event or an earlier one armed."""
        self.timers.pop(timer, None)
        self.untimers[timer] = None
