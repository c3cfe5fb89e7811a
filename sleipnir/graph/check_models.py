"""Rules about the models that a graph names (spec/graph-agents.md 2.12 rule 9, 10.2). Only the workers can resolve a
model's id, so only its spelling is checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from sleipnir.graph.check_case import Case, KnownClients, Rule
from sleipnir.graph.findings import KeyPath
from sleipnir.graph.model import LlmNode, RagNode

CLIENTS = (
    "openai", "openai-compatible", "gemini", "claude", "cohere", "azure-openai", "vertexai", "bedrock",
    "anthropic", "google", "azure", "vertex", "ollama",
    "ai21", "cloudflare", "deepinfra", "deepseek", "ernie", "github", "groq", "hunyuan", "jina", "minimax", "mistral",
    "moonshot", "openrouter", "perplexity", "qianwen", "voyageai", "xai", "zhipuai",
)  # fmt: skip
"""Clients that every deployment may have, with their aliases and presets (spec 10.2, 10.3). There may be others."""

NO_MODEL = "none"
"""As `embedding_model`: the knowledge base is searched by keywords only (added by Sleipnir)."""

ALIKE = 0.8
"""How similar a name must be to a known client to count as a misspelling, such as `opneai`."""


def every_model_is_named_with_its_client(case: Case) -> None:
    """A known client without a model means its first model. Other clients need the model, because a lone name may be a
    model's."""
    hint = "Write it as `client:model`, for example openai:gpt-4o-mini."
    if case.graph.model is not None and not is_model(case.graph.model):
        case.findings.graph_error(("model",), f"unknown model '{case.graph.model}'", hint)
    if (model := _summariser(case)) is not None and not is_model(model):
        case.findings.graph_error(("summarization_model",), f"unknown model '{model}'", hint)
    for node, path in case.nodes(LlmNode):
        if node.model is not None and not is_model(node.model):
            case.findings.error((*path, "model"), f"llm node references unknown model '{node.model}'", hint)
    for model, where in _knowledge_models(case):
        if not is_model(model):
            more = f"{hint} Use `none` to search without embeddings." if where[-1] == "embedding_model" else hint
            case.findings.error(where, f"rag node references unknown model '{model}'", more)


def every_client_is_known(case: Case) -> None:
    """An error if the workers have the same clients as this machine, else a warning. If the configured clients are not
    known, only likely misspellings are reported."""
    for model, path in _models(case):
        if (doubt := doubt_about_client(model, case.clients)) is not None:
            is_certain = case.clients is not None and case.clients.complete
            (case.findings.error if is_certain else case.findings.warning)(path, *doubt)


def doubt_about_client(model: str, clients: KnownClients | None) -> tuple[str, str] | None:
    """Why the client of a model seems to be none, and what to do. `clients` None: those that are configured are not
    known, and only a likely misspelling is reported."""
    configured = frozenset[str]() if clients is None else clients.names
    known = (*CLIENTS, *sorted(configured.difference(CLIENTS)))
    client = model.partition(":")[0].strip()
    if not is_model(model) or client in known:
        return None
    close = difflib.get_close_matches(client.casefold(), known, n=1, cutoff=ALIKE)
    if clients is None and not close:
        return None
    variable = f"{client.upper().replace('-', '_')}_API_BASE"
    hint = f'Did you mean "{close[0]}"?' if close else f"For a server of your own, set {variable} for the workers."
    return f"model '{model}' names the client '{client}', which is not known", hint


RULES: Sequence[Rule] = (every_model_is_named_with_its_client, every_client_is_known)


def _models(case: Case) -> Iterator[tuple[str, KeyPath]]:
    if case.graph.model is not None:
        yield case.graph.model, ("model",)
    if (model := _summariser(case)) is not None:
        yield model, ("summarization_model",)
    for node, path in case.nodes(LlmNode):
        if node.model is not None:
            yield node.model, (*path, "model")
    yield from _knowledge_models(case)


def _knowledge_models(case: Case) -> Iterator[tuple[str, KeyPath]]:
    for node, path in case.nodes(RagNode):
        if node.embedding_model is not None and node.embedding_model != NO_MODEL:
            yield node.embedding_model, (*path, "embedding_model")
        if node.reranker_model is not None:
            yield node.reranker_model, (*path, "reranker_model")


def _summariser(case: Case) -> str | None:
    return None if case.graph.loop is None else case.graph.loop.summarization_model


def is_model(model: str) -> bool:
    """Whether a text can name a model: `client:model`, or a known client alone."""
    client, _, name = model.partition(":")
    return bool(client.strip() and (name.strip() or client in CLIENTS))
