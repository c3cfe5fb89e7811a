"""Which retry policy is about a failure (spec/graph-package.md F37): asked by the planner, and by workers, where some
callbacks see a failure only if it is final."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sleipnir.graph.model import Retry, ToolsNode
from sleipnir.messages import ResultHeader, VisitResult

NOT_RETRIED: Final = frozenset({"unknown", "not_allowed", "arguments", "tool_file", "question"})
"""Kinds of failures of tools that another try cannot mend."""


def tool_policies(node: ToolsNode, failure: ResultHeader | VisitResult) -> list[Retry]:
    """The retry policies for a failure of a call of a tools node."""
    return [] if failure.error_kind in NOT_RETRIED else node.tool_retry


def policy_for(policies: Sequence[Retry], failure: ResultHeader | VisitResult) -> Retry | None:
    """The first policy whose `on` matches the failure. None: the failure is final."""
    return next((policy for policy in policies if any(_matches(name, failure) for name in policy.on)), None)


def is_last(policies: Sequence[Retry], failures: int, failure: ResultHeader | VisitResult) -> bool:
    """Whether no policy lets a visit try again after a failure that follows `failures` others, whatever the time is."""
    policy = policy_for(policies, failure)
    return policy is None or failures + 1 >= policy.max_attempts


def _matches(name: str, failure: ResultHeader | VisitResult) -> bool:
    match name:
        case "any":
            return True
        case "transient":
            return failure.transient or failure.error_kind == "timeout"
        case _:
            raised = failure.error_type or ""
            return name in (failure.error_kind, failure.retried_as, raised, raised.rpartition(":")[2])
