"""What a request for a completion asks: the agent, the conversation, how the answer is sent.

Rule. What a client may send and an agent cannot do (tools of the client, several choices, formats of answers, pictures)
is refused. What only tunes a model (`temperature`, `max_tokens`, ...) belongs to the agent, and is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from sleipnir_console.problems import HttpProblem
from sleipnir_console.strict_model import AgentName

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
_SYSTEM: Final = frozenset(("system", "developer"))
_REFUSED: Final = ("tools", "functions", "logprobs", "audio", "web_search_options")


class _Part(BaseModel):
    """A part of a message. Only texts are taken."""

    model_config = ConfigDict(extra="ignore")

    type: str
    text: str = ""


class ChatMessage(BaseModel):
    """One message of the conversation."""

    model_config = ConfigDict(extra="ignore")

    role: Role
    content: str | list[_Part] | None = None

    @property
    def text(self) -> str:
        """Raises HttpProblem for what is no text."""
        if not isinstance(self.content, list):
            return self.content or ""
        for part in self.content:
            if part.type not in ("text", "refusal"):
                raise HttpProblem("invalid-request", f"messages have texts alone, and no part {part.type[:40]!r}")
        return "\n".join(part.text for part in self.content)

    @property
    def as_said(self) -> dict[str, str]:
        """The message in the form of the state key `messages`."""
        return {"role": "system" if self.role in _SYSTEM else self.role, "content": self.text}


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class ChatRequest(BaseModel):
    """The body of a request for a completion."""

    model_config = ConfigDict(extra="allow")

    model: AgentName
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    user: str | None = Field(default=None, max_length=1_000)
    n: int | None = 1
    response_format: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises HttpProblem for what an agent cannot do."""
        for name in _REFUSED:
            if (self.model_extra or {}).get(name):
                raise HttpProblem("invalid-request", f"{name!r} is not supported: an agent has its own tools and form")
        if self.n not in (None, 1):
            raise HttpProblem("invalid-request", "'n' is not supported: a run has one answer")
        if (self.response_format or {}).get("type", "text") != "text":
            raise HttpProblem("invalid-request", "'response_format' is not supported: an agent has its own form")
        if self.messages[-1].role != "user" or not self.messages[-1].text.strip():
            raise HttpProblem("invalid-request", "the last of 'messages' is a text of the user: it is what is answered")
        if any(message.role in ("tool", "function") for message in self.messages):
            raise HttpProblem("invalid-request", "results of a client's tools are not supported")

    @property
    def prompt(self) -> str:
        """The text to answer."""
        return self.messages[-1].text

    @property
    def earlier(self) -> Sequence[ChatMessage]:
        """What was said before it."""
        return self.messages[:-1]

    @property
    def has_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def transcript(self) -> str:
        """The whole conversation as the prompt of an agent that takes no messages."""
        if not self.earlier:
            return self.prompt
        said = "\n\n".join(f"{'system' if m.role in _SYSTEM else m.role}: {m.text}" for m in self.earlier)
        return f"The conversation so far:\n\n{said}\n\nAnswer this message of the user:\n\n{self.prompt}"


def conversation_of(user: str, caller: str, namespace: str) -> str:
    """The name of the conversation that a caller has with its user, which is no other caller's."""
    text = "\0".join((namespace, caller, user))
    return f"user-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"
