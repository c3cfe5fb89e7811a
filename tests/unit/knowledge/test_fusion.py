"""Two rankings become one by reciprocal rank fusion (spec 8.6 item 3), on fixed vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sleipnir.knowledge.order import SearchQuery
from sleipnir.knowledge.recipe import Recipe
from sleipnir_workers.knowledge import artefact
from sleipnir_workers.knowledge.artefact import Artefact
from sleipnir_workers.knowledge.base import Base, Chunk, Source
from sleipnir_workers.knowledge.fusion import KEYWORD_WEIGHT, VECTOR_WEIGHT, fused
from sleipnir_workers.knowledge.search import search


@pytest.mark.conformance("K12")
def test_the_formula_is_that_of_the_specification() -> None:
    assert (VECTOR_WEIGHT, KEYWORD_WEIGHT) == (1.125, 1.0)
    found = fused([(VECTOR_WEIGHT, [7, 3, 9]), (KEYWORD_WEIGHT, [3, 4, 7])], top_k=3)
    assert found == pytest.approx(
        {
            3: 1.125 / (6 + 2) + 1 / (6 + 1),
            7: 1.125 / (6 + 1) + 1 / (6 + 3),
            4: 1 / (6 + 2),
            9: 1.125 / (6 + 3),
        }
    )
    assert list(found)[:2] == [3, 7]


def test_equal_scores_stay_in_the_order_in_which_they_were_seen() -> None:
    assert list(fused([(1.0, [5, 1]), (1.0, [2, 1])], top_k=2)) == [1, 5, 2]
    assert list(fused([(1.0, [9, 8]), (1.0, [8, 9])], top_k=2)) == [9, 8]


def test_a_chunk_that_two_pieces_of_a_question_found_counts_twice() -> None:
    assert fused([(1.0, [4, 5, 4])], top_k=1) == pytest.approx({4: 1 / 3 + 1 / 5, 5: 1 / 4})


def test_nothing_gives_nothing() -> None:
    assert fused([(1.125, []), (1.0, [])], top_k=5) == {}


TEXTS = ["apple orchard", "apple apple", "pear", "plum jam", "apple jam with plum"]
VECTORS = np.array([[1, 0], [0, 1], [0.8, 0.6], [-1, 0], [0.6, 0.8]], dtype=np.float32)


@pytest.mark.conformance("K12")
def test_a_search_fuses_what_the_vectors_and_the_words_found(tmp_path: Path) -> None:
    base = Base(Recipe(["/d"], "a:b", top_k=3), [Source("/d", "0", [Chunk(text) for text in TEXTS])], VECTORS)
    artefact.write(base, tmp_path / "index", "0" * 64)
    opened = Artefact.open(tmp_path / "index")
    queries = np.array([[2, 0]], dtype=np.float32)  # cosines 1, 0, 0.8, -1, 0.6
    assert opened.nearest(queries, 3) == [[0, 2, 4]]
    assert opened.matching("plum jam", 3) == [3, 4]
    found = search(opened, SearchQuery("plum jam"), lambda texts: queries, None)
    assert [(hit.text, hit.score) for hit in found.hits] == [
        ("apple jam with plum", pytest.approx(1.125 / 9 + 1 / 8)),
        ("apple orchard", pytest.approx(1.125 / 7)),
        ("plum jam", pytest.approx(1 / 7)),
    ]
