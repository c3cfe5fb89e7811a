"""Placeholders of trpc-agent-go in the instructions of llm nodes: `placeholders: trpc` (spec/graph-package.md F21).

Rules. `{key}` and `{key?}` are values of the state, and so are `{{key}}` and `{{key?}}`. A missing value stays in the
text as it is written; with `?` it is the empty text. Only plain names are placeholders, and those of keys with a
scope: `{temp:key}`, `{invocation:key}`, `{user:key}` and `{app:key}` are state keys of these names
(graph/key_scopes.py). Other braces are text. The scope `{runtime:key}` is refused when the graph is checked. One pass:
a value is never scanned again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sleipnir.graph.key_scopes import NOT_OF_THREAD
from sleipnir.graph.model import Json
from sleipnir.graph.plain import compact_json

SCOPES: Final = ("runtime",)
"""Those that there are not."""

_NAME: Final = rf"((?:{'|'.join(NOT_OF_THREAD)})?[A-Za-z_]\w*)(\??)"
_PLACEHOLDER: Final = re.compile(rf"\{{\{{{_NAME}\}}\}}|\{{{_NAME}\}}")
_SCOPED: Final = re.compile(r"\{\{?((?:" + "|".join(SCOPES) + r"):[A-Za-z_]\w*\??|artifact\.[\w.-]+\??)\}")

MOST_RENDERED: Final = 64 * 2**20
"""The most characters of a rendered text."""


class RenderedTextTooLong(Exception):
    """The values of a text are together too long for it."""


def render(text: str, state: Mapping[str, Json]) -> str:
    """The text with its placeholders replaced. Raises RenderedTextTooLong."""
    parts: list[str] = []
    size = end = 0
    for match in _PLACEHOLDER.finditer(text):
        parts += (text[end : match.start()], _value(match, state))
        size += len(parts[-1])
        end = match.end()
        if size > MOST_RENDERED:
            raise RenderedTextTooLong(f"the instructions have more than {MOST_RENDERED:,} characters")
    return "".join([*parts, text[end:]])


def keys_read(text: str) -> frozenset[str]:
    """The state keys that a text names."""
    return frozenset(match[1] or match[3] for match in _PLACEHOLDER.finditer(text))


def scoped(text: str) -> list[str]:
    """The placeholders of scopes that there are not, each once: `runtime:tier`."""
    return list(dict.fromkeys(match[1] for match in _SCOPED.finditer(text)))


def _value(match: re.Match[str], state: Mapping[str, Json]) -> str:
    name, is_optional = match[1] or match[3], bool(match[2] or match[4])
    if name not in state:
        return "" if is_optional else match[0]
    value = state[name]
    return value if isinstance(value, str) else compact_json(value)
