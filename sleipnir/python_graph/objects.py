"""The Python objects of a graph where it is executed: its keys with their codecs, its functions by reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sleipnir.commands import Overwrite
from sleipnir.graph.reducers import OVERWRITE, ReducerError, overwritten
from sleipnir.python_graph.calling import Several
from sleipnir.python_graph.codec import Codec, codec_of, codecs_of
from sleipnir.python_graph.errors import InvalidUpdateError
from sleipnir.python_graph.schema import Key, ManagedKey, is_pydantic, is_state_class

SENT: Final = "__send__"
"""The key of a visit's overlay that holds the argument of a Send: the visit's whole input."""


SEVERAL: Final = "__writes__"
"""The only key of a stored value that stands for several writes of one visit, in order."""


class GraphObjects:
    """`keys` are those of the state, `managed` those that the engine fills; `find` returns the object of a reference,
    or raises."""

    def __init__(
        self, keys: Mapping[str, Key], find: Callable[[str], Any], managed: Mapping[str, ManagedKey] | None = None
    ) -> None:
        self.keys, self.find, self.managed = keys, find, managed or {}
        self.codecs: dict[str, Codec] = codecs_of(keys)

    def decoded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Stored values as nodes see them."""
        codecs = self.codecs
        if not codecs:
            return dict(values)
        return {key: codecs[key].decode(value) if key in codecs else value for key, value in values.items()}

    def encoded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values as they are stored."""
        return {key: self._encoded(key, value) for key, value in values.items()}

    def _encoded(self, key: str, value: Any) -> Any:
        if isinstance(value, Overwrite):
            return {OVERWRITE: self._encoded(key, value.value)}
        if isinstance(value, Several):
            return {SEVERAL: [self._encoded(key, write) for write in value.writes]}
        return self.codecs[key].encode(value) if key in self.codecs else _plain(value)

    def writes(self, key: str, stored: Sequence[Any]) -> list[Any]:
        """The stored writes of a super-step to a key, as objects, in order. Raises InvalidUpdateError."""
        writes: list[Any] = []
        for value in stored:
            is_several = isinstance(value, dict) and value.keys() == {SEVERAL}
            writes += value[SEVERAL] if is_several else [value]
        try:
            replaced = overwritten(writes)
        except ReducerError as error:
            raise InvalidUpdateError(f"At key '{key}': {error}") from None
        if replaced is not None:
            return [Overwrite(self.decoded({key: replaced[OVERWRITE]})[key])]
        return [self.decoded({key: value})[key] for value in writes]


def _plain(value: Any) -> Any:
    """Objects in an undeclared place in their JSON form; anything else as it is."""
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value


def plain_of(value: Any) -> Any:
    """The JSON form of an object in a chunk of a stream. Raises TypeError if it has none."""
    if (form := _plain(value)) is value:
        raise TypeError(f"a chunk of the stream is stored as JSON, which cannot hold a {type(value).__qualname__}")
    return form


def instance(state_class: type | None, values: dict[str, Any]) -> Any:
    """The state as its class has it. Raises what the class raises: pydantic's ValidationError, TypeError."""
    if state_class is None:
        return values
    if is_pydantic(state_class):
        return state_class.model_validate(values)  # type: ignore[attr-defined]
    return state_class(**values)


def stored_context(context: Any, schema: type | None, reference: Callable[[type], str]) -> dict[str, Any]:
    """A context as a run stores it, with the `reference` to its class. A mapping is made an instance of `schema`, as in
    process. Raises what the class raises."""
    declared = schema if schema is not None and not issubclass(schema, dict) else None
    if isinstance(context, Mapping):
        context = dict(context) if declared is None else instance(declared, dict(context))
    elif declared is None and is_state_class(type(context)):
        declared = type(context)
    codec = None if declared is None else codec_of(Key("context", declared))
    stored = {
        "class": None if declared is None else reference(declared),
        "value": context if codec is None else codec.encode(context),
    }
    if codec is not None:
        codec.decode(stored["value"])  # as each visit does
    return stored


def context_of(stored: Mapping[str, Any], find: Callable[[str], Any]) -> Any:
    """The context that a run stores, as nodes get it."""
    if stored["class"] is None:
        return stored["value"]
    codec = codec_of(Key("context", find(stored["class"])))
    return stored["value"] if codec is None else codec.decode(stored["value"])
