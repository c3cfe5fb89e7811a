"""`agents`: lists the agents that can be run. Needs no Redis. `agents install` is in install.py, checks are in
validate.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sleipnir.cli.agents.install import install
from sleipnir.cli.completion import complete_agent
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import print_json, print_table
from sleipnir.runs.plain_text import one_line

if TYPE_CHECKING:
    from sleipnir.runs.views import AgentInfo


@click.group(invoke_without_command=True, subcommand_metavar="[show AGENT | install ...]")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@click.pass_context
@pass_options
def agents(options: GlobalOptions, ctx: click.Context, as_data: bool) -> None:
    """List the agents that can be run by name, and the problems of those that cannot.

    `agents show AGENT` shows details of one. `agents install` copies the shipped ones to your own directory, where you
    may change them.
    """
    if ctx.invoked_subcommand is None:
        _list_agents(options, as_data)


agents.add_command(install)


@agents.command()
@click.argument("agent", metavar="AGENT|FOLDER", shell_complete=complete_agent)
@click.option("--json", "as_data", is_flag=True, help="Print a JSON object.")
@pass_options
def show(options: GlobalOptions, agent: str, as_data: bool) -> None:
    """Show details of one agent, including its conversation starters."""
    from sleipnir.agents.finding import describe, find

    folder = find(agent, options.settings())
    _show(describe(folder, None if "/" in agent or agent in (".", "..") else agent), as_data=as_data)


def _list_agents(options: GlobalOptions, as_data: bool) -> None:
    from sleipnir.agents.finding import known_agents, places

    settings = options.settings()
    folders = known_agents(settings)
    if as_data:
        print_json(folders)
    elif folders:
        rows = [(agent.name, agent.kind, str(agent.folder), agent.problem or agent.description) for agent in folders]
        print_table(("agent", "kind", "folder", "description"), rows)
    else:
        searched = "".join(f"\n  {place}" for place in places(settings))
        terminal.note(f"no agents. Searched in:{searched}")


def _show(agent: AgentInfo, *, as_data: bool) -> None:
    if as_data:
        print_json(agent)
        return
    fields = {"agent": agent.name, "kind": agent.kind, "folder": str(agent.folder), "description": agent.description}
    for title, text in (fields | {"problem": agent.problem or ""}).items():
        if text:
            click.echo(f"{title:13}{one_line(text)}")
    for number, starter in enumerate(agent.conversation_starters, 1):
        click.echo(f"{'starters' if number == 1 else '':13}{number}. {one_line(starter)}")
