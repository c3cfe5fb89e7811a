"""Plain JSON: its compact text, and whether a value is plain JSON. If not, the reason names the place."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_STRICT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
"""Kept: json.dumps would make one for each text."""


def compact_json(value: Any, *, allow_nan: bool = True) -> str:
    """JSON text without spaces; characters beyond ASCII are not escaped. Raises what json.dumps raises."""
    return (_COMPACT if allow_nan else _STRICT).encode(value)


def first_not_json(output: Mapping[Any, Any]) -> str | None:
    """The first reason why `output` is not JSON, as "key 'a.b[0]' is ..."; None if it is."""
    try:
        return next(_not_json(output, "", frozenset()), None)
    except RecursionError:
        return "it is nested too deeply"


def _not_json(value: Any, path: str, parents: frozenset[int]) -> Iterator[str]:
    if value is None or isinstance(value, bool | int):
        return
    if isinstance(value, str):
        if not _is_text(value):
            yield f"key '{path}' holds half of a surrogate pair, which is not text"
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            yield f"key '{path}' is {_NOT_FINITE[str(value)]}, which JSON cannot hold; use null or a number"
        return
    if not isinstance(value, dict | list | tuple):
        yield f"key '{path}' is a {type(value).__qualname__}, which is not JSON"
        return
    if id(value) in parents:
        yield f"key '{path}' contains itself"
        return
    parents |= {id(value)}
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_json(item, f"{path}[{index}]", parents)
        return
    for key, item in value.items():
        inner = f"{path}.{key}" if path else str(key)
        if not isinstance(key, str):
            yield f"key '{inner}' is named by a {type(key).__qualname__}; names must be strings"
        yield from _not_json(item, inner, parents)


def _is_text(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
