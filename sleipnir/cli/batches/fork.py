"""`batch fork`: a batch of forks of the rows of another batch."""

from __future__ import annotations

import os
from typing import Any

import click

from sleipnir.batches.records import submission_id
from sleipnir.cli import exit_codes
from sleipnir.cli.batches.submit import SubmitView, plan_options, print_submitted
from sleipnir.cli.completion import complete_agent, complete_batch, complete_batch_node
from sleipnir.cli.knowledge.building import counted
from sleipnir.cli.options import COUNT_OR_NONE, GlobalOptions, pass_options
from sleipnir.cli.runs.fork import doubt_model
from sleipnir.cli.runs.parameters import OVERRIDE, PATCH, TAG, json_values
from sleipnir.cli.terminal import terminal
from sleipnir.errors import SleipnirError


@click.command()
@click.argument("batch_id", metavar="BATCH", shell_complete=complete_batch)
@click.option("--failed", is_flag=True, help="Only failed rows.")
@click.option(
    "--where", metavar="CEL",
    help="Only rows for which this expression is true, over key, row, status, output, error, tokens, cost, seconds, "
    "path, state and variables.",
)  # fmt: skip
@click.option("--at", metavar="STEP", type=COUNT_OR_NONE, help="Go on after this step of each run.")
@click.option(
    "--before", metavar="NODE", shell_complete=complete_batch_node,
    help="Go on before the last visit of this node. Without --at and --before: at the last checkpoint of each run that "
    "leads anywhere.",
)  # fmt: skip
@click.option(
    "--set", "state", multiple=True, metavar="NAME=JSON", callback=json_values,
    help="A value that replaces that of the past; repeatable.",
)  # fmt: skip
@click.option(
    "--agent", metavar="AGENT", shell_complete=complete_agent,
    help="The agent, or its folder, whose current definition the forks have. Default: that of BATCH.",
)  # fmt: skip
@click.option(
    "--model", metavar="CLIENT:MODEL",
    help="The model of all llm nodes, also of those that name another one, and of agents that they start.",
)  # fmt: skip
@OVERRIDE
@PATCH
@TAG
@click.option("--name", default="", help="The name of the batch. The same command with the same name continues it.")
@plan_options
@click.option("--json", "as_data", is_flag=True, help="Print one JSON document on stdout instead of the id.")
@pass_options
def fork(options: GlobalOptions, /, batch_id: str, as_data: bool, **given: Any) -> int:
    """Submit a batch of forks: each row goes on from the run of a row of BATCH, and has its key. Prints its id.

    BATCH stays as it is. Rows that have not started are left out. Where a fork begins is found out when its row starts:
    a row whose run never came to the node, or has expired, fails with the reason.

    \b
    sleipnir batch fork monday --failed --before third --agent .
    sleipnir batch fork monday --where 'output.contains("sorry")' --before answer --model openai:gpt-4o --canary 20
    sleipnir compare monday FORKS

    Exit codes: 0 submitted, 1 some rows could not be chosen, 2 nothing was submitted, 130 interrupted.
    """
    if given["at"] is not None and given["before"] is not None:
        raise click.UsageError("--at and --before exclude each other")
    doubt_model(options, given["model"])
    with options.connected(workers=False) as client, SubmitView() as view:
        source = client.open_batch(batch_id)
        made = submission_id("fork", source.id, given["name"] or os.urandom(16).hex())
        _tell_left_out(source.info().waiting)
        try:
            batch = client.fork_batch(source, id=made, on_bad=view.refuse, on_progress=view.see, **given)
        except (KeyboardInterrupt, SleipnirError) as stopped:
            view.hide()
            if view.so_far is not None:
                _say_it_is_unfinished(options, made, view)
            if isinstance(stopped, KeyboardInterrupt):
                return exit_codes.INTERRUPTED
            raise
    return print_submitted(batch, options, as_data=as_data)


def _tell_left_out(waiting: int) -> None:
    if waiting:
        terminal.note(f"{counted(waiting, 'row')} that wait to start are left out")


def _say_it_is_unfinished(options: GlobalOptions, batch: str, view: SubmitView) -> None:
    assert view.so_far is not None
    terminal.note(f"\nbatch {batch} has {counted(view.so_far.added + view.so_far.known, 'row')} of these, which run")
    terminal.note(f"  {options.command('batch', 'cancel', batch)}   to stop it")
