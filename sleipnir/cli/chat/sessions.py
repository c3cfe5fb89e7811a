"""`sessions`: conversations with agents that have a config.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sleipnir.cli.completion import complete_agent
from sleipnir.cli.options import GlobalOptions, name_of, pass_options
from sleipnir.cli.runs.run_options import NAMESPACE_HELP
from sleipnir.cli.runs.threads import AFTER, LIMIT, say_more
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.errors import UsageError
from sleipnir.runs.plain_text import one_line, printable

if TYPE_CHECKING:
    pass


@click.group()
def sessions() -> None:
    """Sessions: the stored messages of agents with a config.yaml."""


_AGENT = click.argument("agent", shell_complete=complete_agent)
_NAME = click.argument("name")
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")
_NAMESPACE = click.option(
    "--namespace", metavar="NAME", help="Of this namespace. Default: SLEIPNIR_NAMESPACE, or `default`."
)


@sessions.command()
@click.argument("agent", required=False, shell_complete=complete_agent)
@click.option("--namespace", metavar="NAME", help=NAMESPACE_HELP)
@LIMIT
@AFTER
@_JSON
@pass_options
def ls(
    options: GlobalOptions, agent: str | None, namespace: str | None, limit: int, after: str | None, as_data: bool
) -> None:
    """List the sessions of AGENT, or of all agents, the one used last first."""
    with options.connected(workers=False) as client:
        of = None if agent is None else name_of(agent)
        infos = client.sessions(of, namespace=namespace, limit=limit, after=after)
    if as_data:
        print_json(list(infos))
    elif infos:
        rows = [(each.agent, each.name, f"{each.messages:,}", moment(each.used_ms), each.run or "") for each in infos]
        print_table(("agent", "session", "messages", "used", "busy with"), rows)
    elif infos.after is None:
        terminal.note("no sessions")
    say_more(infos.after, "sessions")


@sessions.command()
@_AGENT
@_NAME
@_NAMESPACE
@_JSON
@pass_options
def show(options: GlobalOptions, agent: str, name: str, namespace: str | None, as_data: bool) -> None:
    """Print the messages of the session NAME of AGENT."""
    agent = name_of(agent)
    with options.connected(workers=False) as client:
        session_info, messages = (
            client.session(agent, name, namespace=namespace),
            client.said(agent, name, namespace=namespace),
        )
    if session_info is None:
        raise _unknown(agent, name)
    if as_data:
        print_json({"session": session_info, "said": messages})
        return
    if session_info.dropped:
        terminal.note(f"{session_info.dropped:,} older messages were dropped (SLEIPNIR_MAX_SESSION_MESSAGES)")
    for message in messages:
        for line in spoken(message):
            click.echo(printable(line))


@sessions.command()
@_AGENT
@_NAME
@_NAMESPACE
@_JSON
@pass_options
def rm(options: GlobalOptions, agent: str, name: str, namespace: str | None, as_data: bool) -> None:
    """Delete the session NAME of AGENT."""
    agent = name_of(agent)
    with options.connected(workers=False) as client:
        if not client.remove_session(agent, name, namespace=namespace):
            raise _unknown(agent, name)
    if as_data:
        print_json({"agent": agent, "removed": name})
    else:
        terminal.note(f"session {name!r} of agent {agent!r} is removed")


def spoken(message: dict[str, Any]) -> list[str]:
    """A message in readable form: its role and text; tool calls and their results on one line each."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        return [f"  result: {one_line(str(content), 200)}"]
    lines = [f"{role}: {content}"] if content else []
    called = [call["function"] for call in message.get("tool_calls") or ()]
    return [*lines, *(f"  calls {each['name']} {one_line(each['arguments'], 200)}" for each in called)]


def _unknown(agent: str, name: str) -> UsageError:
    return UsageError(f"agent {agent!r} has no session {name!r}; `sleipnir sessions ls {agent}` lists those it has")
