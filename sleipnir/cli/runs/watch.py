"""`watch` and `wait`: follow runs until they end."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import GlobalOptions, Seconds, pass_options
from sleipnir.cli.runs import breakpoints
from sleipnir.cli.runs.delays import DelayNotice, missing_in_words, notes, patience_s
from sleipnir.cli.runs.follow import STREAM, follow, print_result, say_it_goes_on
from sleipnir.cli.runs.gate_answers import how_to_answer
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import print_json
from sleipnir.runs.reasons import end_in_words

if TYPE_CHECKING:
    from sleipnir.client.client import Client, Run
    from sleipnir.runs.views import GateInfo, RunInfo

LOOK_S = 1.0  # how often runs that have not ended are looked at for new questions


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.option("--json", "as_data", is_flag=True, help="Print the run as one JSON document at the end.")
@click.option("--children", is_flag=True, help="Narrate the runs below it too, with the path to each.")
@STREAM
@pass_options
def watch(options: GlobalOptions, run_id: str, as_data: bool, children: bool, stream: bool | None) -> int:
    """Narrate RUN from its beginning, follow it to its end and print its result. Exit codes as of `run`."""
    with options.connected(workers=True) as client:
        run = client.run(run_id)
        try:
            follow(
                run,
                lambda gate: _say_if_open(run, gate, options),
                stream=stream,
                as_data=as_data,
                options=options,
                on_stop=lambda stopped: breakpoints.say(stopped, options),
                events=partial(run.stream, subgraphs=True) if children else None,
            )
        except KeyboardInterrupt:
            say_it_goes_on(run.id, options)
            return exit_codes.INTERRUPTED
        return print_result(run, as_data=as_data, stream=stream)


def _say_if_open(run: Run, gate: GateInfo, options: GlobalOptions) -> None:
    """Questions of the past were answered; only an open one needs the command."""
    still_open = run.gates()
    if any((gate.seq, gate.attempt) == (open_.seq, open_.attempt) for open_ in still_open):
        terminal.note(how_to_answer(gate, options, still_open))


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option(
    "--timeout", "timeout_s", type=Seconds(min=0), metavar="DURATION", help="Give up after this time: 30, 30s, 5m."
)
@click.option("--json", "as_data", is_flag=True, help="Print the runs as one JSON list.")
@pass_options
def wait(options: GlobalOptions, run_ids: tuple[str, ...], timeout_s: float | None, as_data: bool) -> int:
    """Wait until every RUN has ended.

    Exit codes: 0 all completed, 1 one failed, was cancelled or did not end in time, 3 one was still waiting
    for an answer, or at a breakpoint, when the time was up.
    """
    with options.connected(workers=True) as client:
        from sleipnir.client.run import missing_for

        runs = {run.id: run for run in map(client.run, run_ids)}
        announced: set[tuple[str, int]] = set()
        delays = DelayNotice(
            lambda: missing_in_words(missing_for(client.store, list(runs)), options), notes, patience_s(options)
        )
        with _progress(len(runs)) as ended_one, delays:
            for _ in _as_they_end(
                client, list(runs), timeout_s, lambda run_id: _say_once(runs[run_id], announced, options)
            ):
                ended_one()
                delays.moved()
        infos = [run.info() for run in runs.values()]
    if as_data:
        print_json(infos)
    for info in infos:
        _say_how_it_ended(info)
    return _worst(["waiting" if info.is_over_budget or info.breakpoints else info.status for info in infos])


def _as_they_end(
    client: Client, run_ids: list[str], timeout_s: float | None, on_look: Callable[[str], None]
) -> Iterator[RunInfo]:
    """Each run's record when it ends; stops at the timeout. Calls `on_look` for the remaining runs, every LOOK_S."""
    from sleipnir.client.run import wait_all

    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    left = run_ids
    while left:
        ended = set()
        with contextlib.suppress(TimeoutError):
            for info in wait_all(client.store, left, min(LOOK_S, max(0.0, deadline - time.monotonic()))):
                ended.add(info.id)
                yield info
        left = [run_id for run_id in left if run_id not in ended]
        for run_id in left:
            on_look(run_id)
        if time.monotonic() >= deadline:
            return


def _say_once(run: Run, announced: set[tuple[str, int]], options: GlobalOptions) -> None:
    still_open = run.gates()
    for gate in still_open:
        if (run.id, gate.seq) not in announced:
            announced.add((run.id, gate.seq))
            terminal.note(how_to_answer(gate, options, still_open))
    for info in run.active():
        since_ms = [hold.at_ms for hold in info.holds if hold.breakpoint is not None]
        if since_ms and (info.id, max(since_ms)) not in announced:
            announced.add((info.id, max(since_ms)))
            terminal.note(breakpoints.how_to_resume(info, options))


def _say_how_it_ended(info: RunInfo) -> None:
    if not info.is_final:
        terminal.error(f"run {info.id} has not ended in time: it is {info.status}")
    elif info.status == "failed":
        terminal.error(f"run {info.id} failed: {info.error}")
    else:
        terminal.note(f"run {info.id} {end_in_words(info)}")


def _worst(statuses: list[str]) -> int:
    """The combined exit code: failure before waiting before success."""
    codes = {exit_codes.of_status(status) for status in statuses}
    return next((code for code in (exit_codes.FAILED, exit_codes.WAITING) if code in codes), exit_codes.COMPLETED)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar for several runs on a terminal; nothing elsewhere. Yields what to call per ended run."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, color_system="auto" if terminal.wants_colour(sys.stderr) else None)
    columns = (TextColumn("runs ended"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("runs", total=total)
        yield lambda: progress.advance(task)
