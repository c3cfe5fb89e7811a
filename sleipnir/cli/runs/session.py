"""`--session` and `--no-session`: the session of a run."""

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
    help="Continue this session of a config.yaml agent, and add to it. Default: the agent's own "
    f"(`agent_session`). `{TEMP}` is a new one that is not kept.",
)  # fmt: skip
NO_SESSION = click.option("--no-session", "without_session", is_flag=True, help="Use no session.")


def refuse_session(session: str | None, without: bool, agent: AgentFolder) -> None:
    """Raises UsageError for a session of a graph, and for both options together."""
    if session is not None and agent.kind == "graph":
        raise UsageError(NO_SESSIONS.format(agent=agent.name))
    if session is not None and without:
        raise UsageError("--session and --no-session exclude each other")


def session_of(client: Client, agent: str, asked: str | None, without: bool) -> str | None:
    """The requested session, else the agent's own; None: no session."""
    if asked is not None or without:
        return asked
    loop = client.definition(agent).loop
    return loop.agent_session if loop is not None else None
