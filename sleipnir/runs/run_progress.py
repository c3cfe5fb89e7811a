"""The progress of a run, for its picture: the status of each node, and the edges that it took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sleipnir.graph.draw import Mark, RunProgress, State
from sleipnir.runs.plain_text import duration
from sleipnir.runs.reasons import failed_in_words, stopped_in_words

if TYPE_CHECKING:
    from sleipnir.runs.views import RunInfo, StepInfo, VisitInfo, VisitState

_FIRST: Final[tuple[State, ...]] = ("running", "waiting", "queued")
"""The label of a node with several live visits: the first of these that applies to one of them."""


_AT_WORK: Final[tuple[VisitState, ...]] = ("started", "queued", "ready")
"""The status of a loop with several parts: the first of these that applies to one of them."""


def progress_of(info: RunInfo, steps: Sequence[StepInfo], now_ms: int, past: Sequence[StepInfo] = ()) -> RunProgress:
    """`now_ms` is Redis' clock. Live visits of an ended run are omitted, because they will not continue. So are ended
    visits that only wait for others of their super-step. `past` are the steps that a fork goes on from: they are shown
    at nodes that it has not visited itself."""
    over = {(step.seq, step.attempt) for step in steps}
    live_now = () if info.is_final else info.visits
    now = [visit for visit in live_now if visit.state != "ended" and (visit.seq, visit.attempt) not in over]
    ended: dict[str, list[StepInfo]] = defaultdict(list)
    live: dict[str, list[VisitInfo]] = defaultdict(list)
    before: dict[str, list[StepInfo]] = defaultdict(list)
    for visited, some in ((ended, steps), (before, past)):
        for step in some:
            if step.node is not None and step.role == "node":
                visited[step.node].append(step)
    loops = [_as_loop(visit, now) for visit in now if visit.part is None]
    for visit in loops:
        live[visit.node].append(visit)
    marks = {node: _mark(ended[node], live[node]) for node in [*ended, *(node for node in live if node not in ended)]}
    marks |= {
        node: Mark(_end_of(visits), f"{_ended(visits)} · before the fork")
        for node, visits in before.items()
        if node not in marks
    }
    return RunProgress(_caption(info, now_ms), marks, frozenset(_ways([*past, *steps])))


def _as_loop(visit: VisitInfo, visits: Sequence[VisitInfo]) -> VisitInfo:
    """The turns and calls of a loop are not visits of its node; the node is active if one of them is."""
    states = {part.state for part in visits if part.part is not None and part.part.loop == visit.seq}
    if visit.reason.code != "turns" or not states:
        return visit
    state = next((state for state in _AT_WORK if state in states), visit.state)
    return replace(visit, state=state)


def _mark(ended: Sequence[StepInfo], live: Sequence[VisitInfo]) -> Mark:
    """A live visit takes precedence over ended ones; of these, the last."""
    states = [_state(visit) for visit in live]
    for state in _FIRST:
        if state in states:
            after = f", {_ended(ended)}" if ended else ""
            return Mark(state, f"{state}{_times(states.count(state))}{_progress(live)}{after}", ended=bool(ended))
    return Mark(_end_of(ended), _ended(ended))


def _end_of(steps: Sequence[StepInfo]) -> State:
    return "done" if steps[-1].ok else "failed"


def _progress(live: Sequence[VisitInfo]) -> str:
    """` 237/500`: the ended and all items of the maps among the visits; for one loop, its turn."""
    if len(live) == 1 and live[0].reason.code == "turns":
        return f", turn {(live[0].reason.turn or 0) + 1}"
    values = [visit.progress for visit in live if visit.progress is not None]
    return f" {sum(done for done, _ in values):,}/{sum(total for _, total in values):,}" if values else ""


def _state(visit: VisitInfo) -> State:
    """A map that waits for its items is running."""
    if visit.state == "started" or (visit.kind == "map" and visit.state != "ready"):
        return "running"
    return "waiting" if visit.state == "waiting" else "queued"


def _ended(steps: Sequence[StepInfo]) -> str:
    """`done ×3 · 1.20s each`."""
    failures = sum(not step.ok for step in steps)
    counts = (("done", len(steps) - failures), ("failed", failures))
    statuses = ", ".join(f"{word}{_times(count)}" for word, count in counts if count)
    mean_ms = sum(step.took_ms for step in steps) // len(steps)
    return f"{statuses} · {duration(mean_ms)}" + (" each" if len(steps) > 1 else "")


def _times(count: int) -> str:
    return f" ×{count:,}" if count > 1 else ""


def _ways(steps: Sequence[StepInfo]) -> Iterator[tuple[str, str]]:
    for step in steps:
        if step.node is not None:
            for target in step.targets:
                yield step.node, target


def _caption(info: RunInfo, now_ms: int) -> str:
    took = f" · {duration(max(0, (info.ended_ms or now_ms) - info.started_ms))}" if info.started_ms else ""
    stopped = f", forked from {info.forked_from} after step {info.forked_at}" if info.forked_from else ""
    stopped += f", {stopped_in_words(info)}" if info.stopped_by else ""
    stopped += "".join(f", stopped {point.place}" for point in info.breakpoints)
    stopped += f", {failed_in_words(info, with_errors=False)}" if info.failed_visits.count else ""
    return f"run {info.id} · {info.status}{stopped}{took}"
