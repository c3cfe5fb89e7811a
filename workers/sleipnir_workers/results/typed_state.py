"""State keys whose type the graph declares: what a node may write to them, and what Python functions get (F01).

Rules. The values that a visit writes are checked before delivery, for all kinds of nodes; a wrong value is a failure
(`state`). Text from state_updates that does not fit its key, but is JSON that fits, is written as that JSON: `"{{n}}"`
for an int. Functions get and return datetime, bytes and pydantic objects for keys of these types. Scripts and language
models see their JSON form; what a script writes for a pydantic model is not checked, as its worker runs no Python of
the agent. A graph without `state:` has none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Json, StateField
from sleipnir.graph.state import from_json, is_model, of_text, problem, to_json, update_problem
from sleipnir.graph.template import TemplateError, updated_by, updates_read
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.lazy_state import FunctionState
from sleipnir_workers.functions import python_call

_WHOLE = (None, "overwrite", "first", "last")
"""Reducers for which a node writes a whole value of the key, not a part of one."""

Problem = Callable[[StateField, Json], str | None]


# What nodes write


def updates(execution: Execution, merged: Mapping[str, Json], *, value: Json = None) -> dict[str, Json]:
    """The keys that the node's state_updates write, given the keys that its body has `merged` and the body's `value`.
    Raises NodeFailed (`template`)."""
    node, fields = execution.node, execution.graph.state
    if not (node.state_updates or node.value_updates):
        return {}
    state = {**{key: execution.state[key] for key in updates_read(node) if key in execution.state}, **merged}
    try:
        written = updated_by(node, state, value)
    except TemplateError as error:
        raise NodeFailed(str(error), "template") from None
    if not fields:
        return written
    return {
        key: of_text(fields[key], content) if key in fields and isinstance(content, str) else content
        for key, content in written.items()
    }


_WHOLE_VALUES: Final = ("reduce", "before_run", "after_run")
"""The roles that write values which no reducer folds."""


def checked(execution: Execution, result: VisitResult) -> VisitResult:
    """`result` if its values fit; of a failed result, the keys that fit. Raises NodeFailed (`state`)."""
    if not execution.graph.state:
        return result
    fits: Problem = problem if execution.role in _WHOLE_VALUES else update_problem
    problems = _problems(execution, result.delta, fits)
    if not result.ok:
        return replace(result, delta={key: value for key, value in result.delta.items() if key not in problems})
    for index, send in enumerate(result.sends or ()):
        for message in _problems(execution, send.update, problem).values():
            raise _wrong(execution, f"_next[{index}].update: {message}")
    for message in problems.values():
        raise _wrong(execution, message)
    return result


def _problems(execution: Execution, written: Mapping[str, Json], fits: Problem) -> dict[str, str]:
    """The problems of the values, by state key."""
    fields, problems = execution.graph.state, {}
    for key, value in written.items():
        if key in fields and (wrong := fits(fields[key], value)) is not None:
            problems[key] = f"state key '{key}' {wrong}"
    return problems


def _wrong(execution: Execution, message: str) -> NodeFailed:
    return NodeFailed(f"node '{execution.node.id}' writes what the graph's `state:` does not allow: {message}", "state")


# What Python functions get


def function_state(execution: Execution) -> FunctionState:
    """The state for a Python function, which may change it, with objects of declared types. Raises NodeFailed."""
    state = FunctionState(execution.state.texts)
    for key, field in execution.graph.state.items():
        if key in state and _holds_objects(field):
            state[key] = as_object(execution, key, state[key])
    return state


def _holds_objects(field: StateField) -> bool:
    return any(name in ("datetime", "bytes") or (name and is_model(name)) for name in (field.type, field.items))


def as_object(execution: Execution, key: str, value: Json) -> Any:
    """A stored value as a Python function gets it. Raises NodeFailed (`state`)."""
    field = execution.graph.state.get(key)
    if field is None:
        return value
    try:
        return _converted(field, from_json(field, value), lambda model, item: model.model_validate(item), execution)
    except ValueError as error:
        raise _unlike(key, field, error) from None


def as_json(execution: Execution, key: str, value: Any) -> Any:
    """The stored form of a value that a Python function wrote to a key. Raises NodeFailed (`state`) if it is not of the
    declared model."""
    field = execution.graph.state.get(key)
    if field is None:
        return value
    whole = field.reducer in _WHOLE or field.type == "list"
    try:
        return _converted(field, to_json(field, value), lambda model, item: _dumped(model, item, whole), execution)
    except ValueError as error:
        raise _unlike(key, field, error) from None


def all_as_json(execution: Execution, written: Mapping[str, Any]) -> dict[str, Any]:
    """The same as `as_json` for every key."""
    return {key: as_json(execution, key, value) for key, value in written.items()}


def _converted(
    field: StateField, value: Any, convert: Callable[[type[BaseModel], Any], Any], execution: Execution
) -> Any:
    """`value`, converted where it, or each of its elements, is declared to be a pydantic model."""
    name = field.items if field.type == "list" else field.type
    if name is None or not is_model(name) or value is None:
        return value
    model = _model(name, execution)
    if field.type == "list" and isinstance(value, list | tuple):
        return [convert(model, item) for item in value]
    return convert(model, value)


def _dumped(model: type[BaseModel], value: Any, whole: bool) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return model.model_validate(value).model_dump(mode="json") if whole else value


def _model(name: str, execution: Execution) -> type[BaseModel]:
    model: Any = python_call.function(name, execution.folder)
    if not isinstance(model, type) or not issubclass(model, BaseModel):
        raise NodeFailed(f"'{name}', the type of a state key, is not a pydantic model", "state")
    return model


def _unlike(key: str, field: StateField, error: ValueError) -> NodeFailed:
    type_ = f"list of {field.items}" if field.type == "list" else field.type
    return NodeFailed(f"state key '{key}' holds a value that is not of type {type_}: {_reason(error)}", "state")


def _reason(error: ValueError) -> str:
    """The first mistake of pydantic's report, which has many lines: its position and its message."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
