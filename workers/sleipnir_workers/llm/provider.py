"""Ask a model once. The only module that imports litellm, and inside functions: the import takes two seconds.

Rules. A call runs in a thread of its own that is left behind when nobody waits for it any more; its answer is then
dropped, and a stream is closed. Retries are the caller's: hidden ones would be uncounted attempts. litellm keeps one
HTTP client per address, key and timeout, so the timeouts that it is given are few. It gets a logging object that logs
nothing: nobody here reads its callbacks, prices and payloads, which cost as much as the call itself and hold the key.
Streams of OpenAI's protocol are opened by litellm and read by us (openai_stream.py).
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import inspect
import os
import queue
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sleipnir.errors import NodeFailed
from sleipnir_workers.llm import conversation
from sleipnir_workers.llm.failure import CallFailed, from_error
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.openai_stream import Pieces
from sleipnir_workers.llm.reply import Answer, Malformed, Message, Reply, part_of, storable

TICK_S = 0.25  # how late we may see that nobody waits any more; shorter costs a tenth of the CPU of many calls
CALL_TIMEOUT_S = 600.0  # of one call when the caller has no limit; ends calls that were left behind
CONNECTIONS = 1_000  # per client; more than a process has threads
_SHORTEST_HTTP_TIMEOUT_S = 2.0

_STREAM_OPTIONS: Mapping[str, Any] = {"include_usage": True}
_NOT_LOGGED = ("success_handler", "failure_handler", "response_cost_calculator")


def ask(
    endpoint: Endpoint,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    temperature: float | None = None,
    top_p: float | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
    on_text: Callable[[str], None] | None = None,
    tick: Callable[[], None] = lambda: None,
    clean: Callable[[str], str] = str,
) -> Answer:
    """One call: the model's answer to `messages`, with `tools` as OpenAI's protocol writes them.

    With `on_text` the answer is streamed, and each piece of text is given to it. `tick` is called every TICK_S at most
    while we wait. Both run in the caller's thread, and what they raise ends the waiting. `clean` takes secrets out of
    error messages. Raises CallFailed for what the provider did or did not do within `timeout_s`, and NodeFailed
    (`model`) if litellm is not installed.
    """
    conversation.refuse_too_long(messages, endpoint.traits.max_input_tokens)
    arguments = _arguments(endpoint, messages, tools, temperature, top_p, timeout_s)
    _litellm()  # its import is not the model's time
    deadline = time.monotonic() + timeout_s
    streamed = on_text is not None and not endpoint.traits.no_stream
    call = _Call(endpoint, arguments, place=str(len(messages)), streamed=streamed, clean=clean)
    try:
        while True:
            tick()
            said = call.said(min(TICK_S, deadline - time.monotonic()))
            if isinstance(said, Answer):
                break
            if isinstance(said, str) and on_text is not None:
                on_text(said)
            if said is None and time.monotonic() >= deadline:
                raise CallFailed(f"the model call timed out after {timeout_s:g}s", transient=True, kind="timeout")
    finally:
        call.leave()
    tick()
    if on_text is not None and not streamed and said.text:
        on_text(said.text)
    return said


def warm_up() -> None:
    """Import litellm now instead of during the first visit. Starts no thread, so it is safe before a fork."""
    _litellm()


@functools.cache
def providers() -> frozenset[str]:
    """The names of the providers that litellm knows."""
    return frozenset(str(getattr(item, "value", item)) for item in _litellm().provider_list)


class _Call:
    """One litellm call in a thread that may be left behind. What it has to say comes through a queue."""

    def __init__(
        self,
        endpoint: Endpoint,
        arguments: Mapping[str, Any],
        *,
        place: str,
        streamed: bool,
        clean: Callable[[str], str],
    ) -> None:
        self._endpoint = endpoint
        self._arguments = arguments
        self._place = place
        self._clean = clean
        self._left = False
        self._queue: queue.SimpleQueue[str | Answer | BaseException] = queue.SimpleQueue()
        work = self._stream if streamed else self._whole
        # Daemon: a call that was left behind must not keep the worker from stopping.
        threading.Thread(target=self._run, args=(work,), name="llm-call", daemon=True).start()

    def said(self, wait_s: float) -> str | Answer | None:
        """A piece of text, the answer, or None if nothing came within `wait_s`. Raises what the call failed with."""
        try:
            said = self._queue.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            return None
        if isinstance(said, BaseException):
            raise said
        return said

    def leave(self) -> None:
        """Nobody listens any more."""
        self._left = True

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except CallFailed as error:
            self._queue.put(error)
        except Malformed as error:
            self._queue.put(CallFailed(f"the model's reply {error}"))
        except BaseException as error:
            failed = from_error(error, self._clean)
            failed.__cause__ = error
            self._queue.put(failed)

    def _whole(self) -> None:
        response = self._completion()
        if not response.choices:
            raise CallFailed("the model's reply holds no choices")
        reply = Reply()
        reply.add(response.choices[0].message)
        reply.finish = response.choices[0].finish_reason
        self._queue.put(self._answer(reply, getattr(response, "usage", None), response.model))

    def _stream(self) -> None:
        """Pieces of text go to the queue as they come."""
        reply, usage, model = Reply(), None, None
        # The last piece brings the usage, where the provider says it.
        stream = self._completion(stream=True, stream_options=_STREAM_OPTIONS)
        plain = Pieces.of(stream.completion_stream) if self._endpoint.speaks_openai else None
        with contextlib.closing(_Closable(stream)):
            for piece in stream if plain is None else plain:
                if self._left:
                    raise CallFailed("nobody waits for this answer any more")
                usage, model = part_of(piece, "usage") or usage, part_of(piece, "model") or model
                for choice in (part_of(piece, "choices") or ())[:1]:
                    reply.finish = part_of(choice, "finish_reason") or reply.finish
                    if text := reply.add(part_of(choice, "delta")):
                        self._queue.put(storable(text))
            # litellm makes up a finish reason where the provider sent none: for a stream that was cut, or is none.
            ended = reply.finish if plain else stream.received_finish_reason or stream.intermittent_finish_reason
            if not ended:
                raise _cut(reply)
            if plain is None:
                self._queue.put(self._answer(reply, usage, model))
            else:
                self._queue.put(self._answer(reply, self._usage(usage, reply), model))
                plain.finish()  # nobody waits for this

    def _usage(self, said: Mapping[str, Any] | None, reply: Reply) -> Any:
        """The tokens that the provider has counted; counted by litellm where it says nothing."""
        litellm = _litellm()
        if said:
            return litellm.Usage(**said)
        return litellm.Usage(
            prompt_tokens=litellm.token_counter(model=self._endpoint.model, messages=self._arguments["messages"]),
            completion_tokens=litellm.token_counter(
                model=self._endpoint.model, text=reply.text, count_response_tokens=True
            ),
        )

    def _completion(self, **more: Any) -> Any:
        _call_nobody_back()
        return _litellm().completion(**self._arguments, **more, **_unlogged(self._arguments, streamed="stream" in more))

    def _answer(self, reply: Reply, usage: Any, model: str | None) -> Answer:
        tokens_in = getattr(usage, "prompt_tokens", None) or 0
        tokens_out = getattr(usage, "completion_tokens", None) or 0
        return reply.answer(
            self._place,
            input_tokens=tokens_in,
            output_tokens=tokens_out,
            cost_usd=_price(self._endpoint, usage, model or "", tokens_in, tokens_out),
        )


class _Closable:
    """Closes what may have no `close`, and never complains: the answer is there or not, whatever closing says."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def close(self) -> None:
        inner = getattr(self._stream, "completion_stream", None)
        close = getattr(inner, "close", None)
        if callable(close):
            with contextlib.suppress(Exception):
                close()


def _cut(reply: Reply) -> CallFailed:
    if reply.is_empty:
        return CallFailed(
            "the model produced no output: the stream ended before its first piece "
            "(a server that cannot stream needs `no_stream: true` in config.yaml)",
            transient=True,
        )
    return CallFailed("the stream ended before the model had finished its answer", transient=True)


def _arguments(
    endpoint: Endpoint,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    temperature: float | None,
    top_p: float | None,
    timeout_s: float,
) -> dict[str, Any]:
    traits = endpoint.traits
    arguments: dict[str, Any] = {
        "model": endpoint.model,
        "messages": conversation.as_sent(messages, traits),
        "api_base": endpoint.api_base,
        "api_key": endpoint.api_key,
        "temperature": temperature,
        "top_p": top_p,
        "max_tokens": traits.max_output_tokens if traits.require_max_tokens else None,
        "tools": list(tools) or None,
        "timeout": _http_timeout(timeout_s),
        "max_retries": 0,
        "num_retries": 0,
        **endpoint.options,
    }
    for name, value in traits.patch_body.items():
        if value is None:  # a merge patch: null takes away
            arguments.pop(name, None)
    added = {name: value for name, value in traits.patch_body.items() if value is not None}
    if endpoint.speaks_openai:
        arguments["extra_body"] = added or None
    else:
        arguments |= added
    arguments["extra_headers"] = dict(traits.patch_headers) or None
    return {name: value for name, value in arguments.items() if value is not None}


def _http_timeout(timeout_s: float) -> float:
    """More than `timeout_s`, so that it is our timeout that is reported; a power of two, so that clients are shared."""
    http_s = _SHORTEST_HTTP_TIMEOUT_S
    while http_s <= timeout_s + 0.5:
        http_s *= 2
    return min(http_s, CALL_TIMEOUT_S)


# Prices


def _price(endpoint: Endpoint, usage: Any, served: str, tokens_in: int, tokens_out: int) -> float | None:
    """In USD: by the configured price, else what the provider says it took, else by litellm's list. None if unknown."""
    if not tokens_in and not tokens_out:  # nobody counted
        return None
    if endpoint.traits.prices is not None:
        return endpoint.traits.prices.of(tokens_in, tokens_out)
    said = getattr(usage, "cost", None)
    if isinstance(said, (int, float)) and not isinstance(said, bool):
        return float(said)
    return _list_price(endpoint.model, served, usage) if _is_listed(endpoint.model, served) else None


@functools.lru_cache(maxsize=1024)
def _is_listed(model: str, served: str) -> bool:
    """Whether litellm has a price of the model. Looking for one that it has not takes longer than the call."""
    return _list_price(model, served, _litellm().Usage(prompt_tokens=1, completion_tokens=1)) is not None


def _list_price(model: str, served: str, usage: Any) -> float | None:
    litellm = _litellm()
    try:
        response = litellm.ModelResponse(model=served, usage=usage)
        return float(litellm.completion_cost(completion_response=response, model=model))
    except Exception:  # litellm raises several types, one of them plain Exception, for a model it has no price of
        return None


# litellm


def _unlogged(arguments: Mapping[str, Any], *, streamed: bool) -> dict[str, Any]:
    """The argument that keeps litellm from logging; none if this release makes its logging object in another way."""
    try:
        logging = _logging_class()(
            model=arguments["model"],
            messages=arguments["messages"],
            stream=streamed,
            call_type="completion",
            start_time=datetime.datetime.now(),
            litellm_call_id=str(uuid.uuid4()),
            function_id="",
        )
        logging.update_environment_variables(
            model=arguments["model"],
            user="",
            optional_params={},
            litellm_params={"api_base": ""},
            stream_options=_STREAM_OPTIONS if streamed else None,  # or providers other than OpenAI send no usage
        )
    except (ImportError, TypeError):
        return {}
    return {"litellm_logging_obj": logging}


def _call_nobody_back() -> None:
    """Keep litellm from handing each answer of this thread to its logging threads, which have nothing to do."""
    with contextlib.suppress(ImportError):
        from litellm._internal_context import is_internal_call

        is_internal_call.set(True)


@functools.cache
def _logging_class() -> Any:
    _litellm()
    from litellm.litellm_core_utils.litellm_logging import Logging

    return type("Unlogged", (Logging,), dict.fromkeys(_NOT_LOGGED, lambda *_, **__: None))


def _keep_connections(litellm: Any) -> None:
    """Let HTTP clients keep as many connections as this process has calls under way, and all of OpenAI's share one.

    By default they keep 20 and close one beyond that for every call, now and then one that is in use: the call then
    fails, or hangs until its timeout (encode/httpcore#1110). And calls that begin together would make a client each.
    """
    import httpx
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration

    limits = inspect.signature(httpx.Client).parameters["limits"].default
    if isinstance(limits, httpx.Limits):  # the object that every client without limits of its own is made with
        limits.max_connections = limits.max_keepalive_connections = CONNECTIONS
    litellm.client_session = httpx.Client(verify=get_ssl_configuration(), follow_redirects=True)


@functools.cache
def _litellm() -> Any:
    # Before the import: litellm would fetch its price map from the internet while it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise NodeFailed(f"llm nodes need litellm ({error}); install sleipnir[llm] on this worker", "model") from error
    # A remark of pydantic about one of litellm's own types, on the first call of every process.
    warnings.filterwarnings("ignore", message="Item 'summary' on TypedDict class", category=UserWarning)
    # Remarks about odd answers, which quote them.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    _keep_connections(litellm)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_streaming_logging = True
    return litellm
