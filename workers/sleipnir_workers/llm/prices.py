"""What a call of a model costs, in USD. None where the price is unknown, never 0 for unknown.

Rules. The price in config.yaml comes first, then the cost that the provider reports, then litellm's price list.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from sleipnir_workers.llm import litellm_compat
from sleipnir_workers.llm.clients import Prices
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.reply import part_of


def chat_cost_usd(
    endpoint: Endpoint, usage: Any, served_model: str, input_tokens: int, output_tokens: int
) -> float | None:
    """`usage` is the provider's, `served_model` the model that its answer names."""
    if not input_tokens and not output_tokens:  # no usage was reported
        return None
    if endpoint.traits.prices is not None:
        return endpoint.traits.prices.cost_usd(input_tokens, output_tokens)
    reported = part_of(usage, "cost")
    if isinstance(reported, (int, float)) and not isinstance(reported, bool):
        return float(reported)
    if not _is_listed(endpoint.model, served_model):
        return None
    return litellm_compat.completion_cost_usd(endpoint.model, served_model, usage)


def embedding_cost_usd(endpoint: Endpoint, tokens: int) -> float | None:
    prices = endpoint.traits.prices
    listed = (litellm_compat.listed(endpoint.model, "embedding") or {}).get("input_cost_per_token")
    if prices is None and listed is not None:
        prices = Prices(float(listed) * 1_000_000, 0.0)
    return None if prices is None else prices.cost_usd(tokens, 0)


def rerank_cost_usd(endpoint: Endpoint, tokens: int, searches: int) -> float | None:
    """litellm's list has prices per search for some models, per token for others."""
    if endpoint.traits.prices is not None:
        return endpoint.traits.prices.cost_usd(tokens, 0) if tokens else None
    entry: Mapping[str, Any] = litellm_compat.listed(endpoint.model, "rerank") or {}
    if entry.get("input_cost_per_query"):
        return float(entry["input_cost_per_query"]) * max(1, searches)
    return float(entry["input_cost_per_token"]) * tokens if tokens and entry.get("input_cost_per_token") else None


@functools.lru_cache(maxsize=1024)
def _is_listed(model: str, served_model: str) -> bool:
    """Whether litellm's list has the model. To look up a model that it lacks takes longer than the call."""
    one_token = {"prompt_tokens": 1, "completion_tokens": 1}
    return litellm_compat.completion_cost_usd(model, served_model, one_token) is not None
