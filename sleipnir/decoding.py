"""Reading stored records and messages that another release may have written, or that are damaged.

1. Unknown fields are ignored, missing optional fields take their defaults, lists become the tuples that the dataclass
   declares. A release adds a field this way without a new version.
2. A record whose `v` is greater than READS has a meaning that this release does not know: it is not used.
3. A record that is not JSON, lacks a required field or has a value of another type is damaged: it is not used.
4. Rules 2 and 3 raise RecordUnreadable and nothing else. The caller sets aside what the record belongs to (one run, one
   effect, one message), never more.

Types are compared with the annotations of the dataclass. A reader is made once per dataclass; reading costs about as
much as __init__.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from sleipnir.errors import RecordUnreadable

READS = 4
"""The greatest version of a record that this release understands. Version 2 is that of the spec of a run with
breakpoints or overrides of nodes of its own, of one in a thread, and of a fork with what earlier releases cannot do
(runs/run.py), version 3 that of a fork that begins with commands or unfinished visits, and of a visit that waits for a
signal (store/visit_records.py), version 4 that of a run with a thread or sessions of another namespace than `default`;
all other records have version 1. A record that other runs need too gets a new version
one release after the first that reads it."""

MOST_INT = 2**53
"""Integers beyond are no counts or times of Sleipnir, and Lua's numbers cannot hold them."""

T = TypeVar("T")


class _Mismatch(Exception):
    """What is wrong with a value, without the name of the record."""


def read(kind: type[T], data: Any, what: str = "", key: str = "") -> T:
    """An instance of the dataclass `kind` from a decoded JSON object. `what` and `key` name the record in the error;
    without `what` the name of the dataclass does. Raises RecordUnreadable."""
    try:
        reader = _READERS.get(kind) or _reader_of(kind)
        return typing.cast("T", reader(data))
    except _Mismatch as wrong:
        raise RecordUnreadable(what or kind.__name__, key, f"damaged: {wrong}") from None
    except RecordUnreadable as error:
        raise RecordUnreadable(what or kind.__name__, key, error.why, newer=error.newer) from None


def needed_by(kind: type[Any]) -> frozenset[str]:
    """The fields that a record of this dataclass must have."""
    return (_READERS.get(kind) or _reader_of(kind)).needed


def read_text(kind: type[T], text: str | bytes, what: str = "", key: str = "") -> T:
    """The same from JSON text."""
    return read(kind, decoded(text, what or kind.__name__, key), what, key)


def decoded(text: str | bytes, what: str, key: str = "") -> Any:
    """The value of a stored JSON text. Raises RecordUnreadable for text that is not JSON, or that holds half of a
    surrogate pair, which cannot be stored again."""
    try:
        value = json.loads(text)
        if isinstance(text, str) and not text.isascii():
            text.encode()
        if isinstance(text, str) and ("\\ud" in text or "\\uD" in text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordUnreadable(what, key, f"damaged: {_first_line(error)}") from None
    return value


def decoded_object(text: str | bytes, what: str, key: str = "") -> dict[str, Any]:
    """The same of a text that must be a JSON object, and whose `v` this release must know."""
    value = decoded_values(text, what, key)
    check_version(value, what, key)
    return value


def decoded_values(text: str | bytes, what: str, key: str = "") -> dict[str, Any]:
    """The same of a JSON object whose keys a user chose: `v` is one of them, and no version."""
    value = decoded(text, what, key)
    if type(value) is not dict:
        raise RecordUnreadable(what, key, f"damaged: a JSON object is needed, not {_shown(value)}")
    return value


def check_version(data: Mapping[str, Any], what: str, key: str = "") -> None:
    """Raise RecordUnreadable for a record of a version that this release does not know."""
    version = data.get("v", 1)
    if type(version) is not int or version < 1:
        raise RecordUnreadable(what, key, f"damaged: its version is {_shown(version)}")
    if version > READS:
        raise RecordUnreadable(what, key, _newer(version), newer=True)


def whole(text: str, what: str, key: str = "") -> int:
    """A whole number that is stored as text. Raises RecordUnreadable."""
    try:
        number = int(text)
    except (TypeError, ValueError):
        number = MOST_INT
    if not -MOST_INT < number < MOST_INT:
        raise RecordUnreadable(what, key, f"damaged: a whole number is needed, not {_shown(text)}")
    return number


def number(text: str, what: str, key: str = "") -> float:
    """A finite number that is stored as text. Raises RecordUnreadable."""
    try:
        parsed = float(text)
    except (TypeError, ValueError):
        parsed = math.nan
    if not math.isfinite(parsed):
        raise RecordUnreadable(what, key, f"damaged: a number is needed, not {_shown(text)}")
    return parsed


def _newer(version: int) -> str:
    return f"written by a newer release: version {version}, this release reads up to {READS}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__


def _shown(value: Any) -> str:
    """A value in an error: short, and printable on every terminal."""
    return ascii(value)[:60]


class _Reader:
    """Reads one dataclass."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        hints = typing.get_type_hints(kind)
        fields = [each for each in dataclasses.fields(kind) if each.init]
        self._shapes = {each.name: _shape(hints[each.name]) for each in fields}
        self.needed = frozenset(
            each.name
            for each in fields
            if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        )
        self._is_plain = not hasattr(kind, "__slots__") and not hasattr(kind, "__post_init__")
        self._defaults = {each.name: each.default for each in fields if each.default is not dataclasses.MISSING}
        self._factories = [
            (each.name, each.default_factory) for each in fields if each.default_factory is not dataclasses.MISSING
        ]

    def __call__(self, data: Any) -> Any:
        if type(data) is not dict:
            raise _Mismatch(f"a JSON object is needed, not {_shown(data)}")
        version = data.get("v", 1)
        if version != 1 or type(version) is not int:
            check_version(data, self._kind.__name__)
        shapes, values = self._shapes, {}
        for name, value in data.items():
            shape = shapes.get(name)
            if shape is None:
                continue  # a newer release knows this field
            if type(value) not in shape[0]:
                try:
                    value = shape[1](value)
                except _Mismatch as wrong:
                    raise _Mismatch(f"{name}: {wrong}") from None
            values[name] = value
        if not self.needed <= values.keys():
            raise _Mismatch(f"it lacks {', '.join(sorted(self.needed - values.keys()))}")
        if self._is_plain:  # as __init__ does, which calls object.__setattr__ once per field of a frozen dataclass
            new = object.__new__(self._kind)
            new.__dict__.update(self._defaults)
            for name, factory in self._factories:
                new.__dict__[name] = factory()
            new.__dict__.update(values)
            return new
        return self._kind(**values)


_READERS: dict[type[Any], _Reader] = {}


def _reader_of(kind: type[Any]) -> _Reader:
    return _READERS.setdefault(kind, _Reader(kind))


_Convert = Callable[[Any], Any]
_Shape = tuple[frozenset[type], _Convert]
"""The types of values that are taken as they are, and what makes a value of any other, or raises _Mismatch."""


class _All:
    """Contains every type."""

    def __contains__(self, _: object) -> bool:
        return True


def _refuse(expected: str) -> _Convert:
    def refuse(value: Any) -> Any:
        raise _Mismatch(f"{expected} is needed, not {_shown(value)}")

    return refuse


def _int(value: Any) -> int:
    if type(value) is float and value.is_integer() and abs(value) < MOST_INT:
        return int(value)  # Lua's encoder writes some whole numbers so
    raise _Mismatch(f"a whole number is needed, not {_shown(value)}")


def _float(value: Any) -> float:
    if type(value) is float and math.isfinite(value):
        return value
    raise _Mismatch(f"a finite number is needed, not {_shown(value)}")


def _shape(hint: Any) -> _Shape:
    """How values of a type annotation are read."""
    if hint is Any:
        return typing.cast("frozenset[type]", _All()), _refuse("anything")
    if isinstance(hint, typing.NewType):
        return _shape(hint.__supertype__)
    plain = _PLAIN.get(hint)
    if plain is not None:
        return plain
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of([_shape(each) for each in args])
    if origin is Literal:
        return frozenset(), _literal(args)
    if origin is tuple:
        return frozenset(), _tuple(args)
    if origin is list:
        return frozenset(), _list(_shape(args[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return frozenset(), _mapping(_shape(args[0]), _shape(args[1]))
    if dataclasses.is_dataclass(hint):
        return frozenset(), lambda value: (_READERS.get(hint) or _reader_of(hint))(value)  # type: ignore[arg-type]
    raise TypeError(f"stored records have no fields of type {hint!r}")


_PLAIN: Mapping[Any, _Shape] = {
    str: (frozenset({str}), _refuse("text")),
    bool: (frozenset({bool}), _refuse("true or false")),
    int: (frozenset({int}), _int),
    float: (frozenset({int}), _float),
    type(None): (frozenset({type(None)}), _refuse("null")),
}


def _read_by(shape: _Shape, value: Any) -> Any:
    return value if type(value) in shape[0] else shape[1](value)


def _one_of(shapes: list[_Shape]) -> _Shape:
    if any(isinstance(shape[0], _All) for shape in shapes):
        return shapes[0]
    plain = frozenset[type]().union(*(shape[0] for shape in shapes))

    def convert(value: Any) -> Any:
        wrong: _Mismatch | None = None
        for _, shape in shapes:
            try:
                return shape(value)
            except _Mismatch as error:
                wrong = wrong or error
        raise wrong or _Mismatch(f"it is {_shown(value)}")

    return plain, convert


def _literal(values: tuple[Any, ...]) -> _Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, str | int) and value in values:
            return value
        raise _Mismatch(f"one of {', '.join(map(str, values))} is needed, not {_shown(value)}")

    return convert


def _elements(value: Any) -> list[Any] | tuple[Any, ...]:
    if type(value) is list or type(value) is tuple:
        return value
    if value == {}:
        return ()  # Lua's encoder writes an empty list so
    raise _Mismatch(f"a list is needed, not {_shown(value)}")


def _tuple(args: tuple[Any, ...]) -> _Convert:
    if len(args) == 2 and args[1] is Ellipsis:
        item = _shape(args[0])
        return lambda value: tuple(_parts(item, value))
    shapes = [_shape(arg) for arg in args]

    def convert(value: Any) -> Any:
        parts = _elements(value)
        if len(parts) < len(shapes):  # a newer release may add some at the end
            raise _Mismatch(f"a list of {len(shapes)} is needed, not {_shown(value)}")
        return tuple(_read_by(shape, part) for shape, part in zip(shapes, parts, strict=False))

    return convert


def _list(item: _Shape) -> _Convert:
    return lambda value: list(_parts(item, value))


def _parts(item: _Shape, value: Any) -> list[Any] | tuple[Any, ...]:
    parts = _elements(value)
    if all(type(part) in item[0] for part in parts):
        return parts
    return [_read_by(item, part) for part in parts]


def _mapping(names: _Shape, values: _Shape) -> _Convert:
    takes_all = isinstance(values[0], _All)

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise _Mismatch(f"a JSON object is needed, not {_shown(value)}")
        if takes_all:
            return value
        return {_read_by(names, name): _read_by(values, each) for name, each in value.items()}

    return convert
