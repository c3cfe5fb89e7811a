"""One turn of an llm node with tools: one call of the model with the conversation so far (spec 2.7.1, 4.5).

Rules. The model's message is delivered with its tool calls. This module decides where each call runs; the worker that
runs it decides whether it may run. The turn itself answers invalid questions to a person, invalid calls about agents,
endlessly repeated calls, and calls of the todo list and of skills. A turn without calls ends the node, unless an agent
with an unfinished todo list continues by itself. The output is the text of all turns.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from sleipnir.errors import NodeFailed, ToolFileError
from sleipnir.graph.model import Json, LlmNode, ToolsNode
from sleipnir.graph.tools import (
    MCP,
    MESSAGE_TOOLS,
    OWN_TOOLS,
    SKILL_TOOLS,
    SPAWN_TOOLS,
    TODO_TOOLS,
    USER_TOOLS,
    present,
    stem,
    todo_tools,
)
from sleipnir.messages import AGENTS, ANSWER, FOLLOW_UP, MESSAGES, PERSON, QUEUE_OF, RESULT, ToolCall, VisitResult
from sleipnir.runs.conversation import StoredConversation
from sleipnir.tools.declaration import Declaration
from sleipnir.tools.folder import tools_of
from sleipnir_workers import mcp
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.execution.registry import executor
from sleipnir_workers.llm import message_input, session_history, spawn_tools, todo, user_tools
from sleipnir_workers.llm.continuation import Continuation, continuation
from sleipnir_workers.llm.conversation import capped, first_messages, question, tool_message, user_message
from sleipnir_workers.llm.dialogue import Dialogue
from sleipnir_workers.llm.reply import Answer, Message
from sleipnir_workers.llm.todo import TodoList
from sleipnir_workers.machine.host import Host, this_host
from sleipnir_workers.tools import repeated_calls, skills
from sleipnir_workers.tools.repeated_calls import PastCall
from sleipnir_workers.tools.skills import Skill, Skills, skills_of, with_grants

_NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({"type": "object", "properties": {}})

NO_SKILLS: Final[Mapping[str, Skill]] = MappingProxyType({})

NO_FUNCTIONS = "the model cannot call functions (supports_function_calling), so no tools are offered"
"""A line of narration."""

ESCALATIONS = "__escalation_notification"
"""The name of the call in whose result a model reads that child runs have questions."""


@executor("turn")
def run_turn(node: LlmNode, execution: Execution, host: Host | None = None) -> VisitResult:
    """Call the model for its next message. `host` None means this process's. Raises only VisitLost."""
    host = host or this_host()
    dialogue = Dialogue(node, execution, host)
    try:
        if execution.talk.told:
            start = json.loads(execution.talk.told)
        else:
            start = session_history.with_history(first_messages(node, execution, host), execution.talk.history)
        conversation = [*start, *_earlier_turns(execution.talk)]
        may_load = skills_of(node, execution.graph, host, execution.caller_dir or execution.cwd or execution.folder)
        loaded = {} if may_load is None else skills.loaded_in(conversation)
        offered = offer(node, execution, host, may_load, loaded)
        if not dialogue.open(tools=", ".join(node.tools or ())).traits.supports_function_calling:
            dialogue.notes.append(NO_FUNCTIONS)
            offered = []
        if node.max_iterations < 1:
            raise NodeFailed("llm node ended without producing output")
        dialogue.begin(node.timeout)
        if execution.stream_writer is not None:
            execution.stream_writer.begin("\n".join(filter(None, _earlier_texts(execution.talk))))
        answer = dialogue.ask(capped(skills.for_model(conversation, loaded), dialogue.result_bytes), tools=offered)
    except PutOff as later:
        return dialogue.put_off(later)
    except NodeFailed as error:
        return dialogue.failure(error)
    if answer.calls:
        todos = _Todos(execution, conversation, has_functions=bool(offered))
        local_tools: list[_Todos | _SkillCalls] = [
            _SkillCalls(may_load, loaded, {each["function"]["name"] for each in offered}),
            todos,
        ]
        return _turn_with_calls(node, answer, execution, start, dialogue, host, local_tools)
    if offered and (further := _further(answer, execution, conversation)) is not None:
        return _continued_turn(answer, execution, start, dialogue, further)
    texts = [*_earlier_texts(execution.talk), answer.text]
    result = dialogue.finish("\n".join(text for text in texts if text))
    result = message_input.with_reply(node, execution, result, answer, None)
    if execution.session is None or not result.ok:
        return result
    first = [*start[:-1], user_message(question(node, execution))]
    later_messages = [*_earlier_turns(execution.talk), answer.message]
    addition = session_history.session_addition(execution, first, later_messages, dialogue, host)
    return replace(result, said=addition, usage=dialogue.spent.usage(), notes=tuple(dialogue.notes))


def offer(
    node: LlmNode,
    execution: Execution,
    host: Host,
    may_load: Skills | None = None,
    loaded: Mapping[str, Skill] = NO_SKILLS,
) -> list[dict[str, Any]]:
    """The tools that the model may call, in the form of OpenAI's `tools`, with those of the `loaded` skills. Raises
    NodeFailed (`tools`) for a name without a tool."""
    graph, granted = with_grants(execution.graph, may_load, [tool for each in loaded.values() for tool in each.tools])
    executing = graph.nodes.get(node.tools_node or "")
    declaring = executing if isinstance(executing, ToolsNode) else None
    names = declaring.names if node.tools is None and declaring is not None else node.tools or []
    todo_names = todo_tools(graph)
    try:
        tools = tools_of(execution.folder, host.functions_dir, graph)
    except ToolFileError as error:
        raise NodeFailed(f"the tools of agent '{execution.agent}' cannot be read: {error}", "tools") from error
    server_functions = {each["function"]["name"]: each for each in mcp.declarations(graph.mcp_servers)}
    agent_tools = (*MESSAGE_TOOLS, *(SPAWN_TOOLS if graph.can_spawn_agents else ()))
    provided = [*tools.names, *server_functions, *USER_TOOLS, *agent_tools, *todo_names]
    offered: dict[str, dict[str, Any]] = {}
    for name in names:
        if declaring is not None and (own := declaring.declared(name)) is not None:
            offered[name] = _function(name, own.description, own.schema or _NO_ARGUMENTS)
        elif name.startswith(MCP):
            offered |= _functions_of(name.removeprefix(MCP), execution)
        elif name == OWN_TOOLS:
            offered |= {each.name: _offered_tool(each) for each in tools.declarations if each.agent}
        elif name in todo_names:
            offered[name] = todo.declaration(name)
        elif present(name) in agent_tools:
            offered[name] = spawn_tools.declaration(name)
        elif (tool := tools.find(name)) is not None:
            offered[tool.name] = _offered_tool(tool)
        elif name in server_functions:
            offered[name] = server_functions[name]
        elif present(name) in USER_TOOLS:
            offered[name] = user_tools.declaration(name)
        else:
            listed = ", ".join(provided)
            raise NodeFailed(
                f"llm node references unknown tool '{stem(name)}'. Agent '{execution.agent}' provides: {listed}",
                "tools",
            )
    if may_load is not None:
        offered |= {name: skills.declaration(name) for name in SKILL_TOOLS}
        offered |= {tool.name: _offered_tool(tool) for name in granted if (tool := tools.find(name)) is not None}
        servers = dict.fromkeys(server for each in loaded.values() for server in each.servers)
        offered |= {each["function"]["name"]: each for each in mcp.declarations(servers)}
    return list(offered.values())


def _functions_of(server: str, execution: Execution) -> dict[str, dict[str, Any]]:
    if server not in execution.graph.mcp_servers:
        raise NodeFailed(
            f"llm node references unknown MCP server '{MCP}{server}'. Agent '{execution.agent}' has MCP servers: "
            f"[{', '.join(execution.graph.mcp_servers)}]",
            "tools",
        )
    return {each["function"]["name"]: each for each in mcp.declarations([server])}


def _offered_tool(tool: Declaration) -> dict[str, Any]:
    return _function(tool.name, tool.description, tool.parameters)


def _function(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": dict(parameters)},
    }


def _earlier_texts(talk: StoredConversation) -> list[str]:
    """What the model has said in the turns before this one."""
    return [json.loads(reply).get("content") or "" for reply, _ in talk.turns]


def _earlier_turns(talk: StoredConversation) -> Iterator[Message]:
    """The messages of the turns before this one: each reply, then the results of its calls in their order, or the
    follow-up message. A notification is the result of an additional call, which the model has not made."""
    for number, (reply, results) in enumerate(talk.turns):
        message = json.loads(reply)
        calls = message.get("tool_calls") or []
        if (announced := talk.announced.get(number)) is not None:
            # Providers require ids of calls that are unique within a conversation.
            id_ = "escalation_check" if number == min(talk.announced) else f"escalation_check_{number}"
            calls = [*calls, {"id": id_, "type": "function", "function": {"name": ESCALATIONS, "arguments": "{}"}}]
            message, results = {**message, "tool_calls": calls}, (*results, announced)
        yield message
        for call, result in zip(calls, results, strict=True):
            yield tool_message(call["id"], result)
        if number in talk.follow_ups:
            yield json.loads(talk.follow_ups[number])


class _Todos:
    """The todo list of an agent during the calls of a turn."""

    def __init__(self, execution: Execution, conversation: Sequence[Message], *, has_functions: bool) -> None:
        self._agent, self._has_functions = execution.graph.loop, has_functions
        self._enabled = bool(todo_tools(execution.graph))
        self._list = TodoList.of(conversation) if self._enabled else TodoList()

    def answer(self, name: str, arguments: str) -> Json | None:
        """The result of a call for the model; None: not a call of a todo tool. Graphs have no todo tools."""
        if self._agent is None or name not in TODO_TOOLS:
            return None
        if not self._has_functions:
            return {"tool_call_error": todo.NO_FUNCTIONS}
        if not self._enabled:
            return {"tool_call_error": todo.NOT_ENABLED}
        self._list, result = self._list.after(name, arguments)
        return result


class _SkillCalls:
    """The skills of a node during the calls of a turn."""

    def __init__(self, may_load: Skills | None, loaded: Mapping[str, Skill], offered: Collection[str]) -> None:
        self._may_load, self._loaded, self._offered = may_load, loaded, offered

    def answer(self, name: str, arguments: str) -> Json | None:
        """The result of a call for the model; None: not about skills. Tools of a skill run only after it is loaded."""
        if name in SKILL_TOOLS:
            if self._may_load is None:
                return {"error": "Skills are disabled in this context"}
            result = self._may_load.answer(name, arguments, self._loaded)
            self._loaded = skills.after(self._loaded, result)
            return result
        if self._may_load is None or name in self._offered or not self._is_granted(name):
            return None
        return {"tool_call_error": f"The tool '{name}' belongs to a skill that is not loaded; see skill__list."}

    def _is_granted(self, name: str) -> bool:
        assert self._may_load is not None
        _, server = mcp.split_name(name) or ("", None)
        return stem(name) in self._may_load.grants() or server in self._may_load.servers()


def _turn_with_calls(
    node: LlmNode,
    answer: Answer,
    execution: Execution,
    start: Sequence[Message],
    dialogue: Dialogue,
    host: Host,
    local_tools: Sequence[_Todos | _SkillCalls],
) -> VisitResult:
    """The result of a turn with tool calls."""
    earlier = [
        PastCall(call["function"]["name"], call["function"]["arguments"]) for call in _earlier_calls(execution.talk)
    ]
    delta = _stored_reply(answer, execution, start)
    calls = []
    for number, call in enumerate(answer.calls):
        result = _refusal(
            node, call.name, call.arguments, earlier, repeated_calls.CHILD if execution.depth else repeated_calls.ROOT
        )
        for each in local_tools:
            if result is None:
                result = each.answer(call.name, call.arguments)
        if result is not None:
            delta[f"{RESULT}.{number}"] = result
        calls.append(ToolCall(call.id, call.name, "" if result is not None else _queue_of(call.name, host)))
        earlier.append(PastCall(call.name, call.arguments))
    return VisitResult(
        ok=True, delta=delta, usage=dialogue.spent.usage(), notes=tuple(dialogue.notes), calls=tuple(calls)
    )


def _further(answer: Answer, execution: Execution, conversation: Sequence[Message]) -> Continuation | None:
    """The continuation of an agent after a reply without calls; None: it ends."""
    if execution.graph.loop is None or not execution.graph.loop.auto_continue:
        return None
    return continuation(execution.graph.loop, execution.talk, answer.text, TodoList.of(conversation))


def _continued_turn(
    answer: Answer, execution: Execution, start: Sequence[Message], dialogue: Dialogue, further: Continuation
) -> VisitResult:
    """The result of a turn without calls after which the agent continues."""
    delta = _stored_reply(answer, execution, start) | {FOLLOW_UP: dict(further.message)}
    return VisitResult(ok=True, delta=delta, usage=dialogue.spent.usage(), notes=(further.note,), goes_on=True)


def _stored_reply(answer: Answer, execution: Execution, start: Sequence[Message]) -> dict[str, Json]:
    """The stored part of a reply, in the first turn with the first messages."""
    first: dict[str, Json] = {} if execution.talk.told else {MESSAGES: [dict(message) for message in start]}
    return {ANSWER: dict(answer.message), **first}


def _earlier_calls(talk: StoredConversation) -> Iterator[dict[str, Any]]:
    for reply, _ in talk.turns:
        yield from json.loads(reply).get("tool_calls") or ()


def _refusal(
    node: LlmNode, name: str, arguments: str, earlier: Sequence[PastCall], patience: repeated_calls.RepeatRule
) -> Json | None:
    """The immediate result of a call that does not run; None: it runs. For tools of files and servers, the worker that
    runs the call checks whether the node may make it."""
    if looping := repeated_calls.alert(earlier, PastCall(name, arguments), patience):
        return looping
    tool, allowed = present(name), present(name) in map(present, node.tools or ())
    if tool in USER_TOOLS and not allowed:
        return {"tool_call_error": f"The tool '{name}' is not among the tools of this node."}
    if tool in USER_TOOLS and (problem := user_tools.problem(name, arguments)) is not None:
        return {"tool_call_error": f"User interaction failed: {problem}"}
    if tool in (*MESSAGE_TOOLS, *SPAWN_TOOLS):
        problem = spawn_tools.problem(name, arguments) if allowed else spawn_tools.NOT_ENABLED
        return None if problem is None else {"tool_call_error": f"Supervisor tool failed: {problem}"}
    return None


def _queue_of(name: str, host: Host) -> str:
    if present(name) in USER_TOOLS:
        return PERSON
    if present(name) in (*MESSAGE_TOOLS, *SPAWN_TOOLS):
        return AGENTS
    return host.settings.mcp_queue if mcp.split_name(name) is not None else QUEUE_OF["script"]
