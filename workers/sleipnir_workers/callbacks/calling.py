"""Call one callback: a plugin of the deployment, or a function of the agent.

Rules. Around scripts and functions the agent's functions run in this process, as function nodes do. Around all else
they run in a child process without keys (child.py): the workers of models and searches, and of MCP servers, may have
some. There the state, the arguments and what is returned are JSON. A callback changes its arguments and `info.context`
in place; what it changed in its copy of the state is returned. All its failures are NodeFailed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import structlog

from sleipnir.commands import NodeInfo
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import FunctionNode, Json, ScriptNode
from sleipnir.graph.plain import first_not_json
from sleipnir_workers.callbacks import plugins
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.lazy_state import FunctionState
from sleipnir_workers.execution.visit_callbacks import Callback
from sleipnir_workers.functions import emitting, python_call, state_graph
from sleipnir_workers.processes.helper import HelperFailed, HelperProcesses, TookTooLong
from sleipnir_workers.results import typed_state

TIMEOUT_S: Final = python_call.TIMEOUT_S

_helper = HelperProcesses("sleipnir_workers.callbacks.child")


@dataclass(frozen=True)
class CallbackResult:
    """What a callback has returned, and the keys that it has changed or removed in its copy of the state."""

    value: Any = None
    changed: Mapping[str, Json] = field(default_factory=dict)
    removed: Sequence[str] = ()


def call(
    callback: Callback, execution: Execution, info: NodeInfo, arguments: Sequence[Any], *, as_node: bool = False
) -> CallbackResult:
    """Call it with the state, `info` and the arguments. `as_node`: it returns what a function node does. Raises
    NodeFailed, VisitLost and MachineFailed."""
    if callback.function is not None:
        returned = _plugin(callback, execution, info, arguments)
    elif execution.objects is not None or (execution.graph.state_classes and _runs_functions(execution)):
        returned = CallbackResult(*state_graph.call_back(callback.name, execution, (info, *arguments)))
    elif _runs_functions(execution):
        returned = _here(callback, execution, info, arguments)
    else:
        return _in_child(callback, execution, info, arguments, as_node=as_node)
    if inspect.iscoroutine(returned.value):
        returned.value.close()
        raise NodeFailed(f"Callback '{callback.name}' is async, but it is called as a plain function", "callback")
    if problem := first_not_json(dict(returned.changed)):
        raise NodeFailed(
            f"Callback '{callback.name}' put something into the state that is not JSON: {problem}", "state"
        )
    return returned


def tell(
    callback: Callback, execution: Execution, info: NodeInfo, events: Sequence[Mapping[str, Any]]
) -> Sequence[str]:
    """Call it with the state, `info` and each of the events. Returns the errors of single calls. Raises NodeFailed,
    VisitLost and MachineFailed."""
    if execution.objects is None:
        request = {"name": callback.name, "info": asdict(info), "arguments": [], "events": list(events)}
        failures: list[str] = _asked(f"Callback '{callback.name}'", execution, request)["failures"]
        return failures
    failures = []
    for event in events:
        try:
            call(callback, execution, info, [event])
        except NodeFailed as error:
            failures.append(str(error))
    return failures


def call_in_child(name: str, execution: Execution) -> Any:
    """What a function of the agent makes of the state, in a process without keys; JSON, or bytes. Raises NodeFailed,
    VisitLost and MachineFailed."""
    answer = _asked(f"Function '{name}'", execution, {"name": name, "arguments": []})
    return bytes.fromhex(answer["bytes"]) if "bytes" in answer else answer["value"]


def _runs_functions(execution: Execution) -> bool:
    """Whether this process is one for functions of the agent."""
    return isinstance(execution.node, ScriptNode | FunctionNode) or execution.role in ("before_run", "after_run")


def _plugin(callback: Callback, execution: Execution, info: NodeInfo, arguments: Sequence[Any]) -> CallbackResult:
    function, state = callback.function, FunctionState(execution.state.texts)
    assert function is not None

    def body() -> Any:
        with emitting.emitting(execution):
            return function(state, info, *arguments)

    value = python_call.guarded(plugins.title(callback.name), execution, body, timeout_s=TIMEOUT_S)
    return CallbackResult(value, *state.changes(execution.state))


def _here(callback: Callback, execution: Execution, info: NodeInfo, arguments: Sequence[Any]) -> CallbackResult:
    state = typed_state.function_state(execution)

    def use(function: Any) -> Any:
        with emitting.emitting(execution):
            return function(state, info, *arguments)

    value = python_call.call(callback.name, execution, use, timeout_s=TIMEOUT_S)
    changes = state.changes(execution.state, lambda key, value: typed_state.as_json(execution, key, value))
    return CallbackResult(value, *changes)


def _in_child(
    callback: Callback, execution: Execution, info: NodeInfo, arguments: Sequence[Any], *, as_node: bool
) -> CallbackResult:
    request = {"name": callback.name, "info": asdict(info), "arguments": list(arguments), "as_node": as_node}
    answer = _asked(f"Callback '{callback.name}'", execution, request)
    for own, left in zip(arguments, answer["arguments"], strict=True):
        if isinstance(own, dict):
            own.clear()
            own.update(left)
    info.context.clear()
    info.context.update(answer["context"])
    return CallbackResult(answer["value"], answer["changed"], answer["removed"])


def _asked(title: str, execution: Execution, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a child. Raises NodeFailed, VisitLost and MachineFailed."""
    request |= {
        "title": title,
        "folder": str(execution.folder),
        "classes": list(execution.graph.state_classes),
        "state": dict(execution.state.texts),
    }
    try:
        answer, _ = _helper.ask(request, timeout_s=TIMEOUT_S, lost=execution.lost)
    except HelperFailed as error:
        execution.check()
        if isinstance(error, TookTooLong):
            raise NodeFailed(f"{title} timed out after {TIMEOUT_S}s", "timeout") from None
        raise NodeFailed(f"{title} {error}", "crash") from None
    except (TypeError, RecursionError) as error:
        raise NodeFailed(f"{title} cannot be given its arguments: {error}", "callback") from None
    if printed := answer.get("printed"):
        structlog.get_logger().info("a callback printed", title=title, text=printed)
    if (failed := answer.get("failed")) is not None:
        raise NodeFailed(failed["message"], failed["kind"], transient=failed["transient"])
    if execution.emissions is not None:
        for text in answer["emitted"]:
            execution.emissions.write(text)
    return answer
