"""Call a function of a graph written in Python, and read what it returned (spec/langgraph-api.md 3 and 4)."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sleipnir.commands import END, Command, Overwrite, Send
from sleipnir.graph.findings import suggestion
from sleipnir.python_graph.errors import InvalidUpdateError
from sleipnir.python_graph.runtime import Call
from sleipnir.python_graph.schema import ABSENT, Key, built_in, is_pydantic, is_state_class

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


def read(returned: Any, keys: Mapping[str, Key], writer: str = "") -> Returned:
    """Raises InvalidUpdateError for what is no update. Keys that the graph does not have are left out, with a warning
    that names the `writer`, if there is one."""
    result = Returned()
    several = isinstance(returned, list | tuple) and any(isinstance(part, Command) for part in returned)
    for part in returned if several else (returned,):
        _read_part(part, keys, result, writer)
    return result


def warn_of_unknown(key: str, keys: Mapping[str, Key], writer: str) -> None:
    """Python shows a warning of one text once."""
    hint = suggestion(key, keys, "keys") or "The state has no keys."
    warnings.warn(f"{writer} writes '{key}', which is no key of the state: it is dropped. {hint}", stacklevel=2)


def _read_part(part: Any, keys: Mapping[str, Key], result: Returned, writer: str) -> None:
    if not isinstance(part, Command):
        written = pairs(part)
    elif part.graph == Command.PARENT:
        result.to_parent.append(part)
        return
    else:
        written = pairs(part.update)
        goto = part.goto if part.goto is not None else ()
        result.targets += [goto] if isinstance(goto, str | Send) else goto
    known = []
    for key, value in written:
        if key in keys:
            known.append((key, value))
        elif writer:
            warn_of_unknown(str(key), keys, writer)
    result.writes += known
    result.updates.append(dict(known) or None)


def pairs(update: Any) -> Iterable[tuple[str, Any]]:
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


class Several(NamedTuple):
    """Several writes of one visit to a key, for a reducer of the program."""

    writes: list[Any]


def combined(writes: Sequence[tuple[str, Any]], keys: Mapping[str, Key]) -> dict[str, Any]:
    """The writes of one visit, one value per key. Raises InvalidUpdateError for several writes to a key without a
    reducer, and what a reducer raises that the language's own stands for."""
    by_key: dict[str, list[Any]] = {}
    for name, value in writes:
        by_key.setdefault(name, []).append(value)
    return {name: _combined(keys[name], values) for name, values in by_key.items()}


def _combined(key: Key, values: list[Any]) -> Any:
    if key.reducer is None:
        if len(values) > 1:
            raise InvalidUpdateError(
                f"At key '{key.name}': Can receive only one value per step. Use an Annotated key to handle multiple "
                "values."
            )
        return values[0].value if isinstance(values[0], Overwrite) else values[0]
    replaced = [value for value in values if isinstance(value, Overwrite)]
    if len(replaced) > 1:
        raise InvalidUpdateError("Can receive only one Overwrite value per super-step.")
    if replaced:
        return replaced[0]
    if built_in(key) is None:
        return values[0] if len(values) == 1 else Several(values)
    key.reducer(key.first, values[0])  # raises what the program's reducer would; the language's own accepts more
    return functools.reduce(key.reducer, values)


def after(state: Mapping[str, Any], writes: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
    """The state that a router sees: with the writes of its own node, as `combined` gives them."""
    folded = dict(state)
    for name, value in writes.items():
        key = keys[name]
        if isinstance(value, Overwrite):
            folded[name] = value.value
        elif key.reducer is None:
            folded[name] = value
        else:
            folded[name] = folded_writes(key, folded.get(name, key.first), as_list(value))
    return folded


def as_list(value: Any) -> list[Any]:
    """The writes that a value of `combined` stands for."""
    return value.writes if isinstance(value, Several) else [value]


def folded_writes(key: Key, old: Any, writes: Sequence[Any]) -> Any:
    """The value of a key after writes through its reducer. A first value without an earlier one (ABSENT) is stored as
    it is."""
    if writes and isinstance(writes[0], Overwrite):
        return writes[0].value
    assert key.reducer is not None
    return functools.reduce(key.reducer, writes if old is ABSENT else [old, *writes])


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
