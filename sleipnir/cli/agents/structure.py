"""`structure export`: an agent as nodes, edges and surfaces, for editors and tools that patch runs. Needs no Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.completion import complete_agent
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal.render import print_fields, print_json, print_table
from sleipnir.runs.plain_text import one_line

if TYPE_CHECKING:
    from sleipnir.graph.structure import Structure, StructureEdge

MOST_VALUE = 60


@click.group()
def structure() -> None:
    """Show what an agent is made of."""


@structure.command()
@click.argument("agent", metavar="AGENT|FOLDER", shell_complete=complete_agent)
@click.option("--json", "as_data", is_flag=True, help="Print one JSON document, with whole instructions.")
@pass_options
def export(options: GlobalOptions, agent: str, as_data: bool) -> None:
    """List the nodes of AGENT, every possible edge, and the surfaces that `--patch` may replace in a run.

    The nodes of agents and graphs that its nodes run are listed below these. The id is the same on every machine, and
    changes with the definition.
    """
    from sleipnir.client.agent_preparation import AgentPreparation

    found = AgentPreparation(options.settings(), packs=False).structure(agent)
    if as_data:
        print_json(found.to_json())
    else:
        _print(found)


def _print(found: Structure) -> None:
    print_fields([("structure", found.id), ("agent", found.agent), ("entry", found.entry)])
    click.echo()
    nodes = [[node.id, node.kind, "again" if node.again else ""] for node in found.nodes]
    print_table(["node", "type", "mounted"], nodes)
    click.echo()
    print_table(["from", "to", "edge"], [[edge.source, edge.target, _kind(edge)] for edge in found.edges])
    if found.surfaces:
        click.echo()
        print_table(["surface", "value"], [[each.id, _value(each.value)] for each in found.surfaces])


def _value(value: Any) -> str:
    text = ", ".join(value) if isinstance(value, list) else str(value or "")
    return one_line(text, MOST_VALUE)


def _kind(edge: StructureEdge) -> str:
    return edge.kind + (f" {one_line(edge.label, MOST_VALUE)!r}" if edge.label else "")
