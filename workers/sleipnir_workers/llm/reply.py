"""A model's answer, assembled from one message or from the pieces of a stream.

Rules. The pieces of a tool call share an index. A piece with another tool and another id at the same index starts a new
call, because some servers number all calls 0. A call without an id gets an id that is derived from its place. Of two
calls with the same id the later wins. Arguments are JSON text: an object is converted to text, a missing value to `{}`,
anything else is an error. Half a surrogate pair, which cannot be stored, becomes U+FFFD. litellm's objects are read by
the field names of OpenAI's protocol.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = Mapping[str, Any]
"""One message of a conversation in the form of OpenAI's protocol; JSON values only."""


@dataclass(frozen=True)
class RequestedCall:
    """One tool call of a model. `arguments` is text that should be a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """One answer of a model.

    `message` is the assistant's message as the next request must repeat it: text, calls and what some providers require
    back (thinking blocks, signatures). `finish` is why the model stopped (`stop`, `tool_calls`, `length`, ...).
    `cost_usd` is None if the price is unknown, never 0. `id` is the provider's id of the answer, if it has one.
    """

    text: str
    calls: tuple[RequestedCall, ...] = ()
    finish: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    message: Message = field(default_factory=dict)
    id: str = field(default="", compare=False)


class MalformedReply(Exception):
    """The provider's answer breaks the protocol; the message completes "the model's reply ..."."""


class AnswerCollector:
    """Assembles an answer: `add` every message or piece in order, then call `answer`."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self.id = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._thinking: list[dict[str, Any]] = []
        self._signatures: list[Any] = []
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there is no text, no call and no reasoning yet."""
        return not (self._text or self._calls or self._reasoning or self._thinking)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def add(self, piece: Any) -> str:
        """Add a message or a delta. Returns its text."""
        text = _text(part_of(piece, "content"))
        if text:
            self._text.append(text)
        # Some servers name it `reasoning`; litellm renames it in its own pieces.
        if isinstance(reasoning := part_of(piece, "reasoning_content") or part_of(piece, "reasoning"), str):
            self._reasoning.append(reasoning)
        for block in part_of(piece, "thinking_blocks") or ():
            self._add_thinking(_plain(block))
        if isinstance(fields := part_of(piece, "provider_specific_fields"), Mapping):
            self._signatures.extend(fields.get("thought_signatures") or ())
        for place, call in enumerate(part_of(piece, "tool_calls") or ()):
            self._add_call(call, place)
        return text

    def answer(self, place: str, **usage: Any) -> Answer:
        """The answer. `place` identifies it within the conversation, for ids of calls without one; `usage` has
        fields of Answer. Raises MalformedReply for an invalid call."""
        text = storable("".join(self._text))
        calls: dict[str, tuple[RequestedCall, dict[str, Any]]] = {}
        for number, partial_call in enumerate(self._calls):
            call = partial_call.complete(f"{place}:{number}")
            calls.pop(call.id, None)
            calls[call.id] = call, partial_call.extra
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
        if calls:
            message["tool_calls"] = [_as_message(call, extra) for call, extra in calls.values()]
        message |= self._provider_fields(with_reasoning=bool(calls))
        requested = tuple(call for call, _ in calls.values())
        return Answer(text, requested, self.finish, message=message, id=storable(self.id), **usage)

    def _provider_fields(self, *, with_reasoning: bool) -> dict[str, Any]:
        """The fields that providers require back. Reasoning only with calls: some providers refuse it elsewhere."""
        fields: dict[str, Any] = {}
        if with_reasoning and self._reasoning:
            fields["reasoning_content"] = storable("".join(self._reasoning))
        if self._thinking:
            fields["thinking_blocks"] = [{key: storable(value) for key, value in b.items()} for b in self._thinking]
        if self._signatures:
            fields["provider_specific_fields"] = {"thought_signatures": list(self._signatures)}
        return fields

    def _add_thinking(self, block: dict[str, Any]) -> None:
        """A thinking block arrives in pieces; the last one has the signature."""
        last = self._thinking[-1] if self._thinking else None
        continues = (
            last is not None and last.get("type") == block.get("type") == "thinking" and not last.get("signature")
        )
        if last is None or not continues:
            self._thinking.append({name: value for name, value in block.items() if value is not None})
            return
        last["thinking"] = (last.get("thinking") or "") + (block.get("thinking") or "")
        if block.get("signature"):
            last["signature"] = block["signature"]

    def _add_call(self, piece: Any, place: int) -> None:
        index = part_of(piece, "index")
        index = index if isinstance(index, int) else place
        call = self._at.get(index)
        if call is None or call.is_another(part_of(piece, "id"), part_of(part_of(piece, "function"), "name")):
            call = self._at[index] = _Call()
            self._calls.append(call)
        call.add(piece)


@dataclass
class _Call:
    """A tool call during assembly."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    wrong_type: str | None = None

    def is_another(self, id_: Any, name: Any) -> bool:
        return bool(name and id_ and self.id and id_ != self.id)

    def add(self, piece: Any) -> None:
        function = part_of(piece, "function")
        self.id = self.id or str(part_of(piece, "id") or "")
        name = str(part_of(function, "name") or "")
        if name != self.name:  # some servers repeat it in every piece
            self.name += name
        self._add_arguments(part_of(function, "arguments"))
        if isinstance(fields := part_of(piece, "provider_specific_fields"), Mapping) and "thought_signature" in fields:
            self.extra["provider_specific_fields"] = {"thought_signature": fields["thought_signature"]}

    def _add_arguments(self, arguments: Any) -> None:
        if isinstance(arguments, str):
            self.arguments.append(arguments)
        elif isinstance(arguments, Mapping):
            self.arguments.append(json.dumps(arguments, ensure_ascii=False))
        elif arguments is not None:
            self.wrong_type = type(arguments).__name__

    def complete(self, place: str) -> RequestedCall:
        name = storable(self.name)
        if not name:
            raise MalformedReply("calls a tool without a name")
        if self.wrong_type is not None:
            raise MalformedReply(
                f"calls '{name}' with arguments that are neither text nor an object, but {self.wrong_type}"
            )
        arguments = storable("".join(self.arguments))
        return RequestedCall(
            storable(self.id) or _derived_id(place, name), name, arguments if arguments.strip() else "{}"
        )


def storable(value: Any) -> Any:
    """`value`; in a text, two adjacent halves of a surrogate pair become their character, single halves U+FFFD."""
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _as_message(call: RequestedCall, extra: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function, **extra}


def _derived_id(place: str, name: str) -> str:
    return "call_" + hashlib.sha256(f"{place}:{name}".encode()).hexdigest()[:24]


def _text(content: Any) -> str:
    """The text of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        return content
    parts: Iterable[Any] = content if isinstance(content, list) else ()
    return "".join(part for part in (part_of(each, "text") for each in parts) if isinstance(part, str))


def part_of(thing: Any, name: str) -> Any:
    """A field of an object of litellm or of plain data; None without it."""
    if type(thing) is dict or isinstance(
        thing, Mapping
    ):  # the first test is the most frequent case, and ten times faster
        return thing.get(name)
    return getattr(thing, name, None)


def _plain(thing: Any) -> dict[str, Any]:
    return dict(thing) if isinstance(thing, Mapping) else dict(thing.model_dump())
