"""Pages of schedules: what Client.schedules does with a limit."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from sleipnir.errors import UsageError

if TYPE_CHECKING:
    from sleipnir.schedules.records import ScheduleInfo
    from sleipnir.store.store import Store

_PAGE: Final = 200
AMONG: Final = 5_000
"""Schedules that one page looks at, if few of them fit."""


class PageOfSchedules(list["ScheduleInfo"]):
    """Schedules by name. `after` is the cursor of the next page: a name; None: there is none. A page with few schedules
    and a cursor says that few fit, and that the next call goes on."""

    def __init__(self, schedules: Collection[ScheduleInfo] = (), after: str | None = None) -> None:
        super().__init__(schedules)
        self.after = after


def page_of(store: Store, limit: int | None, after: str | None, namespace: str | None) -> PageOfSchedules:
    """The schedules after a name, up to `limit` (None: all); of a namespace, if it is given. Those that cannot be read
    are in no namespace. Raises UsageError for a limit below 1."""
    if limit is not None and limit < 1:
        raise UsageError(f"a page has at least one schedule, not {limit}")
    names = [name for name in store.schedules.names() if after is None or name > after]
    found: list[ScheduleInfo] = []
    looked = 0
    while looked < len(names) and (limit is None or looked < AMONG):
        page = names[looked : looked + _PAGE]
        for info in store.schedules.infos(page):
            looked += 1
            if info is not None and (namespace is None or info.namespace == namespace):
                found.append(info)
            if len(found) == limit:
                break
        if len(found) == limit:
            break
    return PageOfSchedules(found, names[looked - 1] if 0 < looked < len(names) else None)
