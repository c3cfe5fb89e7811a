"""The function node of a graph written in Python: `protocol: state_graph` (spec/langgraph-api.md 3 and 4).

Rules. The function gets the keys that its node reads, or the argument of the Send that asked for the visit. What it
returns is written; keys that the graph does not have are left out. Its routers then see the state with these writes,
and add to the node's edges, as the `goto` of its Commands does. All this is one attempt: if a router raises, the
attempt has failed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sleipnir.commands import END, Command, Send
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import STATE_GRAPH_TIMEOUT_S, Branch, FunctionNode, GraphNode, Json, Retry
from sleipnir.graph.plain import first_not_json
from sleipnir.messages import RESULT, VisitResult
from sleipnir.messages import Send as Visit
from sleipnir.python_graph import calling
from sleipnir.python_graph.errors import ParentCommand
from sleipnir.python_graph.initial_state import values_of
from sleipnir.python_graph.objects import SENT, GraphObjects, context_of, instance
from sleipnir.python_graph.parent_commands import command_of, stored_command
from sleipnir.python_graph.run_config import remaining_steps
from sleipnir.python_graph.runtime import Call, ExecutionInfo, Runtime, current, merged_config, no_writer
from sleipnir.python_graph.schema import keys_of, managed_keys_of
from sleipnir.runs.interrupts import output_of
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.lazy_state import StoredState, differences
from sleipnir_workers.functions import python_call
from sleipnir_workers.functions.emitting import chunk_writer, emitting
from sleipnir_workers.functions.graph_objects import objects_of


def run(node: FunctionNode, execution: Execution) -> VisitResult:
    """Call the node's function and its routers; for an update of the state only the routers. Raises NodeFailed and
    VisitLost."""
    if (update := output_of(execution.talk.told)) is not None:

        def body() -> VisitResult:
            return _written_by(node, execution, update)

        title = f"the update as node '{node.id}'"
        return _tried(
            node, execution, lambda: python_call.guarded(title, execution, body, timeout_s=STATE_GRAPH_TIMEOUT_S)
        )
    return _tried(
        node,
        execution,
        lambda: python_call.call(
            node.call, execution, lambda function: _called(node, execution, function), timeout_s=node.timeout
        ),
    )


def run_graph(node: GraphNode, execution: Execution) -> VisitResult:
    """Make the first state of the run of the node's graph; or, if that is over, write what it returned, and call the
    node's routers. Raises NodeFailed and VisitLost."""
    output = output_of(execution.talk.told)

    def body() -> VisitResult:
        return _state_for_child(node, execution) if output is None else _written_by(node, execution, output)

    return _tried(
        node,
        execution,
        lambda: python_call.guarded(f"Graph '{node.graph}'", execution, body, timeout_s=STATE_GRAPH_TIMEOUT_S),
    )


def _tried(node: FunctionNode, execution: Execution, body: Callable[[], VisitResult]) -> VisitResult:
    """The result of an execution. A failure says by which entry of a policy it is to be retried."""
    try:
        return body()
    except KeyboardInterrupt as interrupt:
        if execution.observer is None:
            raise
        raise NodeFailed("interrupted by the user", "crash") from interrupt  # the caller of the graph gets it
    except NodeFailed as failure:
        failure.retried_as = _retried_as(execution, execution.graph.retries_of(node), failure)
        raise


def _retried_as(execution: Execution, policies: Sequence[Retry], failure: NodeFailed) -> str | None:
    """The first entry of a policy's `on` that says that the exception is to be retried. None if the code of the graph
    cannot answer: it did not load, or fails here too."""
    error = failure.__cause__
    if not isinstance(error, Exception):
        return None
    try:
        objects = _objects(execution)
        return next((name for policy in policies for name in policy.on if _applies(name, error, objects)), None)
    except Exception:
        if execution.objects is not None:
            raise
        return None


def _applies(name: str, error: Exception, objects: GraphObjects) -> bool:
    """Whether an entry of `on` is a class of the exception, or a function that is true for it."""
    if ":" not in name:
        return False
    retry_on = objects.find(name)
    return isinstance(error, retry_on) if isinstance(retry_on, type) else bool(retry_on(error))


def _called(node: FunctionNode, execution: Execution, function: Callable[..., Any]) -> VisitResult:
    objects = _objects(execution)
    with _call_of(execution, objects) as call:
        return _visit(node, execution, objects, call, function)


def _visit(
    node: FunctionNode, execution: Execution, objects: GraphObjects, call: Call, function: Callable[..., Any]
) -> VisitResult:
    state = _state(execution.state, objects)
    writer = "" if hasattr(function, "invoke") else f"node '{node.id}'"  # a graph's own keys stay in it
    returned = calling.read(
        _returned(function, _input(node, execution, objects, state, call), call), objects.keys, writer
    )
    if returned.to_parent:
        return _for_parent(returned.to_parent[0], execution, objects)
    return _result(node, execution, objects, call, returned)


def run_update(node: FunctionNode, execution: Execution, update: Any) -> VisitResult:
    """What a visit would write, and where it would lead, if the node had returned this update. Raises what the routers
    of the node raise."""
    objects = _objects(execution)
    with _call_of(execution, objects) as call:
        return _result(node, execution, objects, call, calling.read(update, objects.keys))


def state_of(execution: Execution) -> dict[str, Any]:
    """The state of a visit that calls no node function, as objects."""
    return _state(execution.state, _objects(execution))


def stored(execution: Execution, written: Mapping[str, Any]) -> dict[str, Json]:
    """What such a visit writes, as JSON; keys that the graph does not have are left out."""
    objects = _objects(execution)
    return objects.encoded({key: value for key, value in written.items() if key in objects.keys})


def _for_parent(command: Command[Any], execution: Execution, objects: GraphObjects) -> VisitResult:
    """The end of the run of a graph that is a node. Raises ParentCommand where the graph above is called in this
    process, or does not exist."""
    if execution.graph.output_keys is None:
        raise ParentCommand(command)
    return VisitResult(True, {RESULT: stored_command(command, objects)}, returns=True)


def _state_for_child(node: GraphNode, execution: Execution) -> VisitResult:
    objects, graph = _objects(execution), execution.graph.graphs[node.graph]
    below = objects_of(tuple(graph.state_classes), execution.folder)
    given = _input(node, execution, objects, _state(execution.state, objects), None)
    accepted = below.keys if graph.input_keys is None else graph.input_keys
    return VisitResult(True, {RESULT: values_of(below, accepted, given)})


def _written_by(node: FunctionNode, execution: Execution, output: str) -> VisitResult:
    """What a run below has returned, or an update of the state, is what the node has returned."""
    objects, values = _objects(execution), json.loads(output)
    if Command.PARENT in values:
        returned: Any = command_of(values[Command.PARENT], objects)
    else:
        returned = {key: objects.writes(key, [value])[0] for key, value in values.items() if key in objects.keys}
    with _call_of(execution, objects) as call:
        return _result(node, execution, objects, call, calling.read(returned, objects.keys))


def _result(
    node: FunctionNode, execution: Execution, objects: GraphObjects, call: Call, returned: calling.Returned
) -> VisitResult:
    """What a node writes, and where it leads."""
    written = calling.combined(returned.writes, objects.keys)
    targets = returned.targets
    if node.routers:
        before = _state(StoredState(execution.state.texts), objects)  # the node may have changed its own copy
        targets = targets + _routed(node, objects, calling.after(before, written, objects.keys), call)
    delta = objects.encoded(written)
    if problem := first_not_json(delta):
        raise TypeError(f"node '{node.id}': Type is not JSON serializable: {problem}")
    if execution.observer is not None:
        execution.observer.returned(returned.updates)
    if not targets:
        return VisitResult(True, delta)
    names = [*node.targets, *(target for target in targets if not isinstance(target, Send))]
    sends = [Visit(target.node, _sent(objects, target.arg)) for target in targets if isinstance(target, Send)]
    return VisitResult(
        True,
        delta,
        next=tuple(dict.fromkeys(name for name in names if name != END)),
        sends=tuple(sends) if sends else None,
    )


def _returned(function: Callable[..., Any], state: Any, call: Call) -> Any:
    try:
        return calling.call(function, state, call)
    except ParentCommand as sent:  # by a node of a graph that is a node of this one
        return dataclasses.replace(sent.command, graph=None)


def _state(stored: StoredState, objects: GraphObjects) -> dict[str, Any]:
    """The state as objects."""
    return objects.decoded({key: stored[key] for key in stored if key in objects.keys})


def _input(
    node: FunctionNode, execution: Execution, objects: GraphObjects, state: dict[str, Any], call: Call | None
) -> Any:
    if SENT in execution.state:
        argument = execution.state[SENT]
        return objects.decoded(argument) if isinstance(argument, dict) else argument
    seen = state if node.reads is None else {key: state[key] for key in node.reads if key in state}
    seen_class = None if node.state_class is None else objects.find(node.state_class)
    return instance(seen_class, {**seen, **_managed(objects, seen_class, call)})


def _managed(objects: GraphObjects, seen_class: type | None, call: Call | None) -> dict[str, Any]:
    """The values of the keys that the engine fills: those of the class, or all; none for the input of another graph
    (no `call`)."""
    managed = objects.managed if seen_class is None else managed_keys_of(seen_class)
    if not managed or call is None:
        return {}
    return {name: key.value(call.remaining_steps) for name, key in managed.items()}


def _routed(node: FunctionNode, objects: GraphObjects, state: dict[str, Any], call: Call) -> list[str | Send]:
    targets: list[str | Send] = []
    seen_class = None if node.state_class is None else objects.find(node.state_class)
    if seen_class is not None:
        state = {key: state[key] for key in keys_of(seen_class) if key in state}
    state |= _managed(objects, seen_class, call)
    for router in node.routers:
        path = objects.find(router.call)
        seen = instance(seen_class, dict(state))
        targets += calling.chosen(calling.call(path, seen, call), router.to, str)
    return targets


def call_back(
    name: str, execution: Execution, arguments: Sequence[Any]
) -> tuple[Any, Mapping[str, Json], Sequence[str]]:
    """What a callback of a node returns, and what it has changed and removed in its copy of the state, as JSON. It gets
    the state as objects before its arguments. Raises NodeFailed and VisitLost."""

    def body() -> tuple[Any, Mapping[str, Json], Sequence[str]]:
        objects = _objects(execution)
        with _call_of(execution, objects), emitting(execution):
            state = _state(StoredState(execution.state.texts), objects)  # its own copy: it may change it
            before = objects.encoded(_state(execution.state, objects))
            value = objects.find(name)(state, *arguments)
            known = {key: each for key, each in state.items() if key in objects.keys}
            return value, *differences(before, objects.encoded(known))

    return python_call.guarded(f"Callback '{name}'", execution, body)


def replaced(name: str, node: FunctionNode, execution: Execution, update: Any) -> VisitResult:
    """The result of a visit whose node would have returned what a callback has. Raises NodeFailed and VisitLost."""
    return python_call.guarded(f"Callback '{name}'", execution, lambda: run_update(node, execution, update))


def cache_key(name: str, execution: Execution) -> Any:
    """What a function makes of the input of a node, as a key of its cache. Raises NodeFailed and VisitLost."""

    def body() -> Any:
        objects, node = _objects(execution), execution.node
        state = _state(execution.state, objects)
        given = _input(node, execution, objects, state, None) if isinstance(node, FunctionNode) else state
        with _call_of(execution, objects) as call:
            return calling.call(objects.find(name), given, call)

    return python_call.guarded(f"Function '{name}'", execution, body)


def labels(branch: Branch, execution: Execution) -> list[str]:
    """What the conditional edge of a node that is no function chooses. Its function gets the state as routers do.
    Raises NodeFailed."""
    assert branch.call is not None
    return python_call.call(branch.call, execution, lambda path: _labels(path, branch, execution))


def _labels(path: Callable[..., Any], branch: Branch, execution: Execution) -> list[str]:
    objects = _objects(execution)
    state, targets = _state(execution.state, objects), {label: label for label in branch.to}
    with _call_of(execution, objects) as call:
        chosen = calling.chosen(calling.call(path, state, call), targets, str)
    if sent := next((target for target in chosen if isinstance(target, Send)), None):
        raise NodeFailed(f"it chose a Send to '{sent.node}': only the conditional edge of a function may", "output")
    return [str(label) for label in chosen]


def _sent(objects: GraphObjects, argument: Any) -> Mapping[str, Json]:
    """The overlay of a visit that a Send asks for."""
    encoded = objects.encoded(argument) if isinstance(argument, dict) else argument
    if problem := first_not_json({SENT: encoded}):
        raise NodeFailed(f"the argument of a Send is not JSON: {problem}", "output")
    return {SENT: encoded}


def folded(execution: Execution, key: str, values: Mapping[str, Any], reducer: Callable[[Any, Any], Any]) -> Json:
    """`current`, if there is one, with the values `incoming` folded in. The first value of a key that begins absent is
    stored as it is."""
    objects = _objects(execution)
    declared = dataclasses.replace(objects.keys[key], reducer=reducer)
    old = objects.decoded({key: values["current"]})[key] if "current" in values else declared.first
    value = calling.folded_writes(declared, old, objects.writes(key, values["incoming"]))
    return objects.encoded({key: value})[key]


def _objects(execution: Execution) -> GraphObjects:
    """The graph's objects: those of the caller's process, or found again on this worker."""
    if execution.objects is not None:
        return execution.objects
    return objects_of(tuple(execution.graph.state_classes), execution.folder)


@contextmanager
def _call_of(execution: Execution, objects: GraphObjects) -> Iterator[Call]:
    """The call that the visit belongs to: that of the caller's process, or on a worker that of the run."""
    known = current.get()
    if known is not None:
        yield known
        return
    call = _call(execution, objects)
    token = current.set(call)
    try:
        yield call
    finally:
        current.reset(token)


def _call(execution: Execution, objects: GraphObjects) -> Call:
    """What a node is told of its run on a worker. No run is in a thread there."""
    context = context_of(execution.context, objects.find) if execution.context is not None else None
    info = ExecutionInfo(execution.run, None, f"{execution.run}/{execution.seq}", execution.attempt)
    below = {"configurable": {"thread_id": None}, "metadata": {}, "tags": None, "run_id": execution.run}
    writer = no_writer if execution.emissions is None else chunk_writer(execution.emissions)
    return Call(
        merged_config(below, execution.config),
        Runtime(context, stream_writer=writer, execution_info=info),
        remaining_steps=remaining_steps(execution.config, execution.graph, execution.step, execution.limited_from),
    )
