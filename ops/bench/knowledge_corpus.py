"""The material of the measurement: documentation that the machine already has, questions about it, and an embedder.

Documents are the Markdown, reStructuredText and plain text files that installed Python packages and Debian's packages
contain. A question is a heading that no other section has, its answer that section.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sleipnir.knowledge.recipe import Recipe
from sleipnir_workers.knowledge.base import Base, Chunk, Document, Source
from sleipnir_workers.knowledge.chunking import split
from sleipnir_workers.knowledge.words import WordSplitter

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

SYSTEM = Path("/usr/share/doc")
EXTENSIONS = {".md", ".rst", ".txt"}
LEAST_BYTES, MOST_BYTES = 1_000, 400_000
NOT_PROSE = {"stoplists", "res", "_next", "out", "tests", "test", "licenses"}
"""Folders with lists of words, of addresses, and pages of a program."""

CHUNK_SIZE, CHUNK_OVERLAP = 1000, 100
DIMENSIONS = 384


@dataclass(frozen=True)
class Pair:
    """A question and the lines (from 1) of the document that answer it."""

    question: str
    path: str
    first: int
    last: int


def documents() -> list[Document]:
    """All of them in the order of their paths, each text once."""
    by_text: dict[str, Document] = {}
    for root in (Path(sysconfig.get_path("purelib")), SYSTEM):
        for file in sorted(root.rglob("*")):
            if file.suffix not in EXTENSIONS or NOT_PROSE & set(file.relative_to(root).parts) or file.is_symlink():
                continue
            if not LEAST_BYTES <= file.stat().st_size <= MOST_BYTES:
                continue
            try:
                text = file.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            by_text.setdefault(text, Document(str(file), text, file.suffix[1:]))
    return list(by_text.values())


_MARKDOWN_HEADING = re.compile(r"#{1,6} +(.+?) *#*")
_UNDERLINE = re.compile(r"([=\-~^*+#\"'`])\1{3,}")


def headings(document: Document) -> Iterator[tuple[int, str]]:
    """The lines (from 1) of the headings, and their texts without markup."""
    lines = document.text.split("\n")
    fenced = False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            fenced = not fenced
        if fenced:
            continue
        following = lines[number] if number < len(lines) else ""
        if document.extension == "md" and (match := _MARKDOWN_HEADING.fullmatch(line)):
            yield number, plain(match[1])
        elif document.extension != "md" and line.strip() and underlined(line, following):
            yield number, plain(line)


def underlined(line: str, following: str) -> bool:
    return bool(_UNDERLINE.fullmatch(following)) and abs(len(following) - len(line.rstrip())) <= 2 and line[0].isalnum()


def plain(heading: str) -> str:
    """The text without links and markup."""
    return re.sub(r"[`*\\]|\{#.*\}", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip()


def pairs(corpus: Sequence[Document], least_words: int = 3, least_bytes: int = 200) -> list[Pair]:
    """The headings of at least so many words that only one section has, with sections of at least so many bytes."""
    sections = []
    for document in corpus:
        starts = list(headings(document))
        lines = document.text.split("\n")
        ends = [first for first, _ in starts[1:]] + [len(lines) + 1]
        for (first, heading), after in zip(starts, ends, strict=False):
            body = "\n".join(lines[first - 1 : after - 1])
            if len(heading.split()) >= least_words and len(body.encode()) - len(heading) >= least_bytes:
                sections.append(Pair(heading, document.path, first, after - 1))
    times = Counter(pair.question.lower() for pair in sections)
    return [pair for pair in sections if times[pair.question.lower()] == 1]


def without_headings(corpus: Sequence[Document]) -> list[Document]:
    """The same documents with empty lines instead of headings, so that no question occurs literally."""
    bare = []
    for document in corpus:
        lines = document.text.split("\n")
        for number, _ in headings(document):
            lines[number - 1] = ""
        bare.append(Document(document.path, "\n".join(lines), document.extension))
    return bare


def base_of(corpus: Sequence[Document]) -> Base:
    """The chunks without vectors."""
    sources = [
        Source(
            document.path,
            hashlib.sha256(document.text.encode()).hexdigest(),
            split(document.text, document.extension, CHUNK_SIZE, CHUNK_OVERLAP),
        )
        for document in corpus
    ]
    return Base(Recipe([str(SYSTEM)], None, CHUNK_SIZE, CHUNK_OVERLAP), sources, None)


def embedded(base: Base, embedder: Embedder) -> Base:
    vectors = embedder.vectors([chunk.text for _, chunk in base.chunks()], of_chunks=True)
    return replace(base, recipe=replace(base.recipe, embedding_model="bench:hash"), vectors=vectors)


def repeated(base: Base, count: int) -> Base:
    """A base of `count` chunks: the first ones, or all as often as it takes. No two chunks or vectors are the same."""
    assert base.vectors is not None
    chunks = [(source.path, chunk) for source, chunk in base.chunks()]
    rng = np.random.default_rng(1)
    rows = np.arange(count) % len(chunks)
    vectors = base.vectors[rows] + rng.normal(scale=0.005, size=(count, base.vectors.shape[1])).astype(np.float32)
    by_path: dict[str, list[Chunk]] = {}
    for number, row in enumerate(rows):
        path, chunk = chunks[row]
        turn = number // len(chunks)
        by_path.setdefault(f"{path}?{turn}", []).append(Chunk(f"{chunk.text}\n{number}", chunk.lines))
    sources = [Source(path, hashlib.sha256(path.encode()).hexdigest(), some) for path, some in by_path.items()]
    return replace(base, sources=sources, vectors=vectors)


def save(vectors: Vectors, file: Path) -> None:
    np.save(file, vectors)


class Embedder:
    """Vectors without a model: words and pairs of neighbouring words, each thrown on all dimensions by its hash.

    A rare one weighs more than one that the corpus has often, and a second occurrence less than the first. The rows of
    chunks are as long as most are, and what they lack of that is in a dimension that questions do not have: so a cosine
    does not prefer short chunks, as no model does. It gets no questions or headings.
    """

    SATURATION = 1.5  # n occurrences count n / (n + 1.5), as in BM25
    USUAL = 95  # percent of the chunks are not longer

    def __init__(self, base: Base, dimensions: int = DIMENSIONS) -> None:
        self._dimensions = dimensions
        self._words = WordSplitter()
        self._times: Counter[str] = Counter()
        for _, chunk in base.chunks():
            self._times.update(self._parts(chunk.text))
        self._total = sum(self._times.values())

    def vectors(self, texts: Sequence[str], *, of_chunks: bool = False) -> Vectors:
        rows = np.zeros((len(texts), self._dimensions), dtype=np.float32)
        for row, text in enumerate(texts):
            if counts := Counter(self._parts(text)):
                occurrences = np.fromiter(counts.values(), dtype=np.float32)
                times = np.array([self._times[part] for part in counts], dtype=np.float32)
                rarity = np.log((self._total + 1) / (times + 1))
                rows[row] = (occurrences / (occurrences + self.SATURATION) * rarity) @ self._signs(counts)
        rows[:, -1] = 0
        lengths = np.linalg.norm(rows, axis=1)
        if of_chunks:
            usual = np.percentile(lengths, self.USUAL)
            rows[:, -1] = np.sqrt(np.maximum(usual**2 - lengths**2, 0))
        return rows

    def _parts(self, text: str) -> list[str]:
        words = self._words.extract(text)
        return words + [f"{first} {second}" for first, second in itertools.pairwise(words)]

    def _signs(self, parts: Iterable[str]) -> Vectors:
        """A row per part: 1 or -1 in each dimension."""
        hashes = b"".join(hashlib.shake_128(part.encode()).digest(self._dimensions // 8) for part in parts)
        bits = np.unpackbits(np.frombuffer(hashes, dtype=np.uint8).reshape(-1, self._dimensions // 8), axis=1)
        return bits.astype(np.float32) * 2 - 1
