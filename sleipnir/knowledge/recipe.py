"""How a base is made: what the node says, and for the rest what the application's configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NO_MODEL: Final = "none"
"""As `embedding_model`: no model is asked, and the base is searched by keywords alone (added by Sleipnir)."""

CHUNK_SIZE: Final = 1000
TOP_K: Final = 5


@dataclass(frozen=True)
class Recipe:
    """Everything that a base depends on beside the documents themselves.

    `documents` are the sources as the agent writes them; relative ones are in its folder. `embedding_model` is an id
    `client:model`, None for keywords alone. `chunk_size` and `chunk_overlap` are bytes of UTF-8. `batch_size` is how
    many chunks go in one call of the model, None: as many as it takes.
    """

    documents: Sequence[str]
    embedding_model: str | None
    chunk_size: int = CHUNK_SIZE
    chunk_overlap: int = CHUNK_SIZE // 20
    reranker_model: str | None = None
    top_k: int = TOP_K
    batch_size: int | None = None
