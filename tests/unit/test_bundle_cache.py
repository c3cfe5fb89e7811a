"""The agent folders that a machine has unpacked: bounded, and never one that somebody runs from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sleipnir import bundle
from sleipnir.bundle import Bundle, BundleCache, pack

GRAPH = "name: one\nstart: a\nnodes:\n  a: {type: end, output: done}\n"
SIZE = 100_000


class World:
    """Five bundles of a little more than SIZE bytes, and caches of several processes in one folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.fetched = folder / "bundles", list[str]()
        self.packed = [self._pack(folder / f"agent{number}", number) for number in range(5)]
        self.digests = [each.digest for each in self.packed]

    def _pack(self, folder: Path, number: int) -> Bundle:
        folder.mkdir()
        (folder / "graph.yaml").write_text(f"{GRAPH}# {number}\n")
        (folder / "data").write_text(str(number) * SIZE)
        return pack(folder, limit_bytes=10 * SIZE)

    def cache(self, bundles: float = 2.5) -> BundleCache:
        return BundleCache(self.root, self._fetch, int(bundles * SIZE))

    def load(self, number: int) -> None:
        """In a process that then ends."""
        cache = self.cache()
        cache.get(self.digests[number], "one")
        for _, lock in cache._loaded.values():
            lock.close()

    def _fetch(self, digest: str) -> bytes:
        self.fetched.append(digest)
        return next(each.packed for each in self.packed if each.digest == digest)

    def kept(self) -> list[int]:
        return [number for number, digest in enumerate(self.digests) if (self.root / digest).is_dir()]

    def loaded_long_ago(self, number: int) -> None:
        os.utime(self.root / f".{self.digests[number]}.lock", (number, number))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_was_loaded_longest_ago_makes_room(world: World) -> None:
    for number in range(4):
        world.load(number)
        world.loaded_long_ago(number)
    assert world.kept() == [2, 3]
    world.load(2)
    world.load(4)
    assert world.kept() == [2, 4]
    assert not list(world.root.glob(".knowledge-*"))
    assert len(list(world.root.glob(".*.lock"))) == 2


def test_what_another_process_has_loaded_stays_and_what_was_dropped_is_fetched_again(world: World) -> None:
    other = world.cache()
    unpacked = other.get(world.digests[0], "one")
    world.loaded_long_ago(0)
    for number in (1, 2, 3):
        world.load(number)
        world.loaded_long_ago(number)
    assert world.kept() == [0, 3]
    assert (unpacked.folder / "data").is_file()
    assert world.cache().get(world.digests[1], "one").graph.name == "one"
    assert world.fetched.count(world.digests[1]) == 2


def test_a_process_keeps_those_asked_for_last_and_those_that_visits_run_from(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "KEPT", 1)
    cache = world.cache(1.5)
    with cache.used(world.digests[0]):
        cache.get(world.digests[0], "one")
        for number in (1, 2, 3):
            cache.get(world.digests[number], "one")
        assert 0 in world.kept(), "a visit runs from it, however long"
    cache.get(world.digests[4], "one")
    assert 0 not in world.kept()
