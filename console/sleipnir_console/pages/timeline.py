"""The timeline of a run: a row for each node or item of a map, a bar for each visit. Pure.

Times are places on an axis in percent. Where nothing was at work for more than a fifth of the time, the axis is folded,
and says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sleipnir.runs.execution_trace import TraceStep
from sleipnir_console.pages.formats import rounded
from sleipnir_console.pages.run_states import Colour

MOST_ROWS: Final = 200
FOLDED_SHARE: Final = 0.2
FOLDED_WIDTH: Final = 8.0
LEAST_WIDTH: Final = 0.4
TICKS: Final = 5
_FILLS: Final = {"completed": "f-ok", "failed": "f-bad", "running": "f-run", "waiting": "q", "person": "wait"}


@dataclass(frozen=True)
class Bar:
    """A piece of a row: its class in the stylesheet, and where it begins and how wide it is, in percent."""

    css: str
    left: float
    width: float


@dataclass
class TimelineRow:
    """A node, or an item of a map. `seq` is its last visit, `took_ms` the time of all of them."""

    label: str
    colour: Colour
    seq: int
    is_item: bool
    visits: int = 0
    took_ms: int = 0
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True)
class Tick:
    """A time on the axis. `anchor` is that of its text."""

    left: float
    text: str
    anchor: str


@dataclass(frozen=True)
class Timeline:
    """All rows, in the order of their first visits; `left_out` completed ones are not among them."""

    rows: Sequence[TimelineRow]
    ticks: Sequence[Tick]
    left_out: int


class Axis:
    """Places of times, in percent. `busy` are the times in which something was at work."""

    def __init__(self, begin_ms: int, end_ms: int, busy: Iterable[tuple[int, int]]) -> None:
        self.begin_ms, self.end_ms = begin_ms, max(end_ms, begin_ms + 1)
        self.folds = _folds(self.begin_ms, self.end_ms, busy)
        self._left_ms = self.end_ms - self.begin_ms - sum(end - begin for begin, end in self.folds)
        self._scale = (100.0 - FOLDED_WIDTH * len(self.folds)) / max(1, self._left_ms)

    def place(self, at_ms: int) -> float:
        """Where a time is."""
        at_ms = min(max(at_ms, self.begin_ms), self.end_ms)
        place, seen_ms = 0.0, self.begin_ms
        for begin, end in self.folds:
            if at_ms <= begin:
                break
            place += (begin - seen_ms) * self._scale
            place += FOLDED_WIDTH * (min(at_ms, end) - begin) / (end - begin)
            seen_ms = min(at_ms, end)
        return place + max(0, at_ms - seen_ms) * self._scale

    def ticks(self) -> list[Tick]:
        """The beginning, some times between, and the folds."""
        found = [Tick(0.0, "0", "start")]
        for number in range(1, TICKS):
            at_ms = self.begin_ms + self._left_ms * number // TICKS
            place = self.place(at_ms)
            if all(abs(place - self.place((begin + end) // 2)) > 12 for begin, end in self.folds) and place < 92:
                found.append(Tick(place, rounded(at_ms - self.begin_ms), "middle"))
        found += [Tick(self.place((begin + end) // 2), f"{rounded(end - begin)}, folded", "middle")
                  for begin, end in self.folds]  # fmt: skip
        return sorted(found, key=lambda tick: tick.left)


def _folds(begin_ms: int, end_ms: int, busy: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The gaps in which nothing was at work for long."""
    edges, seen_ms = [], begin_ms
    for begin, end in sorted(busy):
        if begin > seen_ms:
            edges.append((seen_ms, begin))
        seen_ms = max(seen_ms, end)
    if end_ms > seen_ms:
        edges.append((seen_ms, end_ms))
    least_ms = max(1_000, FOLDED_SHARE * (end_ms - begin_ms))
    return [(begin, end) for begin, end in edges if end - begin > least_ms][:5]


def timeline_of(steps: Sequence[TraceStep], people: frozenset[int], selected: int | None, now_ms: int) -> Timeline:
    """The timeline of the visits of one run. `people` are the numbers of visits that wait for a person."""
    if not steps:
        return Timeline((), (), 0)
    begin_ms = min(step.opened_ms for step in steps)
    end_ms = max(step.ended_ms or now_ms for step in steps)
    axis = Axis(begin_ms, end_ms, [(step.started_ms, step.ended_ms or now_ms) for step in steps if step.started_ms])
    rows: dict[tuple[str, str | None, int | None], TimelineRow] = {}
    for step in sorted(steps, key=lambda step: (step.opened_ms, step.seq)):
        key = (step.node, step.parent, step.item)
        colour = _colour(step, people)
        row = rows.get(key)
        if row is None:
            label = step.node if step.item is None else f"{step.node} {step.item}"
            row = rows[key] = TimelineRow(label, colour, step.seq, step.item is not None)
        row.colour, row.seq, row.visits = colour, step.seq, row.visits + 1
        row.took_ms += _took_ms(step, now_ms)
        row.bars += _bars(step, colour, axis, now_ms)
    shown, left_out = _shown(list(rows.values()), selected)
    return Timeline(shown, axis.ticks(), left_out)


def _shown(rows: list[TimelineRow], selected: int | None) -> tuple[list[TimelineRow], int]:
    """Of too many rows those that are live, failed or selected, then the first others."""
    if len(rows) <= MOST_ROWS:
        return rows, 0
    ranked = sorted(range(len(rows)), key=lambda at: (rows[at].colour == "completed" and rows[at].seq != selected, at))
    kept = sorted(ranked[:MOST_ROWS])
    return [rows[at] for at in kept], len(rows) - len(kept)


def _colour(step: TraceStep, people: frozenset[int]) -> Colour:
    if step.status == "completed" or step.status == "failed":
        return "completed" if step.status == "completed" else "failed"
    if step.seq in people:
        return "person"
    return "running" if step.status == "started" or step.turns or step.runs else "waiting"


def _took_ms(step: TraceStep, now_ms: int) -> int:
    return (step.ended_ms or now_ms) - (step.started_ms or step.opened_ms)


def _bars(step: TraceStep, colour: Colour, axis: Axis, now_ms: int) -> list[Bar]:
    """The time in a queue, thin, then that at work; what waits for a person has an outline."""
    end_ms = step.ended_ms or now_ms
    if step.started_ms is None:
        asks = step.type in ("approval", "input") or colour == "person"
        css = "wait" if asks else _FILLS[colour]
        return [_bar(css, step.opened_ms, end_ms, axis)]
    return [_bar("q", step.opened_ms, step.started_ms, axis), _bar(_FILLS[colour], step.started_ms, end_ms, axis)]


def _bar(css: str, begin_ms: int, end_ms: int, axis: Axis) -> Bar:
    left = min(axis.place(begin_ms), 100.0 - LEAST_WIDTH)
    return Bar(css, round(left, 2), round(max(LEAST_WIDTH, axis.place(end_ms) - left), 2))
