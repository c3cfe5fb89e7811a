"""A tool node: a function of the agent's own tools file that the graph calls, not a model (spec/graph-agents.md 3.4).

Rules. It is called without arguments, in the environment of the agent's other tools. The text that it leaves is the
node's result and is not parsed, even if it is JSON. A missing or truncated text is a failure.
"""

from __future__ import annotations

from typing import Any

from sleipnir.errors import NodeFailed, ToolFileError
from sleipnir.graph.model import ToolNode
from sleipnir.messages import VisitResult
from sleipnir.python_graph.interrupts import VisitAnswers
from sleipnir.runs.interrupts import answers_of
from sleipnir.tools.declaration import Declaration
from sleipnir.tools.folder import agent_tools
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.machine.host import Host
from sleipnir_workers.tools import timeouts
from sleipnir_workers.tools.call import run_call
from sleipnir_workers.tools.place import Place
from sleipnir_workers.tools.results import ToolOutcome

_NO_TERMINAL = (
    "A run has no terminal to read from: declare what the function asks for under `variables:`, and read it from "
    "LLM_AGENT_VAR_NAME. Variables without a value are asked for when the run is submitted."
)


def run_own(node: ToolNode, execution: Execution, host: Host) -> VisitResult:
    """Call the node's function. Raises NodeFailed (`config`), VisitLost and ProcessLost."""
    place = Place.of_visit(execution, host)
    answers = VisitAnswers(node.id, answers_of(execution.talk.told))
    timeout_s = timeouts.seconds_of(node, execution.graph, place.host)
    try:
        result = run_call(_declared(node.tool, execution), {}, place, timeout_s=timeout_s, answers=answers)
        if result.question is not None:
            return VisitResult.asking(result.question)
        text = _text(node, result, place)
    except NodeFailed as error:
        return VisitResult(ok=False, error=str(error), error_kind=error.kind)
    return VisitResult(ok=True, delta={node.output_key: text}, notes=(f"running tool '{node.tool}'",))


def _text(node: ToolNode, result: ToolOutcome, place: Place) -> str:
    if result.failure is not None:
        raise NodeFailed(_failure_text(result.value), result.failure)
    if result.cut_bytes:
        most = place.host.settings.max_tool_result_bytes
        raise NodeFailed(f"'{node.tool}' returned more than SLEIPNIR_MAX_TOOL_RESULT_BYTES={most:,} bytes", "too_large")
    if not result.kept_text.strip():
        raise NodeFailed(f"No return value from '{node.tool}' function", "output")
    return result.kept_text.strip()


def _declared(name: str, execution: Execution) -> Declaration:
    try:
        for declaration in agent_tools(execution.folder):
            if declaration.name == name:
                return declaration
    except ToolFileError as error:
        raise NodeFailed(f"the tools of agent '{execution.agent}' cannot be read: {error}", "tool_file") from error
    raise NodeFailed(f"the tools file of agent '{execution.agent}' has no function '{name}'", "not_found")


def _failure_text(value: Any) -> str:
    """The failure that a model would read, as one text."""
    texts = value if isinstance(value, dict) else {}
    text = "\n".join(str(texts[key]) for key in ("tool_call_error", "output", "stderr", "stdout") if key in texts)
    return f"{text}\n{_NO_TERMINAL}" if "EOFError" in text else text
