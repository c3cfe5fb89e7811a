"""`show`: one run in detail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs import tree
from sleipnir.cli.runs.gate_answers import how_to_answer
from sleipnir.cli.runs.lineage import lines_of
from sleipnir.cli.runs.ps import status_of, took
from sleipnir.cli.terminal.render import change_in_words, moment, print_fields, print_json
from sleipnir.runs.plain_text import one_line
from sleipnir.runs.reasons import (
    failed_in_words,
    fork_in_words,
    overrides_in_words,
    places,
    retry_in_words,
    stopped_in_words,
    tags_in_words,
    usage_in_words,
)

if TYPE_CHECKING:
    from sleipnir.client.client import Run
    from sleipnir.runs.run import Parked
    from sleipnir.runs.views import HoldInfo, Lineage, RunInfo

MOST_PLACES = 12
MOST_FORKS = 5
MOST_FORKS_AS_DATA = 100


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.option("--json", "as_data", is_flag=True, help="Print the run as one JSON document.")
@click.option("--state", "only_state", is_flag=True, help="Print the run's state, as JSON.")
@pass_options
def show(options: GlobalOptions, run_id: str, as_data: bool, only_state: bool) -> None:
    """Show one run: status, position, open questions, cost, result."""
    with options.connected(workers=False) as client:
        run = client.run(run_id)
        if as_data:
            from sleipnir.cli.runs.follow import result_data

            state = {"state": run.state()} if only_state else {}
            more = {"late_results": run.late_results(), "children": tree.data_of(run.tree())}
            if errors := run.execution_errors():
                more["execution_errors"] = errors
            more["forks"] = _forks_data(run.forks(limit=MOST_FORKS_AS_DATA))
            print_json(result_data(run, run.info()) | more | state)
        elif only_state:
            print_json(run.state())
        else:
            print_fields(_fields(run, options, client.now_ms()))


def _forks_data(lineage: Lineage) -> dict[str, Any]:
    return {"count": lineage.count, "runs": [fork.id for fork in lineage.forks]}


def _fields(run: Run, options: GlobalOptions, now_ms: int) -> Iterator[tuple[str, str]]:
    info = run.info()
    yield "run", info.id
    yield "agent", info.agent
    yield "status", _status(info)
    if info.parked is not None:
        yield "parked", _parked(info.parked)
    if info.unreadable is not None:
        yield "unreadable", f"this release cannot read its records: {info.unreadable}"
    if info.namespace != "default":
        yield "namespace", info.namespace
    if info.tags:
        yield "tags", tags_in_words(info.tags)
    if info.session:
        yield "session", info.session
    if info.event_scope:
        yield "event scope", info.event_scope
    if info.parent:
        yield "parent", info.parent + (f" (of {info.root})" if info.root != info.parent else "")
    if info.thread:
        after = f", after run {info.previous}" if info.previous else ""
        yield "thread", f"{info.thread}, turn {info.turn:,}{after}"
    if info.schedule:
        yield "schedule", info.schedule
    if info.forked_from:
        yield "forked", f"from {info.forked_from} {fork_in_words(info)}"
    if info.overrides:
        yield "overrides", overrides_in_words(info)
    if (forks := run.forks(limit=MOST_FORKS)).count:
        yield "forks", "\n".join(lines_of(forks, info.id))
    yield "created", moment(info.created_ms)
    if info.ended_ms is not None:
        yield "ended", moment(info.ended_ms)
    yield "took", took(info, now_ms)
    yield "steps", str(info.step)
    if info.retries:
        yield "retried", "once" if info.retries == 1 else f"{info.retries:,} times"
    for hold in info.holds:
        yield "held", _held(hold)
    for change in info.changes:
        yield change.what, change_in_words(change)
    for place in places(info, now_ms, MOST_PLACES):
        yield "at", place
    if children := list(tree.lines_of(run.tree(), now_ms)):
        yield "children", "\n".join(children)
    for late in run.late_results():
        yield "late", f"{late.text}: {late.node}, attempt {late.attempt}, from {late.worker}"
    still_open = [] if info.is_final else run.gates()
    for gate in still_open:
        yield "question", f"{gate.question}\n\n{how_to_answer(gate, options, still_open)}"
    if info.failed_visits.count:
        yield "failed", _failed_visits(info)
    if errors := run.execution_errors():
        yield "recorded", f"{len(errors):,} failure{'' if len(errors) == 1 else 's'}: `show --json` has them"
    if info.cached_visits:
        yield "cached", f"{info.cached_visits:,} visit{'' if info.cached_visits == 1 else 's'}"
    if info.usage.calls:
        yield "usage", usage_in_words(info.usage)
    if info.error:
        yield "error", info.error
    if info.status == "failed":
        yield "retry", retry_in_words(info)
    if info.status == "completed" and run.output:
        yield "output", run.output


def _status(info: RunInfo) -> str:
    """The status, who stopped the run, and how many of its visits failed."""
    parts = [status_of(info)]
    if info.stopped_by:
        parts.append(stopped_in_words(info))
    if info.failed_visits.count:
        parts.append(failed_in_words(info, with_errors=False))
    return ", ".join(parts)


def _failed_visits(info: RunInfo) -> str:
    """One line for each that the record has."""
    failed = info.failed_visits
    lines = [
        f"{each.node}: {one_line(each.error, 200)}{f' (run {each.run})' if each.run else ''}" for each in failed.first
    ]
    left = failed.count - len(lines)
    has = "and those of its child runs have" if failed.of_children else "has"
    return "\n".join([*lines, *([f"and {left:,} more; `sleipnir history {info.id}` {has} all"] if left else [])])


def _parked(mark: Parked) -> str:
    """`since 10:20:01 by host:1 (0.1.0): spec of r1 cannot be read: ...`."""
    by = f" by {mark.by}" if mark.by else ""
    return f"since {moment(mark.at_ms)}{by}{f' ({mark.release})' if mark.release else ''}: {mark.reason}"


def _held(hold: HoldInfo) -> str:
    """`by ann@host (cli) since 10:20:01: costs`, `with the deployment, by ...`, `by a breakpoint before 'pay' ...`."""
    if hold.breakpoint is not None:
        planned = hold.breakpoint.in_words.partition("; ")[2]
        return f"by {hold.in_words} since {moment(hold.at_ms)}; {planned}; `sleipnir resume` goes on"
    what = f"with the {hold.owner}, " if hold.owner in ("deployment", "namespace") else ""
    stops = "" if hold.due_ms is None else f", what ran {'was' if hold.forced else 'is'} stopped {moment(hold.due_ms)}"
    return f"{what}by {hold.in_words} since {moment(hold.at_ms)}{stops}" + (f": {hold.reason}" if hold.reason else "")
