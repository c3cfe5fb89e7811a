"""Rules about messages in the state: the built-in keys, operations on messages, and llm nodes that send them."""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.graph import placeholders
from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.check_state import check_schema
from sleipnir.graph.findings import KeyPath, suggestion
from sleipnir.graph.message_keys import BUILT_IN, MESSAGES, SUMMARIES, SUMMARY, example_problem
from sleipnir.graph.model import LlmNode, MapNode, ToolsNode
from sleipnir.graph.reducers import OPERATIONS, is_message, is_operation, operation_problem
from sleipnir.graph.template import PLACEHOLDER
from sleipnir.graph.tools import MCP, OWN_TOOLS, stem

_OF_LOOPS = ("user__", "agent__", "todo__", "skill__")


def every_built_in_key_keeps_its_type(case: Case) -> None:
    """The nodes of the language write them."""
    for key, own in BUILT_IN.items() if case.graph.has_messages else ():
        declared = case.graph.state[key]
        if (declared.type, declared.reducer) != (own.type, own.reducer) and declared.type != "any":
            message = f"state key '{key}' belongs to the messages of the state, and is of type {own.type}"
            case.findings.error(("state", key), message, "Remove its declaration, or give your key another name.")


def every_message_operation_exists(case: Case) -> None:
    for node_id, node in case.graph.nodes.items():
        for key, steps in node.value_updates.items():
            if case.graph.reducer_of(key) != "messages":
                continue
            for index, step in enumerate(steps) if isinstance(steps, list) else ((None, steps),):
                path = ("nodes", node_id, "state_updates", key, *(() if index is None else (index,)))
                if is_operation(step):
                    wrong = operation_problem(step)
                else:
                    wrong = None if is_message(step) else "a message has a `role`"
                if wrong is not None:
                    hint = f"Write `{{op: NAME, ...}}` with one of {', '.join(OPERATIONS)}, or `{{role, content}}`."
                    case.findings.error(path, wrong, hint)


def every_example_is_a_message(case: Case) -> None:
    for node, path in case.nodes(LlmNode):
        for index, example in enumerate(node.few_shot or ()):
            if (wrong := example_problem(example)) is not None:
                hint = 'Write `{role: user, content: "..."}` and `{role: assistant, content: "..."}` in turn.'
                case.findings.error((*path, "few_shot", index), wrong, hint)


def no_item_of_a_map_sends_messages(case: Case) -> None:
    """An item writes only its result, so the reply would be in no conversation."""
    for node, path in case.nodes(MapNode):
        for body in node.body:
            below = case.graph.nodes.get(body)
            if isinstance(below, LlmNode) and below.input is not None:
                message = f"map '{node.id}' runs llm node '{body}', which has no `prompt`: an item cannot add messages"
                case.findings.error(path, message, f"Give '{body}' a prompt.")


def every_setting_of_a_model_is_given_once(case: Case) -> None:
    for node, path in case.nodes(LlmNode):
        for key in ("temperature", "top_p"):
            if node.generation is not None and None not in (getattr(node, key), getattr(node.generation, key)):
                message = f"'{key}' and 'generation.{key}' set the same value"
                case.findings.error((*path, "generation", key), message, "Keep one of the two.")


def no_placeholder_reads_another_scope(case: Case) -> None:
    for node, path in case.nodes(LlmNode):
        for name in placeholders.scoped(node.instructions or "") if node.placeholders is not None else ():
            message = f"'{{{name}}}' reads a scope that runs do not have"
            hint = (
                "Placeholders read keys of the state, {key}, also with a scope: {user:key}, {app:key}, {temp:key}, "
                "{invocation:key}; with ? if it may miss."
            )
            case.findings.error((*path, "instructions"), message, hint)


def every_history_has_messages(case: Case) -> None:
    """Both keys are about the messages of earlier turns."""
    if MESSAGES in case.graph.state:
        return
    hint = "Declare `messages: messages` under `state`, or remove the key."
    if case.graph.history != "full":
        case.findings.error(("history",), "'history' has no effect: the state has no messages", hint)
    if case.graph.max_history is not None:
        message = "'session.max_history' has no effect: the state has no messages"
        case.findings.error(("session", "max_history"), message, hint)


def every_summary_can_be_sent(case: Case) -> None:
    """A summary is of messages of earlier turns, and its template holds it."""
    graph, rules, path = case.graph, case.graph.summary, ("session", "summary")
    if rules is None:
        return
    if graph.state.get(SUMMARY, SUMMARIES[SUMMARY]) != SUMMARIES[SUMMARY]:
        message = f"state key '{SUMMARY}' belongs to `session.summary`"
        case.findings.error(("state", SUMMARY), message, "Remove its declaration, or give your key another name.")
    if graph.history != "full":
        message = f"'session.summary' has no effect with `history: {graph.history}`: no earlier messages are sent"
        case.findings.error(path, message, "Remove one of the two.")
    elif not any(node.input not in (None, "one_shot") for node, _ in case.nodes(LlmNode)):
        hint = "Write `state: {messages: messages}`, and an llm node without `prompt`."
        case.findings.error(path, "'session.summary' has no effect: no llm node sends the messages", hint)
    if rules.template is not None and set(PLACEHOLDER.findall(rules.template)) != {"summary"}:
        message = "'session.summary.template' must hold `{{summary}}` and no other placeholder"
        case.findings.error((*path, "template"), message)


def every_tools_node_is_one(case: Case) -> None:
    """Where tool calls lead."""
    for node, path in case.nodes(LlmNode):
        if node.tools_node is None:
            continue
        if node.input is None:
            message = "an llm node with a prompt executes its tools itself, and has no `tools_node`"
            case.findings.error((*path, "tools_node"), message, "Remove its `prompt`: it then sends messages.")
        target = case.graph.nodes.get(node.tools_node)
        if target is not None and not isinstance(target, ToolsNode):
            message = f"'{node.tools_node}' in 'tools_node' is no node of type tools, but of type {target.kind}"
            case.findings.error((*path, "tools_node"), message)


def every_tools_node_has_messages(case: Case) -> None:
    for node, path in case.nodes(ToolsNode):
        if not case.graph.has_messages:
            message = f"tools node '{node.id}' reads the messages of the state, which this graph does not have"
            case.findings.error(path, message, "Write `state: {messages: messages}`.")
    for name, other in case.graph.nodes.items():
        if other.branch is not None and other.branch.tools is not None and not case.graph.has_messages:
            place = ("nodes", name, "branch", "tools")
            message = "'tools' never applies: the state of this graph has no messages"
            case.findings.warning(place, message, "Write `state: {messages: messages}`.")


def every_tool_of_a_tools_node_can_be_called(case: Case) -> None:
    for node, path in case.nodes(ToolsNode):
        for index, tool in enumerate(node.tools):
            name = tool if isinstance(tool, str) else tool.name
            if node.names.index(name) < index:
                case.findings.error((*path, "tools", index), f"tool '{name}' is listed twice", "Remove one of the two.")
            elif name.startswith(_OF_LOOPS):
                message = f"tool '{name}' needs an llm node with a prompt, which executes its tools itself"
                hint = "A tools node calls tools of files, of MCP servers, Python functions and external tools."
                case.findings.error((*path, "tools", index), message, hint)
            if not isinstance(tool, str) and tool.schema is not None:
                check_schema(case, tool.schema, (*path, "tools", index, "schema"), f"the schema of tool '{name}'")


def every_limited_tool_is_one_of_its_node(case: Case) -> None:
    """In groups and permissions. A tool is in one group."""
    for node, path in case.nodes(ToolsNode):
        grouped: set[str] = set()
        for number, group in enumerate(() if node.parallel is None else node.parallel.groups):
            place = (*path, "parallel", "groups", number, "tools")
            for name in group.tools:
                if name in grouped:
                    case.findings.error(place, f"tool '{name}' is in two groups", "Remove it from one of the two.")
                grouped.add(name)
                _check_listed(case, node, name, place)
        for name in node.permissions:
            _check_listed(case, node, name, (*path, "permissions", name))


def _check_listed(case: Case, node: ToolsNode, name: str, path: KeyPath) -> None:
    """A server's functions, and those of a tools file that is listed as a whole, have other names than the list."""
    if any(tool.startswith(MCP) or tool == OWN_TOOLS for tool in node.names) or name in map(stem, node.names):
        return
    case.findings.error(
        path, f"tool '{name}' is not in the tools of '{node.id}'", suggestion(name, node.names, "tools")
    )


RULES: Sequence[Rule] = (
    every_built_in_key_keeps_its_type,
    every_message_operation_exists,
    every_example_is_a_message,
    no_item_of_a_map_sends_messages,
    every_setting_of_a_model_is_given_once,
    no_placeholder_reads_another_scope,
    every_history_has_messages,
    every_summary_can_be_sent,
    every_tools_node_is_one,
    every_tools_node_has_messages,
    every_tool_of_a_tools_node_can_be_called,
    every_limited_tool_is_one_of_its_node,
)
