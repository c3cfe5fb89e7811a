"""Options of commands that start runs: the agent, its prompt, variables and state, and limits of the run."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from sleipnir.cli.completion import complete_agent, complete_state_key
from sleipnir.cli.knowledge.building import BuildView, asker
from sleipnir.cli.options import COUNT, Amount, GlobalOptions
from sleipnir.cli.runs.gate_answers import variable_asker

if TYPE_CHECKING:
    from sleipnir.client.options import RunOptions

Pairs: TypeAlias = tuple[tuple[str, str], ...]


def pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> Pairs:
    """`NAME=TEXT` as pairs. TEXT may be empty and may contain `=`."""
    return tuple(_pair(ctx, param, value) for value in values)


def _pair(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, str]:
    name, equals, text = value.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{value!r} is not of the form {param.metavar}", ctx, param)
    return name, text


def json_values(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """`NAME=JSON` as values by name."""
    return {name: _value(ctx, param, name, text) for name, text in pairs(ctx, param, values)}


def _value(ctx: click.Context, param: click.Parameter, name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        quoted = shlex.quote(f"{name}={json.dumps(text, ensure_ascii=False)}")
        hint = (
            f"a text is written in quotes: {param.opts[0]} {quoted}"
            if text[:1] not in tuple('{["-0123456789')
            else str(error)
        )
        raise click.BadParameter(f"the value of {name!r} is not JSON; {hint}", ctx, param) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


AGENT = click.argument("agent", shell_complete=complete_agent)
PROMPT = click.argument("prompt", required=False)
FILE = click.option(
    "-f", "--file", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text file that is the prompt, or follows PROMPT after a blank line.",
)  # fmt: skip
VAR = click.option(
    "--var", "variables", multiple=True, metavar="NAME=TEXT", callback=pairs,
    help="An agent variable; repeatable.",
)  # fmt: skip
AGENT_VARIABLE = click.option(
    "--agent-variable", "agent_variables", multiple=True, nargs=2, metavar="NAME TEXT",
    help="Loki's spelling of --var.",
)  # fmt: skip
STATE = click.option(
    "--state", "state", multiple=True, metavar="NAME=JSON", callback=json_values, shell_complete=complete_state_key,
    help="An initial value of the state; repeatable. A text is in quotes, as in 'topic=\"bells\"'.",
)  # fmt: skip


def _directory(ctx: click.Context, param: click.Parameter, folder: Path | None) -> Path | None:
    """`--cwd`. It must exist on this machine if the workers are here; otherwise it must exist on theirs, which is not
    checked here."""
    options = ctx.find_object(GlobalOptions) or GlobalOptions()
    if folder is None or folder.is_dir() or options.settings().redis_url is not None:
        return folder
    raise click.BadParameter(f"Directory {str(folder)!r} does not exist.", ctx, param)


CWD = click.option(
    "--cwd", type=click.Path(file_okay=False, path_type=Path, resolve_path=True), callback=_directory,
    help="Working directory of scripts and tools; the workers must have it. Default: this one, if the workers are on "
    "this machine, else a scratch folder of the run.",
)  # fmt: skip
MAX_COST = click.option(
    "--max-cost", "max_cost_usd", type=Amount(min=0, min_open=True), metavar="USD",
    help="Pause the run when it has cost this amount, and ask (as 'budget') whether it may continue.",
)  # fmt: skip
MAX_TOKENS = click.option("--max-tokens", type=COUNT, metavar="N", help="The same, by tokens of prompts and answers.")
STRICT = click.option(
    "--strict/--no-strict", "strict", default=None,
    help="Fail at every failed visit, regardless of the agent: one that no fallback, retry or on_error node handles. "
    "Default: SLEIPNIR_STRICT; with --replay, strict.",
)  # fmt: skip
CONTEXT = click.option(
    "--context", "context", multiple=True, metavar="NAME=JSON", callback=json_values,
    help="A value of the context that nodes of a graph.py get; repeatable. It is stored: give no secrets.",
)  # fmt: skip
RECURSION_LIMIT = click.option(
    "--recursion-limit", type=COUNT, metavar="N",
    help="Fail the run of a graph.py after N super-steps, as the key of that name in a configuration of LangGraph.",
)  # fmt: skip


@dataclass(frozen=True)
class RunParameters:
    """The parameters of all commands that start runs: VAR, AGENT_VARIABLE, CWD, STRICT, CONTEXT and RECURSION_LIMIT."""

    variables: Pairs
    agent_variables: Pairs
    cwd: Path | None
    strict: bool | None
    context: dict[str, Any]
    recursion_limit: int | None

    def options(self, view: BuildView | None) -> RunOptions:
        """What the client is given: on a terminal, missing values are asked for; `view` shows builds of bases, None:
        no bases are built."""
        given: RunOptions = {
            "variables": dict([*self.agent_variables, *self.variables]),
            "cwd": self.cwd,
            "strict": self.strict,
            "config": None if self.recursion_limit is None else {"recursion_limit": self.recursion_limit},
            "context": self.context or None,
            "ask_variable": variable_asker(),
        }
        if view is not None:
            given |= {"ask_knowledge": asker(view), "tell_knowledge": view.report}
        return given
