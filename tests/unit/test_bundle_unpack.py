"""What a worker unpacks is what was packed, and nothing outside its folder."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from sleipnir.agents import bundle
from sleipnir.agents.bundle import graph_in, pack, unpack
from sleipnir.errors import BundleError, MachineFailed

LIMIT = 2**20


def archive_of(*members: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return packed.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return info


def test_files_come_back_with_their_content_and_only_their_executable_bit(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    (agent / "scripts").mkdir(parents=True)
    (agent / "graph.yaml").write_text("name: x")
    script = agent / "scripts" / "run.sh"
    script.write_text("echo '{}'")
    script.chmod(0o777)
    target = tmp_path / "cache" / "digest"
    unpack(pack(agent, limit_bytes=LIMIT).packed, target, "a")
    folder = target / "agents" / "a"
    found = {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in target.rglob("*") if path.is_file()}
    assert found == {"graph.yaml": 0o444, "scripts/run.sh": 0o555}, "nobody writes into a bundle"
    assert (folder / "scripts/run.sh").read_text() == "echo '{}'"


@pytest.mark.parametrize(
    "bad",
    [
        member("../escaped"),
        member("/escaped"),
        member("a/../../escaped"),
        member("./dot"),
        member("link", tarfile.SYMTYPE, "/"),
        member("hard", tarfile.LNKTYPE, "good"),
        member("pipe", tarfile.FIFOTYPE),
        member("disk", tarfile.BLKTYPE),
        member("tty", tarfile.CHRTYPE),
        member("folder", tarfile.DIRTYPE),
        member("x" * 256),
        member("x/" * 600 + "x"),
    ],
    ids=lambda info: str(info.name)[:20],
)
def test_a_bundle_that_would_write_outside_its_folder_is_refused_completely(
    tmp_path: Path, bad: tarfile.TarInfo
) -> None:
    target = tmp_path / "cache" / "digest"
    with pytest.raises(BundleError, match="is not a file inside the bundle"):
        unpack(archive_of(member("good"), bad), target, "a")
    assert list((tmp_path / "cache").iterdir()) == []
    assert not (tmp_path / "cache" / "escaped").exists()


def test_unpacking_where_another_worker_was_faster_keeps_its_copy(tmp_path: Path) -> None:
    target = tmp_path / "digest"
    unpack(archive_of(member("first")), target, "a")
    unpack(archive_of(member("first")), target, "a")
    assert [path.name for path in (target / "agents" / "a").iterdir()] == ["first"]


def test_a_cache_that_cannot_be_written_is_a_failure_of_the_machine(tmp_path: Path) -> None:
    """Finding C18."""
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(MachineFailed, match="cannot unpack a bundle"):
        unpack(archive_of(member("good")), tmp_path / "cache" / "digest", "a")


@pytest.mark.parametrize("second", ["good", "good/inside"])
def test_a_file_that_is_there_twice_or_is_a_folder_too_is_refused(tmp_path: Path, second: str) -> None:
    with pytest.raises(BundleError, match="is in the bundle twice"):
        unpack(archive_of(member("good"), member(second)), tmp_path / "digest", "a")


@pytest.mark.parametrize("damage", [lambda packed: packed[:40], lambda packed: b"x" * 40, lambda packed: b""])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BundleError):
        graph_in(damage(archive_of(member("good"))), "a")
    with pytest.raises(BundleError):
        unpack(archive_of(member("good"))[:60], tmp_path / "digest", "a")


# Bombs: what is small when it is packed


def zeros(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def bomb(size: int, *, header: bool = False) -> bytes:
    """An archive of a few kB that unpacks to `size` bytes of one file, or of one header."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        info = tarfile.TarInfo("pax" if header else "zeros")
        info.type, info.size = tarfile.XHDTYPE if header else tarfile.REGTYPE, size
        file.write(info.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
        file.write(bytes(1024))
    return packed.getvalue()


def test_a_folder_that_is_small_only_when_it_is_packed_is_refused_without_reading_it_all(tmp_path: Path) -> None:
    """Finding S6."""
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "graph.yaml").write_text("name: x")
    zeros(agent / "zeros", 3 << 30)
    peak = peak_of(lambda: refused(lambda: pack(agent, limit_bytes=16 << 20), "more than 256 MiB.*zeros"))
    assert peak < 32 << 20


@pytest.mark.parametrize("header", [False, True])
def test_a_bomb_is_refused_by_who_unpacks_it_without_unpacking_it(tmp_path: Path, header: bool) -> None:
    """Finding S6."""
    packed = bomb(300 << 20, header=header)
    assert len(packed) < 2 << 20
    target = tmp_path / "bundles" / "digest"
    peak = peak_of(lambda: refused(lambda: unpack(packed, target, "a"), "unpacks to more than|header is too large"))
    assert peak < 32 << 20
    assert list(target.parent.iterdir()) == []
    assert peak_of(lambda: refused(lambda: graph_in(packed, "a"), "more than|header is too large|neither")) < 32 << 20


def test_the_bound_of_a_bundle_is_a_setting(tmp_path: Path) -> None:
    """Finding S6."""
    agent = tmp_path / "agent"
    agent.mkdir()
    zeros(agent / "data", 3 << 20)
    refused(lambda: pack(agent, limit_bytes=1 << 24, unpacked_bytes=2 << 20), "SLEIPNIR_MAX_UNPACKED_BYTES.*data")
    packed = pack(agent, limit_bytes=1 << 24).packed
    refused(lambda: unpack(packed, tmp_path / "d", "a", unpacked_bytes=2 << 20), "SLEIPNIR_MAX_UNPACKED_BYTES")
    unpack(packed, tmp_path / "d", "a")


def test_too_many_files_are_refused_by_who_packs_and_by_who_unpacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding S6."""
    assert bundle.MOST_BUNDLE_FILES == 10_000
    monkeypatch.setattr(bundle, "MOST_BUNDLE_FILES", 100)
    agent = tmp_path / "agent"
    agent.mkdir()
    for number in range(101):
        (agent / str(number)).touch()
    refused(lambda: pack(agent, limit_bytes=1 << 24), "more than 100 files")
    empty = [tarfile.TarInfo(str(number)) for number in range(101)]
    refused(lambda: unpack(archive_of(*empty), tmp_path / "d", "a"), "100 files")


def refused(act: Callable[[], object], why: str) -> None:
    with pytest.raises(BundleError, match=f"(?s){why}"):
        act()


def peak_of(act: Callable[[], object]) -> int:
    """The most memory that Python had for what `act` made, in bytes."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
