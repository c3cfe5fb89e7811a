"""The callbacks around an execution: `before`, `after` and `error` of plugins, of the graph and of the node.

Rules. `agent_event` sees each event of the child of an agent node once that is over, before `after` and `error`, and
changes nothing. `before` runs once per visit, and once more per attempt if it has changed what the node sees: plugins,
then the graph's, then the node's. What one returns is the result: the node is not executed, its cache is not asked, no
`after` runs; one of a higher rank (plugin, node, graph) still runs and may return another. `error` sees each failed
attempt, and changes nothing. `after`, plugins first, then the node's, sees the last outcome of the visit: a result,
fresh or cached, or a failure that no policy retries. What it returns is the result from then on, unless one of a higher
rank has returned one; what it raises fails the visit. What callbacks decided travels in the result's header. Without
callbacks nothing happens here. Those around calls of models and tools run where the calls are made
(callbacks/chain.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import structlog

from sleipnir.commands import NodeInfo
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import (
    STATE_GRAPH,
    AgentNode,
    CallbackKind,
    CallbackLevel,
    CallbackPhase,
    FunctionNode,
    Graph,
    Json,
    Node,
    calls_back,
)
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.graph.state import problem
from sleipnir.messages import CACHE_HIT, INPUT_CHANGED, RESULT, Role, VisitResult
from sleipnir.runs.child_events import events_of
from sleipnir.runs.retry_rules import is_last
from sleipnir.runs.run import changed
from sleipnir_workers.callbacks import plugins
from sleipnir_workers.callbacks.calling import CallbackResult, call, tell
from sleipnir_workers.callbacks.chain import outranks
from sleipnir_workers.execution.execution import Execution, VisitLost
from sleipnir_workers.execution.lazy_state import StoredState
from sleipnir_workers.execution.visit_callbacks import RANKS, Callback, VisitCallbacks
from sleipnir_workers.functions import state_graph
from sleipnir_workers.results import items, typed_state
from sleipnir_workers.results.returned import as_json, as_output
from sleipnir_workers.results.routing import EDGES, NEXT, route_of
from sleipnir_workers.visits import guard

Run = Callable[[Execution], VisitResult | None]
Cached = Callable[[Execution, Callable[[], VisitResult | None]], VisitResult | None]
"""VisitCache.result."""

_EVENTS_AT_ONCE: Final = 100

_PLACES: Final[Mapping[Role, tuple[tuple[CallbackKind, CallbackPhase], ...]]] = {
    "node": (
        *(("node", "before"), ("node", "after"), ("node", "error"), ("node", "agent_event")),
        *(("model", "before"), ("model", "after")),
    ),
    "turn": (("node", "before"), ("node", "after"), ("node", "error"), ("model", "before"), ("model", "after")),
    "tool": (("tool", "before"), ("tool", "after")),
}


def has_callbacks(graph: Graph, node: Node, role: Role) -> bool:
    """Whether callbacks run around an execution; they get the whole state."""
    if plugins.active is None and graph.callbacks is None and getattr(node, "callbacks", None) is None:
        return False
    return any(_named(graph, node, *place) for place in _PLACES.get(role, ()))


def around(execution: Execution, cached: Cached, run: Run) -> VisitResult | None:
    """The result of a visit. None: it was lost. Raises what `run` raises."""
    own = _callbacks(execution)
    if own is None:
        return cached(execution, lambda: run(execution))
    execution = changed(execution, callbacks=own)
    if execution.role == "tool":
        return _with_marks(own, run(execution))
    try:
        before = _Before(own, execution)
        given = before.result()
        if given is not None:
            return given
        execution = before.execution
        if isinstance(execution.node, AgentNode):
            return _around_child(before, execution, run)
        after = _After(own, execution)
        result = cached(execution, lambda: after.result(run(execution)))
        return after.result(result) if result is not None and result.cache == CACHE_HIT else result
    except VisitLost:
        return None


def _around_child(before: _Before, execution: Execution, run: Run) -> VisitResult | None:
    """The same of an agent node: this execution comes before its child, or after."""
    own, result = before.own, None
    if execution.talk.told:
        child = json.loads(execution.talk.told)
        if isinstance(child, dict):
            own.info.context["child"] = {key: child.get(key) for key in ("run", "agent", "status", "output", "error")}
            _tell_events(own, execution, child)
        return _After(own, execution).result(run(execution))
    result = run(execution)
    if result is None or not result.ok:
        return _After(own, execution).result(result)
    if before.changed or before.removed:
        first = {"values": result.delta[RESULT], "changed": before.changed, "removed": sorted(before.removed)}
        result = replace(result, delta={RESULT: first})
    return _with_marks(own, result)


def _tell_events(own: VisitCallbacks, execution: Execution, child: Mapping[str, Any]) -> None:
    """Call `agent_event` with each event of the child. A function that took too long is not called again. Raises
    VisitLost, MachineFailed and StoreUnavailable."""
    listening = list(own.of("node", "agent_event"))
    if not listening or execution.child_visits is None:
        return
    told = events_of(child, execution.child_visits(child["run"]))
    while listening and (events := list(islice(told, _EVENTS_AT_ONCE))):
        for callback in list(listening):
            try:
                failures = tell(callback, execution, own.info, events)
            except NodeFailed as error:
                failures = [str(error)]
                listening.remove(callback)
            for failure in failures:
                structlog.get_logger().warning("an event callback failed", callback=callback.name, error=failure)


def _named(graph: Graph, node: Node, kind: CallbackKind, phase: CallbackPhase) -> list[Callback]:
    """Those of one place in the order in which they run."""
    if not calls_back(node, kind):
        return []
    is_plugged = plugins.active is not None and not isinstance(node, AgentNode)
    first = plugins.active.get((kind, phase), ()) if is_plugged and plugins.active is not None else ()
    return [*first, *(Callback(level, name) for level, name in graph.callbacks_of(node, phase, kind))]


def _callbacks(execution: Execution) -> VisitCallbacks | None:
    graph, node = execution.graph, execution.node
    if not has_callbacks(graph, node, execution.role) or _is_graph(execution):
        return None
    info = NodeInfo(
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
    named = {place: _named(graph, node, *place) for place in _PLACES[execution.role]}
    return VisitCallbacks(info, {place: callbacks for place, callbacks in named.items() if callbacks})


class _Decisions:
    """What callbacks of one execution are called with, and what becomes of that. Any method may raise VisitLost."""

    def __init__(self, own: VisitCallbacks, execution: Execution) -> None:
        self.own, self.execution = own, execution

    def observe(self, failure: VisitResult) -> None:
        for callback in self.own.of("node", "error"):
            try:
                self.call(callback, failure.error or "failed")
            except NodeFailed as error:
                structlog.get_logger().warning("an error callback failed", callback=callback.name, error=str(error))

    def failed(self, which: str, error: NodeFailed, result: VisitResult | None = None) -> VisitResult:
        """The failure that a callback has made. It is final: no policy is about it."""
        execution = self.execution
        if execution.observer is not None:
            execution.observer.failed(error)
        failure = guard.failed(execution, str(error), "callback", None if result is None else result.usage)
        if result is not None:
            failure = replace(failure, notes=result.notes, callbacks=result.callbacks, cache=result.cache)
        return replace(_marked(failure, f"failed by {which}"), is_final=True)

    def call(self, callback: Callback, *more: Any) -> CallbackResult:
        """What a callback returns. Raises NodeFailed."""
        return call(callback, self.execution, self.own.info, more, as_node=True)

    def made(self, callback: Callback, returned: Any) -> VisitResult:
        """The result of a visit whose node would have returned this. Raises NodeFailed."""
        execution, node, name = self.execution, self.execution.node, callback.name
        if isinstance(node, FunctionNode) and node.protocol == STATE_GRAPH:
            result = state_graph.replaced(name, node, execution, returned)
        else:
            written = as_output(f"Callback '{name}'", returned)
            written = as_json(execution, written) if execution.graph.state else written
            if wrong := first_not_json(written):
                raise NodeFailed(f"Callback '{name}' returned something that is not JSON: {wrong}", "callback")
            route = route_of(written[NEXT]) if NEXT in written else EDGES
            delta = {key: value for key, value in written.items() if key not in (NEXT, RESULT)}
            result = VisitResult(True, delta, next=route.next, sends=route.sends)
        return typed_state.checked(execution, items.left_by(execution, result))


class _Before(_Decisions):
    def __init__(self, own: VisitCallbacks, execution: Execution) -> None:
        super().__init__(own, execution)
        self.changed: dict[str, Json] = {}
        self.removed: set[str] = set()

    def result(self) -> VisitResult | None:
        """The result that a callback gave, or its failure. None: the node is executed, as `execution`. A visit that was
        retried, or has got an answer, has passed them."""
        execution, given, by = self.execution, None, None
        if execution.talk.told or (execution.failures and not execution.input_changed):
            return None
        for callback in self.own.of("node", "before"):
            if not outranks(callback, by):
                continue
            try:
                returned = self.call(callback)
                self._change_input(callback, returned)
                if returned.value is not None:
                    given, by = self.made(callback, returned.value), callback.level
                    self.own.marks.append(f"skipped by before {callback.name}")
            except NodeFailed as error:
                failure = _with_marks(self.own, self.failed(f"before {callback.name}", error))
                assert failure is not None
                self.observe(failure)
                return failure
        return _with_marks(self.own, given)

    def _change_input(self, callback: Callback, returned: CallbackResult) -> None:
        """Let the node see the state as a callback has left it. What is stored stays. Raises NodeFailed."""
        if not returned.changed and not returned.removed:
            return
        execution = self.execution
        for key, value in returned.changed.items():
            field = execution.graph.state.get(key)
            if field is not None and (wrong := problem(field, value)) is not None:
                raise NodeFailed(f"Callback '{callback.name}': state key '{key}' {wrong}", "state")
        texts = {key: text for key, text in execution.state.texts.items() if key not in returned.removed}
        texts |= {key: compact_json(value) for key, value in returned.changed.items()}
        self.removed = (self.removed | {*returned.removed}) - returned.changed.keys()
        self.changed = {**self.changed, **returned.changed}
        self.changed = {key: value for key, value in self.changed.items() if key not in self.removed}
        self.execution = changed(execution, state=StoredState(texts))
        keys = ", ".join((*returned.changed, *returned.removed))
        self.own.marks.append(f"{INPUT_CHANGED} {keys} by before {callback.name}")


class _After(_Decisions):
    def result(self, result: VisitResult | None) -> VisitResult | None:
        """The outcome of an execution, or of a look into the cache, as callbacks leave it."""
        result = _with_marks(self.own, result)
        if result is None or result.interrupt is not None or result.later_ms is not None or result.returns:
            return result
        if result.calls or result.goes_on:  # the conversation of a model goes on
            return result
        if not result.ok:
            self.observe(result)
            policies = self.execution.graph.retries_of(self.execution.node)
            is_final = self.own.is_final or result.is_final
            if not is_final and not is_last(policies, self.execution.failures, result):
                return result
            result = replace(result, is_final=is_final or bool(self.own.of("node", "after")))
        by: CallbackLevel | None = None
        for callback in self.own.of("node", "after"):
            result, by = self._changed(callback, result, by)
        return result

    def _changed(
        self, callback: Callback, result: VisitResult, by: CallbackLevel | None
    ) -> tuple[VisitResult, CallbackLevel | None]:
        """What one `after` makes of the outcome so far, which a callback of the level `by` has returned."""
        written = dict(result.delta) if result.ok else None
        try:
            returned = self.call(callback, written, None if result.ok else result.error or "failed").value
            if returned is None:
                return result, by
            if by is not None and RANKS[callback.level] < RANKS[by]:
                note = f"the result of after {callback.name} is left out: a {by} has decided"
                return replace(result, notes=(*result.notes, note)), by
            made = self.made(callback, returned)
        except NodeFailed as error:
            return self.failed(f"after {callback.name}", error, result), None
        mark = f"{'replaced' if result.ok else 'recovered'} by after {callback.name}"
        kept = replace(
            made,
            usage=result.usage,
            cache=result.cache,
            said=result.said,
            notes=result.notes,
            callbacks=result.callbacks,
        )
        return _marked(kept, mark), callback.level


def _is_graph(execution: Execution) -> bool:
    """Whether the node is another graph, in this process: on the fleet it would be a run of its own."""
    node = execution.node
    if execution.objects is None or not isinstance(node, FunctionNode):
        return False
    return hasattr(execution.objects.find(node.call), "invoke")


def _marked(result: VisitResult, mark: str) -> VisitResult:
    return replace(result, callbacks=(*result.callbacks, mark), notes=(*result.notes, mark))


def _with_marks(own: VisitCallbacks, result: VisitResult | None) -> VisitResult | None:
    """The result with what callbacks have decided before it; each decision once."""
    if result is None or not own.marks:
        return result
    marks, own.marks = tuple(own.marks), []
    is_final = result.is_final or (own.is_final and not result.ok)
    return replace(result, callbacks=(*marks, *result.callbacks), notes=(*marks, *result.notes), is_final=is_final)
