"""One call of a chat model.

Rules. Retries are the caller's: hidden retries would be uncounted attempts. An endpoint that speaks OpenAI's own
protocol is called over plain HTTP (openai_chat.py) with the parameters as litellm translates them; that is five times
cheaper than litellm. The answer of an abandoned call is dropped, and its stream is closed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sleipnir_workers.llm import chat_request, conversation, litellm_compat, prices
from sleipnir_workers.llm.chat_request import CALL_TIMEOUT_S, NO_SETTINGS
from sleipnir_workers.llm.failures import CallFailed, from_error
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.reply import Answer, AnswerCollector, MalformedReply, Message, part_of, storable
from sleipnir_workers.llm.transport import DetachedCall


def ask(
    endpoint: Endpoint,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    temperature: float | None = None,
    top_p: float | None = None,
    reasoning_effort: str | None = None,
    generation: Mapping[str, Any] = NO_SETTINGS,
    timeout_s: float = CALL_TIMEOUT_S,
    on_text: Callable[[str], None] | None = None,
    tick: Callable[[], None] = lambda: None,
    clean: Callable[[str], str] = str,
) -> Answer:
    """The model's answer to `messages`, with `tools` as OpenAI's protocol writes them.

    `generation` has other settings of the model by their names in that protocol.

    With `on_text` the answer is streamed, and `on_text` receives each piece of text in another thread; it must not
    raise. `tick` runs at least every TICK_S during the wait; what it raises ends the wait. `clean` removes secrets from
    error messages. Raises CallFailed for what the provider did or did not do within `timeout_s`, and NodeFailed
    (`model`) if litellm is not installed.
    """
    conversation.refuse_too_long(messages, endpoint.traits.max_input_tokens)
    arguments = chat_request.arguments_of(
        endpoint,
        messages,
        tools=tools,
        temperature=temperature,
        top_p=top_p,
        reasoning_effort=reasoning_effort,
        generation=generation,
        timeout_s=timeout_s,
    )
    litellm_compat.library()  # the timeout begins after its import
    chat = _ChatCall(endpoint, arguments, place=str(len(messages)), on_text=on_text, clean=clean)
    try:
        answer = DetachedCall(chat.run, "llm-call").result(tick, timeout_s)
        tick()
        return answer
    finally:
        chat.is_abandoned = True


class _ChatCall:
    """One call, as its thread makes it. `is_abandoned` is set from outside when the caller stops waiting."""

    def __init__(
        self,
        endpoint: Endpoint,
        arguments: Mapping[str, Any],
        *,
        place: str,
        on_text: Callable[[str], None] | None,
        clean: Callable[[str], str],
    ) -> None:
        self.is_abandoned = False
        self._endpoint = endpoint
        self._arguments = arguments
        self._place = place
        self._on_text = on_text
        self._clean = clean

    def run(self, deliver: Callable[[Answer], None]) -> None:
        """Raises CallFailed."""
        try:
            if self._on_text is None or self._endpoint.traits.no_stream:
                deliver(self._whole())
            else:
                self._stream(deliver)
        except CallFailed:
            raise
        except MalformedReply as error:
            raise CallFailed(f"the model's reply {error}") from error
        except BaseException as error:
            raise from_error(error, self._clean) from error

    def _whole(self) -> Answer:
        request = chat_request.direct_request(self._endpoint, self._arguments)
        response = litellm_compat.completion(self._arguments) if request is None else request.chat.whole(request.body)
        [choice] = _first_choice(response) or [None]
        if choice is None:
            raise CallFailed("the model's reply holds no choices")
        reply = AnswerCollector()
        text = reply.add(part_of(choice, "message"))
        reply.finish = part_of(choice, "finish_reason")
        reply.id = str(part_of(response, "id") or "")
        answer = self._priced(reply, part_of(response, "usage"), part_of(response, "model"))
        self._pass_on(text)
        return answer

    def _stream(self, deliver: Callable[[Answer], None]) -> None:
        request, reply = chat_request.direct_request(self._endpoint, self._arguments), AnswerCollector()
        if request is None:
            self._stream_by_litellm(deliver)
            return
        body = {**request.body, "stream": True, "stream_options": litellm_compat.STREAM_OPTIONS}
        with request.chat.stream(body) as pieces:
            usage, model = self._collected(pieces, reply)
            if not reply.finish:
                raise _cut_off(reply)
            deliver(self._priced(reply, usage or self._estimated_usage(reply), model))
            pieces.finish()

    def _stream_by_litellm(self, deliver: Callable[[Answer], None]) -> None:
        reply = AnswerCollector()
        with contextlib.closing(litellm_compat.completion_stream(self._arguments)) as stream:
            usage, model = self._collected(stream, reply)
            if not stream.is_complete:
                raise _cut_off(reply)
            deliver(self._priced(reply, usage, model))

    def _collected(self, pieces: Iterable[Any], reply: AnswerCollector) -> tuple[Any, str | None]:
        """Add the pieces to `reply`, and pass on their text. Returns the usage, which the last piece carries if the
        provider reports it, and the model's name."""
        usage, model = None, None
        for piece in pieces:
            if self.is_abandoned:
                raise CallFailed("the caller no longer waits for this answer")
            usage, model = part_of(piece, "usage") or usage, part_of(piece, "model") or model
            reply.id = reply.id or str(part_of(piece, "id") or "")
            for choice in _first_choice(piece):
                reply.finish = part_of(choice, "finish_reason") or reply.finish
                self._pass_on(reply.add(part_of(choice, "delta")))
        return usage, model

    def _pass_on(self, text: str) -> None:
        if text and self._on_text is not None and not self.is_abandoned:
            self._on_text(storable(text))

    def _estimated_usage(self, reply: AnswerCollector) -> Mapping[str, int]:
        count = functools.partial(litellm_compat.count_tokens, self._endpoint.model)
        return {
            "prompt_tokens": count(messages=self._arguments["messages"]),
            "completion_tokens": count(text=reply.text, count_response_tokens=True),
        }

    def _priced(self, reply: AnswerCollector, usage: Any, model: str | None) -> Answer:
        """The reply as an answer, with its tokens and cost."""
        input_tokens = part_of(usage, "prompt_tokens") or 0
        output_tokens = part_of(usage, "completion_tokens") or 0
        return reply.answer(
            self._place,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cost_usd=prices.chat_cost_usd(self._endpoint, usage, model or "", input_tokens, output_tokens),
        )


def _cut_off(reply: AnswerCollector) -> CallFailed:
    if reply.is_empty:
        return CallFailed(
            "the model produced no output: the stream ended before its first piece "
            "(a server that cannot stream needs `no_stream: true` in config.yaml)",
            transient=True,
        )
    return CallFailed("the stream ended before the model had finished its answer", transient=True)


def _first_choice(response: Any) -> Sequence[Any]:
    """The first choice of an answer or piece, as a sequence of at most one."""
    choices = part_of(response, "choices")
    return choices[:1] if isinstance(choices, list) else ()
