"""The clocks of a run while one event is planned: when it began, how long it was held, who holds it, its timers.

Bookkeeping alone: holds.py decides who holds a run, and what follows from that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sleipnir.runs.budgets import Budget
from sleipnir.runs.events import RUN_DEADLINE
from sleipnir.runs.run import Hold


@dataclass
class Clock:
    """`idle_ms` is how long the holds lasted that have ended, `budget` what the run may use by now (None: as much as it
    likes). While the answer to a question about its budget is open, the budget holds the run too. `is_started`: the
    run's time begins with this event."""

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
        """The run's time begins now. Where it is held, what was before does not count."""
        self.is_started, self.started_ms = True, self.now_ms
        self.idle_ms = 0 if self.held_since_ms is None else self.held_since_ms - self.now_ms

    def hold(self, holds: tuple[Hold, ...]) -> None:
        """From here on these hold the run, besides its budget."""
        self.holds = holds
        self._count_holds()

    def allow(self, budget: Budget) -> None:
        """From here on the run has this budget, which may hold it."""
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
    def held_since_ms(self) -> int | None:
        """Since when the run is held, as far as `idle_ms` does not count that yet. None: it is not."""
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
        """This event may have armed it, or an earlier one."""
        self.timers.pop(timer, None)
        self.untimers[timer] = None
