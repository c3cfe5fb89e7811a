"""Structured output of an agent node: from the text of its child run to data (spec 2.7.5, 2.9)."""

from __future__ import annotations

from dataclasses import replace

from sleipnir.errors import NodeFailed
from sleipnir.graph.child_values import response_of
from sleipnir.graph.model import AgentNode, LlmNode
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.llm.dialogue import Dialogue
from sleipnir_workers.machine.host import Host, this_host


def run_extraction(node: AgentNode, execution: Execution, text: str, host: Host | None = None) -> VisitResult:
    """Convert the child's text to data, with the graph's model if the text is no JSON. A failure writes nothing and
    fails the graph. `host` None means this process's. Raises only VisitLost."""
    asking = LlmNode(id=node.id, prompt="", output_schema=node.output_schema, state_updates=node.state_updates)
    dialogue = Dialogue(asking, execution, host or this_host())
    try:
        dialogue.open()
        result = dialogue.finish(text, f"Agent '{node.agent}' output failed structured-output extraction")
    except PutOff as later:
        return dialogue.put_off(later)
    except NodeFailed as error:
        result = dialogue.failure(error, f"Agent '{node.agent}' output failed structured-output extraction")
    if not result.ok:
        return replace(result, delta={})
    if execution.item is not None:
        return result
    return replace(result, delta={**response_of(execution.graph, node, text), **result.delta})
