"""`cache`: lists and clears the cached results of nodes."""

from __future__ import annotations

from pathlib import Path

import click

from sleipnir.cli.completion import complete_agent, complete_node
from sleipnir.cli.knowledge.building import counted
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table, size

_AGENT = click.argument("agent", required=False, shell_complete=complete_agent)
_NODE = click.argument("node", required=False, shell_complete=complete_node)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")


@click.group()
def cache() -> None:
    """Cached results of nodes that have a `cache`."""


@cache.command()
@_AGENT
@_NODE
@_JSON
@pass_options
def ls(options: GlobalOptions, agent: str | None, node: str | None, as_data: bool) -> None:
    """List the nodes of AGENT, or of all agents, that have cached results, with their number and size."""
    with options.connected(workers=False) as client:
        uses = client.cached_results(_name_of(agent), node)
    if as_data:
        print_json([use.to_data() for use in uses])
    elif uses:
        rows = [(use.agent, use.node, f"{use.entries:,}", size(use.bytes_), moment(use.until_ms)) for use in uses]
        print_table(("agent", "node", "results", "size", "until"), rows)
    else:
        terminal.note("no cached results")


@cache.command()
@_AGENT
@_NODE
@_JSON
@pass_options
def clear(options: GlobalOptions, agent: str | None, node: str | None, as_data: bool) -> None:
    """Remove the cached results of NODE, of all nodes of AGENT, or of all agents.

    The results of visits that run now are not kept either.
    """
    with options.connected(workers=False) as client:
        removed = client.clear_cache(_name_of(agent), node)
    if as_data:
        print_json({"agent": agent, "node": node, "removed": removed})
    else:
        terminal.note(f"{counted(removed, 'cached result')} removed")


def _name_of(agent: str | None) -> str | None:
    """An agent that no longer exists may still have cached results: its name is not looked up. Of a path, only the name
    counts."""
    return Path(agent).absolute().name if agent is not None and ("/" in agent or agent == ".") else agent
