"""The state of a graph written in Python: the keys of a TypedDict, a pydantic model or a dataclass, and their reducers.

spec/langgraph-api.md 2 has the rules. A reducer is the last item of `Annotated` if it can be called with two arguments.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import types
from collections import abc
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NotRequired, Required, Union, get_args, get_origin, get_type_hints

Reducer = Callable[[Any, Any], Any]

ABSENT: Final = object()
"""The first value of a key that begins absent."""


@dataclasses.dataclass(frozen=True)
class Key:
    """A key of the state: its type without `Annotated`, and its reducer; None: the value of the last write.
    `validated`: a pydantic model has it, which makes objects of JSON itself."""

    name: str
    type: Any
    reducer: Reducer | None = None
    validated: bool = False

    @property
    def first(self) -> Any:
        """The value before the first write: the empty value of the type of a key with a reducer; else ABSENT, as for a
        type that cannot be made without arguments."""
        origin = get_origin(self.type) or self.type
        if self.reducer is None or not isinstance(origin, type) or origin is object:
            return ABSENT
        try:
            return _EMPTY_OF_ABC.get(origin, origin)()
        except Exception:
            return ABSENT


@dataclasses.dataclass(frozen=True)
class ManagedKey:
    """Marks a key that is no part of the state: nodes get `value` of the number of super-steps that are left."""

    value: Callable[[int], Any]


RemainingSteps = Annotated[int, ManagedKey(int)]
"""The type of a key that holds how many super-steps may follow the running one, before `recursion_limit` ends the
run."""

IsLastStep = Annotated[bool, ManagedKey(lambda remaining: remaining == 1)]
"""The type of a key that is true in the last super-step whose writes the run returns."""


_EMPTY_OF_ABC: Final[Mapping[type, type]] = {
    abc.Sequence: list, abc.MutableSequence: list, abc.Iterable: list, abc.Collection: list, abc.Mapping: dict,
    abc.MutableMapping: dict, abc.Set: set, abc.MutableSet: set,
}  # fmt: skip


def is_state_class(candidate: Any) -> bool:
    """Whether keys can be read from it: a TypedDict, a pydantic model or a dataclass."""
    return isinstance(candidate, type) and (
        is_typed_dict(candidate) or is_pydantic(candidate) or dataclasses.is_dataclass(candidate)
    )


def is_typed_dict(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, dict) and hasattr(candidate, "__required_keys__")


def is_pydantic(candidate: Any) -> bool:
    """Whether it is a pydantic model; does not import pydantic."""
    return isinstance(candidate, type) and hasattr(candidate, "model_fields") and hasattr(candidate, "model_validate")


def keys_of(state_class: type) -> dict[str, Key]:
    """The keys of a state class, in their order, without managed ones. Raises ValueError for an annotation that is no
    reducer, NameError for one that cannot be resolved."""
    managed = managed_keys_of(state_class)
    hints = {name: hint for name, hint in _hints(state_class).items() if name not in managed}
    fields = getattr(state_class, "model_fields", None) if is_pydantic(state_class) else None
    names = list(fields) if fields is not None else list(hints)
    found = {name: _key(name, hints[name]) for name in names if name in hints}
    if fields is None:
        return found
    return {name: dataclasses.replace(key, validated=True) for name, key in found.items()}


def managed_keys_of(state_class: type) -> dict[str, ManagedKey]:
    """The keys that the engine fills. Raises NameError for an annotation that cannot be resolved."""
    notes = {name: getattr(_bare(hint), "__metadata__", ()) for name, hint in _hints(state_class).items()}
    return {name: own[-1] for name, own in notes.items() if own and isinstance(own[-1], ManagedKey)}


def _hints(state_class: type) -> dict[str, Any]:
    return get_type_hints(state_class, include_extras=True)


def _bare(hint: Any) -> Any:
    """A type without Required and NotRequired."""
    while get_origin(hint) in (Required, NotRequired):
        hint = get_args(hint)[0]
    return hint


def add_keys(keys: dict[str, Key], state_class: type) -> None:
    """Add the keys of another state class of a graph: of a key that several have, the one with a reducer counts.
    Raises ValueError for a key with two reducers."""
    for key in keys_of(state_class).values():
        known = keys.get(key.name)
        if known is not None and None not in (key.reducer, known.reducer) and key.reducer is not known.reducer:
            raise ValueError(f"Channel '{key.name}' already exists with a different type")
        if known is None or known.reducer is None:
            keys[key.name] = key


def _key(name: str, hint: Any) -> Key:
    hint = _bare(hint)
    if get_origin(hint) is not Annotated:
        return Key(name, hint)
    type_, *notes = get_args(hint)
    while get_origin(type_) in (Required, NotRequired):
        type_ = get_args(type_)[0]
    last = notes[-1]
    if not callable(last) or isinstance(last, type):
        return Key(name, type_)
    _check_reducer(last)
    return Key(name, type_, last)


def _check_reducer(reducer: Reducer) -> None:
    try:
        parameters = inspect.signature(reducer).parameters.values()
    except ValueError:
        return  # a builtin without a signature, such as max
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) != 2 and not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        names = ", ".join(parameter.name for parameter in parameters)
        raise ValueError(f"Invalid reducer signature. Expected (a, b) -> c. Got ({names})")


BUILT_IN: Final[Mapping[tuple[Any, type], str]] = {
    (operator.add, list): "append", (operator.add, int): "sum", (operator.add, float): "sum",
    (operator.concat, list): "append", (operator.or_, dict): "merge", (max, int): "max", (max, float): "max",
    (min, int): "min", (min, float): "min",
}  # fmt: skip
"""The language's own reducer for a Python one, by the type of the key: it needs no worker."""


def built_in(key: Key) -> str | None:
    """The language's own reducer that does the same as the key's. None: there is none."""
    origin = get_origin(key.type) or key.type
    try:
        return BUILT_IN.get((key.reducer, origin))
    except TypeError:  # an annotation or a callable that cannot be hashed
        return None


TYPE_NAMES: Final[Mapping[Any, str]] = {
    list: "list",
    dict: "object",
    int: "int",
    float: "float",
    str: "string",
    bool: "bool",
}


def shown(hint: Any) -> str:
    """A type as a program writes it."""
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint)


def without_none(hint: Any) -> Any:
    """`T` of `T | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        others = [option for option in get_args(hint) if option is not type(None)]
        return others[0] if len(others) == 1 else hint
    return hint
