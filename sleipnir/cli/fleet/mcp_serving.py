"""`mcp serve`: agents as tools of an MCP server, for the coding assistant that starts it."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from sleipnir.cli.completion import complete_agent
from sleipnir.cli.options import COUNT, Amount, GlobalOptions, Seconds, pass_options
from sleipnir.errors import ConfigError, UsageError
from sleipnir.mcp_server.options import WAIT_S, ServerOptions

if TYPE_CHECKING:
    from sleipnir.settings import Settings


@click.group()
def mcp() -> None:
    """Agents as tools of an MCP server."""


def _complete_agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The last name of the list; the earlier ones stay."""
    before, comma, last = incomplete.rpartition(",")
    items = complete_agent(ctx, param, last)
    return [CompletionItem(f"{before}{comma}{each.value}", each.type, each.help) for each in items]


@mcp.command()
@click.option(
    "--agents", metavar="A,B", shell_complete=_complete_agents,
    help="Names or folders of the agents that are offered, and whose runs clients see. Default: all that `sleipnir "
    "agents` lists.",
)  # fmt: skip
@click.option(
    "--wait", "wait_s", type=Seconds(min=1, max=86_400), default=WAIT_S, show_default=True, metavar="DURATION",
    help="How long a call waits for its run; then it returns the run's id.",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="A call that the client cancels leaves its run alone.")
@click.option("--no-answers", is_flag=True, help="Offer no tool that answers questions: only people answer.")
@click.option(
    "--max-cost", "max_cost_usd", type=Amount(min=0, min_open=True), metavar="USD",
    help="Pause each run, and ask, when it has cost so much.",
)  # fmt: skip
@click.option("--max-tokens", type=COUNT, metavar="N", help="Pause each run, and ask, when it has used so many tokens.")
@click.option(
    "--cwd", type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True), metavar="DIR",
    help="The working directory of scripts and tools. Default: that of this command, if the workers are on this "
    "machine.",
)  # fmt: skip
@pass_options
def serve(
    options: GlobalOptions,
    agents: str | None,
    wait_s: float,
    detach: bool,
    no_answers: bool,
    max_cost_usd: float | None,
    max_tokens: int | None,
    cwd: Path | None,
) -> None:
    """Serve MCP on standard input and output: each agent is a tool, with tools to show, await, answer and cancel runs.

    A coding assistant starts this command (docs/mcp.md). It ends when its input does; runs go on.
    """
    named = None if agents is None else [name.strip() for name in agents.split(",") if name.strip()]
    if named == []:
        raise UsageError("--agents names no agent")
    if importlib.util.find_spec("mcp") is None:
        raise ConfigError("the MCP server needs the package mcp, which the extra `llm` installs")
    from sleipnir import logs
    from sleipnir.mcp_server import application, stdio_transport

    settings = options.settings()
    logs.configure(settings)
    with _deployment(settings) as deployed:
        given = ServerOptions(
            agents=named, wait_s=wait_s, detach=detach, answers=not no_answers, max_cost_usd=max_cost_usd,
            max_tokens=max_tokens, cwd=cwd,
        )  # fmt: skip
        stdio_transport.serve(application.AgentServer(deployed, given))


@contextlib.contextmanager
def _deployment(settings: Settings) -> Iterator[Settings]:
    """The settings of a deployment: the configured one, which may be away now, or a private stack."""
    if settings.redis_url is not None:
        yield settings
        return
    from sleipnir.local.stack import stack as private_stack

    with private_stack(settings, workers=True) as started:
        yield started
