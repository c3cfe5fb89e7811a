"""Ask a model once. The only module that imports litellm, and inside functions: the import takes two seconds.

Rules. A call runs in a thread of its own that is left behind when nobody waits for it any more; its answer is then
dropped, and a stream is closed. Retries are the caller's: hidden ones would be uncounted attempts. litellm keeps one
HTTP client per address, key and timeout, so the timeouts that it is given are few. It gets a logging object that logs
nothing: nobody here reads its callbacks, prices and payloads, which cost as much as the call itself and hold the key.
To an endpoint that speaks OpenAI's own protocol we speak it ourselves (openai_chat.py), as litellm translates the
request; that is five times cheaper.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import functools
import inspect
import json
import os
import queue
import ssl
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sleipnir.errors import NodeFailed
from sleipnir_workers.llm import conversation
from sleipnir_workers.llm.failure import CallFailed, from_error
from sleipnir_workers.llm.models import NO_KEY, Endpoint
from sleipnir_workers.llm.reply import Answer, Malformed, Message, Reply, part_of, storable

if TYPE_CHECKING:
    from sleipnir_workers.llm.openai_chat import Chat

OPENAI_BASE = "https://api.openai.com/v1"
TICK_S = 0.25  # how late we may see that nobody waits any more; shorter costs a tenth of the CPU of many calls
CALL_TIMEOUT_S = 600.0  # of one call when the caller has no limit; ends calls that were left behind
_SHORTEST_HTTP_TIMEOUT_S = 2.0

_PARAMETERS = ("temperature", "top_p", "reasoning_effort", "max_tokens", "tools")
"""Which models of OpenAI's protocol take differently."""
_SAMPLING = (("temperature",), ("top_p",), ("temperature", "top_p"))  # what some models refuse, and can do without
_STREAM_OPTIONS: Mapping[str, Any] = {"include_usage": True}
_NOT_LOGGED = ("success_handler", "failure_handler", "response_cost_calculator")


def ask(
    endpoint: Endpoint,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    temperature: float | None = None,
    top_p: float | None = None,
    reasoning_effort: str | None = None,
    timeout_s: float = CALL_TIMEOUT_S,
    on_text: Callable[[str], None] | None = None,
    tick: Callable[[], None] = lambda: None,
    clean: Callable[[str], str] = str,
) -> Answer:
    """One call: the model's answer to `messages`, with `tools` as OpenAI's protocol writes them.

    With `on_text` the answer is streamed, and each piece of text is given to it, in another thread; it must not raise.
    `tick` is called every TICK_S at most while we wait, and what it raises ends the waiting. `clean` takes secrets out
    of error messages. Raises CallFailed for what the provider did or did not do within `timeout_s`, and NodeFailed
    (`model`) if litellm is not installed.
    """
    conversation.refuse_too_long(messages, endpoint.traits.max_input_tokens)
    arguments = _arguments(endpoint, messages, tools, temperature, top_p, reasoning_effort, timeout_s)
    _litellm()  # its import is not the model's time
    deadline = time.monotonic() + timeout_s
    call = _Call(endpoint, arguments, place=str(len(messages)), on_text=on_text, clean=clean)
    try:
        while True:
            tick()
            if answer := call.answer(min(TICK_S, deadline - time.monotonic())):
                tick()
                return answer
            if time.monotonic() >= deadline:
                raise CallFailed(f"the model call timed out after {timeout_s:g}s", transient=True, kind="timeout")
    finally:
        call.leave()


def warm_up() -> None:
    """Do now what takes seconds in the first call of a process: that one has passed its limits already, and may not be
    late. Starts no thread and opens no connection, so it is safe before a fork."""
    _litellm()
    _trusted()
    _as_taken("", OPENAI_BASE, "{}")


@functools.cache
def providers() -> frozenset[str]:
    """The names of the providers that litellm knows."""
    return frozenset(str(getattr(item, "value", item)) for item in _litellm().provider_list)


def takes_effort(endpoint: Endpoint) -> bool:
    """Whether litellm knows that the model takes `reasoning_effort`. Of models that it does not know, of servers that
    speak OpenAI's protocol, it says so too."""
    provider, _, model = endpoint.model.partition("/")
    taken = _litellm().get_supported_openai_params(model=model, custom_llm_provider=provider) or ()
    return "reasoning_effort" in taken


def embedding(**arguments: Any) -> Any:
    """litellm's answer of an embedding model, in one call. Raises its errors, and NodeFailed (`model`)."""
    _litellm()
    _call_nobody_back()
    return _litellm().embedding(**arguments, max_retries=0, num_retries=0)


def reranking(**arguments: Any) -> Any:
    """litellm's answer of a reranker, in one call. Raises its errors, and NodeFailed (`model`)."""
    _litellm()
    _call_nobody_back()
    return _litellm().rerank(**arguments, max_retries=0, num_retries=0)


class _Call:
    """One call in a thread that may be left behind. What comes of it is told through a queue."""

    def __init__(
        self,
        endpoint: Endpoint,
        arguments: Mapping[str, Any],
        *,
        place: str,
        on_text: Callable[[str], None] | None,
        clean: Callable[[str], str],
    ) -> None:
        self._endpoint = endpoint
        self._arguments = arguments
        self._place = place
        self._on_text = on_text
        self._clean = clean
        self._left = False
        self._outcome: queue.SimpleQueue[Answer | CallFailed] = queue.SimpleQueue()
        # Daemon: a call that was left behind must not keep the worker from stopping.
        # With the context of the visit, which logs and spans read.
        threading.Thread(target=contextvars.copy_context().run, args=(self._run,), name="llm-call", daemon=True).start()

    def answer(self, wait_s: float) -> Answer | None:
        """The answer; None if it has not come within `wait_s`. Raises CallFailed."""
        try:
            outcome = self._outcome.get(timeout=max(0.0, wait_s))
        except queue.Empty:
            return None
        if isinstance(outcome, CallFailed):
            raise outcome
        return outcome

    def leave(self) -> None:
        """Nobody listens any more."""
        self._left = True

    def _run(self) -> None:
        try:
            streamed = self._on_text is not None and not self._endpoint.traits.no_stream
            (self._streamed if streamed else self._whole)()
        except CallFailed as error:
            self._outcome.put(error)
        except Malformed as error:
            self._outcome.put(CallFailed(f"the model's reply {error}"))
        except BaseException as error:
            failed = from_error(error, self._clean)
            failed.__cause__ = error
            self._outcome.put(failed)

    def _whole(self) -> None:
        direct = _direct(self._endpoint, self._arguments)
        response = self._completion() if direct is None else direct.chat.whole(direct.body)
        [choice] = _first_choice(response) or [None]
        if choice is None:
            raise CallFailed("the model's reply holds no choices")
        reply = Reply()
        text = reply.add(part_of(choice, "message"))
        reply.finish = part_of(choice, "finish_reason")
        answer = self._answer(reply, part_of(response, "usage"), part_of(response, "model"))
        self._tell(text)
        self._outcome.put(answer)

    def _streamed(self) -> None:
        direct = _direct(self._endpoint, self._arguments)
        if direct is None:
            self._streamed_by_litellm()
            return
        reply = Reply()
        with direct.chat.stream({**direct.body, "stream": True, "stream_options": _STREAM_OPTIONS}) as pieces:
            usage, model = self._told(pieces, reply)
            if not reply.finish:
                raise _cut(reply)
            self._outcome.put(self._answer(reply, usage or self._counted(reply), model))
            pieces.finish()  # nobody waits for this

    def _streamed_by_litellm(self) -> None:
        stream, reply = self._completion(stream=True, stream_options=_STREAM_OPTIONS), Reply()
        with contextlib.closing(_Closable(stream)):
            usage, model = self._told(stream, reply)
            # litellm makes up a finish reason where the provider sent none: for a stream that was cut, or is none.
            if not (stream.received_finish_reason or stream.intermittent_finish_reason):
                raise _cut(reply)
            self._outcome.put(self._answer(reply, usage, model))

    def _told(self, pieces: Iterable[Any], reply: Reply) -> tuple[Any, str | None]:
        """Collect the pieces in `reply`, and tell their text as it comes. Returns the usage, which the last piece
        brings where the provider says it, and the model's name."""
        usage, model = None, None
        for piece in pieces:
            if self._left:
                raise CallFailed("nobody waits for this answer any more")
            usage, model = part_of(piece, "usage") or usage, part_of(piece, "model") or model
            for choice in _first_choice(piece):
                reply.finish = part_of(choice, "finish_reason") or reply.finish
                self._tell(reply.add(part_of(choice, "delta")))
        return usage, model

    def _tell(self, text: str) -> None:
        if text and self._on_text is not None and not self._left:
            self._on_text(storable(text))

    def _counted(self, reply: Reply) -> Mapping[str, int]:
        """The tokens, as litellm counts them where the provider says nothing."""
        count = functools.partial(_litellm().token_counter, model=self._endpoint.model)
        return {
            "prompt_tokens": count(messages=self._arguments["messages"]),
            "completion_tokens": count(text=reply.text, count_response_tokens=True),
        }

    def _completion(self, **more: Any) -> Any:
        _call_nobody_back()
        unlogged = _unlogged(self._arguments, streamed="stream" in more)
        return _without_refused_sampling(_litellm().completion, **self._arguments, **more, **unlogged)

    def _answer(self, reply: Reply, usage: Any, model: str | None) -> Answer:
        tokens_in = part_of(usage, "prompt_tokens") or 0
        tokens_out = part_of(usage, "completion_tokens") or 0
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
    reasoning_effort: str | None,
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
        **_effort(endpoint, reasoning_effort),
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


def _effort(endpoint: Endpoint, effort: str | None) -> dict[str, Any]:
    """How litellm is told of the effort. It need not know that the model takes one: config.yaml may say so."""
    if effort is None:
        return {}
    allowed = None if takes_effort(endpoint) else ["reasoning_effort"]
    return {"reasoning_effort": effort, "allowed_openai_params": allowed}


@dataclass(frozen=True)
class _Direct:
    """A call that needs no litellm: whom to ask, and what."""

    chat: Chat
    body: Mapping[str, Any]


def _direct(endpoint: Endpoint, arguments: Mapping[str, Any]) -> _Direct | None:
    """The call of an endpoint that speaks OpenAI's chat protocol; None for any other. Raises litellm's errors."""
    if not endpoint.speaks_openai:
        return None
    from sleipnir_workers.llm.openai_chat import Chat  # here: workers without models have no urllib3

    litellm, model = _litellm(), endpoint.model.removeprefix("openai/")
    base = endpoint.api_base or litellm.api_base or os.environ.get("OPENAI_BASE_URL") or OPENAI_BASE
    wanted = {name: arguments[name] for name in (*_PARAMETERS, "allowed_openai_params") if name in arguments}
    taken = _as_taken(model, base, json.dumps(wanted))
    if taken is None:
        return None
    config, parameters = taken
    translated = config.transform_request(model, list(arguments["messages"]), dict(parameters), {}, {})
    organization = endpoint.options.get("organization") or os.environ.get("OPENAI_ORGANIZATION")
    headers = {"OpenAI-Organization": organization} if organization else {}
    headers |= arguments.get("extra_headers", {})
    key = endpoint.api_key or NO_KEY
    chat = Chat(base, key, headers=headers, timeout_s=arguments["timeout"], tls=_trusted())
    return _Direct(chat, translated | arguments.get("extra_body", {}))


@functools.lru_cache(maxsize=256)
def _as_taken(model: str, base: str, wanted: str) -> tuple[Any, Mapping[str, Any]] | None:
    """litellm's translator for a model of OpenAI's protocol, and the parameters in the form that the model takes: it
    calls some by other names, and refuses some. None for a model that wants OpenAI's other protocol, Responses, and
    where this release of litellm knows these functions by other names: then litellm makes the call."""
    _litellm()
    try:
        from litellm import LlmProviders
        from litellm.main import responses_api_bridge_check
        from litellm.utils import ProviderConfigManager, get_optional_params
    except ImportError:
        return None
    parameters = json.loads(wanted)
    info, _ = responses_api_bridge_check(model, "openai", tools=parameters.get("tools"), api_base=base)
    config = ProviderConfigManager.get_provider_chat_config(model, LlmProviders.OPENAI)
    if info.get("mode") == "responses" or config is None:
        return None
    taken = _without_refused_sampling(get_optional_params, model=model, custom_llm_provider="openai", **parameters)
    return config, {name: value for name, value in taken.items() if name not in ("stream", "extra_body")}


def _without_refused_sampling(call: Callable[..., Any], **arguments: Any) -> Any:
    """The call, without `temperature` or `top_p` where the model takes none, as OpenAI's models that reason: an agent
    says them for the models that do. litellm refuses before anything is sent. Raises what it says of others."""
    refusal = _litellm().exceptions.UnsupportedParamsError
    try:
        return call(**arguments)
    except refusal:
        for names in _SAMPLING:
            with contextlib.suppress(refusal):
                return call(**arguments, additional_drop_params=list(names))
        raise


@functools.cache
def _trusted() -> ssl.SSLContext | None:
    """Whom to trust, as litellm's variables and settings say; None: everybody."""
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration

    configured = get_ssl_configuration()
    return configured if isinstance(configured, ssl.SSLContext) else None


def _first_choice(response: Any) -> Sequence[Any]:
    """The first of the choices of an answer or piece; empty if it has none."""
    choices = part_of(response, "choices")
    return choices[:1] if isinstance(choices, list) else ()


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
    said = part_of(usage, "cost")
    if isinstance(said, (int, float)) and not isinstance(said, bool):
        return float(said)
    return _list_price(endpoint.model, served, usage) if _is_listed(endpoint.model, served) else None


@functools.lru_cache(maxsize=1024)
def _is_listed(model: str, served: str) -> bool:
    """Whether litellm has a price of the model. Looking for one that it has not takes longer than the call."""
    return _list_price(model, served, {"prompt_tokens": 1, "completion_tokens": 1}) is not None


def _list_price(model: str, served: str, usage: Any) -> float | None:
    litellm = _litellm()
    try:
        usage = litellm.Usage(**usage) if isinstance(usage, Mapping) else usage
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

    from sleipnir_workers.llm.post import CONNECTIONS

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
        raise NodeFailed(
            f"the model needs litellm ({error}); `pip install '.[llm]'` in a checkout",
            "model",
        ) from error
    # A remark of pydantic about one of litellm's own types, on the first call of every process.
    warnings.filterwarnings("ignore", message="Item 'summary' on TypedDict class", category=UserWarning)
    # Remarks about odd answers, which quote them.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    _keep_connections(litellm)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_streaming_logging = True
    return litellm
