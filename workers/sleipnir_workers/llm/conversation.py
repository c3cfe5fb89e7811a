"""The messages of a conversation: the first messages of a node, and the form in which they are sent (spec 2.7.1, 10.3).

Rules. A conversation starts with the node's instructions as system message, if any, and its prompt; it has no history.
The system message of a config.yaml agent is its system prompt (system_prompt.py).
Thinking in the text of a model's message is not sent back to the model.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph import placeholders
from sleipnir.graph.model import Json, LlmNode
from sleipnir.graph.template import TemplateError, render
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.llm import structured_output
from sleipnir_workers.llm.clients import ModelTraits
from sleipnir_workers.llm.document_prompt import with_documents
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.reply import Message
from sleipnir_workers.llm.system_prompt import system_prompt
from sleipnir_workers.machine.host import Host
from sleipnir_workers.tools.skills import skills_of

_WORD = re.compile(r"\w+")


def first_messages(node: LlmNode, execution: Execution, host: Host) -> list[Message]:
    """The first messages of the node's conversation. Raises NodeFailed: `template` when a template cannot be rendered,
    `tools` when the instructions list the agent's tools and these cannot be read."""
    loop = execution.graph.loop
    if loop is None:
        instructions = instructions_of(node, execution.state)
    else:
        instructions = system_prompt(node, loop, execution, host)
    prompt = with_documents(question(node, execution), execution)
    if node.output_schema is not None and instructions:
        instructions = structured_output.with_hint(instructions, node.output_schema)
    elif node.output_schema is not None:
        prompt = structured_output.with_hint(prompt, node.output_schema)
    system = "\n\n".join(text for text in (instructions, _about_skills(node, execution, host)) if text)
    return with_examples(node, chat(system, prompt))


def _about_skills(node: LlmNode, execution: Execution, host: Host) -> str:
    """The hint about skills for the model; empty if it can load none."""
    may_load = skills_of(node, execution.graph, host, execution.folder)
    return may_load.hint or "" if may_load is not None and may_load.available() else ""


def question(node: LlmNode, execution: Execution) -> str:
    """The prompt without search results from documents. Raises NodeFailed (`template`)."""
    return _rendered("prompt", node.prompt, execution.state)


def chat(system: str, user: str) -> list[Message]:
    """The messages of one question, with a system message unless `system` is empty."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*messages, user_message(user)]


def user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def with_examples(node: LlmNode, messages: Sequence[Message]) -> list[Message]:
    """The messages, with the node's examples after the system message."""
    at = 1 if messages and messages[0].get("role") == "system" else 0
    return [*messages[:at], *map(dict, node.few_shot or ()), *messages[at:]]


def tool_message(call_id: str, result: str) -> Message:
    """The result of one tool call. Every call of an answer needs a result before the next request."""
    return {"role": "tool", "tool_call_id": call_id, "content": result}


def capped(messages: Sequence[Message], most_bytes: int) -> list[Message]:
    """The messages, with tool results cut to `most_bytes`; 0: no limit (spec/coyote.md 2.3)."""
    return [_cut(message, most_bytes) for message in messages] if most_bytes else list(messages)


def _cut(message: Message, most_bytes: int) -> Message:
    content = message.get("content")
    if message.get("role") != "tool" or not isinstance(content, str):
        return message
    encoded = content.encode(errors="replace")
    if len(encoded) <= most_bytes:
        return message
    note = f"[cut: these are the first {most_bytes:,} of {len(encoded):,} bytes]"
    return {**message, "content": f"{note}\n{encoded[:most_bytes].decode(errors='ignore')}"}


def as_sent(messages: Sequence[Message], traits: ModelTraits) -> list[dict[str, Any]]:
    """Copies of `messages` in the form that this model accepts; litellm may change its arguments."""
    sent = [_without_thinking(message) for message in messages]
    if traits.system_prompt_prefix:
        sent = _with_prefix(sent, traits.system_prompt_prefix)
    return _without_system_message(sent) if traits.no_system_message else sent


def refuse_too_long(messages: Sequence[Message], max_input_tokens: int | None) -> None:
    """Raise CallFailed if the estimated tokens exceed the limit."""
    if max_input_tokens is not None and estimated_tokens(messages) >= max_input_tokens:
        raise CallFailed(f"Exceed max_input_tokens limit ({max_input_tokens})")


def estimated_tokens(messages: Sequence[Message]) -> int:
    """Loki's estimate: a word is 1.3 tokens; a word that is not ASCII is half a token per character."""
    texts = [message["content"] for message in messages if isinstance(message.get("content"), str)]
    words = [word for text in texts for word in _WORD.findall(text)]
    return math.ceil(sum(1.3 if word.isascii() else max(1.0, len(word) * 0.5) for word in words))


def instructions_of(node: LlmNode, state: Mapping[str, Json]) -> str:
    """The instructions with their placeholders replaced. Raises NodeFailed (`template`)."""
    text = node.instructions or ""
    if node.placeholders is None:
        return _rendered("instructions", text, state)
    try:
        return placeholders.render(text, state)
    except placeholders.RenderedTextTooLong as error:
        raise NodeFailed(f"Failed to interpolate llm node instructions: {error}", "template") from None


def _rendered(what: str, template: str, state: Mapping[str, Json]) -> str:
    try:
        return render(template, state)
    except TemplateError as error:
        raise NodeFailed(f"Failed to interpolate llm node {what}: {error}", "template") from error


def _without_thinking(message: Message) -> dict[str, Any]:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        return dict(message)
    text = structured_output.without_thinking(content)
    return {**message, "content": text.lstrip() if text != content else text}


def _with_prefix(messages: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    if messages and messages[0].get("role") == "system":
        return [{**messages[0], "content": f"{prefix}\n\n{messages[0]['content']}"}, *messages[1:]]
    return [{"role": "system", "content": prefix}, *messages]


def _without_system_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The text of the system message is put before the text of the next message."""
    match messages:
        case [{"role": "system", "content": system}, {"role": "user", "content": str() as text} as user, *rest]:
            return [{**user, "content": f"{system}\n\n{text}"}, *rest]
        case [{"role": "system", "content": system}, *rest]:
            return [{"role": "user", "content": system}, *rest]
    return messages
