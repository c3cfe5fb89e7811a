"""What is sent to a chat model: the arguments of a call, and the request of a call over plain HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sleipnir_workers.llm import conversation, litellm_compat
from sleipnir_workers.llm.models import NO_KEY, Endpoint
from sleipnir_workers.llm.reply import Message
from sleipnir_workers.llm.transport import is_direct, openai_base, openai_headers

if TYPE_CHECKING:
    from sleipnir_workers.llm.openai_chat import Chat

CALL_TIMEOUT_S = 600.0  # of one call when the caller has no limit; ends abandoned calls

_SHORTEST_HTTP_TIMEOUT_S = 2.0
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
_SETTINGS = ("stop", "seed", "presence_penalty", "frequency_penalty")
_MODEL_PARAMETERS = (
    *("temperature", "top_p", "reasoning_effort", "max_tokens", "tools", "allowed_openai_params"),
    *_SETTINGS,
)
"""Parameters whose names and values depend on the model, in OpenAI's protocol."""


@dataclass(frozen=True)
class DirectRequest:
    """A request over plain HTTP."""

    chat: Chat
    body: Mapping[str, Any]


def arguments_of(
    endpoint: Endpoint,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]],
    temperature: float | None,
    top_p: float | None,
    reasoning_effort: str | None,
    timeout_s: float,
    generation: Mapping[str, Any] = NO_SETTINGS,
) -> dict[str, Any]:
    """The arguments of a call, by litellm's names."""
    traits = endpoint.traits
    arguments: dict[str, Any] = {
        "model": endpoint.model,
        "messages": conversation.as_sent(messages, traits),
        "api_base": endpoint.api_base,
        "api_key": endpoint.api_key,
        "temperature": temperature,
        "top_p": top_p,
        **_reasoning_effort(endpoint, reasoning_effort),
        "max_tokens": traits.max_output_tokens if traits.require_max_tokens else None,
        **generation,
        "tools": list(tools) or None,
        "timeout": http_timeout_s(timeout_s),
        "max_retries": 0,
        "num_retries": 0,
        **endpoint.options,
    }
    for name, value in traits.patch_body.items():
        if value is None:  # a merge patch: null removes
            arguments.pop(name, None)
    added = {name: value for name, value in traits.patch_body.items() if value is not None}
    if endpoint.speaks_openai:
        arguments["extra_body"] = added or None
    else:
        arguments |= added
    arguments["extra_headers"] = dict(traits.patch_headers) or None
    return {name: value for name, value in arguments.items() if value is not None}


def direct_request(endpoint: Endpoint, arguments: Mapping[str, Any]) -> DirectRequest | None:
    """The request to an endpoint that speaks OpenAI's chat protocol; None if litellm makes the call. Raises litellm's
    errors."""
    if not is_direct(endpoint, "chat"):
        return None
    from sleipnir_workers.llm.openai_chat import Chat  # lazy: workers without models have no urllib3

    base = openai_base(endpoint, litellm_compat.default_api_base())
    parameters = {name: arguments[name] for name in _MODEL_PARAMETERS if name in arguments}
    model = endpoint.model.removeprefix("openai/")
    body = litellm_compat.openai_body(model, base, arguments["messages"], parameters)
    if body is None:
        return None
    chat = Chat(
        base,
        endpoint.api_key or NO_KEY,
        headers=openai_headers(endpoint),
        timeout_s=arguments["timeout"],
        tls=litellm_compat.trusted_certificates(),
    )
    return DirectRequest(chat, body | arguments.get("extra_body", {}))


def http_timeout_s(timeout_s: float) -> float:
    """More than `timeout_s`, so that our own timeout is the one that is reported. A power of two: litellm keeps an HTTP
    client per timeout, and few timeouts mean few clients."""
    http_s = _SHORTEST_HTTP_TIMEOUT_S
    while http_s <= timeout_s + 0.5:
        http_s *= 2
    return min(http_s, CALL_TIMEOUT_S)


def _reasoning_effort(endpoint: Endpoint, effort: str | None) -> dict[str, Any]:
    """litellm refuses the parameter for models that it does not know to take it; config.yaml may know better."""
    if effort is None:
        return {}
    allowed = None if litellm_compat.takes_reasoning_effort(endpoint.model) else ["reasoning_effort"]
    return {"reasoning_effort": effort, "allowed_openai_params": allowed}
