"""What a worker does for an agent node, whose child is a run of its own: it calls the functions under `map_in` and
`map_out`, or makes data of the text of the child (llm/extraction.py)."""

from __future__ import annotations

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
    return run_extraction(node, execution)
