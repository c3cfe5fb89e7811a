"""What an index of a partition lists, by namespace: its open questions, and batches.

The index of all stays as it is: a sorted set of names by time. Beside it there is one for each namespace with the same
names and times. The scripts that add a name to the first add it to both (commit.lua, batch_add.lua); list_names.lua
puts right what an earlier release has added or removed (services/listing.py). Until it has looked at all names once,
the second ones may lack some, and readers go through the index of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sleipnir.store.connect import Client
from sleipnir.store.scripts import LuaScript

COMPLETE: Final = "*"
"""The member of `namespaces_of` that says that every name has been looked at once. No namespace has this name."""
_LIST_NAMES = LuaScript("list_names")


def namespaces_of(index: str) -> str:
    """SET the namespaces that had a name in the index, and COMPLETE. Never dies; as large as there are namespaces."""
    return f"{index}:of"


def of_namespace(index: str, namespace: str) -> str:
    """ZSET what the index has of one namespace, with the same scores. An entry dies with that of the index."""
    return f"{index}:of:{namespace}"


def is_complete(client: Client, indexes: Sequence[str]) -> list[bool]:
    """Whether each index is listed by namespace in whole. One round trip."""
    pipe = client.pipeline(transaction=False)
    for index in indexes:
        pipe.sismember(namespaces_of(index), COMPLETE)
    return [bool(found) for found in pipe.execute()]


def note_complete(client: Client, index: str) -> None:
    client.sadd(namespaces_of(index), COMPLETE)


def list_names(client: Client, index: str, namespace: str, names: Sequence[str]) -> int:
    """List these names of a namespace as the index does: those that it does not have nowhere. Returns how many were
    changed. Safe to repeat."""
    if not names:
        return 0
    keys = {"index": index, "namespaces": namespaces_of(index), "of_namespace": of_namespace(index, namespace)}
    return int(_LIST_NAMES(client, keys, {"namespace": namespace}, list(names)))


def unlisted(client: Client, index: str, namespace: str, names: Sequence[str]) -> list[str]:
    """Those of these names of a namespace that its own index does not have."""
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.zscore(of_namespace(index, namespace), name)
    return [name for name, score in zip(names, pipe.execute(), strict=True) if score is None]


def gone_among(client: Client, index: str, names: Sequence[str]) -> list[str]:
    """Those of these names that the index of all does not have."""
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.zscore(index, name)
    return [name for name, score in zip(names, pipe.execute(), strict=True) if score is None]
