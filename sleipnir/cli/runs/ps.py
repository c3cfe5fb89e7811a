"""`ps`: runs in a table, the newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.options import COUNT, GlobalOptions, pass_options
from sleipnir.cli.runs.run_options import chosen, refuse_both, selecting
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.runs.failure_text import in_one_line
from sleipnir.runs.plain_text import duration, one_line
from sleipnir.runs.reasons import failed_in_words, places, stopped_in_words

if TYPE_CHECKING:
    from sleipnir.runs.views import RunInfo

UNFINISHED = ("submitted", "running", "waiting", "paused")
STATUSES = (*UNFINISHED, "completed", "failed", "cancelled")
MOST_PLACES = 3


@click.command()
@click.option("-a", "--all", "ended_too", is_flag=True, help="Also runs that have ended.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; repeatable.")
@selecting
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number, the newest first.")
@click.option(
    "--among", type=COUNT, default=10_000, show_default=True, metavar="N",
    help="Read the newest N runs. A million take seconds.",
)  # fmt: skip
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@pass_options
def ps(
    options: GlobalOptions,
    /,
    ended_too: bool,
    statuses: tuple[str, ...],
    limit: int,
    among: int,
    as_data: bool,
    **given: Any,
) -> None:
    """List unfinished runs, the newest first; rows of batches only with --rows or --batch."""
    refuse_both(given)
    wanted = set(statuses or (STATUSES if ended_too else UNFINISHED))
    with options.connected(workers=False) as client:
        infos = client.runs(limit, wanted, among=among, **chosen(client, given))
        now_ms = client.now_ms()
        total = client.run_count() if given["batch"] is None and len(infos) < limit else 0
    if as_data:
        print_json(infos)
    elif infos:
        table = [
            (info.id, info.agent, status_of(info), moment(info.created_ms), took(info, now_ms), _where(info, now_ms))
            for info in infos
        ]
        print_table(("run", "agent", "status", "created", "took", "at"), table)
    else:
        narrowed = any(given[name] for name in ("agents", "since_ms", "before_ms", "batch"))
        terminal.note(_none_found(wanted, total, narrowed=narrowed))
    if total > among:
        terminal.note(f"read the newest {among:,} of {total:,} runs; --among N looks at more")


def _none_found(wanted: set[str], total: int, *, narrowed: bool) -> str:
    if narrowed:
        return "no such runs"
    if total == 0 or wanted == set(STATUSES):
        message = "no runs"
    elif wanted == set(UNFINISHED):
        message = "all runs have ended; `sleipnir ps --all` lists them"
    else:
        message = "no such runs; `sleipnir ps --all` lists all"
    return f"{message}; --rows lists rows of batches too"


def status_of(info: RunInfo) -> str:
    return "parked" if info.parked is not None else info.status


def took(info: RunInfo, now_ms: int) -> str:
    """From the start to the end; to now for a run that has not ended."""
    if info.started_ms is None:
        return "-"
    return duration(max(0, (info.ended_ms or now_ms) - info.started_ms))


def _where(info: RunInfo, now_ms: int) -> str:
    """The position of a live run; the error of a failed one."""
    if info.parked is not None:
        return one_line(info.parked.reason, 100)
    if info.unreadable is not None:
        return one_line(f"cannot be read here: {info.unreadable}", 100)
    if info.error:
        return one_line(in_one_line(info.error), 100)
    if info.is_final:
        stopped = [stopped_in_words(info)] if info.stopped_by else []
        failed = [failed_in_words(info)] if info.failed_visits.count else []
        return one_line(", ".join([*failed, *stopped]), 100)
    return ", ".join(places(info, now_ms, MOST_PLACES))
