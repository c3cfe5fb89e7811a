"""Fold the values that a step has written with the agent's own reducers: `reducer: file.py:name` (F02).

Rules. The visit's overlay holds, by state key, `incoming`, the values written, in visit order, and `current`, the value
before them if there was one. A reducer is called as `name(current, incoming)`, once per value, with None for a missing
value. A value of the key's declared type is passed as an object of that type. The reducer returns JSON or such an
object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Json, Node
from sleipnir.graph.plain import first_not_json
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.functions import python_call, state_graph
from sleipnir_workers.results import output, typed_state


@executor("reduce")
def fold(node: Node, execution: Execution) -> VisitResult:
    """Call the reducers, each for as long as a function node may run. Raises VisitLost."""
    folded: dict[str, Json] = {}
    for key, values in execution.state.items():
        try:
            folded[key] = _folded(key, values, execution)
        except NodeFailed as error:
            if execution.observer is not None:
                execution.observer.failed(error)
            return output.failed(error, f"the reducer of state key '{key}' failed: {error}")
    return VisitResult(ok=True, delta=folded, notes=(f"reduced: {', '.join(folded)}",))


def _folded(key: str, values: Json, execution: Execution) -> Json:
    name = execution.graph.reducer_of(key)
    if name is None:
        raise NodeFailed("the graph declares none", "not_found")

    def use(reducer: Callable[..., Any]) -> Any:
        if execution.graph.state_classes:
            return state_graph.folded(execution, key, values, reducer)
        current = typed_state.as_object(execution, key, values.get("current"))
        incoming = [_as_object_if_valid(execution, key, value) for value in values["incoming"]]
        return typed_state.as_json(execution, key, reduce(reducer, incoming, current))

    folded = python_call.call(name, execution, use)
    if problem := first_not_json({key: folded}):
        raise NodeFailed(f"Function '{name}' returned something that is not JSON: {problem}", "output")
    return folded


def _as_object_if_valid(execution: Execution, key: str, value: Json) -> Any:
    """Nodes may write values of another type to such a key, if its reducer accepts them."""
    try:
        return typed_state.as_object(execution, key, value)
    except NodeFailed:
        return value
