"""`skip`: finish a visit with a value that a person gives."""

from __future__ import annotations

import click

from sleipnir.cli.completion import complete_open_visit, complete_run
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs.parameters import json_value
from sleipnir.cli.terminal.render import print_json
from sleipnir.cli.terminal.terminal import note


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.argument("node", metavar="NODE", shell_complete=complete_open_visit)
@click.option("--with", "value", metavar="JSON", callback=json_value, help="The output of the node. Default: none.")
@click.option(
    "--to", "targets", metavar="NODE", multiple=True,
    help="Go on at this node instead of where the edges lead; repeatable.",
)  # fmt: skip
@click.option("--reason", metavar="TEXT", help="The reason, shown in the history.")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON document.")
@pass_options
def skip(
    options: GlobalOptions,
    run_id: str,
    node: str,
    value: object,
    targets: tuple[str, ...],
    reason: str | None,
    as_data: bool,
) -> None:
    """Finish a visit of RUN that waits or has failed, as if its node had returned the value.

    NODE is the node, or the number of the visit if the node has several (`sleipnir show RUN`). A script or function
    returns an object of state keys, an llm or approval node a text (quoted: '"yes"'), a map the list of its results. A
    child run that the visit waits for is cancelled; a late result of its worker is refused. A failed run goes on, as
    after `retry`.
    """
    with options.connected(workers=False) as client:
        run = client.run(run_id)
        seq = run.skip(node, value, to=targets, reason=reason)
    if as_data:
        print_json({"run": run.id, "visit": seq})
    else:
        note(f"visit {seq} of run {run.id} is being skipped")
