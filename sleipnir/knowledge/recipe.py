"""The parameters of a base: from the node, else from the application's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

NO_MODEL: Final = "none"
"""As `embedding_model`: no model is called, and the base is searched by keywords only (added by Sleipnir)."""

CHUNK_SIZE: Final = 1000
TOP_K: Final = 5


@dataclass(frozen=True)
class Recipe:
    """Everything that a base depends on, besides the contents of the documents.

    `documents` are the sources as written; relative ones are in the agent's folder. `embedding_model` is an id
    `client:model`, None for keywords only. `chunk_size` and `chunk_overlap` are bytes of UTF-8. `batch_size` is the
    number of chunks per model call; None: the model's maximum.
    """

    documents: Sequence[str]
    embedding_model: str | None
    chunk_size: int = CHUNK_SIZE
    chunk_overlap: int = CHUNK_SIZE // 20
    reranker_model: str | None = None
    top_k: int = TOP_K
    batch_size: int | None = None
