"""Knowledge bases: what an index costs to write, to keep and to search, and how many of the expected passages it finds.

The corpus is of knowledge_corpus.py. A larger base repeats its chunks, each with a number of its own and a vector a
little beside the first. Searching is measured in processes that do nothing else, on one core each; beside it `bm25s`,
which searches by keywords alone and keeps its index in memory. Quality is by questions whose answer is known: whether
one of the first five hits lies in the right section (recall@5), and the mean of 1 / its place (MRR).
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ops.bench.figures import BenchFailed, NotMeasured, Values
from ops.bench.processes import PYTHON, environment, last_line

if TYPE_CHECKING:
    from ops.bench.knowledge_corpus import Pair
    from sleipnir_workers.knowledge.base import Base, Document, Vectors

SEARCHER = Path(__file__).with_name("knowledge_searcher.py")
SMALL = 5_000
TOP = 5
PROCESSES = 4
SEARCHES = 400
QUALITY_DIMENSIONS = 768
"""The size of a usual model. A hash of 384 finds clearly less than keywords do, one of 1,536 clearly more, and what
both find together is then between the two: ranks are fused without knowing which list is better."""

LEAST_CHUNKS = 3_000
"""A machine with less documentation says nothing about a real corpus."""

Place = tuple[str, tuple[int, int] | None]
"""A chunk's source and lines."""

Search = Callable[[str], Sequence[Place]]
"""The places that are found, best first."""


def costs(chunks: int) -> Values:
    """The costs and the search speed of bases of SMALL and of `chunks` chunks."""
    from ops.bench import knowledge_corpus as corpus
    from sleipnir_workers.knowledge import artefact, loki_file

    documents = _documents()
    questions = [pair.question for pair in _some(corpus.pairs(documents), SEARCHES)]
    started = time.perf_counter()
    bare = corpus.base_of(documents)
    values = {"knowledge_split_s": time.perf_counter() - started, "knowledge_chunks": float(_count(bare))}
    embedder = corpus.Embedder(bare)
    base = corpus.embedded(bare, embedder)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        asked = folder / "questions.json"
        asked.write_text(json.dumps(questions))
        corpus.save(embedder.vectors(questions), asked.with_suffix(".npy"))
        for name, count in (("small", SMALL), ("large", chunks)):
            repeated = corpus.repeated(base, count)
            started = time.perf_counter()
            artefact.write(repeated, folder / name, "0" * 64)
            values[f"knowledge_{name}_index_s"] = time.perf_counter() - started
            values[f"knowledge_{name}_index_mb"] = sum(file.stat().st_size for file in (folder / name).iterdir()) / 1e6
        loki_file.write(repeated, folder / "base.yaml")
        values["knowledge_file_mb"] = (folder / "base.yaml").stat().st_size / 1e6
        values |= _bm25s_ms(repeated, questions)
        del repeated
        started = time.perf_counter()
        loki_file.read(folder / "base.yaml")
        values["knowledge_file_read_s"] = time.perf_counter() - started
        for name in ("small", "large"):
            [figures] = _searching(folder / name, asked, 1)
            values |= {f"knowledge_{name}_{key}": value for key, value in figures.items()}
        together = _searching(folder / "large", asked, PROCESSES)
        values["knowledge_together_per_s"] = sum(figures["hybrid_per_s"] for figures in together)
        values["knowledge_together_mb"] = sum(figures["pss_mb"] for figures in together)
    return values


def quality(questions: int) -> Values:
    """Recall and MRR of keywords, vectors, both, and bm25s, on the corpus as it is."""
    from ops.bench import knowledge_corpus as corpus
    from sleipnir.knowledge.order import SearchQuery
    from sleipnir_workers.knowledge import artefact
    from sleipnir_workers.knowledge.search import search

    documents = _documents()
    pairs = _some(corpus.pairs(documents), questions)
    bare = corpus.base_of(documents)
    embedder = corpus.Embedder(bare, QUALITY_DIMENSIONS)
    base = corpus.embedded(bare, embedder)
    places = [(source.path, chunk.lines) for source, chunk in base.chunks()]
    with tempfile.TemporaryDirectory() as folder:
        artefact.write(base, Path(folder) / "index", "0" * 64)
        opened = artefact.Artefact.open(Path(folder) / "index")

        def sleipnir(text: str, embed: Callable[[list[str]], Vectors] | None) -> list[Place]:
            return [(hit.source, hit.lines) for hit in search(opened, SearchQuery(text, TOP), embed, None).hits]

        searches: Mapping[str, Search] = {
            "keyword": lambda text: sleipnir(text, None),
            "hybrid": lambda text: sleipnir(text, embedder.vectors),
            "vector": lambda text: [places[each] for each in opened.nearest(embedder.vectors([text]), TOP)[0]],
            "bm25s": _bm25s(base),
        }
        values: Values = {"knowledge_questions": float(len(pairs))}
        for name, find in searches.items():
            recall, mrr = found_in(pairs, find)
            values |= {f"knowledge_{name}_recall": recall, f"knowledge_{name}_mrr": mrr}
    for measure in ("recall", "mrr"):
        value_of = {name: values[f"knowledge_{name}_{measure}"] for name in searches}
        values[f"knowledge_hybrid_{measure}_ratio"] = value_of["hybrid"] / max(value_of["keyword"], value_of["vector"])
        values[f"knowledge_keyword_{measure}_ratio"] = value_of["keyword"] / value_of["bm25s"]
    return values


def found_in(pairs: Sequence[Pair], find: Search) -> tuple[float, float]:
    """Recall@TOP and mean reciprocal rank of a search."""
    ranks = [rank(pair, find(pair.question)) for pair in pairs]
    return sum(each > 0 for each in ranks) / len(pairs), sum(ranks) / len(pairs)


def rank(pair: Pair, places: Sequence[Place]) -> float:
    """1 / the position of the first hit within the answer; 0 without such a hit."""
    for number, (path, lines) in enumerate(places, 1):
        if path == pair.path and lines and lines[0] <= pair.last and lines[1] >= pair.first:
            return 1 / number
    return 0.0


def _documents() -> list[Document]:
    from ops.bench import knowledge_corpus as corpus

    documents = corpus.documents()
    chunks = sum(len(document.text) for document in documents) // corpus.CHUNK_SIZE
    if chunks < LEAST_CHUNKS:
        raise NotMeasured(f"only {chunks} chunks of documentation on this machine, of {LEAST_CHUNKS}")
    return documents


def _some(pairs: Sequence[Pair], count: int) -> list[Pair]:
    return random.Random(1).sample(pairs, min(count, len(pairs)))


def _count(base: Base) -> int:
    return sum(len(source.chunks) for source in base.sources)


def _bm25s(base: Base) -> Search:
    """bm25s as its documentation shows it, with English stop words and stemming."""
    try:
        import bm25s
    except ImportError:
        raise NotMeasured("bm25s is not installed") from None
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    places = [(source.path, chunk.lines) for source, chunk in base.chunks()]
    texts = [chunk.text for _, chunk in base.chunks()]
    peer = bm25s.BM25()
    peer.index(bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)

    def find(text: str) -> list[Place]:
        words = bm25s.tokenize([text], stopwords="en", stemmer=stemmer, show_progress=False)
        numbers, _ = peer.retrieve(words, k=TOP, show_progress=False)
        return [places[number] for number in numbers[0]]

    return find


def _bm25s_ms(base: Base, questions: Sequence[str]) -> Values:
    find = _bm25s(base)
    took_ms = []
    for question in questions:
        started = time.perf_counter()
        find(question)
        took_ms.append((time.perf_counter() - started) * 1000)
    return {"knowledge_bm25s_ms": statistics.median(took_ms)}


def _searching(index: Path, questions: Path, processes: int) -> list[Values]:
    """The results of several processes that search at the same time, and the memory of each when all have finished."""
    command = [PYTHON, str(SEARCHER), str(index), str(questions), str(SEARCHES)]
    with ExitStack() as stack:
        started = [stack.enter_context(_searcher(command)) for _ in range(processes)]
        results = [_line_of(process) for process in started]
        return [{**each, **memory_mb(process.pid)} for each, process in zip(results, started, strict=True)]


@contextmanager
def _searcher(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, env=environment({}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _line_of(process: subprocess.Popen[str]) -> Values:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    if not line:
        raise BenchFailed(f"{SEARCHER.name} failed: {last_line(process.stderr.read())}")
    values: Values = json.loads(line)
    return values


def memory_mb(pid: int) -> Values:
    """Resident memory, and the share of it that is the process' own when what others map too is divided among them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":", 1) for line in lines)}
    return {"rss_mb": kilobytes["Rss"] / 1024, "pss_mb": kilobytes["Pss"] / 1024}
