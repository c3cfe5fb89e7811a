"""`ps`, `show`, `cancel` and `retry`: looking at runs, ending them, and continuing failed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_agent, complete_batch, complete_run
from sleipnir.cli.failures import report
from sleipnir.cli.options import COUNT, MOMENT, GlobalOptions, pass_options
from sleipnir.cli.runs import tree
from sleipnir.cli.runs.ask import how_to_answer
from sleipnir.cli.runs.reasons import failed_in_words, places, retry_in_words, stopped_in_words
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import change_in_words, duration, moment, print_fields, print_json, print_table
from sleipnir.errors import SleipnirError
from sleipnir.runs.failure_text import in_one_line

if TYPE_CHECKING:
    from sleipnir.client.client import Run
    from sleipnir.messages import Usage
    from sleipnir.runs.run import Parked
    from sleipnir.runs.views import HoldInfo, RunInfo

UNFINISHED = ("submitted", "running", "waiting", "paused")
STATUSES = (*UNFINISHED, "completed", "failed", "cancelled")
MOST_IN_PS, MOST_IN_SHOW = 3, 12

_RUN = click.argument("run_id", metavar="RUN", shell_complete=complete_run)


@click.command()
@click.option("-a", "--all", "ended_too", is_flag=True, help="Also runs that have ended.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; repeatable.")
@click.option("--children", is_flag=True, help="Also runs that other runs have started.")
@click.option("--batch", "batch", metavar="BATCH", shell_complete=complete_batch, help="Only those of its rows.")
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_agent,
    help="Only of this one; repeatable.",
)
@click.option(
    "--since", "since_ms", type=MOMENT, help="Only runs created since then: 90s, 2h, 3d ago, or 2026-11-22T10:00."
)
@click.option("--before", "before_ms", type=MOMENT, help="Only runs created before then.")
@click.option("--rows", is_flag=True, help="Also rows of batches, of which there may be many.")
@click.option("--limit", type=COUNT, default=50, show_default=True, help="The newest so many.")
@click.option(
    "--among", type=COUNT, default=10_000, show_default=True, metavar="N",
    help="Look at the newest N runs. A million take seconds.",
)  # fmt: skip
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@pass_options
def ps(
    options: GlobalOptions,
    ended_too: bool,
    statuses: tuple[str, ...],
    children: bool,
    batch: str | None,
    agents: tuple[str, ...],
    since_ms: int | None,
    before_ms: int | None,
    rows: bool,
    limit: int,
    among: int,
    as_data: bool,
) -> None:
    """List runs that have not ended, the newest first; rows of batches only with --rows or --batch."""
    if batch is not None and children:
        raise click.UsageError("--batch lists the runs of rows alone; leave out --children")
    wanted = set(statuses or (STATUSES if ended_too else UNFINISHED))
    with options.connected(workers=False) as client:
        batch_id = None if batch is None else client.open_batch(batch).id
        infos = client.runs(
            limit, wanted, children=children, batch=batch_id, among=among, agents=agents, since_ms=since_ms,
            before_ms=before_ms, rows=rows,
        )  # fmt: skip
        now_ms = client.now_ms()
        total = client.run_count() if batch is None and len(infos) < limit else 0
    if as_data:
        print_json(infos)
    elif infos:
        table = [
            (info.id, info.agent, _status(info), moment(info.created_ms), _took(info, now_ms), _where(info, now_ms))
            for info in infos
        ]
        print_table(("run", "agent", "status", "created", "took", "at"), table)
    else:
        terminal.note(_none_found(wanted, total, narrowed=bool(agents or since_ms or before_ms or batch)))
    if total > among:
        terminal.note(f"looked at the newest {among:,} of {total:,} runs; --among N looks at more")


def _none_found(wanted: set[str], total: int, *, narrowed: bool) -> str:
    if narrowed:
        return "no such runs"
    if total == 0 or wanted == set(STATUSES):
        found = "no runs"
    elif wanted == set(UNFINISHED):
        found = "all runs have ended; `sleipnir ps --all` lists them"
    else:
        found = "no such runs; `sleipnir ps --all` lists all"
    return f"{found}; --rows lists rows of batches too"


@click.command()
@_RUN
@click.option("--json", "as_data", is_flag=True, help="Print the run as one JSON document.")
@click.option("--state", "only_state", is_flag=True, help="Print the run's state, as JSON.")
@pass_options
def show(options: GlobalOptions, run_id: str, as_data: bool, only_state: bool) -> None:
    """Show one run: status, where it is, open questions, cost, result."""
    with options.connected(workers=False) as client:
        run = client.run(run_id)
        if as_data:
            from sleipnir.cli.runs.follow import result_data

            state = {"state": run.state()} if only_state else {}
            more = {"late_results": run.late_results(), "children": tree.data_of(run.tree())}
            print_json(result_data(run, run.info()) | more | state)
        elif only_state:
            print_json(run.state())
        else:
            print_fields(_fields(run, options, client.now_ms()))


def _fields(run: Run, options: GlobalOptions, now_ms: int) -> Iterator[tuple[str, str]]:
    info = run.info()
    yield "run", info.id
    yield "agent", info.agent
    yield (
        "status",
        ", ".join(
            [
                _status(info),
                *([stopped_in_words(info)] if info.stopped_by else []),
                *([failed_in_words(info, with_errors=False)] if info.failed_visits.count else []),
            ]
        ),
    )
    if info.parked is not None:
        yield "parked", _parked(info.parked)
    if info.unreadable is not None:
        yield "unreadable", f"this release cannot read its records: {info.unreadable}"
    if info.session:
        yield "session", info.session
    if info.parent:
        yield "parent", info.parent + (f" (of {info.root})" if info.root != info.parent else "")
    yield "created", moment(info.created_ms)
    if info.ended_ms is not None:
        yield "ended", moment(info.ended_ms)
    yield "took", _took(info, now_ms)
    yield "steps", str(info.step)
    if info.retries:
        yield "retried", "once" if info.retries == 1 else f"{info.retries:,} times"
    for hold in info.holds:
        yield "held", _held(hold)
    for change in info.changes:
        yield change.what, change_in_words(change)
    for place in places(info, now_ms, MOST_IN_SHOW):
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
    if info.usage.calls:
        yield "usage", _usage(info.usage)
    if info.error:
        yield "error", info.error
    if info.status == "failed":
        yield "retry", retry_in_words(info)
    if info.status == "completed" and run.output:
        yield "output", run.output


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@pass_options
def cancel(options: GlobalOptions, run_ids: tuple[str, ...]) -> int:
    """Stop runs for good: nothing is committed after this, running scripts are killed."""
    return each_run(options, run_ids, lambda run: run.cancel(), "is being cancelled")


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--fresh-children", is_flag=True, help="Start the runs of agent nodes that failed from their beginning.")
@pass_options
def retry(options: GlobalOptions, run_ids: tuple[str, ...], fresh_children: bool) -> int:
    """Continue failed runs: what failed runs again, with the state as it is.

    What has ended beside it is kept, and so are the items of a map that are done; `sleipnir show RUN` says beforehand
    what runs again. A child run that failed, or was cancelled for that, goes on from where it was. The run keeps the
    agent's definition that it started with. Its timeout starts anew.
    """

    def again(run: Run) -> str:
        info = run.info()
        run.retry(fresh_children=fresh_children)
        return retry_in_words(info, fresh_children=fresh_children)

    return each_run(options, run_ids, again, "goes on")


def each_run(options: GlobalOptions, run_ids: Sequence[str], act: Callable[[Run], str | None], said: str) -> int:
    """Do something to each run, and say so, with what `act` has to say besides; one that refuses does not keep the
    others from it."""
    code = exit_codes.COMPLETED
    with options.connected(workers=False) as client:
        for run_id in run_ids:
            try:
                run = client.run(run_id)
                more = act(run)
                terminal.note(f"run {run.id} {said}" + (f": {more}" if more else ""))
            except SleipnirError as failure:
                code = max(code, report(failure))
    return code


def _failed_visits(info: RunInfo) -> str:
    """Each on a line of its own, as far as the record keeps them."""
    failed = info.failed_visits
    lines = [
        f"{each.node}: {terminal.one_line(each.error, 200)}{f' (run {each.run})' if each.run else ''}"
        for each in failed.first
    ]
    left = failed.count - len(lines)
    has = "and those of its child runs have" if failed.of_children else "has"
    return "\n".join([*lines, *([f"and {left:,} more; `sleipnir history {info.id}` {has} all"] if left else [])])


def _status(info: RunInfo) -> str:
    return "parked" if info.parked is not None else info.status


def _parked(mark: Parked) -> str:
    """`since 10:20:01 by host:1 (0.1.0): spec of r1 cannot be read: ...`."""
    by = f" by {mark.by}" if mark.by else ""
    return f"since {moment(mark.at_ms)}{by}{f' ({mark.release})' if mark.release else ''}: {mark.reason}"


def _took(info: RunInfo, now_ms: int) -> str:
    """From the start to the end; to now for a run that has not ended."""
    if info.started_ms is None:
        return "-"
    return duration(max(0, (info.ended_ms or now_ms) - info.started_ms))


def _where(info: RunInfo, now_ms: int) -> str:
    """Where a live run is; why a failed one failed."""
    if info.parked is not None:
        return terminal.one_line(info.parked.reason, 100)
    if info.unreadable is not None:
        return terminal.one_line(f"cannot be read here: {info.unreadable}", 100)
    if info.error:
        return terminal.one_line(in_one_line(info.error), 100)
    if info.is_final:
        stopped = [stopped_in_words(info)] if info.stopped_by else []
        failed = [failed_in_words(info)] if info.failed_visits.count else []
        return terminal.one_line(", ".join([*failed, *stopped]), 100)
    return ", ".join(places(info, now_ms, MOST_IN_PS))


def _held(hold: HoldInfo) -> str:
    """`by ann@host (cli) since 10:20:01: costs`, `with the deployment, by ...`."""
    what = "with the deployment, " if hold.owner == "deployment" else ""
    return f"{what}by {hold.in_words} since {moment(hold.at_ms)}" + (f": {hold.reason}" if hold.reason else "")


def _usage(usage: Usage) -> str:
    cost = "cost unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}"
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    return f"{usage.calls} model calls, {tokens}, {cost}" + (f" ({usage.model})" if usage.model else "")
