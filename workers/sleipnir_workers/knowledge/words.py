"""The words of search by keywords: stemmed English words without stop words (spec 8.6 item 2)."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import Stemmer

STOP_WORDS: Final = frozenset({
    "a", "about", "above", "after", "again", "against", "all", "also", "am", "an", "and", "any", "are", "as", "at",
    "be", "because", "been", "before", "being", "below", "between", "both", "but", "by", "can", "could", "did", "do",
    "does", "doing", "don", "down", "during", "each", "few", "for", "from", "further", "had", "has", "have", "having",
    "he", "her", "here", "hers", "him", "his", "how", "i", "if", "in", "into", "is", "it", "its", "itself", "just",
    "ll", "me", "more", "most", "my", "no", "nor", "not", "now", "of", "off", "on", "once", "only", "or", "other",
    "our", "out", "over", "own", "re", "s", "same", "shall", "she", "should", "so", "some", "such", "t", "than",
    "that", "the", "their", "them", "then", "there", "these", "they", "this", "those", "through", "to", "too",
    "under", "until", "up", "ve", "very", "was", "we", "were", "what", "when", "where", "which", "while", "who",
    "whom", "why", "will", "with", "would", "you", "your",
})  # fmt: skip
"""Function words, and the parts of I'll, don't, we're and we've beside their apostrophes."""

_WORD: Final = re.compile(r"[^\W_]+")  # so max_bytes is two words, as a question may write them


class WordSplitter:
    """Splits texts into words. It caches the stem of each word; for one thread only, as the stemmer is."""

    def __init__(self) -> None:
        self._stemmer = Stemmer.Stemmer("english", 0)  # 0: no cache of its own, as `_stems` is one
        self._stems: dict[str, str | None] = dict.fromkeys(STOP_WORDS)

    def extract(self, text: str) -> list[str]:
        """The words of a text in their order, with repetitions."""
        if not text.isascii():
            text = unicodedata.normalize("NFKC", text)  # PDF files write "fi" as one letter
        return [word for match in _WORD.findall(text.lower()) if (word := self._stemmed(match)) is not None]

    def _stemmed(self, word: str) -> str | None:
        try:
            return self._stems[word]
        except KeyError:
            stemmed: str = self._stemmer.stemWord(word)
            self._stems[word] = stemmed
            return stemmed
