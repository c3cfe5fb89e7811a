"""What a search finds (spec 8.6): words, vectors, filters, limits, reranking, and the context that a model gets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sleipnir.errors import NodeFailed
from sleipnir.graph.patterns import PatternRefused
from sleipnir.knowledge.order import SearchQuery
from sleipnir.knowledge.recipe import Recipe
from sleipnir.knowledge.views import Hit
from sleipnir_workers.knowledge import artefact, ranking
from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.base import Base, Chunk, Source
from sleipnir_workers.knowledge.search import SearchResult, search
from sleipnir_workers.knowledge.source_globs import matcher
from sleipnir_workers.knowledge.words import WordSplitter

SOURCES = {
    "/docs/guide/install.md": [
        "Installing the server takes a minute.",
        "The server listens on port 6379.",
        "A server that is installed twice does no harm.",
    ],
    "/docs/guide/tuning.md": ["Tune the memory of the server with max_memory_bytes."],
    "/docs/api/server.rst": ["class Server: accepts connections.", "Connections are closed when idle."],
    "https://example.org/faq": ["Why is my connection refused? The server is not up."],
}


def vector_of(text: str) -> list[float]:
    return [float(word in text.lower()) for word in ("server", "connection", "memory", "install")]


def embed(texts: Sequence[str]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.array([vector_of(text) for text in texts], dtype=np.float32)


def opened(folder: Path, *, vectors: bool = True, sources: dict[str, list[str]] = SOURCES) -> Artefact:
    texts = [text for chunks in sources.values() for text in chunks]
    base = Base(
        Recipe(["/docs"], "test:model" if vectors else None, chunk_size=100, chunk_overlap=0, top_k=5),
        [
            Source(path, "0" * 64, [Chunk(text, (at, at + 1)) for at, text in enumerate(chunks, 1)])
            for path, chunks in sources.items()
        ],
        embed(texts) if vectors else None,
    )
    artefact.write(base, folder, "d" * 64)
    return Artefact.open(folder)


@pytest.fixture
def index(tmp_path: Path) -> Artefact:
    return opened(tmp_path / "index")


def texts_of(found: SearchResult) -> list[str]:
    return [hit.text for hit in found.hits]


@pytest.mark.conformance("K04")
def test_the_context_names_the_source_of_each_chunk_and_sources_come_once(index: Artefact) -> None:
    found = search(index, SearchQuery("installed listens", top_k=3), None, None)
    assert found.context == (
        "[Source: /docs/guide/install.md]\nThe server listens on port 6379.\n\n"
        "[Source: /docs/guide/install.md]\nInstalling the server takes a minute.\n\n"
        "[Source: /docs/guide/install.md]\nA server that is installed twice does no harm."
    )
    assert found.sources == ("/docs/guide/install.md",)
    assert [hit.lines for hit in found.hits] == [(2, 3), (1, 2), (3, 4)]


@pytest.mark.conformance("K04")
def test_nothing_found_is_an_empty_context(index: Artefact) -> None:
    assert search(index, SearchQuery("zebra"), embed, None) == SearchResult((), "", ())
    assert search(index, SearchQuery("  \n "), embed, None) == SearchResult((), "", ())
    assert search(index, SearchQuery("is it the"), None, None) == SearchResult((), "", ())


@pytest.mark.conformance("K03")
def test_a_question_may_want_more_or_fewer_hits_than_the_base(index: Artefact) -> None:
    assert len(search(index, SearchQuery("server"), embed, None).hits) == 5
    assert len(search(index, SearchQuery("server", top_k=2), embed, None).hits) == 2
    assert len(search(index, SearchQuery("server", top_k=50), embed, None).hits) == 6


def test_words_are_found_without_their_endings_and_in_any_case(index: Artefact) -> None:
    [hit] = search(index, SearchQuery("TUNING"), None, None).hits
    assert hit.text.startswith("Tune the memory") and hit.source == "/docs/guide/tuning.md"
    assert WordSplitter().extract("The servers' max_memory_bytes weren't tuned, ﬁnally") == [
        "server", "max", "memori", "byte", "weren", "tune", "final"
    ]  # fmt: skip


def test_a_base_without_vectors_is_searched_by_words_and_asks_no_model(tmp_path: Path) -> None:
    def never(texts: list[str]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        raise AssertionError("a model was asked")

    index = opened(tmp_path / "index", vectors=False)
    assert index.info.dimensions is None
    assert texts_of(search(index, SearchQuery("port"), never, None)) == ["The server listens on port 6379."]


def test_only_what_points_the_same_way_is_near(index: Artefact) -> None:
    assert index.nearest(np.array([[0, 0, -1, 0]], dtype=np.float32), 5) == [[]]
    assert index.nearest(np.array([[0, 0, 0, 0]], dtype=np.float32), 5) == [[]]
    assert index.nearest(np.array([[0, 0, 1, 0], [0, 1, 0, 0]], dtype=np.float32), 2) == [[3], [5, 4]]


def test_a_long_question_is_asked_in_pieces(index: Artefact) -> None:
    asked: list[str] = []

    def noting(texts: list[str]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        asked.extend(texts)
        return embed(texts)

    search(index, SearchQuery("memory " * 10 + "\n\n" + "connection " * 6), noting, None)
    assert asked == [("memory " * 10).strip(), ("connection " * 6).strip()]


def test_sources_are_chosen_before_hits_are_counted(index: Artefact) -> None:
    for with_vectors in (None, embed):
        found = search(index, SearchQuery("server connection", 2, ("*.rst",)), with_vectors, None)
        assert set(found.sources) == {"/docs/api/server.rst"} and len(found.hits) == 2
    assert search(index, SearchQuery("server", 2, ("*.pdf",)), embed, None).hits == ()


def test_a_source_gives_no_more_hits_than_it_may_and_others_take_their_place(index: Artefact) -> None:
    question = SearchQuery("install server", top_k=3, per_source=1)
    for with_vectors in (None, embed):
        found = search(index, question, with_vectors, None)
        assert len(found.hits) == len(found.sources) == 3
    assert len(search(index, SearchQuery("server", 50, per_source=2), embed, None).hits) == 5


def test_the_reranker_decides_the_final_order(index: Artefact) -> None:
    given: list[tuple[str, list[str], int]] = []

    def backwards(question: str, documents: list[str], count: int) -> list[int]:
        given.append((question, documents, count))
        return list(reversed(range(len(documents))))[:count]

    found = search(index, SearchQuery("memory port", top_k=2), embed, backwards)
    [(question, documents, count)] = given
    assert (question, count) == ("memory port", 2)
    assert documents == [  # the vectors' first
        "Tune the memory of the server with max_memory_bytes.",
        "The server listens on port 6379.",
    ]
    assert texts_of(found) == documents[::-1]
    assert [hit.score for hit in found.hits] == [1, 1 / 2]


def test_the_reranker_is_asked_for_more_where_a_source_may_fill_up(index: Artefact) -> None:
    found = search(index, SearchQuery("install", 2, per_source=1), None, lambda _, documents, count: [*range(count)])
    assert len(found.hits) == 1
    assert search(index, SearchQuery("zebra"), None, lambda *_: pytest.fail("asked about nothing")).hits == ()


def test_a_failing_reranker_fails_the_search(index: Artefact) -> None:
    def busy(question: str, documents: list[str], count: int) -> list[int]:
        raise NodeFailed("Failed to rerank: too many requests", "rate_limit", transient=True)

    with pytest.raises(NodeFailed, match=r"^Failed to rerank: too many requests") as caught:
        search(index, SearchQuery("server"), None, busy)
    assert (caught.value.kind, caught.value.transient) == ("rate_limit", True)
    with pytest.raises(NodeFailed, match=r"^Failed to rerank: document 99 of "):
        search(index, SearchQuery("server"), None, lambda *_: [99])


def test_a_model_of_another_dimension_is_named_with_both(index: Artefact) -> None:
    with pytest.raises(NodeFailed, match=r"has 3 dimensions, those of the knowledge base have 4: .*'test:model'"):
        search(index, SearchQuery("server"), lambda texts: np.ones((1, 3), dtype=np.float32), None)


def test_a_hit_of_a_base_of_lokis_has_no_lines(tmp_path: Path) -> None:
    base = Base(Recipe(["/d"], None), [Source("/d", "0", [Chunk("word")])], None)
    artefact.write(base, tmp_path / "index", "0" * 64)
    [hit] = search(Artefact.open(tmp_path / "index"), SearchQuery("word"), None, None).hits
    assert hit == Hit("/d", "word", 1 / 11, None)


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.md", "/docs/guide/install.md", True),
        ("*.md", "/docs/guide/install.mdx", False),
        ("guide/*.md", "/docs/guide/install.md", True),
        ("docs/*.md", "/docs/guide/install.md", False),
        ("docs/**/*.md", "/docs/guide/install.md", True),
        ("docs/**/*.md", "/docs/install.md", True),
        ("docs/**", "/docs/guide/install.md", True),
        ("docs/", "/docs/guide/install.md", True),
        ("uide/*.md", "/docs/guide/install.md", False),
        ("/docs/**", "/docs/a.md", True),
        ("/docs/**", "/other/docs/a.md", False),
        ("*.{md,r?t}", "/a.rst", True),
        ("*.{md,rst}", "/a.txt", False),
        ("[a-c].md", "/b.md", True),
        ("[!a-c].md", "/b.md", False),
        ("[]x].md", "/].md", True),
        ("[.md", "/[.md", True),
        ("{a.md", "/{a.md", True),
        ("https://example.org/**", "https://example.org/faq", True),
        ("example.org/*", "https://example.org/faq", True),
        ("a+b(c).md", "/a+b(c).md", True),
    ],
)
def test_a_glob_chooses_sources(glob: str, path: str, matches: bool) -> None:
    assert matcher([glob])(path) is matches
    assert matcher(["nothing", glob])(path) is matches


@pytest.mark.timeout(30)
@pytest.mark.parametrize("glob", ["**a" * 30 + "!", "{a,aa}" * 30 + "!", "*a*a" * 40])
def test_a_glob_of_a_question_is_matched_in_linear_time(glob: str) -> None:
    """Finding S1, elsewhere: the globs of a rag node may come from a model."""
    assert not matcher([glob])("/" + "a" * 3_000 + "/" * 50)


def test_a_glob_that_is_too_long_is_refused() -> None:
    with pytest.raises(PatternRefused, match="has 401 characters, at most 400"):
        matcher(["a" * 401])


def test_the_best_hits_are_the_same_for_all_limits() -> None:
    rng = np.random.default_rng(7)
    scores = np.round(rng.normal(size=500), 1).astype(np.float32)  # many are equal
    source_of = rng.integers(0, 40, 500).astype(np.uint32)
    everything = [int(row) for row in np.argsort(-scores, kind="stable") if scores[row] > 0]
    for count in (1, 5, 50, 500):
        assert ranking.best(scores, count, source_of) == everything[:count]
        expected = ranking.limited(everything, source_of, 2, count)
        assert ranking.best(scores, count, source_of, 2) == expected
