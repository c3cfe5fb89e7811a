"""A YAML file with its source: the data, the position of every value, and the spelling of every scalar.

The dialect is Loki's (spec/graph-agents.md 2.1), close to the YAML 1.2 core schema. Rules:
1. Only true/false (three spellings each) are booleans; yes, no, on, off, dates, 1_000 and 12:30:45 are text.
2. A duplicate key in one mapping is an error. Keys are text; another scalar becomes the text it was written as.
3. Aliases work, merge keys (`<<`) are not applied. Nesting and the growth by aliases are bounded.
4. Reading never raises for any text.

libyaml's events are read, not its `compose()`: that recurses in C, and deep nesting kills the process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import yaml

from sleipnir.errors import Problem
from sleipnir.graph.findings import Findings, KeyPath, Position, Positions
from sleipnir.graph.model import Json

MAX_DEPTH = 64  # deeper than any schema a person writes, far below Python's recursion limit
MAX_ALIASED = 50_000  # values that aliases may add to the written ones

LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_WORDS: Final[dict[str, Json]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{sign + word: math.inf for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
_BASED = re.compile(r"([-+]?)0(?:x([0-9a-fA-F]+)|o([0-7]+)|b([01]+))")
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_ZERO_PADDED = re.compile(r"[-+]?0[0-9]+")


Span: TypeAlias = tuple[int, int]
"""A part of a text: the index of its first character, and the index after its last one."""


@dataclass(frozen=True)
class YamlDocument:
    """A document that was read. If `readable` is False, `problems` holds the reason and `data` is meaningless."""

    data: Json
    positions: Positions
    texts: dict[KeyPath, str]
    """The spelling of each scalar that is not text."""
    problems: tuple[Problem, ...]
    readable: bool
    spans: Mapping[KeyPath, Span] = field(default_factory=dict)
    """The begin and end of each scalar."""
    text: str = ""


def read(text: str, file: str) -> YamlDocument:
    """The one YAML document in `text`. `file` is only used in problems."""
    try:
        walk = _Walk(file, _Composer(text))
    except _Unreadable as error:
        return _unreadable(file, error)
    except yaml.YAMLError as error:
        return _unreadable(file, _explained(error, text))
    try:
        data = walk.value(walk.root, ())
    except _Unreadable as error:
        return _unreadable(file, error)
    return YamlDocument(
        data, walk.positions, walk.texts, tuple(walk.findings.problems), readable=True, spans=walk.spans, text=text
    )


def scalar(text: str) -> Json:
    """The value of an unquoted scalar: None, bool, int, float or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789" or _ZERO_PADDED.fullmatch(text):
        return text
    if based := _BASED.fullmatch(text):
        return _based(text, *based.groups())
    if _DECIMAL.fullmatch(text) and len(text) <= 20 and -(2**63) <= int(text) < 2**64:
        return int(text)
    # Loki's parser reads an integer beyond 64 bits as a float, and a float beyond the range as text.
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def _based(text: str, sign: str, hexadecimal: str | None, octal: str | None, binary: str | None) -> Json:
    digits, base = (hexadecimal, 16) if hexadecimal else (octal, 8) if octal else (binary, 2)
    value = int(f"{sign}{digits}", base)
    return value if -(2**63) <= value < 2**64 else text


class _Unreadable(Exception):
    """The document cannot be read past this point."""

    def __init__(self, message: str, position: Position | None, hint: str | None = None) -> None:
        super().__init__(message)
        self.position = position
        self.hint = hint


@dataclass(slots=True)
class _Scalar:
    position: Position
    tag: str | None
    text: str
    plain: bool
    span: Span


@dataclass(slots=True)
class _List:
    position: Position
    tag: str | None
    items: list[_Node] = field(default_factory=list)


@dataclass(slots=True)
class _Map:
    position: Position
    tag: str | None
    entries: list[tuple[_Node, _Node]] = field(default_factory=list)


_Node: TypeAlias = _Scalar | _List | _Map


class _Composer:
    """The node tree of a text. An alias is the same object as its anchor. Raises _Unreadable and yaml.YAMLError."""

    def __init__(self, text: str) -> None:
        if bad := _UNPRINTABLE.search(text.removeprefix("\ufeff")):
            raise _unprintable(text.removeprefix("\ufeff"), bad.start())
        self.count = 0
        self._anchors: dict[str, _Node] = {}
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=LOADER))
        self.root = self._document()

    def _document(self) -> _Node:
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise _Unreadable(
                "the file is empty", None, "A graph needs at least name, start and nodes; a config.yaml needs a name."
            )
        root = self._node(next(self._events), 0)
        next(self._events)
        second = next(self._events)
        if isinstance(second, yaml.DocumentStartEvent):
            raise _Unreadable("a second YAML document starts here", _at(second), "Keep one document: remove the `---`.")
        return root

    def _node(self, event: Any, depth: int) -> _Node:
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event)
        if depth > MAX_DEPTH:
            raise _too_deep(_at(event))
        self.count += 1
        node = self._composed(event, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _composed(self, event: Any, depth: int) -> _Node:
        if isinstance(event, yaml.ScalarEvent):
            begin, end = event.start_mark, event.end_mark
            span = (begin.index, end.index) if begin and end else (0, 0)
            return _Scalar(_at(event), event.tag, event.value, event.implicit[0], span)
        if isinstance(event, yaml.SequenceStartEvent):
            return _List(_at(event), event.tag, [self._node(item, depth + 1) for item in self._until_end()])
        entries = [(self._node(key, depth + 1), self._node(next(self._events), depth + 1)) for key in self._until_end()]
        return _Map(_at(event), event.tag, entries)

    def _until_end(self) -> Iterator[Any]:
        while not isinstance(event := next(self._events), yaml.CollectionEndEvent):
            yield event

    def _aliased(self, event: Any) -> _Node:
        if event.anchor in self._anchors:
            return self._anchors[event.anchor]
        name = event.anchor
        raise _Unreadable(f"alias '*{name}' has no anchor '&{name}' that ends above it", _at(event))


class _Walk:
    """Data, positions and spellings of a node tree."""

    def __init__(self, file: str, composer: _Composer) -> None:
        self.root = composer.root
        self.positions: dict[KeyPath, Position] = {(): composer.root.position}
        self.texts: dict[KeyPath, str] = {}
        self.spans: dict[KeyPath, Span] = {}
        self.findings = Findings(file, self.positions)
        self._left = composer.count + MAX_ALIASED

    def value(self, node: _Node, path: KeyPath) -> Json:
        """The JSON value of a YAML node, whose places are noted by path. Aliases and depth are bounded."""
        self._left -= 1
        if self._left < 0:
            message = f"aliases make this file grow by more than {MAX_ALIASED} values"
            raise _Unreadable(message, node.position, "Write the values out, or refer to fewer of them.")
        if len(path) > MAX_DEPTH:
            raise _too_deep(node.position)
        if isinstance(node, _Scalar):
            return self._scalar(node, path)
        return self._list(node, path) if isinstance(node, _List) else self._map(node, path)

    def _scalar(self, node: _Scalar, path: KeyPath) -> Json:
        value = self._tagged(node, path)
        self.spans[path] = node.span
        if not isinstance(value, str):
            self.texts[path] = node.text
        return value

    def _tagged(self, node: _Scalar, path: KeyPath) -> Json:
        if node.tag is None:
            return scalar(node.text) if node.plain else node.text
        if node.tag in ("!", f"{_TAG}str"):
            return node.text
        value = scalar(node.text)
        if node.tag != _tag_of(value) and not (node.tag == f"{_TAG}float" and isinstance(value, int)):
            self.findings.error(
                path, f"{node.text!r} cannot carry the tag {_shown(node.tag)}", _PLAIN_VALUES, code="SLP105"
            )
        return value

    def _list(self, node: _List, path: KeyPath) -> list[Json]:
        self._refuse_tag(node, path, "seq")
        for index, item in enumerate(node.items):
            self.positions[(*path, index)] = item.position
        return [self.value(item, (*path, index)) for index, item in enumerate(node.items)]

    def _map(self, node: _Map, path: KeyPath) -> dict[str, Json]:
        self._refuse_tag(node, path, "map")
        data: dict[str, Json] = {}
        for key_node, value_node in node.entries:
            key = self._key(key_node, path)
            if key is None or self._is_duplicate(key, key_node, data, path):
                continue
            self.positions[(*path, key)] = key_node.position
            self._warn_of_odd_key(key_node, (*path, key))
            data[key] = self.value(value_node, (*path, key))
        return data

    def _key(self, node: _Node, path: KeyPath) -> str | None:
        """The key as text; None if it is skipped."""
        if not isinstance(node, _Scalar):
            hint = 'Text that starts with a brace needs quotes: "{{name}}".'
            message = "a key must be text, not a list or a mapping"
            self.findings.error(path, message, hint, at=node.position, code="SLP103")
            return None
        if node.text == "<<" and node.plain:
            hint = "Write the keys out, or use an alias for a whole value."
            message = "merge keys (`<<`) are not applied; this entry is ignored"
            self.findings.warning(path, message, hint, at=node.position, code="SLP104")
            return None
        return node.text

    def _is_duplicate(self, key: str, node: _Node, data: dict[str, Json], path: KeyPath) -> bool:
        if key not in data:
            return False
        line, column = self.positions[(*path, key)]
        message = f"duplicate key '{key}': it is already set at line {line}, column {column}"
        self.findings.error(path, message, "Keep one of the two.", at=node.position, code="SLP102")
        return True

    def _warn_of_odd_key(self, node: _Node, path: KeyPath) -> None:
        if isinstance(node, _Scalar) and not isinstance(self._tagged(node, path), str):
            hint = f'Put it in quotes: "{node.text}".'
            message = f"key {node.text or '(nothing)'} is not text; it is read as '{node.text}'"
            self.findings.warning(path, message, hint, code="SLP103")

    def _refuse_tag(self, node: _List | _Map, path: KeyPath, expected: str) -> None:
        if node.tag not in (None, "!", _TAG + expected):
            self.findings.error(path, f"the tag {_shown(node.tag)} is not supported", _PLAIN_VALUES, code="SLP105")


_PLAIN_VALUES = "Values are text, numbers, true, false, null, lists and mappings; remove the tag."


def _tag_of(value: Json) -> str:
    names = {type(None): "null", bool: "bool", int: "int", float: "float"}
    return _TAG + names.get(type(value), "str")


def _shown(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _at(event: Any) -> Position:
    return event.start_mark.line + 1, event.start_mark.column + 1


def line_and_column(text: str, index: int) -> Position:
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


def _too_deep(position: Position) -> _Unreadable:
    return _Unreadable(f"values are nested more than {MAX_DEPTH} levels deep", position)


def _unprintable(text: str, index: int) -> _Unreadable:
    hint = 'In a "double-quoted" text, write it as an escape such as \\x1b or \\u2028.'
    message = f"YAML parsing error: the character U+{ord(text[index]):04X} is not allowed here"
    return _Unreadable(message, line_and_column(text, index), hint)


def _unreadable(file: str, error: _Unreadable) -> YamlDocument:
    line, column = error.position or (None, None)
    problem = Problem("error", str(error), file, line, column, hint=error.hint, code="SLP101")
    positions: Positions = {} if error.position is None else {(): error.position}
    return YamlDocument(None, positions, {}, (problem,), readable=False)


def _explained(error: yaml.YAMLError, text: str) -> _Unreadable:
    """libyaml's error in terms of a graph's author."""
    mark = getattr(error, "problem_mark", None)
    problem, context = getattr(error, "problem", None) or str(error), getattr(error, "context", None) or ""
    position = None if mark is None else (mark.line + 1, mark.column + 1)
    start = getattr(error, "context_mark", None)
    if "quoted scalar" in context and "end of stream" in problem and start is not None:
        opened = start.line + 1, start.column + 1
        return _Unreadable(
            "YAML parsing error: the quote that opens here is never closed", opened, "Add the other quote."
        )
    character = text[mark.index : mark.index + 1] if mark is not None else ""
    message, hint = _complaint(problem, context, character)
    return _Unreadable(f"YAML parsing error: {message}", position, hint)


def _complaint(problem: str, context: str, character: str) -> tuple[str, str | None]:
    if character == "\t":
        return "a tab is not valid as indentation", "Indent with spaces."
    if "cannot start any token" in problem:
        return f"a value cannot start with {character!r}", "Put the text in quotes."
    if "mapping values are not allowed" in problem:
        return "a ':' is not allowed here", "Put text that holds ': ' in quotes, and check the indentation."
    detail = f"{context}: {problem}" if context else problem
    hints = {"expected key": _INDENT, "expected '-'": _INDENT, "escape character": _BACKSLASH, "',' or": _BRACKET}
    return detail, next((hint for sign, hint in hints.items() if sign in problem), None)


_INDENT = "Check the indentation of this line and the one above, and look for quotes that are not closed."
_BACKSLASH = "Write a backslash twice in double quotes, or use single quotes."
_BRACKET = "A `[` or `{` above is not closed, or a comma is missing."
