"""The guard around an executor: what it raises becomes a failure of its visit, or says why there is no result.

Nothing else leaves it: an exception that leaves a Celery task blocks a slot for ever, or ends a process.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from sleipnir.agents.bundle import Unpacked
from sleipnir.errors import MachineFailed, NodeFailed
from sleipnir.graph.model import FunctionNode, LlmNode, ScriptNode
from sleipnir.messages import Usage, VisitResult
from sleipnir_workers.execution.execution import DirectoryMissing, Execution, ProcessLost, VisitLost
from sleipnir_workers.execution.registry import executor_of
from sleipnir_workers.folders import bundle_writes
from sleipnir_workers.machine import health
from sleipnir_workers.results import items, output, typed_state


def execute(execution: Execution, *, interruptible: bool = False) -> VisitResult | None:
    """Run the visit's executor. None means that the visit was lost. Raises ProcessLost, MachineFailed and
    DirectoryMissing, nothing else; if it is `interruptible` also what interrupts this thread, such as Ctrl-C."""
    usage: Usage | None = None
    try:
        result = executor_of(execution)(execution.node, execution)
        usage = result.usage
        if execution.role in ("tool", "summary") or result.calls or result.goes_on or result.later_ms is not None:
            return result  # fields of the conversation, nothing for the state
        if result.interrupt is not None:
            return result
        if result.recoverable and execution.item is None:  # what it writes instead counts as that of a success
            return replace(typed_state.checked(execution, replace(result, ok=True)), ok=False)
        return typed_state.checked(execution, items.left_by(execution, result))
    except (ProcessLost, MachineFailed, DirectoryMissing):
        raise
    except VisitLost:
        return None
    except NodeFailed as error:
        return failed(execution, str(error), error.kind, usage)
    except BaseException as error:
        if interruptible and not isinstance(error, Exception | SystemExit):
            raise
        if failure := health.failure_behind(error):
            raise failure from error
        # Also SystemExit, MemoryError and KeyboardInterrupt of a node's own code: if one leaves a Celery task, it
        # blocks a thread slot for ever or kills a prefork worker.
        structlog.get_logger().exception("executor crashed")
        return failed(execution, f"{type(error).__name__}: {error}", "crash", usage)


def failed(execution: Execution, message: str, kind: str, usage: Usage | None = None) -> VisitResult:
    """A failure with the keys that the graph may read: `_error` for scripts and functions, `output` for llm nodes."""
    node = execution.node
    if execution.role not in ("node", "turn") or execution.item is not None:
        return VisitResult(ok=False, error=message, error_kind=kind, usage=usage)
    if isinstance(node, LlmNode):
        text = f"LLM node failed: {message}"
        delta = typed_state.updates(execution, {}, value=text)
        failure = VisitResult(ok=False, delta=delta, error=text, error_kind=kind, usage=usage)
        return typed_state.checked(execution, failure)
    if isinstance(node, ScriptNode | FunctionNode):
        return output.failure(node, NodeFailed(message, kind), what=node.kind)
    return VisitResult(ok=False, error=message, error_kind=kind, usage=usage)


def unless_changed(execution: Execution, unpacked: Unpacked, result: VisitResult) -> VisitResult:
    """The result, or a failure if the agent's folder was written to."""
    try:
        bundle_writes.refuse_changes(unpacked, execution.cwd)
        return result
    except NodeFailed as error:
        return failed(execution, str(error), error.kind, result.usage)
