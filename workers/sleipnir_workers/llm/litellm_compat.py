"""The only module that imports litellm and depends on how litellm is built.

Rules. The import takes two seconds and 160 MB. It happens inside functions at first use, so that workers without models
never load litellm; the price list and the names of the providers are read from litellm's files without the import.
Retries are the caller's: hidden retries would be uncounted attempts. Where a release lacks an internal that makes calls
cheaper, litellm makes the call in its own way. tests/integration/workers/llm/test_litellm_compat.py names each
internal.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.util
import json
import os
import re
import ssl
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sleipnir.errors import NodeFailed

DIRECT_PROVIDERS = frozenset({"openai", "cohere"})
"""Providers that can be asked without litellm: cohere for reranking only."""

STREAM_OPTIONS: Mapping[str, Any] = {"include_usage": True}

_SAMPLING = (("temperature",), ("top_p",), ("temperature", "top_p"))  # optional parameters that some models refuse
_NOT_LOGGED = ("success_handler", "failure_handler", "response_cost_calculator")

_PRICES = "model_prices_and_context_window_backup.json"
_TYPES = "types/utils.py"
_PROVIDERS = re.compile(r"^class LlmProviders\(.*?\):\n(.*?)(?=^\S)", re.MULTILINE | re.DOTALL)
_PROVIDER = re.compile(r'^    [A-Z0-9_]+ = "([^"]+)"', re.MULTILINE)
_PREFIXED_PROVIDERS = ("voyage", "jina_ai")
"""Providers that are asked by OpenAI's protocol, and whose models the price list prefixes with their name."""

_REPEATED = re.compile(r"(?:Original exception: |Traceback \(most recent call last\)).*", re.DOTALL)
_WRAPPED = re.compile(r"^(?:litellm\.\w+: )+(?=litellm\.)")


# litellm's files, read without importing it


def is_installed() -> bool:
    return _folder() is not None


@functools.cache
def listed_providers() -> frozenset[str]:
    """The names of the providers that litellm knows; without litellm DIRECT_PROVIDERS."""
    folder = _folder()
    if folder is None:
        return DIRECT_PROVIDERS
    types = folder / _TYPES
    if types.is_file() and (members := _PROVIDERS.search(types.read_text(encoding="utf-8"))):
        return frozenset(_PROVIDER.findall(members[1]))
    return providers()  # a release that writes them in another way


@functools.lru_cache(maxsize=64)
def listed(model: str, mode: str) -> Mapping[str, Any] | None:
    """The entry of a model in litellm's price list; None without one.

    `model` is named as litellm does (`openai/text-embedding-3-small`), `mode` is `embedding` or `rerank`.
    """
    provider, _, name = model.partition("/")
    names = [model, name, *(f"{prefix}/{name}" for prefix in _PREFIXED_PROVIDERS if provider == "openai")]
    entries = (entry for each in names if (entry := _entries(mode).get(each)) is not None)
    return next(entries, None)


@functools.lru_cache(maxsize=4)
def _entries(mode: str) -> Mapping[str, Mapping[str, Any]]:
    folder = _folder()
    if folder is None or not (folder / _PRICES).is_file():
        return {}
    entries = json.loads((folder / _PRICES).read_bytes())
    return {name: entry for name, entry in entries.items() if entry.get("mode") == mode and name != "sample_spec"}


def _folder() -> Path | None:
    spec = importlib.util.find_spec("litellm")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


# The library


@functools.cache
def library() -> Any:
    """litellm, as this process uses it. Raises NodeFailed (`model`) if it is not installed."""
    # Before the import: litellm would fetch its price map from the internet while it is imported.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        import litellm
    except ImportError as error:
        raise NodeFailed(
            f"the model needs litellm ({error}); `pip install '.[llm]'` in a checkout",
            "model",
        ) from error
    # A warning of pydantic about one of litellm's own types, on the first call of every process.
    warnings.filterwarnings("ignore", message="Item 'summary' on TypedDict class", category=UserWarning)
    # Warnings about unusual answers, which quote them.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
    _widen_connection_pools(litellm)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    litellm.disable_streaming_logging = True
    return litellm


def warm_up() -> None:
    """Do now what takes seconds in the first call of a process. Starts no thread and opens no connection, so it is safe
    before a fork."""
    library()
    trusted_certificates()
    openai_parameters("", "https://api.openai.com/v1", "{}")


@functools.cache
def providers() -> frozenset[str]:
    """The names of the providers that litellm knows, by litellm itself."""
    return frozenset(str(getattr(provider, "value", provider)) for provider in library().provider_list)


def takes_reasoning_effort(model: str) -> bool:
    """Whether litellm knows that the model takes `reasoning_effort`. For unknown models of servers that speak OpenAI's
    protocol, litellm says yes."""
    provider, _, name = model.partition("/")
    parameters = library().get_supported_openai_params(model=name, custom_llm_provider=provider) or ()
    return "reasoning_effort" in parameters


def default_api_base() -> str | None:
    base: str | None = library().api_base
    return base


@functools.cache
def trusted_certificates() -> ssl.SSLContext | None:
    """The certificates to trust, by litellm's variables and settings; None: every certificate."""
    library()
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration

    configured = get_ssl_configuration()
    return configured if isinstance(configured, ssl.SSLContext) else None


# Calls


def completion(arguments: Mapping[str, Any]) -> Any:
    """A chat model's answer, in one call. Raises litellm's errors."""
    _skip_logging_threads()
    return _without_refused_sampling(library().completion, **arguments, **_without_logging(arguments))


def completion_stream(arguments: Mapping[str, Any]) -> CompletionStream:
    """A chat model's answer in pieces, in one call. Raises litellm's errors, as does the iteration."""
    return CompletionStream(completion({**arguments, "stream": True, "stream_options": STREAM_OPTIONS}))


def embedding(**arguments: Any) -> Any:
    """An embedding model's answer, in one call. Raises litellm's errors, and NodeFailed (`model`)."""
    _skip_logging_threads()
    return library().embedding(**arguments, max_retries=0, num_retries=0)


def rerank(**arguments: Any) -> Any:
    """A reranker's answer, in one call. Raises litellm's errors, and NodeFailed (`model`)."""
    _skip_logging_threads()
    return library().rerank(**arguments, max_retries=0, num_retries=0)


class CompletionStream:
    """The pieces of a streamed answer. Iterate once."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stream)

    @property
    def is_complete(self) -> bool:
        """Whether the provider sent a finish reason. litellm makes one up where it did not: for a stream that was cut
        off, or that is none."""
        return bool(self._stream.received_finish_reason or self._stream.intermittent_finish_reason)

    def close(self) -> None:
        """Close the connection if the stream has one; never raises."""
        close = getattr(getattr(self._stream, "completion_stream", None), "close", None)
        if callable(close):
            with contextlib.suppress(Exception):
                close()


@functools.lru_cache(maxsize=256)
def openai_parameters(model: str, base: str, requested: str) -> tuple[Any, Mapping[str, Any]] | None:
    """litellm's translator for a model of OpenAI's chat protocol, and the `requested` parameters (JSON) as the model
    takes them: some models take other names, or refuse some parameters.

    None for a model that needs OpenAI's Responses protocol, and where this release of litellm has other internals: then
    litellm makes the call.
    """
    library()
    try:
        from litellm import LlmProviders
        from litellm.main import responses_api_bridge_check
        from litellm.utils import ProviderConfigManager, get_optional_params
    except ImportError:
        return None
    parameters = json.loads(requested)
    info, _ = responses_api_bridge_check(model, "openai", tools=parameters.get("tools"), api_base=base)
    translator = ProviderConfigManager.get_provider_chat_config(model, LlmProviders.OPENAI)
    if info.get("mode") == "responses" or translator is None:
        return None
    accepted = _without_refused_sampling(get_optional_params, model=model, custom_llm_provider="openai", **parameters)
    return translator, {name: value for name, value in accepted.items() if name not in ("stream", "extra_body")}


def openai_body(
    model: str, base: str, messages: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The request body for a model of OpenAI's chat protocol; None if litellm has to make the call."""
    translation = openai_parameters(model, base, json.dumps(parameters))
    if translation is None:
        return None
    translator, accepted = translation
    body: dict[str, Any] = translator.transform_request(model, list(messages), dict(accepted), {}, {})
    return body


def _without_refused_sampling(call: Callable[..., Any], **arguments: Any) -> Any:
    """The call, without `temperature` or `top_p` where the model refuses them, as OpenAI's reasoning models do: agents
    set them for other models. litellm refuses before it sends anything. Raises its other errors."""
    refusal = library().exceptions.UnsupportedParamsError
    try:
        return call(**arguments)
    except refusal:
        for names in _SAMPLING:
            with contextlib.suppress(refusal):
                return call(**arguments, additional_drop_params=list(names))
        raise


# Tokens and prices


def count_tokens(model: str, **content: Any) -> int:
    """Tokens of `messages` or of a `text`, by litellm's tokenizers; for providers that send no usage."""
    tokens: int = library().token_counter(model=model, **content)
    return tokens


def completion_cost_usd(model: str, served_model: str, usage: Any) -> float | None:
    """The cost of a chat by litellm's price list; None if the list lacks the model.

    `served_model` is the model that the provider named in its answer.
    """
    litellm = library()
    try:
        usage = litellm.Usage(**usage) if isinstance(usage, Mapping) else usage
        response = litellm.ModelResponse(model=served_model, usage=usage)
        return float(litellm.completion_cost(completion_response=response, model=model))
    except Exception:  # litellm raises several types, plain Exception among them, for a model that the list lacks
        return None


# Errors


def message_of(error: BaseException) -> str:
    """The text of an error without what litellm adds: repeated prefixes, the original error, a traceback."""
    return _WRAPPED.sub("", _REPEATED.sub("", str(error)).rstrip()) or type(error).__name__


def headers_of(error: BaseException) -> Any:
    """The headers of the provider's response, where litellm keeps them on its error."""
    return getattr(error, "litellm_response_headers", None)


# Logging and connections


def _without_logging(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The argument that stops litellm's logging, which costs as much as the call and holds the key; empty if this
    release creates its logging object differently."""
    try:
        logging = _silent_logging_class()(
            model=arguments["model"],
            messages=arguments["messages"],
            stream="stream" in arguments,
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
            stream_options=arguments.get("stream_options"),  # or providers other than OpenAI send no usage
        )
    except (ImportError, TypeError):
        return {}
    return {"litellm_logging_obj": logging}


@functools.cache
def _silent_logging_class() -> Any:
    library()
    from litellm.litellm_core_utils.litellm_logging import Logging

    return type("SilentLogging", (Logging,), dict.fromkeys(_NOT_LOGGED, lambda *_, **__: None))


def _skip_logging_threads() -> None:
    """Stop litellm from passing each answer of this thread to its logging threads, which do nothing."""
    library()
    with contextlib.suppress(ImportError):
        from litellm._internal_context import is_internal_call

        is_internal_call.set(True)


def _widen_connection_pools(litellm: Any) -> None:
    """Let litellm's HTTP clients keep as many connections as this process has calls, and all of OpenAI's share a pool.

    httpx keeps 20 by default. Each call beyond that closes a connection, now and then one in use: that call fails, or
    hangs until its timeout (encode/httpcore#1110). litellm takes no limits for its clients, but builds their transports
    in two methods for one of its options; these are replaced. Without a shared client, concurrent first calls would
    create one each.
    """
    import httpx
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration

    from sleipnir_workers.llm.json_http import CONNECTIONS

    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    litellm.client_session = httpx.Client(verify=get_ssl_configuration(), follow_redirects=True, limits=limits)
    try:
        from litellm.llms.custom_httpx.http_handler import HTTPHandler, _environment_proxy_mounts, http2_enabled
    except ImportError:
        return

    def transport(handler: Any) -> httpx.HTTPTransport:
        verify = get_ssl_configuration(handler.ssl_verify)
        certificate = os.getenv("SSL_CERTIFICATE", litellm.ssl_certificate)
        return httpx.HTTPTransport(verify=verify, cert=certificate, http2=http2_enabled(), limits=limits)

    def proxy_transports(verify: Any, cert: Any) -> Any:
        return _environment_proxy_mounts(
            lambda url: httpx.HTTPTransport(proxy=url, verify=verify, cert=cert, http2=http2_enabled(), limits=limits)
        )

    HTTPHandler._create_sync_transport = transport
    HTTPHandler._create_sync_proxy_mounts = staticmethod(proxy_transports)
