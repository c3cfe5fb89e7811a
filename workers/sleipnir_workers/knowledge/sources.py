"""The meaning of the entries of `documents:` (spec 8.2).

    https://...            a page
    https://...**          a crawl of the pages linked below it
    LOADER:PATH            the output of the command LOADER of `document_loaders` for PATH
    a file                 that file
    a directory, or DIR/** every file in it, however deep
    DIR/**/*.{md,txt}      files below DIR by their names; case matters
    DIR/*.md               files of DIR itself
    DIR/*/NAME.ext         files of that name in DIR or one directory below
    DIR/**/NAME.ext        files of that name anywhere below

A path is in the agent's folder unless it is absolute or begins with `~/`. If a file or directory of the written name
exists, it is not a pattern. Some patterns (walk.py) go beyond Loki's.

The order: crawls, pages, loaders, local files; each kind in the order of the entries, and the files of one entry by
their names. There are no duplicates.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeAlias

from sleipnir.errors import UsageError
from sleipnir.graph.patterns import PatternRefused
from sleipnir_workers.knowledge.failures import Unloadable
from sleipnir_workers.knowledge.walk import FilePattern, is_pattern, walk


@dataclass(frozen=True)
class CrawlSource:
    url: str
    """The part before the `**`."""


@dataclass(frozen=True)
class PageSource:
    url: str


@dataclass(frozen=True)
class LoaderSource:
    """`path` is passed to the loader's command: absolute if it exists, else as written."""

    loader: str
    path: str


@dataclass(frozen=True)
class FileSource:
    path: Path


Origin: TypeAlias = CrawlSource | PageSource | LoaderSource | FileSource


@dataclass(frozen=True)
class LocalSource:
    """A path or pattern, not checked yet: `relative` below `root`. `written` is the text of the entry."""

    root: Path
    relative: str
    written: str

    @property
    def path(self) -> Path:
        return self.root / self.relative


def find(
    documents: Sequence[str],
    folder: Path,
    loaders: Collection[str],
    *,
    notice: Callable[[str], None],
    fail: Callable[[Unloadable], None],
    leave_out: Collection[Path] = (),
) -> list[Origin]:
    """The origins of the documents of the agent in `folder`. `loaders` are the names in `document_loaders`.

    A missing path or a link that is not followed causes a notice; an unreadable directory is a failure.
    `leave_out` are files that are never documents: the agent's own bases.
    Raises UsageError for an invalid entry.
    """
    entries = [entry(document, folder, loaders) for document in documents]
    origins: list[Origin] = []
    for kind in (CrawlSource, PageSource, LoaderSource):
        origins += [origin for origin in entries if isinstance(origin, kind)]
    known_paths = {os.path.realpath(path) for path in leave_out}
    for local in entries:
        if isinstance(local, LocalSource):
            origins += map(FileSource, _new_files(_files(local, folder, notice, fail), known_paths))
    return list(dict.fromkeys(origins))


def entry(
    document: str, folder: Path, loaders: Collection[str]
) -> CrawlSource | PageSource | LoaderSource | LocalSource:
    """The meaning of one entry of `documents:`. Raises UsageError for an invalid one."""
    text = document.strip()
    if text.lower().startswith(("http://", "https://")):
        return CrawlSource(text.removesuffix("**")) if text.endswith("**") else PageSource(text)
    loader, colon, path = text.partition(":")
    if colon and loader in loaders:
        return LoaderSource(loader, _for_command(path.strip(), folder, text))
    return _local(text, folder, text)


def absolute(documents: Iterable[str], folder: Path, loaders: Collection[str]) -> tuple[str, ...]:
    """The entries as a base stores them: as given, local ones absolute (spec 8.5)."""
    return tuple(_stored(entry(document, folder, loaders)) for document in documents)


def _stored(origin: CrawlSource | PageSource | LoaderSource | LocalSource) -> str:
    match origin:
        case CrawlSource(url):
            return f"{url}**"
        case PageSource(url):
            return url
        case LoaderSource(loader, path):
            return f"{loader}:{path}"
        case LocalSource():
            return str(origin.path)


def _for_command(path: str, folder: Path, written: str) -> str:
    local_path = _local(path, folder, written).path
    if "://" not in path and os.path.lexists(local_path):
        return str(local_path)
    if path.startswith("-"):  # a command would take it for an option
        raise UsageError(f"Invalid document path: '{written}'")
    return path


def _local(path: str, folder: Path, written: str) -> LocalSource:
    if not path or "\0" in path or ".." in PurePath(path).parts:
        raise UsageError(f"Invalid document path: '{written}'")
    if path == "~" or path.startswith("~/"):
        return LocalSource(Path.home(), path[1:].lstrip("/"), written)
    root = folder.resolve() if ".." in folder.parts else folder.absolute()
    if path.startswith(f"{root}/"):  # a stored entry of the agent: no character of `root` is special
        return LocalSource(root, path[len(str(root)) :].lstrip("/"), written)
    if path.startswith("/"):
        return LocalSource(Path("/"), path.lstrip("/"), written)
    return LocalSource(root, path, written)


def _files(
    local: LocalSource, folder: Path, notice: Callable[[str], None], fail: Callable[[Unloadable], None]
) -> list[Path]:
    try:
        mode = local.path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not is_pattern(local.relative):
            notice(f"{local.written}: does not exist, so it is left out")
            return []
        try:
            pattern = FilePattern.of(local.root, local.relative)
        except PatternRefused as error:
            fail(Unloadable(local.written, str(error)))
            return []
    except OSError as error:
        fail(Unloadable(local.written, str(error.strerror)))
        return []
    else:
        if stat.S_ISREG(mode):
            return [local.path]
        if not stat.S_ISDIR(mode):
            fail(Unloadable(local.written, "is neither a file nor a directory"))
            return []
        pattern = FilePattern.everything_in(local.path)
    files = walk(pattern, bounds=(folder,), notice=notice, fail=fail)
    if not files:
        notice(f"{local.written}: there is no such file, so it is left out")
    return files


def _new_files(files: Sequence[Path], known_paths: set[str]) -> list[Path]:
    """The files whose real paths are not in `known_paths` yet; they are added. A file is preferred to links to it."""
    real = {path: os.path.realpath(path) for path in files}
    added = []
    for path in sorted(files, key=lambda path: real[path] != str(path)):
        if real[path] not in known_paths:
            known_paths.add(real[path])
            added.append(path)
    return sorted(added)
