"""Effects that cannot be delivered: moved aside per partition with the reason, so that later effects are not blocked.

Redis always refuses the effect (a key has another type), or its command cannot be built (it is damaged). The owner of
the partition moves it to a stream of dead letters; a person repairs the cause and redelivers or removes it. It is
redelivered as a new effect: effects that its target received meanwhile stay in effect and come before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sleipnir.errors import UsageError
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.scripts import LuaScript
from sleipnir.store.streams import ms_of

_MOVE = LuaScript("dead_letter")

MOST: Final = 10_000
"""The most dead letters of a partition. When it is full, a further effect stays in its stream and is skipped."""

PAGE = 200
_ID = re.compile(r"p(\d{1,5})/(\d+-\d+)")


@dataclass(frozen=True)
class DeadLetter:
    """An effect of the run `run` that cannot be delivered. `effect` is the stored text; `id` is its name for people."""

    id: str
    at_ms: int
    run: str
    effect: str
    reason: str


class DeadLetters:
    """Safe for concurrent users; every change is one atomic script."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def count(self) -> int:
        """The number of dead letters in all partitions."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.xlen(self._keys.of_partition(partition).dead_letters)
        return sum(pipe.execute())

    def all(self) -> Iterator[DeadLetter]:
        """Oldest first within each partition; read lazily, a page at a time."""
        for partition in range(self._keys.partitions):
            stream, after = self._keys.of_partition(partition).dead_letters, "-"
            while page := self._client.xrange(stream, after, "+", count=PAGE):
                for id_, fields in page:
                    yield DeadLetter(
                        f"p{partition:02d}/{id_}",
                        ms_of(id_),
                        fields.get("run", ""),
                        fields.get("e", ""),
                        fields.get("reason", ""),
                    )
                after = f"({page[-1][0]}"

    def bury(self, partition: int, id_: str, reason: str) -> bool:
        """Move an effect to the dead letters. False: the partition has too many; it stays. Safe to repeat."""
        return self._move(partition, "bury", id_, reason) >= 0

    def redeliver(self, letter: str) -> bool:
        """Redeliver a dead letter as a new effect. False: it does not exist (any more). Raises UsageError for an
        invalid id."""
        return self._move(*self._parsed(letter), "") == 1

    def remove(self, letter: str) -> bool:
        """Delete a dead letter. False: it does not exist (any more). Raises UsageError for an invalid id."""
        partition, _, id_ = self._parsed(letter)
        return bool(self._client.xdel(self._keys.of_partition(partition).dead_letters, id_))

    def _parsed(self, letter: str) -> tuple[int, str, str]:
        match = _ID.fullmatch(letter)
        if match is None or int(match[1]) >= self._keys.partitions:
            raise UsageError(f"{letter[:40]!r} is not a dead letter; `sleipnir dead-letters ls` lists them")
        return int(match[1]), "redeliver", match[2]

    def _move(self, partition: int, wish: str, id_: str, reason: str) -> int:
        part = self._keys.of_partition(partition)
        keys = {"effects": part.effects, "dead": part.dead_letters}
        return int(_MOVE(self._client, keys, {"wish": wish, "id": id_, "reason": reason, "most": MOST}))
