"""`cache`: lists and clears the cached results of nodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_agent, complete_node
from sleipnir.cli.knowledge.building import counted
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table, size
from sleipnir.errors import AgentNotFound, GraphError

if TYPE_CHECKING:
    from sleipnir.client.client import Client

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
def clear(options: GlobalOptions, agent: str | None, node: str | None, as_data: bool) -> int:
    """Remove the cached results of NODE, of all nodes of AGENT, or of all agents.

    The results of visits that run now are not kept either. Exit codes: 0, or 1 if nothing was removed, and this machine
    has no such agent or node.
    """
    with options.connected(workers=False) as client:
        removed = client.clear_cache(_name_of(agent), node)
        why = None if removed or agent is None else _why_unknown(agent, node, client)
    if as_data:
        print_json({"agent": agent, "node": node, "removed": removed})
    else:
        terminal.note(f"{counted(removed, 'cached result')} removed")
    if why is not None:
        terminal.error(why)
        return exit_codes.FAILED
    return exit_codes.COMPLETED


def _why_unknown(agent: str, node: str | None, client: Client) -> str | None:
    """Why there may be no such agent or node: there is none on this machine, and it has no cached results. None: it may
    be there. The cache is also that of agents which only other machines have."""
    from sleipnir.agents.source import locate, read

    name = _name_of(agent)
    try:
        source = locate(agent, client.settings)
    except AgentNotFound as error:
        if client.cached_results(name):
            return None if node is None else f"agent {name!r} has cached results of other nodes, and none of {node!r}"
        return f"agent {name!r} has no cached results, and this machine has no such agent: {error}"
    if node is None:
        return None
    try:
        graph = read(source)
    except GraphError:
        return None  # its nodes cannot be known
    nodes = [name for each in (graph, *graph.graphs.values()) for name in each.nodes]
    if node in nodes:
        return None
    return (
        f"node {node!r} of agent {name!r} has no cached results, and there is no such node; it has: {', '.join(nodes)}"
    )


def _name_of(agent: str | None) -> str | None:
    """An agent that no longer exists may still have cached results: its name is not looked up. Of a path, only the name
    counts."""
    return Path(agent).absolute().name if agent is not None and ("/" in agent or agent == ".") else agent
