"""`compare`: two runs, or the rows of two batches, side by side.

Rule. Rows are read, counted and written one by one; only those that are printed are held.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_agent, complete_run_or_batch
from sleipnir.cli.knowledge.building import counted, dollars
from sleipnir.cli.options import COUNT_OR_NONE, GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import print_fields, print_table
from sleipnir.cli.terminal.terminal import MARK
from sleipnir.errors import AgentNotFound, BatchNotFound, RunNotFound, UsageError
from sleipnir.runs.failure_text import in_one_line
from sleipnir.runs.plain_text import duration, one_line

if TYPE_CHECKING:
    from rich.progress import Progress

    from sleipnir.batches.records import BatchInfo
    from sleipnir.cli.runs.comparison_files import ComparedNames, ComparisonSink
    from sleipnir.client.client import Batch, Client, Run
    from sleipnir.runs.comparison import ComparedRun, Comparison, ComparisonSummary, SideTotals

SAY_S: Final = 10.0
DRAW_S: Final = 0.1
SHOWN_ROWS: Final = 50
SHOWN_VALUE, SHOWN_OUTPUT, SHOWN_NODES = 60, 40, 30
FEWEST_SHOWN: Final = 12

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("a", metavar="A", shell_complete=complete_run_or_batch)
@click.argument("b", metavar="B", shell_complete=complete_run_or_batch)
@click.option(
    "--judge", metavar="CEL|AGENT", shell_complete=complete_agent,
    help="Whether B is better: an expression over a and b that is true, and is not when they are exchanged; or an "
    "agent that gets both outputs and says a, b or same.",
)  # fmt: skip
@click.option("--json", "as_data", is_flag=True, help="Print one JSON document, with complete values.")
@click.option("--csv", "csv_file", type=_FILE, metavar="FILE", help="Also write a record of CSV for each row.")
@click.option("--html", "html_file", type=_FILE, metavar="FILE", help="Also write a page that needs no other file.")
@click.option(
    "--limit", type=COUNT_OR_NONE, default=SHOWN_ROWS, show_default=True,
    help="Show at most this number of changed rows.",
)  # fmt: skip
@click.option(
    "--exit-code", "with_code", is_flag=True,
    help="Exit with 1 if anything differs; with --judge, if B is worse in a row, or a row is undecided.",
)  # fmt: skip
@pass_options
def compare(
    options: GlobalOptions,
    a: str,
    b: str,
    judge: str | None,
    as_data: bool,
    csv_file: Path | None,
    html_file: Path | None,
    limit: int,
    with_code: bool,
) -> int:
    """Compare two runs, or two batches row by row: status, output, error, state and path; tokens, cost and time.

    A and B are both runs or both batches. Rows belong together if they have the same key; those of a batch of forks
    have the keys of the rows that they were forked from.

    \b
    sleipnir compare 4kq0aa 81zcbb
    sleipnir compare monday tuesday --html days.html
    sleipnir compare monday tuesday --judge 'b.cost < a.cost'
    sleipnir compare monday tuesday --judge 'b.output.contains("total")' --exit-code

    An expression sees status, output, error, tokens, cost, seconds, path and state of each side. A row is undecided if
    it fails, for instance because a cost is unknown. An agent (a name or a folder) is run for each pair of outputs that
    differ, as a row of a batch; the outputs are its prompt, and the state keys a and b.

    Exit codes: 0 compared, 1 see --exit-code, 2 no such runs or batches, or a wrong judge, 130 interrupted.
    """
    from sleipnir.cli.runs.comparison_files import CsvFile, HtmlFile, JsonDocument
    from sleipnir.cli.runs.whole_file import whole_file

    with options.connected(workers=_is_agent(options, judge)) as client, contextlib.ExitStack() as stack:
        pair, rows, total = _opened(client, a, b, judge)
        shown = _ShownRows(0 if as_data else limit)
        sinks: list[ComparisonSink] = [JsonDocument(pair) if as_data else shown]
        if csv_file is not None:
            sinks.append(CsvFile(stack.enter_context(whole_file(csv_file))))
        if html_file is not None:
            page = HtmlFile(stack.enter_context(whole_file(html_file)), pair)
            stack.callback(page.close)
            sinks.append(page)
        summary = _passed_on(rows, total, sinks)
    if not as_data:
        _print(pair, summary, shown)
    differs = summary.is_worse if summary.verdicts is not None else summary.has_changed
    return exit_codes.FAILED if with_code and differs else exit_codes.COMPLETED


def _is_agent(options: GlobalOptions, judge: str | None) -> bool:
    from sleipnir.agents import finding

    with contextlib.suppress(AgentNotFound):
        return judge is not None and bool(finding.find(judge, options.settings()))
    return False


def _opened(client: Client, a: str, b: str, judge: str | None) -> tuple[ComparedNames, Iterator[Comparison], int]:
    """What is compared, its rows, and about how many these are."""
    from sleipnir.cli.runs.comparison_files import ComparedNames

    runs = [_run(client, name) for name in (a, b)]
    if runs[0] is not None and runs[1] is not None:
        ids = (runs[0].id, runs[1].id)
        found = client.compare(*ids, judge=judge, on_judging=_JudgeView().see)
        return ComparedNames("run", *ids, *ids), iter([found]), 1
    batches = [_batch(client, name) if run is None else None for name, run in zip((a, b), runs, strict=True)]
    if batches[0] is None or batches[1] is None:
        run, batch = (a, b) if runs[0] is not None else (b, a)
        raise UsageError(f"{run!r} is a run and {batch!r} is a batch; compare two runs, or two batches")
    rows = client.compare_batches(batches[0], batches[1], judge=judge, on_judging=_JudgeView().see)
    infos = [batch.info() for batch in batches if batch is not None]
    names = [info.name or info.id for info in infos]
    if names[0] == names[1]:
        names = [info.id for info in infos]
    pair = ComparedNames("batch", infos[0].id, infos[1].id, names[0], names[1])
    return pair, rows, max(info.total for info in infos)


def _run(client: Client, name: str) -> Run | None:
    try:
        return client.run(name)
    except RunNotFound as error:
        if "start with" in str(error):
            raise  # several runs do
        return None


def _batch(client: Client, name: str) -> Batch:
    try:
        return client.open_batch(name)
    except BatchNotFound as error:
        if "are called" in str(error):
            raise
        raise BatchNotFound(f"no run and no batch {name!r}; `sleipnir ps` and `sleipnir batch ls` list them") from None


def _passed_on(rows: Iterator[Comparison], total: int, sinks: Sequence[ComparisonSink]) -> ComparisonSummary:
    from sleipnir.runs.comparison import ComparisonTally

    tally = ComparisonTally()
    with _CompareView(total) as view:
        for row in rows:
            tally.add(row)
            for sink in sinks:
                sink.add(row)
            view.see(tally.rows)
    summary = tally.summary()
    for sink in sinks:
        sink.end(summary)
    return summary


class _ShownRows:
    """The first rows that have changed, to be printed below the summary; two runs in any case. Rows that only one batch
    has are only counted: of a batch of forks of some rows these would be all others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows: list[Comparison] = []

    def add(self, row: Comparison) -> None:
        if row.key is None or (row.outcome == "changed" and len(self.rows) < self._most):
            self.rows.append(row)

    def end(self, summary: ComparisonSummary) -> None:
        """It is printed when the files are there."""


class _JudgeView:
    """Reports the progress of a judge that is an agent: its batch, then a line every SAY_S seconds."""

    def __init__(self) -> None:
        self._said_s: float | None = None

    def see(self, info: BatchInfo) -> None:
        if self._said_s is not None and time.monotonic() - self._said_s < SAY_S and not info.is_over:
            return
        self._said_s = time.monotonic()
        cost = "" if not info.is_over or not info.usage.calls else f"; {dollars(info.usage.cost_usd)}"
        judged = f"batch {info.id}: {info.ended:,} of {counted(info.total, 'judgement')} made{cost}"
        terminal.narrate_lines([f"{MARK}{judged}"])


class _CompareView:
    """A context manager: a bar on a terminal, else a line every SAY_S seconds."""

    def __init__(self, total: int) -> None:
        self._total, self._progress = total, None if total < 2 else _bar(total)
        self._said_s, self._drawn_s = time.monotonic(), 0.0

    def see(self, rows: int) -> None:
        now_s = time.monotonic()
        if self._progress is not None and now_s - self._drawn_s >= DRAW_S:
            self._drawn_s = now_s
            self._progress.start()
            [bar] = self._progress.task_ids
            self._progress.update(bar, completed=rows, amount=counted(rows, "row"), refresh=True)
        elif self._progress is None and now_s - self._said_s >= SAY_S:
            self._said_s = now_s
            terminal.narrate_lines([f"{MARK}{rows:,} of {counted(self._total, 'row')} compared"])

    def __enter__(self) -> _CompareView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def _bar(total: int) -> Progress | None:
    if not terminal.can_redraw():
        return None
    from sleipnir.cli.terminal.rows_bar import rows_bar

    return rows_bar("comparing", total)


# The text


def _print(pair: ComparedNames, summary: ComparisonSummary, shown: _ShownRows) -> None:
    if pair.kind == "run":
        _print_runs(shown.rows[0])
        return
    print_fields(_fields(pair, summary))
    if shown.rows:
        click.echo()
        print_table(*_table(shown.rows, with_verdict=summary.verdicts is not None))
    left = summary.changed - len(shown.rows)
    if left > 0:
        terminal.note(f"{counted(left, 'more row')} changed; --limit shows more, --csv and --html all")


def _fields(pair: ComparedNames, summary: ComparisonSummary) -> Iterator[tuple[str, str]]:
    """The summary of two batches."""
    yield "a", f"{pair.name_a}: {_totals_in_words(summary.a)}"
    yield "b", f"{pair.name_b}: {_totals_in_words(summary.b)}"
    counts = [f"{summary.same:,} same", f"{summary.changed:,} changed"]
    counts += [
        f"{count:,} {word}" for count, word in ((summary.only_a, "only in a"), (summary.only_b, "only in b")) if count
    ]
    unfinished = f"; {summary.unfinished:,} not over" if summary.unfinished else ""
    yield "rows", f"{summary.rows:,}: {', '.join(counts)}{unfinished}"
    if differing := [f"{aspect} in {count:,}" for aspect, count in summary.differing.items() if count]:
        yield "changed", ", ".join(differing)
    if summary.verdicts is not None:
        yield "judge", ", ".join(f"{count:,} {verdict}" for verdict, count in summary.verdicts.items() if count)
    if summary.undecided_why:
        yield "undecided", one_line(summary.undecided_why)


def _totals_in_words(totals: SideTotals) -> str:
    parts = [counted(totals.rows, "row"), f"{totals.completed:,} completed"]
    parts += [f"{totals.failed:,} failed"] if totals.failed else []
    parts += [counted(totals.tokens, "token"), dollars(totals.cost_usd)] if totals.tokens else []
    return ", ".join([*parts, duration(totals.took_ms)])


def _table(rows: Sequence[Comparison], *, with_verdict: bool) -> tuple[list[str], list[list[str]]]:
    """The rows that differ."""
    columns = ["row", "judge", "changed", "tokens", "cost", "time", "a", "b"]
    cells = [
        [
            row.key or "",
            row.verdict or "",
            _changed(row, with_keys=not sys.stdout.isatty()),
            _both(row, lambda side: f"{side.tokens:,}"),
            _both(row, lambda side: dollars(side.cost_usd)),
            _both(row, _took),
            _output(row.a),
            _output(row.b),
        ]
        for row in rows
    ]
    left_out = {name for name, wanted in (("judge", with_verdict), *_spent(rows)) if not wanted}
    kept = [place for place, name in enumerate(columns) if name not in left_out]
    columns = [columns[place] for place in kept]
    return columns, _fitted(columns, [[line[place] for place in kept] for line in cells])


def _fitted(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The rows with the last two cells, those of a and b, shortened for the width of a terminal."""
    if not sys.stdout.isatty():
        return [list(row) for row in rows]
    others = [max(len(row[place]) for row in (columns, *rows)) + 2 for place in range(len(columns) - 2)]
    most = max(FEWEST_SHOWN, (shutil.get_terminal_size().columns - sum(others) - 2) // 2)
    return [[*row[:-2], *(one_line(cell, most) for cell in row[-2:])] for row in rows]


def _spent(rows: Sequence[Comparison]) -> list[tuple[str, bool]]:
    """Whether models were called."""
    any_tokens = any(side.tokens or side.cost_usd != 0 for row in rows for side in (row.a, row.b) if side is not None)
    return [("tokens", any_tokens), ("cost", any_tokens)]


def _changed(row: Comparison, *, with_keys: bool = True) -> str:
    """`output, state (letter)`."""
    names = sorted([*row.state.changed, *row.state.removed, *row.state.added]) if with_keys else []
    keys = " " + one_line(f"({', '.join(names)})", SHOWN_VALUE) if names else ""
    return ", ".join(f"{aspect}{keys if aspect == 'state' else ''}" for aspect in row.changed)


def _both(row: Comparison, cell: Callable[[ComparedRun], str]) -> str:
    """`120 > 90`, or one value if both sides have it."""
    cells = ["" if side is None else cell(side) for side in (row.a, row.b)]
    return cells[0] if cells[0] == cells[1] else " > ".join(each or "-" for each in cells)


def _took(side: ComparedRun) -> str:
    return "" if side.took_ms is None else duration(side.took_ms)


def _output(side: ComparedRun | None, most: int = SHOWN_OUTPUT) -> str:
    """The output, or the status and why there is none."""
    if side is None:
        return ""
    if side.output is not None:
        return one_line(side.output, most)
    return one_line(f"{side.status}: {in_one_line(side.error)}" if side.error else side.status, most)


def _print_runs(row: Comparison) -> None:
    """Two runs: a column each."""
    assert row.a is not None and row.b is not None
    sides = (row.a, row.b)
    print_fields([("changed", _changed(row) if row.changed else "nothing"), *_judged(row)])
    click.echo()
    table = [
        ["run", *(side.id for side in sides)],
        ["status", *(side.status for side in sides)],
        ["output", *(_output(side, SHOWN_VALUE) for side in sides)],
        ["path", *(_path(side) for side in sides)],
        *([["overrides", *(", ".join(side.overrides) for side in sides)]] if any(s.overrides for s in sides) else []),
        *_spent_lines(row),
        ["time", *(_took(side) for side in sides)],
    ]
    columns = ["", "a", "b"]
    print_table(columns, _fitted(columns, [*table, *_state_lines(row)]))


def _spent_lines(row: Comparison) -> Iterator[list[str]]:
    """Tokens and cost, if models were called."""
    sides = [side for side in (row.a, row.b) if side is not None]
    if any(side.tokens or side.cost_usd != 0 for side in sides):
        yield ["tokens", *(f"{side.tokens:,}" for side in sides)]
        yield ["cost", *(dollars(side.cost_usd) for side in sides)]


def _judged(row: Comparison) -> list[tuple[str, str]]:
    if row.verdict is None:
        return []
    return [("judge", row.verdict + (f": {one_line(row.why)}" if row.why else ""))]


def _path(side: ComparedRun) -> str:
    more = f" ... {side.visits:,} visits" if side.visits > SHOWN_NODES else ""
    return " > ".join(side.path[:SHOWN_NODES]) + more


def _state_lines(row: Comparison) -> Iterator[list[str]]:
    """The keys of the state that differ."""
    from sleipnir.graph.plain import compact_json

    def shown(value: Any) -> str:
        return one_line(compact_json(value), SHOWN_VALUE)

    state = row.state
    for name, values in state.changed.items():
        yield [f"state {name}", *map(shown, values)]
    yield from ([f"state {name}", shown(value), ""] for name, value in state.removed.items())
    yield from ([f"state {name}", "", shown(value)] for name, value in state.added.items())
