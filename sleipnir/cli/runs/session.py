"""`--session` and `--no-session`: which conversation a run goes on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sleipnir.errors import UsageError
from sleipnir.runs.sessions import NO_SESSIONS, TEMP

if TYPE_CHECKING:
    from sleipnir.client.client import Client
    from sleipnir.graph.load import AgentFolder

SESSION = click.option(
    "--session", "session", is_flag=False, flag_value=TEMP, metavar="NAME",
    help="Go on with what was said in this session of a config.yaml agent, and add to it. Default: the agent's own "
    f"(`agent_session`). `{TEMP}` is a new one that is not kept.",
)  # fmt: skip
NO_SESSION = click.option("--no-session", "without_session", is_flag=True, help="Begin with nothing, and keep nothing.")


def refuse_session(session: str | None, without: bool, agent: AgentFolder) -> None:
    """Raises UsageError for a session of a graph, and for one that is wanted and not wanted."""
    if session is not None and agent.kind == "graph":
        raise UsageError(NO_SESSIONS.format(agent=agent.name))
    if session is not None and without:
        raise UsageError("--session and --no-session exclude each other")


def session_of(client: Client, agent: str, asked: str | None, without: bool) -> str | None:
    """The session that was asked for, else the agent's own; None: there is none."""
    if asked is not None or without:
        return asked
    loop = client.definition(agent).loop
    return loop.agent_session if loop is not None else None
