"""`threads`: series of runs of graph agents, each of which begins with the state of the last one."""

from __future__ import annotations

import click

from sleipnir.cli.completion import complete_agent, complete_thread
from sleipnir.cli.options import GlobalOptions, name_of, pass_options
from sleipnir.cli.runs.run_options import NAMESPACE_HELP
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.errors import UsageError
from sleipnir.runs.conversation_pages import MOST_OF_PAGE
from sleipnir.runs.plain_text import one_line
from sleipnir.runs.views import ThreadInfo


@click.group()
def threads() -> None:
    """Threads: runs of a graph agent that continue each other."""


_AGENT = click.argument("agent", shell_complete=complete_agent)
_NAME = click.argument("name", shell_complete=complete_thread)
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")
LIMIT = click.option(
    "--limit", type=click.IntRange(1, MOST_OF_PAGE), default=100, show_default=True, help="Maximum number."
)
AFTER = click.option("--after", metavar="CURSOR", help="Go on where the list before has ended, as it says.")
_NAMESPACE = click.option(
    "--namespace", metavar="NAME", help="Of this namespace. Default: SLEIPNIR_NAMESPACE, or `default`."
)


@threads.command()
@click.argument("agent", required=False, shell_complete=complete_agent)
@click.option("--namespace", metavar="NAME", help=NAMESPACE_HELP)
@LIMIT
@AFTER
@_JSON
@pass_options
def ls(
    options: GlobalOptions, agent: str | None, namespace: str | None, limit: int, after: str | None, as_data: bool
) -> None:
    """List the threads of AGENT, or of all agents, the one used last first."""
    with options.connected(workers=False) as client:
        of = None if agent is None else name_of(agent)
        infos = client.threads(of, namespace=namespace, limit=limit, after=after)
    if as_data:
        print_json(list(infos))
    elif infos:
        rows = [
            (each.agent, each.name, f"{each.turns:,}", moment(each.used_ms), each.run, _status(each)) for each in infos
        ]
        print_table(("agent", "thread", "turns", "used", "last run", "status"), rows)
    elif infos.after is None:
        terminal.note("no threads")
    say_more(infos.after, "threads")


@threads.command()
@_AGENT
@_NAME
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The number of runs to show.")
@_NAMESPACE
@_JSON
@pass_options
def show(options: GlobalOptions, agent: str, name: str, limit: int, namespace: str | None, as_data: bool) -> None:
    """Show the runs of the thread NAME of AGENT that are still stored, the last one first."""
    agent = name_of(agent)
    with options.connected(workers=False) as client:
        thread, runs = (
            client.thread(agent, name, namespace=namespace),
            client.thread_runs(agent, name, limit, namespace=namespace),
        )
    if thread is None:
        raise _unknown(agent, name)
    if as_data:
        print_json({"thread": thread, "runs": runs})
        return
    rows = [
        (
            f"{run.turn:,}",
            run.id,
            "queued" if run.is_queued else run.status,
            moment(run.created_ms),
            one_line(run.error, 80) if run.error else "",
        )
        for run in runs
    ]
    if rows:
        print_table(("turn", "run", "status", "created", "error"), rows)
    if not runs:
        terminal.note(f"the last run {thread.run} is gone, and the state of the thread with it")
    elif len(runs) < limit and runs[-1].turn > 1:
        terminal.note("earlier runs have expired")


@threads.command()
@_AGENT
@_NAME
@_NAMESPACE
@_JSON
@pass_options
def rm(options: GlobalOptions, agent: str, name: str, namespace: str | None, as_data: bool) -> None:
    """Remove the thread NAME of AGENT. Its runs stay as long as other ended runs."""
    agent = name_of(agent)
    with options.connected(workers=False) as client:
        if not client.remove_thread(agent, name, namespace=namespace):
            raise _unknown(agent, name)
    if as_data:
        print_json({"agent": agent, "removed": name})
    else:
        terminal.note(f"thread {name!r} of agent {agent!r} is removed")


def say_more(after: str | None, what: str) -> None:
    """Say how a list goes on that was not printed to its end."""
    if after is not None:
        terminal.note(f"there may be more {what}: --after {after}")


def _status(thread: ThreadInfo) -> str:
    """`running, 2 queued`."""
    queued = f", {len(thread.queued):,} queued" if thread.queued else ""
    return f"{thread.status or 'gone'}{queued}"


def _unknown(agent: str, name: str) -> UsageError:
    return UsageError(f"agent {agent!r} has no thread {name!r}; `sleipnir threads ls {agent}` lists those it has")
