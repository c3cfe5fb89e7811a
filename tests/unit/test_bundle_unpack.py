"""What a worker unpacks is what was packed, and nothing outside its folder."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from sleipnir.bundle import pack, unpack
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
    unpack(pack(agent, limit_bytes=LIMIT).packed, target)
    found = {str(path.relative_to(target)): path.stat().st_mode & 0o777 for path in target.rglob("*") if path.is_file()}
    assert found == {"graph.yaml": 0o644, "scripts/run.sh": 0o755}
    assert (target / "scripts/run.sh").read_text() == "echo '{}'"


@pytest.mark.parametrize(
    "bad",
    [member("../escaped"), member("/escaped"), member("link", tarfile.SYMTYPE, "/"), member("pipe", tarfile.FIFOTYPE)],
    ids=lambda info: str(info.name),
)
def test_a_bundle_that_would_write_outside_its_folder_is_refused_whole(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    target = tmp_path / "cache" / "digest"
    with pytest.raises(BundleError, match="is not a file inside the bundle"):
        unpack(archive_of(member("good"), bad), target)
    assert list((tmp_path / "cache").iterdir()) == []
    assert not (tmp_path / "cache" / "escaped").exists()


def test_unpacking_where_another_worker_was_faster_keeps_its_copy(tmp_path: Path) -> None:
    target = tmp_path / "digest"
    unpack(archive_of(member("first")), target)
    unpack(archive_of(member("first")), target)
    assert [path.name for path in target.iterdir()] == ["first"]


def test_a_cache_that_cannot_be_written_is_a_failure_of_the_machine(tmp_path: Path) -> None:
    """Finding C18."""
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(MachineFailed, match="cannot unpack a bundle"):
        unpack(archive_of(member("good")), tmp_path / "cache" / "digest")
