"""The history of a session in a conversation, and the messages that a run adds to it (spec 3.6).

Rules. The session's messages are inserted between the system message and the user's new message. The run adds that
message and all later ones, tool calls and results included. When a session reaches the threshold, the agent's model
writes a summary after its answer, and the summary replaces the session. If that fails, the session stays complete, and
the next answer tries again. The todo list survives as the calls that create it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import Json
from sleipnir.messages import SessionAddition
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.llm.conversation import chat, estimated_tokens, tool_message
from sleipnir_workers.llm.dialogue import Dialogue
from sleipnir_workers.llm.reply import Message
from sleipnir_workers.llm.todo import TodoList
from sleipnir_workers.machine.host import Host

_SUMMARIZATION_PROMPT = """\
You get the record of a conversation between a user and an assistant that has become too long to be kept. Write what
has to be known to go on with it as if nothing had been left out: what the user wants and has said about how, what was
found out and decided, what was done and with which result, what is still open. Keep names, numbers, paths and short
pieces of code as they are. Leave out greetings, repetitions and ways that led nowhere, unless one must not be tried
again. Write plain sentences, at most {n} words, in the language of the conversation, and nothing but the summary."""


def summarization_prompt(words: int) -> str:
    """The instructions for a summary of `words` words at most."""
    return _SUMMARIZATION_PROMPT.format(n=words)


SUMMARIZATION_PROMPT = summarization_prompt(400)

SUMMARY_CONTEXT_PROMPT = "This is a summary of our conversation so far:\n\n"

_MOST_CHARACTERS = 4_000
"""Of one message in the text to summarise: tool results may be longer than everything else."""


def with_history(first_messages: Sequence[Message], history: str) -> list[Message]:
    """`first_messages` with the session's messages (a JSON list) before the user's."""
    *system, user = first_messages
    return [*system, *(json.loads(history) if history else []), user]


def session_addition(
    execution: Execution, first_messages: Sequence[Message], later: Sequence[Message], dialogue: Dialogue, host: Host
) -> SessionAddition:
    """The messages that the run adds to its session. `later` are all messages after `first_messages`, the last answer
    included. Raises VisitLost."""
    before = [message for message in first_messages[:-1] if message["role"] != "system"]
    added = (first_messages[-1], *later)
    whole = [*before, *added]
    if estimated_tokens(whole) < _threshold(execution, host):
        return SessionAddition(added)
    try:
        summary = dialogue.aside(chat(SUMMARIZATION_PROMPT, record(whole))).strip()
    except NodeFailed as error:
        dialogue.notes.append(f"the session is not summarised: {dialogue.clean(str(error))}")
        return SessionAddition(added)
    if not summary:
        dialogue.notes.append("the session is not summarised: the model said nothing")
        return SessionAddition(added)
    dialogue.notes.append(f"the session is summarised: {len(whole)} messages")
    context = {"role": "user", "content": SUMMARY_CONTEXT_PROMPT + summary}
    return SessionAddition((context, *_calls_that_create(TodoList.of(whole))), instead=True)


def _calls_that_create(todos: TodoList) -> list[Message]:
    """An assistant's message whose calls create this list from an empty one, and the results of the calls."""
    if not todos.todos:
        return []
    wanted: list[tuple[str, Json]] = [
        ("todo__init", {"goal": todos.goal}),
        *(("todo__add", {"task": todo.desc}) for todo in todos.todos),
    ]
    wanted += [("todo__done", {"id": todo.id}) for todo in todos.todos if todo.done]
    calls, results, so_far = list[Message](), list[Message](), TodoList()
    for number, (name, parameters) in enumerate(wanted):
        arguments, id_ = json.dumps(parameters, ensure_ascii=False), f"kept_{number}"
        so_far, result = so_far.after(name, arguments)
        calls.append({"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}})
        results.append(tool_message(id_, json.dumps(result)))
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def _threshold(execution: Execution, host: Host) -> int:
    own = execution.graph.loop.compression_threshold if execution.graph.loop is not None else None
    return host.settings.compression_threshold if own is None else own


def record(messages: Sequence[Message]) -> str:
    """The conversation as text: a model without the tools may refuse messages that call them."""
    return "\n\n".join(line for message in messages for line in _lines(message))


def _lines(message: Message) -> list[str]:
    lines = [f"{message['role']}: {_cut(str(message['content']))}"] if message.get("content") else []
    called = [call["function"] for call in message.get("tool_calls") or ()]
    return [*lines, *(f"assistant calls {each['name']} with {_cut(each['arguments'])}" for each in called)]


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + " [...]"
