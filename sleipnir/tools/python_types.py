"""Annotations of Python tools as JSON schemas (spec/graph-agents.md 4.3).

Rule. Nothing is evaluated and no name is resolved: a type is recognised by its spelling. Unknown types are strings, as
in Loki. Added by Sleipnir: PEP 585 and 604, Annotated, unions, dicts, and Literal with numbers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sleipnir.graph.python_source import expression

_SCALARS: Mapping[str, str] = {
    **dict.fromkeys(("int", "integer"), "integer"),
    **dict.fromkeys(("float", "number", "Decimal"), "number"),
    **dict.fromkeys(("bool", "boolean"), "boolean"),
}
_LISTS = frozenset(
    (
        "list", "List", "Sequence", "MutableSequence", "Iterable", "Collection", "set", "Set", "frozenset",
        "FrozenSet", "AbstractSet", "tuple", "Tuple",
    )
)  # fmt: skip
_OBJECTS = frozenset(
    ("dict", "Dict", "Mapping", "MutableMapping", "OrderedDict", "DefaultDict", "defaultdict", "Counter")
)
_MODIFIER = re.compile(r",?\s*\b(?:optional\b(?!\[)|default\b).*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Type:
    """A schema. `optional`: None is among the values, so a caller may leave the parameter out."""

    schema: dict[str, Any]
    optional: bool = False
    description: str = ""


STRING = Type({"type": "string"})


def of_annotation(annotation: ast.expr | None) -> Type:
    """The type of an annotation; a string without one."""
    match annotation:
        case ast.Constant(value=str() as text):
            return _of_text(text)
        case ast.BinOp(op=ast.BitOr()):
            return _union(_alternatives(annotation))
        case ast.Name() | ast.Attribute():
            return _named(_name(annotation))
        case ast.Subscript(value=ast.Name() | ast.Attribute() as generic):
            index = annotation.slice
            return _subscript(_name(generic), index.elts if isinstance(index, ast.Tuple) else [index])
        case _:
            return STRING


def of_docstring(text: str) -> Type:
    """The type in the brackets of an `Args:` line: `int`, `list[str], optional`."""
    return replace(_of_text(_MODIFIER.sub("", text)), optional="optional" in text.lower())


def _of_text(text: str) -> Type:
    try:
        return of_annotation(expression(text.strip()))
    except (SyntaxError, ValueError, RecursionError):
        return STRING


def _named(name: str) -> Type:
    if name in _SCALARS:
        return Type({"type": _SCALARS[name]})
    if name in _LISTS:
        return Type({"type": "array", "items": STRING.schema})
    return Type({"type": "object"}) if name in _OBJECTS else STRING


def _subscript(name: str, arguments: list[ast.expr]) -> Type:
    if name == "Literal":
        return _literal(arguments)
    if name == "Optional":
        return replace(_union(arguments), optional=True)
    if name == "Union":
        return _union(arguments)
    if name == "Annotated":
        return replace(of_annotation(arguments[0]), description=_description(arguments[1:]))
    if name in _LISTS:
        items = [each for each in arguments if not _is(each, ...)]
        return Type({"type": "array", "items": _union(items).schema})
    return _named(name)


def _literal(arguments: Iterable[ast.expr]) -> Type:
    values = []
    for argument in arguments:
        try:
            values.append(ast.literal_eval(argument))
        except ValueError:  # a member of an enum
            values.append(ast.unparse(argument))
    choices = [value for value in values if value is not None]
    kinds = {type(value) for value in choices}
    name = _SCALARS.get(kinds.pop().__name__, "string") if len(kinds) == 1 else "string"
    if name == "string":
        choices = [value if isinstance(value, str) else str(value) for value in choices]
    return Type({"type": name, "enum": choices}, optional=len(choices) < len(values))


def _union(alternatives: list[ast.expr]) -> Type:
    types = [of_annotation(type_) for type_ in alternatives if not _is(type_, None)]
    schemas: list[dict[str, Any]] = []
    for type_ in types:
        if type_.schema not in schemas:
            schemas.append(type_.schema)
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else STRING.schema
    has_none = len(types) < len(alternatives) or any(type_.optional for type_ in types)
    return Type(schema, has_none, next((type_.description for type_ in types if type_.description), ""))


def _alternatives(annotation: ast.expr) -> list[ast.expr]:
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return _alternatives(annotation.left) + _alternatives(annotation.right)
    return [annotation]


def _description(metadata: Iterable[ast.expr]) -> str:
    """The first text in the metadata of Annotated: a string, `Doc("...")`, `Field(description="...")`."""
    for entry in metadata:
        match entry:
            case ast.Constant(value=str() as text):
                return text.strip()
            case ast.Call(args=[ast.Constant(value=str() as text)]) if _name(entry.func) == "Doc":
                return text.strip()
            case ast.Call():
                for keyword in entry.keywords:
                    if keyword.arg == "description" and isinstance(keyword.value, ast.Constant):
                        return str(keyword.value.value).strip()
    return ""


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _name(node: ast.expr) -> str:
    """The name without its module: `List` for both `List` and `typing.List`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
