"""What may go into a bundle: the files of an agent folder, and nothing from outside of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sleipnir.agents.bundle import folder_signature, pack
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


def test_a_linked_folder_does_not_change_the_signature_of_a_folder(folder: Path) -> None:
    before = folder_signature(folder)
    (folder / "elsewhere").symlink_to(folder.parent, target_is_directory=True)
    assert folder_signature(folder) == before


def test_an_agent_folder_may_itself_be_reached_through_a_link(folder: Path) -> None:
    (folder.parent / "alias").symlink_to(folder, target_is_directory=True)
    assert pack(folder.parent / "alias", limit_bytes=LIMIT) == pack(folder, limit_bytes=LIMIT)


# Nothing is left out silently


def test_a_folder_that_links_out_of_the_agent_folder_is_refused(folder: Path) -> None:
    """Finding S12."""
    (folder / "shared").symlink_to(folder.parent, target_is_directory=True)
    with pytest.raises(BundleError, match="shared links to a folder outside the agent folder"):
        pack(folder, limit_bytes=LIMIT)


def test_a_linked_folder_within_is_packed_as_the_files_it_holds(folder: Path) -> None:
    """Finding S12."""
    (folder / "also").symlink_to("docs", target_is_directory=True)
    both = pack(folder, limit_bytes=LIMIT)
    (folder / "also").unlink()
    (folder / "also").mkdir()
    (folder / "also" / "inside.txt").write_text("mine")
    assert pack(folder, limit_bytes=LIMIT) == both


@pytest.mark.parametrize("target", [".", "..", "../docs"])
def test_links_in_a_circle_are_refused(folder: Path, target: str) -> None:
    """Finding S12."""
    (folder / "docs" / "again").symlink_to(target, target_is_directory=True)
    with pytest.raises(BundleError, match="again links to a folder"):
        pack(folder, limit_bytes=LIMIT)


def test_links_that_lead_to_each_other_are_refused(folder: Path) -> None:
    """Finding S12."""
    (folder / "more").mkdir()
    (folder / "docs" / "more").symlink_to("../more", target_is_directory=True)
    (folder / "more" / "docs").symlink_to("../docs", target_is_directory=True)
    with pytest.raises(BundleError, match="links to a folder that it is in"):
        pack(folder, limit_bytes=LIMIT)


@pytest.mark.parametrize("kind", ["broken link", "pipe"])
def test_what_is_neither_a_file_nor_a_folder_is_refused(folder: Path, kind: str) -> None:
    """Finding S12."""
    path = folder / "docs" / "odd"
    path.symlink_to("nowhere") if kind == "broken link" else os.mkfifo(path)
    with pytest.raises(BundleError, match="odd is neither a file nor a folder"):
        pack(folder, limit_bytes=LIMIT)


def test_a_loop_of_links_is_refused(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    for read in (folder_signature, lambda folder: pack(folder, limit_bytes=LIMIT)):
        with pytest.raises(BundleError, match=r"cannot read .*/a: Too many levels of symbolic links"):
            read(folder)
