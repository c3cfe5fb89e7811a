"""The replies of the model server, and their form in the OpenAI protocol: one object, or the chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sleipnir.testing.request import Request

STRICT: Mapping[str, Any] = {"extra": "forbid"}  # a misspelt field of a script file is an error


@dataclass(frozen=True)
class Call:
    """A tool call of the model. `arguments` given as text is sent unchanged, malformed or not.

    The default `id` is `call_<turn>_<number in the turn>`: a repeated request for a turn gets the same ids.
    """

    __pydantic_config__: ClassVar[Any] = STRICT

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None

    @property
    def arguments_text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Reply:
    """One answer: text, tool calls, or both; or a failure. It is streamed if the request asks for a stream."""

    __pydantic_config__: ClassVar[Any] = STRICT

    text: str | None = ""
    calls: Sequence[Call] = ()
    status: int = 200
    error: str = "scripted failure"
    """The provider's message when the status is not 200."""
    retry_after: float | str | None = None
    """The header Retry-After: seconds, or a date in HTTP's form."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """More headers, such as those for rate limits."""
    delay_s: float = 0.0
    """Latency: time until the first byte."""
    hang: bool = False
    """Nothing is sent until the server is released, for at most a minute."""
    stall: bool = False
    """The first half is sent; the rest waits as with `hang`."""
    close: Literal["before", "reset", "within"] | None = None
    """The connection is closed before any byte, reset before any byte, or closed after the first half."""
    body: str | None = None
    """Sent as the body, in place of the answer: for malformed JSON. Never streamed."""
    content_type: str | None = None
    garbage: str | None = None
    """Inserted in the middle of a stream, such as `data: {"half` or `data: {"error": ...}`."""
    piece_characters: int = 8
    """Characters of the text, or of a call's arguments, per chunk of a stream."""
    pause_s: float = 0.0
    """Time between the chunks of a stream."""
    input_tokens: int = 10
    output_tokens: int = 5
    model: str | None = None
    """The model named in the answer. None: the model of the request."""
    dimensions: int | None = None
    """The dimensions of embedding vectors. None: the server's."""
    finish: str | None = None
    """The finish reason. None: `tool_calls` if there are calls, else `stop`."""

    @property
    def content(self) -> str | None:
        """The text; None, as with providers, for calls without text."""
        return None if self.calls and not self.text else self.text

    @property
    def finish_reason(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")


def completion(reply: Reply, request: Request) -> dict[str, Any]:
    """The whole answer as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.calls:
        message["tool_calls"] = [
            {"id": key, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}}
            for key, call in _numbered(reply, request)
        ]
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    return {**_head(reply, request, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def chunks(reply: Reply, request: Request) -> list[dict[str, Any]]:
    """The answer as the chunks of a stream, in order."""
    head = _head(reply, request, "chat.completion.chunk")
    if request.wants_usage:
        head["usage"] = None
    finished = {"index": 0, "delta": {}, "finish_reason": reply.finish_reason}
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in _deltas(reply, request)]
    made = [{**head, "choices": [choice]} for choice in [*choices, finished]]
    if request.wants_usage:
        made.append({**head, "choices": [], "usage": _usage(reply)})
    return made


def failure(reply: Reply) -> dict[str, Any]:
    """The body of an answer whose status is not 200."""
    return {"error": {"message": reply.error, "type": "scripted", "code": str(reply.status)}}


def _deltas(reply: Reply, request: Request) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": None if reply.content is None else ""}
    for piece in _pieces(reply.content or "", reply.piece_characters):
        yield {"content": piece}
    for index, (key, call) in enumerate(_numbered(reply, request)):
        opening = {"id": key, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield {"tool_calls": [{"index": index, **opening}]}
        for piece in _pieces(call.arguments_text, reply.piece_characters):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str, characters: int) -> Iterator[str]:
    for start in range(0, len(text), characters):
        yield text[start : start + characters]


def _numbered(reply: Reply, request: Request) -> list[tuple[str, Call]]:
    turn = request.turn
    return [(call.id or f"call_{turn}_{number}", call) for number, call in enumerate(reply.calls, 1)]


def _head(reply: Reply, request: Request, kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-test", "object": kind, "created": 0, "model": reply.model or request.model}


def _usage(reply: Reply) -> dict[str, int]:
    total = reply.input_tokens + reply.output_tokens
    return {"prompt_tokens": reply.input_tokens, "completion_tokens": reply.output_tokens, "total_tokens": total}
