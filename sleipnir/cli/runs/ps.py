"""`ps`: runs in a table, the newest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.completion import complete_run, complete_thread
from sleipnir.cli.options import COUNT, MOMENT, Amount, GlobalOptions, pass_options
from sleipnir.cli.runs.run_options import chosen, refuse_both, selecting
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.runs.failure_text import in_one_line
from sleipnir.runs.plain_text import duration, one_line
from sleipnir.runs.reasons import failed_in_words, places, stopped_in_words

if TYPE_CHECKING:
    from sleipnir.client.client import Client
    from sleipnir.runs.run_filters import RunCount
    from sleipnir.runs.views import RunInfo

UNFINISHED = ("submitted", "running", "waiting", "paused")
STATUSES = (*UNFINISHED, "completed", "failed", "cancelled")
REASONS = (
    "person", "child", "event", "timer", "retry", "limit", "slot", "turn", "other", "breakpoint", "budget", "parent",
)  # fmt: skip
MOST_PLACES = 3
AMONG = 2_000
MOST_COUNTED = 10_000


MONEY = Amount(min=0)
_FILTERS = (
    click.option(
        "--reason", "reason", multiple=True, type=click.Choice(REASONS),
        help="Only runs that wait or are paused for this reason; repeatable.",
    ),
    click.option("--version", metavar="DIGEST", help="Only of this bundle, or the beginning of its digest."),
    click.option("--thread", metavar="AGENT/NAME", shell_complete=complete_thread, help="Only runs of this thread."),
    click.option("--parent", metavar="RUN", shell_complete=complete_run, help="Only runs that this run has started."),
    click.option("--ended-since", "ended_since_ms", type=MOMENT, help="Only runs that ended since then."),
    click.option("--ended-before", "ended_before_ms", type=MOMENT, help="Only runs that ended before then."),
    click.option("--min-cost", "cost_min", type=MONEY, metavar="USD", help="Only runs that cost this or more."),
    click.option("--max-cost", "cost_max", type=MONEY, metavar="USD", help="Only runs that cost this or less."),
    click.option("--node", metavar="NODE", help="Only runs that failed at this node."),
    click.option("--text", metavar="TEXT", help="Only runs that failed with this in their message."),
    click.option("--fingerprint", metavar="ID", help="Only runs of this group of failures (`sleipnir failures`)."),
)  # fmt: skip
FILTER_NAMES = (
    "reason", "version", "thread", "parent", "ended_since_ms", "ended_before_ms", "cost_min", "cost_max", "node",
    "text", "fingerprint",
)  # fmt: skip


def filtering(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with the options that choose runs, beside those of run_options."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def query_of(client: Client, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of Client.runs for the options that choose runs. Raises BatchNotFound and RunNotFound."""
    query = chosen(client, given) | {name: given[name] or None for name in FILTER_NAMES}
    query |= {name: given[name] for name in ("cost_min", "cost_max")}
    if given["parent"] is not None:
        query["parent"] = client.run(given["parent"]).id
    return query


@click.command()
@click.option("-a", "--all", "ended_too", is_flag=True, help="Also runs that have ended.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; repeatable.")
@selecting
@filtering
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number, the newest first.")
@click.option("--after", metavar="CURSOR", help="Go on where the list before has ended, as it says.")
@click.option(
    "--among", type=COUNT, default=AMONG, show_default=True, metavar="N",
    help="Look at N runs at most, of those that may fit.",
)  # fmt: skip
@click.option("--count", "only_count", is_flag=True, help="Print the number of runs instead of a list.")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@pass_options
def ps(
    options: GlobalOptions,
    /,
    ended_too: bool,
    statuses: tuple[str, ...],
    limit: int,
    after: str | None,
    among: int,
    only_count: bool,
    as_data: bool,
    **given: Any,
) -> None:
    """List unfinished runs, the newest first; rows of batches only with --rows or --batch.

    Options that only runs that have ended can match list those. Finding is by lists that are kept of each status and
    reason, agent, version, tag, batch, thread, parent, failed node and group of failures. Cost, text and the time of
    the end are compared run by run: a list that ends early says how to go on.
    """
    refuse_both(given)
    wanted = set(statuses or _statuses(given, ended_too=ended_too))
    with options.connected(workers=False) as client:
        query = query_of(client, given)
        if only_count:
            _print_count(client.run_count(wanted, among=max(among, MOST_COUNTED), **query), as_data=as_data)
            return
        infos = client.runs(limit, wanted, among=among, after=after, **query)
        now_ms = client.now_ms()
        total = client.run_count() if not infos and infos.after is None else 0
    if as_data:
        print_json(infos)
    elif infos:
        table = [
            (info.id, info.agent, status_of(info), moment(info.created_ms), took(info, now_ms), _where(info, now_ms))
            for info in infos
        ]
        print_table(("run", "agent", "status", "created", "took", "at"), table)
    elif infos.after is None:
        narrowed = any(value not in (None, (), {}, False) for name, value in given.items() if name != "rows")
        terminal.note(_none_found(wanted, total, narrowed=narrowed))
    if infos.after is not None:
        looked = "" if len(infos) >= limit else f"looked at {infos.looked:,} runs; "
        terminal.note(f"{looked}there may be more: --after {infos.after} goes on")


def _statuses(given: dict[str, Any], *, ended_too: bool) -> tuple[str, ...]:
    """The statuses of a list for which none are named."""
    of_failures = any(given[name] is not None for name in ("node", "text", "fingerprint"))
    of_ends = any(given[name] is not None for name in ("ended_since_ms", "ended_before_ms"))
    return STATUSES if ended_too or of_failures or of_ends else UNFINISHED


def _print_count(count: RunCount, *, as_data: bool) -> None:
    if as_data:
        print_json({"count": int(count), "is_exact": count.is_exact})
    else:
        click.echo(f"{count}" if count.is_exact else f"over {count}")


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
