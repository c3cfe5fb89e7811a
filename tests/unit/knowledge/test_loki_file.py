"""Bases are kept in Loki's format: Sleipnir's can be read back, Loki's own can be used, and what is broken is named."""

from __future__ import annotations

import base64
import fcntl
import os
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.knowledge.recipe import Recipe
from sleipnir_workers.knowledge.base import Base, Chunk, Source
from sleipnir_workers.knowledge.loki_file import UnreadableBase, read, write
from tests.examples import examples


def encoded(*values: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


RECIPE = Recipe(
    documents=["/docs/**/*.md", "https://example.org/**"],
    embedding_model="openai:text-embedding-3-small",
    chunk_size=1000,
    chunk_overlap=100,
    reranker_model="cohere:rerank",
    top_k=7,
    batch_size=100,
)
SOURCES = [
    Source("/docs/a.md", "aa" * 32, [Chunk("First.", (1, 2)), Chunk('Second: "quoted"\n- and more', (3, 9))]),
    Source("https://example.org/", "bb" * 32, [Chunk("null")]),
]
VECTORS = np.array([[1, 0, 0.5], [0, -1, 0.25], [0, 0, 2]], dtype=np.float32)

LOKIS = f"""\
embedding_model: openai:text-embedding-3-small
chunk_size: 1000
chunk_overlap: 100
reranker_model: null
top_k: 5
batch_size: 100
next_file_id: 3
document_paths:
- /docs/**/*.md
files:
  0:
    hash: {"aa" * 32}
    path: /docs/a.md
    documents:
    - page_content: yes
      metadata: {{}}
    - page_content: |-
        Two lines
        of text.
      metadata: {{}}
  2:
    hash: {"bb" * 32}
    path: /docs/b.md
    documents:
    - page_content: '12'
      metadata: {{}}
vectors:
  2-0: {encoded(0, 0, 2)}
  0-0: {encoded(1, 0, 0.5)}
  0-1: {encoded(0, -1, 0.25)}
"""


def same(found: Base, expected: Base) -> bool:
    return (found.recipe, [(s.path, s.sha256, list(s.chunks)) for s in found.sources]) == (
        expected.recipe,
        [(s.path, s.sha256, list(s.chunks)) for s in expected.sources],
    ) and (
        found.vectors is expected.vectors is None
        or (found.vectors is not None and np.array_equal(found.vectors, expected.vectors))  # type: ignore[arg-type]
    )


def failure(file: Path, content: str | bytes) -> str:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UnreadableBase) as caught:
        read(file)
    before, cause = str(caught.value).split(": ", 1)
    assert before == f"Failed to load rag 'look-up' at '{file}'"
    return cause


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "look-up.yaml"


@pytest.mark.conformance("K15")
def test_a_base_that_loki_wrote_is_read_with_its_vectors_in_the_order_of_its_chunks(file: Path) -> None:
    file.write_text(LOKIS)
    found = read(file)
    assert found.recipe == Recipe(["/docs/**/*.md"], "openai:text-embedding-3-small", 1000, 100, None, 5, 100)
    assert [(each.path, list(each.chunks)) for each in found.sources] == [
        ("/docs/a.md", [Chunk("yes"), Chunk("Two lines\nof text.")]),
        ("/docs/b.md", [Chunk("12")]),
    ]
    assert found.vectors is not None and found.vectors.dtype == np.float32
    assert found.vectors.tolist() == VECTORS.tolist()


@pytest.mark.conformance("K15")
def test_any_yaml_will_do_and_what_is_not_known_is_passed_over(file: Path) -> None:
    loaded = yaml.safe_load(LOKIS)
    loaded |= {"driver": "duckdb", "graph": {"nodes": [{"a": [1, 2]}], "edges": []}}
    loaded["files"][0]["size"] = [1]
    loaded["files"][0]["documents"][0]["page_content"] = "yes"  # PyYAML takes it for true
    expected = read(written(file, LOKIS))
    for options in ({"default_flow_style": True}, {"default_style": '"'}, {"sort_keys": False, "indent": 8}):
        assert same(read(written(file, yaml.safe_dump(loaded, **options))), expected)


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_what_is_written_is_read_again_and_is_yaml_in_lokis_shape(file: Path) -> None:
    base = Base(RECIPE, SOURCES, VECTORS)
    write(base, file)
    assert same(read(file), base)
    loaded = yaml.safe_load(file.read_text())
    assert loaded == {
        "embedding_model": "openai:text-embedding-3-small",
        "chunk_size": 1000,
        "chunk_overlap": 100,
        "reranker_model": "cohere:rerank",
        "top_k": 7,
        "batch_size": 100,
        "next_file_id": 2,
        "document_paths": ["/docs/**/*.md", "https://example.org/**"],
        "files": {
            0: {
                "hash": "aa" * 32,
                "path": "/docs/a.md",
                "documents": [
                    {"page_content": "First.", "metadata": {"lines": "1-2"}},
                    {"page_content": 'Second: "quoted"\n- and more', "metadata": {"lines": "3-9"}},
                ],
            },
            1: {
                "hash": "bb" * 32,
                "path": "https://example.org/",
                "documents": [{"page_content": "null", "metadata": {}}],
            },
        },
        "vectors": {"0-0": encoded(1, 0, 0.5), "0-1": encoded(0, -1, 0.25), "1-0": encoded(0, 0, 2)},
    }


def test_the_same_base_is_the_same_file(file: Path, tmp_path: Path) -> None:
    write(Base(RECIPE, SOURCES, VECTORS), file)
    write(read(file), tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_bytes() == file.read_bytes()


def test_a_base_without_vectors_has_no_model(file: Path) -> None:
    base = Base(Recipe(["a.txt"], None), SOURCES, None)
    write(base, file)
    assert same(read(file), base)
    assert "embedding_model: null\n" in file.read_text() and "vectors: {}\n" in file.read_text()


def test_a_base_of_nothing_is_read(file: Path) -> None:
    base = Base(Recipe([], None), [Source("empty", "00", [])], None)
    write(base, file)
    assert same(read(file), base)
    write(Base(Recipe([], None), [], None), file)
    assert read(file).sources == []


@settings(max_examples=examples(200))
@given(text=st.text(), path=st.text(min_size=1))
def test_every_text_survives(tmp_path_factory: pytest.TempPathFactory, text: str, path: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    base = Base(Recipe([path], None), [Source(path, "0", [Chunk(text)])], None)
    write(base, file)
    assert same(read(file), base)


def test_a_file_is_replaced_as_a_whole_with_the_usual_rights(file: Path) -> None:
    file.write_text("old")
    before = file.open()
    mask = os.umask(0o027)
    try:
        write(Base(RECIPE, SOURCES, VECTORS), file)
    finally:
        os.umask(mask)
    assert before.read() == "old"
    before.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_a_file_that_cannot_be_finished_leaves_the_old_one_and_nothing_else(file: Path) -> None:
    file.write_text("old")
    broken = Base(RECIPE, SOURCES, VECTORS[:1])  # fewer vectors than chunks
    with pytest.raises(RuntimeError):
        write(broken, file)
    assert file.read_text() == "old"
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_the_files_of_a_killed_writer_are_removed_and_those_of_a_running_one_are_not(file: Path) -> None:
    left, other = file.parent / ".look-up.yaml.0a.part", file.parent / ".look-up.yaml.0b.part"
    left.write_text("half")
    with other.open("w") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        write(Base(RECIPE, SOURCES, VECTORS), file)
        assert sorted(each.name for each in file.parent.iterdir()) == [other.name, file.name]


def test_there_may_be_no_file(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(file)


@pytest.mark.parametrize("key", ["embedding_model", "chunk_size", "chunk_overlap", "top_k", "next_file_id", "vectors",
                                 "document_paths", "files"])  # fmt: skip
def test_a_missing_key_is_named(file: Path, key: str) -> None:
    loaded = yaml.safe_load(LOKIS)
    del loaded[key]
    assert failure(file, yaml.safe_dump(loaded)) == f"`{key}` is missing"


def test_what_loki_may_leave_out_may_be_missing(file: Path) -> None:
    loaded = yaml.safe_load(LOKIS)
    del loaded["reranker_model"], loaded["batch_size"]
    assert read(written(file, yaml.safe_dump(loaded))).recipe.batch_size is None


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        (f"  0-0: {encoded(1, 0, 0.5)}", "  0-0: '*!'", "line 29: vector 0-0 is not base64: "),
        (encoded(1, 0, 0.5), encoded(1, 0), "line 29: vector 0-0 has 8 bytes, and should have 12"),
        (encoded(0, 0, 2), "AAA=", "line 28: vector 2-0 has 2 bytes, and should have some"),
        (encoded(0, 0, 2), encoded(0, float("nan"), 2), "line 28: vector 2-0 has a value that is not a number"),
        ("  0-1:", "  0-2:", "line 30: vector 0-2 belongs to no chunk"),
        (f"  0-1: {encoded(0, -1, 0.25)}\n", "", "chunk 0-1 has no vector"),
        ("embedding_model: openai:text-embedding-3-small", "embedding_model: ~",
         "line 28: there are vectors, but `embedding_model` is null"),
        ("top_k: 5", "top_k: five", "line 6: `top_k` is 'five', and should be a whole number"),
        ("chunk_size: 1000", "chunk_size: 0", "line 3: `chunk_size` is 0, and should be at least 1"),
        ("    path: /docs/b.md\n", "", "line 26: `path` of file 2 is missing"),
        ("top_k: 5", "chunk_size: 5", "line 5: `chunk_size` is given twice"),
        ("document_paths:\n- /docs/**/*.md", "document_paths: docs", "line 8: `document_paths` should be a list"),
        ("path: /docs/a.md", "path: [a]", "line 13: `path` of file 0 should be text"),
        ("path: /docs/a.md", "path: *a", "line 13: `path` of file 0 is an alias (`*a`), which is not supported"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(file: Path, old: str, new: str, cause: str) -> None:
    assert old in LOKIS
    assert failure(file, LOKIS.replace(old, new)).startswith(cause)


def test_files_that_are_no_base_are_named(file: Path) -> None:
    assert failure(file, "") == "line 1: the file should be a mapping"
    assert failure(file, "- a\n- b\n") == "line 1: the file should be a mapping"
    assert failure(file, "a: 'b").startswith("line 1: ")
    for binary in (b"a: \xff\xfe\x00", LOKIS.encode() + b"\0", b"\x7fELF\x02\x01\x01"):
        assert failure(file, binary)


def test_a_file_cut_off_anywhere_is_never_taken_for_a_base(file: Path) -> None:
    write(Base(RECIPE, SOURCES, VECTORS), file)
    whole = file.read_bytes()
    for end in range(0, len(whole) - 1, 7):
        failure(file, whole[:end])
