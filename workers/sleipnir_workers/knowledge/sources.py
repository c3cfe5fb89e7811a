"""What the entries of `documents:` mean (spec 8.2).

    https://...            a page
    https://...**          a crawl of what is linked below it
    LOADER:PATH            what the command of that name in `document_loaders` makes of PATH
    a file                 that file
    a directory, or DIR/** every file in it, however deep
    DIR/**/*.{md,txt}      files below DIR by their names; case matters
    DIR/*.md               files of DIR itself
    DIR/*/NAME.ext         files of that name in DIR or one directory below
    DIR/**/NAME.ext        files of that name anywhere below

A path is in the agent's folder unless it is absolute or begins with `~/`. What exists as it is written is not taken for
a pattern. Patterns beyond those of Loki (walk.py) are added.

Crawls come first, then pages, then loaders, then local files, each in the order they are named, and the files of one
entry by their names. Nothing comes twice.
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
class Crawl:
    url: str
    """What stands before the `**`."""


@dataclass(frozen=True)
class Page:
    url: str


@dataclass(frozen=True)
class Protocol:
    """`path` is what the loader's command gets: absolute where it is a path that exists, else as written."""

    loader: str
    path: str


@dataclass(frozen=True)
class File:
    path: Path


Origin: TypeAlias = Crawl | Page | Protocol | File


@dataclass(frozen=True)
class Local:
    """A path or pattern, not looked at yet: `rest` below `root`. `written` is what the agent's author calls it."""

    root: Path
    rest: str
    written: str

    @property
    def path(self) -> Path:
        return self.root / self.rest


def find(
    documents: Sequence[str],
    folder: Path,
    loaders: Collection[str],
    *,
    notice: Callable[[str], None],
    fail: Callable[[Unloadable], None],
    leave_out: Collection[Path] = (),
) -> list[Origin]:
    """Where the documents of the agent in `folder` come from. `loaders` are the names in `document_loaders`.

    A path that does not exist, or a link that leads nowhere good, is a notice; a directory that cannot be read fails.
    `leave_out` are files that are none, whatever names them: the bases of the agent itself.
    Raises UsageError for an entry that makes no sense.
    """
    entries = [entry(document, folder, loaders) for document in documents]
    origins: list[Origin] = []
    for kind in (Crawl, Page, Protocol):
        origins += [each for each in entries if isinstance(each, kind)]
    known = {os.path.realpath(path) for path in leave_out}
    for local in entries:
        if isinstance(local, Local):
            origins += map(File, _not_yet(_files(local, folder, notice, fail), known))
    return list(dict.fromkeys(origins))


def entry(document: str, folder: Path, loaders: Collection[str]) -> Crawl | Page | Protocol | Local:
    """What one entry of `documents:` is. Raises UsageError for one that makes no sense."""
    text = document.strip()
    if text.lower().startswith(("http://", "https://")):
        return Crawl(text.removesuffix("**")) if text.endswith("**") else Page(text)
    loader, colon, path = text.partition(":")
    if colon and loader in loaders:
        return Protocol(loader, _for_command(path.strip(), folder, text))
    return _local(text, folder, text)


def absolute(documents: Iterable[str], folder: Path, loaders: Collection[str]) -> tuple[str, ...]:
    """The entries as a base remembers them: as given, local ones absolute (spec 8.5)."""
    return tuple(_remembered(entry(document, folder, loaders)) for document in documents)


def _remembered(found: Crawl | Page | Protocol | Local) -> str:
    match found:
        case Crawl(url):
            return f"{url}**"
        case Page(url):
            return url
        case Protocol(loader, path):
            return f"{loader}:{path}"
        case Local():
            return str(found.path)


def _for_command(path: str, folder: Path, written: str) -> str:
    found = _local(path, folder, written).path
    if "://" not in path and os.path.lexists(found):
        return str(found)
    if path.startswith("-"):  # a command would take it for an option
        raise UsageError(f"Invalid document path: '{written}'")
    return path


def _local(path: str, folder: Path, written: str) -> Local:
    if not path or "\0" in path or ".." in PurePath(path).parts:
        raise UsageError(f"Invalid document path: '{written}'")
    if path == "~" or path.startswith("~/"):
        return Local(Path.home(), path[1:].lstrip("/"), written)
    root = folder.resolve() if ".." in folder.parts else folder.absolute()
    if path.startswith(f"{root}/"):  # an entry of the agent's as a base remembers it: nothing in `root` is special
        return Local(root, path[len(str(root)) :].lstrip("/"), written)
    if path.startswith("/"):
        return Local(Path("/"), path.lstrip("/"), written)
    return Local(root, path, written)


def _files(local: Local, folder: Path, notice: Callable[[str], None], fail: Callable[[Unloadable], None]) -> list[Path]:
    try:
        mode = local.path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not is_pattern(local.rest):
            notice(f"{local.written}: does not exist, so it is left out")
            return []
        try:
            pattern = FilePattern.of(local.root, local.rest)
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
    found = walk(pattern, bounds=(folder,), notice=notice, fail=fail)
    if not found:
        notice(f"{local.written}: there is no such file, so it is left out")
    return found


def _not_yet(found: Sequence[Path], known: set[str]) -> list[Path]:
    """Those that are not in `known` by another name; now they are. Of a file and links to it, the file is taken."""
    real = {path: os.path.realpath(path) for path in found}
    taken = []
    for path in sorted(found, key=lambda path: real[path] != str(path)):
        if real[path] not in known:
            known.add(real[path])
            taken.append(path)
    return sorted(taken)
