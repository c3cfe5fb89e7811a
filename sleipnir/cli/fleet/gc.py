"""`gc`: removes unused data. What is unused, and why removal is safe during runs: upkeep/garbage.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from sleipnir.cli import exit_codes
from sleipnir.cli.options import GlobalOptions, pass_options
from sleipnir.cli.terminal import terminal
from sleipnir.cli.terminal.render import print_json, print_table, size
from sleipnir.errors import KnowledgeError, SleipnirError

if TYPE_CHECKING:
    from sleipnir.settings import Settings


@dataclass(frozen=True)
class RemovedGarbage:
    """One row. `problem`: why it could not be removed."""

    kind: str
    name: str
    bytes: int
    why: str
    removed: bool
    problem: str | None = None


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option("--sessions", is_flag=True, help="Also sessions and threads of agents that are not found here.")
@click.option("--json", "as_data", is_flag=True, help="Print a JSON list.")
@pass_options
def gc(options: GlobalOptions, dry_run: bool, sessions: bool, as_data: bool) -> int:
    """Remove unused data: in Redis, in the index store of knowledge bases, and of dead workers on this machine.

    It is safe while runs are active. Exit code 1 if something could not be removed.
    """
    from sleipnir.upkeep.garbage import garbage_items

    removed_items: list[RemovedGarbage] = []
    with options.connected(workers=False) as client, _unreachable_index_store(removed_items, client.settings):
        for item, remove in garbage_items(client.store, client.settings, sessions=sessions):
            removed, problem = False, None
            if not dry_run:
                try:
                    with client.store.errors():
                        removed = remove()
                except (OSError, SleipnirError) as error:
                    problem = str(error)
            removed_items.append(RemovedGarbage(item.kind, item.name, item.bytes_, item.why, removed, problem))
    if as_data:
        print_json(removed_items)
    else:
        _print(removed_items, dry_run=dry_run)
    return exit_codes.FAILED if any(each.problem for each in removed_items) else exit_codes.COMPLETED


@contextmanager
def _unreachable_index_store(removed_items: list[RemovedGarbage], settings: Settings) -> Iterator[None]:
    """A row for the failure: earlier findings are kept."""
    from sleipnir.knowledge.files import index_store_name

    try:
        yield
    except KnowledgeError as error:
        removed_items.append(
            RemovedGarbage("shelf", index_store_name(settings), 0, "cannot be read", False, str(error))
        )


def _print(removed_items: list[RemovedGarbage], *, dry_run: bool) -> None:
    if not removed_items:
        terminal.note("nothing to remove")
        return
    rows = [(each.kind, each.name, size(each.bytes), each.problem or each.why) for each in removed_items]
    print_table(("kind", "name", "size", "why"), rows)
    gone = [each for each in removed_items if dry_run or each.removed]
    verb = "would be removed" if dry_run else "removed"
    terminal.note(f"{len(gone)} of {len(removed_items)} {verb}, {size(sum(each.bytes for each in gone))}")
