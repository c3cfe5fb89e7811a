"""What the visit of a map's body delivers (spec/graph-agents.md 2.7.8).

Rules. A body before the last of its chain delivers the keys that it wrote to the next one, for its item only. The last
one delivers only the item's result under the map's `output_key`: what it, its schema or its state_updates wrote there,
else its own output. A failed body delivers nothing. Next nodes that a body chooses are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Json
from sleipnir.messages import RESULT, VisitResult
from sleipnir_workers.execution.execution import Execution


def with_own_output(execution: Execution, delta: Mapping[str, Json], own: Json) -> Mapping[str, Json]:
    """`delta`, with the body's `own` output added where that is the result of its item."""
    key = execution.result_key
    return delta if key is None or key in delta else {**delta, key: own}


def left_by(execution: Execution, result: VisitResult) -> VisitResult:
    """The part of a body's result that is delivered. Raises NodeFailed (`output`) if the item has no result."""
    if execution.item is None or RESULT in result.delta:  # the latter: the first state of the item's child
        return result
    delta: Mapping[str, Any] = result.delta if result.ok else {}
    if result.ok and (key := execution.result_key) is not None:
        if key not in delta:
            body = f"map node '{execution.item.of}': sub-branch [{execution.item.index}]"
            raise NodeFailed(f"{body} did not write `output_key` '{key}'", "output")
        delta = {key: delta[key]}
    return replace(result, delta=delta, next=None, sends=None)
