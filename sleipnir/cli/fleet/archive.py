"""`archive`: runs that a scheduler archived before they expired. Needs the folder, and no Redis."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_archived
from sleipnir.cli.options import COUNT, GlobalOptions, pass_options
from sleipnir.cli.runs.export import print_lines
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.errors import UsageError
from sleipnir.runs.plain_text import printable


@click.group()
def archive() -> None:
    """Runs that were archived before they expired (SLEIPNIR_ARCHIVE)."""


_FOLDER = click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Default: SLEIPNIR_ARCHIVE."
)


@archive.command()
@_FOLDER
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number of runs.")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@pass_options
def ls(options: GlobalOptions, folder: Path | None, limit: int, as_data: bool) -> int:
    """List archived runs, the last archived first. Reads whole files, newest first, until it has enough.

    Exit code 1 when one of those files is damaged.
    """
    from sleipnir.upkeep.archive import archived_runs

    damaged: list[Path] = []
    runs = list(islice(archived_runs(_folder(options, folder), _teller(damaged)), limit))
    if as_data:
        print_json(runs)
    elif runs:
        rows = [(each.run, each.agent, each.status, moment(each.ended_ms), each.file.name) for each in runs]
        print_table(("run", "agent", "status", "ended", "file"), rows)
    else:
        terminal.note("no archived runs")
    return exit_codes.FAILED if damaged else exit_codes.COMPLETED


@archive.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_archived)
@_FOLDER
@pass_options
def show(options: GlobalOptions, run_id: str, folder: Path | None) -> None:
    """Print RUN as lines of JSON, in the format of `export`. Reads the newest files first."""
    from sleipnir.upkeep.archive import archived_lines

    print_lines(archived_lines(_folder(options, folder), run_id, _teller([])))


def _teller(damaged: list[Path]) -> Callable[[Path, str], None]:
    """Warns once of each file that is damaged, and adds it to `damaged`."""

    def tell(file: Path, reason: str) -> None:
        if file not in damaged:
            damaged.append(file)
            terminal.note(printable(f"warning: {file} is damaged: {reason}"))

    return tell


def _folder(options: GlobalOptions, given: Path | None) -> Path:
    folder = given or options.settings().archive
    if folder is None:
        raise UsageError("no archive: name its folder with --folder, or set SLEIPNIR_ARCHIVE")
    return folder
