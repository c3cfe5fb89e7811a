"""BM25: texts by their relevance to a query (k1 1.2, b 0.75).

Identifiers are split into words (`create_issue`, `createIssue`), in lower case and without a plural's `s`, because
models search with "list issues" for `issue_list`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

K1 = 1.2
B = 0.75

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Ranking:
    """The word counts of the texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(words(text)) for text in texts]
        self._lengths = [count.total() for count in self._counts]
        self._average = sum(self._lengths) / len(texts) if texts else 0.0
        self._document_frequency = Counter(word for count in self._counts for word in count)

    def best(self, query: str, most: int) -> list[int]:
        """Positions of the texts that contain a word of the query, best first; equal scores in the order of the texts.

        For a query without words, the first texts.
        """
        query_words = list(dict.fromkeys(words(query)))
        if not query_words:
            return list(range(min(most, len(self._counts))))
        scored = [(self._score(position, query_words), position) for position in range(len(self._counts))]
        scored = [(score, position) for score, position in scored if score > 0]
        return [position for _, position in sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:most]]

    def _score(self, position: int, query_words: Sequence[str]) -> float:
        counts = self._counts[position]
        length = K1 * (1 - B + B * self._lengths[position] / self._average) if self._average else 0.0
        return sum(
            self._rarity(word) * counts[word] * (K1 + 1) / (counts[word] + length)
            for word in query_words
            if word in counts
        )

    def _rarity(self, word: str) -> float:
        frequency = self._document_frequency[word]
        return math.log(1 + (len(self._counts) - frequency + 0.5) / (frequency + 0.5))


def words(text: str) -> list[str]:
    """The words of a text in the form for comparison."""
    return [_singular(part.lower()) for word in _WORD.findall(text) for part in _HUMP.split(word)]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
