"""The index that workers search: a folder that is written once and never changed, named by the digest of its base.

    manifest.json    its format, the base's digest and recipe, counts, and the size of each file
    kb.sqlite        sources, chunks, and the lists of the keyword index
    vectors.npy      a row of float32 per chunk, of length 1; none in a base without vectors
    vectors.usearch  in large bases: a graph of neighbours

All its content is derived from the base, so it can be dropped and written again at any time.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

import numpy as np

from sleipnir.errors import KnowledgeError, MachineFailed, SleipnirError
from sleipnir.graph.patterns import PatternRefused
from sleipnir.knowledge.recipe import Recipe
from sleipnir.knowledge.views import Hit
from sleipnir.staging import sync
from sleipnir_workers.knowledge import keywords, neighbours, ranking, vectors
from sleipnir_workers.knowledge.index_store import disk_error
from sleipnir_workers.knowledge.neighbours import Neighbours
from sleipnir_workers.knowledge.source_globs import matcher
from sleipnir_workers.knowledge.vectors import Matrix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sleipnir_workers.knowledge.base import Base, Vectors

    Mask: TypeAlias = NDArray[np.bool_]

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
DATABASE: Final = "kb.sqlite"
VECTORS: Final = "vectors.npy"
NEIGHBOURS: Final = "vectors.usearch"

EXACT_CHUNKS: Final = 200_000
"""In a base with more, a graph of neighbours is searched: exact search would take more than 0.1 s."""

_CANDIDATES: Final = 8  # per requested chunk; the best are selected by their exact cosines

_EXHAUSTED: Final = {sqlite3.SQLITE_CANTOPEN: "descriptors", sqlite3.SQLITE_NOMEM: "memory"}
"""The exhausted resource by the error of SQLite when it cannot read an existing file."""

_TABLES: Final = """
    CREATE TABLE sources (id INTEGER PRIMARY KEY, path TEXT NOT NULL, sha256 TEXT NOT NULL, chunks INTEGER NOT NULL);
    CREATE TABLE chunks (
        id INTEGER PRIMARY KEY, source INTEGER NOT NULL, first INTEGER, last INTEGER, text TEXT NOT NULL
    );
"""
"""The chunks of a source follow each other, in the order of the sources; ids count from 0."""


class UnusableIndex(SleipnirError):
    """The folder is not an index, is incomplete, or has another format. The index can be written again."""


@dataclass(frozen=True)
class IndexInfo:
    """`sources` are the numbers of chunks by path, `index_bytes` the size of all files, `words` their number."""

    digest: str
    recipe: Recipe
    dimensions: int | None
    chunks: int
    sources: Mapping[str, int]
    words: int
    index_bytes: int


def write(base: Base, folder: Path, digest: str, *, exact_chunks: int = EXACT_CHUNKS) -> None:
    """Write the index of a base into a folder for this digest, which must be empty or missing.

    It is stored durably when this returns; the caller makes it visible, as a whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = _write_database(base, folder / DATABASE)
    if base.vectors is not None:
        vectors.write(base.vectors, folder / VECTORS)
        if len(base.vectors) > exact_chunks:
            neighbours.write(base.vectors, folder / NEIGHBOURS)
    files = sorted(folder.iterdir())
    manifest = {
        "format": FORMAT,
        "digest": digest,
        "recipe": asdict(base.recipe),
        "dimensions": None if base.vectors is None else base.vectors.shape[1],
        "chunks": sum(len(source.chunks) for source in base.sources),
        "sources": len(base.sources),
        "words": words,
        "files": {file.name: file.stat().st_size for file in files},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    for path in (*files, folder / MANIFEST, folder):
        sync(path)


def _write_database(base: Base, file: Path) -> int:
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        # No process reads the file before it is complete, so it needs no journal.
        database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA page_size = 8192;")
        database.executescript(_TABLES + keywords.TABLES)
        database.execute("BEGIN")
        database.executemany(
            "INSERT INTO sources VALUES (?, ?, ?, ?)",
            ((id_, source.path, source.sha256, len(source.chunks)) for id_, source in enumerate(base.sources)),
        )
        database.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", _rows(base))
        words = keywords.write(database, (chunk.text for _, chunk in base.chunks()))
        database.execute("COMMIT")
        return words


def _rows(base: Base) -> Iterator[tuple[Any, ...]]:
    number = 0
    for source_number, source in enumerate(base.sources):
        for chunk in source.chunks:
            first, last = chunk.lines or (None, None)
            yield number, source_number, first, last, chunk.text
            number += 1


class Artefact:
    """An open index. Threads may share it; a process that forks must not have one open.

    Chunks are identified by their numbers, from 0. Every method may raise UnusableIndex.
    """

    def __init__(self, folder: Path, info: IndexInfo, database: sqlite3.Connection, files: Mapping[str, int]) -> None:
        self.folder, self.info = folder, info
        self._database, self._lock = database, threading.Lock()
        sources = database.execute("SELECT path, chunks FROM sources ORDER BY id").fetchall()
        self._paths = [path for path, _ in sources]
        counts = [count for _, count in sources]
        self._source_of = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
        self._matrix = Matrix(folder / VECTORS) if VECTORS in files else None
        self._neighbours = Neighbours(folder / NEIGHBOURS) if NEIGHBOURS in files else None

    @classmethod
    def open(cls, folder: Path) -> Artefact:
        """Raises UnusableIndex, which names the folder, if it is missing, incomplete, or of another format."""
        with _errors(folder):
            manifest = json.loads((folder / MANIFEST).read_text())
            if manifest["format"] != FORMAT:
                raise ValueError(f"it has format {manifest['format']!r}, and this version reads {FORMAT}")
            for name, size in manifest["files"].items():
                if (actual := (folder / name).stat().st_size) != size:
                    raise ValueError(f"{name} has {actual} bytes instead of {size}")
            # Immutable: without locks and journal, which a read-only or shared disk may not support.
            address = f"file:{quote(str(folder / DATABASE))}?mode=ro&immutable=1"
            database = sqlite3.connect(address, uri=True, check_same_thread=False)
            try:
                opened = cls(folder, _info(manifest, database), database, manifest["files"])
                opened._check_counts(manifest["chunks"])
            except BaseException:
                database.close()
                raise
            return opened

    def close(self) -> None:
        """The files are unmapped when the artefact is not referenced any more."""
        with self._lock:
            self._database.close()

    def mask(self, globs: Sequence[str]) -> Mask | None:
        """The chunks of the sources that match one of the globs; None, without globs: all."""
        if not globs:
            return None
        try:
            matches = matcher(globs)
        except PatternRefused as error:
            raise KnowledgeError(str(error)) from None
        return np.array([matches(path) for path in self._paths], dtype=bool)[self._source_of]

    def matching(self, text: str, count: int, mask: Mask | None = None, per_source: int | None = None) -> list[int]:
        """The chunks that match the words of a text best, by BM25, best first."""
        with _errors(self.folder), self._lock:
            scores = keywords.scores_of(self._database, text, self.info.chunks)
        if mask is not None:
            scores[~mask] = 0
        return ranking.best(scores, count, self._source_of, per_source)

    def nearest(
        self, queries: Vectors, count: int, mask: Mask | None = None, per_source: int | None = None
    ) -> list[list[int]]:
        """For each query (a row), the chunks nearest to it by cosine, nearest first; only those where it is above 0.

        Raises ValueError for queries of another dimension than the base's.
        """
        if self._matrix is None:
            return []
        if queries.shape[1] != self._matrix.dimensions:
            raise ValueError(f"{queries.shape[1]} dimensions, and those of the base {self._matrix.dimensions}")
        queries = vectors.normalised(queries)
        if self._neighbours is not None and mask is None and per_source is None:
            return [self._near(query, count) for query in queries]
        rankings = []
        for scores in self._matrix.similarities(queries):
            if mask is not None:
                scores[~mask] = 0
            rankings.append(ranking.best(scores, count, self._source_of, per_source))
        return rankings

    def _near(self, query: Vectors, count: int) -> list[int]:
        assert self._neighbours is not None and self._matrix is not None
        rows = np.array(sorted(self._neighbours.candidates(query, count * _CANDIDATES)), dtype=np.intp)
        scores = self._matrix.rows[rows] @ query
        return [int(rows[at]) for at in ranking.best(scores, count, self._source_of[rows])]

    def limited(self, chunks: Sequence[int], per_source: int | None, count: int) -> list[int]:
        """The first `count` of them, with at most `per_source` of each source."""
        return ranking.limited(chunks, self._source_of, per_source, count)

    def hits(self, scores: Mapping[int, float]) -> list[Hit]:
        """The chunks with these numbers, in the order of the mapping, with their scores."""
        with _errors(self.folder), self._lock:
            rows = {number: self._row(number) for number in scores}
        return [
            Hit(self._paths[source], text, scores[number], None if first is None else (first, last))
            for number, (source, first, last, text) in rows.items()
        ]

    def _row(self, number: int) -> tuple[int, int | None, int, str]:
        row: tuple[int, int | None, int, str] = self._database.execute(
            "SELECT source, first, last, text FROM chunks WHERE id = ?", [number]
        ).fetchone()
        return row

    def _check_counts(self, chunks: int) -> None:
        rows = chunks if self._matrix is None else len(self._matrix.rows)
        if not len(self._source_of) == chunks == rows:
            raise ValueError(f"it should have {chunks} chunks, and has {len(self._source_of)}, with {rows} vectors")


def _info(manifest: Mapping[str, Any], database: sqlite3.Connection) -> IndexInfo:
    by_path = database.execute("SELECT path, sum(chunks) FROM sources GROUP BY path ORDER BY min(id)")
    return IndexInfo(
        digest=manifest["digest"],
        recipe=Recipe(**manifest["recipe"]),
        dimensions=manifest["dimensions"],
        chunks=manifest["chunks"],
        sources=dict(by_path.fetchall()),
        words=manifest["words"],
        index_bytes=sum(manifest["files"].values()),
    )


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
    """Turn errors into UnusableIndex, or KnowledgeError if a resource of the machine is exhausted."""
    try:
        yield
    except OSError as error:
        if (failed := disk_error(error, folder, "read")).machine is not None:
            raise failed from error  # the index is sound and must not be written again
        raise UnusableIndex(f"{folder} is not a usable index of a knowledge base: {error}") from error
    except (sqlite3.OperationalError, MemoryError) as error:
        code = sqlite3.SQLITE_NOMEM if isinstance(error, MemoryError) else getattr(error, "sqlite_errorcode", 0)
        part = _EXHAUSTED.get(code & 0xFF)
        message = f"cannot read {folder}: {error or 'no memory'}"
        if part is not None:
            raise KnowledgeError(message, "store", machine=MachineFailed(part, message)) from error
        raise UnusableIndex(f"{folder} is not a usable index of a knowledge base: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, sqlite3.Error) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UnusableIndex(f"{folder} is not a usable index of a knowledge base: {reason}") from error
