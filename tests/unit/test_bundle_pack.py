"""What may go into a bundle: the files of an agent folder, and nothing from outside of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.bundle import folder_signature, pack
from sleipnir.errors import BundleError

LIMIT = 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "outside.txt").write_text("not yours")
    folder = tmp_path / "agent"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "inside.txt").write_text("mine")
    return folder


def test_a_file_that_links_out_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "docs" / "link.txt").symlink_to(folder.parent / "outside.txt")
    for look in (lambda: pack(folder, limit_bytes=LIMIT), lambda: folder_signature(folder)):
        with pytest.raises(BundleError, match=r"link\.txt links to a file outside the agent folder"):
            look()


def test_a_link_within_the_folder_is_packed_as_the_file_it_names(folder: Path) -> None:
    linked = pack(folder, limit_bytes=LIMIT).packed
    (folder / "link.txt").symlink_to("docs/inside.txt")
    both = pack(folder, limit_bytes=LIMIT)
    (folder / "link.txt").unlink()
    (folder / "link.txt").write_text("mine")
    assert pack(folder, limit_bytes=LIMIT) == both
    assert both.packed != linked


def test_a_linked_folder_is_not_entered(folder: Path) -> None:
    before = folder_signature(folder)
    (folder / "elsewhere").symlink_to(folder.parent, target_is_directory=True)
    assert folder_signature(folder) == before


def test_an_agent_folder_may_itself_be_reached_through_a_link(folder: Path) -> None:
    (folder.parent / "alias").symlink_to(folder, target_is_directory=True)
    assert pack(folder.parent / "alias", limit_bytes=LIMIT) == pack(folder, limit_bytes=LIMIT)
