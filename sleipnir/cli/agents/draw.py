"""`draw`: a picture of a graph, or of the progress of a run. A graph needs no Redis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sleipnir.agents.source import locate, read
from sleipnir.cli.completion import complete_agent, complete_run
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.errors import UsageError

if TYPE_CHECKING:
    from sleipnir.graph.draw import Direction, RunProgress, Theme
    from sleipnir.graph.model import Graph

_FORM_OF = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".txt": "text"}


@click.command()
@click.argument("target", metavar="[AGENT|FOLDER|FILE]", required=False, shell_complete=complete_agent)
@click.option("--run", "run_id", metavar="RUN", shell_complete=complete_run, help="Draw the progress of this run.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "dot", "svg", "text"]),
    help="Default: by the suffix of the output file, else mermaid.",
)
@click.option(
    "--direction", type=click.Choice(["TB", "LR"]), default="TB", show_default=True, help="Top-down, or left to right."
)
@click.option(
    "--theme",
    type=click.Choice(["auto", "light", "dark"]),
    default="auto",
    show_default=True,
    help="Colours of an SVG; auto: the viewer's light or dark theme.",
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@pass_options
def draw(
    options: GlobalOptions,
    target: str | None,
    run_id: str | None,
    form: str | None,
    direction: Direction,
    theme: Theme,
    output: Path | None,
) -> None:
    """Draw a graph: Mermaid for Markdown pages, DOT for Graphviz, text for the terminal, SVG for everything else.

    With --run it is the graph that the run was started with, coloured by the status of each node.
    """
    if (target is None) == (run_id is None):
        raise UsageError("draw takes either an agent or --run RUN")
    graph, progress = (read(locate(target, options.settings())), None) if target else _run(options, run_id or "")
    chosen = form or _FORM_OF.get(output.suffix.lower() if output else "", "mermaid")
    drawn = _drawn(graph, progress, chosen, direction, theme)
    if output is None:
        terminal.result(drawn, end="")
        return
    try:
        output.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {str(output)!r}: {error.strerror}") from error


def _drawn(graph: Graph, progress: RunProgress | None, form: str, direction: Direction, theme: Theme) -> str:
    from sleipnir.graph.draw import dot, mermaid, outline, svg

    match form:
        case "svg":
            return svg(graph, progress=progress, direction=direction, theme=theme)
        case "dot":
            return dot(graph, progress=progress, direction=direction)
        case "text":
            return outline(graph, progress=progress)
        case _:
            return mermaid(graph, progress=progress, direction=direction)


def _run(options: GlobalOptions, run_id: str) -> tuple[Graph, RunProgress]:
    from sleipnir.runs.run_progress import progress_of

    with options.connected(workers=False) as client:
        run = client.run(run_id)
        return run.graph(), progress_of(run.info(), run.history(), client.now_ms(), run.past_steps())
