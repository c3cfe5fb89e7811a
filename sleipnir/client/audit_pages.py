"""Pages of the audit, the newest entries first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from sleipnir.access.audit import AuditEntry
from sleipnir.errors import UsageError

MOST_LOOKED: Final = 5_000
"""Entries that one page looks at, if few of them fit."""


class PageOfEntries(list[AuditEntry]):
    """Entries of the audit, the newest first. `after` is the cursor of the next page; None: there is none. `looked`
    entries were looked at: a page with few entries and a cursor says that few fit."""

    def __init__(self, entries: Collection[AuditEntry], after: str | None, looked: int) -> None:
        super().__init__(entries)
        self.after, self.looked = after, looked


def page_of(
    audit: Callable[..., Iterator[AuditEntry]], limit: int, after: str | None, wanted: Mapping[str, str | None]
) -> PageOfEntries:
    """`audit` is Access.audit. `wanted`: texts that the fields of entries contain. A cursor is the time of the last
    entry that was looked at, and how many of that time were."""
    if limit < 1:
        raise UsageError(f"a page has at least one entry, not {limit}")
    newest_ms, passed = _place(after)
    entries = audit(newest_ms=newest_ms, newest_first=True)
    if newest_ms is not None:
        entries = (entry for number, entry in enumerate(entries) if number >= passed)
    found: list[AuditEntry] = []
    looked, last_ms, of_time = 0, newest_ms, passed
    for entry in entries:
        if len(found) == limit or looked == MOST_LOOKED:
            return PageOfEntries(found, f"{last_ms}.{of_time}", looked)
        of_time = of_time + 1 if entry.at_ms == last_ms else 1
        looked, last_ms = looked + 1, entry.at_ms
        if all(text is None or text in getattr(entry, name) for name, text in wanted.items()):
            found.append(entry)
    return PageOfEntries(found, None, looked)


def _place(cursor: str | None) -> tuple[int | None, int]:
    """The time and the number of a cursor."""
    if cursor is None:
        return None, 0
    time, _, number = cursor.partition(".")
    if not (time.isascii() and time.isdecimal() and number.isascii() and number.isdecimal() and len(cursor) < 40):
        raise UsageError(f"{cursor!r:.60} is no cursor of the audit")
    return int(time), int(number)
