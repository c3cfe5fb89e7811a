"""`failures`: failed runs in groups that failed alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.completion import complete_agent
from sleipnir.cli.options import COUNT, MOMENT, GlobalOptions, pass_options
from sleipnir.cli.runs.run_options import NAMESPACE
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.runs.plain_text import one_line

if TYPE_CHECKING:
    from sleipnir.runs.run_filters import FailureGroup

COLUMNS = ("fingerprint", "runs", "agent", "version", "node", "first", "last", "message")


@click.command()
@click.option("--agent", metavar="NAME", shell_complete=complete_agent, help="Only failures of this agent.")
@click.option("--node", metavar="NODE", help="Only failures at this node.")
@click.option("--since", "since_ms", type=MOMENT, help="Only groups in which a run failed since then: 2h, 3d ago.")
@NAMESPACE
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number, the latest first.")
@click.option("--discard", metavar="ID", help="Note that this group is dealt with, with --note; it shows the note.")
@click.option("--note", metavar="TEXT", help="What was done about it.")
@click.option("--reopen", metavar="ID", help="Take the note of this group back.")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@pass_options
def failures(
    options: GlobalOptions,
    /,
    discard: str | None,
    note: str | None,
    reopen: str | None,
    as_data: bool,
    **given: Any,
) -> None:
    """List the stored failed runs in groups, the latest first.

    A group has failed at the same node of the same version of an agent, with the same message but for numbers, ids and
    quoted values. `sleipnir ps --fingerprint ID` lists its runs; `sleipnir job submit retry --fingerprint ID` retries
    them. Runs that were retried, or have expired, do not count. A note of --discard is shown until another run fails
    so.
    """
    if (discard is None) != (note is None) or (discard is not None and reopen is not None):
        raise click.UsageError("give --discard ID with --note TEXT, or --reopen ID")
    with options.connected(workers=False) as client:
        if discard is not None and note is not None:
            client.discard_failures(discard, note, namespace=given["namespace"])
        if reopen is not None:
            client.reopen_failures(reopen, namespace=given["namespace"])
        groups = client.failures(**given)
    if as_data:
        print_json(groups)
    elif groups:
        print_table(COLUMNS, [_row(group) for group in groups])
    else:
        terminal.note("no failed runs")


def _row(group: FailureGroup) -> tuple[str, ...]:
    return (
        group.fingerprint, f"{group.count:,}", group.agent, group.version, group.node or "-", moment(group.first_ms),
        moment(group.last_ms),
        one_line(group.message if group.discarded is None else f"[{group.discarded.note}] {group.message}", 100),
    )  # fmt: skip
