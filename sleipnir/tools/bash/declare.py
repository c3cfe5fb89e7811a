"""The declarations of a bash tools file for a model (spec/graph-agents.md 4.2, "Declarations")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sleipnir.errors import ToolFileError
from sleipnir.graph.tools import INSTRUCTIONS
from sleipnir.tools.bash.model import BashCommand, BashFile, Parameter
from sleipnir.tools.bash.parse import parse
from sleipnir.tools.declaration import Declaration

_NUMBERS = {"INT": "integer", "NUM": "number"}


def declarations(text: str, file: Path, *, agent: bool) -> list[Declaration]:
    """The tools of a file: one for each of its commands, or the file itself if it has none.

    `file` is only used as a name, not read. Raises ToolFileError, also if an offered tool has no description.
    """
    script = parse(text, file)
    if not script.root.commands:
        return [_declaration(script, script.root, agent)]
    return [
        _declaration(script, command, agent)
        for command in script.root.commands
        if not command.name.startswith("_") or command.name == INSTRUCTIONS
    ]


def properties(command: BashCommand) -> dict[str, Parameter]:
    """The options and flags that a model may set, by their names for the model."""
    return {option.id.replace("-", "_"): option for option in command.options}


def _declaration(script: BashFile, command: BashCommand, agent: bool) -> Declaration:
    file = script.file
    if not command.description and command.name != INSTRUCTIONS:
        subject = f"{file.name} {command.name}".rstrip()
        raise ToolFileError(file, command.line, f"Tool definition missing or empty description: {subject}")
    named = properties(command)
    return Declaration(
        name=(command.name or file.stem).replace("-", "_"),
        description=command.description,
        parameters={
            "type": "object",
            "properties": {name: _schema(option) for name, option in named.items()},
            "required": [name for name, option in named.items() if option.required],
        },
        file=file,
        language="bash",
        line=command.line,
        agent=agent,
        command=command.name or None,
        written={name: option.name for name, option in named.items()},
    )


def _schema(option: Parameter) -> dict[str, Any]:
    type = _type(option)
    values: dict[str, Any] = {"type": type}
    if option.choices and option.choices.values:
        values["enum"] = [_typed(type, value) for value in option.choices.values]
    schema = {"type": "array", "items": values} if option.is_list else values
    return {**schema, "description": option.description} if option.description else schema


def _typed(type: str, value: str) -> str | int | float:
    """A choice as a value of its type: a model cannot choose a number that is given as text."""
    try:
        return int(value) if type == "integer" else float(value) if type == "number" else value
    except ValueError:
        return value


def _type(option: Parameter) -> str:
    if option.kind == "flag":
        return "boolean"
    if option.is_list:
        return "string"
    return _NUMBERS.get(option.notations[0].upper(), "string")
