"""The files and names of knowledge bases."""

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
    """The digest of a base, 64 hex digits; None if there is no such file."""
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
    """Whether a name has the form of a digest."""
    return _DIGEST.fullmatch(name) is not None


def pin_name(agent: str, node: str) -> str:
    """The name of a node's base in a run's spec (RunSpec.knowledge)."""
    return f"{agent}/{node}"


def lease_name(folder: Path, node: str) -> str:
    """The name of a build's lease: the digest of the real path of the base's file.

    It does not hold the agent's name, as one folder may be linked under several, nor the recipe: two builds of one file
    exclude each other regardless of the recipe. Machines with different agents at one path wait for each other and then
    build their own, which only costs time.
    """
    return hashlib.sha256(os.fsencode(base_file(folder.resolve(), node))).hexdigest()


def index_store_name(settings: Settings) -> str:
    """The place of the shared indexes: an absolute folder, or `s3://bucket/prefix`."""
    configured = settings.knowledge
    if configured is not None and configured.startswith("s3://"):
        return "s3://" + configured.removeprefix("s3://").strip("/")
    return str((settings.home / "knowledge" if configured is None else Path(configured).expanduser()).absolute())


def is_missing(index_store: str, digest: str) -> bool:
    """Whether an index is certainly missing in an index store, even if Redis lists it. Only folders are checked."""
    return not index_store.startswith("s3://") and not (Path(index_store) / digest).is_dir()
