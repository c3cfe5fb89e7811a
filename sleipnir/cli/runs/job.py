"""`job`: ask many runs for the same, by a job that a scheduler carries out."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.completion import complete_agent, complete_job
from sleipnir.cli.options import COUNT, Amount, GlobalOptions, Seconds, pass_options
from sleipnir.cli.runs.parameters import json_values
from sleipnir.cli.runs.ps import STATUSES, filtering, query_of
from sleipnir.cli.runs.run_options import NAMESPACE_HELP, refuse_both, selecting
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import as_json, moment, print_fields, print_json, print_table
from sleipnir.jobs.records import ACTIONS, DELAY_S, MOST_RATE
from sleipnir.runs.plain_text import one_line, printable

if TYPE_CHECKING:
    from sleipnir.jobs.records import JobInfo, JobPreview, Refusal

_SHOWN = 10
_JOB = click.argument("job_id", metavar="JOB", shell_complete=complete_job)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")
_WHY = click.option("--why", default="", metavar="TEXT", help="Why, for the audit and others who look at it.")


@click.group()
def job() -> None:
    """Cancel, pause, resume, retry or fork many runs: submit a job, list, show and stop jobs."""


@job.command()
@click.argument("action", type=click.Choice(ACTIONS))
@click.option("--run", "runs", multiple=True, metavar="RUN", help="This run, instead of those below; repeatable.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; repeatable.")
@selecting
@filtering
@_WHY
@click.option("--rate", type=Amount(min=0.001, max=MOST_RATE), metavar="N", help="At most N runs per second.")
@click.option(
    "--delay", "delay_s", type=Seconds(min=0), default=DELAY_S, show_default=True,
    help="Begin after this time; until then `job stop` undoes it.",
)  # fmt: skip
@click.option("--timeout", type=Seconds(min=0), help="For pause: stop visits that still run after this time.")
@click.option("--fresh-children", is_flag=True, help="For retry: start new child runs.")
@click.option("--before-node", metavar="NODE", help="For fork: go on before the last visit of this node.")
@click.option(
    "--set", "state", multiple=True, metavar="NAME=JSON", callback=json_values,
    help="For fork: a value that replaces that of the past; repeatable.",
)  # fmt: skip
@click.option(
    "--onto", "agent_of_forks", metavar="AGENT", shell_complete=complete_agent,
    help="For fork: the agent, or its folder, whose current definition the forks have.",
)  # fmt: skip
@click.option("--model", metavar="CLIENT:MODEL", help="For fork: the model of all llm nodes.")
@click.option("--dry-run", is_flag=True, help="Only count the runs that fit.")
@_JSON
@pass_options
def submit(
    options: GlobalOptions,
    /,
    action: str,
    runs: tuple[str, ...],
    statuses: tuple[str, ...],
    why: str,
    rate: float | None,
    delay_s: float,
    timeout: float | None,
    fresh_children: bool,
    before_node: str | None,
    state: dict[str, Any],
    agent_of_forks: str | None,
    model: str | None,
    dry_run: bool,
    as_data: bool,
    **given: Any,
) -> None:
    """Submit a job that asks all chosen runs for ACTION, of those that it is for: unfinished runs to cancel or pause,
    paused ones to resume, failed ones to retry.

    It is carried out by schedulers, also after the end of this command, and begins after --delay. Runs that are
    submitted later are left out.
    """
    refuse_both(given)
    with options.connected(workers=False) as client:
        query: dict[str, Any] = {"namespace": given["namespace"]} if runs else query_of(client, given)
        if runs:
            query["runs"] = [client.run(run).id for run in runs]
        if dry_run:
            _tell_preview(client.jobs.preview(action, statuses or None, **query), as_data=as_data)
            return
        made = client.jobs.submit(
            action, statuses or None, why=why, rate=rate, delay_s=delay_s, timeout=timeout,
            fresh_children=fresh_children, before=before_node, state=state or None, agent=agent_of_forks, model=model,
            **query,
        )  # fmt: skip
    if as_data:
        print_json(as_json(made))
        return
    click.echo(made.id)
    number = f"{made.plan.expected:,}" if made.plan.is_exact else f"over {made.plan.expected:,}"
    begins = moment(made.plan.start_ms)
    terminal.note(f"{action} {number} runs, from {begins} on; `sleipnir job stop {made.id}` stops it")


@job.command()
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number, the newest first.")
@click.option("--namespace", metavar="NAME", help=NAMESPACE_HELP)
@_JSON
@pass_options
def ls(options: GlobalOptions, limit: int, namespace: str | None, as_data: bool) -> None:
    """List jobs, the newest first."""
    with options.connected(workers=False) as client:
        found = client.jobs.page(limit, namespace=namespace)
    if as_data:
        print_json([as_json(info) for info in found])
    elif found:
        names = ("job", "action", "state", "expected", "done", "refused", "submitted", "by", "why")
        print_table(names, [_row(info) for info in found])
    else:
        terminal.note("no jobs; `sleipnir job submit ACTION ...` submits one")


@job.command()
@_JOB
@_JSON
@pass_options
def show(options: GlobalOptions, job_id: str, as_data: bool) -> None:
    """Show how far JOB is, and which runs did not take its request."""
    with options.connected(workers=False) as client:
        info, refusals = client.jobs.get(job_id), client.jobs.refusals(job_id)
    if as_data:
        print_json({**as_json(info), "refusals": as_json(refusals)})
    else:
        print_fields(_fields(info, refusals))


@job.command()
@_JOB
@_WHY
@_JSON
@pass_options
def stop(options: GlobalOptions, job_id: str, why: str, as_data: bool) -> None:
    """Let JOB ask no more runs. What it has asked stays; one that has not begun has no effect."""
    with options.connected(workers=False) as client:
        info = client.jobs.stop(job_id, why)
    if as_data:
        print_json(as_json(info))
    else:
        terminal.note(f"job {info.id} is {info.progress.state}; it has asked {info.progress.done:,} runs")


def _tell_preview(seen: JobPreview, *, as_data: bool) -> None:
    if as_data:
        print_json(as_json(seen))
    else:
        click.echo(f"{seen.count:,}" if seen.is_exact else f"over {seen.count:,}")


def _row(info: JobInfo) -> tuple[str, ...]:
    plan, progress = info.plan, info.progress
    if info.unreadable is not None:
        return (info.id, "?", "unreadable", "", "", "", "", "", one_line(info.unreadable))
    return (
        info.id, plan.action, progress.state, f"{plan.expected:,}", f"{progress.done:,}", f"{progress.refused:,}",
        moment(plan.at_ms), printable(plan.by), one_line(plan.why),
    )  # fmt: skip


def _fields(info: JobInfo, refusals: list[Refusal]) -> list[tuple[str, str]]:
    plan, progress = info.plan, info.progress
    number = f"{plan.expected:,}" if plan.is_exact else f"over {plan.expected:,}"
    fields = [
        ("job", info.id), ("action", plan.action), ("state", progress.state), ("expected", number),
        ("done", f"{progress.done:,}"), ("not needed", f"{progress.left:,}"), ("refused", f"{progress.refused:,}"),
        ("namespace", plan.namespace), ("by", printable(plan.by)), ("why", one_line(plan.why)),
        ("begins", moment(plan.start_ms)),
    ]  # fmt: skip
    if progress.ended_ms is not None:
        fields.append(("ended", moment(progress.ended_ms)))
    if progress.stopped_by is not None:
        fields.append(("stopped by", printable(f"{progress.stopped_by} {progress.stopped_why}".strip())))
    reasons = Counter(refusal.why for refusal in refusals)
    fields += [("refusals", f"{count:,}: {one_line(why)}") for why, count in reasons.most_common(_SHOWN)]
    return [(name, text) for name, text in fields if text]
