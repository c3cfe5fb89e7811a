"""Call the agent's functions around a whole run (F42): `callbacks.agent` of its graph, `before` and `after`.

Rules. They run one after the other, in this process, as the agent's function nodes do. What one changes in the state
the next one sees, and the run. `before` gets the state; the output that one returns is that of the run, and no other
one is called. `after` gets the output, or the error, that the run is to end with; what one returns is the output for
the next one, and a failure is recovered then. What one raises fails the run.
"""

from __future__ import annotations

import json
from dataclasses import replace

from sleipnir.commands import NodeInfo
from sleipnir.errors import NodeFailed
from sleipnir.graph.model import CallbackPhase, Json, Node
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.messages import RESULT, VisitResult
from sleipnir.runs.run import changed
from sleipnir_workers.callbacks.calling import call
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.lazy_state import StoredState
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.execution.visit_callbacks import Callback


@executor("before_run")
def run_before(node: Node, execution: Execution) -> VisitResult:
    """Raises NodeFailed and VisitLost."""
    calls = _Calls(execution)
    for callback in _callbacks(execution, "before"):
        given = calls.call(callback)
        if given is not None:
            return calls.result({RESULT: given}, f"run skipped by before {callback.name}")
    return calls.result({})


@executor("after_run")
def run_after(node: Node, execution: Execution) -> VisitResult:
    """Raises NodeFailed and VisitLost."""
    calls, end, marks = _Calls(execution), json.loads(execution.talk.told), []
    output, error, result = end["output"], end["error"], {}
    for callback in _callbacks(execution, "after"):
        given = calls.call(callback, output, error)
        if given is not None:
            marks.append(f"run {'replaced' if error is None else 'recovered'} by after {callback.name}")
            output, error, result = given, None, {RESULT: given}
    return calls.result(result, *marks)


class _Calls:
    """The calls of one visit, and what they have changed in the state."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._changed: dict[str, Json] = {}
        agent = execution.agent
        self._info = NodeInfo(
            agent, "agent", agent, execution.run, execution.seq, execution.attempt, execution.step, 0, execution.session
        )

    def call(self, callback: Callback, *arguments: Json) -> Json:
        """What a callback returns. Raises NodeFailed and VisitLost."""
        try:
            return self._called(callback, arguments)
        except NodeFailed as error:
            if self._execution.observer is not None:
                self._execution.observer.failed(error)
            raise

    def _called(self, callback: Callback, arguments: tuple[Json, ...]) -> Json:
        returned = call(callback, self._execution, self._info, arguments)
        if problem := first_not_json({"output": returned.value}):
            raise NodeFailed(f"Callback '{callback.name}' returned something that is not JSON: {problem}", "callback")
        if returned.removed:
            keys = ", ".join(sorted(returned.removed))
            raise NodeFailed(f"Callback '{callback.name}' removed keys of the state, which stay: {keys}", "callback")
        if returned.changed:
            texts = {**self._execution.state.texts}
            texts |= {key: compact_json(value) for key, value in returned.changed.items()}
            self._execution = changed(self._execution, state=StoredState(texts))
            self._changed |= returned.changed
        return returned.value

    def result(self, given: dict[str, Json], *marks: str) -> VisitResult:
        notes = (*marks, *((f"state changed: {', '.join(self._changed)}",) if self._changed else ()))
        return replace(VisitResult(True, {**self._changed, **given}), callbacks=notes, notes=notes)


def _callbacks(execution: Execution, phase: CallbackPhase) -> list[Callback]:
    own = execution.graph.callbacks
    return [] if own is None else [Callback("graph", name) for name in own.of(phase, "agent")]
