"""Packs an agent folder into a bundle, and unpacks it by digest.

A bundle is a compressed tar of the folder's files: sorted names, no times, no owners, modes reduced to 644 or 755, so
that the same content always has the same bytes and the same SHA-256, which names it. Left out: `.env` files and other
dot-files (they may hold secrets), caches, `sessions/`, `bin/` (Loki regenerates it), and the documents and knowledge
bases of rag nodes and config.yaml agents, which runs name by their digests. Included: the folders beside it that its
files use by relative paths (siblings.py), under names that begin with a dot, unlike files of an agent. Unpacked, all
have their original places: `agents/NAME`, `agents/.shared`, `functions` in one read-only tree.

Rules. A bundle from Redis is untrusted data: its unpacked size is limited, and it is read in chunks. An unpacked bundle
is read-only. Each process compares it with the archive when it loads it, and checks before each use whether a file or a
folder of it was modified since (`is_intact`); a modified one is unpacked again.
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
import re
import shutil
import stat
import tarfile
import tempfile
import threading
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from sleipnir.agents.siblings import FUNCTIONS, SHARED, beside
from sleipnir.errors import BundleError, MachineFailed
from sleipnir.graph.agent_names import folder_of, part_for
from sleipnir.graph.load import CONFIG_FILE, GRAPH_FILE, load_graph
from sleipnir.graph.model import Graph, Json
from sleipnir.graph.overrides import overridden
from sleipnir.settings import MOST_BUNDLE_FILES, MOST_UNPACKED_BYTES
from sleipnir.staging import Lock, is_there, make_removable, put_in_place, staging

COMPARED = 3  # attempts to unpack a folder that keeps changing
KEPT = 128  # bundles that a process has loaded; each holds a file open
VARIANTS = 512  # graphs as overridden for some run, a few kB each
LEFT_OUT = ("__pycache__", "node_modules", "sessions", "bin", ".*", "*.pyc", "*.env")


@dataclass(frozen=True)
class Bundle:
    """`packed` is the archive, `digest` its SHA-256 in hex."""

    digest: str
    packed: bytes


DIGEST = re.compile(r"[0-9a-f]{64}")

UNPACKED = "unpacked"
"""The folder below a worker's home. Not `bundles`: workers of earlier releases that share the home have writable trees
there, which this release would treat as modified and replace while they are in use."""

_File: TypeAlias = "os.DirEntry[str]"
_BESIDE = (f"{SHARED}/", f".{FUNCTIONS}/")
"""The prefix of names of files from beside the agent's folder."""

_PIECE_BYTES = 1 << 20
_DEFINITION_BYTES = 16 << 20  # of a graph.yaml or config.yaml
_NAME_BYTES, _PATH_BYTES = 255, 1024
_DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, UnicodeError, ValueError)
"""Exceptions of reading an invalid archive."""


def pack(
    folder: Path,
    *,
    limit_bytes: int,
    graph: Graph | None = None,
    config_file: Path | None = None,
    definition: str | None = None,
    unpacked_bytes: int = MOST_UNPACKED_BYTES,
) -> Bundle:
    """Pack an agent folder. `config_file` replaces its config.yaml; `definition` is the text of the graph.yaml that its
    graph.py defines. Raises BundleError if it is larger than
    `limit_bytes` packed or `unpacked_bytes` unpacked, has more than MOST_BUNDLE_FILES files, or contains a link that
    leaves it or an unreadable file."""
    files: dict[str, Path | bytes] = {}
    for name, file in _all_files(folder, _knowledge(graph)):
        files[name] = Path(file.path)
        if len(files) > MOST_BUNDLE_FILES:
            raise BundleError(
                f"the agent folder {folder} has more than {MOST_BUNDLE_FILES:,} files. Move data out of it"
            )
    if config_file is not None:
        files[CONFIG_FILE] = config_file
    if definition is not None:
        files[GRAPH_FILE] = definition.encode()
    return pack_files(folder, files, limit_bytes=limit_bytes, unpacked_bytes=unpacked_bytes)


def pack_files(
    folder: Path, files: Mapping[str, Path | bytes], *, limit_bytes: int, unpacked_bytes: int = MOST_UNPACKED_BYTES
) -> Bundle:
    """Pack files, or contents, by their names in the bundle of `folder`. Raises BundleError as `pack` does."""
    if len(files) > MOST_BUNDLE_FILES:
        raise BundleError(f"the files in {folder} that the agent needs are more than {MOST_BUNDLE_FILES:,}")
    packing = _Packing(limit_bytes)
    left = unpacked_bytes
    with tarfile.open(fileobj=packing, mode="w", format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
        for name in sorted(files):
            left -= _add(archive, name, files[name], left)
            if left < 0:
                raise BundleError(
                    _too_large(
                        folder, files, f"has more than {unpacked_bytes / 2**20:.0f} MiB", "SLEIPNIR_MAX_UNPACKED_BYTES"
                    )
                )
    packed, size = packing.finish()
    if packed is None:
        least = f"packs to {size / 2**20:.1f} MiB, more than {limit_bytes / 2**20:.0f} MiB"
        raise BundleError(_too_large(folder, files, least, "SLEIPNIR_MAX_BUNDLE_BYTES"))
    return Bundle(hashlib.sha256(packed).hexdigest(), packed)


class _Packing:
    """A file that compresses its input, and keeps at most `limit_bytes` of the output."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._compressor = zlib.compressobj(6, wbits=31)
        self._packed, self._size, self._written = bytearray(), 0, 0

    def write(self, data: bytes) -> int:
        self._written += len(data)
        self._keep(self._compressor.compress(data))
        return len(data)

    def tell(self) -> int:
        return self._written

    def finish(self) -> tuple[bytes | None, int]:
        """The content, None if it exceeds the limit; and its size."""
        self._keep(self._compressor.flush())
        return None if self._size > self._limit_bytes else bytes(self._packed), self._size

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= self._limit_bytes:
            self._packed += data


def folder_signature(folder: Path, config_file: Path | None = None) -> tuple[tuple[str, int, int], ...]:
    """Name, size and change time of every file that could be packed: equal signatures, equal bundles."""
    stats = [(name, file.stat()) for name, file in _all_files(folder, [], is_signature=True)]
    if config_file is not None and config_file.is_file():
        stats.append((str(config_file), config_file.stat()))
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def packed_part(signature: tuple[tuple[str, int, int], ...], graph: Graph) -> tuple[tuple[str, int, int], ...]:
    """The part of a folder's signature that affects the bundle: documents and knowledge bases may change."""
    knowledge = _knowledge(graph)
    return tuple(each for each in signature if each[0].startswith(_BESIDE) or not _left_out(each[0], knowledge))


def graph_in(packed: bytes, agent: str, *, unpacked_bytes: int = MOST_UNPACKED_BYTES) -> Graph:
    """The graph of an agent's bundle; for a name of agent_names.py that part of it. Raises BundleError if it has no
    definition or is invalid, GraphError if its definition does not load."""
    name, text = definition_in(packed, agent, unpacked_bytes=unpacked_bytes)
    return part_for(load_graph(text, name, folder_of(agent)), agent)


def definition_in(packed: bytes, agent: str, *, unpacked_bytes: int = MOST_UNPACKED_BYTES) -> tuple[str, str]:
    """The name and the text of the file that defines an agent, from its bundle. Raises BundleError as `graph_in`."""
    definitions: dict[str, bytes] = {}
    for name, _, content in _members(packed, unpacked_bytes):
        if name in (GRAPH_FILE, CONFIG_FILE):
            definitions[name] = b"".join(content)[: _DEFINITION_BYTES + 1]
            if len(definitions[name]) > _DEFINITION_BYTES:
                raise BundleError(f"the {name} of agent {agent!r} has more than {_DEFINITION_BYTES >> 20} MiB")
        if GRAPH_FILE in definitions or name > GRAPH_FILE:  # names are sorted
            break
    for name in (GRAPH_FILE, CONFIG_FILE):
        if name in definitions:
            return name, _decoded(definitions[name], name, agent)
    raise BundleError(f"the bundle of agent {agent!r} has neither a {GRAPH_FILE} nor a {CONFIG_FILE}")


def _decoded(content: bytes, name: str, agent: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise BundleError(f"the {name} of agent {agent!r} is not UTF-8: byte {error.start + 1}") from None


class _Unpacking(gzip.GzipFile):
    """Reads an archive in chunks, so that memory stays within the limit even if it unpacks to more."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _PIECE_BYTES:
            raise BundleError("the bundle is no archive that this release writes: a header is too large")
        return super().read(size)


def _members(packed: bytes, unpacked_bytes: int) -> Iterator[tuple[str, bool, Iterator[bytes]]]:
    """Name, whether it is executable, and content of each file; the content must be read before the next one is
    requested. Raises BundleError for an invalid bundle: too large, or with anything except files inside a folder."""
    names: set[str] = set()
    try:
        with (
            _Unpacking(fileobj=io.BytesIO(packed)) as file,
            tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="strict") as archive,
        ):
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                _check_member(member, names)
                unpacked_bytes -= member.size
                if unpacked_bytes < 0 or len(names) > MOST_BUNDLE_FILES:
                    raise BundleError(
                        "the bundle unpacks to more than SLEIPNIR_MAX_UNPACKED_BYTES, or than "
                        f"{MOST_BUNDLE_FILES:,} files"
                    )
                yield member.name, bool(member.mode & 0o100), _content(archive, member)
    except _DAMAGED as error:
        raise BundleError(f"it cannot be read: {error}") from error


def _check_member(member: tarfile.TarInfo, names: set[str]) -> None:
    """Raises BundleError unless the entry is a new plain file below the folder. Adds its name."""
    path = PurePosixPath(member.name)
    is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.sparse and member.size >= 0
    is_inside = not path.is_absolute() and str(path) == member.name and not {"..", "."} & {*path.parts}
    is_short = len(os.fsencode(member.name)) <= _PATH_BYTES and all(
        len(os.fsencode(part)) <= _NAME_BYTES for part in path.parts
    )
    if not (is_plain and is_inside and is_short) or "\0" in member.name:
        raise BundleError(f"{member.name[:200]!r} is not a file inside the bundle")
    if member.name in names or any(str(parent) in names for parent in path.parents):
        raise BundleError(f"{member.name!r} is in the bundle twice")
    names.add(member.name)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    file = archive.extractfile(member)
    assert file is not None
    while piece := file.read(_PIECE_BYTES // 16):
        yield piece


def unpack(packed: bytes, target: Path, agent: str, *, unpacked_bytes: int = MOST_UNPACKED_BYTES) -> None:
    """Write the tree of a bundle of `agent` to `target`, which must not exist; completely or not at all, and read-only.
    Raises BundleError for an invalid bundle, MachineFailed if this machine cannot write it."""
    staged: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        staged = Path(tempfile.mkdtemp(prefix=".unpack-", dir=target.parent))
        for name, is_executable, content in _members(packed, unpacked_bytes):
            _write(staged / _place(name, agent), is_executable, content)
        put_in_place(staged, target)
        _make_read_only(target)
    except OSError as error:
        # Another worker on this machine may have been faster: its copy is as good, and is compared when it is loaded.
        if not is_there(error) or not target.is_dir():
            raise MachineFailed.of(error, f"cannot unpack a bundle to {target}") from error
    finally:
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)


def agent_folder(tree: Path, agent: str) -> Path:
    """The agent's own folder in an unpacked tree. Names come from messages: an invalid folder name is not used."""
    is_name = agent not in ("", ".", "..", SHARED) and not {"/", "\0"} & {*agent}
    is_name = is_name and len(agent.encode(errors="replace")) <= _NAME_BYTES and agent.isprintable()
    return tree / "agents" / (agent if is_name else "agent")


def _place(name: str, agent: str) -> str:
    """The path in the tree of a file of the archive."""
    folder, _, rest = name.partition("/")
    if rest and folder == SHARED:
        return f"agents/{name}"
    if rest and folder == f".{FUNCTIONS}":
        return f"{FUNCTIONS}/{rest}"
    return str(agent_folder(Path(), agent) / name)


def _write(path: Path, is_executable: bool, content: Iterator[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        for piece in content:
            file.write(piece)
    path.chmod(_mode(is_executable))


def _mode(is_executable: bool) -> int:
    return 0o555 if is_executable else 0o444


def _make_read_only(folder: Path) -> None:
    """Makes its folders read-only, as its files are. It is moved into place before, because a read-only folder cannot
    be moved."""
    for current, _, _ in os.walk(folder, topdown=False):
        if stat.S_IMODE(os.stat(current).st_mode) != 0o555:  # noqa: PTH116
            Path(current).chmod(0o555)  # only then: it would count as a touch


def _is_unpacked(packed: bytes, folder: Path, agent: str, unpacked_bytes: int) -> bool:
    """Whether the tree holds the files of the bundle with their content and their modes, and nothing else. Folders are
    made read-only, in case the unpacking process died before."""
    files: set[str] = set()
    try:
        for name, is_executable, content in _members(packed, unpacked_bytes):
            place = _place(name, agent)
            if not _is_file(folder / place, is_executable, content):
                return False
            files.add(place)
        below = {str(parent) for name in files for parent in PurePosixPath(name).parents}
        for current, folders, names in os.walk(folder):
            relative = Path(current).relative_to(folder)
            if {str(relative / name) for name in folders} - below or {str(relative / name) for name in names} - files:
                return False
        _make_read_only(folder)
    except OSError:  # it is not there, or cannot be read
        return False
    return True


def _is_file(path: Path, is_executable: bool, content: Iterator[bytes]) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:  # noqa: PTH123  (a descriptor)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != _mode(is_executable):
            return False
        return all(file.read(len(piece)) == piece for piece in content) and not file.read(1)


Touch: TypeAlias = tuple[str, int, int, int]
"""A path, and values that change if its file is modified: its inode, its size, and the time of its last change, which
only the kernel sets."""


@dataclass(frozen=True)
class Unpacked:
    """A bundle ready to run from: its graph, and on this machine the agent's folder in a read-only tree."""

    graph: Graph
    folder: Path
    touches: tuple[Touch, ...] = field(default=(), repr=False, compare=False)
    """Of the tree's files and folders, as they were when it was compared with the archive."""

    def is_intact(self) -> bool:
        """Whether no file or folder of it was modified since it was loaded. One system call for each."""
        try:
            return all(_touch(touch[0]) == touch for touch in self.touches)
        except OSError:
            return False

    def changed(self) -> list[str]:
        """The files that were added, changed or removed since, by their paths in the tree, except caches of Python."""
        tree = self.folder.parent.parent
        before, now = ({touch[0]: touch for touch in touches} for touches in (self.touches, _touches(tree)))
        paths = [path for path in sorted({*before, *now}) if before.get(path) != now.get(path)]
        return [
            Path(path).relative_to(tree).as_posix()
            for path in paths
            if "__pycache__" not in Path(path).parts and not (path in before and Path(path).is_dir())
        ]


def tree_name(digest: str, agent: str) -> str:
    """The folder of a bundle's tree among all that are unpacked."""
    return f"{digest}-{hashlib.sha256(agent.encode(errors='replace')).hexdigest()[:8]}"


def _touches(folder: Path) -> tuple[Touch, ...]:
    return tuple(
        _touch(path)
        for current, _, names in os.walk(folder)
        for path in (current, *(os.path.join(current, name) for name in names))  # noqa: PTH118  (it is looked at often)
    )


def _touch(path: str) -> Touch:
    status = os.stat(path, follow_symlinks=False)  # noqa: PTH116
    return path, status.st_ino, status.st_size, status.st_ctime_ns


class BundleCache:
    """Bundles by digest, on disk and parsed. `fetch` gets the archive, once per process, and the files on disk are
    compared with it. Thread-safe.

    All processes of a machine together keep about `limit_bytes` on disk, the most recently loaded. A process holds a
    shared lock on each bundle that it has loaded; removing one needs an exclusive lock; a removed bundle is fetched
    again. Agents with the same files have one digest but separate trees, because their folders have different names. A
    process keeps up to KEPT trees, the most recently used, and those of bundles that are `used`.
    """

    def __init__(
        self,
        root: Path,
        fetch: Callable[[str], bytes | None],
        limit_bytes: int = 2**31,
        unpacked_bytes: int = MOST_UNPACKED_BYTES,
    ) -> None:
        self._root, self._fetch, self._limit_bytes, self._unpacked_bytes = root, fetch, limit_bytes, unpacked_bytes
        self._loaded: OrderedDict[tuple[str, str], tuple[Unpacked, Lock]] = OrderedDict()
        self._users: Counter[str] = Counter()
        self._grown: int | None = None  # bytes since all were counted; None: they never were
        self._lock = threading.Lock()
        self._variant = functools.lru_cache(maxsize=VARIANTS)(self._overridden)

    @contextlib.contextmanager
    def used(self, digest: str) -> Iterator[None]:
        """Keeps the trees of this bundle in place until the end of the block."""
        with self._lock:
            self._users[digest] += 1
        try:
            yield
        finally:
            with self._lock:
                self._users[digest] -= 1
                if not self._users[digest]:
                    del self._users[digest]

    def get(
        self, digest: str, agent: str, overrides: Mapping[str, Json] | None = None, *, intact: bool = False
    ) -> Unpacked:
        """`overrides` are those of the run. `intact`: a file of the folder is about to be executed, so check whether it
        was modified since it was loaded. Raises BundleError if the bundle is missing or invalid, GraphError if its
        graph cannot be read, MachineFailed if it cannot be unpacked here."""
        if not DIGEST.fullmatch(digest):
            raise BundleError(f"{digest[:80]!r} is no digest of a bundle")
        key = digest, folder_of(agent)
        with self._lock:
            known = self._loaded.get(key)
            if known is None:
                self._let_go()
                known = self._loaded[key] = self._load(*key)
            elif intact and not known[0].is_intact():
                known = self._loaded[key] = self._materialise(*key), known[1]
            self._loaded.move_to_end(key)
        unpacked = known[0]
        if agent != key[1]:
            unpacked = replace(unpacked, graph=part_for(unpacked.graph, agent))
        return replace(unpacked, graph=self._variant(digest, agent, json.dumps(overrides))) if overrides else unpacked

    def _overridden(self, digest: str, agent: str, overrides: str) -> Graph:
        return overridden(self.get(digest, agent).graph, json.loads(overrides))

    def _load(self, digest: str, agent: str) -> tuple[Unpacked, Lock]:
        lock = self._shared_lock(tree_name(digest, agent))
        try:
            return self._materialise(digest, agent), lock
        except BaseException:
            lock.close()
            raise

    def _shared_lock(self, tree: str) -> Lock:
        """While it is held, no process removes the folder. Its modification time is the time of the last load."""
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            while not (lock := Lock(self._lock_file(tree))).take_shared():
                lock.close()
            os.utime(lock.path)
        except OSError as error:
            raise MachineFailed.of(error, f"cannot unpack a bundle to {self._root / tree}") from error
        return lock

    def _materialise(self, digest: str, agent: str) -> Unpacked:
        """The folder with the content of the archive, regardless of its previous content."""
        packed = self._fetch(digest)
        if packed is None:
            raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is not in Redis; was it flushed?")
        if hashlib.sha256(packed).hexdigest() != digest:
            raise BundleError(f"bundle {digest[:12]} of agent {agent!r} is damaged: its content has another digest")
        graph = graph_in(packed, agent, unpacked_bytes=self._unpacked_bytes)
        folder = self._root / tree_name(digest, agent)
        for _ in range(COMPARED):
            touches = _touches(folder)
            if touches and _is_unpacked(packed, folder, agent, self._unpacked_bytes):
                if touches == _touches(folder):
                    return Unpacked(graph, agent_folder(folder, agent), touches)
                continue
            exists = bool(touches) or os.path.lexists(folder)  # a closed folder shows nothing of itself
            if exists:
                import structlog

                structlog.get_logger().error("an unpacked bundle was changed; unpacking it again", bundle=digest)
                self._put_away(folder)
            unpack(packed, folder, agent, unpacked_bytes=self._unpacked_bytes)
            if not exists:
                self._make_room(_size_of(folder))
        raise MachineFailed("disk", f"something changes the files below {folder} again and again")

    def _put_away(self, folder: Path) -> None:
        """Remove it in one step. Visits that run from it may miss a file, as after the modification."""
        try:
            with staging(self._root) as away:
                make_removable(folder)
                folder.rename(away / folder.name)
        except FileNotFoundError:
            return  # another process was faster
        except OSError as error:
            raise MachineFailed.of(error, f"cannot remove {folder}") from error

    def _let_go(self) -> None:
        """Unload the bundles that were requested longest ago."""
        for key in list(self._loaded):
            if len(self._loaded) <= KEPT:
                return
            if key[0] not in self._users:
                self._loaded.pop(key)[1].close()

    def _make_room(self, added: int) -> None:
        """Remove the least recently loaded trees that no process uses, until the limit is met. Counting is slow, so it
        is repeated only after enough new data."""
        if self._grown is not None and self._grown + added < self._limit_bytes / 16:
            self._grown += added
            return
        self._grown = 0
        with contextlib.suppress(OSError, MachineFailed):  # other processes remove folders too; later is early enough
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
            self._put_away(folder)
            lock.remove()
            return True
        finally:
            lock.close()

    def _used_ns(self, folder: Path) -> int:
        file = self._lock_file(folder.name)
        return file.stat().st_mtime_ns if file.exists() else 0

    def _lock_file(self, tree: str) -> Path:
        return self._root / f".{tree}.lock"


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _all_files(folder: Path, knowledge: list[str], *, is_signature: bool = False) -> Iterator[tuple[str, _File]]:
    """The files to pack of an agent's folder and of what is beside it, by their names in the archive."""
    own = []
    for name, file in _files(folder, knowledge, is_signature=is_signature):
        own.append(file)
        yield name, file
    for prefix, other in beside(folder, (Path(file.path) for file in own)):
        for name, file in _files(other, [], is_signature=is_signature):
            yield f"{prefix}/{name}", file


def _files(folder: Path, knowledge: list[str], *, is_signature: bool = False) -> Iterator[tuple[str, _File]]:
    """The files to pack, by their names. Raises BundleError for files that cannot be packed, instead of omitting them.
    `is_signature`: linked folders may be documents of a rag node, and are not read. Without pathlib: each submission
    takes a signature."""
    root = folder if is_signature else folder.resolve()
    unread = [("", str(root))]
    while unread:
        place, current = unread.pop()
        for entry in _entries(current, is_signature=is_signature):
            name = place + entry.name
            if _left_out(name, knowledge):
                continue
            if _is_folder(entry):
                if not is_signature:
                    _check_folder(Path(entry.path), root)
                if not (is_signature and entry.is_symlink()):
                    unread.append((f"{name}/", entry.path))
            elif entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root.resolve()):
                raise BundleError(
                    f"{entry.path} links to a file outside the agent folder; copy it in, or remove the link"
                )
            elif entry.is_file():
                yield name, entry
            elif not is_signature:
                raise BundleError(f"{entry.path} is neither a file nor a folder; remove it from the agent folder")


def _is_folder(entry: _File) -> bool:
    """Also for a link to one. Raises BundleError for a loop of links, and for what cannot be looked at."""
    try:
        return entry.is_dir()
    except OSError as error:
        raise BundleError(
            f"cannot read {entry.path}: {error.strerror}. Remove it, or give its owner the right"
        ) from None


def _entries(folder: str, *, is_signature: bool) -> list[_File]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        if is_signature:
            return []
        raise BundleError(
            f"cannot read {error.filename}: {error.strerror}. Give its owner the right, or remove it"
        ) from None


def _check_folder(path: Path, root: Path) -> None:
    """Raises BundleError for a link that leaves the agent folder, or forms a loop."""
    if not path.is_symlink():
        return
    target = path.resolve()
    if not target.is_relative_to(root):
        raise BundleError(f"{path} links to a folder outside the agent folder; copy it in, or remove the link")
    if path.parent.resolve().is_relative_to(target) or path.parent.resolve() != path.parent:
        raise BundleError(f"{path} links to a folder that it is in, or from within a linked one; remove the link")


@functools.lru_cache(4096)
def is_left_out(name: str) -> bool:
    """Whether no bundle has files and folders of this name."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT)


def _left_out(name: str, knowledge: list[str]) -> bool:
    """Of a path within the agent's folder."""
    return is_left_out(name.rpartition("/")[2]) or any(
        PurePosixPath(name).is_relative_to(source) for source in knowledge
    )


def _knowledge(graph: Graph | None) -> list[str]:
    """Knowledge bases, and relative files and folders that are their sources; URLs and globs match no path, so they
    have no effect."""
    nodes = graph.rag_nodes if graph else []
    sources = [source for node in nodes for source in (f"{node.id}.yaml", *node.documents)]
    relative = [str(PurePosixPath(source)) for source in sources if "://" not in source and not source.startswith("/")]
    return [source for source in relative if source not in ("", ".")]


def _add(archive: tarfile.TarFile, name: str, path: Path | bytes, most_bytes: int) -> int:
    """Adds a file, or a content. Returns its size; one that is larger than `most_bytes` is not added."""
    if isinstance(path, bytes):
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(path), 0o644
        if info.size <= most_bytes:
            archive.addfile(info, io.BytesIO(path))
        return info.size
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= most_bytes:
                info = tarfile.TarInfo(name)
                info.size, info.mode = size, 0o755 if os.access(path, os.X_OK) else 0o644
                archive.addfile(info, file)
            return size
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror or error}") from error


def _too_large(folder: Path, files: Mapping[str, Path | bytes], what: str, setting: str) -> str:
    sizes = {name: len(each) if isinstance(each, bytes) else each.stat().st_size for name, each in files.items()}
    largest = sorted((size, name) for name, size in sizes.items())[::-1][:5]
    listed = "".join(f"\n  {bytes_ / 2**20:8.1f} MiB  {name}" for bytes_, name in largest)
    return (
        f"the agent folder {folder} {what}, the limit of {setting}. "
        f"Move data out of it, or raise the limit. Its largest files:{listed}"
    )
