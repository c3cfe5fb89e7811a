"""The files of a directory that match a pattern, including links.

A link is followed only if its target is in the directory that the entry names, or in the agent's folder: a foreign
folder of documents must not add other files of this machine. Each directory is read once, so that circular links end.
Every file that is left out is reported.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sleipnir.graph import patterns
from sleipnir.graph.patterns import escaped
from sleipnir_workers.knowledge.failures import Unloadable

_SPECIAL = re.compile(r"[*?{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
MOST_NAMES = 20_000  # characters of the regular expression of a path; paths have at most 4,096


def is_pattern(path: str) -> bool:
    return _SPECIAL.search(path) is not None


@dataclass(frozen=True)
class FilePattern:
    """Files below `base` whose relative paths match `names`. `depth`: levels of directories to search, None: all."""

    base: Path
    names: patterns.Pattern
    depth: int | None

    @classmethod
    def everything_in(cls, directory: Path) -> FilePattern:
        return cls(directory, patterns.compiled(""), None)

    @classmethod
    def of(cls, root: Path, path: str) -> FilePattern:
        """From a path below `root`, whose own name is taken literally. `**` stands for any directories and `*` for at
        most one; within a name `*` stands for any characters, `?` for one, and `{a,b}` for a or b."""
        parts = Path(path).parts
        first = next(index for index, part in enumerate(parts) if is_pattern(part))
        *directories, last = parts[first:]
        names = "".join(map(_directory, directories)) + (_directory("**") + "[^/]+" if last == "**" else _name(last))
        depth = None if "**" in parts[first:] else len(directories)
        return cls(root.joinpath(*parts[:first]), patterns.compiled(f"^{names}$", most_characters=MOST_NAMES), depth)


def _directory(part: str) -> str:
    return {"**": "(?:[^/]+/)*", "*": "(?:[^/]+/)?"}.get(part) or f"{_name(part)}/"


def _name(part: str) -> str:
    pieces = []
    for index, piece in enumerate(_BRACES.split(part)):
        if index % 2:  # the inside of braces
            pieces.append("(?:" + "|".join(_characters(choice.strip()) for choice in piece.split(",")) + ")")
        else:
            pieces.append(_characters(piece))
    return "".join(pieces)


def _characters(text: str) -> str:
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(character) or escaped(character) for character in text)


def walk(
    pattern: FilePattern, *, bounds: Sequence[Path], notice: Callable[[str], None], fail: Callable[[Unloadable], None]
) -> list[Path]:
    """The matching files, sorted by name. Links may point into `bounds` and the pattern's own directory."""
    return sorted(_Walk(pattern, bounds, notice, fail).files())


class _Walk:
    def __init__(
        self,
        pattern: FilePattern,
        bounds: Sequence[Path],
        notice: Callable[[str], None],
        fail: Callable[[Unloadable], None],
    ) -> None:
        self._pattern = pattern
        self._bounds = [os.path.realpath(directory) for directory in (pattern.base, *bounds)]
        self._notice = notice
        self._fail = fail
        self._visited: set[str] = set()

    def files(self) -> Iterator[Path]:
        """By levels, so that a directory with several paths has the depth of the shortest one."""
        level = [self._pattern.base]
        depth = 0
        while level:
            below: list[Path] = []
            deeper = depth != self._pattern.depth
            for directory in level:
                for child in self._children(directory, deeper):
                    if child.is_dir():
                        below.append(child)
                    else:
                        yield child
            level, depth = below, depth + 1

    def _children(self, directory: Path, deeper: bool) -> list[Path]:
        """The matching files, and directories if `deeper`; nothing if the directory was read before."""
        real = os.path.realpath(directory)
        if real in self._visited:
            return []
        self._visited.add(real)
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):  # the base of a pattern, or one that was removed meanwhile
            return []
        except OSError as error:
            self._fail(Unloadable(str(directory), str(error.strerror)))
            return []
        return [Path(entry.path) for entry in entries if self._is_taken(entry, real, deeper)]

    def _is_taken(self, entry: os.DirEntry[str], real_parent: str, deeper: bool) -> bool:
        path = Path(entry.path)
        if entry.is_symlink():
            return self._is_followed(path, real_parent, deeper)
        if entry.is_dir():
            return deeper
        if not self._matches(path):
            return False
        if not entry.is_file():
            self._notice(f"{path}: is neither a file nor a directory, so it is left out")
            return False
        if not _is_utf8(entry.path):
            self._fail(Unloadable(ascii(entry.path), "its name is not valid UTF-8"))
            return False
        return True

    def _is_followed(self, link: Path, real_parent: str, deeper: bool) -> bool:
        try:
            target = os.path.realpath(link, strict=True)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._notice(f"{link}: is a circular link, so it is left out")
            elif self._matches(link):
                self._notice(f"{link}: is a link to a missing file, so it is left out")
            return False
        is_directory = Path(target).is_dir()
        if not (deeper if is_directory else self._matches(link)):
            return False
        if not any(_is_in(target, bound) for bound in self._bounds):
            self._notice(
                f"{link}: is a link that leaves {self._pattern.base} (to {target}), so it is left out; "
                "name its target in `documents` to include it"
            )
            return False
        if is_directory and _is_in(real_parent, target):
            self._notice(f"{link}: is a link to a directory that contains it, so it is left out")
            return False
        if not is_directory and not Path(target).is_file():
            self._notice(f"{link}: is a link to neither a file nor a directory, so it is left out")
            return False
        return True

    def _matches(self, path: Path) -> bool:
        return self._pattern.names.found_in(path.relative_to(self._pattern.base).as_posix())


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
