"""The indexes that a process has open: each opened once, while searches of others go on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from sleipnir.errors import KnowledgeError
from sleipnir.knowledge.recipe import Recipe
from sleipnir_workers.knowledge import artefact
from sleipnir_workers.knowledge.base import Base, Chunk, Source
from sleipnir_workers.knowledge.index_store import FolderIndexStore, OpenIndex
from sleipnir_workers.knowledge.open_indexes import OpenIndexes

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


class Left(BaseException):
    """Who waited goes."""


class FarShelf(FolderIndexStore):
    """What is opened of it arrives once it may. `closed` are those that are not open any more."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.arrives = {digest: threading.Event() for digest in (A, B, C)}
        self.asked: Counter[str] = Counter()
        self.closed: list[str] = []

    def open(self, digest: str) -> OpenIndex:
        self.asked[digest] += 1
        self.arrives[digest].wait(60)
        return OpenIndex(super().open(digest).folder, lambda: self.closed.append(digest))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shelf")
    for digest in (A, B, C):
        base = Base(Recipe(["/docs"], None), [Source("/docs/one.md", "0" * 64, [Chunk("granite")])], None)
        artefact.write(base, root / digest, digest)
    return root


@pytest.fixture
def index_store(root: Path) -> Iterator[FarShelf]:
    index_store = FarShelf(root)
    yield index_store
    for each in index_store.arrives.values():
        each.set()


def read(room: OpenIndexes, digest: str) -> str:
    with room.read(digest) as index:
        return index.info.digest


def test_one_is_opened_once_for_all_who_want_it_while_others_are_read(index_store: FarShelf) -> None:
    room = OpenIndexes(index_store)
    index_store.arrives[B].set()
    waiting = threading.Semaphore(0)

    def reader() -> str:
        with room.read(A, waiting.release) as index:
            return index.info.digest

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(reader) for _ in range(3)]
        for _ in readers:
            waiting.acquire()
        assert read(room, B) == B, "nobody holds it up"
        index_store.arrives[A].set()
        assert [each.result() for each in readers] == [A] * 3
    assert index_store.asked == {A: 1, B: 1}


def test_who_goes_stops_nothing_and_what_arrives_is_there_for_the_next(index_store: FarShelf) -> None:
    room = OpenIndexes(index_store)

    def tick() -> None:
        raise Left

    for _ in range(2):
        with pytest.raises(Left), room.read(A, tick):
            pass
    index_store.arrives[A].set()
    assert (read(room, A), index_store.asked[A]) == (A, 1)


def test_a_failed_read_of_an_index_is_tried_again(index_store: FarShelf, tmp_path: Path) -> None:
    index_store.root, there = tmp_path, index_store.root
    index_store.arrives[A].set()
    room = OpenIndexes(index_store)
    with pytest.raises(KnowledgeError, match="is not in the index store"):
        read(room, A)
    index_store.root = there
    assert (read(room, A), index_store.asked[A]) == (A, 2)


def test_those_read_last_stay_open_and_those_that_are_read(index_store: FarShelf) -> None:
    for each in index_store.arrives.values():
        each.set()
    room = OpenIndexes(index_store, most=1)
    with ExitStack() as reading:
        reading.enter_context(room.read(A))
        read(room, B)
        assert (read(room, C), index_store.closed) == (C, [B, C])
    assert read(room, A) == A
    assert (index_store.closed, index_store.asked) == ([B, C], {A: 1, B: 1, C: 1})
