"""Search a base by vectors and by keywords, and fuse both rankings or have a reranker order them (spec 8.6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sleipnir.errors import NodeFailed
from sleipnir.knowledge.order import SearchQuery
from sleipnir.knowledge.views import Hit
from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.chunking import split
from sleipnir_workers.knowledge.fusion import KEYWORD_WEIGHT, VECTOR_WEIGHT, fused

if TYPE_CHECKING:
    from sleipnir_workers.knowledge.artefact import Mask
    from sleipnir_workers.knowledge.base import Vectors

Embed: TypeAlias = Callable[[list[str]], "Vectors"]
"""The vectors of texts, a row for each."""

Rerank: TypeAlias = Callable[[str, list[str], int], list[int]]
"""Gets a question, documents and a maximum; returns the numbers (from 0) of the best documents, best first."""


@dataclass(frozen=True)
class SearchResult:
    """`hits`, best first. `context` is their text for a model, `sources` are their paths, each once. All are empty if
    nothing was found."""

    hits: tuple[Hit, ...]
    context: str
    sources: tuple[str, ...]


def search(artefact: Artefact, question: SearchQuery, embed: Embed | None, rerank: Rerank | None) -> SearchResult:
    """Without `embed`, or in a base without vectors, by keywords only.

    Raises NodeFailed when the question's vectors have another dimension than the base's, or the reranker names
    documents that it was not given; UnusableIndex; and the errors of `embed`.
    """
    top_k = artefact.info.recipe.top_k if question.top_k is None else question.top_k
    mask = artefact.mask(question.sources)
    by_vector = [] if embed is None else _by_vector(artefact, question, embed, top_k, mask)
    by_keyword = artefact.matching(question.text, top_k, mask, question.per_source)
    if rerank is None:
        scores = fused([(VECTOR_WEIGHT, by_vector), (KEYWORD_WEIGHT, by_keyword)], top_k)
    else:
        scores = _reranked(artefact, question, rerank, list(dict.fromkeys([*by_vector, *by_keyword])), top_k)
    chosen = artefact.limited(list(scores), question.per_source, top_k)
    hits = artefact.hits({chunk: scores[chunk] for chunk in chosen})
    context = "\n\n".join(f"[Source: {hit.source}]\n{hit.text}" for hit in hits)
    return SearchResult(tuple(hits), context, tuple(dict.fromkeys(hit.source for hit in hits)))


def _by_vector(artefact: Artefact, question: SearchQuery, embed: Embed, top_k: int, mask: Mask | None) -> list[int]:
    """The chunks nearest to the first piece of the question, then to the second, and so on: with repetitions."""
    recipe, dimensions = artefact.info.recipe, artefact.info.dimensions
    pieces = [chunk.text for chunk in split(question.text, "txt", recipe.chunk_size, recipe.chunk_overlap)]
    if dimensions is None or not pieces:
        return []
    queries = embed(pieces)
    if queries.shape[1] != dimensions:
        raise NodeFailed(
            f"the question's embedding has {queries.shape[1]} dimensions, those of the knowledge base have "
            f"{dimensions}: it was built with {recipe.embedding_model!r}; ask with that, or rebuild the base",
            "model",
        )
    rankings = artefact.nearest(queries, top_k, mask, question.per_source)
    return [chunk for ranking in rankings for chunk in ranking]


def _reranked(
    artefact: Artefact, question: SearchQuery, rerank: Rerank, candidates: list[int], top_k: int
) -> dict[int, float]:
    """The candidates that the reranker names, in its order. Its own scores are not used: the best has 1, then 1/2, 1/3
    and so on."""
    if not candidates:
        return {}
    texts = [hit.text for hit in artefact.hits(dict.fromkeys(candidates, 0.0))]
    # With a limit per source, more than top_k are needed, as some of them may be dropped.
    count = top_k if question.per_source is None else len(candidates)
    order = rerank(question.text, texts, count)
    if unknown := [number for number in order if not 0 <= number < len(candidates)]:
        raise NodeFailed(f"Failed to rerank: document {unknown[0]} of {len(candidates)} was named", "model")
    return {candidates[number]: 1 / (rank + 1) for rank, number in enumerate(dict.fromkeys(order))}
