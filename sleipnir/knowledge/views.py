"""What is known of a base, of a build before it is made, and of a hit."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EmbeddingUsage:
    """What the embeddings of one build took. `embedded` chunks were sent, `reused` ones were known. USD; None: the
    price is not known."""

    embedded: int = 0
    reused: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0
    took_s: float = 0.0


@dataclass(frozen=True)
class BaseInfo:
    """A base. `sources` by number of chunks, `bytes_` of the file, `index_bytes` of what workers search."""

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
    """What a build would take: of `chunks`, `to_embed` are not known yet. Tokens are an estimate; USD."""

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
    """A chunk that was found. `lines` are the first and last line of its source, counted from 1; None where they are
    not known (a base made by Loki). `score` orders hits of one search, and means nothing beside another's."""

    source: str
    text: str
    score: float
    lines: tuple[int, int] | None = None
