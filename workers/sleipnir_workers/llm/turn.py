"""One turn of an llm node with tools: the model is asked once, with all that was said before (spec 2.7.1, 4.5).

Rules. The model's message is delivered with the calls that it asks for; who runs each is decided here, and whether it
may run where it runs. A question that cannot be asked, and a call that is repeated again and again, are answered at
once. A turn without calls ends the node: its output is the text of all turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sleipnir.errors import NodeFailed, ToolFileError
from sleipnir.graph.model import Json, LlmNode
from sleipnir.graph.tools import MCP, USER_TOOLS, stem
from sleipnir.messages import ANSWER, MESSAGES, PERSON, QUEUE_OF, RESULT, ToolCall, VisitResult
from sleipnir.store.visits import Talk
from sleipnir.tools.declaration import Declaration
from sleipnir.tools.folder import tools_of
from sleipnir_workers import mcp
from sleipnir_workers.host import Host, here
from sleipnir_workers.llm import user_tools
from sleipnir_workers.llm.conversation import first_messages, tool_message
from sleipnir_workers.llm.permits import PutOff
from sleipnir_workers.llm.reply import Answer, Message
from sleipnir_workers.llm.session import Session
from sleipnir_workers.node import Visit, executor
from sleipnir_workers.tools import loops
from sleipnir_workers.tools.loops import Call


@executor("turn")
def run_turn(node: LlmNode, visit: Visit, host: Host | None = None) -> VisitResult:
    """Ask the model for its next message. `host` None means this process's. Raises VisitLost, nothing else."""
    host = host or here()
    session = Session(node, visit, host)
    try:
        told = first_messages(node, visit.state) if not visit.talk.told else json.loads(visit.talk.told)
        offered = offer(node, visit, host)
        if not session.open(tools=", ".join(node.tools or ())).traits.supports_function_calling:
            session.notes.append("the model cannot call functions (supports_function_calling), so no tools are offered")
            offered = []
        if node.max_iterations < 1:
            raise NodeFailed("llm node ended without producing output")
        session.begin(node.timeout)
        answer = session.ask([*told, *_said(visit.talk)], tools=offered)
    except PutOff as later:
        return session.put_off(later)
    except NodeFailed as error:
        return session.failure(error)
    if not answer.calls:
        return session.finish("\n".join(text for text in [*_texts(visit.talk), answer.text] if text))
    return _asks_for(node, answer, visit, told, session, host)


def offer(node: LlmNode, visit: Visit, host: Host) -> list[dict[str, Any]]:
    """What the model may call, in the form of OpenAI's `tools`. Raises NodeFailed (`tools`) for a name without a tool
    behind it."""
    names, graph = node.tools or [], visit.graph
    try:
        tools = tools_of(visit.folder, host.config_dir, graph)
    except ToolFileError as error:
        raise NodeFailed(f"the tools of agent '{visit.agent}' cannot be read: {error}", "tools") from error
    of_servers = {each["function"]["name"]: each for each in mcp.declarations(graph.mcp_servers)}
    provided = [*tools.names, *of_servers, *USER_TOOLS]
    offered: dict[str, dict[str, Any]] = {}
    for name in names:
        if name.startswith(MCP):
            offered |= _functions_of(name.removeprefix(MCP), visit)
        elif (found := tools.find(name)) is not None:
            offered[found.name] = _as_offered(found)
        elif name in of_servers:
            offered[name] = of_servers[name]
        elif name in USER_TOOLS:
            offered[name] = user_tools.declaration(name)
        else:
            listed = ", ".join(provided)
            raise NodeFailed(
                f"llm node references unknown tool '{stem(name)}'. Agent '{visit.agent}' provides: {listed}", "tools"
            )
    return list(offered.values())


def _functions_of(server: str, visit: Visit) -> dict[str, dict[str, Any]]:
    if server not in visit.graph.mcp_servers:
        raise NodeFailed(
            f"llm node references unknown MCP server '{MCP}{server}'. Agent '{visit.agent}' has MCP servers: "
            f"[{', '.join(visit.graph.mcp_servers)}]",
            "tools",
        )
    return {each["function"]["name"]: each for each in mcp.declarations([server])}


def _as_offered(tool: Declaration) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _said(talk: Talk) -> Iterator[Message]:
    """The messages of the turns before this one: each reply, and the results of its calls in their order."""
    for reply, results in talk.turns:
        message = json.loads(reply)
        yield message
        for call, result in zip(message["tool_calls"], results, strict=True):
            yield tool_message(call["id"], result)


def _texts(talk: Talk) -> list[str]:
    return [json.loads(reply).get("content") or "" for reply, _ in talk.turns]


def _asks_for(
    node: LlmNode, answer: Answer, visit: Visit, told: Sequence[Message], session: Session, host: Host
) -> VisitResult:
    """The result of a turn that asks for calls."""
    earlier = [Call(call["function"]["name"], call["function"]["arguments"]) for call in _earlier_calls(visit.talk)]
    delta: dict[str, Json] = {ANSWER: dict(answer.message)}
    if not visit.talk.told:
        delta[MESSAGES] = [dict(message) for message in told]
    calls = []
    for number, call in enumerate(answer.calls):
        refused = _refusal(node, call.name, call.arguments, earlier)
        if refused is not None:
            delta[f"{RESULT}.{number}"] = refused
        calls.append(ToolCall(call.id, call.name, "" if refused is not None else _where(call.name, host)))
        earlier.append(Call(call.name, call.arguments))
    return VisitResult(
        ok=True, delta=delta, usage=session.spent.usage(), notes=tuple(session.notes), calls=tuple(calls)
    )


def _earlier_calls(talk: Talk) -> Iterator[dict[str, Any]]:
    for reply, _ in talk.turns:
        yield from json.loads(reply)["tool_calls"]


def _refusal(node: LlmNode, name: str, arguments: str, earlier: Sequence[Call]) -> Json | None:
    """What the model reads at once of a call that shall not run. Of tools of files and servers, the worker that would
    run the call looks whether the node may make it."""
    if looping := loops.alert(earlier, Call(name, arguments)):
        return looping
    if name in USER_TOOLS and name not in (node.tools or ()):
        return {"tool_call_error": f"The tool '{name}' is not among the tools of this node."}
    if name in USER_TOOLS and (wrong := user_tools.problem(name, arguments)) is not None:
        return {"tool_call_error": f"User interaction failed: {wrong}"}
    return None


def _where(name: str, host: Host) -> str:
    if name in USER_TOOLS:
        return PERSON
    return host.settings.mcp_queue if mcp.split_name(name) is not None else QUEUE_OF["script"]
