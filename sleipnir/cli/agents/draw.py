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

_FORM_OF = {".svg": "svg", ".dot": "dot", ".gv": "dot", ".txt": "text", ".png": "png", ".pdf": "pdf"}


@click.command()
@click.argument("target", metavar="[AGENT|FOLDER|FILE]", required=False, shell_complete=complete_agent)
@click.option("--run", "run_id", metavar="RUN", shell_complete=complete_run, help="Draw the progress of this run.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "dot", "svg", "text", "png", "pdf"]),
    help="Default: by the suffix of the output file, else mermaid. png and pdf need Graphviz.",
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
@click.option("--no-start-end", is_flag=True, help="DOT, PNG, PDF: no start and no ends; mark the first node.")
@click.option("--no-dotted", is_flag=True, help="DOT, PNG, PDF: leave out what is taken only if a run asks for it.")
@click.option("--label", metavar="TEXT", help="DOT, PNG, PDF: a title above the graph.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
@pass_options
def draw(
    options: GlobalOptions,
    target: str | None,
    run_id: str | None,
    form: str | None,
    direction: Direction,
    theme: Theme,
    no_start_end: bool,
    no_dotted: bool,
    label: str | None,
    output: Path | None,
) -> None:
    """Draw a graph: Mermaid for Markdown pages, DOT for Graphviz, text for the terminal, SVG for everything else.

    With --run it is the graph that the run was started with, coloured by the status of each node.
    """
    if (target is None) == (run_id is None):
        raise UsageError("draw takes either an agent or --run RUN")
    chosen = form or _FORM_OF.get(output.suffix.lower() if output else "", "mermaid")
    by_dot = chosen in ("dot", "png", "pdf")
    if not by_dot and (no_start_end or no_dotted or label is not None):
        raise UsageError("--no-start-end, --no-dotted and --label are for the formats dot, png and pdf")
    if output is None and chosen in ("png", "pdf"):
        raise UsageError(f"a {chosen.upper()} is written to a file: -o FILE.{chosen}")
    graph, progress = (read(locate(target, options.settings())), None) if target else _run(options, run_id or "")
    if by_dot:
        drawn = _by_dot(graph, progress, chosen, direction, (not no_start_end, not no_dotted, label))
    else:
        drawn = _drawn(graph, progress, chosen, direction, theme)
    if output is None:
        terminal.result(drawn.decode(), end="")
        return
    try:
        output.write_bytes(drawn)
    except OSError as error:
        raise UsageError(f"cannot write {str(output)!r}: {error.strerror}") from error


def _drawn(graph: Graph, progress: RunProgress | None, form: str, direction: Direction, theme: Theme) -> bytes:
    from sleipnir.graph.draw import mermaid, outline, svg

    match form:
        case "svg":
            return svg(graph, progress=progress, direction=direction, theme=theme).encode()
        case "text":
            return outline(graph, progress=progress).encode()
        case _:
            return mermaid(graph, progress=progress, direction=direction).encode()


def _by_dot(
    graph: Graph,
    progress: RunProgress | None,
    form: str,
    direction: Direction,
    content: tuple[bool, bool, str | None],
) -> bytes:
    from sleipnir.graph.draw import DotContent, dot
    from sleipnir.python_graph.rendering import rendered

    text = dot(graph, progress=progress, direction=direction, content=DotContent(*content))
    return text.encode() if form == "dot" else rendered(text, "png" if form == "png" else "pdf")


def _run(options: GlobalOptions, run_id: str) -> tuple[Graph, RunProgress]:
    from sleipnir.runs.run_progress import progress_of

    with options.connected(workers=False) as client:
        run = client.run(run_id)
        return run.graph(), progress_of(run.info(), run.history(), client.now_ms(), run.past_steps())
