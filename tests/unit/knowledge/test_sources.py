"""What the entries of `documents:` mean."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from sleipnir.errors import UsageError
from sleipnir_workers.knowledge.failures import Unloadable
from sleipnir_workers.knowledge.sources import CrawlSource, FileSource, LoaderSource, Origin, PageSource, absolute, find

T = TypeVar("T")

LOADERS = ("git", "jina", "pdf", "url")


class Found:
    def __init__(self, folder: Path, *documents: str, leave_out: tuple[Path, ...] = ()) -> None:
        self.notices: list[str] = []
        self.failures: list[Unloadable] = []
        self.origins: list[Origin] = find(
            documents,
            folder,
            LOADERS,
            notice=self.notices.append,
            fail=self.failures.append,
            leave_out=leave_out,
        )
        self._folder = folder

    @property
    def files(self) -> list[str]:
        paths = [origin.path for origin in self.origins if isinstance(origin, FileSource)]
        return [path.relative_to(self._folder).as_posix() for path in paths]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    agent = tmp_path / "agent"
    for name in (
        "top.md",
        "docs/a.md",
        "docs/b.txt",
        "docs/C.MD",
        "docs/.hidden.md",
        "docs/GUIDE.md",
        "docs/x/a.md",
        "docs/x/GUIDE.md",
        "docs/x/y/GUIDE.md",
        "docs/x/y/z.py",
    ):
        path = agent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("words")
    return agent


EVERYTHING = [
    "docs/.hidden.md", "docs/C.MD", "docs/GUIDE.md", "docs/a.md", "docs/b.txt", "docs/x/GUIDE.md", "docs/x/a.md",
    "docs/x/y/GUIDE.md", "docs/x/y/z.py",
]  # fmt: skip


@pytest.mark.conformance("K13")
@pytest.mark.parametrize(
    ("entry", "files"),
    [
        ("top.md", ["top.md"]),
        ("  docs/a.md  ", ["docs/a.md"]),
        ("./docs/a.md", ["docs/a.md"]),
        ("docs", EVERYTHING),
        ("docs/", EVERYTHING),
        ("docs/**", EVERYTHING),
        ("docs/**/*.{txt,py}", ["docs/b.txt", "docs/x/y/z.py"]),
        ("docs/**/*.{ txt , py }", ["docs/b.txt", "docs/x/y/z.py"]),
        ("docs/**/*.md", [name for name in EVERYTHING if name.endswith(".md")]),
        ("**/*.py", ["docs/x/y/z.py"]),
        ("docs/*.{md,txt}", ["docs/.hidden.md", "docs/GUIDE.md", "docs/a.md", "docs/b.txt"]),
        ("*.md", ["top.md"]),
        ("docs/*/GUIDE.md", ["docs/GUIDE.md", "docs/x/GUIDE.md"]),
        ("docs/**/GUIDE.md", ["docs/GUIDE.md", "docs/x/GUIDE.md", "docs/x/y/GUIDE.md"]),
        ("docs/**/y/*", ["docs/x/y/GUIDE.md", "docs/x/y/z.py"]),
        ("docs/?.md", ["docs/a.md"]),
        ("docs/{a,b}.*", ["docs/a.md", "docs/b.txt"]),
        ("docs/*.MD", ["docs/C.MD"]),
    ],
)
def test_a_path_or_pattern_of_the_agents_folder_names_files(folder: Path, entry: str, files: list[str]) -> None:
    found = Found(folder, entry)
    assert (found.files, found.notices, found.failures) == (files, [], [])


def test_absolute_paths_and_those_of_the_home_directory_are_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "agent"))
    found = Found(tmp_path / "elsewhere", "~/top.md", str(folder / "docs" / "x" / "*.md"))
    assert found.origins == [
        FileSource(folder / "top.md"),
        FileSource(folder / "docs/x/GUIDE.md"),
        FileSource(folder / "docs/x/a.md"),
    ]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder: Path) -> None:
    (folder / "*.md").write_text("a star")
    assert Found(folder, "*.md").files == ["*.md"]


@pytest.mark.conformance("K13")
@pytest.mark.parametrize(
    "entry", ["../secrets", "docs/../../secrets", "/tmp/../etc", "docs/../*.md", "git:../x", "git:https://x/../y", ".."]
)
def test_two_dots_are_refused(folder: Path, entry: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Found(folder, "top.md", f" {entry} ")
    assert str(refusal.value) == f"Invalid document path: '{entry}'"


@pytest.mark.parametrize("entry", ["", "  ", "a\0b", "git:", "git:--upload-pack=x", "git:--upload-pack=x://y"])
def test_an_entry_that_can_be_no_path_is_refused(folder: Path, entry: str) -> None:
    with pytest.raises(UsageError, match="Invalid document path"):
        Found(folder, entry)


def test_dots_in_a_name_or_a_url_are_none_of_that(folder: Path) -> None:
    (folder / "a..b.md").write_text("words")
    assert Found(folder, "a..b.md").files == ["a..b.md"]
    assert Found(folder, "https://x.org/a/../b").origins == [PageSource("https://x.org/a/../b")]


def test_crawls_come_first_then_pages_then_loaders_then_files_and_nothing_twice(folder: Path) -> None:
    found = Found(
        folder,
        "top.md",
        "git:https://example.org/repo",
        "https://x.org/page",
        "docs/a.md",
        "https://x.org/docs/**",
        "https://x.org/page",
        "docs/*.md",
        str(folder / "top.md"),
        "git:docs",
        "jina:name",
    )
    assert found.origins == [
        CrawlSource("https://x.org/docs/"),
        PageSource("https://x.org/page"),
        LoaderSource("git", "https://example.org/repo"),
        LoaderSource("git", str(folder / "docs")),
        LoaderSource("jina", "name"),
        FileSource(folder / "top.md"),
        FileSource(folder / "docs/a.md"),
        FileSource(folder / "docs/.hidden.md"),
        FileSource(folder / "docs/GUIDE.md"),
    ]


def test_what_comes_before_a_colon_is_a_loader_only_if_there_is_one_of_that_name(folder: Path) -> None:
    (folder / "note:one.md").write_text("words")
    assert Found(folder, "note:one.md").files == ["note:one.md"]


def test_entries_are_stored_as_given_and_local_ones_absolute(folder: Path) -> None:
    given = ["https://x.org/**", "https://x.org/a", "git:https://x.org/r", "docs/**/*.md", "/etc/hosts"]
    assert absolute(given, folder, LOADERS) == (*given[:3], f"{folder}/docs/**/*.md", "/etc/hosts")


@pytest.mark.parametrize("entry", ["nowhere.md", "top.md/inside.md"])
def test_a_path_that_does_not_exist_is_left_out_with_a_notice(folder: Path, entry: str) -> None:
    found = Found(folder, entry, "top.md")
    assert found.files == ["top.md"]
    assert found.notices == [f"{entry}: does not exist, so it is left out"]


@pytest.mark.parametrize("entry", ["docs/*.rst", "nowhere/**/*.md", "top.md/*.md", "docs/{a.md"])
def test_so_is_a_pattern_that_no_file_matches(folder: Path, entry: str) -> None:
    assert Found(folder, entry).notices == [f"{entry}: there is no such file, so it is left out"]


def test_the_bases_of_the_agent_are_no_documents_of_it(folder: Path) -> None:
    (folder / "know.yaml").write_text("chunks")
    assert "know.yaml" not in Found(folder, ".", leave_out=(folder / "know.yaml",)).files
    assert "know.yaml" in Found(folder, ".").files


def test_nothing_is_special_in_the_name_of_the_agents_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a{b}*"
    folder.mkdir()
    (folder / "one.md").write_text("words")
    assert Found(folder, "*.md").files == ["one.md"]
    assert Found(folder, *absolute(["*.md"], folder, LOADERS)).files == ["one.md"]


def test_the_agents_folder_may_itself_be_named_with_two_dots(folder: Path) -> None:
    roundabout = folder / "docs" / ".." / ".." / "agent"
    remembered = absolute(["*.md"], roundabout, LOADERS)
    assert remembered == (f"{folder.resolve()}/*.md",)
    assert Found(roundabout, *remembered).origins == [FileSource(folder.resolve() / "top.md")]


# Links


def test_a_link_to_a_directory_that_it_is_in_does_not_go_round_for_ever(folder: Path) -> None:
    (folder / "docs/x/loop").symlink_to(folder / "docs")
    found = Found(folder, "docs")
    assert found.files == EVERYTHING
    assert found.notices == [f"{folder}/docs/x/loop: is a link to a directory that contains it, so it is left out"]


def test_links_that_lead_to_each_other_are_named(folder: Path) -> None:
    (folder / "docs/ping").symlink_to("pong")
    (folder / "docs/pong").symlink_to("ping")
    found = Found(folder, "docs")
    assert found.files == EVERYTHING
    assert found.notices == [
        f"{folder}/docs/{name}: is a circular link, so it is left out" for name in ("ping", "pong")
    ]
    explicit = Found(folder, "docs/ping")
    assert [str(failure) for failure in explicit.failures] == ["docs/ping: Too many levels of symbolic links"]


def test_directories_that_link_to_each_other_are_read_once(folder: Path) -> None:
    for number in range(12):
        (folder / f"many/d{number}").mkdir(parents=True)
        (folder / f"many/d{number}/file.md").write_text("words")
    for number in range(12):
        for other in range(12):
            (folder / f"many/d{number}/to{other}").symlink_to(folder / f"many/d{other}")
    assert Found(folder, "many").files == sorted(f"many/d{number}/file.md" for number in range(12))


def test_a_link_that_leaves_the_directory_is_named_and_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "private"
    outside.mkdir()
    (outside / "key.md").write_text("secret")
    (folder / "docs/out").symlink_to(outside)
    (folder / "docs/key.md").symlink_to(outside / "key.md")
    found = Found(folder, "docs/**/*.md")
    assert not [name for name in found.files if "key" in name]
    assert len(found.notices) == 2
    assert f"{folder}/docs/key.md: is a link that leaves {folder}/docs (to {outside}/key.md)" in found.notices[0]
    assert Found(folder, "docs/*.py").notices == ["docs/*.py: there is no such file, so it is left out"]
    assert Found(folder, "docs/key.md").origins == [FileSource(folder / "docs/key.md")]  # the agent's author names it


def test_a_link_within_the_agents_folder_is_followed_and_a_file_is_loaded_under_its_own_name(folder: Path) -> None:
    (folder / "docs/0.md").symlink_to("a.md")
    (folder / "more").mkdir()
    (folder / "docs/more").symlink_to(folder / "more")
    (folder / "more/deep.md").write_text("words")
    assert [name for name in Found(folder, "docs").files if name not in EVERYTHING] == ["docs/more/deep.md"]
    assert "docs/0.md" not in Found(folder, "docs").files


def test_a_link_to_nothing_is_named_where_it_would_have_been_taken(folder: Path) -> None:
    (folder / "docs/gone.md").symlink_to("nowhere")
    assert Found(folder, "docs/*.md").notices == [
        f"{folder}/docs/gone.md: is a link to a missing file, so it is left out"
    ]
    assert Found(folder, "docs/*.txt").notices == []


# What is neither a file nor a directory


def test_a_pipe_is_never_opened(folder: Path) -> None:
    os.mkfifo(folder / "docs/pipe")
    (folder / "docs/plumbing").symlink_to("pipe")
    assert Found(folder, "docs").notices == [
        f"{folder}/docs/pipe: is neither a file nor a directory, so it is left out",
        f"{folder}/docs/plumbing: is a link to neither a file nor a directory, so it is left out",
    ]
    assert [str(failure) for failure in Found(folder, "docs/pipe").failures] == [
        "docs/pipe: is neither a file nor a directory"
    ]


def test_a_name_that_is_no_utf_8_fails_and_is_shown(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/docs/\xff.md")).write_text("words")
    found = Found(folder, "docs/*.md")
    assert "docs/a.md" in found.files
    assert [str(failure) for failure in found.failures] == [f"'{folder}/docs/\\udcff.md': its name is not valid UTF-8"]


def without_roots_rights(work: Callable[[], T]) -> T:
    """`work`, done by a thread that may read what its files' modes say, also where root runs the tests."""
    libc = ctypes.CDLL(None, use_errno=True)

    def humbly() -> T:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # linux/capability.h: version 3, this thread
        rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 of each
        assert libc.capget(header, rights) == 0
        rights[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        assert libc.capset(header, rights) == 0
        return work()

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(humbly).result()


def test_a_directory_that_may_not_be_read_fails(folder: Path) -> None:
    (folder / "docs/x").chmod(0)
    try:
        failures = without_roots_rights(lambda: Found(folder, "docs").failures)
        assert [str(failure) for failure in failures] == [f"{folder}/docs/x: Permission denied"]
    finally:
        (folder / "docs/x").chmod(0o700)
