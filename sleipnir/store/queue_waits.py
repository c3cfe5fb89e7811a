"""How long the next visit of each queue has waited: read at the heads of the broker's lists, so that the cost does not
grow with what waits."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys, is_member, lines_of, member_of, parse_member

LINE_LOOK: Final = 5
"""Messages at the head of a queue that are searched for the oldest visit: some of their visits are already claimed."""


class QueueWaits:
    """Reads messages of the broker, if it is a Redis, and the visits that they call."""

    def __init__(self, client: Client, keys: Keys, broker: Client | None) -> None:
        self._client, self._keys, self._broker = client, keys, broker

    def oldest_ms(self, queues: Collection[str], now_ms: int) -> dict[str, int]:
        """For how long the next visit of each queue has waited, which is approximately the oldest; 0: none waits."""
        if self._broker is None:
            return {}
        pipe = self._broker.pipeline(transaction=False)
        for queue in queues:
            for line in lines_of(queue):
                pipe.lrange(self._keys.broker_prefix + line, -LINE_LOOK, -1)
        ends = iter(pipe.execute())
        heads = [[_member(text) for text in (*first, *last)] for first, last in zip(ends, ends, strict=True)]
        names = [name for head in heads for name in head if name is not None]
        unclaimed = iter(self._unclaimed(names))
        found = {}
        for queue, head in zip(queues, heads, strict=True):
            opened = [since for since in islice(unclaimed, sum(name is not None for name in head)) if since is not None]
            found[queue] = age_of(now_ms, opened)
        return found

    def visits(self, names: Sequence[str]) -> Iterator[Any]:
        """The records of these visits; None for a visit that is over."""
        pipe = self._client.pipeline(transaction=False)
        for run_id, seq, _ in map(parse_member, names):
            pipe.hget(self._keys.of_run(run_id).frontier, str(seq))
        return (_json_object(text) for text in pipe.execute())

    def _unclaimed(self, names: Sequence[str]) -> list[int | None]:
        """Since when each of these visits waits; None for a visit that no longer waits."""
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            partition = self._keys.partition_of(parse_member(name)[0])
            pipe.zscore(self._keys.of_partition(partition).outbox, name)
        waits = pipe.execute()
        visits = zip(waits, self.visits(names), strict=True)
        opened = ((wait, visit.get("opened_ms") if visit else None) for wait, visit in visits)
        return [at_ms if wait is not None and type(at_ms) is int else None for wait, at_ms in opened]


def age_of(now_ms: int, since: Iterable[int | None]) -> int:
    """The age of the oldest of these times, in ms; 0: there is none."""
    oldest = min((each for each in since if each is not None), default=now_ms)
    return max(0, now_ms - oldest)


def _json_object(text: str | None) -> dict[str, Any] | None:
    """The object; None if it cannot be read: it is not counted."""
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _member(envelope: str) -> str | None:
    """The visit of a message; None if it is not a message of Sleipnir."""
    try:
        name = member_of(json.loads(envelope)["headers"]["id"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return name if is_member(name) else None
