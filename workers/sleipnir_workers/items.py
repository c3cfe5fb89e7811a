"""What a visit to a body of a map leaves (spec/graph-agents.md 2.7.8).

Rules. A body before the last of its chain leaves what it wrote to the next one, for its item alone. The last one leaves
the item's result under the map's `output_key`, and nothing else: what it, its schema or its state_updates wrote there,
else its own output. A body that failed leaves nothing. Where a body wants to go on is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Json
from sleipnir.messages import VisitResult
from sleipnir_workers.execution import Execution


def with_own_output(execution: Execution, delta: Mapping[str, Json], own: Json) -> Mapping[str, Json]:
    """`delta`, to which a body adds its `own` output where that is the result of its item."""
    key = execution.result_key
    return delta if key is None or key in delta else {**delta, key: own}


def left_by(execution: Execution, result: VisitResult) -> VisitResult:
    """What is delivered of a body's result. Raises NodeFailed (`output`) when it has left none."""
    if execution.item is None:
        return result
    delta: Mapping[str, Any] = result.delta if result.ok else {}
    if result.ok and (key := execution.result_key) is not None:
        if key not in delta:
            place = f"map node '{execution.item.of}': sub-branch [{execution.item.index}]"
            raise NodeFailed(f"{place} did not write `output_key` '{key}'", "output")
        delta = {key: delta[key]}
    return replace(result, delta=delta, next=None, sends=None)
