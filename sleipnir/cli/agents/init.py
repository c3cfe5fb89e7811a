"""`sleipnir init`: creates a new agent from a template. Needs no Redis."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal

# The keys of new_agent.TEMPLATES, which is not imported for a completion.
KINDS = ("script", "llm", "map", "loop", "rag")


@click.command()
@click.argument("name")
@click.option(
    "--template", "kind", type=click.Choice(KINDS), default="script", show_default=True,
    help="script: a Python script. llm: a model. map: a script for each item of a list. "
    "loop: a model that retries until a check passes. rag: a model that answers from documents.",
)  # fmt: skip
@click.option(
    "--dir", "directory", type=click.Path(file_okay=False, path_type=Path), default=Path("agents"), show_default=True,
    help="Create the folder NAME in this one.",
)  # fmt: skip
@pass_options
def init(options: GlobalOptions, name: str, kind: str, directory: Path) -> int:
    """Create a new agent NAME: a graph of version sleipnir/1, its code, a test and a README.

    It works unchanged. Its folder is agents/NAME, where `sleipnir run NAME` finds it from this directory. An existing
    folder is never changed.
    """
    from sleipnir.agents.creation import check_name, make

    check_name(name)
    shown = os.path.normpath(directory / name)
    named = _command_name(name, directory / name, options)
    files = make(kind, name, directory, shown=shlex.quote(shown), command_name=named)
    terminal.result(f"made {shown}:")
    for file in files:
        terminal.result(f"  {file}")
    for line in _next_steps(kind, shown, named, options):
        terminal.note(line)
    return exit_codes.COMPLETED


def _command_name(name: str, folder: Path, options: GlobalOptions) -> str:
    """The agent's argument in commands: its name, if that refers to this folder, else its path."""
    from sleipnir.agents.finding import folder_or_none, places

    if folder_or_none(name, options.settings()) is None and folder.parent.absolute() in places(options.settings()):
        return name
    path = os.path.normpath(folder)
    return shlex.quote(path if os.sep in path else f"{os.curdir}{os.sep}{path}")  # without a slash it is a name


def _next_steps(kind: str, shown: str, named: str, options: GlobalOptions) -> list[str]:
    from sleipnir.agents.creation import RECORDING, TEMPLATES

    template = TEMPLATES[kind]
    replay = f" --replay {shlex.quote(str(Path(shown, RECORDING)))}" if template.asks_a_model else ""
    start = options.command("run")
    lines = [
        "",
        "Next:",
        f"  {options.command('validate')} {named}",
        f"  {start} {named} {shlex.quote(template.prompt)}{replay}",
        f"  pytest {shlex.quote(shown)}",
    ]
    if template.asks_a_model:
        lines += [
            "",
            "--replay takes the model's answers from a recording and needs no key. To ask the model, set",
            "OPENAI_API_KEY and leave --replay out; `model:` in graph.yaml names another one.",
        ]
    return lines
