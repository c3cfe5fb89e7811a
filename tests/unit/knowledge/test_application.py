"""What config.yaml and the environment say of knowledge bases."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.errors import ConfigError
from sleipnir.knowledge.application import Application, application

CONFIG = """\
# {{COMMENTED}}
rag_embedding_model: openai:text-embedding-3-small
rag_reranker_model: jina:reranker
rag_top_k: 7
rag_chunk_size: 1500
rag_chunk_overlap: 100
rag_template: "{{CONTEXT}} __CONTEXT__"
document_loaders:
  pdf: pdftotext $1 -
  jina: curl -fsSL https://r.jina.ai/$1
clients:
  - type: openai
    api_key: {{OPENAI_API_KEY}}
    models:
      - {name: gpt, max_input_tokens: 1000}
      - {name: small, type: embedding, default_chunk_size: 2000}
  - {type: openai-compatible, name: mine, models: [{name: e5, type: embedding}]}
"""


def said(tmp_path: Path, text: str | None = None, **env: str) -> Application:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    return application({"LOKI_CONFIG_DIR": str(tmp_path), **env})


def test_without_a_file_the_application_has_no_values() -> None:
    assert application({"LOKI_CONFIG_DIR": "/nowhere"}) == Application()


def test_the_file_is_read(tmp_path: Path) -> None:
    assert said(tmp_path, CONFIG) == Application(
        embedding_model="openai:text-embedding-3-small",
        reranker_model="jina:reranker",
        top_k=7,
        chunk_size=1500,
        chunk_overlap=100,
        template="{{CONTEXT}} __CONTEXT__",
        loaders={"pdf": "pdftotext $1 -", "jina": "curl -fsSL https://r.jina.ai/$1"},
        chunk_sizes={"openai:small": 2000, "mine:e5": None},
    )


@pytest.mark.parametrize("text", ["", "# nothing\n", "stream: true\n", "rag_top_k: null\nclients:\n"])
def test_a_file_without_values_keeps_the_defaults(tmp_path: Path, text: str) -> None:
    assert said(tmp_path, text) == Application(top_k=5)


def test_variables_win_and_null_unsets(tmp_path: Path) -> None:
    found = said(
        tmp_path,
        CONFIG,
        LOKI_RAG_EMBEDDING_MODEL="null",
        LOKI_RAG_TOP_K="3",
        LOKI_RAG_CHUNK_OVERLAP="0",
        LOKI_RAG_CHUNK_SIZE="",
        LOKI_DOCUMENT_LOADERS='{"git": "cat $1"}',
    )
    assert (found.embedding_model, found.top_k, found.chunk_overlap, found.chunk_size) == (None, 3, 0, 1500)
    assert found.loaders == {"git": "cat $1"}
    assert said(tmp_path, LOKI_RAG_TOP_K="null").top_k == 5


def test_another_file_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("rag_chunk_size: 9\n")
    assert said(tmp_path, CONFIG, LOKI_CONFIG_FILE=str(tmp_path / "other.yaml")).chunk_size == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rag_top_k: 0\n", "config.yaml:1:1: rag_top_k: Input should be greater than 0"),
        ("a: b\nrag_chunk_size: big\n", "config.yaml:2:1: rag_chunk_size: Input should be a valid integer"),
        ("document_loaders:\n  pdf: [x]\n", "config.yaml:2:3: document_loaders.pdf: Input should be a valid string"),
        ("rag_top_k: [\n", "config.yaml:2:1"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        said(tmp_path, text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LOKI_RAG_TOP_K", "many", "LOKI_RAG_TOP_K='many': Input should be a valid integer"),
        ("LOKI_DOCUMENT_LOADERS", "{", "LOKI_DOCUMENT_LOADERS is not a JSON object"),
        ("LOKI_DOCUMENT_LOADERS", "[1]", "LOKI_DOCUMENT_LOADERS=[1]: Input should be a valid dictionary"),
    ],
)
def test_a_variable_that_is_wrong_is_named(tmp_path: Path, name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match="LOKI_") as raised:
        said(tmp_path, **{name: value})
    assert message in str(raised.value)
