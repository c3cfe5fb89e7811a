"""The embeddings and rankings of the model server: deterministic, without a model.

A text's vector counts its words and their groups of three letters, each hashed to one of the dimensions. So texts that
share words are near each other, and texts that share parts of words are somewhat near.
"""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sleipnir.testing.request import Request

DIMENSIONS = 64

_RERANKER_DIMENSIONS = 512  # more dimensions distinguish more words
_WORD = re.compile(r"\w+")
_LETTERS = 0.3  # the weight of three letters relative to a word
_STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be by can do does for from has have how if in into is it its no not of on or that the "
        "their then there these this to was what when where which who why will with you your"
    )
)


def vector_of(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """The vector of a text, of length 1."""
    counts: Counter[str] = Counter()
    for word in _WORD.findall(text.lower()):
        if word in _STOP_WORDS:
            continue
        counts[word] += 1
        framed = f"<{word}>"
        for start in range(len(framed) - 2):
            counts[f"{framed[start : start + 3]}-"] += 1
    if not counts:
        counts[text] = 1
    vector = [0.0] * dimensions
    for feature, count in counts.items():
        hashed = zlib.crc32(feature.encode(errors="replace"))
        weight = math.sqrt(count) * (_LETTERS if feature.endswith("-") else 1.0)
        vector[(hashed >> 1) % dimensions] += weight if hashed & 1 else -weight
    length = math.sqrt(sum(number * number for number in vector))
    if not length:  # the features cancel each other out
        vector[0] = length = 1.0
    return [number / length for number in vector]


def embeddings(request: Request, dimensions: int, model: str | None = None) -> dict[str, Any]:
    """The answer to an embedding request in OpenAI's protocol; it counts a token for four characters."""
    encoded = request.body.get("encoding_format") == "base64"
    data = []
    for index, text in enumerate(request.inputs):
        vector: Any = vector_of(text, dimensions)
        if encoded:
            vector = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
        data.append({"object": "embedding", "index": index, "embedding": vector})
    tokens = _tokens(request.inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model or request.model, "usage": usage}


def ranking(request: Request, model: str | None = None) -> dict[str, Any]:
    """The answer to a rerank request, in the form of Jina and Cohere."""
    query = vector_of(request.query, _RERANKER_DIMENSIONS)
    scored = [(_similarity(query, text), -index) for index, text in enumerate(request.documents)]
    results: list[Mapping[str, Any]] = [
        {"index": -index, "relevance_score": round(score, 6)} for score, index in sorted(scored, reverse=True)
    ]
    top_n = request.body.get("top_n") or len(results)
    tokens = _tokens([request.query, *request.documents])
    return {
        "id": "rerank-test",
        "model": model or request.model,
        "results": results[:top_n],
        "usage": {"total_tokens": tokens},
        "meta": {"billed_units": {"search_units": 1}},
    }


def _similarity(query: Sequence[float], text: str) -> float:
    return sum(a * b for a, b in zip(query, vector_of(text, _RERANKER_DIMENSIONS), strict=True))


def _tokens(texts: Sequence[str]) -> int:
    return sum(-(-len(text) // 4) for text in texts)
