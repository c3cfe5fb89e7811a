"""What an llm node without a prompt sends: messages of the state (spec/graph-package.md F20), and what it adds to them.

Rules. The first that there is: the node's one-shot messages, the one-shot messages of all, the user's input, the
history. Nothing else is sent with one-shot messages; the user's input is sent after the history. Instructions become
the system message unless the first message is one; they are not stored. The reply and what precedes it are written as
operations on messages, so that those of parallel nodes add up in visit order; each message has an id that follows from
its visit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.history import sent_of
from sleipnir.graph.message_keys import (
    MESSAGES,
    ONE_SHOT,
    ONE_SHOT_BY_NODE,
    Author,
    as_openai,
    message_id,
    responses,
    with_repaired_calls,
)
from sleipnir.graph.model import Json, LlmNode
from sleipnir.graph.reducers import is_message
from sleipnir.messages import VisitResult
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.llm import structured_output
from sleipnir_workers.llm.conversation import instructions_of, with_examples
from sleipnir_workers.llm.reply import Answer, Message


@dataclass(frozen=True)
class ModelInput:
    """The messages to send. With the reply `before` is added to the messages of the state, and `writes` is written.
    `is_one_shot`: they are not the history. `summary` is the text that takes the place of older messages."""

    messages: Sequence[Message]
    before: Sequence[Json] = ()
    writes: Mapping[str, Json] = field(default_factory=dict)
    is_one_shot: bool = False
    summary: str | None = None


def chosen(node: LlmNode, execution: Execution) -> ModelInput:
    """What the node sends, without its instructions. Raises NodeFailed (`state`)."""
    if node.input in ("auto", "one_shot") and (one_shot := _one_shot(node, execution)) is not None:
        return one_shot
    history = sent_of(execution.graph, _messages(execution, MESSAGES), _author(execution), execution.agent)
    user = _value(execution, node.user_input_key) if node.input in ("auto", "user") else None
    if not isinstance(user, str | None):
        raise NodeFailed(f"state key '{node.user_input_key}' holds the user's input, so it must be text", "state")
    if user:
        return _with_user_input(node, execution, history, user)
    if not history:
        keys = {"history": "", "one_shot": "one-shot messages, ", "user": f"'{node.user_input_key}', "}
        sought = keys.get(node.input or "", f"one-shot messages, '{node.user_input_key}', ")
        raise NodeFailed(f"llm node '{node.id}' has nothing to send: {sought}'{MESSAGES}' are empty", "state")
    return ModelInput(history)


def with_instructions(node: LlmNode, execution: Execution, chosen: ModelInput) -> list[Message]:
    """The messages in the form of OpenAI's protocol, after the node's instructions. The summary is behind all system
    messages at the front. Raises NodeFailed (`template`)."""
    sent: list[Message] = [as_openai(message) for message in chosen.messages]
    if node.repair_calls:
        sent = [with_repaired_calls(message) for message in sent]
    text = instructions_of(node, execution.state)
    if node.output_schema is not None:
        text = structured_output.with_hint(text, node.output_schema)
    if text and not (sent and sent[0].get("role") == "system"):
        sent = [{"role": "system", "content": text}, *sent]
    whole = with_examples(node, sent)
    if chosen.summary is not None:
        whole.insert(systems_at_front(whole), {"role": "system", "content": chosen.summary})
    return whole


def systems_at_front(messages: Sequence[Message]) -> int:
    """How many messages of the system a list begins with."""
    return next((place for place, each in enumerate(messages) if each.get("role") != "system"), len(messages))


def with_reply(
    node: LlmNode, execution: Execution, result: VisitResult, answer: Answer, sent: ModelInput | None
) -> VisitResult:
    """The result of a node, with what its reply writes to the built-in keys; `sent` None: it has a prompt, and its
    conversation is its own."""
    if not result.ok or not execution.graph.has_messages:
        return result
    written = responses(node.id, answer.text, answer.id)
    if sent is not None:
        reply = {**answer.message, "id": _id(execution, "reply")}
        updates = result.delta.get(MESSAGES, [])
        written |= {MESSAGES: [*sent.before, reply, *(updates if isinstance(updates, list) else [updates])]}
        return replace(result, delta={**written, **sent.writes, **_without(result.delta, MESSAGES)})
    return replace(result, delta={**written, **result.delta})


def _without(delta: Mapping[str, Json], key: str) -> dict[str, Json]:
    return {name: value for name, value in delta.items() if name != key}


def _one_shot(node: LlmNode, execution: Execution) -> ModelInput | None:
    by_node = _value(execution, ONE_SHOT_BY_NODE)
    own = by_node.get(node.id) if isinstance(by_node, dict) else None
    messages = _checked(own, f"{ONE_SHOT_BY_NODE}['{node.id}']") if own else _messages(execution, ONE_SHOT)
    if not messages:
        return None
    clears: dict[str, Json] = {ONE_SHOT_BY_NODE: {node.id: []}} if own else {ONE_SHOT: []}
    last = messages[-1]
    before = _replacing(execution, _messages(execution, MESSAGES), last["content"]) if is_user(last) else []
    return ModelInput(messages, before, clears, is_one_shot=True)


def _with_user_input(node: LlmNode, execution: Execution, history: Sequence[Message], user: str) -> ModelInput:
    clears: dict[str, Json] = {node.user_input_key: ""}
    added: Message = {"role": "user", "content": user, "id": _id(execution, "user")}
    if not history or not is_user(history[-1]):
        return ModelInput([*history, added], [added], clears)
    last = history[-1]
    if last.get("content") == user:
        return ModelInput(history, (), clears)
    return ModelInput([*history[:-1], {**last, "content": user}], _replacing(execution, history, user), clears)


def _replacing(execution: Execution, history: Sequence[Message], content: Json) -> list[Json]:
    """The write that puts `content` into the last message of the user. A reducer of Python knows no operations."""
    last = next((message for message in reversed(history) if is_user(message)), None)
    if not execution.graph.is_state_graph:
        return [{"op": "replace_last_user", "content": content}]
    return [{**(last or {"role": "user", "id": _id(execution, "user")}), "content": content}]


def is_user(message: Message) -> bool:
    """Whether a message is of a user, in either form."""
    return message.get("role") in ("user", "human")


def _messages(execution: Execution, key: str) -> list[Message]:
    return _checked(_value(execution, key), key)


def _checked(value: Json, key: str) -> list[Message]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(map(is_message, value)):
        raise NodeFailed(f"state key '{key}' must be a list of messages, objects with a `role`", "state")
    return list(value)


def _value(execution: Execution, key: str) -> Any:
    return execution.state.get(key)


def _id(execution: Execution, what: str) -> str:
    return message_id(_author(execution), execution.seq, what)


def _author(execution: Execution) -> Author:
    return Author.of(execution.run, execution.agent, execution.depth)
