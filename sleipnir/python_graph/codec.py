"""The JSON form of values whose type JSON does not have: sets, times, dataclasses, pydantic models, messages.

A key's annotation selects how its values are converted. Values of other types stay as they are, and must be JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from sleipnir.python_graph import messages
from sleipnir.python_graph.schema import Key, is_pydantic, is_typed_dict

Convert = Callable[[Any], Any]

_AS_THEY_ARE = (str, int, float, bool, type(None), list, dict, object, Any)

_OF_JSON = (
    list, dict, types.UnionType, abc.Sequence, abc.MutableSequence, abc.Iterable, abc.Collection, abc.Mapping,
    abc.MutableMapping,
)  # fmt: skip
"""Generic types whose values are JSON if those of their arguments are."""


class Codec(NamedTuple):
    """How the values of a key are stored: `encode` to JSON, `decode` from it."""

    encode: Convert
    decode: Convert


def codec_of(key: Key) -> Codec | None:
    """The codec of a key. None: its values are JSON."""
    if key.reducer is messages.add_messages:
        return Codec(_messages_to_json, _messages_from_json)
    try:
        codec = _codec(key.type)
    except TypeError:  # an annotation that cannot be hashed
        return None
    if codec is None or not key.validated:
        return codec
    return Codec(codec.encode, _raw if _holds_instances(key.type) else _or_raw(codec.decode))


def _raw(value: Any) -> Any:
    """For a key of a pydantic model, which makes instances itself: a mapping that was given is one in the output."""
    return value


def _holds_instances(hint: Any) -> bool:
    """Whether values of the type are, or hold, instances of models or dataclasses."""
    if get_origin(hint) is not None:
        return any(_holds_instances(argument) for argument in get_args(hint))
    return is_pydantic(hint) or (isinstance(hint, type) and dataclasses.is_dataclass(hint))


def _or_raw(decode: Convert) -> Convert:
    """For a key of a pydantic model, which reports wrong values itself, when a node reads them."""

    def lenient(value: Any) -> Any:
        try:
            return decode(value)
        except ValueError:
            return value

    return lenient


@functools.lru_cache(maxsize=4096)
def _codec(hint: Any) -> Codec | None:
    if not _needs_codec(hint):
        return None
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(hint)

    def encode(value: Any) -> Any:
        try:
            return adapter.dump_python(value, mode="json", warnings=False)
        except ValueError as error:
            raise TypeError(f"Type is not JSON serializable: {error}") from error

    return Codec(encode, adapter.validate_python)


def is_unstorable(key: Key) -> bool:
    """Whether values of the key have no JSON form. A routine as a type is a factory, such as threading.Lock."""
    if key.validated or key.reducer is messages.add_messages:
        return False
    try:
        return inspect.isroutine(key.type) or (_needs_codec(key.type) and _lacks_json_form(key.type))
    except TypeError:  # an annotation that cannot be hashed
        return False


@functools.lru_cache(maxsize=4096)
def _lacks_json_form(hint: Any) -> bool:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

    try:
        TypeAdapter(hint).json_schema(mode="serialization")
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema):
        return True
    return False


def _needs_codec(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is not None:
        inner = any(_needs_codec(argument) for argument in get_args(hint) if argument is not ...)
        return inner or (isinstance(origin, type) and origin not in _OF_JSON and _needs_codec(origin))
    if hint in (*_AS_THEY_ARE, *_OF_JSON) or not isinstance(hint, type) or is_typed_dict(hint):
        return False
    return is_pydantic(hint) or dataclasses.is_dataclass(hint) or not issubclass(hint, (str, int, float, list, dict))


def _messages_to_json(value: Any) -> Any:
    if value is None:
        return None
    return [message.to_json() for message in messages.messages_of(value)]


def _messages_from_json(value: Any) -> Any:
    return [messages.message_of(item) for item in value] if isinstance(value, list) else value


def codecs_of(keys: Mapping[str, Key]) -> dict[str, Codec]:
    """The codecs of the keys that need one."""
    return {name: codec for name, key in keys.items() if (codec := codec_of(key)) is not None}
