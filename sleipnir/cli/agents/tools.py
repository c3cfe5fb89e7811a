"""`tools` and `tools call`: list an agent's tools from files, and run one of them. Needs no Redis.

Rule. A call is run by the workers' package, started as a command: the result is the same as on a worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from sleipnir.agents.source import AgentSource, locate, read
from sleipnir.cli.completion import complete_agent, complete_tool
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs.parameters import Pairs, pairs
from sleipnir.cli.terminal.render import print_json, print_table
from sleipnir.cli.terminal.terminal import first_line, note
from sleipnir.errors import UsageError

if TYPE_CHECKING:
    from sleipnir.settings import Settings
    from sleipnir.tools.declaration import Declaration
    from sleipnir.tools.folder import Tools

LIST = "list"
EXAMPLE = '\'{"city": "Oslo"}\''


class ToolCommands(click.Group):
    """`tools AGENT` is `tools list AGENT`; an agent with the name of a command is given by its path."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = [LIST, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands, and the names of agents, which may follow `list`."""
        return super().shell_complete(ctx, incomplete) + complete_agent(ctx, self.commands[LIST].params[0], incomplete)


_AGENT = click.argument("agent", metavar="AGENT|FOLDER", shell_complete=complete_agent)


@click.group(
    cls=ToolCommands, no_args_is_help=True, options_metavar="", subcommand_metavar="AGENT | call AGENT NAME [JSON]"
)
def tools() -> None:
    """List the tools that an agent has from files (`tools AGENT`), or run one (`tools call AGENT NAME JSON`)."""


@tools.command(LIST, hidden=True)
@_AGENT
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list with the full schemas.")
@pass_options
def list_tools(options: GlobalOptions, agent: str, as_data: bool) -> None:
    """List the global tools of an agent and those of its own tools file."""
    agent_tools = _tools(_source(agent, options.settings()))
    if as_data:
        print_json([_data(declaration) for declaration in agent_tools.declarations])
    elif agent_tools.declarations:
        rows = [_row(declaration) for declaration in agent_tools.declarations]
        print_table(("tool", "kind", "parameters", "description"), rows)
    else:
        note(f"agent {agent!r} has no tools of its own: no tools.sh, tools.py or tools.ts, and no `global_tools:`")


@tools.command()
@_AGENT
@click.argument("name", shell_complete=complete_tool)
@click.argument("arguments", metavar="[JSON|-]", default="{}")
@click.option(
    "--var", "variables", multiple=True, metavar="NAME=TEXT", callback=pairs,
    help="An agent variable; repeatable.",
)  # fmt: skip
@pass_options
def call(options: GlobalOptions, agent: str, name: str, arguments: str, variables: Pairs) -> int:
    """Run one tool like a worker, and print the result for the model. `-` reads the JSON from stdin.

    Exit code 1 if the tool fails. Output of the tool itself goes to stderr.
    """
    settings = options.settings()
    source = _source(agent, settings)
    agent_tools = _tools(source)
    if agent_tools.find(name) is None:
        raise UsageError(_no_such_tool(agent, name, agent_tools))
    text = sys.stdin.read() if arguments == "-" else arguments
    _check(text, name)
    command = [sys.executable, "-m", "sleipnir_workers.tools", "call", str(source.path), name]
    command += [f"--config-file={source.config_file}"] if source.config_file else []
    command += [f"--var={name}={value}" for name, value in variables]
    sys.stdout.flush()
    env = {**os.environ, **settings.to_env()}
    return subprocess.run(command, input=text, text=True, encoding="utf-8", env=env, check=False).returncode


def _source(agent: str, settings: Settings) -> AgentSource:
    """The agent's folder."""
    folder = locate(agent, settings)
    return replace(folder, path=(folder.path if folder.path.is_dir() else folder.path.parent).absolute())


def _tools(source: AgentSource) -> Tools:
    """Raises GraphError and ToolFileError."""
    from sleipnir.agents.config_directory import functions_dir
    from sleipnir.tools.folder import tools_of

    return tools_of(source.path, functions_dir(), read(source))


def _kind(declaration: Declaration) -> str:
    return "agent" if declaration.agent else "global"


def _row(declaration: Declaration) -> tuple[str, str, str, str]:
    required = declaration.parameters.get("required", [])
    parameters = ", ".join(
        name if name in required else f"[{name}]" for name in declaration.parameters.get("properties", {})
    )
    return declaration.name, _kind(declaration), parameters, first_line(declaration.description)


def _data(declaration: Declaration) -> dict[str, Any]:
    return {
        "name": declaration.name,
        "kind": _kind(declaration),
        "description": declaration.description,
        "parameters": dict(declaration.parameters),
        "language": declaration.language,
        "file": str(declaration.file),
        "line": declaration.line,
    }


def _no_such_tool(agent: str, name: str, agent_tools: Tools) -> str:
    import difflib

    close = difflib.get_close_matches(name, agent_tools.names, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"It has: {', '.join(agent_tools.names) or 'none'}."
    return f"agent {agent!r} has no tool {name!r}. {hint}"


def _check(text: str, name: str) -> None:
    """Raises UsageError for arguments that no model could send: they were mistyped in a shell."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the arguments of {name!r} are not JSON ({error}); quote them: {EXAMPLE}") from None
    if not isinstance(value, dict):
        raise UsageError(f"the arguments of {name!r} must be a JSON object: {EXAMPLE}")
