"""Asking a model server with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sleipnir.testing import ModelServer


@dataclass(frozen=True)
class Answer:
    """What came back over HTTP."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)

    @property
    def message(self) -> Any:
        return self.data["choices"][0]["message"]

    @property
    def error(self) -> str:
        return str(self.data["error"]["message"])

    @property
    def events(self) -> list[str]:
        """What a stream's events hold, without the `data: `."""
        return [event.removeprefix("data: ") for event in self.text.split("\n\n") if event]

    @property
    def chunks(self) -> list[Any]:
        """The chunks of a stream that ended as it should."""
        assert self.events[-1] == "[DONE]"
        return [json.loads(event) for event in self.events[:-1]]


def post(server: ModelServer, content: str, path: str = "/v1/chat/completions") -> Answer:
    return _exchange(server, "POST", path, content)


def get(server: ModelServer, path: str) -> Answer:
    return _exchange(server, "GET", path)


def ask(server: ModelServer, *messages: Any, **fields: Any) -> Answer:
    """One chat completion; a text is what the user says."""
    said = [{"role": "user", "content": message} if isinstance(message, str) else message for message in messages]
    return post(server, json.dumps({"model": "m", "messages": said or [{"role": "user", "content": "hi"}], **fields}))


def turns(prompt: str, *calls: tuple[str, str]) -> list[dict[str, Any]]:
    """A conversation in which the model made these calls, one per turn, and each was answered: (tool, result)."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for number, (tool, result) in enumerate(calls, 1):
        call = {"id": f"c{number}", "type": "function", "function": {"name": tool, "arguments": "{}"}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": result},
        ]
    return messages


def _exchange(server: ModelServer, method: str, path: str, content: str | None = None) -> Answer:
    connection = http.client.HTTPConnection(str(urlsplit(server.url).netloc), timeout=60)
    try:
        connection.request(method, path, content, {"Authorization": "Bearer k"})
        response = connection.getresponse()
        return Answer(response.status, dict(response.headers), response.read().decode())
    finally:
        connection.close()
