"""Commands that were sent, and whose replies are read later: their sender does something else while Redis executes
them.

    pending = PendingReplies(sending(...))
    ...
    replies = pending.result()

`sending` is a generator: it sends, yields, reads the replies, and returns what it makes of them. It may send and yield
again. Each is sent over a connection of its own, which `close` closes if its replies were not read.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

Sending: TypeAlias = Generator[None, None, T]


class PendingReplies(Generic[T]):
    """What the first step of `sending` has sent."""

    def __init__(self, sending: Sending[T]) -> None:
        self._sending = sending
        self._result: list[T] = []
        self._go_on()

    def result(self) -> T:
        """Wait for the replies. Raises what `sending` raises."""
        while not self._result:
            self._go_on()
        return self._result[0]

    def close(self) -> None:
        """Leave the replies alone. Nothing happens if they were read."""
        self._sending.close()

    def _go_on(self) -> None:
        try:
            next(self._sending)
        except StopIteration as end:
            self._result.append(end.value)
