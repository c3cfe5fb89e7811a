"""Folders beside an agent's that its files use by relative paths, as the agents of Loki do: `agents/.shared`, and of
`functions`, which is beside `agents`, the scripts and libraries.

`.shared` is packed with every agent beside it. `functions` may be large, so it is packed only if a file of the agent or
of `.shared` contains `functions/`; and only the parts that agents use, not its mcp.json, which may contain secrets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

SHARED, FUNCTIONS = ".shared", "functions"
_USED = ("scripts", "tools", "utils")
_NAMED = f"{FUNCTIONS}/".encode()
_TEXT_BYTES = 1 << 20  # a larger file is no script


def beside(folder: Path, files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """The folders, each with the prefix of its files' names in the bundle. `files` are the agent's own."""
    place = folder.absolute().parent
    shared = place / SHARED
    if shared.is_dir():
        yield SHARED, shared
    if place.name == "agents" and (functions := place.parent / FUNCTIONS).is_dir():
        of_shared = shared.rglob("*") if shared.is_dir() else ()
        if any(_names_functions(path) for path in (*files, *of_shared)):
            for name in _USED:
                if (functions / name).is_dir():
                    yield f".{FUNCTIONS}/{name}", functions / name


def _names_functions(file: Path) -> bool:
    with contextlib.suppress(OSError):
        status = file.stat()
        return status.st_size <= _TEXT_BYTES and _is_named_in(file, status.st_size, status.st_mtime_ns)
    return False


@lru_cache(maxsize=4096)
def _is_named_in(file: Path, _size: int, _mtime_ns: int) -> bool:
    """Read once per version of the file, because agents are checked again with every submit."""
    return file.is_file() and _NAMED in file.read_bytes()
