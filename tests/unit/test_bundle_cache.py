"""The agent folders that a machine has unpacked: bounded, and never one that somebody runs from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sleipnir.agents import bundle
from sleipnir.agents.bundle import Bundle, BundleCache, pack, tree_name
from sleipnir.errors import BundleError
from tests.unprivileged import unprivileged

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
        return [number for number in range(len(self.digests)) if self.tree(number).is_dir()]

    def tree(self, number: int) -> Path:
        return self.root / tree_name(self.digests[number], "one")

    def loaded_long_ago(self, number: int) -> None:
        os.utime(self.root / f".{self.tree(number).name}.lock", (number, number))


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


# What runs is what was packed


def test_a_bundle_is_read_only(world: World) -> None:
    """Finding S5."""
    folder = world.cache().get(world.digests[0], "one").folder
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))} == {0o444, 0o555}


def _write(folder: Path) -> None:
    (folder / "data").chmod(0o644)
    (folder / "data").write_text("other")


def _write_the_same_size_and_time(folder: Path) -> None:
    before = (folder / "data").stat()
    (folder / "data").chmod(0o644)
    (folder / "data").write_text("x" * before.st_size)
    os.utime(folder / "data", ns=(before.st_atime_ns, before.st_mtime_ns))
    (folder / "data").chmod(0o444)


def _add_a_file(folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "json.py").write_text("")
    folder.chmod(0o555)


def _replace_by_a_link(folder: Path) -> None:
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    (folder / "data").rename(folder.parent / "elsewhere")
    (folder / "data").symlink_to("../elsewhere")


def _remove(folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "data").unlink()


def _replace_the_folder(folder: Path) -> None:
    folder.parent.chmod(0o755)
    folder.rename(folder.parent / "elsewhere")
    folder.mkdir()
    (folder / "graph.yaml").write_text(GRAPH)


CHANGES = [_write, _write_the_same_size_and_time, _add_a_file, _replace_by_a_link, _remove, _replace_the_folder]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("same_process", [True, False])
def test_a_bundle_that_was_changed_is_unpacked_again_before_anything_runs_from_it(
    world: World, change: Callable[[Path], None], same_process: bool
) -> None:
    """Finding S5."""
    cache, digest = world.cache(), world.digests[3]
    unpacked = cache.get(digest, "one")
    assert unpacked.is_intact()
    change(unpacked.folder)
    assert not unpacked.is_intact()
    again = (cache if same_process else world.cache()).get(digest, "one", intact=True)
    assert (again.folder / "data").read_text() == "3" * SIZE
    assert sorted(path.name for path in again.folder.iterdir()) == ["data", "graph.yaml"]
    assert again.is_intact()


def test_an_unchanged_bundle_is_compared_once_per_process(world: World) -> None:
    """Finding S5."""
    cache = world.cache()
    for _ in range(5):
        cache.get(world.digests[0], "one", intact=True)
    assert len(world.fetched) == 1


def test_a_folder_whose_unpacking_died_half_way_is_no_bundle(world: World) -> None:
    """Finding S5."""
    world.root.mkdir()
    half = world.tree(0)
    half.mkdir()
    (half / "graph.yaml").write_text(GRAPH[:20])
    assert (world.cache().get(world.digests[0], "one").folder / "data").read_text() == "0" * SIZE


@pytest.mark.parametrize("digest", ["../../etc", "", "a" * 63, "A" * 64, "a" * 64 + "\n", "/etc/passwd"])
def test_a_digest_is_64_hex_digits(world: World, digest: str) -> None:
    """Finding S4."""
    with pytest.raises(BundleError, match="is no digest of a bundle"):
        world.cache().get(digest, "one")
    assert world.fetched == []


@pytest.mark.parametrize("closed", ["", "agents", "agents/one"])
def test_a_folder_that_an_agent_has_closed_is_unpacked_again(closed: str) -> None:
    """What runs as the worker's user may do this. It must not fail every later visit of this machine."""
    with unprivileged() as home:
        world = World(home)
        cache = world.cache()
        cache.get(world.digests[0], "one")
        (world.tree(0) / closed).chmod(0)
        for each in (cache, world.cache()):
            unpacked = each.get(world.digests[0], "one", intact=True)
            assert (unpacked.folder / "data").read_text() == "0" * SIZE
