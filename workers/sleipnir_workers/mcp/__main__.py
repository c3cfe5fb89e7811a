"""`python -m sleipnir_workers.mcp check FILE [--json]`: check the servers of an mcp.json: start, list tools, stop.

Secrets come from the environment, and from `--env-file`. Exit code 0: all servers work; 1: some do not; 2: the file or
the command line is invalid.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from sleipnir.errors import ConfigError
from sleipnir.tools.mcp_config import McpConfigError, McpServer, read
from sleipnir_workers.mcp.checking import CheckedServer, check_each
from sleipnir_workers.mcp.configuration import secrets_of
from sleipnir_workers.mcp.connections import START_S

SOME_BROKEN = 1
UNUSABLE = 2


@click.group()
def main() -> None:
    """MCP servers of llm nodes."""


@main.command("check")
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--json", "as_data", is_flag=True, help="Print a JSON object.")
@click.option("--server", "names", multiple=True, help="Check this one only; may be given more than once.")
@click.option("--timeout", "start_s", type=click.FloatRange(min=0.1), default=START_S, help="Seconds for each server.")
@click.option("--env-file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="NAME=value lines.")
def check_file(file: Path, as_data: bool, names: tuple[str, ...], start_s: float, env_file: Path | None) -> None:
    """Start every server of FILE, list its tools, and end it."""
    try:
        servers = _chosen(read(file, secrets_of(os.environ, env_file)), names, file)
    except ConfigError as error:
        problems = [str(each) for each in error.problems] if isinstance(error, McpConfigError) else [str(error)]
        _report([], problems, as_data=as_data)
        raise SystemExit(UNUSABLE) from None
    results = check_each(servers, start_s=start_s)
    problems = [result.problem for result in results if result.problem is not None]
    _report(results, problems, as_data=as_data)
    raise SystemExit(SOME_BROKEN if problems else 0)


def _chosen(servers: dict[str, McpServer], names: tuple[str, ...], file: Path) -> dict[str, McpServer]:
    if missing := [name for name in names if name not in servers]:
        known = ", ".join(servers) or "none"
        raise ConfigError(f"{file}: MCP server '{missing[0]}' is not in it; there are {known}")
    return {name: server for name, server in servers.items() if not names or name in names}


def _report(results: list[CheckedServer], problems: list[str], *, as_data: bool) -> None:
    if as_data:
        servers = [asdict(result) for result in results]
        click.echo(json.dumps({"ok": not problems, "servers": servers, "problems": problems}, ensure_ascii=False))
        return
    for result in results:
        if result.problem is None:
            click.echo(f"ok    {result.server}: {result.tools} tools")
    for problem in problems:
        click.echo(f"fail  {problem}")
    if not results and not problems:
        click.echo("no servers")


if __name__ == "__main__":
    main(prog_name="python -m sleipnir_workers.mcp")
