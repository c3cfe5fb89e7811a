"""The summary of an agent's output for the agent that collects it (spec/graph-agents.md 6.5).

One call of the model. If it fails, the scheduler gives the collector the start of the output instead.
"""

from __future__ import annotations

import json
from dataclasses import replace

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import LlmNode, LoopAgent
from sleipnir.messages import RESULT, VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.llm.conversation import chat
from sleipnir_workers.llm.dialogue import Dialogue
from sleipnir_workers.machine.host import Host, this_host

SUMMARIZER = """\
You summarise with precision what an agent reported to the agent that it works for.
Keep unchanged: code snippets, file paths, error messages and concrete recommendations.
Drop filler and repetition. Lead with the conclusion, and list several findings as bullet points.
Your summary has less than 30 % of the length of the report."""


@executor("summary")
def run_summary(node: LlmNode, execution: Execution, host: Host | None = None) -> VisitResult:
    """The collected result with a summary as its output. `host` None means this process's. Raises only VisitLost."""
    agent, result = execution.graph.loop or LoopAgent(), json.loads(execution.talk.told)
    asking = LlmNode(
        id=node.id,
        prompt="",
        model=agent.summarization_model or node.model,
        temperature=node.temperature,
        top_p=node.top_p,
        reasoning_effort=None if agent.summarization_model else node.reasoning_effort,
    )
    if agent.summarization_model is not None:  # another model has other levels
        execution = replace(execution, graph=replace(execution.graph, reasoning_effort=None))
    dialogue = Dialogue(asking, execution, host or this_host())
    question = f"Summarize the following sub-agent output from '{result['agent']}':\n\n{result['output']}"
    try:
        dialogue.open()
        answer = dialogue.ask(chat(SUMMARIZER, question))
    except PutOff as later:
        return dialogue.put_off(later)
    except NodeFailed as error:
        return VisitResult(
            ok=False, error=dialogue.clean(str(error)), error_kind=error.kind, usage=dialogue.spent.usage()
        )
    return VisitResult(ok=True, delta={RESULT: {**result, "output": answer.text}}, usage=dialogue.spent.usage())
