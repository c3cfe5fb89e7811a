"""The permit of one call of a model. permits.py grants them.

This module knows nothing of the store, so that a call of a model needs none.
"""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.models.limits import estimated_tokens
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.reply import Message

ANSWER_TOKENS = 1_000  # the assumed length of an answer if the model's maximum is unknown


class Permit:
    """The tokens that one call used; None: unknown."""

    tokens: int | None = None


def names_of(model: str, endpoint: Endpoint) -> tuple[str, str]:
    """The names of a model in limits.yaml: its id, and `provider:model` by litellm's names."""
    return model, endpoint.model.replace("/", ":", 1)


def tokens_of_chat(endpoint: Endpoint, messages: Sequence[Message]) -> int:
    """The estimated tokens of a question and its answer."""
    characters = sum(len(text) for message in messages if isinstance(text := message.get("content"), str))
    return estimated_tokens(characters, endpoint.traits.max_output_tokens or ANSWER_TOKENS)
