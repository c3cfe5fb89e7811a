"""An index is whole or named as unusable, can be searched by many at once, and finds in large bases what is near."""

from __future__ import annotations

import json
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sleipnir.knowledge.order import SearchQuery
from sleipnir.knowledge.recipe import Recipe
from sleipnir_workers.knowledge import artefact, vectors
from sleipnir_workers.knowledge.artefact import Artefact, UnusableIndex
from sleipnir_workers.knowledge.base import Base, Chunk, Source
from sleipnir_workers.knowledge.search import search
from sleipnir_workers.knowledge.vectors import Matrix

RECIPE = Recipe(["/docs"], "test:model", 500, 50, "test:rerank", 3, 10)
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta")


def base(chunks: int = 60, dimensions: int = 8) -> Base:
    rows = np.random.default_rng(3).normal(size=(chunks, dimensions)).astype(np.float32)
    sources = [
        Source(f"/docs/{name}", name, [Chunk(f"{name} chunk{at}", (at + 1, at + 2)) for at in range(chunks // 6)])
        for name in NAMES
    ]
    return Base(RECIPE, sources, rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    artefact.write(base(), tmp_path / "index", "ab" * 32)
    return tmp_path / "index"


def test_an_index_reports_what_it_holds(folder: Path) -> None:
    info = Artefact.open(folder).info
    assert (info.digest, info.recipe, info.dimensions, info.chunks) == ("ab" * 32, RECIPE, 8, 60)
    assert info.sources == {f"/docs/{name}": 10 for name in NAMES}
    assert info.words == 16
    assert info.index_bytes == sum(file.stat().st_size for file in folder.iterdir() if file.name != "manifest.json")
    assert sorted(file.name for file in folder.iterdir()) == ["kb.sqlite", "manifest.json", "vectors.npy"]


def test_a_base_without_vectors_or_chunks_has_an_index_too(tmp_path: Path) -> None:
    artefact.write(Base(Recipe([], None), [], None), tmp_path / "index", "0" * 64)
    opened = Artefact.open(tmp_path / "index")
    assert (opened.info.chunks, opened.info.dimensions, opened.matching("word", 5)) == (0, None, [])


def test_the_same_base_makes_the_same_index(folder: Path, tmp_path: Path) -> None:
    artefact.write(base(), tmp_path / "again", "ab" * 32)
    for file in folder.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_the_nearest_are_those_of_the_greatest_cosine(folder: Path) -> None:
    rows, queries = base().vectors, np.random.default_rng(4).normal(size=(3, 8)).astype(np.float32)
    assert rows is not None
    cosines = (queries / np.linalg.norm(queries, axis=1)[:, None]) @ (rows / np.linalg.norm(rows, axis=1)[:, None]).T
    expected = [[int(row) for row in np.argsort(-line)[:7]] for line in cosines]
    assert Artefact.open(folder).nearest(queries, 7) == expected


def test_blocks_give_the_same_result_as_the_complete_file_and_are_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(5).normal(size=(3000, 24)).astype(np.float32)
    rows[17] = 0
    vectors.write(rows, tmp_path / "vectors.npy")
    assert np.array_equal(np.load(tmp_path / "vectors.npy"), vectors.normalised(rows))
    whole = Matrix(tmp_path / "vectors.npy").similarities(vectors.normalised(rows[:5]))
    monkeypatch.setattr(vectors, "_BLOCK_BYTES", 10_000)
    monkeypatch.setattr(vectors, "_KEPT_BYTES", 50_000)
    matrix = Matrix(tmp_path / "vectors.npy")
    for _ in range(2):
        assert np.allclose(matrix.similarities(vectors.normalised(rows[:5])), whole, atol=1e-6)


def test_a_large_base_has_a_graph_of_neighbours_that_finds_nearly_all(tmp_path: Path) -> None:
    large = base(chunks=3000, dimensions=32)
    artefact.write(large, tmp_path / "exact", "0" * 64)
    artefact.write(large, tmp_path / "index", "0" * 64, exact_chunks=2999)
    exact, opened = Artefact.open(tmp_path / "exact"), Artefact.open(tmp_path / "index")
    assert (tmp_path / "index" / "vectors.usearch").exists() and not (tmp_path / "exact" / "vectors.usearch").exists()
    queries = np.random.default_rng(6).normal(size=(20, 32)).astype(np.float32)
    found, right = opened.nearest(queries, 10), exact.nearest(queries, 10)
    shared = sum(len(set(some) & set(others)) for some, others in zip(found, right, strict=True))
    assert shared >= 190
    mask = opened.mask(["beta"])
    assert opened.nearest(queries, 10, mask) == exact.nearest(queries, 10, mask)
    assert opened.nearest(queries, 10, None, 2) == exact.nearest(queries, 10, None, 2)


def test_many_threads_may_search_at_once(folder: Path) -> None:
    opened = Artefact.open(folder)
    rows = base().vectors
    assert rows is not None

    def ask(number: int) -> list[str]:
        question = SearchQuery(f"chunk{number % 10} {NAMES[number % 6]}", per_source=2)
        return [hit.text for hit in search(opened, question, lambda texts: rows[number : number + 1], None).hits]

    alone = [ask(number) for number in range(60)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(60))) == alone


@pytest.mark.parametrize("file", ["manifest.json", "kb.sqlite", "vectors.npy"])
def test_a_file_that_is_missing_or_cut_off_is_named(folder: Path, file: str) -> None:
    whole = (folder / file).read_bytes()
    for content in (None, b"", whole[:-2], whole[: len(whole) // 2]):
        (folder / file).unlink() if content is None else (folder / file).write_bytes(content)
        with pytest.raises(UnusableIndex) as caught:
            Artefact.open(folder)
        assert str(folder) in str(caught.value)
        assert file == "manifest.json" or file in str(caught.value)
        (folder / file).write_bytes(whole)
    Artefact.open(folder)


@pytest.mark.parametrize("file", ["kb.sqlite", "vectors.npy"])
def test_a_file_whose_beginning_is_damaged_is_named(folder: Path, file: str) -> None:
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(b"\0" * 4096 + whole[4096:] if len(whole) > 4096 else b"\0" * len(whole))
    with pytest.raises(UnusableIndex, match=str(folder)):
        Artefact.open(folder)


def test_damage_in_the_middle_is_named_when_it_is_met(folder: Path) -> None:
    with (folder / "kb.sqlite").open("r+b") as database:
        database.seek(8192)
        database.write(b"\xff" * ((folder / "kb.sqlite").stat().st_size - 8192))
    with pytest.raises(UnusableIndex, match=str(folder)):
        search(Artefact.open(folder), SearchQuery("alpha"), None, None)


def test_an_index_of_another_version_is_named(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(UnusableIndex, match="it has format 2, and this version reads 1"):
        Artefact.open(folder)
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(UnusableIndex, match=str(folder)):
        Artefact.open(folder)


def test_files_of_two_indexes_do_not_make_one(folder: Path, tmp_path: Path) -> None:
    artefact.write(base(chunks=66), tmp_path / "other", "0" * 64)
    for file in ("vectors.npy", "kb.sqlite"):
        manifest = json.loads((folder / "manifest.json").read_text())
        shutil.copy(tmp_path / "other" / file, folder / file)
        manifest["files"][file] = (folder / file).stat().st_size
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(UnusableIndex, match="it should have 60 chunks, and has"):
            Artefact.open(folder)
        artefact_again(folder)


def artefact_again(folder: Path) -> None:
    shutil.rmtree(folder)
    artefact.write(base(), folder, "ab" * 32)


def test_an_index_on_a_disk_that_cannot_be_written_can_be_searched(folder: Path) -> None:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert Artefact.open(folder).matching("alpha", 1) == [0]
    finally:
        folder.chmod(0o755)


def test_a_closed_index_is_not_searched(folder: Path) -> None:
    opened = Artefact.open(folder)
    opened.close()
    with pytest.raises((UnusableIndex, sqlite3.Error)):
        opened.matching("alpha", 1)
