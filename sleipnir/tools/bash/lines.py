"""The relevant lines of a tool file: tags with their texts, and functions (spec/graph-agents.md 4.2).

Only comments and function heads at column 0 are read, not the code between them. A tag at column 0 of a
here-document is a tag, as in Loki.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

DESCRIBED = frozenset({"describe", "cmd", "env", "option", "flag", "arg"})
"""Tags whose text continues on the comment lines below them."""

TAGS = DESCRIBED | {"alias", "meta", "version"}

_TAG = re.compile(r"#+\s*@(\w\S*)(?:\s+(.*))?")
_COMMENT = re.compile(r"#+(?:\s?(.*))")
_FUNCTION = re.compile(
    r"""(?:function\s+(?P<keyword>[^\s()<>{}"'`$;&|\\=#]+)|(?P<plain>[^\s()<>{}"'`$;&|\\=#]+)\s*\(\s*\))"""
)


@dataclass(frozen=True)
class Tag:
    """`# @name text`, and its comment lines below it."""

    line: int
    name: str
    text: str
    more: tuple[str, ...] = ()

    def described(self, first: str) -> str:
        """The description; `first` is its part on the tag's own line."""
        return "\n".join((first, *self.more)).strip()


@dataclass(frozen=True)
class Function:
    line: int
    name: str


def events(text: str) -> Iterator[Tag | Function]:
    """The tags and functions of a file, in its order, including unknown tags."""
    lines = re.split(r"\r?\n", text)
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if tag := _TAG.match(line):
            more = list(_comments(lines, number)) if tag[1] in DESCRIBED else []
            yield Tag(number, tag[1], (tag[2] or "").strip(), tuple(more))
            number += len(more)
        elif function := _FUNCTION.match(line):
            yield Function(number, function["keyword"] or function["plain"])


def _comments(lines: list[str], start: int) -> Iterator[str]:
    for line in lines[start:]:
        comment = _COMMENT.match(line)
        if comment is None or _TAG.match(line):
            return
        yield re.sub(r"\A(\s*)\\@", r"\1@", (comment[1] or "").rstrip())
