"""The built-in keys of a state with messages (spec/graph-package.md F04, F05).

A graph of version sleipnir/1 has them if it declares `messages` with the type messages. The tool calls of a message
have one of two forms: that of OpenAI's protocol, and that of messages in Python graphs, `{"name", "args", "id"}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sleipnir.graph.agent_names import folder_of
from sleipnir.graph.model import Json, StateField

MESSAGES: Final = "messages"
USER_INPUT: Final = "user_input"
ONE_SHOT: Final = "one_shot_messages"
ONE_SHOT_BY_NODE: Final = "one_shot_messages_by_node"
LAST_RESPONSE: Final = "last_response"
LAST_RESPONSE_ID: Final = "last_response_id"
LAST_TOOL_RESPONSE: Final = "last_tool_response"
NODE_RESPONSES: Final = "node_responses"
SUMMARY: Final = "_summary"

BUILT_IN: Final[Mapping[str, StateField]] = {
    USER_INPUT: StateField(type="string", description="the user's text, until an llm node has sent it"),
    ONE_SHOT: StateField(type="messages", reducer="overwrite", description="the whole input of the next llm node"),
    ONE_SHOT_BY_NODE: StateField(type="object", reducer="by_node", description="the whole input of llm nodes, by node"),
    LAST_RESPONSE: StateField(type="string", description="the text of the last node with a response"),
    LAST_RESPONSE_ID: StateField(type="string", description="the model provider's id of that response"),
    LAST_TOOL_RESPONSE: StateField(type="string", description="the result of the last tool call, as JSON text"),
    NODE_RESPONSES: StateField(type="object", reducer="merge", description="the last response of each node"),
}
"""The keys that a graph with messages has without declaring them."""

SUMMARIES: Final[Mapping[str, StateField]] = {
    SUMMARY: StateField(type="object", reducer="overwrite", description="the summary of the oldest messages"),
}
"""Those that it has besides if its session has a summary."""


@dataclass(frozen=True)
class MessageCall:
    """One tool call of a message. `arguments` is JSON text, as its model wrote it."""

    id: str
    name: str
    arguments: str = "{}"


_ID: Final = re.compile(r"([^/]+)/\d+/(?:user|reply|\d+)(?:/(.+))?")


@dataclass(frozen=True)
class Author:
    """Who added a message: a node of the run `run`, of the child agent `agent`; empty: of the agent at the top."""

    run: str
    agent: str = ""

    @classmethod
    def of(cls, run: str, agent: str, depth: int) -> Author:
        """`depth` is the number of runs above. Graphs that nodes of an agent run are part of the agent."""
        return cls(run, folder_of(agent) if depth else "")


def message_id(author: Author, seq: int, what: str) -> str:
    """The id of a message that the visit `seq` adds; `what` is `user`, `reply`, or the number of a tool call."""
    return f"{author.run}/{seq}/{what}" + (f"/{author.agent}" if author.agent else "")


def author_of(message: Json) -> Author | None:
    """Who added a message, by its id. None: a person, a script, or a function."""
    id_ = message.get("id") if isinstance(message, dict) else None
    found = _ID.fullmatch(id_) if isinstance(id_, str) else None
    return None if found is None else Author(found[1], found[2] or "")


def responses(node: str, text: str, response_id: str = "") -> dict[str, Json]:
    """What the response of a node writes. `response_id` empty: it is not of one call of a model."""
    return {LAST_RESPONSE: text, LAST_RESPONSE_ID: response_id, NODE_RESPONSES: {node: text}}


def example_problem(example: Json) -> str | None:
    """Why a value is no example of an llm node: a text of a user, or of the model. None: it is one."""
    if not isinstance(example, dict) or example.keys() != {"role", "content"}:
        return "an example must have a `role` and a `content`, and nothing else"
    if example["role"] not in ("user", "assistant"):
        return f"'{example['role']}' is no role of an example: there are user and assistant"
    return None if isinstance(example["content"], str) and example["content"] else "the content of an example is a text"


def declares_messages(state: Mapping[str, StateField]) -> bool:
    """Whether the declared keys have messages."""
    field = state.get(MESSAGES)
    return field is not None and field.type == "messages" and field.reducer in (None, "messages")


def calls_of(message: Json) -> list[MessageCall]:
    """The tool calls of a message; empty for what is no message of a model."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _call(call: Mapping[str, Json]) -> MessageCall:
    function = call.get("function")
    if isinstance(function, dict):
        name, arguments = function.get("name"), function.get("arguments")
    else:
        name, arguments = call.get("name"), call.get("args")
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    return MessageCall(str(call.get("id") or ""), str(name or ""), text)


def as_openai(message: Mapping[str, Json]) -> dict[str, Json]:
    """The message in the form of OpenAI's protocol, without its id."""
    role = {"human": "user", "ai": "assistant"}.get(str(message.get("role")), message.get("role"))
    sent = {**{name: value for name, value in message.items() if name != "id"}, "role": role}
    if calls := message.get("tool_calls"):
        sent["tool_calls"] = [_as_openai(call) for call in calls]
    return sent


def _as_openai(call: Mapping[str, Json]) -> Mapping[str, Json]:
    if "function" in call:
        return call
    own = _call(call)
    return {"id": own.id, "type": "function", "function": {"name": own.name, "arguments": own.arguments}}


def with_repaired_calls(message: Mapping[str, Json]) -> dict[str, Json]:
    """A message in the form of OpenAI's protocol, whose calls all have a JSON object as arguments."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    own = [(call, _call(call)) for call in calls if isinstance(call, dict)]
    repaired = [
        {**call, "function": {"name": each.name, "arguments": repaired_arguments(each.arguments)}} for call, each in own
    ]
    return {**message, "tool_calls": repaired}


def repaired_arguments(text: str) -> str:
    """JSON text of an object: the text itself if it is one; else what is left of it when its strings and brackets are
    closed; else an empty object."""
    if _is_object(text):
        return text
    closed = _closed(text)
    return closed if _is_object(closed) else "{}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _closed(text: str) -> str:
    """JSON text that was cut off, with what closes it."""
    closers: list[str] = []
    in_string = is_escaped = False
    for character in text:
        if in_string:
            in_string = character != '"' or is_escaped
            is_escaped = character == "\\" and not is_escaped
        elif character == '"':
            in_string = True
        elif character in "{[":
            closers.append("}" if character == "{" else "]")
        elif character in "}]" and closers:
            closers.pop()
    ended = text[:-1] if is_escaped else text
    return (ended + '"' if in_string else ended.rstrip().rstrip(",")) + "".join(reversed(closers))


def tool_calls_are_last(messages: Json) -> bool:
    """Whether the last message of a list has tool calls."""
    return isinstance(messages, list) and bool(messages) and bool(calls_of(messages[-1]))


def last_with_calls(messages: Sequence[Json]) -> int | None:
    """The index of the newest message with tool calls that no later message of a user follows. None: there is none."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if calls_of(message):
            return index
        if isinstance(message, dict) and message.get("role") in ("user", "human"):
            return None
    return None
