"""Unused data in Redis and on this machine: found, measured and removed for `sleipnir gc`.

Rules.

1. It is safe while runs are active. It removes nothing that a kept run, or a run submitted at the same time, needs: a
submit marks what it names as used before the run is created, and each removal checks the mark again.
2. It ignores data with its own limits: finished runs expire, caches of unpacked agent folders are limited, streams of
model text expire.
3. Sessions belong to people: they are removed only on request.
4. Only data that this machine can access is checked. A base that only another machine uses, and that no run has used
for the whole retention, may be removed from an index store; the next submission there indexes it again, without model
calls. An index store belongs to one deployment: a base in it that Redis does not list is unused once it is as old.
Other files in it are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sleipnir.agents import finding
from sleipnir.agents.bundle import UNPACKED
from sleipnir.knowledge.builder import Builder
from sleipnir.knowledge.files import digest_of, index_store_name, is_digest
from sleipnir.knowledge.order import Order
from sleipnir.messages import FINAL
from sleipnir.runs.sessions import SessionName
from sleipnir.runs.threads import ThreadName
from sleipnir.settings import Settings
from sleipnir.staging import abandoned, clear_up, staging
from sleipnir.store.store import Store
from sleipnir.upkeep.work_folders import WorkFolders
from sleipnir.upkeep.work_folders import remove as remove_work

GRACE_MS = 3600 * 1000
"""A bundle that a submit named within this time may be about to get a run. Clients mark it again every minute."""

UNPACK_S = 3600
"""After this time an unpacking or an installation is considered dead."""

TEMPORARY_S = 2 * 24 * 3600
TEMPORARY = ("graph-state-*.json", "tool-call-*", "sleipnir-loader-*", "sleipnir-download-*")
"""Files of visits in the temporary directory, left when their worker is killed."""


@dataclass(frozen=True)
class GarbageItem:
    """`kind` is run, keys, bundle, base, staging, temporary, scratch, session or thread; `bytes_` what its removal
    frees, about."""

    kind: str
    name: str
    bytes_: int
    why: str


Found = tuple[GarbageItem, Callable[[], bool]]
"""Removable data, and the function that removes it: False if it is needed after all."""


def garbage_items(store: Store, settings: Settings, *, sessions: bool) -> Iterator[Found]:
    """All removable data, found lazily and without removing it. `sessions`: also sessions and threads of agents that
    are not found here. Raises StoreUnavailable and OSError, and at the end KnowledgeError for an index store that
    cannot be read."""
    with store.errors():
        yield from _of_runs(store)
        pinned = store.pinned()
        yield from _bundles(store, pinned.bundles)
        if sessions:
            yield from _sessions(store, settings)
            yield from _threads(store, settings)
    yield from _staged(settings)
    yield from _temporary(Path(tempfile.gettempdir()))
    with store.errors():
        yield from _scratch(store, settings)
    with store.errors():  # last: an index store may be away
        yield from _bases(store, settings, pinned.bases)


def _of_runs(store: Store) -> Iterator[Found]:
    for remains in store.garbage.listed():
        item = GarbageItem("run", remains.run, 0, "is listed but missing")
        yield item, partial(store.garbage.remove, remains)
    for remains in store.garbage.orphans():
        item = GarbageItem(
            "keys", remains.run, remains.bytes_, f"{len(remains.keys)} keys of a run that does not exist"
        )
        yield item, partial(store.garbage.remove, remains)


def _bundles(store: Store, pinned: frozenset[str]) -> Iterator[Found]:
    before_ms = store.now_ms() - GRACE_MS
    for digest in store.bundles.unused_since(before_ms):
        if digest not in pinned:
            item = GarbageItem("bundle", digest, store.bundles.size(digest), "no kept run uses it")
            yield item, partial(store.bundles.drop, digest, before_ms)


def _bases(store: Store, settings: Settings, pinned: frozenset[str]) -> Iterator[Found]:
    """The bases in the index store, whether Redis lists them or not."""
    index_store, keep_ms = index_store_name(settings), max(GRACE_MS, int(settings.retention_s * 1000))
    before_ms = store.now_ms() - keep_ms
    listed = [each for each in store.knowledge.unused_since(before_ms) if each.shelf == index_store]
    unused = [(each.digest, f"{each.agent}/{each.node} {each.digest[:12]}", each.bytes_) for each in listed]
    known = {each.digest for each in store.knowledge.all_shared()} | store.knowledge.used_since(before_ms)
    for digest, bytes_, age_s in (
        _lying_in_s3(settings) if index_store.startswith("s3://") else _lying_in(Path(index_store))
    ):
        if digest not in known and age_s * 1000 > keep_ms:
            unused.append((digest, digest[:12], bytes_))
    named = _named_here(settings) if unused else set()
    for digest, name, bytes_ in unused:
        if digest not in pinned and digest not in named:
            item = GarbageItem("base", name, bytes_, "no kept run and no agent here uses it")
            if index_store.startswith("s3://"):
                yield item, partial(_drop_from_s3, settings, digest, before_ms)
            else:
                yield item, partial(_drop_base, store, Path(index_store), digest, before_ms)


def _lying_in(index_store: Path) -> Iterator[tuple[str, int, float]]:
    """The digest, the bytes and the age in seconds of each index in a folder."""
    for manifest in index_store.glob("*/manifest.json"):
        folder = manifest.parent
        with contextlib.suppress(OSError, ValueError):  # removed meanwhile, or not created by Sleipnir
            written = json.loads(manifest.read_text())
            if is_digest(folder.name) and isinstance(written, dict) and written.get("digest") == folder.name:
                yield folder.name, size_of(folder), _age_s(folder)


def _lying_in_s3(settings: Settings) -> Iterator[tuple[str, int, float]]:
    """The same for a bucket, which only builders can read."""
    shelved = Builder(settings).carry_out(Order("shelved", agent="gc", node="shelf", folder=""))
    yield from (tuple(each) for each in shelved["bases"])


def _named_here(settings: Settings) -> set[str]:
    """The digests of all bases in agents' folders, even of agents that do not load."""
    files = (file for place in finding.places(settings) for file in place.glob("*/*.yaml"))
    return {digest for file in files if (digest := digest_of(file)) is not None}


def _drop_base(store: Store, index_store: Path, digest: str, before_ms: int) -> bool:
    """Removed from the list first: later readers find it missing, and add it again."""
    if not store.knowledge.forget_unused(digest, before_ms):
        return False
    with contextlib.suppress(FileNotFoundError), staging(index_store) as away:
        (index_store / digest).rename(away / digest)
    return True


def _drop_from_s3(settings: Settings, digest: str, before_ms: int) -> bool:
    order = Order("unshelve", agent="gc", node="shelf", folder="", digest=digest, before_ms=before_ms)
    return bool(Builder(settings).carry_out(order)["removed"])


def _sessions(store: Store, settings: Settings) -> Iterator[Found]:
    known = set(finding.names(settings))
    for info in store.sessions.all():
        if info.agent not in known and info.run is None:
            why = f"{info.messages} messages; agent {info.agent!r} is not found here"
            name = SessionName(info.agent, info.name, info.namespace)
            item = GarbageItem("session", str(name), 0, why)
            yield item, partial(store.sessions.remove, name)


def _threads(store: Store, settings: Settings) -> Iterator[Found]:
    known = set(finding.names(settings))
    for info in store.threads.all():
        if info.agent not in known and (info.status is None or info.status in FINAL):
            name = ThreadName(info.agent, info.name, info.namespace)
            item = GarbageItem("thread", str(name), 0, f"agent {info.agent!r} is not found here")
            yield item, partial(store.threads.remove, name)


def _staged(settings: Settings) -> Iterator[Found]:
    own = [folder for place in finding.places(settings) for folder in place.glob("*/")]
    index_store = index_store_name(settings)
    folders = [] if index_store.startswith("s3://") else [Path(index_store)]
    for parent in (*folders, settings.home / "knowledge-cache", *own):
        for folder in abandoned(parent):
            item = GarbageItem("staging", str(folder), size_of(folder), "its builder has ended")
            yield item, partial(_clear_up, parent)
    for parent, pattern in ((settings.home / UNPACKED, ".unpack-*"), (finding.own_agents(settings), ".install-*")):
        for path in parent.glob(pattern):
            if _age_s(path) > UNPACK_S:
                yield (
                    GarbageItem("staging", str(path), size_of(path), "was left by a process that has ended"),
                    _remover(path),
                )


def _clear_up(parent: Path) -> bool:
    clear_up(parent)
    return True


def _scratch(store: Store, settings: Settings) -> Iterator[Found]:
    for folder in WorkFolders(settings.home, settings.work_retention_s).expired(store):
        yield GarbageItem("scratch", str(folder), size_of(folder), "its run has ended"), partial(remove_work, folder)


def _temporary(folder: Path) -> Iterator[Found]:
    old = [path for pattern in TEMPORARY for path in folder.glob(pattern) if _is_ours_and_old(path)]
    in_use = _open_files() if old else set()
    for path in old:
        if not any(name == str(path) or name.startswith(f"{path}/") for name in in_use):
            yield (
                GarbageItem("temporary", str(path), size_of(path), "was left by a visit of a worker that has ended"),
                _remover(path),
            )


def _is_ours_and_old(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid() and not path.is_symlink() and _age_s(path) > TEMPORARY_S
    except FileNotFoundError:
        return False


def _open_files() -> set[str]:
    """The open files and working directories of this user's processes. If they are unknown, only the age counts."""
    names = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for link in (process / "cwd", *(process / "fd").iterdir()):
                with contextlib.suppress(OSError):
                    names.add(str(link.readlink()))
    return names


def _age_s(path: Path) -> float:
    """The time since the last change in it."""
    changed = [path.stat().st_mtime]
    with contextlib.suppress(OSError):
        changed += [each.stat().st_mtime for each in path.rglob("*")]
    return time.time() - max(changed)


def size_of(path: Path) -> int:
    """Of a file, or of all files in a folder."""
    total = 0
    for file in (path, *path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def _remover(path: Path) -> Callable[[], bool]:
    def remove() -> bool:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return True

    return remove
