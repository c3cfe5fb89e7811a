"""What a worker does for an agent node, whose child is a run of its own: it calls the functions under `map_in` and
`map_out`, makes data of the text of the child (llm/extraction.py), or writes that for the callbacks of the node."""

from __future__ import annotations

import json

from sleipnir.graph.model import AgentNode
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.llm.extraction import run_extraction
from sleipnir_workers.results import child_mapping


@executor("agent")
def run_agent(node: AgentNode, execution: Execution) -> VisitResult:
    """Execute the node before its child runs, or after. Raises NodeFailed, VisitLost and MachineFailed."""
    if not execution.talk.told:
        return child_mapping.first_values(node, execution)
    if node.map_out is not None:
        return child_mapping.written(node, execution)
    child = json.loads(execution.talk.told)  # its output; or, for callbacks, all of its end
    if isinstance(child, dict) and child["status"] != "completed":
        return child_mapping.child_failed(node, child)
    output = child["output"] if isinstance(child, dict) else child
    if node.output_schema is not None:
        return run_extraction(node, execution, output)
    return child_mapping.of_output(node, execution, output)
