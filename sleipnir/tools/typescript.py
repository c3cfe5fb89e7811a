"""The declarations of a TypeScript tools file (spec/graph-agents.md 4.4). The text is scanned; Node.js is not needed.

Rules. An agent's file declares its exported functions, except those that start with `_`; a global file declares its
`run`, named after the file. The JSDoc directly above is the description, up to its first `@`; `@param name - text`
describes a parameter. Unknown types are strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sleipnir.errors import ToolFileError
from sleipnir.graph.tools import INSTRUCTIONS
from sleipnir.tools.declaration import Declaration
from sleipnir.tools.naming import declared_name, is_offered
from sleipnir.tools.typescript_tokens import OPENING, Token, tokens

GLOBAL_FUNCTION: Final = "run"

_SCALARS: Final = {"string": "string", "number": "number", "boolean": "boolean"}
_LISTS: Final = ("Array", "ReadonlyArray", "Set", "ReadonlySet", "Iterable")
_OBJECTS: Final = ("object", "Record", "Map", "ReadonlyMap")
_ABSENT: Final = ("null", "undefined", "void")
_STRING: Final = {"type": "string"}
_PARAM: Final = re.compile(r"@param\s+(?:\{.*?\}\s*)?\[?([\w$]+)[^\]\s]*\]?\s*(?:-\s*)?(.*)", re.DOTALL)


@dataclass(frozen=True)
class _Function:
    name: str
    parameters: list[Token]
    line: int
    comment: str


@dataclass(frozen=True)
class _Type:
    schema: dict[str, Any]
    optional: bool = False


def declarations(text: str, file: Path, *, agent: bool) -> list[Declaration]:
    """The tools of a file whose content is `text`, in its order. Raises ToolFileError."""
    functions = {function.name: function for function in _exported(list(tokens(text)), file)}
    if agent:
        return [_declaration(function, file, agent=True) for name, function in functions.items() if is_offered(name)]
    if GLOBAL_FUNCTION not in functions:
        message = f"a global TypeScript tool is an exported function `{GLOBAL_FUNCTION}`; define it"
        raise ToolFileError(file, None, message)
    return [_declaration(functions[GLOBAL_FUNCTION], file, agent=False)]


def _exported(code: Sequence[Token], file: Path) -> Iterator[_Function]:
    """Each `export [default] [async] function name` outside all brackets with a body (overloads have none)."""
    depth = 0
    for index, token in enumerate(code):
        if token.kind == "sign" and token.text in "([{":
            depth += 1
        elif token.kind == "sign" and token.text in ")]}":
            depth -= 1
        elif depth == 0 and token.kind == "word" and token.text == "export":
            function = _function(code, index, file)
            if function is not None:
                yield function


def _function(code: Sequence[Token], index: int, file: Path) -> _Function | None:
    at = index + 1
    for word in ("default", "async"):
        at += _text(code, at) == word
    if _text(code, at) != "function" or _text(code, at + 1) == "*":
        return None
    name = code[at + 1] if at + 1 < len(code) else None
    if name is None or name.kind != "word":
        return None  # a default export without a name
    opening = at + 2
    if _text(code, opening) == "<":
        opening = _closing(code, opening, file) + 1
    if _text(code, opening) != "(":
        raise ToolFileError(file, name.line, f"failed to parse typescript: `{name.text}` has no parameter list")
    closing = _closing(code, opening, file)
    if not _has_body(code, closing + 1):
        return None
    comment = code[index - 1].text if index and code[index - 1].kind == "jsdoc" else ""
    return _Function(name.text, list(code[opening + 1 : closing]), name.line, comment)


def _has_body(code: Sequence[Token], at: int) -> bool:
    """Whether a body `{` follows before the statement ends. A result type may hold braces too, after `:` or in `<>`."""
    after_type = _text(code, at) != ":"
    while at < len(code):
        text = code[at].text if code[at].kind == "sign" else ""
        if text == ";" or (code[at].kind == "word" and code[at].text in ("export", "import")):
            return False
        if text == "{" and after_type:
            return True
        after_type = text not in (":", "|", "&", "=>", ",")
        at = _skip(code, at) + 1
    return False


def _closing(code: Sequence[Token], opening: int, file: Path) -> int:
    closing = _skip(code, opening)
    if closing == len(code):
        line = code[opening].line
        raise ToolFileError(file, line, f"failed to parse typescript: `{code[opening].text}` is never closed")
    return closing


def _skip(code: Sequence[Token], at: int) -> int:
    """The index of the bracket that closes the one at `at`; `at` itself if there is none; the end if it is not closed.

    `<` and `>` are brackets only inside angle brackets: elsewhere they are comparisons.
    """
    text = code[at].text
    if code[at].kind != "sign" or text not in OPENING:
        return at
    brackets = "([{<>}])" if text == "<" else "([{}])"
    depth = 0
    for index in range(at, len(code)):
        if code[index].kind != "sign" or code[index].text not in brackets:
            continue
        depth += 1 if code[index].text in OPENING else -1
        if depth == 0:
            return index
    return len(code)


def _text(code: Sequence[Token], at: int) -> str:
    return code[at].text if at < len(code) else ""


def _declaration(function: _Function, file: Path, *, agent: bool) -> Declaration:
    description, notes = _comment(function.comment)
    if not description:
        raise ToolFileError(file, function.line, f"Missing or empty description on function: {function.name}")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in _split(function.parameters, ","):
        name, type_ = _parameter(function, parameter, file)
        if name == "this":  # declares the type of `this`; it is not passed
            continue
        about = notes.get(name, "")
        properties[name] = type_.schema | ({"description": about} if about else {})
        if not type_.optional:
            required.append(name)
    name = function.name if agent else file.stem
    return Declaration(
        name=name if name == INSTRUCTIONS else declared_name(name),
        description=description,
        parameters={"type": "object", "properties": properties} | ({"required": required} if required else {}),
        file=file,
        language="typescript",
        line=function.line,
        agent=agent,
        command=function.name,
        written={name: name for name in properties},
    )


def _comment(comment: str) -> tuple[str, dict[str, str]]:
    """The description, and the notes by parameter."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment[3:].removesuffix("*/").splitlines()]
    blocks = re.split(r"^\s*(?=@)", "\n".join(lines), flags=re.MULTILINE)
    notes = {}
    for block in blocks[1:]:
        if param := _PARAM.match(block):
            notes[param[1]] = " ".join(param[2].split())
    return blocks[0].strip(), notes


def _parameter(function: _Function, parameter: list[Token], file: Path) -> tuple[str, _Type]:
    parameter = [token for token in parameter if token.kind != "jsdoc"]
    name = parameter[0]
    if name.kind != "word":
        kind = "rest" if name.text == "..." else "destructured"
        message = f"{kind} parameters are not supported in tool functions: `{function.name}`; name each parameter"
        raise ToolFileError(file, name.line, message)
    default = _top_level(parameter, "=")
    written = parameter[1 : default[0] if default else None]
    has_mark = _text(written, 0) == "?"
    annotation = written[1 + has_mark :]
    type_ = _type(annotation) if annotation else _Type(_STRING)
    return name.text, _Type(type_.schema, bool(default) or has_mark or type_.optional)


def _type(annotation: list[Token]) -> _Type:
    """The type of an annotation: a union of alternatives; null and undefined make it optional."""
    alternatives = _split(annotation, "|")
    present = [member for member in alternatives if not (len(member) == 1 and member[0].text in _ABSENT)]
    optional = len(present) < len(alternatives)
    if not present:
        return _Type(_STRING, optional)
    literals = [_literal(member) for member in present]
    if all(literal is not None for literal in literals):
        return _Type(_enum([literal[0] for literal in literals if literal is not None]), optional)
    schemas: list[dict[str, Any]] = []
    for member in present:
        if (schema := _schema(member)) not in schemas:
            schemas.append(schema)
    return _Type(schemas[0] if len(schemas) == 1 else {"anyOf": schemas}, optional)


def _schema(type_: list[Token]) -> dict[str, Any]:
    """The schema of one alternative."""
    first, last = type_[0], type_[-1]
    if first.text == "readonly" and len(type_) > 1:
        return _schema(type_[1:])
    if len(type_) > 2 and type_[-2].text == "[" and last.text == "]":
        return {"type": "array", "items": _type(type_[:-2]).schema}
    if first.text == "(" and _skip(type_, 0) == len(type_) - 1:
        return _type(type_[1:-1]).schema
    if first.text in _LISTS and len(type_) > 3 and type_[1].text == "<" and last.text == ">":
        return {"type": "array", "items": _type(type_[2:-1]).schema}
    if first.text == "[" and _skip(type_, 0) == len(type_) - 1:
        return {"type": "array", "items": _STRING}
    if (first.text == "{" and _skip(type_, 0) == len(type_) - 1) or first.text in _OBJECTS:
        return {"type": "object"}
    if len(type_) == 1 and first.text in _SCALARS:
        return {"type": _SCALARS[first.text]}
    literal = _literal(type_)
    return _STRING if literal is None else _enum([literal[0]])


def _literal(type_: list[Token]) -> tuple[Any] | None:
    """The value of a literal type in a tuple; None for other types."""
    text = "".join(token.text for token in type_)
    if len(type_) == 1 and type_[0].kind == "string":
        return (re.sub(r"\\(.)", r"\1", text[1:-1]),)
    if text in ("true", "false") or type_[-1].kind == "number":
        try:
            return (json.loads(text),)
        except ValueError:  # 0x10, 1_000
            return None
    return None


def _enum(values: list[Any]) -> dict[str, Any]:
    kinds = {bool: "boolean", str: "string"}
    names = {kinds.get(type(value), "number") for value in values}
    if len(names) > 1:
        return {"enum": values}
    name = names.pop()
    return {"type": name} if name == "boolean" and len(values) == 2 else {"type": name, "enum": values}


def _split(code: Sequence[Token], separator: str) -> list[list[Token]]:
    """The parts between separators outside all brackets, without empty parts (after a trailing comma)."""
    ends = [*_top_level(code, separator), len(code)]
    starts = [0, *(end + 1 for end in ends)]
    return [list(code[start:end]) for start, end in zip(starts, ends, strict=False) if start < end]


def _top_level(code: Sequence[Token], sign: str) -> list[int]:
    """The indexes of `sign` outside all brackets."""
    at, places = 0, []
    while at < len(code):
        if code[at].kind == "sign" and code[at].text == sign:
            places.append(at)
        at = _skip(code, at) + 1
    return places
