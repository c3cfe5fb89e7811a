"""The first state of a run of a graph written in Python: the input goes through the reducers, as a node's update does
(spec/langgraph-api.md 2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sleipnir.commands import Command
from sleipnir.python_graph import calling
from sleipnir.python_graph.errors import EmptyInputError, InvalidUpdateError
from sleipnir.python_graph.objects import GraphObjects
from sleipnir.python_graph.parts import GraphParts
from sleipnir.python_graph.runtime import current
from sleipnir.python_graph.schema import ABSENT, keys_of


def first_state(
    parts: GraphParts, objects: GraphObjects, input: Any, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The values of the state in their stored form, with `input` written to them. `before` is the state that the thread
    has. Raises EmptyInputError, InvalidUpdateError, and what reducers raise."""
    writer = "the input" if current.get() is None else ""  # a graph that is a node gets all keys of the one above
    return values_of(objects, _accepted(parts), input, before, writer)


def written_by(parts: GraphParts, input: Any) -> dict[str, Any]:
    """What an input writes, as objects, one value per key. Raises as `first_state`."""
    accepted = _accepted(parts)
    given = calling.read(input, parts.keys).writes
    return calling.combined([(name, value) for name, value in given if name in accepted], parts.keys)


def _accepted(parts: GraphParts) -> Collection[str]:
    return parts.keys if parts.input_schema is parts.state_schema else keys_of(parts.input_schema)


def values_of(
    objects: GraphObjects,
    accepted: Collection[str],
    input: Any,
    before: Mapping[str, Any] | None = None,
    writer: str = "",
) -> dict[str, Any]:
    """The same, for a graph with these objects, which accepts these keys. A warning about keys that it does not have
    names the `writer`, if there is one."""
    keys = objects.keys
    if input is None:
        raise EmptyInputError("Received no input for __start__")
    if isinstance(input, list | tuple | Command):
        raise InvalidUpdateError(f"Expected dict, got {input}")
    given = calling.read(input, keys, writer).writes
    writes = calling.combined([(name, value) for name, value in given if name in accepted], keys)
    values = dict(before or {})
    for name, key in keys.items():
        if name not in values and (first := key.first) is not ABSENT:
            values |= objects.encoded({name: first})
    if writes:
        old = {name: values[name] for name in writes if name in values}
        values |= objects.encoded(calling.after(objects.decoded(old), writes, keys))
    return values
