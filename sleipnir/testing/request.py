"""One request to the model server, with its parsed parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARKER = r"\[conversation ([^\]\s]+)\]"
"""Identifies a conversation: a test writes `[conversation c17]` into its prompt, and the key is `c17`."""


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool in a request. `name` is None if the conversation does not hold the call."""

    id: str
    name: str | None
    text: str


@dataclass(frozen=True)
class Request:
    """One recorded call. `conversation` is the marker's key, None without a marker; `at_s` Unix seconds."""

    path: str
    authorization: str | None
    body: Mapping[str, Any]
    conversation: str | None = None
    at_s: float = 0.0

    @property
    def model(self) -> str:
        return str(self.body.get("model"))

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body.get("messages", []))

    @property
    def system(self) -> str | None:
        """The first system message's text; None if there is none."""
        return next((text_of(message) for message in self.messages if message.get("role") == "system"), None)

    @property
    def prompt(self) -> str:
        """The last message's text; empty if there is none."""
        return text_of(self.messages[-1]) if self.messages else ""

    @property
    def turn(self) -> int:
        """The number of the requested answer in its conversation, counted from 1."""
        return 1 + [message.get("role") for message in self.messages].count("assistant")

    @property
    def tools(self) -> list[str]:
        """Names of the tools that the model may call."""
        return [tool["function"]["name"] for tool in self.body.get("tools") or []]

    @property
    def tool_results(self) -> list[ToolResult]:
        """The results of the tool calls of the last turn, in the order of the messages."""
        names: dict[str, str] = {}
        results: list[ToolResult] = []
        for message in self.messages:
            if message.get("role") == "tool":
                key = str(message.get("tool_call_id"))
                results.append(ToolResult(key, names.get(key), text_of(message)))
                continue
            results = []
            for call in message.get("tool_calls") or []:
                names[call["id"]] = call["function"]["name"]
        return results

    @property
    def inputs(self) -> list[str]:
        """The texts to embed."""
        given = self.body.get("input", [])
        return [given] if isinstance(given, str) else [str(text) for text in given]

    @property
    def query(self) -> str:
        """The query of a rerank request."""
        return str(self.body.get("query", ""))

    @property
    def documents(self) -> list[str]:
        """The texts to rerank."""
        given = self.body.get("documents", [])
        return [text_of({"content": [each]}) if isinstance(each, dict) else str(each) for each in given]

    @property
    def wants_stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def wants_usage(self) -> bool:
        """Whether the last chunk of the stream must hold the token counts."""
        return bool((self.body.get("stream_options") or {}).get("include_usage"))


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text: its content, or the texts of its parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return "" if content is None else str(content)


def conversation_of(messages: list[dict[str, Any]], marker: str) -> str | None:
    """The key in the first message that holds the marker, a pattern with one group."""
    matches = (re.search(marker, text_of(message)) for message in messages)
    return next((match[1] for match in matches if match), None)
