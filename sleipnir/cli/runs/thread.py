"""`--thread`: the thread of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sleipnir.cli.completion import complete_thread
from sleipnir.cli.terminal import terminal
from sleipnir.errors import UsageError
from sleipnir.runs.plain_text import one_line
from sleipnir.runs.threads import NO_THREADS, checked

if TYPE_CHECKING:
    from sleipnir.client.client import Client, Run
    from sleipnir.graph.load import AgentFolder

THREAD = click.option(
    "--thread", "thread", metavar="NAME", shell_complete=complete_thread,
    help="Begin with the state at the end of the last run of this thread of the agent, and be its next run.",
)  # fmt: skip


def refuse_thread(thread: str | None, agent: AgentFolder) -> None:
    """Raises UsageError for a thread of an agent with a config.yaml, and for what names no thread."""
    if thread is None:
        return
    if agent.kind != "graph":
        raise UsageError(NO_THREADS.format(agent=agent.name))
    checked(thread)


def tell_of_last_turn(client: Client, run: Run) -> None:
    """A turn after a run that did not complete begins with what that has left: say so."""
    info = run.info()
    if info.is_queued:
        terminal.note(
            f"note: turn {info.turn} of thread {info.thread!r} is queued: it begins when run {info.previous} has ended"
        )
        return
    [last] = client.store.runs.find([info.previous]) if info.previous is not None else [None]
    if last is None or last.status == "completed" or not last.is_final:
        return
    why = f" ({one_line(last.error, 120)})" if last.error else ""
    instead = f"; `sleipnir retry {last.id}` would have gone on with it" if last.status == "failed" else ""
    terminal.note(
        f"note: the last run {last.id} of thread {info.thread!r} is {last.status}{why}: this one begins with the state "
        f"at its last checkpoint{instead}"
    )
