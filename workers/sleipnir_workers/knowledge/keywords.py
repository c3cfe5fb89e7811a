"""Search by keywords: BM25, with a list per word of the chunks that have it (spec 8.6 item 2).

The score of a word in a chunk is worked out when the index is written, so a question only adds up. SQLite keeps the
lists. Its own full-text search is not used: its k1 is 1.2 and cannot be changed. The lists are not in the table of the
words, because SQLite would have to step over them to find a word.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from sleipnir_workers.knowledge.words import Words

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

_AT_ONCE: Final = 500  # words in one statement of SQLite


def write(database: sqlite3.Connection, texts: Iterable[str]) -> int:
    """Write the lists of the chunks' words, and return how many words there are."""
    vocabulary: dict[str, int] = {}
    of_word, of_chunk, counts, lengths = array("I"), array("I"), array("f"), array("f")
    words = Words()
    for chunk, text in enumerate(texts):
        found = words.of(text)
        lengths.append(len(found))
        for word, count in Counter(found).items():
            of_word.append(vocabulary.setdefault(word, len(vocabulary)))
            of_chunk.append(chunk)
            counts.append(count)
    found_in = _Found(
        np.frombuffer(of_word, dtype=np.uint32),
        np.frombuffer(of_chunk, dtype=np.uint32),
        np.frombuffer(counts, dtype=np.float32),
    )
    scores = _scores(found_in, np.frombuffer(lengths, dtype=np.float32), len(vocabulary))
    database.executemany("INSERT INTO postings VALUES (?, ?, ?)", _lists(found_in, scores))
    database.executemany("INSERT INTO words VALUES (?, ?)", sorted(vocabulary.items()))
    return len(vocabulary)


def scores_of(database: sqlite3.Connection, text: str, chunks: int) -> Scores:
    """The score of each of the `chunks`; 0 where no word of the text occurs. A word that occurs twice counts twice."""
    wanted = Counter(Words().of(text))
    scores = np.zeros(chunks, dtype=np.float32)
    words = sorted(wanted)
    for start in range(0, len(words), _AT_ONCE):
        some = words[start : start + _AT_ONCE]
        found = database.execute(
            "SELECT word, chunks, scores FROM words JOIN postings USING (id) "
            f"WHERE word IN ({', '.join('?' * len(some))})",
            some,
        )
        for word, rows, values in found:
            scores[np.frombuffer(rows, dtype="<u4")] += wanted[word] * np.frombuffer(values, dtype="<f4")
    return scores


@dataclass(frozen=True)
class _Found:
    """A word (by its number) occurs in a chunk, so many times."""

    words: NDArray[np.uint32]
    chunks: NDArray[np.uint32]
    counts: Scores


def _scores(found: _Found, lengths: Scores, words: int) -> Scores:
    """Of each word in each of its chunks; `lengths` are those of the chunks, in words."""
    chunks = len(lengths)
    having = np.bincount(found.words, minlength=words)
    rarity = np.log(1 + (chunks - having + 0.5) / (having + 0.5)).astype(np.float32)
    mean = float(lengths.mean()) if chunks else 0.0
    damping = (K1 * (1 - B + B * lengths / (mean or 1.0))).astype(np.float32)
    scores: Scores = rarity[found.words] * found.counts * np.float32(K1 + 1) / (found.counts + damping[found.chunks])
    return scores


def _lists(found: _Found, scores: Scores) -> Iterator[tuple[int, bytes, bytes]]:
    if not len(found.words):
        return
    order = np.argsort(found.words, kind="stable")
    words, first = np.unique(found.words[order], return_index=True)
    for word, rows in zip(words, np.split(order, first[1:]), strict=True):
        yield int(word), found.chunks[rows].astype("<u4").tobytes(), scores[rows].astype("<f4").tobytes()
