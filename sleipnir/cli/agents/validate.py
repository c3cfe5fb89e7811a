"""`validate` and `schema`: check an agent, and print a JSON Schema for editors. They need no Redis."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from sleipnir.agents.source import AgentSource, locate, read
from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_agent
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs.agent_warnings import warn_of_namesakes
from sleipnir.cli.terminal import terminal
from sleipnir.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sleipnir.errors import Problem
    from sleipnir.graph.model import Graph
    from sleipnir.settings import Settings

_FORMATS = ("text", "json", "github", "sarif")


@click.command()
@click.argument("target", metavar="[AGENT|FOLDER|FILE]", required=False, shell_complete=complete_agent)
@click.option("--format", "form", type=click.Choice(_FORMATS), help="How to print the problems. Default: text.")
@click.option("--json", "as_data", is_flag=True, help="The same as --format json.")
@click.option("--explain", "code", metavar="CODE", help="Explain a code, such as SLP403, instead of checking an agent.")
@pass_options
def validate(options: GlobalOptions, target: str | None, form: str | None, as_data: bool, code: str | None) -> int:
    """Check an agent's graph, templates and code, and report every problem with its place and its code.

    Of the agent's code only a graph.py is run. `# sleipnir: ignore CODE` at the end of a line suppresses a warning.

    Exit codes: 0 no error, 1 an error, 2 wrong usage.
    """
    if code is not None:
        return _explain(code)
    if target is None:
        raise UsageError("name an agent, a folder or a file: `sleipnir validate AGENT`")
    from sleipnir.cli.agents.problem_formats import FORMATS

    settings = options.settings()
    source = locate(target, settings)
    warn_of_namesakes(target, source.path, settings)
    problems = _problems_of(source, settings, is_local=options.is_embedded)
    errors = sum(problem.level == "error" for problem in problems)
    form = form or ("json" if as_data else "text")
    FORMATS[form](problems)
    if form == "text":
        terminal.result(_summary(source, problems, errors))
    return exit_codes.FAILED if errors else exit_codes.COMPLETED


@click.command()
@click.option("--version", "version", metavar="VERSION", help="One version of the language. Default: all of them.")
def schema(version: str | None) -> int:
    """Print the JSON Schema of graph.yaml, with which editors complete and check.

    Each file is checked by the rules of the `version` that it names. With --version, by those of that version.

    `sleipnir schema > graph.schema.json`, and in graph.yaml: `# yaml-language-server: $schema=graph.schema.json`
    """
    from sleipnir.graph.schemas import VERSIONS, schema_text, schema_text_of_all

    if version is not None and version not in VERSIONS:
        raise UsageError(f"there is no version {version!r} of the language; the versions are: {', '.join(VERSIONS)}")
    click.echo(schema_text_of_all() if version is None else schema_text(version), nl=False)
    return exit_codes.COMPLETED


def _explain(code: str) -> int:
    from sleipnir.graph.codes import CODES, explain
    from sleipnir.graph.findings import suggestion

    text = explain(code)
    if text is None:
        raise UsageError(f"there is no finding {code!r}. {suggestion(code.upper(), CODES, 'codes') or ''}".rstrip())
    terminal.result(text)
    return exit_codes.COMPLETED


def _problems_of(source: AgentSource, settings: Settings, *, is_local: bool) -> list[Problem]:
    from sleipnir.agents.config_directory import functions_dir, skill_complaint
    from sleipnir.agents.finding import folder_or_none
    from sleipnir.graph.check import validate as problems_of
    from sleipnir.models.clients import clients_here
    from sleipnir.tools import mcp_config
    from sleipnir.tools.folder import custom_tools, global_complaint

    return problems_of(
        source.path,
        agents=lambda name: folder_or_none(name, settings),
        read_tools=custom_tools,
        global_tools=lambda name: global_complaint(name, functions_dir()),
        mcp_servers=lambda name: mcp_config.complaint(name, functions_dir() / "mcp.json"),
        config_file=source.config_file,
        clients=clients_here(os.environ, is_local=is_local),
        skills=skill_complaint,
    )


def _summary(source: AgentSource, problems: Sequence[Problem], errors: int) -> str:
    warnings = _count(len(problems) - errors, "warning")
    if errors:
        return f"{source.path}: {_count(errors, 'error')}, {warnings}"
    graph = read(source)
    if graph.loop is not None:
        return f"ok: {source.path}: a config.yaml agent, {warnings}"
    return f"ok: {source.path}: {_count(len(graph.nodes), 'node')}, {_count(_edges(graph), 'edge')}, {warnings}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _edges(graph: Graph) -> int:
    from sleipnir.graph.model import edges_of

    return sum(len(edges_of(node)) for node in graph.nodes.values())
