"""Call a function of a graph written in Python, and read what it returned (spec/langgraph-api.md 3 and 4)."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from sleipnir.commands import END, Command, Send
from sleipnir.python_graph.errors import InvalidUpdateError
from sleipnir.python_graph.runtime import Call
from sleipnir.python_graph.schema import ABSENT, Key, is_pydantic, is_state_class

_INJECTED: Final[Mapping[str, Callable[[Call], Any]]] = {
    "config": lambda call: call.config,
    "runtime": lambda call: call.runtime,
    "writer": lambda call: call.runtime.stream_writer,
    "store": lambda call: call.runtime.store,
    "previous": lambda call: call.runtime.previous,
}
"""The parameters that are filled by their names; the first parameter is the state."""


def call(function: Callable[..., Any], state: Any, run: Call) -> Any:
    """The function's return value; that of its coroutine, if it is async; the output of a graph."""
    if hasattr(function, "invoke"):
        return function.invoke(state)
    names = _injected(function)
    returned = function(state, **{name: _INJECTED[name](run) for name in names}) if names else function(state)
    return _awaited(returned) if inspect.iscoroutine(returned) else returned


@functools.lru_cache(maxsize=4096)
def _injected(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return ()
    return tuple(parameter.name for parameter in parameters[1:] if parameter.name in _INJECTED)


def _awaited(coroutine: Any) -> Any:
    """The result of a coroutine, in an event loop of its own, also where this thread already runs one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


@dataclass
class Returned:
    """What a node returned: its writes in order, and the targets that it chose. `updates` are the parts as they came,
    for streams. `to_parent` are the commands for the graph above."""

    writes: list[tuple[str, Any]] = field(default_factory=list)
    targets: list[str | Send] = field(default_factory=list)
    updates: list[dict[str, Any] | None] = field(default_factory=list)
    to_parent: list[Command[Any]] = field(default_factory=list)


def read(returned: Any, keys: Mapping[str, Key]) -> Returned:
    """Raises InvalidUpdateError for what is no update. Keys that the graph does not have are left out."""
    result = Returned()
    several = isinstance(returned, list | tuple) and any(isinstance(part, Command) for part in returned)
    for part in returned if several else (returned,):
        _read_part(part, keys, result)
    return result


def _read_part(part: Any, keys: Mapping[str, Key], result: Returned) -> None:
    if not isinstance(part, Command):
        pairs = _pairs(part)
    elif part.graph == Command.PARENT:
        result.to_parent.append(part)
        return
    else:
        pairs = _pairs(part.update)
        goto = part.goto if part.goto is not None else ()
        result.targets += [goto] if isinstance(goto, str | Send) else goto
    known = [(key, value) for key, value in pairs if key in keys]
    result.writes += known
    result.updates.append(dict(known) or None)


def _pairs(update: Any) -> Iterable[tuple[str, Any]]:
    """The writes of one update: of a dict, of pairs, or of an instance of a state class."""
    if update is None:
        return ()
    if isinstance(update, Mapping):
        return update.items()
    if (
        isinstance(update, list | tuple)
        and update
        and all(isinstance(pair, tuple) and len(pair) == 2 for pair in update)
    ):
        return update
    if is_pydantic(type(update)):
        return [(name, getattr(update, name)) for name in type(update).model_fields if _is_set(update, name)]
    if dataclasses.is_dataclass(update) and is_state_class(type(update)):
        return [(part.name, getattr(update, part.name)) for part in dataclasses.fields(update)]
    raise InvalidUpdateError(f"Expected dict, got {update}")


def _is_set(model: Any, name: str) -> bool:
    """Whether a field of a pydantic model is written: a None is only if it was given, or is not the default."""
    if name in model.model_fields_set or getattr(model, name) is not None:
        return True
    return type(model).model_fields[name].get_default(call_default_factory=True) is not None


def combined(writes: Sequence[tuple[str, Any]], keys: Mapping[str, Key]) -> dict[str, Any]:
    """The writes of one visit by key: several writes to a key are combined by its reducer. Raises InvalidUpdateError
    for a key without one."""
    values: dict[str, Any] = {}
    for name, value in writes:
        if name not in values:
            values[name] = value
        elif (reducer := keys[name].reducer) is not None:
            values[name] = reducer(values[name], value)
        else:
            raise InvalidUpdateError(
                f"At key '{name}': Can receive only one value per step. Use an Annotated key to handle multiple values."
            )
    return values


def after(state: Mapping[str, Any], writes: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
    """The state that a router sees: with the writes of its own node."""
    folded = dict(state)
    for name, value in writes.items():
        reducer = keys[name].reducer
        old = folded.get(name, keys[name].first)
        folded[name] = value if reducer is None or old is ABSENT else reducer(old, value)
    return folded


def chosen(result: Any, targets: Mapping[str, str], label: Callable[[Any], str]) -> list[str | Send]:
    """The targets that a router chose. Raises ValueError for None, KeyError for a label that is not in `targets`."""
    results = result if isinstance(result, list | tuple) else [result]
    if any(part is None for part in results) or result is None:
        raise ValueError("Branch did not return a valid destination")
    chosen: list[str | Send] = []
    for part in results:
        if isinstance(part, Send) or not targets:
            chosen.append(part)
        elif label(part) in targets:
            chosen.append(targets[label(part)])
        else:
            raise KeyError(part)
    for part in chosen:
        if isinstance(part, Send) and part.node == END:
            raise InvalidUpdateError("Cannot send a packet to the END node")
    return chosen
