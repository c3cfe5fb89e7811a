"""Snapshot an agent folder, and materialise it again by digest.

A bundle is a compressed tar of the folder's files: sorted names, no times, no owners, modes reduced to 644 or 755,
so that the same content always has the same bytes and the same SHA-256, which names it. Left out: `.env` files and
other dot-files (they may hold secrets), caches, `sessions/`, `bin/` (Loki regenerates it), and the documents of rag
nodes and config.yaml agents with the knowledge bases that were made of them, which runs name by their digests.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from sleipnir.errors import BundleError, MachineFailed
from sleipnir.graph.load import CONFIG_FILE, GRAPH_FILE, load_graph
from sleipnir.graph.model import Graph, Json, RagNode
from sleipnir.graph.overrides import overridden
from sleipnir.staging import Lock, staging

KEPT = 128  # bundles that a process has loaded; each holds a file open
VARIANTS = 512  # graphs as overridden for some run, a few kB each
LEFT_OUT = ("__pycache__", "node_modules", "sessions", "bin", ".*", "*.pyc", "*.env")


@dataclass(frozen=True)
class Bundle:
    """`packed` is the archive, `digest` its SHA-256 in hex."""

    digest: str
    packed: bytes


def pack(folder: Path, *, limit_bytes: int, graph: Graph | None = None, config_file: Path | None = None) -> Bundle:
    """Pack an agent folder. `config_file` takes the place of its config.yaml. Raises BundleError when it is too large,
    or holds a link that leaves it."""
    files = {name: folder / name for name in _files(folder, _knowledge(graph))}
    if config_file is not None:
        files[CONFIG_FILE] = config_file
    tar_bytes = io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(files.items()):
            _add(archive, name, path)
    packed = gzip.compress(tar_bytes.getvalue(), compresslevel=6, mtime=0)
    if len(packed) > limit_bytes:
        raise BundleError(_too_large(folder, files, len(packed), limit_bytes))
    return Bundle(hashlib.sha256(packed).hexdigest(), packed)


def folder_signature(folder: Path, config_file: Path | None = None) -> tuple[tuple[str, int, int], ...]:
    """Name, size and change time of every file that could be packed: equal signatures, equal bundles."""
    also = [] if config_file is None else [str(config_file)]
    stats = ((name, (folder / name).stat()) for name in (*_files(folder, []), *also))
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def packed_part(signature: tuple[tuple[str, int, int], ...], graph: Graph) -> tuple[tuple[str, int, int], ...]:
    """Of a folder's signature, what goes into the bundle: documents may change, and knowledge bases be made."""
    knowledge = _knowledge(graph)
    return tuple(each for each in signature if not _left_out(Path(each[0]), knowledge))


def graph_in(packed: bytes, agent: str) -> Graph:
    """The graph of an agent's bundle. Raises BundleError when it has no definition, GraphError when that does not
    load."""
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        for name in (GRAPH_FILE, CONFIG_FILE):
            with contextlib.suppress(KeyError):
                if (member := archive.extractfile(name)) is not None:
                    return load_graph(member.read().decode(), name, agent)
    raise BundleError(f"the bundle of agent {agent!r} has neither a {GRAPH_FILE} nor a {CONFIG_FILE}")


def unpack(packed: bytes, target: Path) -> None:
    """Write a bundle's files below `target`, which must not exist; complete or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        staging = Path(tempfile.mkdtemp(prefix=".unpack-", dir=target.parent))
    except OSError as error:
        raise MachineFailed.of(error, f"cannot unpack a bundle to {target}") from error
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            for member in archive:
                _extract(archive, member, staging)
        staging.chmod(0o755)
        staging.rename(target)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        if not target.is_dir():  # another worker on this machine was faster: its copy is as good
            raise MachineFailed.of(error, f"cannot unpack a bundle to {target}") from error
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write one file. `extractall(filter="data")` would do, but Python 3.11 knows it only from 3.11.4 on."""
    content = archive.extractfile(member) if member.isfile() else None
    path = folder / member.name
    if content is None or not path.resolve().is_relative_to(folder.resolve()):
        raise BundleError(f"{member.name!r} is not a file inside the bundle")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.read())
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


@dataclass(frozen=True)
class Unpacked:
    """A bundle ready to run from: its graph, and its folder on this machine."""

    graph: Graph
    folder: Path


class BundleCache:
    """Bundles by digest, on disk and parsed. `fetch` gets the archive when it is not there yet. Thread-safe.

    Of all processes of a machine there are about `limit_bytes` on the disk, those loaded last. A process shares the
    lock file of each bundle that it has loaded, and who drops one holds that alone; what was dropped is fetched again.
    Loaded are up to KEPT bundles, those asked for last, and those that are `used`.
    """

    def __init__(self, root: Path, fetch: Callable[[str], bytes | None], limit_bytes: int = 2**31) -> None:
        self._root, self._fetch, self._limit_bytes = root, fetch, limit_bytes
        self._loaded: OrderedDict[str, tuple[Unpacked, Lock]] = OrderedDict()
        self._users: Counter[str] = Counter()
        self._grown: int | None = None  # bytes since all were counted; None: they never were
        self._lock = threading.Lock()
        self._variant = functools.lru_cache(maxsize=VARIANTS)(self._overridden)

    @contextlib.contextmanager
    def used(self, digest: str) -> Iterator[None]:
        """What is got of this bundle meanwhile stays where it is until the end of the block."""
        with self._lock:
            self._users[digest] += 1
        try:
            yield
        finally:
            with self._lock:
                self._users[digest] -= 1
                if not self._users[digest]:
                    del self._users[digest]

    def get(self, digest: str, agent: str, overrides: Mapping[str, Json] | None = None) -> Unpacked:
        """`overrides` are those of the run. Raises BundleError when the bundle is nowhere, GraphError when its graph
        cannot be read."""
        if overrides:
            return self._variant(digest, agent, json.dumps(overrides))
        with self._lock:
            known = self._loaded.get(digest)
            if known is None:
                self._let_go()
                known = self._loaded[digest] = self._load(digest, agent)
            self._loaded.move_to_end(digest)
            return known[0]

    def _overridden(self, digest: str, agent: str, overrides: str) -> Unpacked:
        unpacked = self.get(digest, agent)
        return replace(unpacked, graph=overridden(unpacked.graph, json.loads(overrides)))

    def _load(self, digest: str, agent: str) -> tuple[Unpacked, Lock]:
        lock = self._shared_lock(digest)
        try:
            return self._materialise(digest, agent), lock
        except BaseException:
            lock.close()
            raise

    def _shared_lock(self, digest: str) -> Lock:
        """While it is held, nobody drops the folder. Its file was changed last when the bundle was loaded last."""
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            while not (lock := Lock(self._lock_file(digest))).take_shared():
                lock.close()
            os.utime(lock.path)
        except OSError as error:
            raise MachineFailed.of(error, f"cannot unpack a bundle to {self._root / digest}") from error
        return lock

    def _materialise(self, digest: str, agent: str) -> Unpacked:
        folder = self._root / digest
        if not folder.is_dir():
            packed = self._fetch(digest)
            if packed is None:
                raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is not in Redis; was it flushed?")
            if hashlib.sha256(packed).hexdigest() != digest:
                raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is damaged: its content has another digest")
            unpack(packed, folder)
            self._make_room(_size_of(folder))
        file = next((folder / name for name in (GRAPH_FILE, CONFIG_FILE) if (folder / name).is_file()), None)
        if file is None:
            raise BundleError(f"bundle {digest[:12]} of agent {agent!r} has neither a {GRAPH_FILE} nor a {CONFIG_FILE}")
        return Unpacked(load_graph(file.read_text(), file.name, agent), folder)

    def _let_go(self) -> None:
        """Of what was asked for longest ago."""
        for digest in list(self._loaded):
            if len(self._loaded) <= KEPT:
                return
            if digest not in self._users:
                self._loaded.pop(digest)[1].close()

    def _make_room(self, added: int) -> None:
        """Drop what was loaded longest ago and is not used by any process, until all fit. Counting takes a while, so it
        is done again when so much has come that it may matter."""
        if self._grown is not None and self._grown + added < self._limit_bytes / 16:
            self._grown += added
            return
        self._grown = 0
        with contextlib.suppress(OSError):  # others clear up too, and what is dropped late is dropped
            sizes = {path: _size_of(path) for path in self._root.glob("[!.]*")}
            excess = sum(sizes.values()) - self._limit_bytes
            for folder in sorted(sizes, key=self._used_ns):
                if excess > 0 and self._drop(folder):
                    excess -= sizes[folder]

    def _drop(self, folder: Path) -> bool:
        """False: a process has it loaded."""
        lock = Lock(self._lock_file(folder.name))
        try:
            if not lock.take_alone(wait=False):
                return False
            with staging(self._root) as away:
                folder.rename(away / folder.name)
            lock.remove()
            return True
        finally:
            lock.close()

    def _used_ns(self, folder: Path) -> int:
        file = self._lock_file(folder.name)
        return file.stat().st_mtime_ns if file.exists() else 0

    def _lock_file(self, digest: str) -> Path:
        return self._root / f".{digest}.lock"


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _files(folder: Path, knowledge: list[str]) -> Iterator[str]:
    root = folder.resolve()
    for current, folders, names in os.walk(root):
        here = Path(current).relative_to(root)
        folders[:] = sorted(name for name in folders if not _left_out(here / name, knowledge))
        for name in names:
            if _left_out(here / name, knowledge):
                continue
            path = Path(current) / name
            # os.walk enters no linked folder, so only a file that is a link itself can be elsewhere.
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                raise BundleError(f"{path} links to a file outside the agent folder; copy it in, or remove the link")
            if path.is_file():
                yield (here / name).as_posix()


def _left_out(path: Path, knowledge: list[str]) -> bool:
    if any(fnmatch.fnmatch(path.name, pattern) for pattern in LEFT_OUT):
        return True
    return any(path.is_relative_to(source) for source in knowledge)


def _knowledge(graph: Graph | None) -> list[str]:
    """Knowledge bases, and relative files and folders that are their sources; URLs and globs match no path and stay
    harmless."""
    nodes = [node for node in graph.nodes.values() if isinstance(node, RagNode)] if graph else []
    sources = [source for node in nodes for source in (f"{node.id}.yaml", *node.documents)]
    relative = [str(PurePosixPath(source)) for source in sources if "://" not in source and not source.startswith("/")]
    return [source for source in relative if source not in ("", ".")]


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    try:
        content = path.read_bytes()
        executable = os.access(path, os.X_OK)
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from error
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o755 if executable else 0o644
    archive.addfile(info, io.BytesIO(content))


def _too_large(folder: Path, files: Mapping[str, Path], size: int, limit: int) -> str:
    largest = sorted((path.stat().st_size, name) for name, path in files.items())[::-1][:5]
    listed = "".join(f"\n  {bytes_ / 2**20:8.1f} MiB  {name}" for bytes_, name in largest)
    return (
        f"the agent folder {folder} packs to {size / 2**20:.1f} MiB, more than the {limit / 2**20:.0f} MiB of "
        f"SLEIPNIR_MAX_BUNDLE_BYTES. Move data out of it, or raise the limit. Its largest files:{listed}"
    )
