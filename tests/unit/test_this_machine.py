"""Whether a directory is the same one for two processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sleipnir.local.same_directory import NONE, System

FIRST = "pid:[4026531836]"


def system(
    root: Path, *, machine: str = "m1", pid: str = FIRST, mounts: str = "1", boot: str = "b1", host: str = "h1"
) -> System:
    """A Linux system as a process sees it whose root directory is `root`."""
    for file, text in (("etc/machine-id", machine), ("proc/sys/kernel/random/boot_id", boot)):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(f"{text}\n")
    names = root / "proc" / "self" / "ns"
    names.mkdir(parents=True, exist_ok=True)
    for name, target in (("pid", pid), ("mnt", f"mnt:[{mounts}]")):
        (names / name).unlink(missing_ok=True)
        (names / name).symlink_to(target)
    return System.linux(root, host)


@pytest.fixture
def project(tmp_path: Path) -> str:
    (tmp_path / "project").mkdir()
    return str(tmp_path / "project")


def made_anew(directory: str) -> str:
    """Another directory at the same path."""
    Path(directory).rename(f"{directory}.old")  # keeps its inode in use
    Path(directory).mkdir()
    return directory


def test_two_processes_of_a_machine_see_the_same_directory(tmp_path: Path, project: str) -> None:
    """Finding U6 of the second review."""
    marks = system(tmp_path).marks(project)
    assert system(tmp_path).has(project, marks)
    assert system(tmp_path).has(made_anew(project), marks), "whatever was made anew meanwhile"
    assert "m1" not in marks and "h1" not in marks


def test_a_machine_is_recognised_after_a_restart_and_a_recreated_directory_is_not(tmp_path: Path, project: str) -> None:
    """Finding U6 of the second review."""
    marks = system(tmp_path).marks(project)
    after = system(tmp_path, boot="b2", mounts="9")
    assert after.has(project, marks)
    assert not after.has(made_anew(project), marks)


def test_a_name_that_changes_while_the_machine_runs_does_not_matter(tmp_path: Path, project: str) -> None:
    assert system(tmp_path, host="renamed").has(project, system(tmp_path).marks(project))


def test_clones_of_a_machine_are_distinguished_by_their_names(tmp_path: Path, project: str) -> None:
    """They have one machine-id, and equal inodes."""
    assert not system(tmp_path, boot="b2", host="clone").has(project, system(tmp_path).marks(project))


@pytest.mark.parametrize("machine", ["m1", "", "uninitialized"])
@pytest.mark.parametrize("boot", ["b1", "b2"])
def test_containers_of_one_image_have_directories_of_their_own(
    tmp_path: Path, project: str, machine: str, boot: str
) -> None:
    """Finding U6 of the second review. Its containers have one machine-id, on one host or on several."""
    marks = system(tmp_path, machine=machine, pid="pid:[11]", mounts="11").marks(project)
    other = made_anew(project)
    assert not system(tmp_path, machine=machine, pid="pid:[12]", mounts="12", boot=boot).has(other, marks)
    assert not system(tmp_path, machine=machine, boot=boot, mounts="1").has(other, marks), "nor is it the host's"
    assert system(tmp_path, machine=machine, pid="pid:[11]", mounts="11").has(other, marks), "the same container"


def test_a_directory_that_is_mounted_into_a_container_is_the_same_one(tmp_path: Path, project: str) -> None:
    marks = system(tmp_path).marks(project)
    assert system(tmp_path, machine="", pid="pid:[11]", mounts="11", host="c0ffee").has(project, marks)


def test_a_service_with_a_private_tmp_has_another_directory_there(tmp_path: Path, project: str) -> None:
    """As systemd's PrivateTmp makes it: same machine-id, same root directory."""
    marks = system(tmp_path).marks(project)
    service = system(tmp_path, mounts="2")
    assert service.has(project, marks)
    assert not service.has(made_anew(project), marks)


def test_a_chroot_has_another_root_directory(tmp_path: Path, project: str) -> None:
    marks = system(tmp_path / "a").marks(project)
    assert not system(tmp_path / "b").has(made_anew(project), marks)


@pytest.mark.parametrize("directory", ["/no/such/directory", "a\0b"])
def test_the_view_decides_for_a_missing_directory(tmp_path: Path, directory: str) -> None:
    marks = system(tmp_path).marks(directory)
    assert system(tmp_path).has(directory, marks)
    assert not system(tmp_path, boot="b2").has(directory, marks)


def test_a_system_without_marks_has_no_callers_directory(tmp_path: Path, project: str) -> None:
    silent = System.linux(tmp_path, "h1")
    assert silent.marks(project) == NONE
    assert not silent.has(project, NONE)
    assert not silent.has(project, system(tmp_path).marks(project))


def test_every_process_here_has_these_marks() -> None:
    here = System.here()
    assert here is System.here()
    assert here.has(os.fspath(Path.cwd()), here.marks(os.fspath(Path.cwd())))
