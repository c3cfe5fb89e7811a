"""`history`: the writes and the next nodes of each step of a run.

Rule. A map of thousands of items is one row, at the position of its first ended item; `--items` shows all items, and
the turns and calls of their loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import click

from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import COUNT, COUNT_OR_NONE, GlobalOptions, pass_options
from sleipnir.cli.terminal.render import print_json, print_table
from sleipnir.cli.terminal.terminal import note
from sleipnir.runs.plain_text import duration, one_line

if TYPE_CHECKING:
    from sleipnir.runs.views import LateResult, StepInfo

Row: TypeAlias = dict[str, str]
_COLUMNS = ("step", "node", "kind", "took", "wrote", "next", "checkpoint", "attempt", "worker", "by", "error")
_EMPTY: Row = dict.fromkeys(_COLUMNS, "")


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.option(
    "--items", "each_item", is_flag=True, help="One line for each item of a map instead of one line for the map."
)
@click.option("--after", type=COUNT_OR_NONE, help="Only steps after this one.")
@click.option("--limit", type=COUNT, help="Maximum number of steps.")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list; each item is in it.")
@pass_options
def history(
    options: GlobalOptions, run_id: str, each_item: bool, after: int | None, limit: int | None, as_data: bool
) -> None:
    """List the committed steps of RUN: the writes and the next node of each visit.

    At a checkpoint no parallel visits were under way: `sleipnir state RUN --at STEP` shows the state there.
    """
    with options.connected(workers=False) as client:
        run = client.run(run_id)
        steps, info = run.history(after=after, limit=limit), run.info()
        late_results, live = run.late_results(), info.visits
    if limit is not None and len(steps) == limit:
        note(f"these are {limit} steps; --after {steps[-1].step} shows the next ones")
        late_results = [late for late in late_results if late.at_ms <= steps[-1].at_ms]
    if after is not None and steps:
        late_results = [late for late in late_results if late.at_ms >= steps[0].at_ms]
    entries = with_late_results(steps, late_results)
    if as_data:
        print_json(entries)
    else:
        names = {visit.seq: visit.node for visit in live} | {step.seq or 0: step.node for step in steps}
        print_table(*history_table(entries, names, each_item=each_item))


def with_late_results(steps: list[StepInfo], late_results: list[LateResult]) -> list[StepInfo | LateResult]:
    """Steps and refused results in order."""
    return sorted([*steps, *late_results], key=lambda entry: entry.at_ms)


def history_table(
    entries: Sequence[StepInfo | LateResult], names: Mapping[int, str | None], *, each_item: bool
) -> tuple[list[str], list[list[str]]]:
    """Columns and rows. Attempts, workers and errors have a column only if there are any. `names` are the nodes of
    visits by number, for maps that have not ended."""
    late = any(entry.kind == "late_result" for entry in entries)
    rows = _unfolded(entries) if each_item else _folded(entries, names)
    columns = ["step", "node", "kind", "took", "wrote", "next", "checkpoint"]
    if late or any(row["attempt"] not in ("", "1") for row in rows):
        columns.append("attempt")
    if late:
        columns.append("worker")
    if any(row["by"] for row in rows):
        columns.append("by")
    if any(row["error"] for row in rows):
        columns.append("error")
    return columns, [[row[column] for column in columns] for row in rows]


def _unfolded(entries: Iterable[StepInfo | LateResult]) -> list[Row]:
    return [_row(entry) for entry in entries]


def _folded(entries: Iterable[StepInfo | LateResult], names: Mapping[int, str | None]) -> list[Row]:
    """The items of a map as one row."""
    from sleipnir.runs.views import LateResult

    items: dict[int, list[StepInfo]] = {}
    in_order: list[StepInfo | LateResult | list[StepInfo]] = []
    loops: set[int] = set()
    for entry in entries:
        if not isinstance(entry, LateResult) and entry.part is not None:
            loops |= {entry.part.loop} if entry.item else set()  # the first turn comes before all calls
            if entry.part.loop in loops:
                continue
        if isinstance(entry, LateResult) or entry.item is None:
            in_order.append(entry)
            continue
        if entry.item[0] not in items:
            in_order.append(items.setdefault(entry.item[0], []))
        items[entry.item[0]].append(entry)
    return [_items_row(entry, names) if isinstance(entry, list) else _row(entry) for entry in in_order]


def _row(entry: StepInfo | LateResult) -> Row:
    from sleipnir.runs.views import LateResult

    row = _EMPTY | {"node": entry.node or "", "attempt": str(entry.attempt), "worker": entry.worker}
    if isinstance(entry, LateResult):
        return row | {"kind": entry.text}
    return row | {
        "step": str(entry.step),
        "kind": _kind(entry),
        "took": duration(entry.took_ms),
        "wrote": ", ".join(entry.keys),
        "next": ", ".join(entry.targets),
        "checkpoint": "yes" if entry.checkpoint else "",
        "by": _by(entry),
        "error": entry.error or "",
    }


def _by(entry: StepInfo) -> str:
    """`'yes' by ann@desk (cli)`, `ann@desk (cli): costs`."""
    if entry.answer is not None:
        others = [f"{voice.person} {one_line(voice.answer, 40)!r}" for voice in entry.voices if voice.by != entry.by]
        before = f", after {', '.join(others)}" if others else ""
        said = f": {one_line(entry.reason, 80)}" if entry.reason else ""
        return f"{one_line(entry.answer, 40)!r}" + (f" by {entry.by}" if entry.by else "") + before + said
    return ": ".join(filter(None, (entry.by, one_line(entry.reason or ""))))


def _kind(entry: StepInfo) -> str:
    """`llm`, `llm, turn 2: search, fetch`, `llm, turn 3, continues`, `llm, search of turn 2`, `script, item 7`,
    `script, skipped`, `script, cached`."""
    of_item = f", item {entry.item[1]}" if entry.item else ""
    part = entry.part
    if part is None:
        how = ", cached" if entry.cached else "" if entry.skipped is None else ", skipped"
        return ", ".join((f"{entry.kind}{of_item}{how}", *entry.callbacks))
    asked = f": {', '.join(entry.calls)}" if entry.calls else ", continues" if entry.goes_on else ""
    turn = f"turn {part.turn + 1}"
    return f"{entry.kind}{of_item}, " + (f"{turn}{asked}" if part.call is None else f"{part.tool} of {turn}")


def _items_row(steps: Sequence[StepInfo], names: Mapping[int, str | None]) -> Row:
    """`items 0-9999: 10,000 visits, 2 failed, slowest 1.20s`. The duration is the sum of all its visits."""
    numbers = {step.item[1] for step in steps if step.item}
    failed = [step for step in steps if not step.ok]
    first, last = steps[0], steps[-1]
    span = f"items {min(numbers)}-{max(numbers)}" if len(numbers) > 1 else f"item {min(numbers)}"
    parts = [f"{span}: {len(steps):,} visits"] if len(steps) > 1 else [f"{span}: 1 visit"]
    parts += [f"{len(failed):,} failed"] if failed else []
    parts += [f"{cached:,} cached"] if (cached := sum(step.cached for step in steps)) else []
    parts += [f"slowest {duration(max(step.took_ms for step in steps))}"]
    return _EMPTY | {
        "step": f"{first.step}-{last.step}" if first is not last else str(first.step),
        "node": (names.get(first.item[0]) if first.item else None) or first.node or "",
        "kind": ", ".join(parts),
        "took": duration(sum(step.took_ms for step in steps)),
        "error": next((step.error for step in failed if step.error), ""),
    }
