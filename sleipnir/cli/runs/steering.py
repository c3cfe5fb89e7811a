"""`pause` and `resume` runs or a whole deployment; `cancel` and `retry` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_run
from sleipnir.cli.failures import report
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import render, terminal
from sleipnir.errors import SleipnirError
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.reasons import retry_in_words

if TYPE_CHECKING:
    from sleipnir.client.client import Run

_RUNS = click.argument("run_ids", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
_ALL = click.option("--all", "everything", is_flag=True, help="The whole deployment, including future runs.")


@click.command()
@_RUNS
@_ALL
@click.option("--reason", metavar="TEXT", help="The reason, shown with the pause.")
@pass_options
def pause(options: GlobalOptions, run_ids: tuple[str, ...], everything: bool, reason: str | None) -> int:
    """Pause runs: active visits finish and are committed, answers are accepted, and no visit starts until `resume`.

    The timeout of a paused run is suspended. With --all, the deployment is paused (for an incident): no worker starts a
    visit of any run; timeouts continue.
    """
    _one_of(run_ids, everything)
    if not everything:
        return each_run(options, run_ids, lambda run: run.pause(reason=reason), "is being paused")
    with options.connected(workers=False) as client:
        client.pause_all(reason=reason)
        held = client.held()
    terminal.note(f"the deployment is paused (by {held.by if held else client.by}); `sleipnir resume --all` resumes it")
    return exit_codes.COMPLETED


@click.command()
@_RUNS
@_ALL
@pass_options
def resume(options: GlobalOptions, run_ids: tuple[str, ...], everything: bool) -> int:
    """Resume paused runs, or with --all a paused deployment. A run over its budget waits for an answer."""
    _one_of(run_ids, everything)
    if not everything:
        return each_run(options, run_ids, _resume, "is resumed")
    with options.connected(workers=False) as client:
        was_held = client.resume_all()
        last = None if was_held else client.resumed()
    since = f"; {last.by} resumed it last, {render.moment(last.at_ms)}" if last else ""
    terminal.note("the deployment is resumed" if was_held else f"the deployment was not paused{since}")
    return exit_codes.COMPLETED


def _resume(run: Run) -> str | None:
    """What else pauses it."""
    run.resume()
    info = run.info()
    if any(gate.kind == BUDGET for gate in run.gates()):
        return f"it continues after its budget question is answered: sleipnir answer {run.id} {BUDGET} yes"
    others = {hold.owner for hold in info.holds} - {"person"}
    if "parent" in others:
        return f"it continues after its parent run is resumed: sleipnir resume {info.parent}"
    return "it continues after the deployment is resumed: sleipnir resume --all" if "deployment" in others else None


def _one_of(run_ids: tuple[str, ...], everything: bool) -> None:
    if bool(run_ids) == everything:
        raise click.UsageError("name runs, or pass --all for the whole deployment")


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@pass_options
def cancel(options: GlobalOptions, run_ids: tuple[str, ...]) -> int:
    """Cancel runs: later results are refused, running scripts are killed."""
    return each_run(options, run_ids, lambda run: run.cancel(), "is being cancelled")


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--fresh-children", is_flag=True, help="Start the runs of agent nodes that failed from their beginning.")
@pass_options
def retry(options: GlobalOptions, run_ids: tuple[str, ...], fresh_children: bool) -> int:
    """Continue failed runs: failed visits run again, with the current state.

    Other ended visits are kept, and so are ended items of a map; `sleipnir show RUN` shows in advance what runs again.
    A child run that failed, or was cancelled because of that, continues where it stopped. The run keeps the agent's
    definition that it started with. Its timeout restarts.
    """

    def again(run: Run) -> str:
        info = run.info()
        run.retry(fresh_children=fresh_children)
        return retry_in_words(info, fresh_children=fresh_children)

    return each_run(options, run_ids, again, "continues")


def each_run(options: GlobalOptions, run_ids: Sequence[str], act: Callable[[Run], str | None], outcome: str) -> int:
    """Call `act` for each run and report it, with the text from `act`; a refusal does not affect the other runs."""
    code = exit_codes.COMPLETED
    with options.connected(workers=False) as client:
        for run_id in run_ids:
            try:
                run = client.run(run_id)
                more = act(run)
                terminal.note(f"run {run.id} {outcome}" + (f": {more}" if more else ""))
            except SleipnirError as failure:
                code = max(code, report(failure))
    return code
