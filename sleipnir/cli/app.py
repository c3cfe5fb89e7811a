"""The click application: global options, commands found through the table, and how errors end the process.

Rule. Every error that Sleipnir raises on purpose ends here as `error: ...` on stderr and an exit code; a
traceback is shown only with -v, or when it is a bug.
"""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from sleipnir.cli import exit_codes, front_page
from sleipnir.cli.failures import report
from sleipnir.cli.options import GlobalOptions
from sleipnir.cli.terminal import terminal
from sleipnir.errors import SleipnirError


class CommandTable(click.Group):
    """A group whose commands are imported when they are called, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(front_page.COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in front_page.COMMANDS:
            return None
        module, attribute = front_page.COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in front_page.COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(_unknown_command(args[0]), ctx)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(front_page.text() + "\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the table: click would import every command to get its help."""
        commands = [
            CompletionItem(name, help=line)
            for name, (_, line) in front_page.COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SleipnirError as failure:
            ctx.exit(report(failure, verbose=bool(ctx.params.get("verbose"))))


def _unknown_command(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, front_page.COMMANDS, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else "`sleipnir --help` lists the commands."
    return f"there is no command {name!r}. {hint}"


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from sleipnir import __version__

        click.echo(f"sleipnir {__version__}")
        ctx.exit()


SHOWN = 200  # characters of an argument that is refused

_DIRECTORY = click.Path(file_okay=False, path_type=Path, resolve_path=True)


@click.group(cls=CommandTable, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.option("--agents-dir", type=_DIRECTORY)
@click.option("--home", type=_DIRECTORY)
@click.option("--redis-url", metavar="URL")
@click.option("-v", "--verbose", count=True)
@click.option("--no-color", is_flag=True)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
@click.pass_context
def app(
    ctx: click.Context,
    agents_dir: Path | None,
    home: Path | None,
    redis_url: str | None,
    verbose: int,
    no_color: bool,
) -> None:
    """Runs YAML graph agents as durable, distributed workflows."""
    if no_color:
        ctx.color = False
    ctx.obj = GlobalOptions(agents_dir=agents_dir, home=home, redis_url=redis_url, verbose=verbose)


def _unusable(arguments: Sequence[str]) -> str | None:
    """Input that no command can use. It is detected here, before a command starts."""
    for number, argument in enumerate(arguments, 1):
        if not argument.isascii() and not _is_text(argument):
            return f"argument {number}, {argument[:SHOWN]!r}, is not text in UTF-8"
    try:
        directory = Path.cwd()
    except OSError as error:
        return f"the current directory cannot be used ({error.strerror}); cd to one that exists"
    if _is_text(str(directory)):
        return None
    return f"the name of the current directory, {str(directory)!r}, is not text in UTF-8"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that Python could not decode are surrogates; settings.py is not loaded for this
        return False
    return True


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a result is worth more than its last accent
    if unusable := _unusable(arguments):
        terminal.error(unusable)
        return exit_codes.USAGE
    try:
        result = app.main(list(arguments), prog_name="sleipnir", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as wrong:  # a group without its command: the message is its help page
        terminal.note(wrong.format_message())
        return exit_codes.USAGE
    except click.UsageError as wrong:
        if wrong.ctx is not None:
            terminal.note(wrong.ctx.get_usage())
        terminal.error(wrong.format_message())
        return exit_codes.USAGE
    except click.ClickException as wrong:
        terminal.error(wrong.format_message())
        return exit_codes.USAGE
    except click.Abort:
        terminal.note("interrupted")
        return exit_codes.INTERRUPTED
    return result if isinstance(result, int) else exit_codes.COMPLETED
