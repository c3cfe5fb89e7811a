"""Whether two processes see the same directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.this_machine import machine_id, machine_id_of

HOST = "pid:[4026531836]"


class System:
    """The root directory of a Linux system, as one process sees it."""

    def __init__(self, root: Path, *, machine: str = "m1", pid: str = HOST, mount: str = "1", boot: str = "b1") -> None:
        self.root = root
        for file, text in (("etc/machine-id", machine), ("proc/sys/kernel/random/boot_id", boot)):
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(f"{text}\n")
        names = root / "proc" / "self" / "ns"
        names.mkdir(parents=True, exist_ok=True)
        for name, target in (("pid", pid), ("mnt", f"mnt:[{mount}]")):
            (names / name).unlink(missing_ok=True)
            (names / name).symlink_to(target)

    @property
    def id(self) -> str:
        return machine_id_of(self.root)


def test_two_processes_of_a_machine_agree_also_after_a_restart(tmp_path: Path) -> None:
    """Finding U6 of the second review."""
    before = System(tmp_path).id
    assert System(tmp_path, boot="b2", mount="9").id == before
    assert len(before) == 16 and "m1" not in before


@pytest.mark.parametrize("machine", ["m1", "", "uninitialized"])
def test_containers_of_one_image_are_machines_of_their_own(tmp_path: Path, machine: str) -> None:
    """Finding U6 of the second review."""
    ids = [System(tmp_path, machine=machine, pid=f"pid:[{n}]", mount=n).id for n in ("11", "12")]
    again = System(tmp_path, machine=machine, pid="pid:[12]", mount="12").id
    host = System(tmp_path, machine=machine).id
    assert len({*ids, host}) == 3
    assert again == ids[1], "two processes of one container"


def test_a_chroot_is_another_machine(tmp_path: Path) -> None:
    assert System(tmp_path / "a").id != System(tmp_path / "b").id


def test_without_a_machine_id_a_boot_is_a_machine(tmp_path: Path) -> None:
    assert System(tmp_path, machine="", boot="b1").id != System(tmp_path, machine="", boot="b2").id


def test_a_system_that_tells_nothing_has_an_identity_all_the_same(tmp_path: Path) -> None:
    assert len(machine_id_of(tmp_path)) == 16


def test_every_process_here_has_this_identity() -> None:
    assert machine_id() == machine_id() and len(machine_id()) == 16
