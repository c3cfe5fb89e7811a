"""Options of commands that start runs: the agent, its prompt, variables and state, and limits of the run."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from sleipnir.cli.completion import (
    complete_agent,
    complete_node,
    complete_state_key,
    complete_tag,
    complete_user_of_agent,
)
from sleipnir.cli.knowledge.building import BuildView, asker
from sleipnir.cli.options import COUNT, Amount, GlobalOptions
from sleipnir.cli.runs.gate_answers import variable_asker
from sleipnir.cli.runs.tag_values import tag_values

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


def json_value(ctx: click.Context, param: click.Parameter, text: str | None) -> Any:
    """An option that is one JSON value; None: it was left out."""
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        hint = (
            f"a text is written in quotes: {param.opts[0]} {shlex.quote(json.dumps(text, ensure_ascii=False))}"
            if text[:1] not in tuple('{["-0123456789')
            else str(error)
        )
        raise click.BadParameter(f"it is not JSON; {hint}", ctx, param) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def override_values(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """`NODE.FIELD=VALUE` as values by path and field. VALUE is JSON; what is none is a text."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in pairs(ctx, param, values):
        path, dot, field = name.rpartition(".")
        if not path or not dot or not field:
            raise click.BadParameter(f"{name!r} names no field: write it as {param.metavar}", ctx, param)
        found.setdefault(path, {})[field] = _json_or_text(text)
    return found


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def patch_values(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """`NODE#SURFACE=VALUE` as values by surface: names of tools are a list, and `@FILE` stands for a file's text."""
    found: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not name or not equals or "#" not in name:
            raise click.BadParameter(f"{value[:60]!r} is not of the form {param.metavar}", ctx, param)
        if text.startswith("@"):
            try:
                text = Path(text[1:]).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise click.BadParameter(f"{text[1:]!r} cannot be read: {error}", ctx, param) from None
        surface = name.rpartition("#")[2].rstrip("+")
        found[name] = text
        if surface == "tools":
            found[name] = [tool.strip() for tool in text.split(",") if tool.strip()]
        elif surface == "few_shot":
            try:
                found[name] = json.loads(text)
            except ValueError as error:
                raise click.BadParameter(f"{name}: the examples are not JSON: {error}", ctx, param) from None
    return found


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
BREAK_BEFORE = click.option(
    "--break-before", "break_before", multiple=True, metavar="NODE", shell_complete=complete_node,
    help="Stop the run before NODE until `resume`; repeatable. '*': every node. It replaces the graph's "
    "`interrupt_before` and `interrupt: before`.",
)  # fmt: skip
BREAK_AFTER = click.option(
    "--break-after", "break_after", multiple=True, metavar="NODE", shell_complete=complete_node,
    help="The same after NODE has ended.",
)  # fmt: skip
OVERRIDE = click.option(
    "--override", "overrides", multiple=True, metavar="NODE.FIELD=VALUE", callback=override_values,
    help="Another setting of an llm node for this run, as in 'expert/ask.temperature=0'; repeatable. '*.FIELD': of all "
    "llm nodes. NODE may be a path through agent nodes.",
)  # fmt: skip
PATCH = click.option(
    "--patch", "patches", multiple=True, metavar="NODE#SURFACE=VALUE", callback=patch_values,
    help="What an llm node says or may call in this run: 'ask#instruction=@FILE', 'ask#model=...', 'ask#tools=a,b', "
    "'ask#tools+=c', 'ask#few_shot=@FILE' (a JSON list of messages); repeatable.",
)  # fmt: skip


USER = click.option(
    "--user", "user", metavar="NAME", shell_complete=complete_user_of_agent,
    help="The user that the run is for: it begins with the values of that user and of the agent, and writes them back "
    "(`sleipnir values`).",
)  # fmt: skip
TAG = click.option(
    "--tag", "tags", multiple=True, metavar="KEY=TEXT", callback=tag_values, shell_complete=complete_tag,
    help="A tag by which the run, and runs that it starts, are found (`ps --tag`); repeatable.",
)  # fmt: skip
NAMESPACE = click.option(
    "--namespace", metavar="NAME",
    help="The namespace in whose lists the run is. Default: SLEIPNIR_NAMESPACE, or `default`.",
)  # fmt: skip


@dataclass(frozen=True)
class RunParameters:
    """The parameters of all commands that start runs: VAR, AGENT_VARIABLE, CWD, STRICT, CONTEXT, RECURSION_LIMIT,
    BREAK_BEFORE, BREAK_AFTER, OVERRIDE, PATCH, USER, TAG and NAMESPACE."""

    variables: Pairs
    agent_variables: Pairs
    cwd: Path | None
    strict: bool | None
    context: dict[str, Any]
    recursion_limit: int | None
    break_before: tuple[str, ...]
    break_after: tuple[str, ...]
    overrides: dict[str, dict[str, Any]]
    patches: dict[str, Any]
    user: str | None
    tags: dict[str, str]
    namespace: str | None

    def options(self, view: BuildView | None) -> RunOptions:
        """What the client is given: on a terminal, missing values are asked for; `view` shows builds of bases, None:
        no bases are built."""
        given: RunOptions = {
            "variables": dict([*self.agent_variables, *self.variables]),
            "cwd": self.cwd,
            "strict": self.strict,
            "config": None if self.recursion_limit is None else {"recursion_limit": self.recursion_limit},
            "context": self.context or None,
            "interrupt_before": "*" if self.break_before == ("*",) else self.break_before,
            "interrupt_after": "*" if self.break_after == ("*",) else self.break_after,
            "overrides": self.overrides or None,
            "patches": self.patches or None,
            "user": self.user,
            "tags": self.tags or None,
            "namespace": self.namespace,
            "ask_variable": variable_asker(),
        }
        if view is not None:
            given |= {"ask_knowledge": asker(view), "tell_knowledge": view.report}
        return given
