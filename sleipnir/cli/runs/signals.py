"""`signal` and `signals`: send the events that visits wait for, and list them."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.runs.plain_text import one_line, printable
from sleipnir.runs.signals import refuse

_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")


@click.command()
@click.argument("event")
@click.option("--data", metavar="JSON", help="The data of the event ('-': from stdin).")
@click.option("--id", "id_", metavar="KEY", help="An event with this id is sent once, however often this is repeated.")
@_JSON
@pass_options
def signal(options: GlobalOptions, event: str, data: str | None, id_: str | None, as_data: bool) -> None:
    """Send EVENT to all runs that wait for it (nodes of type wait with `event`, wait() in Python).

    Prints the id of the event, and how many waits it has reached so far: a wait may begin later, and look back.
    """
    value = None if data is None else _value(sys.stdin.read() if data == "-" else data)
    refuse(event, id_)
    with options.connected(workers=False) as client:
        receipt = client.signal(event, value, id=id_)
    if as_data:
        print_json(receipt)
        return
    print(receipt.id)
    waits = f"{receipt.reached:,} wait{'' if receipt.reached == 1 else 's'}"
    terminal.note(f"reached {waits} so far" if receipt.is_new else "it was sent before: nothing has changed")


@click.group()
def signals() -> None:
    """Signals: the events that were sent to waiting runs."""


@signals.command()
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="How many to list.")
@_JSON
@pass_options
def ls(options: GlobalOptions, limit: int, as_data: bool) -> None:
    """List the events that were sent last, newest first."""
    with options.connected(workers=False) as client:
        found = client.signals(limit)
    if as_data:
        print_json(found)
    elif found:
        rows = [
            (moment(each.at_ms), each.name, printable(each.id), one_line(each.data or "(gone)", 60)) for each in found
        ]
        print_table(("sent", "event", "id", "data"), rows)
    else:
        terminal.note("no events")


def _value(text: str) -> Any:
    """Raises UsageError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--data is not JSON: {error}") from None
