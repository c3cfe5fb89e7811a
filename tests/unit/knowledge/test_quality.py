"""A floor under what a search finds, on a small corpus: this project's own documentation, its headings as questions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.bench import knowledge_corpus as corpus
from ops.bench.knowledge import Place, found_in, rank
from sleipnir.knowledge.order import SearchQuery
from sleipnir_workers.knowledge import artefact
from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.base import Document
from sleipnir_workers.knowledge.search import search

DOCS = Path(__file__).parents[3] / "docs"


def test_most_headings_lead_to_their_sections(tmp_path: Path) -> None:
    documents = [Document(str(file), file.read_text(), "md") for file in sorted(DOCS.glob("*.md"))]
    pairs = corpus.pairs(documents, least_words=2)
    bare = corpus.base_of(documents)
    embedder = corpus.Embedder(bare, 768)
    artefact.write(corpus.embedded(bare, embedder), tmp_path / "index", "0" * 64)
    opened = Artefact.open(tmp_path / "index")

    def places(text: str, *, vectors: bool) -> list[Place]:
        found = search(opened, SearchQuery(text), embedder.vectors if vectors else None, None)
        return [(hit.source, hit.lines) for hit in found.hits]

    assert len(pairs) >= 50
    for vectors in (False, True):
        recall, mrr = found_in(pairs, lambda text, vectors=vectors: places(text, vectors=vectors))
        assert recall >= 0.7 and mrr >= 0.55, (vectors, recall, mrr)


MARKDOWN = """\
# Birds of the north

They winter in the south.

```
# not a heading
```

## [Where](x.md) they `nest` ##

In trees.
"""


def test_headings_are_questions_and_their_sections_the_answers() -> None:
    document = Document("/birds.md", MARKDOWN, "md")
    assert list(corpus.headings(document)) == [(1, "Birds of the north"), (9, "Where they nest")]
    assert corpus.pairs([document], least_words=3, least_bytes=5) == [
        corpus.Pair("Birds of the north", "/birds.md", 1, 8),
        corpus.Pair("Where they nest", "/birds.md", 9, 12),
    ]
    assert corpus.pairs([document, Document("/again.md", MARKDOWN, "md")], 3, 5) == []
    underlined = Document("/birds.txt", "Birds of the north\n------------------\nThey\n\na ---- b\n", "txt")
    assert list(corpus.headings(underlined)) == [(1, "Birds of the north")]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([("/a", (5, 9))], 1),
        ([("/b", (5, 9)), ("/a", (1, 4)), ("/a", (8, 20))], 1 / 3),
        ([("/a", (11, 12)), ("/a", None)], 0),
        ([], 0),
    ],
)
def test_the_rank_of_an_answer_is_that_of_the_first_hit_in_its_section(places: list[Place], expected: float) -> None:
    assert rank(corpus.Pair("What?", "/a", 5, 10), places) == expected
