"""Model ids, `client:model` in graphs, and the endpoints that they stand for (spec 10.2, 10.3).

Rules. The id is split at its first colon. A client is one of config.yaml's, a provider (or an alias of one), a preset
of Loki, or any other name with NAME_API_BASE set: then it speaks the OpenAI protocol. Key and base come from
config.yaml, else from {CLIENT}_API_KEY and {CLIENT}_API_BASE, CLIENT in upper case with `-` as `_`; the canonical
provider's names are tried after the client's own. `client` alone is the first model of the required kind that
config.yaml lists for it. A model that a client does not list may be called too. For embeddings this applies only if
litellm's price list has the model, or if the client lists no models: a knowledge base keeps its model forever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from sleipnir.errors import NodeFailed
from sleipnir.graph.findings import suggestion
from sleipnir_workers.llm import litellm_compat
from sleipnir_workers.llm.clients import NO_CLIENTS, Clients, ConfiguredClient, Kind, ModelTraits

ALIASES: Mapping[str, str] = {
    "claude": "anthropic",
    "google": "gemini",
    "azure-openai": "azure",
    "vertex": "vertex_ai",
    "vertexai": "vertex_ai",
}

LITELLM_NAMES: Mapping[str, str] = {"cohere": "cohere_chat", "ollama": "ollama_chat", "ai21": "ai21_chat"}
"""litellm's names of chat protocols that differ from the name of the provider."""

PRESET_BASES: Mapping[str, str] = {
    "ernie": "https://qianfan.baidubce.com/v2",
    "hunyuan": "https://api.hunyuan.cloud.tencent.com/v1",
    "jina": "https://api.jina.ai/v1",
    "qianwen": "https://dashscope.aliyuncs.com/compatible-mode/v1",
    "voyageai": "https://api.voyageai.com/v1",
    "zhipuai": "https://open.bigmodel.cn/api/paas/v4",
}
"""Presets that speak the OpenAI protocol, and whose names litellm does not know."""

EXTRA_KEYS: Mapping[str, tuple[str, ...]] = {
    "gemini": ("GOOGLE_API_KEY",),
    "perplexity": ("PERPLEXITYAI_API_KEY",),
}

KEYLESS: frozenset[str] = frozenset({"azure", "bedrock", "ollama", "vertex_ai"})
"""Providers that may be reached without an API key (cloud credentials, a local server); litellm decides."""

OPTIONS: Mapping[str, str] = {
    "organization_id": "organization",
    "api_version": "api_version",
    "project_id": "vertex_project",
    "location": "vertex_location",
    "adc_file": "vertex_credentials",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "region": "aws_region_name",
}
"""Other settings of a client in config.yaml, with litellm's names."""

EXAMPLES: Mapping[str, str] = {
    "chat": "openai:gpt-5-mini",
    "embedding": "openai:text-embedding-3-small",
    "reranker": "cohere:rerank-v3.5",
}

NO_KEY = "none"  # the OpenAI client refuses an empty key, and a local server needs none


@dataclass(frozen=True)
class Endpoint:
    """The target of a call: the model by litellm's name, base and key if known, and other `options`.

    `traits` are the settings of the model in config.yaml.
    """

    model: str
    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    traits: ModelTraits = field(default_factory=ModelTraits)

    @property
    def speaks_openai(self) -> bool:
        return self.model.startswith("openai/")

    @property
    def secrets(self) -> frozenset[str]:
        """The values that texts must not show."""
        return frozenset(value for value in (self.api_key, *self.options.values()) if value and value != NO_KEY)


def model_of(node: str | None, graph: str | None, default: str | None) -> str:
    """The id of the model to call: the node's, else the graph's, else the `default`. Raises NodeFailed (`model`)."""
    model = node or graph or default
    if model is None:
        raise NodeFailed(
            "no model: name one as `model: client:model` on the node or the graph, "
            "or set SLEIPNIR_MODEL on the llm workers",
            "model",
        )
    return model


def resolve(
    model_id: str,
    env: Mapping[str, str],
    providers: Collection[str],
    clients: Clients = NO_CLIENTS,
    kind: Kind = "chat",
) -> Endpoint:
    """The endpoint of `model_id`; `providers` are litellm's names, `clients` those of config.yaml, `kind` is the
    model's purpose.

    `env` is the worker's environment with its secrets file. Raises NodeFailed (`model`) for an invalid id, an unknown
    client or a missing key, and ConfigError for a missing secret.
    """
    name, _, model = model_id.partition(":")
    client = _configured(clients, name)
    if client is not None:
        traits = _traits_of(client, model, model_id, kind)
        endpoint = _endpoint(model_id, name, traits.sent_as, env, providers, client, kind)
    else:
        name, model = _split(model_id, kind)
        traits = ModelTraits(type=kind)
        endpoint = _endpoint(model_id, name, model, env, providers, None, kind)
    prices = clients.prices_of(f"{name}:{model or traits.name}") or traits.prices
    return replace(endpoint, traits=replace(traits, prices=prices))


def replayed_endpoint(model_id: str, clients: Clients = NO_CLIENTS) -> Endpoint:
    """The endpoint of a model that is never called, because its answers are recorded. It needs no key.

    Raises NodeFailed (`model`) for an invalid id.
    """
    name, _, model = model_id.partition(":")
    if (client := _configured(clients, name)) is not None:
        return Endpoint(model_id, traits=_traits_of(client, model, model_id, "chat"))
    _split(model_id, "chat")
    return Endpoint(model_id)


def _endpoint(
    model_id: str,
    name: str,
    model: str,
    env: Mapping[str, str],
    providers: Collection[str],
    client: ConfiguredClient | None,
    kind: Kind,
) -> Endpoint:
    """The endpoint of `model` of client `name`."""
    settings = {} if client is None else client.values(env)
    provider = _provider(name, client)
    names = (name, provider) if client is None else (client.name, name, provider)
    base = settings.get("api_base") or _first(env, names, "_API_BASE") or PRESET_BASES.get(provider)
    key = settings.get("api_key") or _key(env, names, provider)
    options = {OPTIONS[key]: value for key, value in settings.items() if key in OPTIONS}
    if _speaks_openai(provider, base, providers):
        return Endpoint(f"openai/{model}", base, key or NO_KEY, options)
    if provider not in providers:
        raise NodeFailed(
            f"{_unknown(model_id, kind)}: no provider is called '{name}'; "
            f"for an OpenAI-compatible server set {_prefix(name)}_API_BASE on {_place(kind)}",
            "model",
        )
    if key is None and base is None and provider not in KEYLESS:
        raise NodeFailed(
            f"No API key for model '{model_id}': set {_prefix(name)}_API_KEY in the environment of {_place(kind)}",
            "model",
        )
    if base is not None and key is None and provider == "openai":
        key = NO_KEY
    protocol = LITELLM_NAMES.get(provider, provider) if kind == "chat" else provider
    return Endpoint(f"{protocol}/{model}", base, key, options)


def _configured(clients: Clients, name: str) -> ConfiguredClient | None:
    """The client of config.yaml with this name, else a client of that provider."""
    exact = next((client for client in clients.clients if client.name == name), None)
    if exact is not None:
        return exact
    provider = ALIASES.get(name, name)
    return next((client for client in clients.clients if ALIASES.get(client.name, client.name) == provider), None)


def _provider(name: str, client: ConfiguredClient | None) -> str:
    """litellm's name of the provider; for a compatible server, the name that may be a preset's."""
    if client is not None:
        name = client.name if client.type == "openai-compatible" else client.type
    return ALIASES.get(name, name)


def _traits_of(client: ConfiguredClient, model: str, model_id: str, kind: Kind) -> ModelTraits:
    """The settings of a model in config.yaml; the defaults for a model that it does not list."""
    if not model:
        first = next((traits for traits in client.models if traits.type == kind), None)
        if first is None:
            raise _not_split(model_id, kind)
        return first
    names = [f"{client.name}:{traits.name}" for traits in client.models if traits.type == kind]
    same_name = [traits for traits in client.models if traits.name == model]
    listed = next((traits for traits in same_name if traits.type == kind), None)
    if listed is None and same_name:
        hint = suggestion(model_id, names, f"{kind} models")
        raise NodeFailed(f"Model '{model_id}' is not a {kind} model" + (f"; {hint}" if hint else ""), "model")
    if listed is None and kind == "embedding" and client.models and not _is_embedding(client, model):
        hint = suggestion(model_id, names, "embedding models")
        raise NodeFailed(
            f"Unknown embedding model '{model_id}': list it as `type: embedding` below its client in config.yaml"
            + (f"; {hint}" if hint else ""),
            "model",
        )
    return listed or client.with_patch(ModelTraits(model, type=kind))


def _is_embedding(client: ConfiguredClient, model: str) -> bool:
    return litellm_compat.listed(f"{_provider(client.name, client)}/{model}", "embedding") is not None


def _split(model_id: str, kind: Kind) -> tuple[str, str]:
    client, _, name = model_id.partition(":")
    if client and name:
        return client, name
    raise _not_split(model_id, kind)


def _not_split(model_id: str, kind: Kind) -> NodeFailed:
    example = model_id.replace("/", ":", 1) if "/" in model_id and ":" not in model_id else EXAMPLES[kind]
    return NodeFailed(f"{_unknown(model_id, kind)}; write it as client:model, like '{example}'", "model")


def _unknown(model_id: str, kind: Kind) -> str:
    return f"Unknown model '{model_id}' on llm node" if kind == "chat" else f"Unknown {kind} model '{model_id}'"


def _place(kind: Kind) -> str:
    """The workers whose environment needs a variable."""
    return "the llm workers" if kind == "chat" else "the rag workers and the builder"


def _speaks_openai(provider: str, base: str | None, providers: Collection[str]) -> bool:
    if provider == "ollama":
        return base is not None and base.rstrip("/").endswith("/v1")  # Ollama's own protocol has no /v1
    return base is not None and (provider in PRESET_BASES or provider not in providers)


def _key(env: Mapping[str, str], clients: Collection[str], provider: str) -> str | None:
    if key := _first(env, clients, "_API_KEY"):
        return key
    return next((env[name] for name in EXTRA_KEYS.get(provider, ()) if env.get(name)), None)


def _first(env: Mapping[str, str], clients: Collection[str], suffix: str) -> str | None:
    return next((env[_prefix(name) + suffix] for name in clients if env.get(_prefix(name) + suffix)), None)


def _prefix(client: str) -> str:
    return client.upper().replace("-", "_")
