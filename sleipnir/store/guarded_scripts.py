"""In a cluster, a script is executed with all of its keys or not at all.

While a slot moves, its node executes a script as long as it has all keys that the call names. But scripts also use
keys whose names are made from those: if one of them is with the other node already, the script ends there with an
error, and with half of its writes done. So each call names one key more, which no node ever has: it is refused
(TRYAGAIN) until the slot has moved, with nothing done.

Scripts that take any number of keys name all that they use, and would take another one for one of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_guarded: set[Any] = set()


def guard(*names: str) -> None:
    """Guard the script with this digest, or this text."""
    _guarded.update(names)


def guarded(command: Sequence[Any]) -> Sequence[Any]:
    """An EVALSHA or EVAL with the key more that it needs."""
    name, script, count, *rest = command
    tag, closed, _ = str(rest[0]).partition("}")
    if script not in _guarded or not closed:
        return command
    return (name, script, count + 1, *rest[:count], f"{tag}}}:none", *rest[count:])
