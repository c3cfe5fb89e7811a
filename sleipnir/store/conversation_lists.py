"""Walks the lists of threads and of sessions: a sorted set of each partition, by the time of the last use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sleipnir.errors import UsageError
from sleipnir.runs.conversation_pages import MOST_OF_PAGE, cursor_of, position_of
from sleipnir.store.connect import Client
from sleipnir.store.runs.run_lists import FIRST, ListKey, ListWalk

AMONG: Final = 5_000
"""Names that one page looks at, if few of them fit."""


@dataclass(frozen=True)
class FoundNames:
    """The names of one page, and the cursor behind them; None: there are no more."""

    names: list[str]
    after: str | None


def newest_names(
    client: Client, indexes: Sequence[str], fits: Callable[[str], bool], limit: int, after: str | None
) -> FoundNames:
    """Up to `limit` of the names in these sorted sets, one of each partition, that fit, the one used last first, after
    a cursor. Raises UsageError for a limit that no page has, and for what is no cursor."""
    if not 1 <= limit <= MOST_OF_PAGE:
        raise UsageError(f"a page has 1 to {MOST_OF_PAGE} of them, not {limit}")
    position = FIRST if after is None else position_of(after)
    sets = [ListKey(partition, index) for partition, index in enumerate(indexes)]
    walk = ListWalk(client, sets, position, None, max(4, 2 * limit // max(1, len(sets)) + 1))
    names: list[str] = []
    looked = 0
    while len(names) < limit and looked < AMONG:
        page = walk.next_page(limit - len(names))
        if not page:
            return FoundNames(names, None)
        looked += len(page)
        position = page[-1]
        names += [each.run for each in page if fits(each.run)]
    return FoundNames(names, None if walk.is_over else cursor_of(position))
