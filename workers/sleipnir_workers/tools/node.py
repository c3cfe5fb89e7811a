"""One call of a tool that a model has requested, as a visit: its result is for the model.

Rules. The node's `tools:` are enforced here, where the call runs: an invented name, or a tool that was not offered,
runs nothing. Tools of skills that the node may load run too; the turn has checked that their skill is loaded. A failure
is a result too; a question to a person is none (questions.py). The call is read from the model's own message; no API
key is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleipnir.errors import ConfigError, NodeFailed, ToolFileError
from sleipnir.graph.model import LlmNode, ToolNode, ToolsNode
from sleipnir.graph.tools import MCP
from sleipnir.messages import RESULT, VisitResult
from sleipnir.python_graph.interrupts import VisitAnswers
from sleipnir.runs.interrupts import answers_of
from sleipnir.tools.folder import tools_of
from sleipnir.tools.mcp_config import StdioServer
from sleipnir_workers import mcp
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.machine.agent_environment import without_secrets
from sleipnir_workers.machine.host import Host, this_host
from sleipnir_workers.tools import python_tools, results, timeouts, tool_callbacks
from sleipnir_workers.tools.call import answer
from sleipnir_workers.tools.place import Place
from sleipnir_workers.tools.repeated_calls import PastCall
from sleipnir_workers.tools.results import ToolOutcome, failed
from sleipnir_workers.tools.skills import Skills, skills_of, with_grants
from sleipnir_workers.tools.tool_node import run_own


@executor("tool")
def run_tool(node: LlmNode | ToolNode | ToolsNode, execution: Execution, host: Host | None = None) -> VisitResult:
    """Execute the call, or the function of a tool node. `host` None means this process's. Raises VisitLost,
    ProcessLost and NodeFailed (`config`)."""
    host = host or this_host()
    result = run_own(node, execution, host) if isinstance(node, ToolNode) else _permitted(node, execution, host)
    return without_secrets(result, execution.graph, execution.variables, host)


def _permitted(node: LlmNode | ToolsNode, execution: Execution, host: Host) -> VisitResult:
    """Execute this visit's call in the model's message, under the limits of its tool. Raises NodeFailed (`config`)."""
    assert execution.part is not None
    [(reply, _)] = execution.talk.turns
    requested = json.loads(reply)["tool_calls"][execution.part.call]
    if execution.permits is None:
        return _run_requested(node, execution, host, requested)
    caller, name = f"{execution.run}/{execution.seq}", requested["function"]["name"]
    try:
        with execution.permits.tool(caller, execution.attempt, name):
            return _run_requested(node, execution, host, requested)
    except PutOff as later:
        # A scheduler of an older release, which does not know `later_ms`, must see a failure, not a success.
        return VisitResult(ok=False, error=str(later), error_kind="limit", later_ms=later.until_ms)
    except ConfigError as error:
        raise NodeFailed(str(error), "config") from error


def _run_requested(
    node: LlmNode | ToolsNode, execution: Execution, host: Host, requested: Mapping[str, Any]
) -> VisitResult:
    call = PastCall(requested["function"]["name"], requested["function"]["arguments"])
    own = execution.callbacks
    if own is None or not own.has("tool"):
        return _executed(node, execution, call, host)
    return tool_callbacks.around(
        own, execution, requested["id"], call, lambda call: _executed(node, execution, call, host)
    )


def _executed(node: LlmNode | ToolsNode, execution: Execution, call: PastCall, host: Host) -> VisitResult:
    if isinstance(node, ToolsNode) and (tool := node.declared(call.name)) is not None and tool.call is not None:
        return python_tools.run(tool, call, execution, host)
    result = (
        _call_server(node, execution, call, host)
        if mcp.split_name(call.name)
        else _call_file(node, execution, call, host)
    )
    if result.question is not None:
        return VisitResult.asking(result.question)
    error = None if result.failure is None else f"tool '{call.name}' failed: {result.failure}"
    if error is not None and isinstance(node, ToolsNode):
        error = f"tool '{call.name}' failed: {results.message(result)}"
    value = results.storable(result.value)
    return VisitResult(ok=error is None, delta={RESULT: value}, error=error, error_kind=result.failure)


def _call_file(node: LlmNode | ToolsNode, execution: Execution, call: PastCall, host: Host) -> ToolOutcome:
    graph, granted = with_grants(execution.graph, _skills(node, execution, host))
    try:
        tools = tools_of(execution.folder, host.functions_dir, graph)
    except ToolFileError as error:
        return failed("tool_file", f"the tools of agent '{execution.agent}' cannot be read: {error}")
    place = Place.of_visit(execution, host)
    timeout_s = timeouts.seconds_of(node, execution.graph, host)
    allowed, answers = [*_names(node), *granted], VisitAnswers(call.name, answers_of(execution.talk.told))
    return answer(call, tools, place, allowed=allowed, timeout_s=timeout_s, answers=answers)


def _call_server(node: LlmNode | ToolsNode, execution: Execution, call: PastCall, host: Host) -> ToolOutcome:
    _, server = mcp.split_name(call.name) or ("", "")
    skills = _skills(node, execution, host)
    granted = set() if skills is None else skills.servers()
    if server not in granted and not {call.name, f"{MCP}{server}"} & set(_names(node)):
        return failed("not_allowed", f"The tool '{call.name}' is not among the tools of this node.")
    arguments = _object(call.arguments)
    if arguments is None:
        return failed("arguments", f"The call '{call.name}' has invalid arguments: a JSON object is needed.")
    try:
        servers = mcp.configured(host.functions_dir / "mcp.json", host.env, host.env_file)
    except ConfigError as error:
        return failed("tool_file", f"MCP servers cannot be reached: {error}")
    declared = servers.get(server)
    if isinstance(declared, StdioServer) and execution.scratch is None:
        # Not in a scratch folder: each run would start its own server, although all could share one.
        servers = {**servers, server: declared.started_in(execution.directory)}
    timeout_s = timeouts.seconds_of(node, execution.graph, host)
    value = mcp.answer(
        call.name, arguments, servers, mcp.process_connections(), timeout_s=timeout_s, lost=execution.lost
    )
    is_error = isinstance(value, dict) and "tool_call_error" in value
    return ToolOutcome(results.limited(value, host.settings.max_tool_result_bytes), "server" if is_error else None)


def _names(node: LlmNode | ToolsNode) -> list[str]:
    """The tools of files and servers that a node may call, as it spells them."""
    return [tool for tool in node.tools or () if isinstance(tool, str)]


def _skills(node: LlmNode | ToolsNode, execution: Execution, host: Host) -> Skills | None:
    return None if isinstance(node, ToolsNode) else skills_of(node, execution.graph, host, execution.folder)


def _object(arguments: Mapping[str, Any] | str) -> Mapping[str, Any] | None:
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None
