"""`dead-letters`: lists, redelivers or removes effects that cannot be delivered."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.completion import complete_dead_letter
from sleipnir.cli.options import COUNT, GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import moment, print_json, print_table
from sleipnir.errors import UsageError
from sleipnir.runs.plain_text import one_line

if TYPE_CHECKING:
    from sleipnir.store.dead_letters import DeadLetter, DeadLetters

SHOWN = 80  # characters of an effect and of a reason in the table

_IDS = click.argument("ids", metavar="[ID...]", nargs=-1, shell_complete=complete_dead_letter)
_ALL = click.option("--all", "all_of_them", is_flag=True, help="All dead letters.")
_JSON = click.option("--json", "as_data", is_flag=True, help="Print JSON.")


@click.group("dead-letters")
def dead_letters() -> None:
    """Messages between runs that cannot be delivered: Redis refuses them, or they are damaged."""


@dead_letters.command()
@click.option("--limit", type=COUNT, default=100, show_default=True, help="Maximum number, the oldest first.")
@_JSON
@pass_options
def ls(options: GlobalOptions, limit: int, as_data: bool) -> None:
    """List dead letters: source run, content, and the reason of the refusal."""
    with options.connected(workers=False) as client, client.store.errors():
        letters = list(islice(client.store.dead_letters.all(), limit))
        total = client.store.dead_letters.count() if len(letters) == limit else len(letters)
    if as_data:
        print_json(letters)
    elif letters:
        print_table(("id", "since", "run", "effect", "reason"), [_row(letter) for letter in letters])
    else:
        terminal.note("no dead letters")
    if total > len(letters):
        terminal.note(f"{len(letters):,} of {total:,}; --limit N shows more")


@dead_letters.command()
@_IDS
@_ALL
@_JSON
@pass_options
def redeliver(options: GlobalOptions, ids: tuple[str, ...], all_of_them: bool, as_data: bool) -> int:
    """Deliver dead letters again, as new effects. Fix the cause first."""
    return _act_on_letters(
        options, ids, all_of_them, as_data, lambda letters: letters.redeliver, "is to be delivered again"
    )


@dead_letters.command()
@_IDS
@_ALL
@_JSON
@pass_options
def rm(options: GlobalOptions, ids: tuple[str, ...], all_of_them: bool, as_data: bool) -> int:
    """Remove dead letters: they are never delivered."""
    return _act_on_letters(options, ids, all_of_them, as_data, lambda letters: letters.remove, "is removed")


def _act_on_letters(
    options: GlobalOptions,
    ids: tuple[str, ...],
    all_of_them: bool,
    as_data: bool,
    act: Callable[[DeadLetters], Callable[[str], bool]],
    outcome: str,
) -> int:
    if bool(ids) == all_of_them:
        raise UsageError("name the dead letters, or pass --all; `sleipnir dead-letters ls` lists them")
    done: list[str] = []
    missing: list[str] = []
    with options.connected(workers=False) as client, client.store.errors():
        letters = client.store.dead_letters
        for letter in [each.id for each in letters.all()] if all_of_them else ids:
            (done if act(letters)(letter) else missing).append(letter)
    if as_data:
        print_json({"done": done, "missing": missing})
    else:
        for letter in done:
            terminal.note(f"dead letter {letter} {outcome}")
        for letter in missing:
            terminal.note(f"there is no dead letter {letter}")
    return exit_codes.FAILED if missing and not all_of_them else exit_codes.COMPLETED


def _row(letter: DeadLetter) -> tuple[str, ...]:
    effect, reason = (one_line(text, SHOWN) for text in (letter.effect, letter.reason))
    return (letter.id, moment(letter.at_ms), letter.run, effect, reason)
