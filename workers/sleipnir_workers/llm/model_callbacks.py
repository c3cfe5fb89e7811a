"""The callbacks around a call of a model: `before(state, info, request)` and `after(state, info, request, response,
error)`.

`request` is {model, messages, tools}; `before` may change its messages. A response is {content, tool_calls, finish},
where a call is {id, name, arguments}; a callback may also return a text. The answer that a callback gives costs
nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir_workers.callbacks import chain
from sleipnir_workers.execution.execution import Execution, TextSink
from sleipnir_workers.execution.visit_callbacks import VisitCallbacks
from sleipnir_workers.llm.reply import Answer, AnswerCollector, MalformedReply, Message

Ask = Callable[[Sequence[Message]], Answer]


def asked(
    own: VisitCallbacks,
    execution: Execution,
    model: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    ask: Ask,
    text_sink: TextSink | None,
) -> Answer:
    """The model's answer, or the one that a callback has given. Raises NodeFailed, VisitLost, MachineFailed and what
    `ask` raises."""
    given = {"model": model, "messages": copy.deepcopy(list(messages)), "tools": copy.deepcopy(list(tools))}
    outcome = chain.before(own, "model", execution, given)
    if outcome is not None:
        return _shown(_answer(own, execution, _completed(outcome.value)), text_sink)
    answer, failure = None, None
    try:
        answer = ask(_messages(own, given))
    except NodeFailed as error:
        if not own.of("model", "after"):
            raise
        failure = error
    ended = chain.CallOutcome(None if answer is None else _response(answer), None if failure is None else str(failure))
    outcome = chain.after(own, "model", execution, given, ended, _completed)
    if outcome is not ended:
        if text_sink is not None and answer is not None:
            text_sink.restart()
        return _shown(_answer(own, execution, outcome.value), text_sink)
    if answer is None:
        assert failure is not None
        raise failure
    return answer


def _messages(own: VisitCallbacks, given: Mapping[str, Any]) -> list[Message]:
    """The messages that callbacks have left. Raises NodeFailed."""
    messages = given.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
        own.is_final = True
        raise NodeFailed("a callback of the model left no list of messages under `messages`", "callback")
    return messages


def _completed(response: Any) -> Any:
    """A response as later callbacks see it; one that is none is refused where it is used."""
    if isinstance(response, str):
        return {"content": response, "tool_calls": [], "finish": None}
    return response


def _response(answer: Answer) -> dict[str, Any]:
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in answer.calls]
    return {"content": answer.text, "tool_calls": calls, "finish": answer.finish}


def _answer(own: VisitCallbacks, execution: Execution, response: Any) -> Answer:
    """An answer that a callback has given. Raises NodeFailed."""
    collector = AnswerCollector()
    try:
        collector.add(_as_message(response))
        return collector.answer(f"{execution.run}/{execution.seq}/{len(execution.talk.turns)}")
    except (MalformedReply, TypeError) as error:
        own.is_final = True
        raise NodeFailed(f"a callback of the model returned no response: it {error}", "callback") from None


def _as_message(response: Any) -> dict[str, Any]:
    """A response as a message of OpenAI's protocol. Raises TypeError."""
    if not isinstance(response, dict) or not response.keys() & {"content", "tool_calls"}:
        raise TypeError("is neither a text nor an object with `content` or `tool_calls`")
    calls = response.get("tool_calls") or []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise TypeError("has `tool_calls` that are no list of objects")
    written = [
        {"index": n, "id": call.get("id"), "function": {"name": call.get("name"), "arguments": call.get("arguments")}}
        for n, call in enumerate(calls)
    ]
    return {"content": response.get("content"), "tool_calls": written}


def _shown(answer: Answer, text_sink: TextSink | None) -> Answer:
    if text_sink is not None and answer.text:
        text_sink.write(answer.text)
    return answer
