"""The arguments of a call as words of a command line (spec/graph-agents.md 4.2, "Invocation")."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from sleipnir.tools.bash.declare import properties
from sleipnir.tools.bash.model import BashFile, Parameter
from sleipnir.tools.declaration import Declaration

Json: TypeAlias = Any


def argv(declaration: Declaration, script: BashFile, arguments: Mapping[str, Json]) -> list[str]:
    """The words after the file name: the command, if there is one, and `--name=value` for each argument.

    An undeclared argument is passed under its own name, so that the tool itself refuses it. Raises ValueError for text
    that a command line cannot hold (a NUL, or half a surrogate pair), and ToolFileError if the file lacks the declared
    command.
    """
    command = script.command(declaration.command)
    named = properties(command)
    words = [] if declaration.command is None else [declaration.command]
    last: list[str] = []
    for name, value in arguments.items():
        option = named.get(name)
        if option is None:
            words += _undeclared(name, value)
        elif option.rest:  # takes all following words
            last += _words(option, value)
        else:
            words += _words(option, value)
    words += last
    for word in words:
        if "\0" in word:
            raise ValueError(f"an argument cannot hold a NUL character: {word!r:.80}")
        word.encode()
    return words


def _words(option: Parameter, value: Json) -> Iterator[str]:
    if option.kind == "flag":
        yield from _flag(option, value)
    elif option.rest or option.words[1] > 1:
        values = value if isinstance(value, list) else [value]
        if values:
            yield from (option.name, *(_text(option, item) for item in values))
    else:
        joint = "" if option.prefixed else "="
        for item in value if isinstance(value, list) else [value]:
            yield f"{option.name}{joint}{_text(option, item)}"


def _flag(option: Parameter, value: Json) -> Iterator[str]:
    if value in (None, False, 0, "", "false"):
        return
    yield option.name if value in (True, "true") else f"{option.name}={_text(option, value)}"


def _text(option: Parameter, value: Json) -> str:
    whole = isinstance(value, float) and value.is_integer()
    if whole and option.notations and option.notations[0].upper() == "INT":
        return str(int(value))
    return _plain(value)


def _undeclared(name: str, value: Json) -> Iterator[str]:
    option = "--" + name.replace("_", "-")
    if value is True:
        yield option
    elif value is not False:
        for item in value if isinstance(value, list) else [value]:
            yield f"{option}={_plain(item)}"


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
