"""`values`: values of an agent, and of its users, that all their runs share."""

from __future__ import annotations

import json
from typing import Any

import click

from sleipnir.cli.completion import complete_agent, complete_shared_key, complete_user_of_agent
from sleipnir.cli.options import GlobalOptions, name_of, pass_options
from sleipnir.cli.runs.parameters import json_values
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.errors import UsageError
from sleipnir.runs.plain_text import one_line, printable

_SHOWN_CHARS = 100


@click.group()
def values() -> None:
    """Values that all runs of an agent share (`app:KEY` in their state), or all runs of a user (`user:KEY`)."""


_AGENT = click.argument("agent", shell_complete=complete_agent)
_USER = click.option(
    "--user",
    metavar="NAME",
    shell_complete=complete_user_of_agent,
    help="Those of this user. Default: those of the agent.",
)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")


@values.command()
@click.argument("agent", required=False, shell_complete=complete_agent)
@_JSON
@pass_options
def ls(options: GlobalOptions, agent: str | None, as_data: bool) -> None:
    """List the agents, and their users, that have values: of AGENT, or of all agents."""
    with options.connected(workers=False) as client:
        infos = client.shared_value_counts(None if agent is None else name_of(agent))
    if as_data:
        print_json(infos)
    elif infos:
        rows = [
            (each.agent, each.user or "", f"{each.values:,}", f"{each.bytes_:,}", moment(each.written_ms))
            for each in infos
        ]
        print_table(("agent", "user", "values", "bytes", "written"), rows)
    else:
        terminal.note("no values")


@values.command()
@_AGENT
@_USER
@_JSON
@pass_options
def show(options: GlobalOptions, agent: str, user: str | None, as_data: bool) -> None:
    """Show the values of AGENT, or of a user of it."""
    with options.connected(workers=False) as client:
        found = client.shared_values(name_of(agent), user)
    if as_data:
        print_json(found)
    elif found:
        rows = [
            (printable(key), one_line(json.dumps(value, ensure_ascii=False), _SHOWN_CHARS))
            for key, value in sorted(found.items())
        ]
        print_table(("key", "value"), rows)
    else:
        terminal.note("no values")


@values.command("set")
@_AGENT
@click.argument("given", metavar="KEY=JSON...", nargs=-1, required=True, callback=json_values)
@_USER
@_JSON
@pass_options
def set_(options: GlobalOptions, agent: str, given: dict[str, Any], user: str | None, as_data: bool) -> None:
    """Set values of AGENT, or of a user of it. A text is in quotes, as in 'tier="gold"'. Others stay as they are."""
    with options.connected(workers=False) as client:
        client.set_shared_values(name_of(agent), given, user)
    if as_data:
        print_json({"agent": name_of(agent), "user": user, "set": sorted(given)})
    else:
        terminal.note(f"set {', '.join(map(printable, sorted(given)))} of {_whose(agent, user)}")


@values.command()
@_AGENT
@click.argument("keys", metavar="[KEY]...", nargs=-1, shell_complete=complete_shared_key)
@_USER
@click.option("--all", "all_", is_flag=True, help="Remove all of them.")
@_JSON
@pass_options
def rm(options: GlobalOptions, agent: str, keys: tuple[str, ...], user: str | None, all_: bool, as_data: bool) -> None:
    """Remove values of AGENT, or of a user of it."""
    if bool(keys) == all_:
        raise click.UsageError("name the keys to remove, or give --all")
    with options.connected(workers=False) as client:
        removed = client.remove_shared_values(name_of(agent), None if all_ else keys, user)
    if as_data:
        print_json({"agent": name_of(agent), "user": user, "removed": removed})
    elif removed:
        terminal.note(f"removed {removed:,} value{'' if removed == 1 else 's'} of {_whose(agent, user)}")
    else:
        what = "no values" if all_ else f"no value {', '.join(map(repr, keys))}"
        raise UsageError(f"{_whose(agent, user)} has {what}")


def _whose(agent: str, user: str | None) -> str:
    name = f"agent {name_of(agent)!r}"
    return name if user is None else f"user {user!r} of {name}"
