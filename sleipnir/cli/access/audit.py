"""`audit`: lists and exports the entries of the audit."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.options import COUNT, MOMENT, GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import as_json, moment, print_json, print_json_line, print_table
from sleipnir.runs.plain_text import one_line, printable

if TYPE_CHECKING:
    from sleipnir.access.audit import AuditEntry

SHOWN = 60  # characters of a value in the table

_SINCE = click.option("--since", type=MOMENT, help="Only from then on: 2h, 3d, or a date.")
_BY = click.option("--by", metavar="TEXT", help="Only by actors whose name has this text.")
_ON = click.option("--on", metavar="TEXT", help="Only on what has this text in its name, such as 'user ann'.")


@click.group()
def audit() -> None:
    """What was changed: by whom, from where, what before and after, and why."""


@audit.command()
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number, the newest first.")
@_SINCE
@_BY
@_ON
@click.option("--json", "as_data", is_flag=True, help="Print JSON.")
@pass_options
def ls(options: GlobalOptions, limit: int, since: int | None, by: str | None, on: str | None, as_data: bool) -> None:
    """List the last changes, the newest first."""
    with options.connected(workers=False) as client:
        entries = list(islice(client.access.audit(oldest_ms=since or 0, newest_first=True, by=by, on=on), limit))
    if as_data:
        print_json([_to_data(entry) for entry in entries])
    elif entries:
        print_table(("when", "by", "what", "on", "before", "after", "why"), [_row(entry) for entry in entries])
    else:
        terminal.note("no entries")


@audit.command()
@_SINCE
@_BY
@_ON
@pass_options
def export(options: GlobalOptions, since: int | None, by: str | None, on: str | None) -> None:
    """Print the entries as lines of JSON, the oldest first."""
    with options.connected(workers=False) as client:
        for entry in client.access.audit(oldest_ms=since or 0, by=by, on=on):
            print_json_line(_to_data(entry))


def _row(entry: AuditEntry) -> tuple[str, ...]:
    values = ("" if value is None else one_line(_text(value), SHOWN) for value in (entry.before, entry.after))
    reason = one_line(entry.reason or "", SHOWN)
    return (moment(entry.at_ms), printable(entry.by), entry.what, printable(entry.on), *values, reason)


def _text(value: Any) -> str:
    from sleipnir.graph.plain import compact_json

    return value if isinstance(value, str) else compact_json(value)


def _to_data(entry: AuditEntry) -> dict[str, Any]:
    data: dict[str, Any] = as_json(entry)
    return data
