"""The display of a batch: in words, in fields, as a bar of its rows by state, and for programs.

Rules. All values come from a BatchInfo, so that all displays agree. While a batch is watched, a terminal has the bar at
its bottom; otherwise there are lines, one every SAY_S seconds and one for each change of its state.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from sleipnir.cli.knowledge.building import counted
from sleipnir.cli.options import GlobalOptions
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import as_json, change_in_words, moment
from sleipnir.cli.terminal.terminal import MARK
from sleipnir.runs.plain_text import duration, one_line, printable
from sleipnir.runs.reasons import tags_in_words

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from sleipnir.batches.records import BatchFork, BatchInfo

SAY_S: Final = 10.0
BAR_WIDTH: Final = 60

STYLES: Final[Mapping[str, str]] = {
    "completed": "green", "failed": "red", "cancelled": "magenta", "active": "cyan", "waiting": "bright_black",
}  # fmt: skip
"""The states of rows, in the order of the bar."""

COLUMNS: Final = ("batch", "agent", "state", "rows", "completed", "failed", "left", "created", "name")


def row(info: BatchInfo) -> tuple[str, ...]:
    """The row of a batch in `batch ls`."""
    counts = (info.total, info.completed, info.failed, info.waiting + info.active)
    return info.id, info.agent, info.state, *(f"{count:,}" for count in counts), moment(info.created_ms), info.name


def to_data(info: BatchInfo) -> dict[str, Any]:
    """The same for programs, with derived values."""
    reckoned = {name: getattr(info, name) for name in ("question", "rate_per_s", "eta_s", "forecast_usd")}
    return {**as_json(info), **reckoned}


def title(info: BatchInfo) -> str:
    return one_line(f"{info.agent} {info.name or info.id}", 50)


def rows_in_words(info: BatchInfo) -> str:
    """`62 of 200 rows are over: 60 completed, 2 failed; 12 active, 126 waiting`."""
    over = [f"{count:,} {state}" for state in ("completed", "failed", "cancelled") if (count := getattr(info, state))]
    left = [f"{count:,} {state}" for state in ("active", "waiting") if (count := getattr(info, state))]
    counts = "; ".join(filter(None, [", ".join(over), ", ".join(left)]))
    failed = f"; {counted(info.failed_visits, 'failed visit')}" if info.failed_visits else ""
    return f"{info.ended:,} of {counted(info.total, 'row')} are over" + (f": {counts}" if counts else "") + failed


def pace_in_words(info: BatchInfo) -> str:
    """`12.3 rows/s, 11.20s left`; empty while nothing is known."""
    if info.rate_per_s is None:
        return ""
    left = "" if info.eta_s is None else f", {duration(round(info.eta_s * 1000))} left"
    return f"{info.rate_per_s:,.3g} rows/s{left}"


def cost_in_words(info: BatchInfo) -> str:
    """`45,000 tokens, $0.12 so far, about $0.30 in all`; empty if no model was called."""
    usage = info.usage
    if not usage.calls:
        return ""
    tokens = counted(usage.input_tokens + usage.output_tokens, "token")
    if usage.cost_usd is None:
        return f"{tokens}, cost unknown"
    if info.is_over or info.forecast_usd is None:
        return f"{tokens}, ${usage.cost_usd:.4f}"
    return f"{tokens}, ${usage.cost_usd:.4f} so far, about ${info.forecast_usd:.4f} in all"


def line(info: BatchInfo) -> str:
    """All of it on one line."""
    parts = (rows_in_words(info), pace_in_words(info), cost_in_words(info))
    return f"{info.state}: {'; '.join(filter(None, parts))}"


def fork_in_words(fork: BatchFork) -> str:
    """`of batch 61x1, before node 'third', with agent ., limit`."""
    where = "" if fork.at is None else f", after step {fork.at}"
    where = where or ("" if fork.before is None else f", before node {fork.before!r}")
    given = [f"agent {fork.agent}"] if fork.agent is not None else []
    given += [f"model {fork.model}"] if fork.model is not None else []
    changed = [*given, *fork.state]
    return f"of batch {fork.batch}{where}" + (f", with {', '.join(changed)}" if changed else "")


def fields(info: BatchInfo, options: GlobalOptions) -> Iterator[tuple[str, str]]:
    """The fields of `batch show`."""
    plan = info.plan
    yield "batch", info.id
    if info.name:
        yield "name", info.name
    yield "agent", info.agent
    yield "state", info.state
    if info.namespace != "default":
        yield "namespace", info.namespace
    if info.tags:
        yield "tags", tags_in_words(info.tags)
    yield "created", moment(info.created_ms)
    if info.ended_ms is not None:
        yield "ended", moment(info.ended_ms)
    if info.started_ms is not None:
        yield "took", duration(max(0, (info.ended_ms or info.now_ms) - info.started_ms))
    yield "rows", rows_in_words(info)
    if pace := pace_in_words(info):
        yield "pace", pace
    if usage := cost_in_words(info):
        yield "usage", usage
    if plan.fork is not None:
        yield "forks", fork_in_words(plan.fork)
    yield "priority", str(plan.priority)
    if plan.parallel is not None:
        yield "parallel", f"{plan.parallel:,} rows at once"
    if plan.canary is not None:
        yield "canary", counted(plan.canary, "row")
    tokens = None if plan.max_tokens is None else counted(plan.max_tokens, "token")
    cost = None if plan.max_cost_usd is None else f"${plan.max_cost_usd:g}"
    if budget := ", ".join(filter(None, (cost, tokens))):
        yield "budget", budget
    for change in info.changes:
        yield change.what, change_in_words(change)
    if what := what_next(info, options):
        yield "next", what


def what_next(info: BatchInfo, options: GlobalOptions) -> str:
    """A suggestion of what to do now; may be empty."""
    resume = options.command("batch", "resume", info.id)
    match info.state:
        case "unreadable":
            return f"{info.unreadable}; it continues when a scheduler can read it"
        case "paused":
            return f"it is paused; {resume}"
        case "canary":
            return f"{info.question}\n{resume}"
        case "over_budget":
            limit = "--max-cost USD" if info.plan.max_cost_usd is not None else "--max-tokens N"
            return f"{info.question}\n{resume} {limit}"
        case "done" | "cancelled" if info.failed:
            return f"{options.command('batch', 'errors', info.id)}   shows why rows failed"
    return ""


def segments(info: BatchInfo, width: int) -> list[tuple[int, str]]:
    """The bar: the number of characters of each state of STYLES. They add up to `width` if there are rows."""
    rows, before, seen = [], 0, 0
    for state in STYLES:
        seen += getattr(info, state)
        until = round(width * seen / info.total) if info.total else 0
        rows.append((until - before, state))
        before = until
    return rows


class WatchView:
    """A context manager; `see` shows the current state of a batch."""

    def __init__(self, options: GlobalOptions) -> None:
        self._options = options
        self._state: str | None = None
        self._said_s = 0.0
        self._live: Live | None = None

    def see(self, info: BatchInfo) -> None:
        """Show a state of the batch: redraw the bar, or print a line after a change and every SAY_S seconds."""
        has_changed, self._state = self._state != info.state, info.state
        if info.is_over:
            return  # the outcome is printed after the bar is removed
        if terminal.can_redraw():
            self._draw(info)
        elif has_changed or time.monotonic() - self._said_s >= SAY_S:
            self._said_s = time.monotonic()
            terminal.narrate_lines([f"{MARK}{line(info)}"])
        if has_changed and (what := what_next(info, self._options)):
            terminal.note(printable(what))

    def _draw(self, info: BatchInfo) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, color_system="auto" if terminal.wants_colour(sys.stderr) else None)
            self._live = Live(drawn(info), console=console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(drawn(info), refresh=True)

    def __enter__(self) -> WatchView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def drawn(info: BatchInfo) -> Group:
    """The display on a terminal while it is watched."""
    from rich.console import Group
    from rich.text import Text

    bar = Text(no_wrap=True)
    for length, state in segments(info, BAR_WIDTH):
        bar.append(("░" if state == "waiting" else "█") * length, STYLES[state])
    counts = Text(no_wrap=True, overflow="ellipsis")
    for state, style in STYLES.items():
        if count := getattr(info, state):
            counts.append(f"{count:,} {state}  ", style)
    share = f"  {info.ended * 100 // info.total}% of {info.total:,}" if info.total else ""
    head = Text(f"{title(info)}  {info.state}", style="bold", no_wrap=True, overflow="ellipsis")
    rest = [text for text in (pace_in_words(info), cost_in_words(info)) if text]
    return Group(head, bar.append(share), counts, *(Text(text, no_wrap=True, overflow="ellipsis") for text in rest))
