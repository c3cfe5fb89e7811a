"""The timeline of a run: a row for each node or item of a map, a bar for each visit. Runs that a visit has started are
rows below its own. Pure.

Times are places on an axis in percent. Where nothing was at work for more than a fifth of the time, the axis is folded,
and says so. Of too many rows, those that are over without a failure are groups, which can be opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sleipnir.runs.execution_trace import TraceStep
from sleipnir.runs.views import RunInfo
from sleipnir_console.pages.formats import rounded
from sleipnir_console.pages.run_states import Colour, state_of

MOST_ROWS: Final = 200
OPENED: Final = 100
"""The rows of a group that are shown at once when it is opened."""
FOLDED_SHARE: Final = 0.2
FOLDED_WIDTH: Final = 8.0
LEAST_WIDTH: Final = 0.4
TICKS: Final = 5
_CHILD_FILLS: Final[Mapping[Colour, str]] = {
    "completed": "f-ok", "partial": "f-ok", "failed": "f-bad", "running": "f-run", "person": "wait", "waiting": "q",
    "paused": "f-pau", "cancelled": "f-off", "submitted": "q",
}  # fmt: skip
_FILLS: Final = {"completed": "f-ok", "failed": "f-bad", "running": "f-run", "waiting": "q", "person": "wait"}


@dataclass(frozen=True)
class Bar:
    """A piece of a row: its class in the stylesheet, and where it begins and how wide it is, in percent."""

    css: str
    left: float
    width: float


@dataclass
class TimelineRow:
    """A node, an item of a map, or a run that a visit has started (`run`). `seq` is its last visit, `took_ms` the time
    of all of them, `depth` how far it is below another row. A group of rows has their number, `rows`, and where they
    begin, `first`."""

    label: str
    colour: Colour
    seq: int
    depth: int = 0
    visits: int = 0
    took_ms: int = 0
    bars: list[Bar] = field(default_factory=list)
    run: str | None = None
    rows: int = 1
    first: int = 0


@dataclass(frozen=True)
class Tick:
    """A time on the axis. `anchor` is that of its text."""

    left: float
    text: str
    anchor: str


@dataclass(frozen=True)
class Timeline:
    """All rows, in the order of their first visits; `left_out` ones are not among them, nor in a group."""

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
        found += [self._fold_tick(begin, end) for begin, end in self.folds]
        return sorted(found, key=lambda tick: tick.left)

    def _fold_tick(self, begin_ms: int, end_ms: int) -> Tick:
        place, text = self.place((begin_ms + end_ms) // 2), f"{rounded(end_ms - begin_ms)}, folded"
        return Tick(place, text, "middle") if place > 10 else Tick(self.place(begin_ms) + 3, text, "start")


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


def timeline_of(
    steps: Sequence[TraceStep],
    people: frozenset[int],
    selected: int | None,
    now_ms: int,
    *,
    children: Mapping[str, RunInfo] | None = None,
    opened: int | None = None,
) -> Timeline:
    """The timeline of the visits of one run. `people` are the numbers of visits that wait for a person, `children` the
    runs that visits have started, as far as they are known, by id. `opened` is the row from which on OPENED ones are in
    no group."""
    if not steps:
        return Timeline((), (), 0)
    begin_ms = min(step.opened_ms for step in steps)
    end_ms = max(step.ended_ms or now_ms for step in steps)
    axis = Axis(begin_ms, end_ms, [(step.started_ms, step.ended_ms or now_ms) for step in steps if step.started_ms])
    rows: dict[tuple[str, str | None, int | None], TimelineRow] = {}
    below: dict[int, list[TimelineRow]] = {}
    for step in sorted(steps, key=lambda step: (step.opened_ms, step.seq)):
        key = (step.node, step.parent, step.item)
        colour = _colour(step, people)
        row = rows.get(key)
        if row is None:
            label = step.node if step.item is None else f"{step.node} {step.item}"
            row = rows[key] = TimelineRow(label, colour, step.seq, 0 if step.item is None else 1)
        row.colour, row.seq, row.visits = colour, step.seq, row.visits + 1
        row.took_ms += _took_ms(step, now_ms)
        row.bars += _bars(step, colour, axis, now_ms)
        for run in step.runs:
            if children and (child := children.get(run)) is not None:
                below.setdefault(id(row), []).append(_child_row(child, step.seq, row.depth + 1, axis, now_ms))
    for row in rows.values():
        row.bars = list(_merged(row.bars))
    nested = [each for row in rows.values() for each in (row, *below.get(id(row), ()))]
    shown, left_out = _shown(nested, selected, opened)
    return Timeline(shown, axis.ticks(), left_out)


def _child_row(child: RunInfo, seq: int, depth: int, axis: Axis, now_ms: int) -> TimelineRow:
    state = state_of(child, now_ms)
    end_ms = child.ended_ms or now_ms
    bar = _bar(_CHILD_FILLS[state.colour], child.started_ms or child.created_ms, end_ms, axis)
    return TimelineRow(child.agent, state.colour, seq, depth, 1, end_ms - child.created_ms, [bar], child.id)


def _shown(rows: list[TimelineRow], selected: int | None, opened: int | None) -> tuple[list[TimelineRow], int]:
    """Of too many rows those that are live, failed, selected or opened, and groups of the others."""
    if len(rows) <= MOST_ROWS:
        return rows, 0
    shown: list[TimelineRow] = []
    group: list[TimelineRow] = []
    kept, begin = 0, 0
    for at, row in enumerate(rows):
        is_opened = opened is not None and opened <= at < opened + OPENED
        is_own = is_opened or row.seq == selected or (row.colour != "completed" and kept < MOST_ROWS)
        if is_own:
            shown += _grouped(group, begin)
            group, kept = [], kept + (row.colour != "completed")
            shown.append(row)
        else:
            begin = begin if group else at
            group.append(row)
    shown += _grouped(group, begin)
    return shown[: 2 * MOST_ROWS], sum(row.rows for row in shown[2 * MOST_ROWS :])


def _grouped(rows: Sequence[TimelineRow], first: int) -> Iterator[TimelineRow]:
    """Few rows as they are, more of them as one row for each node."""
    begin = 0
    for at in range(1, len(rows) + 1):
        if at < len(rows) and _node_of(rows[at]) == _node_of(rows[begin]):
            continue
        same = rows[begin:at]
        if len(same) <= 3:
            yield from same
        else:
            yield _group(same, first + begin)
        begin = at


def _node_of(row: TimelineRow) -> tuple[int, str]:
    """What rows of one group have in common: nodes are in one group, items in one for each node."""
    if row.run is not None:
        return row.depth, row.label
    return row.depth, row.label.rpartition(" ")[0] if row.depth else ""


def _group(rows: Sequence[TimelineRow], first: int) -> TimelineRow:
    worst: Colour = next((row.colour for row in rows if row.colour != "completed"), "completed")
    label = rows[0].label
    if rows[0].run is None:
        label += f" to {rows[-1].label.rpartition(' ')[2] if rows[0].depth else rows[-1].label}"
    bars = sorted((bar for row in rows for bar in row.bars), key=lambda bar: (bar.css, bar.left))
    return TimelineRow(
        label, worst, rows[-1].seq, rows[0].depth, sum(row.visits for row in rows), sum(row.took_ms for row in rows),
        list(_merged(bars)), rows=len(rows), first=first,
    )  # fmt: skip


def _merged(bars: Iterable[Bar]) -> Iterator[Bar]:
    """Bars of one kind that touch are one: a loop of thousands of visits is a few bars."""
    last: dict[str, Bar] = {}
    for bar in bars:
        before = last.get(bar.css)
        if before is not None and bar.left <= before.left + before.width + LEAST_WIDTH / 4:
            end = max(before.left + before.width, bar.left + bar.width)
            last[bar.css] = Bar(bar.css, before.left, round(end - before.left, 2))
            continue
        if before is not None:
            yield before
        last[bar.css] = bar
    yield from last.values()


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
