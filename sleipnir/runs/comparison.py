"""What distinguishes two runs, or the rows of two batches with the same key: values side by side, and their summary.

A comparison is between `a` and `b`. What people decide about counts as a change: status, output, error, state and path.
Tokens, cost and time differ between any two runs, so they are shown and added up, but change nothing by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from sleipnir.messages import FINAL
from sleipnir.runs.state_differences import StateDifference, same

MOST_PATH: Final = 10_000
"""The visits that are compared of a path; of a longer one only their number is."""

Aspect: TypeAlias = Literal["status", "output", "error", "state", "path"]
ASPECTS: Final[tuple[Aspect, ...]] = ("status", "output", "error", "state", "path")

Outcome: TypeAlias = Literal["same", "changed", "only_a", "only_b"]
Verdict: TypeAlias = Literal["better", "worse", "equal", "undecided"]
VERDICTS: Final[tuple[Verdict, ...]] = ("better", "worse", "equal", "undecided")


@dataclass(frozen=True)
class ComparedRun:
    """One side of a comparison: a run, or a row of a batch.

    `status` is that of the run; of a row without a run `waiting`, `failed` (its `error` says why it did not start),
    `cancelled`, or `expired` if the run is gone; `unreadable` if its records cannot be read. `cost_usd` is None if the
    price of a call is unknown, `took_ms` if it has not ended. `path` are the nodes of its ended visits in the order in
    which they were opened, the first MOST_PATH; `visits` is how many there are. That of a fork begins with the path of
    its source. `state` is JSON text by key, `overrides` are those of
    its nodes, in words.
    """

    id: str
    status: str
    output: str | None = None
    error: str | None = None
    tokens: int = 0
    cost_usd: float | None = 0.0
    took_ms: int | None = None
    path: tuple[str, ...] = ()
    visits: int = 0
    state: Mapping[str, str] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.status in FINAL or self.status == "expired"

    def to_data(self) -> dict[str, Any]:
        """What an expression of a judge sees, without the state."""
        return {
            "status": self.status,
            "output": self.output or "",
            "error": self.error or "",
            "tokens": self.tokens,
            "cost": self.cost_usd,
            "seconds": None if self.took_ms is None else self.took_ms / 1000,
            "path": list(self.path),
        }

    def values(self) -> dict[str, Any]:
        """Its state."""
        return {name: _value(text) for name, text in self.state.items()}


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side. `key` is that of their row; None: they were compared as runs. One of `a` and `b` is None
    if only the other batch has the row. `changed` names what differs, `state` has the keys of the state that do.
    `verdict` is that of a judge about `b`; `why` is the reason of one that is undecided."""

    key: str | None
    a: ComparedRun | None
    b: ComparedRun | None
    changed: tuple[Aspect, ...] = ()
    state: StateDifference = field(default_factory=StateDifference)
    verdict: Verdict | None = None
    why: str | None = None

    @property
    def outcome(self) -> Outcome:
        if self.a is None:
            return "only_b"
        if self.b is None:
            return "only_a"
        return "changed" if self.changed else "same"

    def judged(self, verdict: Verdict, why: str | None = None) -> Comparison:
        return replace(self, verdict=verdict, why=why)


@dataclass(frozen=True)
class ComparisonPage:
    """A page of the rows of two batches: those of `a` from a row on, then those that only `b` has. `after` is where the
    next page starts; None: there is none. A page may have fewer rows than asked for, and a next page."""

    comparisons: tuple[Comparison, ...]
    after: int | None


def compared(a: ComparedRun | None, b: ComparedRun | None, key: str | None = None) -> Comparison:
    """The comparison of two sides, of which one may be missing."""
    if a is None or b is None:
        return Comparison(key, a, b)
    difference = _difference(a.state, b.state)
    differs: dict[Aspect, bool] = {
        "status": a.status != b.status,
        "output": a.output != b.output,
        "error": a.error != b.error,
        "state": bool(difference.changed or difference.added or difference.removed),
        "path": (a.path, a.visits) != (b.path, b.visits),
    }
    return Comparison(key, a, b, tuple(aspect for aspect in ASPECTS if differs[aspect]), difference)


def _difference(a: Mapping[str, str], b: Mapping[str, str]) -> StateDifference:
    """What distinguishes two states. Values with the same text are not parsed."""
    difference = StateDifference()
    for name in sorted(a.keys() | b.keys()):
        if name not in b:
            difference.removed[name] = _value(a[name])
        elif name not in a:
            difference.added[name] = _value(b[name])
        elif a[name] != b[name]:
            values = (_value(a[name]), _value(b[name]))
            if not same(*values):
                difference.changed[name] = values
    return difference


def _value(text: str) -> Any:
    """The value of a stored text; a damaged one is shown as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@dataclass(frozen=True)
class SideTotals:
    """What the rows of one side add up to. `cost_usd` is None if the price of a call is unknown."""

    rows: int = 0
    completed: int = 0
    failed: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0
    took_ms: int = 0

    def with_run(self, run: ComparedRun) -> SideTotals:
        cost = None if self.cost_usd is None or run.cost_usd is None else self.cost_usd + run.cost_usd
        return SideTotals(
            self.rows + 1,
            self.completed + (run.status == "completed"),
            self.failed + (run.status == "failed"),
            self.tokens + run.tokens,
            cost,
            self.took_ms + (run.took_ms or 0),
        )


@dataclass(frozen=True)
class ComparisonSummary:
    """How many rows are the same, have changed, or are missing on one side; `unfinished` ones have a side that is not
    over. `differing` counts the changed rows by what differs in them. `verdicts` are those of the judge, if there is
    one; `undecided_why` is the reason of the first that is undecided."""

    rows: int
    same: int
    changed: int
    only_a: int
    only_b: int
    unfinished: int
    differing: Mapping[Aspect, int]
    verdicts: Mapping[Verdict, int] | None
    undecided_why: str | None
    a: SideTotals
    b: SideTotals

    @property
    def has_changed(self) -> bool:
        return self.same < self.rows

    @property
    def is_worse(self) -> bool:
        """Whether the judge found a row worse, or could not decide about one."""
        return self.verdicts is not None and (self.verdicts["worse"] > 0 or self.verdicts["undecided"] > 0)


class ComparisonTally:
    """Counts comparisons as they come."""

    def __init__(self) -> None:
        self._outcomes: dict[Outcome, int] = dict.fromkeys(("same", "changed", "only_a", "only_b"), 0)
        self._differing: dict[Aspect, int] = dict.fromkeys(ASPECTS, 0)
        self._verdicts: dict[Verdict, int] = dict.fromkeys(VERDICTS, 0)
        self._unfinished = 0
        self._why: str | None = None
        self._a, self._b = SideTotals(), SideTotals()

    def add(self, comparison: Comparison) -> None:
        self._outcomes[comparison.outcome] += 1
        for aspect in comparison.changed:
            self._differing[aspect] += 1
        if comparison.verdict is not None:
            self._verdicts[comparison.verdict] += 1
            self._why = self._why or comparison.why
        self._unfinished += any(side is not None and not side.is_over for side in (comparison.a, comparison.b))
        self._a = self._a if comparison.a is None else self._a.with_run(comparison.a)
        self._b = self._b if comparison.b is None else self._b.with_run(comparison.b)

    @property
    def rows(self) -> int:
        return sum(self._outcomes.values())

    def summary(self) -> ComparisonSummary:
        return ComparisonSummary(
            rows=self.rows,
            **self._outcomes,
            unfinished=self._unfinished,
            differing=dict(self._differing),
            verdicts=dict(self._verdicts) if any(self._verdicts.values()) else None,
            undecided_why=self._why,
            a=self._a,
            b=self._b,
        )


def summary_of(comparisons: Iterable[Comparison]) -> ComparisonSummary:
    """The summary of all these, which are not held."""
    tally = ComparisonTally()
    for comparison in comparisons:
        tally.add(comparison)
    return tally.summary()
