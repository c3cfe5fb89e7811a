"""An execution trace as lines that draw a tree, for people.

Rules. Nothing is held whole: of each run the journal is read as far as it is shown, and a line is made when it is
asked for. Items of a map are one line below it, and so are the runs that they started. Every text that a user or a
model wrote is on one line, without control characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Final

from sleipnir.runs.execution_trace import RunTraceReader, TracedRun, TraceSource, TraceStep, started, traced
from sleipnir.runs.plain_text import duration, one_line

if TYPE_CHECKING:
    from sleipnir.messages import Usage

MOST_NAMES: Final = 5
MOST_NAME: Final = 60
MOST_ERROR: Final = 200


@dataclass(frozen=True)
class TraceLine:
    """A line of the tree, with the lines below it, which are made when they are drawn."""

    text: str
    below: Iterator[TraceLine] = field(default_factory=lambda: iter(()))


@dataclass
class _Items:
    """The items of a map so far. `runs` are those of its runs that are drawn, of `started` in all."""

    count: int = 0
    failed: int = 0
    slowest_ms: int = 0
    error: str | None = None
    runs: list[tuple[str, TraceStep]] = field(default_factory=list)
    started: int = 0

    def add(self, step: TraceStep, most: int) -> None:
        self.count += 1
        self.failed += step.status == "failed"
        self.slowest_ms = max(self.slowest_ms, step.took_ms)
        self.error = self.error or step.error
        self.started += len(step.runs)
        self.runs += [(run, step) for run in step.runs[: max(0, most - len(self.runs))]]

    @property
    def text(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        error = f"  {_error(self.error)}" if self.error else ""
        return f"visits of items: {self.count:,}{failed}, slowest {duration(self.slowest_ms)}{error}"


def lines_of(source: TraceSource, run_id: str, *, depth: int, limit: int) -> Iterator[str]:
    """The lines of a run, with `depth` levels of runs below it; of each run `limit` steps, and of each step `limit`
    runs. Raises RunNotFound."""
    run = traced(source.info(run_id), source.path(run_id))
    yield _run_text(run)
    yield from _drawn(_below_run(source, run, depth, limit))


def _drawn(lines: Iterator[TraceLine]) -> Iterator[str]:
    """The lines with branches before them; a line is the last one if none follows."""
    line = next(lines, None)
    while line is not None:
        follows = next(lines, None)
        yield f"{'└─' if follows is None else '├─'} {line.text}"
        for below in _drawn(line.below):
            yield f"{'  ' if follows is None else '│ '} {below}"
        line = follows


def _below_run(source: TraceSource, run: TracedRun, depth: int, limit: int) -> Iterator[TraceLine]:
    if run.forked_from is not None:
        where = f"forked from {run.forked_from} after its step {run.forked_at:,}"
        yield TraceLine(f"{where}; what is before: sleipnir trace {run.forked_from}")
    items: dict[str, _Items] = {}
    count = 0
    for step in RunTraceReader(source, run).steps():
        if step.item is not None and not step.is_live:
            items.setdefault(step.parent or "", _Items()).add(step, limit)
            continue
        if count == limit:
            left = f" of {run.journal_steps:,} journal steps" if run.journal_steps > limit else ""
            yield TraceLine(f"and more{left}: sleipnir trace {run.run} --limit {limit * 10}")
            return
        count += 1
        yield TraceLine(_step_text(step), _below_step(source, step, items.pop(step.id, None), depth, limit))
    for left_over in items.values():  # of a map that has failed, or was not reached
        yield TraceLine(left_over.text, _below_runs(source, left_over.runs, left_over.started, depth, limit))


def _below_step(
    source: TraceSource, step: TraceStep, items: _Items | None, depth: int, limit: int
) -> Iterator[TraceLine]:
    runs = [(run, step) for run in step.runs[:limit]]
    below = _below_runs(source, runs, len(step.runs), depth, limit)
    if items is None:
        return below
    return chain([TraceLine(items.text)], _below_runs(source, items.runs, items.started, depth, limit), below)


def _below_runs(
    source: TraceSource, runs: Sequence[tuple[str, TraceStep]], count: int, depth: int, limit: int
) -> Iterator[TraceLine]:
    for run_id, step in runs:
        run = started(source, run_id, step)
        if run.status == "expired":
            yield TraceLine(f"run {run_id}  expired")
        elif depth <= 0:
            yield TraceLine(f"{_run_text(run)}  (sleipnir trace {run_id})")
        else:
            yield TraceLine(_run_text(run), _below_run(source, run, depth - 1, limit))
    if count > len(runs):
        yield TraceLine(f"and {count - len(runs):,} more runs")


def _run_text(run: TracedRun) -> str:
    """`run 4kq0... writer  completed  3.20s  2,300 tokens  $0.0123`."""
    took = [] if run.started_ms is None or run.ended_ms is None else [duration(max(0, run.ended_ms - run.started_ms))]
    error = [_error(run.error)] if run.error and run.status == "failed" else []
    parts = (f"run {run.run} {one_line(run.agent, MOST_NAME)}", run.status, *took, *_used(run.usage), *error)
    return "  ".join(parts)


def _step_text(step: TraceStep) -> str:
    """`ask (3)  llm  1.20s  310 tokens  $0.0010  tools: search, fetch ×2  after 1, 2`."""
    parts = [f"{one_line(step.node, MOST_NAME)} ({step.seq})", one_line(step.type, MOST_NAME)]
    if step.status != "completed":
        parts.append(step.status)
    if not step.is_live or step.took_ms:
        parts.append(duration(step.took_ms))
    if step.usage is not None:
        parts += _used(step.usage)
    if step.cached:
        parts.append("cached")
    if step.attempts > 1:
        parts.append(f"attempt {step.attempts}")
    if step.turns > 1:
        parts.append(f"{step.turns:,} turns")
    if step.tools:
        parts.append(f"tools: {_tools(step)}")
    if step.predecessor_count > 1:
        parts.append(f"after {_listed(step)}")
    if step.answer is not None:
        parts.append(f"answer {one_line(step.answer, MOST_NAME)!r}")
    if step.error:
        parts.append(_error(step.error))
    return "  ".join(parts)


def _used(usage: Usage) -> list[str]:
    if not usage.calls:
        return []
    cost = "cost unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    return [f"{usage.input_tokens + usage.output_tokens:,} tokens", cost]


def _tools(step: TraceStep) -> str:
    counts: dict[str, int] = {}
    for tool in step.tools:
        name = one_line(tool.name, MOST_NAME) + ("" if tool.ok else " (failed)")
        counts[name] = counts.get(name, 0) + 1
    names = [name if count == 1 else f"{name} ×{count}" for name, count in counts.items()]
    is_more = len(names) > MOST_NAMES or step.tool_count > len(step.tools)
    return ", ".join(names[:MOST_NAMES]) + (", …" if is_more else "")


def _listed(step: TraceStep) -> str:
    numbers = ", ".join(id_.rpartition("/")[2] for id_ in step.predecessors[:MOST_NAMES])
    more = step.predecessor_count - MOST_NAMES
    return numbers + (f" and {more:,} more" if more > 0 else "")


def _error(error: str | None) -> str:
    return f"error: {one_line(error or '', MOST_ERROR)}"
