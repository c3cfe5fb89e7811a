"""`pause` and `resume`: hold runs, or all of a deployment, and let them go on. `cancel` and `retry`: end runs, and
continue failed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_run
from sleipnir.cli.failures import report
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs.reasons import retry_in_words
from sleipnir.cli.terminal import render, terminal
from sleipnir.errors import SleipnirError
from sleipnir.runs.budgets import BUDGET

if TYPE_CHECKING:
    from sleipnir.client.client import Run

_RUNS = click.argument("run_ids", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
_ALL = click.option("--all", "everything", is_flag=True, help="The whole deployment, runs still to come included.")


@click.command()
@_RUNS
@_ALL
@click.option("--reason", metavar="TEXT", help="Why; shown to whoever wonders.")
@pass_options
def pause(options: GlobalOptions, run_ids: tuple[str, ...], everything: bool, reason: str | None) -> int:
    """Hold runs: what runs ends and is committed, answers are taken, and nothing new starts until `resume`.

    The timeout of a paused run stands still. With --all, the deployment is held (for an incident): no worker starts
    anything, whatever is submitted; timeouts go on.
    """
    _one_of(run_ids, everything)
    if not everything:
        return each_run(options, run_ids, lambda run: run.pause(reason=reason), "is being paused")
    with options.connected(workers=False) as client:
        client.pause_all(reason=reason)
        held = client.held()
    terminal.note(
        f"the deployment is paused (by {held.by if held else client.by}); `sleipnir resume --all` lets it go on"
    )
    return exit_codes.COMPLETED


@click.command()
@_RUNS
@_ALL
@pass_options
def resume(options: GlobalOptions, run_ids: tuple[str, ...], everything: bool) -> int:
    """Let paused runs, or with --all a paused deployment, go on. One over its budget waits for an answer."""
    _one_of(run_ids, everything)
    if not everything:
        return each_run(options, run_ids, _resume, "goes on")
    with options.connected(workers=False) as client:
        was_held = client.resume_all()
        last = None if was_held else client.resumed()
    since = f"; {last.by} let it go on last, {render.moment(last.at_ms)}" if last else ""
    terminal.note("the deployment goes on" if was_held else f"the deployment was not paused{since}")
    return exit_codes.COMPLETED


def _resume(run: Run) -> str | None:
    """What else holds it."""
    run.resume()
    info = run.info()
    if any(gate.kind == BUDGET for gate in run.gates()):
        return f"once its budget is decided about: sleipnir answer {run.id} {BUDGET} yes"
    others = {hold.owner for hold in info.holds} - {"person"}
    if "parent" in others:
        return f"once its parent run does: sleipnir resume {info.parent}"
    return "once the deployment does: sleipnir resume --all" if "deployment" in others else None


def _one_of(run_ids: tuple[str, ...], everything: bool) -> None:
    if bool(run_ids) == everything:
        raise click.UsageError("name runs, or say --all for the whole deployment")


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@pass_options
def cancel(options: GlobalOptions, run_ids: tuple[str, ...]) -> int:
    """Stop runs for good: nothing is committed after this, running scripts are killed."""
    return each_run(options, run_ids, lambda run: run.cancel(), "is being cancelled")


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--fresh-children", is_flag=True, help="Start the runs of agent nodes that failed from their beginning.")
@pass_options
def retry(options: GlobalOptions, run_ids: tuple[str, ...], fresh_children: bool) -> int:
    """Continue failed runs: what failed runs again, with the state as it is.

    What has ended beside it is kept, and so are the items of a map that are done; `sleipnir show RUN` says beforehand
    what runs again. A child run that failed, or was cancelled for that, goes on from where it was. The run keeps the
    agent's definition that it started with. Its timeout starts anew.
    """

    def again(run: Run) -> str:
        info = run.info()
        run.retry(fresh_children=fresh_children)
        return retry_in_words(info, fresh_children=fresh_children)

    return each_run(options, run_ids, again, "goes on")


def each_run(options: GlobalOptions, run_ids: Sequence[str], act: Callable[[Run], str | None], said: str) -> int:
    """Do something to each run, and say so, with what `act` has to say besides; one that refuses does not keep the
    others from it."""
    code = exit_codes.COMPLETED
    with options.connected(workers=False) as client:
        for run_id in run_ids:
            try:
                run = client.run(run_id)
                more = act(run)
                terminal.note(f"run {run.id} {said}" + (f": {more}" if more else ""))
            except SleipnirError as failure:
                code = max(code, report(failure))
    return code
