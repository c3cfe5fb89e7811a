"""The text of one `@option`, `@flag`, `@arg` or `@env` line as a value (spec/graph-agents.md 4.2).

    @option [-s] --long MODIFIER VALUE ENV NOTATION* TEXT
    @flag   [-s] --long[*] ENV TEXT
    @arg    name MODIFIER VALUE ENV [NOTATION] TEXT
    @env    NAME[!] VALUE [NOTATION] TEXT

Each function takes the tag and raises BadSyntax if its text does not match the form.
"""

from __future__ import annotations

import re
from dataclasses import replace

from sleipnir.tools.bash.lines import Tag
from sleipnir.tools.bash.model import Choices, Default, EnvVar, Kind, Parameter, Symbol

AUTO_ENV = "$"
"""The `env` of a parameter with `$$`, until its command is known."""

_NAME = re.compile(r"(?!-)[A-Za-z0-9_.:@-]+")
_SHORT = re.compile(r"([-+][A-Za-z0-9!#$%*+,./:=?@\[\]^_{}~])\s+(?=[-+])")
_LONG = re.compile(r"(--|-|\+)(?=[A-Za-z0-9_.@])")
_ODD_SHORT = re.compile(r"[-+][!#$%,./:=?\[\]^{}~](?=[\s!*+=\[~]|$)")
_MODIFIER = re.compile(r"!|~|[*+][,:;@|/]?")
_FUNCTION = re.compile(r"`([A-Za-z0-9_.:-]+)`")
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
_ESCAPED_QUOTE = re.compile(r"""\\(['"\\])""")
_BARE_DEFAULT = re.compile(r"(?!`)\S*")
_BARE_CHOICE = re.compile(r"(?!`)[^|\]]+")
_ENV = re.compile(r"\s+\$(\$|[A-Za-z_][A-Za-z0-9_]*)(?=\s|$)")
_NOTATION = re.compile(r"\s*<([^<>]+)>")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYMBOL = re.compile(r"([^\w\s-])([A-Za-z0-9_.:-]+)(?:\[`([A-Za-z0-9_.:-]+)`\])?")


class BadSyntax(Exception):
    """The text of a tag does not match its form."""


class _Reader:
    """The unread rest of a text. `take` consumes a match and returns it, or returns None."""

    def __init__(self, text: str) -> None:
        self.left = text

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.left)
        if match:
            self.left = self.left[match.end() :]
        return match

    def need(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = self.take(pattern)
        if match is None:
            raise BadSyntax
        return match

    def skip(self, text: str) -> bool:
        is_next = self.left.startswith(text)
        if is_next:
            self.left = self.left[len(text) :]
        return is_next

    def tail(self) -> str:
        """The rest, which must be separated by a space from the part that was read."""
        if self.left and not self.left[0].isspace():
            raise BadSyntax
        return self.left.strip()


def option(tag: Tag) -> Parameter:
    """Read the text of an `@option` tag. Raises BadSyntax."""
    reader = _Reader(tag.text)
    names, written, id = _names(reader)
    parameter = _valued(reader, tag, "option", id)
    assigned, prefixed = written.endswith(":"), written.removesuffix(":").endswith("-")
    if len(parameter.notations) > 1 and (assigned or prefixed or parameter.delimiter):
        raise BadSyntax
    if prefixed and parameter.env:
        raise BadSyntax
    return replace(parameter, names=names, assigned=assigned, prefixed=prefixed)


def flag(tag: Tag) -> Parameter:
    """Read the text of a `@flag` tag. Raises BadSyntax."""
    reader = _Reader(tag.text)
    names, written, id = _names(reader)
    if written != id:
        raise BadSyntax
    multiple = reader.skip("*")
    env = _env(reader)
    description = tag.described(reader.tail())
    return Parameter("flag", id, tag.line, description, names, multiple=multiple, env=env)


def argument(tag: Tag) -> Parameter:
    reader = _Reader(tag.text)
    return _valued(reader, tag, "argument", reader.need(_NAME)[0])


def env(tag: Tag) -> EnvVar:
    """Read the text of an `@env` tag. Raises BadSyntax."""
    reader = _Reader(tag.text)
    name = reader.need(_VARIABLE)[0]
    required = reader.skip("!")
    default, choices = _value(reader)
    reader.take(_NOTATION)
    return EnvVar(
        name=name,
        line=tag.line,
        description=tag.described(reader.tail()),
        required=required and default is None,
        default=default,
        choices=choices,
    )


def symbol(text: str) -> Symbol | None:
    """The value of a `@meta symbol`; None if its form is not `+name` or ``+name[`function`]``."""
    match = _SYMBOL.fullmatch(text)
    if match is None:
        return None
    return Symbol(match[1], match[2], Choices(function=match[3]) if match[3] else None)


def _valued(reader: _Reader, tag: Tag, kind: Kind, id: str) -> Parameter:
    """Read the part after the name of a parameter that takes values."""
    modifier = reader.take(_MODIFIER)
    sign, delimiter = (modifier[0][0], modifier[0][1:]) if modifier else ("", "")
    default, choices = _value(reader)
    env = _env(reader)
    notations = _notations(reader, most=1 if kind == "argument" else None)
    return Parameter(
        kind=kind,
        id=id,
        line=tag.line,
        description=tag.described(reader.tail()),
        required=sign in ("!", "+") and default is None,
        multiple=sign in ("*", "+"),
        delimiter=delimiter,
        rest=sign == "~",
        default=default,
        choices=choices,
        env=env,
        notations=notations or (id.upper(),),
    )


def _names(reader: _Reader) -> tuple[tuple[str, ...], str, str]:
    """The spellings, the written name without its dashes, and its id."""
    short = reader.take(_SHORT)
    if not short and (odd := reader.take(_ODD_SHORT)):
        return (odd[0],), odd[0][1:], odd[0][1:]
    dashes, written = reader.need(_LONG)[0], reader.need(_NAME)[0]
    id = written.removesuffix(":").removesuffix("-")
    return (*((short[1],) if short else ()), dashes + id), written, id


def _value(reader: _Reader) -> tuple[Default | None, Choices | None]:
    if reader.skip("="):
        if function := reader.take(_FUNCTION):
            return Default(function=function[1]), None
        return Default(_text(reader, _BARE_DEFAULT)), None
    if not reader.skip("["):
        return None, None
    default, choices = _choices(reader)
    if not reader.skip("]"):
        raise BadSyntax
    return default, choices


def _choices(reader: _Reader) -> tuple[Default | None, Choices]:
    unchecked = reader.skip("?")
    if function := reader.take(_FUNCTION):
        return None, Choices(function=function[1], checked=not unchecked)
    if unchecked:
        raise BadSyntax
    first_is_default = reader.skip("=")
    values = [_text(reader, _BARE_CHOICE)]
    while reader.skip("|"):
        values.append(_text(reader, _BARE_CHOICE))
    return Default(values[0]) if first_is_default else None, Choices(tuple(values))


def _text(reader: _Reader, bare: re.Pattern[str]) -> str:
    quoted = reader.take(_QUOTED)
    if quoted is None:
        return reader.need(bare)[0]
    return _ESCAPED_QUOTE.sub(r"\1", quoted[1] or quoted[2] or "")


def _env(reader: _Reader) -> str | None:
    match = reader.take(_ENV)
    return match[1] if match else None


def _notations(reader: _Reader, most: int | None) -> tuple[str, ...]:
    notations: list[str] = []
    while len(notations) != most and (match := reader.take(_NOTATION)):
        notations.append(match[1])
    return tuple(notations)
