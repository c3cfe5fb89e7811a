"""`trace`: what the visits of a run did and what opened them, as a tree with the runs that they started."""

from __future__ import annotations

import click

from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import COUNT, COUNT_OR_NONE, GlobalOptions, pass_options
from sleipnir.cli.terminal.render import print_json

DEPTH, LIMIT, MOST_JSON = 3, 100, 10_000


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.option(
    "--depth", type=COUNT_OR_NONE, metavar="N", default=DEPTH, show_default=True, help="The levels of runs below RUN."
)
@click.option(
    "--limit",
    type=COUNT,
    metavar="N",
    help=f"The steps of each run that are shown ({LIMIT}); with --json, of all together ({MOST_JSON:,}).",
)
@click.option("--json", "as_data", is_flag=True, help="Print one JSON document, with a flat list of the steps.")
@pass_options
def trace(options: GlobalOptions, run_id: str, depth: int, limit: int | None, as_data: bool) -> None:
    """Draw what the visits of RUN did, and the runs that they started: times, tokens, cost, tools, errors.

    A visit is one line, however often it was tried. `after` lists the visits that opened it, if they are several.
    """
    with options.connected(workers=False) as client:
        run = client.run(run_id)
        if as_data:
            print_json(run.trace(depth=depth, limit=limit or MOST_JSON).to_json())
            return
        for line in run.trace_lines(depth=depth, limit=limit or LIMIT):
            click.echo(line)
