"""Search by keywords: BM25, with a list of chunks for each word (spec 8.6 item 2).

The score of a word in a chunk is computed when the index is written, so a search only adds up scores. SQLite stores the
lists. Its own full-text search is not used: its k1 is 1.2 and cannot be changed. The lists are not in the table of the
words, because SQLite would have to skip them to find a word.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from sleipnir_workers.knowledge.words import WordSplitter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Scores: TypeAlias = NDArray[np.float32]

K1: Final = 1.5
B: Final = 0.75

TABLES: Final = """
    CREATE TABLE words (word TEXT PRIMARY KEY, id INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE postings (id INTEGER PRIMARY KEY, chunks BLOB NOT NULL, scores BLOB NOT NULL);
"""
"""`chunks` are uint32, `scores` as many float32; both little-endian."""

_WORDS_PER_STATEMENT: Final = 500


def write(database: sqlite3.Connection, texts: Iterable[str]) -> int:
    """Write the lists of the chunks' words, and return the number of words."""
    vocabulary: dict[str, int] = {}
    word_ids, chunk_ids, counts, lengths = array("I"), array("I"), array("f"), array("f")
    words = WordSplitter()
    for chunk, text in enumerate(texts):
        chunk_words = words.extract(text)
        lengths.append(len(chunk_words))
        for word, count in Counter(chunk_words).items():
            word_ids.append(vocabulary.setdefault(word, len(vocabulary)))
            chunk_ids.append(chunk)
            counts.append(count)
    occurrences = _Occurrences(
        np.frombuffer(word_ids, dtype=np.uint32),
        np.frombuffer(chunk_ids, dtype=np.uint32),
        np.frombuffer(counts, dtype=np.float32),
    )
    scores = _scores(occurrences, np.frombuffer(lengths, dtype=np.float32), len(vocabulary))
    database.executemany("INSERT INTO postings VALUES (?, ?, ?)", _lists(occurrences, scores))
    database.executemany("INSERT INTO words VALUES (?, ?)", sorted(vocabulary.items()))
    return len(vocabulary)


def scores_of(database: sqlite3.Connection, text: str, chunks: int) -> Scores:
    """The score of each of the `chunks`; 0 where no word of the text occurs. A word that occurs twice counts twice."""
    counts = Counter(WordSplitter().extract(text))
    scores = np.zeros(chunks, dtype=np.float32)
    words = sorted(counts)
    for start in range(0, len(words), _WORDS_PER_STATEMENT):
        batch = words[start : start + _WORDS_PER_STATEMENT]
        postings = database.execute(
            "SELECT word, chunks, scores FROM words JOIN postings USING (id) "
            f"WHERE word IN ({', '.join('?' * len(batch))})",
            batch,
        )
        for word, rows, values in postings:
            scores[np.frombuffer(rows, dtype="<u4")] += counts[word] * np.frombuffer(values, dtype="<f4")
    return scores


@dataclass(frozen=True)
class _Occurrences:
    """Parallel arrays: the number of a word, the chunk that it occurs in, and how often."""

    words: NDArray[np.uint32]
    chunks: NDArray[np.uint32]
    counts: Scores


def _scores(occurrences: _Occurrences, lengths: Scores, words: int) -> Scores:
    """The score of each word in each of its chunks; `lengths` are those of the chunks, in words."""
    chunks = len(lengths)
    chunk_counts = np.bincount(occurrences.words, minlength=words)
    rarity = np.log(1 + (chunks - chunk_counts + 0.5) / (chunk_counts + 0.5)).astype(np.float32)
    mean = float(lengths.mean()) if chunks else 0.0
    damping = (K1 * (1 - B + B * lengths / (mean or 1.0))).astype(np.float32)
    scores: Scores = (
        rarity[occurrences.words]
        * occurrences.counts
        * np.float32(K1 + 1)
        / (occurrences.counts + damping[occurrences.chunks])
    )
    return scores


def _lists(occurrences: _Occurrences, scores: Scores) -> Iterator[tuple[int, bytes, bytes]]:
    if not len(occurrences.words):
        return
    order = np.argsort(occurrences.words, kind="stable")
    words, first = np.unique(occurrences.words[order], return_index=True)
    for word, rows in zip(words, np.split(order, first[1:]), strict=True):
        yield int(word), occurrences.chunks[rows].astype("<u4").tobytes(), scores[rows].astype("<f4").tobytes()
