"""The summary that takes the place of older messages, for the model (spec/graph-package.md F51).

Rules. A turn is what follows a message of the user; the newest one is the current turn. When the messages before it
that no summary covers are too many, the model first writes a summary of all of them but the last turn, and of the
summary before. It is written to the state with the reply, so later visits and turns send it and go on from it; the
messages stay in the state. Each run tries it once: if it fails, all messages are sent until the next turn.

A summary holds for the messages that it was made of. When the newest of these is no longer in the state, it is dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir.graph.message_keys import SUMMARY, as_openai
from sleipnir.graph.model import Json
from sleipnir.graph.template import TemplateError, render
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.llm.conversation import chat, estimated_tokens
from sleipnir_workers.llm.dialogue import Dialogue
from sleipnir_workers.llm.message_input import ModelInput, is_user, systems_at_front
from sleipnir_workers.llm.reply import Message
from sleipnir_workers.llm.session_history import record, summarization_prompt
from sleipnir_workers.machine.host import Host

DEFAULT_TEMPLATE = """\
This is a summary of the older part of this conversation:

<summary>
{{summary}}
</summary>

The newer messages follow."""


def summarised(execution: Execution, sent: ModelInput, dialogue: Dialogue, host: Host) -> ModelInput:
    """What is sent, with a summary in the place of older messages if there are too many. Raises PutOff, VisitLost,
    and NodeFailed (`template`)."""
    rules = execution.graph.summary
    if rules is None or sent.is_one_shot:  # the others are the history
        return sent
    messages, front, writes = sent.messages, systems_at_front(sent.messages), dict(sent.writes)
    stored = execution.state.get(SUMMARY) or {}
    covered = _covered(messages, stored)
    if not covered:
        stored = {"run": stored.get("run")}
    if stored.get("run") != execution.run:
        end = _end(execution, messages, max(front, covered), host)
        if end is not None:
            made = _made(dialogue, str(stored.get("text") or ""), messages[max(front, covered) : end], rules.max_words)
            if made is not None:
                stored, covered = {"text": made, "messages": end, "last": _digest(messages[end - 1])}, end
            stored = writes[SUMMARY] = {**stored, "run": execution.run}
    if not covered:
        return replace(sent, writes=writes)
    try:
        text = render(rules.template or DEFAULT_TEMPLATE, {"summary": stored["text"]})
    except TemplateError as error:  # too large: its placeholder is checked before
        raise NodeFailed(f"session.summary.template: {error}", "template") from error
    return replace(sent, messages=[*messages[:front], *messages[max(front, covered) :]], writes=writes, summary=text)


def _covered(messages: Sequence[Message], stored: Mapping[str, Any]) -> int:
    """How many messages at the front the stored summary has the place of; 0: it is of other messages."""
    count, last = stored.get("messages"), stored.get("last")
    if not stored.get("text") or not isinstance(count, int):
        return 0
    if 0 < count <= len(messages) and _digest(messages[count - 1]) == last:
        return count
    # Messages before it were added or removed. Without an id its like may be anywhere.
    ends = range(len(messages), 0, -1)
    return next((end for end in ends if messages[end - 1].get("id") and _digest(messages[end - 1]) == last), 0)


def _digest(message: Json) -> str:
    return hashlib.sha256(json.dumps(message, sort_keys=True).encode()).hexdigest()[:32]


def _end(execution: Execution, messages: Sequence[Message], begin: int, host: Host) -> int | None:
    """Where the messages end that a new summary is of. None: those from `begin` on are not too many."""
    turns = [place for place in range(begin, len(messages)) if is_user(messages[place])]
    earlier = messages[begin : turns[-1]] if turns else []
    most = execution.graph.max_history
    if most is None:
        is_too_long = estimated_tokens(earlier) >= host.settings.compression_threshold
    else:
        is_too_long = len(earlier) > most
    return turns[-2] if is_too_long and len(turns) > 1 and turns[-2] > begin else None


def _made(dialogue: Dialogue, before: str, messages: Sequence[Message], words: int) -> str | None:
    """The summary of these messages and of the summary `before`. None: there is none, and a note says why."""
    text = record([as_openai(message) for message in messages])
    if before:
        text = f"Summary of what was said before:\n{before}\n\n{text}"
    try:
        summary = dialogue.aside(chat(summarization_prompt(words), text), puts_off=True).strip()
    except NodeFailed as error:
        dialogue.notes.append(f"the history is not summarised: {dialogue.clean(str(error))}")
        return None
    if not summary:
        dialogue.notes.append("the history is not summarised: the model said nothing")
        return None
    dialogue.notes.append(f"the history is summarised: {len(messages)} messages")
    return summary
