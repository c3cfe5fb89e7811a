"""`fork`: submit a run that goes on from a checkpoint of another one."""

from __future__ import annotations

from typing import Any

import click

from sleipnir.cli.completion import complete_agent, complete_checkpoint, complete_run, complete_visited_node
from sleipnir.cli.options import COUNT_OR_NONE, GlobalOptions, pass_options
from sleipnir.cli.runs.parameters import json_values
from sleipnir.cli.terminal.render import print_json
from sleipnir.cli.terminal.terminal import note


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.option(
    "--at", "step", metavar="STEP", type=COUNT_OR_NONE, shell_complete=complete_checkpoint,
    help="Go on after this checkpoint. Default: the last one that leads anywhere.",
)  # fmt: skip
@click.option(
    "--before", "node", metavar="NODE", shell_complete=complete_visited_node,
    help="Go on before the last visit of this node.",
)  # fmt: skip
@click.option(
    "--set", "state", multiple=True, metavar="NAME=JSON", callback=json_values,
    help="A value that replaces that of the past; repeatable.",
)  # fmt: skip
@click.option(
    "--agent", metavar="AGENT", shell_complete=complete_agent,
    help="The agent, or its folder, whose current definition the fork has. Default: that of RUN.",
)  # fmt: skip
@click.option("--json", "as_data", is_flag=True, help="Print a JSON document instead of the id.")
@pass_options
def fork(
    options: GlobalOptions,
    run_id: str,
    step: int | None,
    node: str | None,
    state: dict[str, Any],
    agent: str | None,
    as_data: bool,
) -> None:
    """Submit a run that goes on where RUN was after a step, and print its id without waiting.

    RUN stays as it is. What it did before that step is not done again; all later visits are new. `sleipnir history RUN`
    marks the checkpoints.
    """
    if step is not None and node is not None:
        raise click.UsageError("--at and --before exclude each other")
    with options.connected(workers=False) as client:
        made = client.run(run_id).fork(at=step, before=node, state=state, agent=agent)
        info = made.info()
    if as_data:
        print_json({"run": made.id, "source": info.forked_from, "step": info.forked_at})
    else:
        click.echo(made.id)
    if options.is_embedded:
        note(f"it runs while `sleipnir up` runs; or follow it here: {options.command('watch', made.id)}")
