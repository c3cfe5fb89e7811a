"""`export`: a run as lines of JSON, for other programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from sleipnir.cli.completion import complete_run
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.runs.whole_file import whole_file
from sleipnir.cli.terminal.terminal import result


@click.command()
@click.argument("run_id", metavar="RUN", shell_complete=complete_run)
@click.option(
    "-o", "--output", "file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write to this file, completely or not at all. Default: standard output.",
)  # fmt: skip
@click.option("--children", is_flag=True, help="Also all descendant runs.")
@pass_options
def export(options: GlobalOptions, run_id: str, file: Path | None, children: bool) -> None:
    """Write RUN as lines of JSON: its specification, each step with its writes, and its outcome.

    An unfinished run is exported in its current state. docs/operations.md has the format.
    """
    with options.connected(workers=False) as client:
        lines = client.run(run_id).export(children=children)
        if file is None:
            print_lines(lines)
        else:
            with whole_file(file) as content:
                content.writelines(lines)


def print_lines(lines: Iterable[str]) -> None:
    """On stdout, in UTF-8 regardless of the terminal's encoding, because the output is for programs."""
    if sys.stdout.isatty():
        for line in lines:
            result(line, end="")
        return
    for line in lines:
        sys.stdout.buffer.write(line.encode())
    sys.stdout.buffer.flush()
