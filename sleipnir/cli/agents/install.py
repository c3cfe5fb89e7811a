"""`agents install`: shipped agents as the user's own, to change. Needs no Redis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_shipped
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import print_json
from sleipnir.errors import AgentNotFound, UsageError
from sleipnir.runs.plain_text import one_line

if TYPE_CHECKING:
    from sleipnir.agents.installation import InstalledAgent

MOST_SHOWN = 5


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_shipped)
@click.option("--reset", "reset_name", metavar="NAME", shell_complete=complete_shipped,
              help="Restore this one, and discard its changes. Asks first.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask before --reset discards changes.")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list of the results.")
@pass_options
def install(options: GlobalOptions, names: tuple[str, ...], reset_name: str | None, yes: bool, as_data: bool) -> int:
    """Copy the agents NAME (default: all shipped agents) to your own directory, where you may change them.

    An agent that you have changed is kept, and the changed files are listed; unchanged ones are updated. Your directory
    is `agents` in --home: it takes precedence over the shipped agents.
    """
    from sleipnir.agents import finding
    from sleipnir.agents.installation import install as install_agent
    from sleipnir.agents.installation import reset

    if reset_name is not None and names:
        raise UsageError("--reset restores one agent; install others with a command of their own")
    if yes and reset_name is None:
        raise UsageError("--yes goes with --reset: installing never overwrites a change")
    shipped = finding.shipped_agents()
    wanted = [_shipped(name, shipped) for name in dict.fromkeys(names) or sorted(shipped)]
    directory = finding.own_agents(options.settings()).absolute()
    if reset_name is None:
        done = [install_agent(folder, directory) for folder in wanted]
    else:
        folder = _shipped(reset_name, shipped)
        if not yes and not _may_reset(folder, directory):
            terminal.note("left as it is")
            return exit_codes.FAILED
        done = [reset(folder, directory)]
    if as_data:
        print_json(done)
    else:
        for agent in done:
            click.echo(_line(agent))
        _say_what_next(done, options)
    return exit_codes.COMPLETED


def _shipped(name: str, shipped: dict[str, Path]) -> Path:
    """Raises AgentNotFound with a close name."""
    if name in shipped:
        return shipped[name]
    import difflib

    close = difflib.get_close_matches(name, shipped, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"These ship: {', '.join(sorted(shipped))}."
    raise AgentNotFound(f"no agent {name!r} ships with Sleipnir. {hint}")


def _may_reset(shipped: Path, directory: Path) -> bool:
    """Asks nothing if no change would be lost. Raises UsageError if there is no terminal."""
    from sleipnir.agents.installation import edits

    lost = edits(shipped, directory)
    if not lost:
        return True
    files = _files(lost)
    if not terminal.can_ask():
        raise UsageError(f"--reset {shipped.name} would give up changes in {files}; pass --yes to do so")
    terminal.note(f"{directory / shipped.name} has changes in {files}.")
    return click.confirm("Give them up?", err=True)


def _line(done: InstalledAgent) -> str:
    match done.action:
        case "installed":
            return f"installed  {done.name}: {done.folder}"
        case "updated":
            return f"updated    {done.name}: it was unchanged, and a newer version ships"
        case "unchanged":
            return f"unchanged  {done.name}"
        case "kept":
            newer = "; a newer version ships" if done.outdated else ""
            return f"kept       {done.name}: changed by you: {_files(done.edited)}{newer}"
        case "reset":
            lost = f"; given up: {_files(done.edited)}" if done.edited else ""
            return f"reset      {done.name}: {done.folder}{lost}"


def _files(names: tuple[str, ...]) -> str:
    shown = ", ".join(one_line(name) for name in names[:MOST_SHOWN])
    return shown if len(names) <= MOST_SHOWN else f"{shown} and {len(names) - MOST_SHOWN} more"


def _say_what_next(done: list[InstalledAgent], options: GlobalOptions) -> None:
    kept = [each.name for each in done if each.action == "kept"]
    if kept:
        restore = options.command("agents", "install", "--reset", kept[0])
        terminal.note(f"to restore one, and give up its changes: {restore}")
    if changed := sorted({name for each in done for name in each.shared_kept}):
        terminal.note(f"files shared by agents were changed by you and are kept, in .shared: {_files(tuple(changed))}")
    if any(each.action == "installed" for each in done):
        terminal.note("you may change them; these now take precedence over the shipped ones")
