"""`schedule`: run an agent at certain times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sleipnir.batches.records import PRIORITIES
from sleipnir.cli.completion import complete_agent, complete_schedule, complete_time_zone
from sleipnir.cli.knowledge.building import BuildView, counted
from sleipnir.cli.options import COUNT, GlobalOptions, pass_options
from sleipnir.cli.runs import agent_warnings
from sleipnir.cli.runs.parameters import (
    AGENT,
    AGENT_VARIABLE,
    BREAK_AFTER,
    BREAK_BEFORE,
    CONTEXT,
    CWD,
    FILE,
    MAX_COST,
    MAX_TOKENS,
    NAMESPACE,
    OVERRIDE,
    PATCH,
    PROMPT,
    RECURSION_LIMIT,
    STATE,
    STRICT,
    TAG,
    USER,
    VAR,
    RunParameters,
    json_values,
)
from sleipnir.cli.runs.run import prompt_text
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import as_json, moment, print_fields, print_json, print_table
from sleipnir.runs.plain_text import duration, one_line, printable
from sleipnir.schedules.words import fire_in_words, in_zone, when

if TYPE_CHECKING:
    from sleipnir.client.client import Client
    from sleipnir.client.schedule import Schedule
    from sleipnir.client.scheduled_rows import ScheduleRows
    from sleipnir.schedules.records import Fire, ScheduledRun, ScheduleInfo

SHOWN_FIRES = 10

Command = TypeVar("Command", bound=Callable[..., Any])

_NAME = click.argument("name", shell_complete=complete_schedule)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")
_REASON = click.option("--reason", default="", metavar="TEXT", help="Why, for the audit and others who look at it.")
_PLAN = (
    click.option("--cron", metavar="EXPRESSION", help="Five fields, as in '0 7 * * 1-5'."),
    click.option("--every", metavar="DURATION", help="An interval, counted from now: 90s, 2h, 1d."),
    click.option("--at", metavar="TIME", help="Once, at a date and time: 2026-12-01T07:00."),
    click.option("--tz", metavar="ZONE", shell_complete=complete_time_zone, help="The time zone of --cron and --at."),
    click.option(
        "--overlap", type=click.Choice(("skip", "queue", "allow", "cancel")),
        help="If the run before is not over: skip the fire (the default), let it wait (one at most), start it too, or "
        "cancel the old run.",
    ),
    click.option(
        "--catch-up", "catch_up", metavar="DURATION",
        help="Make up for all missed fires that are at most that old. 'latest', the default: only for the last one.",
    ),
    click.option("--jitter", metavar="DURATION", help="Put each fire off by up to that long."),
)  # fmt: skip
_BATCH = (
    click.option(
        "--batch", type=click.Path(exists=True, dir_okay=False), metavar="ROWS",
        help="Let each fire start a batch of the rows of a file, as `batch submit` reads it.",
    ),
    click.option("--key", metavar="COLUMN", help="With --batch: the column that identifies rows."),
    click.option("--priority", type=click.IntRange(PRIORITIES[0], PRIORITIES[-1]), help="With --batch: its share."),
    click.option("--parallel", type=COUNT, metavar="N", help="With --batch: its simultaneously active rows."),
    click.option("--canary", type=COUNT, metavar="N", help="With --batch: rows that run first."),
)  # fmt: skip
_RUN = (
    VAR, AGENT_VARIABLE, STATE, CONTEXT, CWD, MAX_COST, MAX_TOKENS, RECURSION_LIMIT, BREAK_BEFORE, BREAK_AFTER,
    OVERRIDE, PATCH, STRICT, USER, TAG, NAMESPACE,
)  # fmt: skip


def _with(*parameters: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def add_all(command: Command) -> Command:
        for parameter in reversed(parameters):
            command = parameter(command)
        return command

    return add_all


@click.group()
def schedule() -> None:
    """Run an agent at certain times: add, list, pause, change and remove schedules."""


@schedule.command()
@click.argument("name")
@_with(AGENT, PROMPT, FILE, *_PLAN, *_BATCH, *_RUN)
@_JSON
@pass_options
def add(
    options: GlobalOptions,
    /,
    name: str,
    agent: str,
    prompt: str | None,
    file: Path | None,
    as_data: bool,
    state: dict[str, Any],
    max_cost_usd: float | None,
    max_tokens: int | None,
    batch: str | None,
    **wanted: Any,
) -> None:
    """Add a schedule NAME: runs of AGENT with PROMPT start at the times of --cron, --every or --at.

    They have the definition that AGENT has now; `schedule edit --agent` gives later ones its definition of then. With
    --batch each fire starts a batch; its rows are checked and stored now, and the file is not read again.
    """
    plan = _plan_in(wanted)
    of_batch = {option: wanted.pop(option) for option in ("key", "priority", "parallel", "canary")}
    if batch is None and any(value is not None for value in of_batch.values()):
        raise click.UsageError("--key, --priority, --parallel and --canary are for the rows of --batch")
    if batch is not None and (prompt is not None or file is not None or state):
        raise click.UsageError(
            "the rows of --batch have the prompts and the state: leave out PROMPT, --file and --state"
        )
    text = "" if batch is not None else _checked(options, agent, prompt, file)
    if batch is not None:
        _warn_of(options, agent)
    with options.connected(workers=False) as client:
        agent_warnings.tell_warnings(client, agent, state)
        with BuildView() as view:
            added = client.schedule(
                name, agent, text, state=state, max_cost_usd=max_cost_usd, max_tokens=max_tokens,
                rows=None if batch is None else _rows_of(batch, of_batch), **plan,
                **RunParameters(**wanted).options(view),
            )  # fmt: skip
        _tell(added, options, as_data=as_data)


@schedule.command()
@_JSON
@pass_options
def ls(options: GlobalOptions, as_data: bool) -> None:
    """List schedules, by name: their next and last fires."""
    with options.connected(workers=False) as client:
        found = client.schedules()
        statuses = _last_statuses(client, found)
    if as_data:
        print_json([as_json(info) for info in found])
    elif found:
        print_table(("schedule", "agent", "state", "when", "next", "last", "run"), [_row(i, statuses) for i in found])
    else:
        terminal.note("no schedules; `sleipnir schedule add NAME AGENT --cron ...` adds one")


@schedule.command()
@_NAME
@click.option("--limit", type=COUNT, default=SHOWN_FIRES, show_default=True, help="Show so many of its last fires.")
@_JSON
@pass_options
def show(options: GlobalOptions, name: str, limit: int, as_data: bool) -> None:
    """Show a schedule: its times, its next and last fires, the runs of these and their statuses."""
    with options.connected(workers=False) as client:
        shown = client.open_schedule(name)
        info, fires, runs = shown.info(), shown.fires(limit), shown.runs(limit)
    if as_data:
        print_json({**as_json(info), "last_fires": as_json(fires), "runs": as_json(runs)})
    else:
        print_fields(_fields(info, fires, runs))


@schedule.command()
@_NAME
@_REASON
@pass_options
def pause(options: GlobalOptions, name: str, reason: str) -> None:
    """Let schedule NAME fire no more until `schedule resume`. Its runs go on."""
    with options.connected(workers=False) as client:
        client.open_schedule(name).pause(reason)
    terminal.note(f"schedule {name} is paused")


@schedule.command()
@_NAME
@pass_options
def resume(options: GlobalOptions, name: str) -> None:
    """Let a paused schedule fire again, from now on."""
    with options.connected(workers=False) as client:
        resumed = client.open_schedule(name)
        resumed.resume()
        info = resumed.info()
    terminal.note(f"schedule {name} fires next at {_local(info)}")


@schedule.command()
@_NAME
@_REASON
@pass_options
def rm(options: GlobalOptions, name: str, reason: str) -> None:
    """Remove schedule NAME. Its runs go on."""
    with options.connected(workers=False) as client:
        client.open_schedule(name).remove(reason)
    terminal.note(f"schedule {name} is removed")


@schedule.command("run-now")
@_NAME
@_JSON
@pass_options
def run_now(options: GlobalOptions, name: str, as_data: bool) -> None:
    """Start a run (or a batch) of schedule NAME now, besides its times, and print its id."""
    with options.connected(workers=False) as client:
        opened = client.open_schedule(name)
        work = opened.info().plan.work
        started = opened.run_now().id if work == "run" else opened.batch_now().id
    if as_data:
        print_json({"schedule": name, work: started})
    else:
        click.echo(started)


@schedule.command()
@_NAME
@click.option("--agent", shell_complete=complete_agent, help="Run this agent, with its definition of now.")
@click.option("--prompt", metavar="TEXT", help="The prompt of later runs.")
@click.option(
    "--state", "state", multiple=True, metavar="NAME=JSON", callback=json_values,
    help="An initial value of later runs; repeatable. It replaces all earlier ones.",
)  # fmt: skip
@_with(*_PLAN)
@_REASON
@_JSON
@pass_options
def edit(
    options: GlobalOptions,
    /,
    name: str,
    agent: str | None,
    prompt: str | None,
    state: dict[str, Any],
    reason: str,
    as_data: bool,
    **wanted: Any,
) -> None:
    """Change what is given of schedule NAME. With --agent, --prompt or --state its agent is read again."""
    plan = {key: value for key, value in _plan_in(wanted).items() if value is not None}
    if not plan and agent is None and prompt is None and not state:
        raise click.UsageError("name what to change, as in --cron '0 8 * * *'")
    with options.connected(workers=False) as client:
        edited = client.open_schedule(name)
        edited.edit(agent=agent, prompt=prompt, state=state or None, reason=reason, **plan)
        _tell(edited, options, as_data=as_data)


def _plan_in(wanted: dict[str, Any]) -> dict[str, Any]:
    """The keywords of Client.schedule that say when it fires, taken out of the parameters; those not given are left
    out."""
    names = ("cron", "every", "at", "tz", "overlap", "catch_up", "jitter")
    found = {name: wanted.pop(name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _checked(options: GlobalOptions, agent: str, prompt: str | None, file: Path | None) -> str:
    """The prompt; an agent that does not exist is refused before a stack is started."""
    _warn_of(options, agent)
    return prompt_text(prompt, file, sys.stdin)


def _warn_of(options: GlobalOptions, agent: str) -> None:
    from sleipnir.agents.finding import look_up

    settings = options.settings()
    agent_warnings.warn(agent, look_up(agent, settings), settings)


def _rows_of(batch: str, plan: dict[str, Any]) -> ScheduleRows:
    """The rows of a file; `plan` are the options that were given for them."""
    from sleipnir.batches.rows import read
    from sleipnir.client.scheduled_rows import ScheduleRows

    given = {option: value for option, value in plan.items() if value is not None}
    return ScheduleRows(read(Path(batch), plan["key"]), **given)


def _tell(changed: Schedule, options: GlobalOptions, *, as_data: bool) -> None:
    info = changed.info()
    if as_data:
        print_json(as_json(info))
        return
    click.echo(changed.name)
    terminal.note(f"{when(info.plan)}; next at {_local(info)}")
    if options.is_embedded:
        terminal.note("it fires while `sleipnir up` runs")


def _last_statuses(client: Client, found: list[ScheduleInfo]) -> dict[str, str]:
    last = [info for info in found if info.progress.last_run is not None]
    runs = [str(info.progress.last_run) for info in last if info.plan.batch is None]
    batches = [str(info.progress.last_run) for info in last if info.plan.batch is not None]
    with client.store.errors():
        statuses = client.store.schedules.statuses(runs)
        infos = client.store.batches.infos(batches) if batches else []
    states = {batch: info.state for batch, info in zip(batches, infos, strict=True) if info is not None}
    return states | {run: status for run, status in zip(runs, statuses, strict=True) if status is not None}


def _row(info: ScheduleInfo, statuses: dict[str, str]) -> tuple[str, ...]:
    if info.unreadable is not None:
        return (info.name, "", info.state, one_line(info.unreadable, 80), "", "", "")
    run = info.progress.last_run
    status = "" if run is None else f"{run} {statuses.get(run, '')}".rstrip()
    next_ = "-" if info.state == "paused" else moment(info.progress.next_ms)
    return (info.name, info.agent, info.state, when(info.plan), next_, moment(info.progress.last_ms), status)


def _fields(info: ScheduleInfo, fires: list[Fire], runs: list[ScheduledRun]) -> Iterator[tuple[str, str]]:
    yield "schedule", info.name
    if info.unreadable is not None:
        yield "unreadable", f"this release cannot read it: {info.unreadable}"
        return
    plan, progress, origin = info.plan, info.progress, info.origin
    yield "agent", info.agent
    yield "state", info.state
    if progress.paused is not None:
        why = f": {one_line(progress.paused.reason)}" if progress.paused.reason else ""
        yield "paused", f"by {printable(progress.paused.by)} at {moment(progress.paused.at_ms)}{why}"
    yield "when", when(plan)
    if plan.batch is not None:
        yield "batch", f"{counted(plan.batch.rows, 'row')}, priority {plan.batch.priority}"
    yield "overlap", plan.overlap
    yield "catch-up", "the last one" if plan.catch_up_ms is None else duration(plan.catch_up_ms)
    if plan.jitter_ms:
        yield "jitter", f"up to {duration(plan.jitter_ms)}"
    for time_ms in info.next if progress.paused is None else ():
        yield "next", in_zone(time_ms, plan.tz)
    if progress.waiting_ms is not None:
        yield (
            "waits",
            f"the fire of {in_zone(progress.waiting_ms, plan.tz)}, for the end of {plan.work} {progress.last_run}",
        )
    yield "fires", f"{progress.fires:,} started, {progress.skipped:,} skipped, {progress.missed:,} missed"
    yield "added", f"{moment(origin.at_ms)} by {printable(origin.by)}"
    if origin.edited_ms is not None:
        yield "changed", f"{moment(origin.edited_ms)} by {printable(origin.edited_by or '')}"
    statuses = {run.id: run.batch or run.status for run in runs}
    for fire in fires:
        yield "last", f"{in_zone(fire.at_ms, plan.tz)} {fire_in_words(fire, statuses.get(fire.run or ''), plan.work)}"


def _local(info: ScheduleInfo) -> str:
    if info.state == "paused":
        return "no time: it is paused"
    return "no time: it is over" if info.progress.next_ms is None else in_zone(info.progress.next_ms, info.plan.tz)
