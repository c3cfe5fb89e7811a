"""The choice of a conditional edge on a worker (F11, F13): by a function of the agent, `branch: {call: file.py:name}`,
or by conditions that cost too much for the scheduler, such as loops over a list.

Rules. Conditions are evaluated in a process that is killed after CONDITION_S: their engine has no time limit and
holds the interpreter's lock. The function gets a copy of the whole state and returns a label, and with `many: true` a
list of labels, or a set, which is sorted. None and the empty label are no route. Anything else is a failure.
In a graph written in Python it is a router (functions/state_graph.py).
The planner maps labels to nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Branch, Node
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.functions import python_call, state_graph
from sleipnir_workers.processes.helper import HelperFailed, HelperProcesses
from sleipnir_workers.results import output, typed_state

NO_ROUTE = ""
CONDITION_S = 10.0

_helper = HelperProcesses("sleipnir_workers.nodes.condition_child")


@executor("branch")
def choose(node: Node, execution: Execution) -> VisitResult:
    """Call the function of the node's conditional edge, or evaluate its conditions. Raises VisitLost."""
    branch = node.branch or Branch()
    if branch.call is None:
        return _by_conditions(branch, execution)
    try:
        chosen = _chosen(branch, execution)
    except NodeFailed as error:
        if execution.observer is not None:
            execution.observer.failed(error)
        return output.failed(error, f"conditional edge evaluation failed: {error}")
    labels = [chosen] if isinstance(chosen, str) else chosen
    return VisitResult(ok=True, next=chosen, notes=(f"branch '{branch.call}' chose {_listed(labels)}",))


def _by_conditions(branch: Branch, execution: Execution) -> VisitResult:
    request = {
        "by": branch.by,
        "cases": [(case.when, case.to) for case in branch.cases],
        "default": branch.default,
        "many": branch.many,
        "state": dict(execution.state),
    }
    try:
        answer, _ = _helper.ask(request, timeout_s=CONDITION_S)
    except RecursionError:
        return output.failed(
            NodeFailed("", "output"), "conditional edge evaluation failed: the state has too many levels"
        )
    except HelperFailed as error:
        return output.failed(NodeFailed(str(error), "timeout"), f"conditional edge evaluation failed: it {error}")
    if "problem" in answer:
        return output.failed(NodeFailed("", "output"), f"conditional edge evaluation failed: {answer['problem']}")
    labels = answer["labels"]
    chosen = _labels("", labels) if branch.many else (labels[0] if labels else NO_ROUTE)
    return VisitResult(ok=True, next=chosen, notes=(f"branch chose {_listed(labels)}",))


def _listed(labels: Iterable[str]) -> str:
    return ", ".join(f"'{label}'" for label in labels if label) or "no route"


def _chosen(branch: Branch, execution: Execution) -> str | tuple[str, ...]:
    assert branch.call is not None
    if execution.objects is not None or execution.graph.state_classes:
        return _labels(branch.call, state_graph.labels(branch, execution))
    returned = python_call.call(
        branch.call, execution, lambda function: function(typed_state.function_state(execution))
    )
    if returned is None:
        return NO_ROUTE
    if isinstance(returned, str):
        return returned
    if branch.many and isinstance(returned, list | tuple | set | frozenset):
        return _labels(branch.call, sorted(returned, key=str) if isinstance(returned, set | frozenset) else returned)
    raise _refused(branch.call, f"returned a {type(returned).__qualname__}", branch.many)


def _labels(call: str, labels: Any) -> str | tuple[str, ...]:
    for label in labels:
        if not isinstance(label, str | None):
            raise _refused(call, f"returned a list that holds a {type(label).__qualname__}", many=True)
    return tuple(label for label in labels if label) or NO_ROUTE


def _refused(call: str, what: str, many: bool) -> NodeFailed:
    advice = "return a list of labels" if many else "return a label; a list of labels needs `many: true`"
    return NodeFailed(f"Function '{call}' {what}; {advice}", "output")
