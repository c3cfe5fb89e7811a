"""Vectors that were paid for, by what they are of: `<home>/embeddings.sqlite`, shared by all processes of a machine.

Rules. It is a cache: whatever is wrong with it costs money or time, and fails nothing. A file that is damaged is moved
aside, and a new one begun; one that cannot be written is not used. What was stored is there after a kill at any line.
Its bytes are bounded: what was not used for longest goes first. A vector is found as it was stored, or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

FILE: Final = "embeddings.sqlite"
MOST_BYTES: Final = 4 * 2**30  # a million chunks of 1,024 dimensions
BUSY_S: Final = 30.0  # others store a batch at a time, which takes milliseconds
USED_EVERY_S: Final = 86_400  # how exactly is known when a vector was used; more exactly would write with each look-up

_VERSION: Final = 1
_AT_ONCE: Final = 500  # SQLite takes 32,766 variables at the most, and at least 999
_DROPPED: Final = 0.1  # of the vectors, when there are too many bytes
_SUFFIXES: Final = ("-wal", "-shm", "")  # the database last: a log that is left alone would be read into the next one
_SCHEMA: Final = f"""
    CREATE TABLE IF NOT EXISTS vectors(
        key BLOB PRIMARY KEY, vector BLOB NOT NULL, crc32 INTEGER NOT NULL, used_s INTEGER NOT NULL
    );
    CREATE INDEX IF NOT EXISTS by_use ON vectors(used_s);
    PRAGMA user_version = {_VERSION};
"""

T = TypeVar("T")


def keys_of(model_id: str, settings: Mapping[str, Any], texts: Iterable[str]) -> list[bytes]:
    """What the vectors of texts are kept under. `settings` is all that the model is told along with a text."""
    told = json.dumps([model_id, settings], sort_keys=True, ensure_ascii=False)
    began = hashlib.sha256(told.encode(errors="surrogatepass") + b"\0")
    keys = []
    for text in texts:
        key = began.copy()
        key.update(text.encode(errors="surrogatepass"))
        keys.append(key.digest())
    return keys


class EmbeddingCache:
    """Safe to use from several threads; make it after any fork. `notice` is told what people should know."""

    def __init__(
        self,
        home: Path,
        *,
        notice: Callable[[str], None] = lambda text: None,
        most_bytes: int = MOST_BYTES,
        busy_s: float = BUSY_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._file = home / FILE
        self._notice, self._most_bytes, self._busy_s, self._now_s = notice, most_bytes, busy_s, now_s
        self._lock = threading.Lock()
        self._opened: sqlite3.Connection | None = None
        self._is_usable = True

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The vectors that are known, by their keys. They count as used now."""
        wanted = list(dict.fromkeys(keys))
        return self._try(lambda connection: self._found(connection, wanted)) or {}

    def known(self, keys: Sequence[bytes]) -> set[bytes]:
        """Which of these are known. A look: nothing counts as used."""
        wanted = list(dict.fromkeys(keys))
        return self._try(lambda connection: {row[0] for row in _rows(connection, "key", wanted)}) or set()

    def store(self, vectors: Mapping[bytes, bytes]) -> None:
        """Keep these: all or, if this process dies meanwhile, none. Again is safe."""
        now_s = int(self._now_s())
        rows = [(key, vector, zlib.crc32(vector), now_s) for key, vector in vectors.items()]

        def write(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)
                self._bound(connection)

        self._try(write)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop these. Again is safe."""
        rows = [(key,) for key in keys]

        def drop(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.executemany("DELETE FROM vectors WHERE key = ?", rows)

        self._try(drop)

    def close(self) -> None:
        """It may be used again."""
        with self._lock:
            self._close()

    def _found(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        now_s = int(self._now_s())
        found: dict[bytes, bytes] = {}
        stale = []
        for key, vector, crc32, used_s in _rows(connection, "key, vector, crc32, used_s", keys):
            if zlib.crc32(vector) != crc32:
                continue
            found[key] = vector
            if used_s < now_s - USED_EVERY_S:
                stale.append((now_s, key))
        if stale:
            with _transaction(connection):
                connection.executemany("UPDATE vectors SET used_s = ? WHERE key = ?", stale)
        return found

    def _bound(self, connection: sqlite3.Connection) -> None:
        """Drop what was not used for longest, until the rest fits. The pages that it had are used again."""
        while _bytes_in_use(connection) > self._most_bytes:
            (count,) = connection.execute("SELECT count(*) FROM vectors").fetchone()
            if not count:
                return
            oldest = "SELECT key FROM vectors ORDER BY used_s LIMIT ?"
            connection.execute(f"DELETE FROM vectors WHERE key IN ({oldest})", (max(1, int(count * _DROPPED)),))

    def _try(self, use: Callable[[sqlite3.Connection], T]) -> T | None:
        """What `use` returns; None if the file cannot be used."""
        with self._lock:
            if not self._is_usable:
                return None
            try:
                return self._used(use)
            except (sqlite3.Error, OSError) as error:
                self._give_up(error)
                return None

    def _used(self, use: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return use(self._connection())
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._move_aside(error)
        return use(self._connection())

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._opened = self._open()
        return self._opened

    def _open(self) -> sqlite3.Connection:
        with self._alone():  # of two that begin a file at once, SQLite sends one away without waiting
            # No transactions of the module's own: two that begin with reading could not both go on to write.
            connection = sqlite3.connect(
                self._file, timeout=self._busy_s, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version not in (0, _VERSION):
                    raise sqlite3.NotSupportedError(f"another release of Sleipnir made it (version {version})")
                if not version:
                    connection.executescript(_SCHEMA)
            except BaseException:
                connection.close()
                raise
        return connection

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process opens or moves the file meanwhile."""
        with (self._file.parent / f"{FILE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _move_aside(self, error: sqlite3.DatabaseError) -> None:
        """Make room for a new file. Of several processes that find the damage, one moves it.

        One that still has the old file open goes on writing there. When it closes that, SQLite deletes the log of the
        new file by its name: at the worst what was stored last is lost, or this file is found damaged in its turn.
        """
        self._close()
        aside = f"{FILE}.damaged-{int(self._now_s())}"
        with self._alone():
            if self._is_sound():
                return
            for suffix in _SUFFIXES:
                with contextlib.suppress(FileNotFoundError):
                    self._file.with_name(FILE + suffix).rename(self._file.with_name(aside + suffix))
        self._notice(f"the cache of embeddings {self._file} was damaged ({error}); it is {aside} now, a new one begins")

    def _is_sound(self) -> bool:
        """Whether another process has begun a new file meanwhile."""
        try:
            with contextlib.closing(sqlite3.connect(self._file, timeout=self._busy_s)) as connection:
                return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except sqlite3.DatabaseError:
            return False

    def _give_up(self, error: Exception) -> None:
        self._is_usable = False
        self._close()
        self._notice(f"the cache of embeddings {self._file} is not used: {error}")

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(sqlite3.Error):
                opened.close()


def _rows(connection: sqlite3.Connection, columns: str, keys: Sequence[bytes]) -> Iterator[Any]:
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        marks = ",".join("?" * len(some))
        yield from connection.execute(f"SELECT {columns} FROM vectors WHERE key IN ({marks})", some)


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _bytes_in_use(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is at fault, and not the disk, or others that use it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
