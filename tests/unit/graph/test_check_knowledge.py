"""The rules about documents, and about how they are split and searched."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import Problem
from sleipnir.graph.check import validate
from tests.unit.graph.test_graph_check import hints, in_folder, places
from tests.unit.graph.writing import checked, errors, notices


def found(said: str, folder: Path | None = None) -> list[Problem]:
    nodes = f"a: {{type: rag, state_updates: {{c: x}}, next: b, {said}}}\nb: {{type: end}}"
    return checked(nodes, folder=folder)


@pytest.mark.conformance("K13")
@pytest.mark.parametrize("path", ["../secret", "docs/../../x", " .. ", "git:../other", "docs/**/../*.md"])
def test_a_document_outside_is_an_error_in_lokis_words(path: str) -> None:
    problems = found(f"documents: [ok.md, '{path}']")
    assert errors(problems) == [f"[a] Invalid document path: '{path}'"]
    assert places(problems)[0][0] == 4


@pytest.mark.parametrize("path", ["https://host/a/../b", "http://host/**", "git:a/b", "a..b/c.md", "/abs/x", "~/x"])
def test_other_documents_are_none(path: str) -> None:
    assert found(f"documents: ['{path}']") == []


def test_an_empty_document_is_an_error() -> None:
    assert errors(found("documents: [' ']")) == ["[a] a document is empty"]


def test_a_document_that_does_not_exist_is_a_warning(tmp_path: Path) -> None:
    folder = in_folder(tmp_path, docs__a_dot_md="a")
    listed = "docs/a.md, docs, 'docs/**/*.{md,txt}', '*.md', gone.md, 'nowhere/*.md', /no/such, 'git:x', 'https://h/x'"
    problems = found(f"documents: [{listed}]", folder)
    assert errors(problems) == []
    assert notices(problems) == [
        f"[a] document '{name}' does not exist: there is no {place}"
        for name, place in (
            ("gone.md", folder / "gone.md"),
            ("nowhere/*.md", folder / "nowhere"),
            ("/no/such", "/no/such"),
        )
    ]
    assert found("documents: [gone.md]") == []  # nothing is said of a folder that is not known


def test_sizes_that_make_no_sense_are_named() -> None:
    assert errors(found("documents: [d], chunk_size: 0")) == ["[a] chunk_size must be at least 1; it is in bytes"]
    problems = found("documents: [d], chunk_size: 100, chunk_overlap: 100, top_k: 0, per_source: 0")
    assert notices(problems) == [
        "[a] chunk_overlap 100 is not less than chunk_size 100",
        "[a] with top_k 0 a search finds nothing",
        "[a] with per_source 0 a search finds nothing",
    ]
    assert found("documents: [d], chunk_size: 100, chunk_overlap: 99, top_k: 1, per_source: 1, sources: ['*.md']") == []


def test_an_empty_pattern_of_sources_is_a_warning() -> None:
    assert notices(found("documents: [d], sources: ['']")) == ["[a] an empty pattern matches no source"]


def test_models_are_checked_as_those_of_llm_nodes_are() -> None:
    assert found("documents: [d], embedding_model: none, reranker_model: jina:r") == []
    problems = found("documents: [d], embedding_model: ada-2, reranker_model: best")
    assert errors(problems) == [
        "[a] rag node references unknown model 'ada-2'",
        "[a] rag node references unknown model 'best'",
    ]
    assert "Use `none` to search without embeddings" in str(hints(problems)[0])
    assert "names the client 'opneai'" in notices(found("documents: [d], embedding_model: 'opneai:ada'"))[0]


def test_a_base_that_nothing_asks_is_a_warning(tmp_path: Path) -> None:
    warning = "rag.yaml is an unused knowledge base: the agent has no `documents`"
    (tmp_path / "config.yaml").write_text("name: x\n")
    assert notices(validate(tmp_path)) == []
    (tmp_path / "rag.yaml").write_text("embedding_model: null\n")
    assert notices(validate(tmp_path)) == [warning]
    (tmp_path / "config.yaml").write_text("name: x\ndocuments: [rag.yaml]\n")
    assert notices(validate(tmp_path)) == []
    (tmp_path / "config.yaml").write_text("name: x\n")
    (tmp_path / "rag.yaml").write_text("- notes of mine\n")
    assert notices(validate(tmp_path)) == []
