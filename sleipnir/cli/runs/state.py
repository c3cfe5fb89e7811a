"""`state`: the state of a run, now or after a step, and what two steps have changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.completion import complete_checkpoint, complete_run
from sleipnir.cli.options import COUNT_OR_NONE, GlobalOptions, pass_options
from sleipnir.cli.terminal.render import print_json, print_table
from sleipnir.cli.terminal.terminal import note
from sleipnir.runs.plain_text import one_line

if TYPE_CHECKING:
    from sleipnir.client.client import Run
    from sleipnir.runs.state_differences import StateDifference

SHOWN = 100  # characters of a value in a table, in that of a difference half of it


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.option(
    "--at", "step", metavar="STEP", type=COUNT_OR_NONE, shell_complete=complete_checkpoint, help="After this step."
)
@click.option(
    "--diff",
    "steps",
    metavar="STEP STEP",
    type=COUNT_OR_NONE,
    nargs=2,
    shell_complete=complete_checkpoint,
    help="What differs between the state after one step and after the other.",
)
@click.option("--json", "as_data", is_flag=True, help="Print the complete values as one JSON document.")
@pass_options
def state(options: GlobalOptions, run_id: str, step: int | None, steps: tuple[int, int] | None, as_data: bool) -> None:
    """Show the state of RUN: now, or after a step of `sleipnir history RUN`. Step 0 is the submission.

    Long values are shortened; --json has them complete.
    """
    if step is not None and steps is not None:
        raise click.UsageError("--at and --diff exclude each other")
    with options.connected(workers=False) as client:
        run = client.run(run_id)
        if steps is not None:
            difference = run.state_difference(*steps)
            for each in dict.fromkeys(steps):
                _tell_open(run, each)
            if as_data:
                print_json(_data(difference))
            else:
                print_table(["change", "key", *(f"at {each}" for each in steps)], list(_rows(difference)))
            return
        values = run.state() if step is None else run.state_at(step)
        if step is not None:
            _tell_open(run, step)
    if as_data:
        print_json(values)
    else:
        print_table(["key", "value"], [[name, _shown(value)] for name, value in values.items()])


def _tell_open(run: Run, step: int) -> None:
    """Say what the state is that of, at a step where a super-step is open."""
    if (checkpoint := run.checkpoint(step)) != step:
        note(
            f"step {step} is no checkpoint; the last one before it is {checkpoint}. Writes of visits whose super-step "
            f"was open at step {step} count from the step on that closes it"
        )


def _rows(difference: StateDifference) -> Iterator[list[str]]:
    half = SHOWN // 2
    yield from (["removed", name, _shown(value, half), ""] for name, value in difference.removed.items())
    for name, values in difference.changed.items():
        yield ["changed", name, *(_shown(value, half) for value in values)]
    yield from (["added", name, "", _shown(value, half)] for name, value in difference.added.items())


def _data(difference: StateDifference) -> dict[str, Any]:
    changed = {name: {"before": before, "after": after} for name, (before, after) in difference.changed.items()}
    return {"changed": changed, "added": difference.added, "removed": difference.removed}


def _shown(value: Any, most: int = SHOWN) -> str:
    """The JSON of a value, shortened: a state may have values of megabytes."""
    from sleipnir.graph.plain import compact_json

    return one_line(compact_json(value), most)
