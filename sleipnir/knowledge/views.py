"""The views of a base, of a forecast of a build, and of a hit."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EmbeddingUsage:
    """The usage of the embeddings of one build. `embedded` chunks were sent, `reused` ones were already known. USD;
    None: the price is not known."""

    embedded: int = 0
    reused: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0
    took_s: float = 0.0


@dataclass(frozen=True)
class BaseInfo:
    """A base. `sources` maps sources to their number of chunks; `file_bytes` and `index_bytes` are sizes on disk."""

    agent: str
    node: str
    file: str
    digest: str
    embedding_model: str | None
    dimensions: int | None
    chunk_size: int
    chunk_overlap: int
    reranker_model: str | None
    top_k: int
    documents: tuple[str, ...]
    sources: dict[str, int]
    chunks: int
    file_bytes: int
    index_bytes: int
    spent: EmbeddingUsage = field(default_factory=EmbeddingUsage)
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """The estimate of a build: `to_embed` of the `chunks` are not embedded yet. Tokens are estimated; USD."""

    agent: str
    node: str
    embedding_model: str | None
    sources: dict[str, int]
    chunks: int
    to_embed: int
    tokens: int
    cost_usd: float | None
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hit:
    """A chunk that matches a search. `lines` are its first and last line in its source, counted from 1; None if they
    are not known (a base made by Loki). `score` orders the hits of one search; scores of two searches are not
    comparable."""

    source: str
    text: str
    score: float
    lines: tuple[int, int] | None = None
