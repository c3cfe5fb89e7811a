"""`pause` and `resume` runs or a whole deployment; `cancel` and `retry` runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_run
from sleipnir.cli.failures import report
from sleipnir.cli.knowledge.building import counted
from sleipnir.cli.options import GlobalOptions, Seconds, pass_options
from sleipnir.cli.runs.run_options import SteeringView, chosen, is_any, refuse_both, selecting
from sleipnir.cli.terminal import render, terminal
from sleipnir.cli.terminal.render import print_json
from sleipnir.errors import SleipnirError
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.reasons import retry_in_words

if TYPE_CHECKING:
    from sleipnir.client.client import Run
    from sleipnir.client.mass_requests import SteeredRuns

_RUNS = click.argument("run_ids", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
_ALL = click.option(
    "--all", "everything", is_flag=True, help="The whole deployment, including future runs; or all runs chosen below."
)
_JSON = click.option("--json", "as_data", is_flag=True, help="With --all: print JSON.")


@click.command()
@_RUNS
@_ALL
@selecting
@click.option("--reason", metavar="TEXT", help="The reason, shown with the pause.")
@click.option(
    "--timeout", "timeout_s", type=Seconds(min=0),
    help="Stop visits that still run after this time; they run again later.",
)  # fmt: skip
@_JSON
@pass_options
def pause(
    options: GlobalOptions,
    /,
    run_ids: tuple[str, ...],
    everything: bool,
    reason: str | None,
    timeout_s: float | None,
    as_data: bool,
    **given: Any,
) -> int:
    """Pause runs: active visits finish and are committed, answers are accepted, and no visit starts until `resume`.

    The timeout of a paused run is suspended. With --timeout, visits that have not finished by then are stopped (0: at
    once); after `resume` they run again with the same input, which is no failure. With --all alone, the deployment is
    paused (for an incident): no worker starts a visit of any run; timeouts continue. With --all and options that
    choose runs, those that are not over are paused one by one, without runs that start later; safe to repeat.
    """
    _check(run_ids, everything, given, as_data=as_data)
    if not everything:
        return each_run(options, run_ids, lambda run: run.pause(reason=reason, timeout=timeout_s), "is being paused")
    with options.connected(workers=False) as client:
        if is_any(given):
            with SteeringView("pausing") as view:
                done = client.pause_runs(
                    **chosen(client, given), reason=reason, timeout=timeout_s, on_progress=view.see
                )
            return _steered(done, "being paused", as_data=as_data)
        if timeout_s is not None:
            raise click.UsageError("--timeout is for runs; a paused deployment lets finish what runs")
        client.pause_all(reason=reason)
        held = client.held()
    if as_data:
        print_json({"deployment": "paused", "by": held.by if held else client.by})
    else:
        by = held.by if held else client.by
        terminal.note(f"the deployment is paused (by {by}); `sleipnir resume --all` resumes it")
    return exit_codes.COMPLETED


@click.command()
@_RUNS
@_ALL
@selecting
@_JSON
@pass_options
def resume(options: GlobalOptions, /, run_ids: tuple[str, ...], everything: bool, as_data: bool, **given: Any) -> int:
    """Resume paused runs, or with --all a paused deployment. A run over its budget waits for an answer.

    A run at a breakpoint goes past it, and so do child runs that it waits for. It may stop at the next one. With --all
    and options that choose runs, those of them are resumed that a person has paused, or that are at a breakpoint.
    """
    _check(run_ids, everything, given, as_data=as_data)
    if not everything:
        return each_run(options, run_ids, _resume, "is resumed")
    with options.connected(workers=False) as client:
        if is_any(given):
            with SteeringView("resuming") as view:
                done = client.resume_runs(**chosen(client, given), on_progress=view.see)
            return _steered(done, "resumed", as_data=as_data)
        was_held = client.resume_all()
        last = None if was_held else client.resumed()
    if as_data:
        print_json({"deployment": "resumed", "was_paused": was_held})
        return exit_codes.COMPLETED
    since = f"; {last.by} resumed it last, {render.moment(last.at_ms)}" if last else ""
    terminal.note("the deployment is resumed" if was_held else f"the deployment was not paused{since}")
    return exit_codes.COMPLETED


def _steered(done: SteeredRuns, outcome: str, *, as_data: bool) -> int:
    if as_data:
        print_json(done)
        return exit_codes.COMPLETED
    left = f"; {counted(done.left, 'run')} needed nothing" if done.left else ""
    are = "is" if done.requested == 1 else "are"
    steered = f"{counted(done.requested, 'run')} {are} {outcome}" if done.requested else "no such runs"
    terminal.note(f"{steered}{left}")
    return exit_codes.COMPLETED


def _resume(run: Run) -> str | None:
    """What else pauses it."""
    run.resume()
    info = run.info()
    if any(gate.kind == BUDGET for gate in run.gates()):
        return f"it continues after its budget question is answered: sleipnir answer {run.id} {BUDGET} yes"
    others = {hold.owner for hold in info.holds} - {"person", "breakpoint"}
    if "parent" in others:
        return f"it continues after its parent run is resumed: sleipnir resume {info.parent}"
    if "deployment" in others:
        return "it continues after the deployment is resumed: sleipnir resume --all"
    if "namespace" in others:
        return (
            f"it continues after its namespace is resumed: sleipnir incident resume --all --namespace {info.namespace}"
        )
    return None


def _check(run_ids: tuple[str, ...], everything: bool, given: Mapping[str, Any], *, as_data: bool) -> None:
    refuse_both(given)
    if bool(run_ids) == everything:
        raise click.UsageError("name runs, or pass --all for the whole deployment")
    if run_ids and (is_any(given) or as_data):
        raise click.UsageError("options that choose runs, and --json, go with --all, not with the names of runs")


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


def each_run(
    options: GlobalOptions,
    run_ids: Sequence[str],
    act: Callable[[Run], str | None],
    outcome: str,
    person: str | None = None,
) -> int:
    """Call `act` for each run and report it, with the text from `act`; a refusal does not affect the other runs. It is
    done in the name of a `person`; None: the user of this process."""
    code = exit_codes.COMPLETED
    with options.connected(workers=False) as client:
        acting = client if person is None else client.acting_as(client.actor.named(person))
        for run_id in run_ids:
            try:
                run = acting.run(run_id)
                more = act(run)
                terminal.note(f"run {run.id} {outcome}" + (f": {more}" if more else ""))
            except SleipnirError as failure:
                code = max(code, report(failure))
    return code
