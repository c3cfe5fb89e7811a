"""The declarations of a Python tools file (spec/graph-agents.md 4.3). The file is parsed, never run.

Rules. An agent's file declares its top-level functions, except those that start with `_`; a global file declares its
`run`, named after the file. The docstring is the description, its `Args:` block describes the parameters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from sleipnir.errors import ToolFileError
from sleipnir.graph.python_source import statements
from sleipnir.graph.tools import INSTRUCTIONS
from sleipnir.tools import python_types
from sleipnir.tools.declaration import Declaration
from sleipnir.tools.naming import declared_name, is_offered

GLOBAL_FUNCTION = "run"

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_NOTE = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\((?P<type>.*?)\))?\s*:(?P<text>.*)")


@dataclass(frozen=True)
class _Note:
    """A line of an `Args:` block."""

    text: str
    type: str | None


def declarations(text: str, file: Path, *, agent: bool) -> list[Declaration]:
    """The tools of a file whose content is `text`, in its order. Raises ToolFileError."""
    functions = {function.name: function for function in _functions(text, file)}  # the last of a name wins
    if agent:
        return [_declaration(function, file, agent=True) for name, function in functions.items() if is_offered(name)]
    if GLOBAL_FUNCTION not in functions:
        raise ToolFileError(file, None, f"a global Python tool is a function `{GLOBAL_FUNCTION}`; define it")
    return [_declaration(functions[GLOBAL_FUNCTION], file, agent=False)]


def _functions(text: str, file: Path) -> Iterator[_Function]:
    try:
        body = statements(text)
    except SyntaxError as error:
        message = f"failed to parse python: syntax error in {file.name}: {error.msg}"
        raise ToolFileError(file, error.lineno, message) from error
    except (ValueError, RecursionError, MemoryError) as error:  # a NUL, or brackets nested too deeply
        raise ToolFileError(file, None, f"failed to parse python: syntax error in {file.name}: {error}") from error
    for statement in body:
        if isinstance(statement, _Function):
            yield statement


def _declaration(function: _Function, file: Path, *, agent: bool) -> Declaration:
    description = (ast.get_docstring(function) or "").strip()
    if not description:
        raise ToolFileError(file, function.lineno, f"Missing or empty description on function: {function.name}")
    _refuse_open_ended(function, file)
    name = function.name if agent else file.stem
    return Declaration(
        name=name if name == INSTRUCTIONS else declared_name(name),
        description=description,
        parameters=_schema(function, _notes(description)),
        file=file,
        language="python",
        line=function.lineno,
        agent=agent,
        command=function.name,
        written={parameter.arg: parameter.arg for parameter, _ in _parameters(function)},
    )


def _refuse_open_ended(function: _Function, file: Path) -> None:
    arguments = function.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        message = "*args/*kwargs/positional-only parameters are not supported in tool functions"
        raise ToolFileError(file, function.lineno, f"{message}: `{function.name}`; name each parameter")


def _schema(function: _Function, notes: Mapping[str, _Note]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter, has_default in _parameters(function):
        note = notes.get(parameter.arg, _Note("", None))
        noted = python_types.of_docstring(note.type) if note.type else python_types.STRING
        type_ = python_types.of_annotation(parameter.annotation) if parameter.annotation else noted
        about = note.text or type_.description
        properties[parameter.arg] = type_.schema | ({"description": about} if about else {})
        if not (has_default or type_.optional or noted.optional):
            required.append(parameter.arg)
    return {"type": "object", "properties": properties} | ({"required": required} if required else {})


def _parameters(function: _Function) -> Iterator[tuple[ast.arg, bool]]:
    """Each parameter, and whether it has a default value."""
    arguments = function.args
    first_default = len(arguments.args) - len(arguments.defaults)
    for index, parameter in enumerate(arguments.args):
        yield parameter, index >= first_default
    for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield parameter, default is not None


def _notes(docstring: str) -> dict[str, _Note]:
    """The notes of the `Args:` block, by parameter. A line indented more than the first one continues the last note."""
    notes: dict[str, _Note] = {}
    indent, last = 0, ""
    for line in _args_block(docstring):
        own_indent = len(line) - len(line.lstrip())
        indent = indent or own_indent
        if own_indent > indent and last:
            notes[last] = _Note(f"{notes[last].text} {line.strip()}".strip(), notes[last].type)
        elif note := _NOTE.fullmatch(line.strip()):
            last = note["name"]
            notes[last] = _Note(note["text"].strip(), note["type"])
    return notes


def _args_block(docstring: str) -> Iterator[str]:
    lines = iter(docstring.splitlines())
    for line in lines:
        if line.lstrip().startswith("Args:"):
            break
    for line in lines:
        if not line[:1].isspace() or not line.strip():
            return
        yield line
