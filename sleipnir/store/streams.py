"""The entries of Redis streams in replies of redis-py, and the order of their ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def entries(reply: Any) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The entries of an XREAD reply; RESP3 nests those of a stream once more than RESP2."""
    for batches in dict(reply or {}).values():
        for batch in batches:
            yield from batch if batch and isinstance(batch[0], list | tuple) else [batch]


def before(stream_id: str) -> str:
    """The largest possible smaller id: reading after it returns the entry again."""
    ms, number = map(int, stream_id.split("-"))
    return f"{ms}-{number - 1}" if number else f"{ms - 1}-{2**64 - 1}"


def ms_of(stream_id: str) -> int:
    """The time when the entry was added, by Redis' clock."""
    return int(stream_id.split("-")[0])
