"""Model ids: `client:model` as graphs write it, and what litellm must be told to reach it (spec 10.2, 10.3).

Rules. The id is split at its first colon. A client is a provider (or an alias of one), a preset of Loki,
or any name of your own with NAME_API_BASE set: then it speaks the OpenAI protocol. Key and base come
from {CLIENT}_API_KEY and {CLIENT}_API_BASE, CLIENT in upper case with `-` as `_`; the canonical
provider's names are tried after the client's own. Nothing here imports litellm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sleipnir.errors import NodeFailed

ALIASES: Mapping[str, str] = {
    "claude": "anthropic",
    "google": "gemini",
    "azure-openai": "azure",
    "vertex": "vertex_ai",
    "vertexai": "vertex_ai",
}

LITELLM_NAMES: Mapping[str, str] = {"cohere": "cohere_chat", "ollama": "ollama_chat", "ai21": "ai21_chat"}
"""Where litellm's name of a provider's chat protocol is not the provider's."""

PRESET_BASES: Mapping[str, str] = {
    "ernie": "https://qianfan.baidubce.com/v2",
    "hunyuan": "https://api.hunyuan.cloud.tencent.com/v1",
    "jina": "https://api.jina.ai/v1",
    "qianwen": "https://dashscope.aliyuncs.com/compatible-mode/v1",
    "voyageai": "https://api.voyageai.com/v1",
    "zhipuai": "https://open.bigmodel.cn/api/paas/v4",
}
"""Presets that speak the OpenAI protocol and that litellm does not know by that name."""

EXTRA_KEYS: Mapping[str, tuple[str, ...]] = {
    "gemini": ("GOOGLE_API_KEY",),
    "perplexity": ("PERPLEXITYAI_API_KEY",),
}

KEYLESS: frozenset[str] = frozenset({"azure", "bedrock", "ollama", "vertex_ai"})
"""Providers that may be reached without an API key (cloud credentials, a local server); litellm decides."""

NO_KEY = "none"  # the OpenAI client refuses an empty key, and a local server wants none


@dataclass(frozen=True)
class Endpoint:
    """What a litellm call needs: its model name, and base and key where the environment says so."""

    model: str
    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)


def resolve(model_id: str, env: Mapping[str, str], providers: Collection[str]) -> Endpoint:
    """The endpoint of `model_id`; `providers` are the names litellm knows.

    Raises NodeFailed (`model`) for an id, a client or a key that is missing.
    """
    client, name = _split(model_id)
    provider = ALIASES.get(client, client)
    base = _first(env, (client, provider), "_API_BASE") or PRESET_BASES.get(provider)
    key = _key(env, client, provider)
    if _speaks_openai(provider, base, providers):
        return Endpoint(f"openai/{name}", base, key or NO_KEY)
    if provider not in providers:
        raise NodeFailed(
            f"Unknown model '{model_id}' on llm node: no provider is called '{client}'; "
            f"for an OpenAI-compatible server set {_prefix(client)}_API_BASE on the llm workers",
            "model",
        )
    if key is None and base is None and provider not in KEYLESS:
        raise NodeFailed(
            f"No API key for model '{model_id}': set {_prefix(client)}_API_KEY in the environment of the llm workers",
            "model",
        )
    if base is not None and key is None and provider == "openai":
        key = NO_KEY
    return Endpoint(f"{LITELLM_NAMES.get(provider, provider)}/{name}", base, key)


def _split(model_id: str) -> tuple[str, str]:
    client, _, name = model_id.partition(":")
    if client and name:
        return client, name
    example = model_id.replace("/", ":", 1) if "/" in model_id and ":" not in model_id else "openai:gpt-5-mini"
    raise NodeFailed(f"Unknown model '{model_id}' on llm node; write it as client:model, like '{example}'", "model")


def _speaks_openai(provider: str, base: str | None, providers: Collection[str]) -> bool:
    if provider == "ollama":
        return base is not None and base.rstrip("/").endswith("/v1")  # Ollama's own protocol has no /v1
    return base is not None and (provider in PRESET_BASES or provider not in providers)


def _key(env: Mapping[str, str], client: str, provider: str) -> str | None:
    if found := _first(env, (client, provider), "_API_KEY"):
        return found
    return next((env[name] for name in EXTRA_KEYS.get(provider, ()) if env.get(name)), None)


def _first(env: Mapping[str, str], clients: tuple[str, ...], suffix: str) -> str | None:
    return next((env[_prefix(name) + suffix] for name in clients if env.get(_prefix(name) + suffix)), None)


def _prefix(client: str) -> str:
    return client.upper().replace("-", "_")
