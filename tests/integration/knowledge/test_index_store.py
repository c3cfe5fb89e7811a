"""The index store as a folder and in S3, and the cache of fetched bases: complete or absent, whichever process dies."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sleipnir.errors import KnowledgeError
from sleipnir.local import launch
from sleipnir.settings import Settings
from sleipnir.staging import clear_up, staging
from sleipnir_workers.knowledge import store_choice
from sleipnir_workers.knowledge.bucket import client, pack
from sleipnir_workers.knowledge.cache import Cache
from sleipnir_workers.knowledge.index_store import IndexStore
from sleipnir_workers.knowledge.store_choice import index_store_of
from tests.processes import wait_until
from tests.s3_server import S3, s3_server

A, B, C = (hashlib.sha256(name).hexdigest() for name in (b"a", b"b", b"c"))
LARGE = 9 * 2**20
"""More than boto3 sends in one piece."""


def content(folder: Path, *, size: int = 1000) -> None:
    (folder / "manifest.json").write_text("{}")
    (folder / "deep").mkdir()
    (folder / "deep" / "vectors.npy").write_bytes(os.urandom(16) * (size // 16))


def large(folder: Path) -> None:
    content(folder, size=LARGE)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def left(folder: Path) -> list[str]:
    """What lies there beside digests and their lock files."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    return sorted(names - {A, B, C} - {f".{digest}.lock" for digest in (A, B, C)})


@pytest.fixture(scope="module")
def running() -> Iterator[S3]:
    with pytest.MonkeyPatch.context() as patch, s3_server("bucket") as server:
        for name, value in server.env.items():
            patch.setenv(name, value)
        client.cache_clear()
        yield server
        client.cache_clear()


@pytest.fixture
def s3(running: S3) -> S3:
    """Empty, and well."""
    running.objects.clear()
    running.requests.clear()
    running.cut = running.held = 0
    return running


@pytest.fixture
def new_client() -> Iterator[None]:
    client.cache_clear()
    yield
    client.cache_clear()


@pytest.fixture(params=["folder", "s3"])
def index_store(request: pytest.FixtureRequest, tmp_path: Path) -> IndexStore:
    if request.param == "folder":
        return index_store_of(Settings(home=tmp_path))
    request.getfixturevalue("s3")
    return index_store_of(Settings(home=tmp_path, knowledge="s3://bucket/some/prefix/"))


def in_s3(tmp_path: Path, **settings: int) -> IndexStore:
    return index_store_of(Settings(home=tmp_path, knowledge="s3://bucket", **settings))


# Both index stores.


def test_what_is_put_is_opened_as_it_was(index_store: IndexStore) -> None:
    told: list[tuple[int, int]] = []
    written: dict[str, bytes] = {}

    def write(folder: Path) -> None:
        large(folder)
        written.update(files(folder))

    assert not index_store.has(A)
    with pytest.raises(KnowledgeError, match=f"{A[:12]} is not in the index store"):
        index_store.open(A)
    assert index_store.put(A, write, lambda done, total: told.append((done, total))) == LARGE + 2
    assert told[-1][0] == told[-1][1] >= LARGE
    assert index_store.has(A)
    assert not index_store.has(B)
    opened = index_store.open(A)
    assert files(opened.folder) == written
    opened.close()
    index_store.drop(A)
    index_store.drop(A)
    assert not index_store.has(A)


def test_two_who_put_the_same_at_once_both_succeed(index_store: IndexStore) -> None:
    both = threading.Barrier(2)

    def write(folder: Path) -> None:
        (folder / "manifest.json").write_text("{}")
        both.wait()

    with ThreadPoolExecutor() as pool:
        assert [done.result() for done in [pool.submit(index_store.put, A, write) for _ in range(2)]] == [2, 2]
    opened = index_store.open(A)
    assert files(opened.folder) == {"manifest.json": b"{}"}
    opened.close()


def test_what_cannot_be_written_is_not_in_the_index_store(index_store: IndexStore, tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        content(folder)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        index_store.put(A, fails)
    assert not index_store.has(A)
    assert [left(folder) for folder in (tmp_path / "knowledge", tmp_path / "knowledge-cache")] == [[], []]


def test_a_full_disk_is_named_and_leaves_nothing(index_store: IndexStore, tmp_path: Path) -> None:
    def beyond(folder: Path) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            content(folder, size=200_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, ignored)

    with pytest.raises(KnowledgeError, match=f"cannot write {tmp_path}.*: File too large") as raised:
        index_store.put(A, beyond)
    assert raised.value.kind == "store"
    assert not index_store.has(A)
    assert [left(folder) for folder in (tmp_path / "knowledge", tmp_path / "knowledge-cache")] == [[], []]


@pytest.mark.parametrize(
    ("number", "part"),
    [(errno.ENOSPC, "disk"), (errno.EMFILE, "descriptors"), (errno.EACCES, "disk"), (errno.ENAMETOOLONG, None)],
)
def test_a_fetch_that_the_machine_cannot_write_is_the_machine_s_failure(
    tmp_path: Path, number: int, part: str | None
) -> None:
    """A gap after finding C18 of the second review."""

    def fetch(folder: Path) -> None:
        raise OSError(number, os.strerror(number), str(folder))

    with pytest.raises(KnowledgeError, match=f"cannot write {tmp_path}.*: {os.strerror(number)}") as raised:
        Cache(tmp_path / "cache", 10).open(A, lambda: 1, fetch)
    assert (raised.value.kind, getattr(raised.value.machine, "part", None)) == ("store", part)
    assert left(tmp_path / "cache") == []


@pytest.mark.parametrize("name", ["..", "a/b", "", A.upper(), A + "0"])
def test_what_is_no_digest_is_no_path(index_store: IndexStore, name: str) -> None:
    for ask in (index_store.has, index_store.open, index_store.drop):
        with pytest.raises(KnowledgeError, match="is not the digest"):
            ask(name)


# The folder.


def test_all_processes_search_the_very_files_of_the_folder(tmp_path: Path) -> None:
    index_store = index_store_of(Settings(home=tmp_path / "home", knowledge=str(tmp_path / "shared")))
    index_store.put(A, content)
    assert (index_store.name, index_store.open(A).folder) == (str(tmp_path / "shared"), tmp_path / "shared" / A)


DIES = """
import os, sys
from pathlib import Path
from sleipnir.settings import Settings
from sleipnir_workers.knowledge.store_choice import index_store_of
def write(folder):
    (folder / "half").write_bytes(b"x" * 1000)
    print("half", flush=True)
    sys.stdin.read()
index_store_of(Settings.from_env()).put(sys.argv[1], write)
"""
OPENS = """
import sys
from sleipnir.settings import Settings
from sleipnir_workers.knowledge.store_choice import index_store_of
opened = index_store_of(Settings.from_env()).open(sys.argv[1])
print(len((opened.folder / "deep" / "vectors.npy").read_bytes()), flush=True)
sys.stdin.read()
"""


def process(code: str, digest: str, settings: Settings) -> subprocess.Popen[str]:
    command = launch.command([sys.executable, "-c", code, digest])
    env = os.environ | settings.to_env()
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ends(started: subprocess.Popen[str]) -> str:
    """It may go on to its end; what it said."""
    said = started.communicate("")[0]
    assert started.returncode == 0
    return said


def is_killed(started: subprocess.Popen[str]) -> None:
    started.kill()
    started.communicate()


def test_who_is_killed_while_putting_leaves_nothing_that_is_seen_or_kept(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    index_store, root = index_store_of(settings), tmp_path / "knowledge"
    one, other = process(DIES, A, settings), process(DIES, B, settings)
    for started in (one, other):
        assert started.stdout
        assert started.stdout.readline() == "half\n"
    is_killed(one)
    assert not index_store.has(A)
    index_store.put(C, content)
    assert len(left(root)) == 2, "the folder and the lock of who still writes"
    ends(other)
    assert (index_store.has(A), index_store.has(B), index_store.has(C), left(root)) == (False, True, True, [])


def test_a_staging_folder_goes_with_its_process_and_not_before(tmp_path: Path) -> None:
    with staging(tmp_path) as folder:
        clear_up(tmp_path)
        assert folder.is_dir()
        dead = tmp_path / ".knowledge-dead"
        dead.mkdir()
        (dead / "file").touch()
        (tmp_path / ".knowledge-dead.lock").touch()
        (tmp_path / ".knowledge-other").touch()
        clear_up(tmp_path)
        assert not dead.exists()
    assert [path.name for path in tmp_path.iterdir()] == [".knowledge-other"]


def test_a_disk_without_locks_is_used_and_never_cleared_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    (tmp_path / "knowledge" / ".knowledge-others").mkdir(parents=True)
    (tmp_path / "knowledge" / ".knowledge-others.lock").touch()
    index_store = index_store_of(Settings(home=tmp_path))
    index_store.put(A, content)
    assert index_store.has(A)
    assert len(left(tmp_path / "knowledge")) == 2


# S3.


def test_an_index_is_one_object_the_same_for_the_same_files(tmp_path: Path, s3: S3) -> None:
    index_store_of(Settings(home=tmp_path, knowledge="s3://bucket/my/bases")).put(A, large)
    index_store_of(Settings(home=tmp_path, knowledge="s3://bucket")).put(B, content)
    assert set(s3.objects) == {f"bucket/my/bases/{A}.tar", f"bucket/{B}.tar"}
    assert (s3.requests["POST"], s3.uploads) == (2, {}), "the large one went in parts"
    for stored in s3.objects.values():
        assert stored.metadata["x-amz-meta-sha256"] == hashlib.sha256(stored.body).hexdigest()
    for number in (1, 2):
        folder = tmp_path / f"same{number}"
        folder.mkdir()
        for name in ("b", "a") if number == 1 else ("a", "b"):
            (folder / name).write_text(name)
        pack(folder, tmp_path / f"{number}.tar")
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_two_processes_that_want_the_same_fetch_it_once(tmp_path: Path, s3: S3) -> None:
    settings = Settings(home=tmp_path, knowledge="s3://bucket")
    index_store_of(settings).put(A, large)
    s3.go_on.clear()
    both = [process(OPENS, A, settings) for _ in range(2)]
    wait_until(lambda: s3.held, "one fetches")
    s3.go_on.set()
    assert [ends(started) for started in both] == [f"{LARGE}\n"] * 2
    index_store_of(settings).open(A).close()
    assert s3.requests["GET"] == 1


def test_who_is_killed_while_fetching_leaves_nothing_half_visible(tmp_path: Path, s3: S3) -> None:
    settings = Settings(home=tmp_path, knowledge="s3://bucket")
    index_store, cache = index_store_of(settings), tmp_path / "knowledge-cache"
    index_store.put(A, large)
    s3.go_on.clear()
    started = process(OPENS, A, settings)
    wait_until(lambda: s3.held, "it fetches")
    is_killed(started)
    s3.go_on.set()
    assert not (cache / A).exists()
    opened = index_store.open(A)
    assert len((opened.folder / "deep" / "vectors.npy").read_bytes()) == LARGE
    assert left(cache) == []
    opened.close()


def test_a_fetch_that_breaks_off_is_repeated(tmp_path: Path, s3: S3) -> None:
    index_store = in_s3(tmp_path)
    index_store.put(A, large)
    s3.cut = 2
    index_store.open(A).close()
    assert (s3.cut, s3.requests["GET"]) == (0, 3)


def flipped(body: bytes) -> bytes:
    return body[:-9000] + bytes([body[-9000] ^ 1]) + body[-8999:]


@pytest.mark.parametrize("damage", [flipped, lambda body: body[:-9000], lambda body: b"", lambda body: b"x" * 5000])
def test_a_damaged_file_in_the_index_store_is_never_used(
    tmp_path: Path, s3: S3, damage: Callable[[bytes], bytes]
) -> None:
    index_store = in_s3(tmp_path)
    index_store.put(A, content)
    [stored] = s3.objects.values()
    whole, stored.body = stored.body, damage(stored.body)
    with pytest.raises(KnowledgeError, match="does not arrive complete"):
        index_store.open(A)
    assert not (tmp_path / "knowledge-cache" / A).exists()
    assert left(tmp_path / "knowledge-cache") == []
    stored.body = whole
    index_store.open(A).close()


def test_a_tar_that_writes_outside_its_folder_is_refused(tmp_path: Path, s3: S3) -> None:
    import tarfile

    index_store = in_s3(tmp_path / "home")
    index_store.put(A, content)
    [stored] = s3.objects.values()
    evil = tmp_path / "evil.tar"
    (tmp_path / "file").write_text("evil")
    with tarfile.open(evil, "w") as archive:
        archive.add(tmp_path / "file", "../../../../escaped")
    stored.body = evil.read_bytes()
    stored.metadata = {"x-amz-meta-sha256": hashlib.sha256(stored.body).hexdigest()}
    with pytest.raises(KnowledgeError, match="does not arrive complete"):
        index_store.open(A)
    assert not list(tmp_path.rglob("escaped"))


def test_the_cache_keeps_what_was_used_last_and_what_is_open(tmp_path: Path, s3: S3) -> None:
    index_store, cache = in_s3(tmp_path, knowledge_cache_bytes=30_000), tmp_path / "knowledge-cache"
    for digest in (A, B, C):
        index_store.put(digest, lambda folder: content(folder, size=8_000))
    opened = index_store.open(A)
    index_store.open(B).close()
    index_store.open(C).close()
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {A, C}, "B was not open, A was used before it"
    index_store.open(B).close()
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {A, B}
    opened.close()
    index_store.open(C).close()
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {B, C}
    assert left(cache) == []


def test_one_that_is_larger_than_the_cache_is_used_all_the_same(tmp_path: Path, s3: S3) -> None:
    index_store, cache = in_s3(tmp_path, knowledge_cache_bytes=10_000), tmp_path / "knowledge-cache"
    index_store.put(A, content)
    index_store.put(B, lambda folder: content(folder, size=50_000))
    index_store.open(A).close()
    index_store.open(B).close()
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {B}


def test_errors_of_s3_are_reported_and_classified_as_transient_or_not(tmp_path: Path, s3: S3) -> None:
    elsewhere = index_store_of(Settings(home=tmp_path, knowledge="s3://nowhere"))
    with pytest.raises(KnowledgeError, match=r"s3://nowhere refuses: .*NoSuchBucket") as raised:
        elsewhere.put(A, content)
    assert (raised.value.kind, raised.value.transient) == ("store", False)
    with pytest.raises(KnowledgeError, match="names no bucket"):
        index_store_of(Settings(home=tmp_path, knowledge="s3://"))


@pytest.mark.usefixtures("s3", "new_client")
def test_s3_that_is_away_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(KnowledgeError, match=r"s3://bucket cannot be used: .*Could not connect") as raised:
        in_s3(tmp_path).has(A)
    assert (raised.value.kind, raised.value.transient) == ("store", True)


@pytest.mark.usefixtures("new_client")
def test_without_boto3_the_error_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(KnowledgeError, match=r"needs boto3, which is not installed: pip install '\.\[s3\]'"):
        in_s3(tmp_path).has(A)


def test_an_index_store_in_a_folder_imports_no_boto3() -> None:
    code = f"import sys, {store_choice.__name__}; sys.exit('boto3' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0
