"""Messages in the state of a graph written in Python: their classes, and the reducer `add_messages`.

The state holds their JSON form, as graphs in YAML do: `{"role", "content", ...}`. Nodes get objects of these classes.
spec/langgraph-api.md 12 has the rules.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypedDict

REMOVE_ALL_MESSAGES: Final = "__remove_all__"

ROLES: Final[Mapping[str, str]] = {
    "user": "human", "human": "human", "assistant": "ai", "ai": "ai", "system": "system", "developer": "system",
    "tool": "tool", "remove": "remove",
}  # fmt: skip
"""The type of a message, by its role in JSON or in a pair."""


@dataclass
class BaseMessage:
    """One message. `content` is text, or a list of parts."""

    type: ClassVar[str] = ""
    role: ClassVar[str] = ""

    content: Any = ""
    id: str | None = None
    name: str | None = None
    additional_kwargs: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Its JSON form."""
        known = {"role": self.role, "content": self.content, "id": self.id, "name": self.name}
        return {key: value for key, value in known.items() if value is not None} | self.additional_kwargs


@dataclass
class HumanMessage(BaseMessage):
    """What a user wrote."""

    type: ClassVar[str] = "human"
    role: ClassVar[str] = "user"


@dataclass
class SystemMessage(BaseMessage):
    """Instructions for the model."""

    type: ClassVar[str] = "system"
    role: ClassVar[str] = "system"


@dataclass
class AIMessage(BaseMessage):
    """What a model wrote, and the tools it calls: `{"name", "args", "id"}` each."""

    type: ClassVar[str] = "ai"
    role: ClassVar[str] = "assistant"

    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | ({"tool_calls": self.tool_calls} if self.tool_calls else {})


@dataclass
class ToolMessage(BaseMessage):
    """The result of a tool call."""

    type: ClassVar[str] = "tool"
    role: ClassVar[str] = "tool"

    tool_call_id: str = ""

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"tool_call_id": self.tool_call_id}


@dataclass
class RemoveMessage(BaseMessage):
    """As an update: removes the message with its id; with REMOVE_ALL_MESSAGES all earlier ones."""

    type: ClassVar[str] = "remove"
    role: ClassVar[str] = "remove"


AnyMessage: TypeAlias = HumanMessage | AIMessage | SystemMessage | ToolMessage

CLASSES: Final[Mapping[str, type[BaseMessage]]] = {
    kind.type: kind for kind in (HumanMessage, AIMessage, SystemMessage, ToolMessage, RemoveMessage)
}

_FIELDS: Final = ("content", "id", "name", "tool_calls", "tool_call_id")


def message_of(value: Any) -> BaseMessage:
    """A message of what programs write: a message, a text (of the user), `(role, text)`, or `{"role", "content"}`.
    Raises ValueError."""
    if isinstance(value, BaseMessage):
        return value
    if isinstance(value, str):
        return HumanMessage(value)
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str):
        return _class_of(value[0])(value[1])
    if isinstance(value, Mapping) and (role := value.get("role", value.get("type"))) is not None:
        own = {name: value[name] for name in _FIELDS if name in value}
        kind = _class_of(str(role))
        more = {key: item for key, item in value.items() if key not in {*_FIELDS, "role", "type"}}
        fields = {name: item for name, item in own.items() if name in kind.__dataclass_fields__}
        if "tool_calls" in fields:
            fields["tool_calls"] = [_tool_call(call) for call in fields["tool_calls"] or ()]
        if fields.get("content", "") is None:  # a provider's message that only calls tools
            fields["content"] = ""
        return kind(**fields, additional_kwargs=more)
    if hasattr(value, "content") and getattr(value, "type", None) in CLASSES:  # of another library
        fields = {name: getattr(value, name) for name in _FIELDS if getattr(value, name, None)}
        return message_of({"role": value.type, **fields})
    raise ValueError(f"{value!r} is no message: write a message, a text, (role, text), or {{'role', 'content'}}")


def _tool_call(call: Any) -> Any:
    """A tool call with its arguments as an object, also one in the form of OpenAI's protocol."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    try:
        args = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        args = {"__arguments__": arguments}
    return {"name": function.get("name"), "args": args, "id": call.get("id"), "type": "tool_call"}


def _class_of(role: str) -> type[BaseMessage]:
    kind = ROLES.get(role)
    if kind is None:
        raise ValueError(f"Unexpected message type: '{role}'. Use one of {', '.join(ROLES)}")
    return CLASSES[kind]


def messages_of(value: Any) -> list[BaseMessage]:
    """One message, or a list of them, with ids."""
    values = value if isinstance(value, list) else [value]
    messages = [message_of(item) for item in values]
    for message in messages:
        if message.id is None:
            message.id = str(uuid.uuid4())
    return messages


def add_messages(left: Any, right: Any) -> list[BaseMessage]:
    """The messages `left`, with `right` added: a message with the id of an earlier one replaces it, a RemoveMessage
    removes it. Raises ValueError for the removal of an unknown one."""
    messages, added = messages_of(left if left is not None else []), messages_of(right if right is not None else [])
    for index, message in enumerate(added):
        if isinstance(message, RemoveMessage) and message.id == REMOVE_ALL_MESSAGES:
            messages, added = [], [*_after_last_clear(added[index + 1 :])]
            break
    by_id: dict[str | None, BaseMessage] = {message.id: message for message in messages}
    for message in added:
        if not isinstance(message, RemoveMessage):
            by_id[message.id] = message
        elif by_id.pop(message.id, None) is None:
            raise ValueError(f"Attempting to delete a message with an ID that doesn't exist ('{message.id}')")
    return list(by_id.values())


def _after_last_clear(messages: Sequence[BaseMessage]) -> Iterable[BaseMessage]:
    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], RemoveMessage) and messages[index].id == REMOVE_ALL_MESSAGES:
            return messages[index + 1 :]
    return messages


class MessagesState(TypedDict):
    """A state with messages; derive from it to add keys."""

    messages: Annotated[list[AnyMessage], add_messages]
