"""One call of a reranker: the texts that answer a question best (spec 8.6, 10.3).

Rules. OpenAI-compatible servers (Jina, Voyage, vLLM, Infinity, LocalAI, ...) and Cohere have POST /rerank and are
called over plain HTTP; all others through litellm. Every failure is `Failed to rerank` with its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sleipnir_workers.llm import litellm_compat, prices, transport
from sleipnir_workers.llm.failures import CallFailed, from_error
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.reply import part_of

CALL_TIMEOUT_S = 60.0

_TOP_K = frozenset({"api.voyageai.com"})  # servers that name `top_n` `top_k`


@dataclass(frozen=True)
class RerankedTexts:
    """`order` are at most `top_n` indices of the texts, the best first. `cost_usd` None: unknown."""

    order: tuple[int, ...]
    tokens: int = 0
    cost_usd: float | None = None


def rerank(
    endpoint: Endpoint,
    query: str,
    texts: Sequence[str],
    *,
    top_n: int,
    timeout_s: float = CALL_TIMEOUT_S,
    clean: Callable[[str], str] = str,
) -> RerankedTexts:
    """One call; no call without texts. `clean` removes secrets from error messages. Raises CallFailed."""
    if not texts:
        return RerankedTexts(())
    try:
        call = _over_http if transport.is_direct(endpoint, "rerank") else _by_litellm
        answer = call(endpoint, query, texts, top_n, timeout_s)
        order = _order(answer, len(texts))[:top_n]
    except Exception as error:
        failed = error if isinstance(error, CallFailed) else from_error(error, clean)
        raise CallFailed(
            f"Failed to rerank: {failed}",
            transient=failed.transient,
            kind=failed.kind,
            status=failed.status,
            retry_after_s=failed.retry_after_s,
        ) from error
    tokens, searches = _used(answer)
    return RerankedTexts(order, tokens, prices.rerank_cost_usd(endpoint, tokens, searches))


def _over_http(endpoint: Endpoint, query: str, texts: Sequence[str], top_n: int, timeout_s: float) -> Any:
    base = endpoint.api_base or transport.COHERE_BASE
    if endpoint.speaks_openai and endpoint.api_base is None:
        raise CallFailed("OpenAI has no reranker; name another client, or set its api_base")
    url, headers = f"{base.rstrip('/')}/rerank", endpoint.traits.patch_headers
    address = transport.address_of(endpoint, url, headers=headers, timeout_s=timeout_s)
    body = {
        "query": query,
        "documents": list(texts),
        "top_k" if urlsplit(base).hostname in _TOP_K else "top_n": min(top_n, len(texts)),
        **_patched(endpoint),
        "model": endpoint.model.partition("/")[2],
    }
    return address.post(body)


def _by_litellm(endpoint: Endpoint, query: str, texts: Sequence[str], top_n: int, timeout_s: float) -> Any:
    return litellm_compat.rerank(
        model=endpoint.model,
        query=query,
        documents=list(texts),
        top_n=min(top_n, len(texts)),
        api_base=endpoint.api_base,
        api_key=endpoint.api_key,
        timeout=timeout_s,
        headers=dict(endpoint.traits.patch_headers) or None,
        **_patched(endpoint),
        **endpoint.options,
    )


def _patched(endpoint: Endpoint) -> dict[str, Any]:
    return {name: value for name, value in endpoint.traits.patch_body.items() if value is not None}


def _order(answer: Any, count: int) -> tuple[int, ...]:
    """The indices of an answer, in its order. Voyage names the results `data`."""
    results = part_of(answer, "results")
    results = part_of(answer, "data") if results is None else results
    if not isinstance(results, list):
        raise CallFailed("the reranker's answer holds no results")
    order = tuple(part_of(result, "index") for result in results)
    if any(not isinstance(index, int) or not 0 <= index < count for index in order) or len(set(order)) != len(order):
        raise CallFailed(f"the reranker's answer does not number {count} texts: {list(order)[:20]}")
    return order


def _used(answer: Any) -> tuple[int, int]:
    """Tokens and searches, as far as the provider reports them; else 0."""
    usage, meta = part_of(answer, "usage"), part_of(answer, "meta")
    tokens = part_of(usage, "total_tokens") or part_of(part_of(meta, "tokens"), "input_tokens") or 0
    return int(tokens), int(part_of(part_of(meta, "billed_units"), "search_units") or 0)
