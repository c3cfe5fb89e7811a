"""The two versions of A2A that are spoken, 1.0 and 0.3: the names of methods, and the forms of tasks and messages.

Inside, a task has the form of 0.3. That of 1.0 is the JSON of protocol buffers: other words for states and roles, and
members in the place of `kind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Method = Literal["send", "stream", "get", "cancel", "follow", "push"]
Json = dict[str, Any]


@dataclass(frozen=True)
class A2aError(Exception):
    """An error of JSON-RPC."""

    code: int
    message: str

    def __str__(self) -> str:
        return self.message


UNREADABLE: Final = -32700
BAD_REQUEST: Final = -32600
NO_METHOD: Final = -32601
BAD_PARAMETERS: Final = -32602
NO_TASK: Final = -32001
NOT_CANCELABLE: Final = -32002
NO_PUSH: Final = -32003
UNSUPPORTED: Final = -32004
NO_CONTENT_TYPE: Final = -32005
NO_VERSION: Final = -32009

_OLD: Final[Mapping[str, Method]] = {
    "message/send": "send", "message/stream": "stream", "tasks/get": "get", "tasks/cancel": "cancel",
    "tasks/resubscribe": "follow", "tasks/pushNotificationConfig/set": "push",
    "tasks/pushNotificationConfig/get": "push", "tasks/pushNotificationConfig/list": "push",
    "tasks/pushNotificationConfig/delete": "push",
}  # fmt: skip
_NEW: Final[Mapping[str, Method]] = {
    "SendMessage": "send", "SendStreamingMessage": "stream", "GetTask": "get", "CancelTask": "cancel",
    "SubscribeToTask": "follow", "CreateTaskPushNotificationConfig": "push",
    "GetTaskPushNotificationConfig": "push", "ListTaskPushNotificationConfigs": "push",
    "DeleteTaskPushNotificationConfig": "push",
}  # fmt: skip


@dataclass(frozen=True)
class ProtocolCall:
    """What a request calls, and whether it speaks 1.0."""

    method: Method
    is_new: bool

    @classmethod
    def of(cls, name: Any) -> ProtocolCall:
        """Raises A2aError."""
        if isinstance(name, str):
            if name in _NEW:
                return cls(_NEW[name], True)
            if name in _OLD:
                return cls(_OLD[name], False)
        raise A2aError(NO_METHOD, "there is no such method")

    def task(self, task: Json) -> Json:
        """A task as the result of `get` and `cancel`."""
        return _new_task(task) if self.is_new else task

    def sent(self, task: Json) -> Json:
        """A task as the result of `send`."""
        return {"task": _new_task(task)} if self.is_new else task

    def event(self, event: Json) -> Json:
        """One result of a stream: a task, or what changed of it."""
        if not self.is_new:
            return event
        match event["kind"]:
            case "task":
                return {"task": _new_task(event)}
            case "status-update":
                plain = {name: value for name, value in event.items() if name not in ("kind", "final")}
                return {"statusUpdate": {**plain, "status": _new_status(event["status"])}}
        plain = {name: value for name, value in event.items() if name != "kind"}
        return {"artifactUpdate": {**plain, "artifact": _new_artifact(event["artifact"])}}


def _new_task(task: Json) -> Json:
    plain = {name: value for name, value in task.items() if name != "kind"}
    artifacts = [_new_artifact(artifact) for artifact in task["artifacts"]]
    return {**plain, "status": _new_status(task["status"]), "artifacts": artifacts}


def _new_status(status: Json) -> Json:
    made = {**status, "state": f"TASK_STATE_{status['state'].upper().replace('-', '_')}"}
    if (message := status.get("message")) is not None:
        plain = {name: value for name, value in message.items() if name != "kind"}
        made["message"] = {**plain, "role": "ROLE_AGENT", "parts": list(map(_new_part, message["parts"]))}
    return made


def _new_artifact(artifact: Json) -> Json:
    return {**artifact, "parts": list(map(_new_part, artifact["parts"]))}


def _new_part(part: Json) -> Json:
    return {name: value for name, value in part.items() if name != "kind"}
