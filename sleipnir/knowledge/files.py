"""Where the base of a node is, and what it is called."""

from __future__ import annotations

import functools
import hashlib
import os
import re
from pathlib import Path

from sleipnir.settings import Settings

_DIGEST = re.compile(r"[0-9a-f]{64}")


def base_file(folder: Path, node: str) -> Path:
    """The base of a node of the agent in `folder`; it may not exist."""
    return folder / f"{node}.yaml"


def digest_of(file: Path) -> str | None:
    """The digest of a base, 64 hex digits; None when there is no such file."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return _digest(file, stat.st_size, stat.st_mtime_ns, stat.st_ino)


@functools.lru_cache(maxsize=256)
def _digest(file: Path, size: int, mtime_ns: int, inode: int) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def is_digest(name: str) -> bool:
    """Whether a file or an object may be a base by its name."""
    return _DIGEST.fullmatch(name) is not None


def pin_name(agent: str, node: str) -> str:
    """How a run's spec names the base of a node (RunSpec.knowledge)."""
    return f"{agent}/{node}"


def lease_name(folder: Path, node: str) -> str:
    """What the lease of a build is called: the base's file by its real path, as a digest.

    Not the agent's name, as one folder may be linked under several, nor the recipe: two builds of one file exclude each
    other whatever they make. Machines that keep different agents at one path wait for each other and then build their
    own, which costs time and breaks nothing.
    """
    return hashlib.sha256(os.fsencode(base_file(folder.resolve(), node))).hexdigest()


def index_store_name(settings: Settings) -> str:
    """Where bases are shared: an absolute folder, or `s3://bucket/prefix`."""
    named = settings.knowledge
    if named is not None and named.startswith("s3://"):
        return "s3://" + named.removeprefix("s3://").strip("/")
    return str((settings.home / "knowledge" if named is None else Path(named).expanduser()).absolute())


def is_missing(index_store: str, digest: str) -> bool:
    """Whether an index is certainly not in an index store, whatever the list says. Only folders are looked at."""
    return not index_store.startswith("s3://") and not (Path(index_store) / digest).is_dir()
