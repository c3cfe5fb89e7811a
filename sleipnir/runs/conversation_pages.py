"""Pages of threads and of sessions: the ones used last first, with a cursor."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from typing import Final, TypeVar

from sleipnir.errors import UsageError
from sleipnir.runs.run_filters import ListPosition

T = TypeVar("T")

MOST_OF_PAGE: Final = 500


class PageOfConversations(list[T]):
    """Threads or sessions, the one used last first. `after` is the cursor of the next page; None: there is none. A page
    with few of them and a cursor says that few fit, and that the next call goes on. One that is used meanwhile moves to
    the first page."""

    def __init__(self, found: Collection[T] = (), after: str | None = None) -> None:
        super().__init__(found)
        self.after = after


def cursor_of(position: ListPosition) -> str:
    """The text of a position in the list."""
    return f"{position.at_ms}.{base64.urlsafe_b64encode(position.run.encode()).decode()}"


def position_of(cursor: str) -> ListPosition:
    """Raises UsageError."""
    at_ms, _, text = cursor.partition(".") if isinstance(cursor, str) else ("", "", "")
    try:
        if text and len(cursor) <= 1_000 and at_ms.isascii() and at_ms.isdecimal():
            return ListPosition(int(at_ms), base64.b64decode(text, altchars=b"-_", validate=True).decode())
    except (binascii.Error, ValueError, TypeError):
        pass
    raise UsageError(f"{cursor!r:.80} is no cursor: give the one that came with the page before")
