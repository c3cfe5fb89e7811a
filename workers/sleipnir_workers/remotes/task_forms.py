"""What a remote agent says, in one form for both versions of the protocol. All of it comes from outside: what has not
the right form is refused, or left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.errors import NodeFailed

MOST_NAME: Final = 200
"""Characters of the id of a task or a context that are accepted."""
GATE: Final = "gate"
"""The member by which servers of Sleipnir say which question of a task is answered."""


@dataclass(frozen=True)
class RemoteTask:
    """A task, or as one that has ended the message that came in its place. `state` is in the words of 0.3; `text` and
    `data` are those of its status; `artifacts` those of the task. `question` names what it asks."""

    id: str
    context: str | None
    state: str
    text: str = ""
    data: tuple[Any, ...] = ()
    artifacts: tuple[Mapping[str, Any], ...] = ()
    question: str = ""
    gate: str | None = None

    @property
    def output(self) -> str:
        """The texts of its artifacts, or of its last message if there are none."""
        texts = [text for artifact in self.artifacts for text in artifact["texts"]]
        return "\n".join(texts) if texts else self.text

    @property
    def values(self) -> dict[str, Any]:
        """The objects in its data, as one."""
        pieces = [piece for artifact in self.artifacts for piece in artifact["data"]] or list(self.data)
        return {key: value for piece in pieces if isinstance(piece, dict) for key, value in piece.items()}


def sent_message(
    id_: str,
    text: str,
    data: Any = None,
    *,
    is_new: bool,
    task: str | None,
    context: str | None,
    gate: str | None = None,
) -> dict[str, Any]:
    """The parameters of a message that is answered at once."""
    parts: list[dict[str, Any]] = [{"text": text}] if text or data is None else []
    parts += [] if data is None else [{"data": data}]
    if not is_new:
        parts = [{"kind": next(iter(part)), **part} for part in parts]
    message: dict[str, Any] = {"messageId": id_, "role": "ROLE_USER" if is_new else "user", "parts": parts}
    message |= {} if is_new else {"kind": "message"}
    message |= {} if task is None else {"taskId": task}
    message |= {} if context is None else {"contextId": context}
    message |= {} if gate is None else {"metadata": {GATE: gate}}
    modes = ["text/plain", "application/json"]
    at_once = {"returnImmediately": True} if is_new else {"blocking": False}
    return {"message": message, "configuration": {"acceptedOutputModes": modes, **at_once}}


def sent_result(result: Any, *, is_new: bool) -> RemoteTask:
    """What a server has returned for a message. Raises NodeFailed."""
    given = _object(result)
    if is_new:
        if "task" in given:
            return task_of(given["task"])
        return _of_message(_object(given.get("message")))
    return _of_message(given) if given.get("kind") == "message" else task_of(given)


def task_of(result: Any) -> RemoteTask:
    """A task, in the form of either version. Raises NodeFailed."""
    given = _object(result)
    status = _object(given.get("status"))
    message = status.get("message")
    message = message if isinstance(message, dict) else {}
    text, data = _content(message)
    listed = given.get("artifacts")
    artifacts = [_artifact(each) for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    metadata = message.get("metadata")
    gate = metadata.get(GATE) if isinstance(metadata, dict) else None
    gate = gate if isinstance(gate, str) and len(gate) <= MOST_NAME else None
    question = gate or str(message.get("messageId") or "")[:MOST_NAME] or str(status.get("timestamp") or "")[:MOST_NAME]
    id_ = _name(given.get("id"))
    if id_ is None:
        raise NodeFailed("the remote agent has returned a task without an id", "protocol")
    state = _state(status.get("state"))
    return RemoteTask(
        id_, _name(given.get("contextId")), state, "\n".join(text), tuple(data), tuple(artifacts), question, gate
    )


def _of_message(message: Mapping[str, Any]) -> RemoteTask:
    if not isinstance(message.get("parts"), list):
        raise NodeFailed("the remote agent has returned neither a task nor a message", "protocol")
    text, data = _content(message)
    return RemoteTask("", _name(message.get("contextId")), "completed", "\n".join(text), tuple(data))


def _artifact(artifact: Mapping[str, Any]) -> dict[str, Any]:
    text, data = _content(artifact)
    return {
        "name": str(artifact.get("name") or artifact.get("artifactId") or "")[:MOST_NAME],
        "texts": text,
        "data": data,
    }


def _content(holder: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    """The texts and the data of parts; files are left out."""
    parts = holder.get("parts")
    texts: list[str] = []
    data: list[Any] = []
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict) and "data" in part:
            data.append(part["data"])
    return texts, data


def _state(state: Any) -> str:
    if not isinstance(state, str):
        return "unknown"
    return state[:60].removeprefix("TASK_STATE_").lower().replace("_", "-")


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MOST_NAME else None


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise NodeFailed("the remote agent has returned something that is no task", "protocol")
    return value
