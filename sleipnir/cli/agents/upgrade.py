"""`sleipnir upgrade`: rewrites a graph of version 1.0 to sleipnir/1."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from sleipnir.agents.source import locate
from sleipnir.cli import exit_codes
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs.parameters import AGENT
from sleipnir.cli.terminal import terminal
from sleipnir.errors import UsageError


@click.command()
@AGENT
@click.option("--dry-run", is_flag=True, help="Print the changes as a diff without changing the file.")
@pass_options
def upgrade(options: GlobalOptions, agent: str, dry_run: bool) -> int:
    """Rewrite AGENT's graph.yaml from version 1.0 to sleipnir/1, and list the changes.

    Runs behave as before: nodes after which a run continued despite a failure get `on_error: continue`; remove it where
    a failure should fail the run. Comments and layout are kept. Existing runs keep their definition.

    Exit codes: 0 done, or nothing to do; 1 a manual change is needed first, and the file is unchanged; 2 there is no
    such graph, or it has errors.
    """
    from sleipnir.agents.finding import shipped_agents
    from sleipnir.graph.load import CONFIG_FILE, GRAPH_FILE, load_graph
    from sleipnir.graph.model import SLEIPNIR
    from sleipnir.graph.upgrade import upgraded

    path = locate(agent, options.settings()).path
    file = path / GRAPH_FILE if path.is_dir() else path
    if file.name == CONFIG_FILE or not file.is_file():
        raise UsageError(f"{path} has no {GRAPH_FILE}: there is nothing to upgrade")
    if not dry_run and agent in shipped_agents() and path == shipped_agents()[agent]:
        raise UsageError(
            f"{agent} ships with Sleipnir: copy it with `sleipnir agents install {agent}`, then upgrade that"
        )
    text = _read(file)
    graph = load_graph(text, str(file), agent)
    if graph.version == SLEIPNIR:
        terminal.note(f"{file} is of version {SLEIPNIR} already: there is nothing to do")
        return exit_codes.COMPLETED
    result = upgraded(text, graph)
    if result.by_hand:
        for message in result.by_hand:
            terminal.error(f"{file}:{message}")
        terminal.note("change that manually and try again; the file is unchanged")
        return exit_codes.FAILED
    if dry_run:
        lines = text.splitlines(keepends=True), result.text.splitlines(keepends=True)
        terminal.result("".join(difflib.unified_diff(*lines, str(file), str(file))), end="")
    else:
        _write(file, result.text)
    for message in result.changes:
        terminal.note(f"{file}:{message}")
    for message in result.notes:
        terminal.note(f"differs: {message}")
    return exit_codes.COMPLETED


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def _write(file: Path, text: str) -> None:
    """Writes the file completely or not at all. A link stays a link."""
    file = file.resolve()
    beside = file.with_name(f".{file.name}.upgrade")
    try:
        beside.write_bytes(text.encode())
        beside.chmod(file.stat().st_mode & 0o777)
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from error
