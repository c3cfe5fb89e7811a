"""TypeScript text as tokens: enough to find exported functions without mistaking strings and comments for code.

Rules. Comments are dropped, except JSDoc. Strings, templates and regular expressions are one token each. The previous
token decides whether `/` begins a regular expression, as in syntax highlighters; after a wrong decision at worst a
function on the same line is missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal["jsdoc", "word", "number", "string", "template", "regex", "sign"]

_SPACE: Final = re.compile(r"\s+|//[^\n]*|/\*(?!\*[^/])[\s\S]*?(?:\*/|\Z)|\A#![^\n]*")
_TOKEN: Final = re.compile(
    r"""(?P<jsdoc>/\*\*[\s\S]*?(?:\*/|\Z))
    |(?P<number>\d[\w.]*)
    |(?P<string>'(?:\\[\s\S]|[^'\\\n])*'?|"(?:\\[\s\S]|[^"\\\n])*"?)
    |(?P<sign>=>|\.\.\.|[\s\S])""",
    re.VERBOSE,
)
_WORD: Final = re.compile(r"[A-Za-z_$\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*")
_REGEX: Final = re.compile(r"/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/\w*")
_BEFORE_VALUE: Final = (
    "return", "typeof", "case", "in", "of", "do", "else", "void", "delete", "throw", "new", "await", "yield",
)  # fmt: skip

OPENING: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}


@dataclass(frozen=True)
class Token:
    """`start` and `end` are positions in the text, `line` counts from 1."""

    kind: Kind
    text: str
    start: int
    end: int
    line: int


def tokens(text: str) -> Iterator[Token]:
    """Every token of `text`, which need not be valid."""
    at, line, previous = 0, 1, ""
    while at < len(text):
        if space := _SPACE.match(text, at):
            line += space[0].count("\n")
            at = space.end()
            continue
        kind, end = _token(text, at, previous)
        yield Token(kind, text[at:end], at, end, line)
        line += text.count("\n", at, end)
        if kind != "jsdoc":
            previous = text[at:end]
        at = end


def _token(text: str, at: int, previous: str) -> tuple[Kind, int]:
    if text[at] == "`":
        return "template", _end_of_template(text, at)
    if word := _WORD.match(text, at):
        return "word", word.end()
    if text[at] == "/" and _starts_value(previous) and (regex := _REGEX.match(text, at)):
        return "regex", regex.end()
    match = _TOKEN.match(text, at)
    assert match is not None, "the last alternative matches anything"
    kind: Kind = match.lastgroup  # type: ignore[assignment]  # the groups are named after the kinds
    return kind, match.end()


def _starts_value(previous: str) -> bool:
    """Whether an expression, not an operator, may follow `previous`."""
    if previous == "" or previous in _BEFORE_VALUE:
        return True
    return previous[-1] not in ")]}'\"`_$" and not previous[-1].isalnum()


def _end_of_template(text: str, at: int) -> int:
    """The position after a template literal, whose `${...}` may hold further ones."""
    at += 1
    while at < len(text):
        if text[at] == "\\":
            at += 2
        elif text[at] == "`":
            return at + 1
        elif text.startswith("${", at):
            at = _end_of_expression(text, at + 2)
        else:
            at += 1
    return len(text)


def _end_of_expression(text: str, at: int) -> int:
    depth, previous = 1, ""
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
            continue
        kind, end = _token(text, at, previous)
        previous = text[at:end]
        depth += (previous == "{") - (previous == "}") if kind == "sign" else 0
        at = end
        if depth == 0:
            return at
    return len(text)
