"""The callbacks around an execution: `before`, `after` and `error` of the graph and of the node.

Rules. `before` runs once per visit, the graph's first; what one returns is the result: nothing else runs, not even the
cache is asked. `error` sees each failed attempt, and changes nothing. `after`, the node's first, sees the last outcome
of the visit: a result, fresh or cached, or a failure that no policy retries. What it returns is the result from then
on; what it raises fails the visit. What callbacks decided travels in the result's header. Without callbacks nothing
happens here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from sleipnir.commands import NodeInfo
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import CALLING_BACK, STATE_GRAPH, FunctionNode
from sleipnir.graph.plain import first_not_json
from sleipnir.messages import CACHE_HIT, VisitResult
from sleipnir.runs.retry_rules import is_last
from sleipnir_workers.execution.execution import Execution, VisitLost
from sleipnir_workers.functions import python_call, state_graph
from sleipnir_workers.results import items, typed_state
from sleipnir_workers.results.returned import as_json, as_output
from sleipnir_workers.results.routing import EDGES, NEXT, route_of
from sleipnir_workers.visits import guard

Run = Callable[[], VisitResult | None]
Cached = Callable[[Execution, Run], VisitResult | None]
"""VisitCache.result."""


def has_callbacks(execution: Execution) -> bool:
    node = execution.node
    if execution.role != "node" or not isinstance(node, CALLING_BACK):
        return False
    return not (node.callbacks is None and execution.graph.callbacks is None) and not _is_graph(execution)


def around(execution: Execution, cached: Cached, run: Run) -> VisitResult | None:
    """The result of a visit. None: it was lost. Raises what `run` raises."""
    if not has_callbacks(execution):
        return cached(execution, run)
    callbacks = _Callbacks(execution)
    try:
        given = callbacks.before()
        if given is not None:
            return given
        result = cached(execution, lambda: callbacks.ended(run()))
        return callbacks.ended(result) if result is not None and result.cache == CACHE_HIT else result
    except VisitLost:
        return None


class _Callbacks:
    """Those of one execution. Any method may raise VisitLost."""

    def __init__(self, execution: Execution) -> None:
        graph, node = execution.graph, execution.node
        self._execution = execution
        self._before, self._after, self._error = (
            graph.callbacks_of(node, phase) for phase in ("before", "after", "error")
        )
        self._info = NodeInfo(
            node.id,
            node.kind,
            execution.agent,
            execution.run,
            execution.seq,
            execution.attempt,
            execution.step,
            execution.failures,
            execution.session,
        )

    def before(self) -> VisitResult | None:
        """The result that a callback gave, or its failure. None: the node is executed. A visit that was retried, or has
        got an answer, has passed them."""
        execution = self._execution
        for name in self._before if not execution.failures and not execution.talk.told else ():
            try:
                returned = self._call(name)
                if returned is not None:
                    return _marked(self._made(name, returned), f"skipped by before {name}")
            except NodeFailed as error:
                return self._failed(f"before {name}", error)
        return None

    def ended(self, result: VisitResult | None) -> VisitResult | None:
        """The outcome of an execution, or of a look into the cache, as callbacks leave it."""
        if result is None or result.interrupt is not None or result.later_ms is not None or result.returns:
            return result
        if not result.ok:
            self._observe(result)
            policies = self._execution.graph.retries_of(self._execution.node)
            if not is_last(policies, self._execution.failures, result):
                return result
            result = replace(result, is_final=bool(self._after))
        for name in self._after:
            result = self._changed(name, result)
        return result

    def _changed(self, name: str, result: VisitResult) -> VisitResult:
        """What one `after` makes of the outcome so far."""
        written = dict(result.delta) if result.ok else None
        try:
            returned = self._call(name, written, None if result.ok else result.error or "failed")
            if returned is None:
                return result
            made = self._made(name, returned)
        except NodeFailed as error:
            return self._failed(f"after {name}", error, result)
        mark = f"{'replaced' if result.ok else 'recovered'} by after {name}"
        kept = replace(made, usage=result.usage, cache=result.cache, notes=result.notes, callbacks=result.callbacks)
        return _marked(kept, mark)

    def _observe(self, failure: VisitResult) -> None:
        for name in self._error:
            try:
                self._call(name, failure.error or "failed")
            except NodeFailed as error:
                structlog.get_logger().warning("an error callback failed", callback=name, error=str(error))

    def _failed(self, which: str, error: NodeFailed, result: VisitResult | None = None) -> VisitResult:
        """The failure that a callback has made. It is final: no policy is about it."""
        execution = self._execution
        if execution.observer is not None:
            execution.observer.failed(error)
        failure = guard.failed(execution, str(error), "callback", None if result is None else result.usage)
        if result is None:
            self._observe(failure)
        else:
            failure = replace(failure, notes=result.notes, callbacks=result.callbacks, cache=result.cache)
        return replace(_marked(failure, f"failed by {which}"), is_final=True)

    def _call(self, name: str, *more: Any) -> Any:
        """What a callback returns. Raises NodeFailed."""
        execution, arguments = self._execution, (self._info, *more)
        if _is_python_graph(execution):
            returned = state_graph.call_back(name, execution, arguments)
        else:
            returned = python_call.call(
                name, execution, lambda function: function(typed_state.function_state(execution), *arguments)
            )
        if inspect.iscoroutine(returned):
            returned.close()
            raise NodeFailed(f"Callback '{name}' is async, but it is called as a plain function", "callback")
        return returned

    def _made(self, name: str, returned: Any) -> VisitResult:
        """The result of a visit whose node would have returned this. Raises NodeFailed."""
        execution, node = self._execution, self._execution.node
        if isinstance(node, FunctionNode) and node.protocol == STATE_GRAPH:
            result = state_graph.replaced(name, node, execution, returned)
        else:
            written = as_output(f"Callback '{name}'", returned)
            written = as_json(execution, written) if execution.graph.state else written
            if problem := first_not_json(written):
                raise NodeFailed(f"Callback '{name}' returned something that is not JSON: {problem}", "callback")
            route = route_of(written[NEXT]) if NEXT in written else EDGES
            delta = {key: value for key, value in written.items() if key != NEXT}
            result = VisitResult(True, delta, next=route.next, sends=route.sends)
        return typed_state.checked(execution, items.left_by(execution, result))


def _is_python_graph(execution: Execution) -> bool:
    return execution.objects is not None or bool(execution.graph.state_classes)


def _is_graph(execution: Execution) -> bool:
    """Whether the node is another graph, in this process: on the fleet it would be a run of its own."""
    node = execution.node
    if execution.objects is None or not isinstance(node, FunctionNode):
        return False
    return hasattr(execution.objects.find(node.call), "invoke")


def _marked(result: VisitResult, mark: str) -> VisitResult:
    return replace(result, callbacks=(*result.callbacks, mark), notes=(*result.notes, mark))
