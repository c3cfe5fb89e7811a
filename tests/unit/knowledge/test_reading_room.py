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
from sleipnir_workers.knowledge.reading_room import ReadingRoom
from sleipnir_workers.knowledge.shelf import FolderShelf, Open

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


class Left(BaseException):
    """Who waited goes."""


class FarShelf(FolderShelf):
    """What is opened of it arrives once it may. `closed` are those that are not open any more."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.arrives = {digest: threading.Event() for digest in (A, B, C)}
        self.asked: Counter[str] = Counter()
        self.closed: list[str] = []

    def open(self, digest: str) -> Open:
        self.asked[digest] += 1
        self.arrives[digest].wait(60)
        return Open(super().open(digest).folder, lambda: self.closed.append(digest))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shelf")
    for digest in (A, B, C):
        base = Base(Recipe(["/docs"], None), [Source("/docs/one.md", "0" * 64, [Chunk("granite")])], None)
        artefact.write(base, root / digest, digest)
    return root


@pytest.fixture
def shelf(root: Path) -> Iterator[FarShelf]:
    shelf = FarShelf(root)
    yield shelf
    for each in shelf.arrives.values():
        each.set()


def read(room: ReadingRoom, digest: str) -> str:
    with room.read(digest) as index:
        return index.info.digest


def test_one_is_opened_once_for_all_who_want_it_while_others_are_read(shelf: FarShelf) -> None:
    room = ReadingRoom(shelf)
    shelf.arrives[B].set()
    waiting = threading.Semaphore(0)

    def reader() -> str:
        with room.read(A, waiting.release) as index:
            return index.info.digest

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(reader) for _ in range(3)]
        for _ in readers:
            waiting.acquire()
        assert read(room, B) == B, "nobody holds it up"
        shelf.arrives[A].set()
        assert [each.result() for each in readers] == [A] * 3
    assert shelf.asked == {A: 1, B: 1}


def test_who_goes_stops_nothing_and_what_arrives_is_there_for_the_next(shelf: FarShelf) -> None:
    room = ReadingRoom(shelf)

    def tick() -> None:
        raise Left

    for _ in range(2):
        with pytest.raises(Left), room.read(A, tick):
            pass
    shelf.arrives[A].set()
    assert (read(room, A), shelf.asked[A]) == (A, 1)


def test_what_failed_is_tried_again(shelf: FarShelf, tmp_path: Path) -> None:
    shelf.root, there = tmp_path, shelf.root
    shelf.arrives[A].set()
    room = ReadingRoom(shelf)
    with pytest.raises(KnowledgeError, match="is not on the shelf"):
        read(room, A)
    shelf.root = there
    assert (read(room, A), shelf.asked[A]) == (A, 2)


def test_those_read_last_stay_open_and_those_that_are_read(shelf: FarShelf) -> None:
    for each in shelf.arrives.values():
        each.set()
    room = ReadingRoom(shelf, most=1)
    with ExitStack() as reading:
        reading.enter_context(room.read(A))
        read(room, B)
        assert (read(room, C), shelf.closed) == (C, [B, C])
    assert read(room, A) == A
    assert (shelf.closed, shelf.asked) == ([B, C], {A: 1, B: 1, C: 1})
