"""Node executors: their contract and their registry.

One kind of work, one module, one function:

    @executor("script")
    def run_script(node: ScriptNode, execution: Execution) -> VisitResult: ...

An executor knows nothing of Redis, Celery, leases or retries of visits. It returns a VisitResult, or raises
NodeFailed; the guard (visits/guard.py) turns anything else into a failure of the visit. It must call
`execution.check()` (or wait on `execution.lost`) wherever it can block, so that a cancel or a lost lease stops it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sleipnir.errors import NodeFailed
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution

Executor = Callable[[Any, Execution], VisitResult]
E = TypeVar("E", bound=Executor)

EXECUTORS: dict[str, Executor] = {}


def executor(kind: str) -> Callable[[E], E]:
    """Register the executor of one node type, or of a role."""

    def register(function: E) -> E:
        EXECUTORS[kind] = function
        return function

    return register


def executor_of(execution: Execution) -> Executor:
    """The executor of a visit. Raises NodeFailed when this worker has none."""
    kind = execution.node.kind if execution.role == "node" else execution.role
    if kind not in EXECUTORS:
        raise NodeFailed(f"this worker cannot run {kind} nodes; start one that serves their queue", "no_executor")
    return EXECUTORS[kind]
