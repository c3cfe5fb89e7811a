"""The message of a client: texts, and data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sleipnir_console.agent_protocol.protocol_forms import BAD_PARAMETERS, NO_CONTENT_TYPE, NO_PUSH, A2aError

GATE = "gate"
"""The member of a message's metadata that says which question it answers."""


@dataclass(frozen=True)
class AgentMessage:
    """What a client says. `waits`: it wants the end of the task, or its question, and not only its id."""

    id: str
    text: str
    data: tuple[Any, ...] = ()
    task: str | None = None
    context: str | None = None
    gate: str | None = None
    waits: bool = True

    @classmethod
    def of(cls, parameters: Any) -> AgentMessage:
        """That of `send` and `stream`, in either version. Raises A2aError."""
        message = _object(_object(parameters, "params").get("message"), "message")
        configuration = _object(parameters.get("configuration") or {}, "configuration")
        if configuration.get("pushNotificationConfig") or configuration.get("taskPushNotificationConfig"):
            raise A2aError(NO_PUSH, "this server pushes no notifications: use tasks/get, or stream")
        if message.get("role") not in ("user", "ROLE_USER"):
            raise A2aError(BAD_PARAMETERS, "the role of a message must be that of a user")
        parts = message.get("parts")
        if not isinstance(parts, list) or not parts:
            raise A2aError(BAD_PARAMETERS, "a message must have parts")
        texts, data = [], []
        for part in parts:
            given = _object(part, "part")
            if isinstance(given.get("text"), str):
                texts.append(given["text"])
            elif "data" in given:
                data.append(_whole(given["data"]))
            else:
                raise A2aError(NO_CONTENT_TYPE, "parts are texts or data; files are not taken")
        metadata = _object(message.get("metadata") or {}, "metadata")
        return cls(
            _text(message, "messageId", is_required=True) or "",
            "\n".join(texts),
            tuple(data),
            _text(message, "taskId"),
            _text(message, "contextId"),
            _text(metadata, GATE),
            not configuration.get("returnImmediately") and configuration.get("blocking") is not False,
        )


def task_id_of(parameters: Any) -> str:
    """The `id` of a task. Raises A2aError."""
    return _text(_object(parameters, "params"), "id", is_required=True) or ""


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise A2aError(BAD_PARAMETERS, f"{name!r} must be an object")
    return value


def _text(given: Mapping[str, Any], name: str, *, is_required: bool = False) -> str | None:
    value = given.get(name)
    if value in (None, "") and not is_required:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise A2aError(BAD_PARAMETERS, f"{name!r} must be a text of at most 200 characters")
    return value


def _whole(value: Any) -> Any:
    """The value with integers for whole numbers: clients that use protocol buffers have only floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return {name: _whole(each) for name, each in value.items()} if isinstance(value, dict) else value
