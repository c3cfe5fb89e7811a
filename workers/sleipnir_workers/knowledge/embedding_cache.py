"""A cache of paid vectors by model and text: `<home>/embeddings.sqlite`, shared by all processes of a machine.

Rules. Errors of the cache cost money or time, but fail nothing. A damaged file is renamed, and a new one created; a
file that cannot be written is not used. Stored vectors survive a kill at any line. Its size is bounded: the least
recently used vectors are dropped first. A checksum detects changed vectors, which are ignored.
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
USED_EVERY_S: Final = 86_400  # precision of the time of last use; a higher one would write with each look-up

_VERSION: Final = 1
_KEYS_PER_STATEMENT: Final = 500  # SQLite allows 32,766 variables; old builds, 999
_DROPPED: Final = 0.1  # part of the vectors that is dropped when there are too many bytes
_SUFFIXES: Final = ("-wal", "-shm", "")  # the database last: a log that stays would be read into the next database
_SCHEMA: Final = f"""
    CREATE TABLE IF NOT EXISTS vectors(
        key BLOB PRIMARY KEY, vector BLOB NOT NULL, crc32 INTEGER NOT NULL, used_s INTEGER NOT NULL
    );
    CREATE INDEX IF NOT EXISTS by_use ON vectors(used_s);
    PRAGMA user_version = {_VERSION};
"""

T = TypeVar("T")


def keys_of(model_id: str, settings: Mapping[str, Any], texts: Iterable[str]) -> list[bytes]:
    """The keys of the vectors of texts. `settings` are all parameters of the model apart from the text."""
    parameters = json.dumps([model_id, settings], sort_keys=True, ensure_ascii=False)
    prefix = hashlib.sha256(parameters.encode(errors="surrogatepass") + b"\0")
    keys = []
    for text in texts:
        key = prefix.copy()
        key.update(text.encode(errors="surrogatepass"))
        keys.append(key.digest())
    return keys


class EmbeddingCache:
    """Safe to use from several threads; create it after any fork. `notice` gets messages for people."""

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
        """The known vectors by their keys. This counts as a use of them."""
        unique = list(dict.fromkeys(keys))
        return self._try(lambda connection: self._vectors(connection, unique)) or {}

    def known(self, keys: Sequence[bytes]) -> set[bytes]:
        """The known ones of these keys. This does not count as a use."""
        unique = list(dict.fromkeys(keys))
        return self._try(lambda connection: {row[0] for row in _rows(connection, "key", unique)}) or set()

    def store(self, vectors: Mapping[bytes, bytes]) -> None:
        """Store these: all or, if this process dies meanwhile, none. Safe to repeat."""
        now_s = int(self._now_s())
        rows = [(key, vector, zlib.crc32(vector), now_s) for key, vector in vectors.items()]

        def write(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)
                self._bound(connection)

        self._try(write)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Drop these. Safe to repeat."""
        rows = [(key,) for key in keys]

        def drop(connection: sqlite3.Connection) -> None:
            with _transaction(connection):
                connection.executemany("DELETE FROM vectors WHERE key = ?", rows)

        self._try(drop)

    def close(self) -> None:
        """Close the file. The cache may be used again."""
        with self._lock:
            self._close()

    def _vectors(self, connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        now_s = int(self._now_s())
        vectors: dict[bytes, bytes] = {}
        stale = []
        for key, vector, crc32, used_s in _rows(connection, "key, vector, crc32, used_s", keys):
            if zlib.crc32(vector) != crc32:
                continue
            vectors[key] = vector
            if used_s < now_s - USED_EVERY_S:
                stale.append((now_s, key))
        if stale:
            with _transaction(connection):
                connection.executemany("UPDATE vectors SET used_s = ? WHERE key = ?", stale)
        return vectors

    def _bound(self, connection: sqlite3.Connection) -> None:
        """Drop the least recently used vectors until the others fit. SQLite reuses their pages."""
        while _bytes_in_use(connection) > self._most_bytes:
            (count,) = connection.execute("SELECT count(*) FROM vectors").fetchone()
            if not count:
                return
            oldest = "SELECT key FROM vectors ORDER BY used_s LIMIT ?"
            connection.execute(f"DELETE FROM vectors WHERE key IN ({oldest})", (max(1, int(count * _DROPPED)),))

    def _try(self, use: Callable[[sqlite3.Connection], T]) -> T | None:
        """The return value of `use`; None if the file cannot be used."""
        with self._lock:
            if not self._is_usable:
                return None
            try:
                return self._with_repair(use)
            except (sqlite3.Error, OSError) as error:
                self._is_usable = False
                self._close()
                self._notice(f"the cache of embeddings {self._file} is not used: {error}")
                return None

    def _with_repair(self, use: Callable[[sqlite3.Connection], T]) -> T:
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
        with self._exclusively():  # if two processes create the file at once, SQLite refuses one without waiting
            # No implicit transactions: of two that begin with a read, one could not write later.
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
    def _exclusively(self) -> Iterator[None]:
        """No other process opens or renames the file meanwhile."""
        with (self._file.parent / f"{FILE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _move_aside(self, error: sqlite3.DatabaseError) -> None:
        """Rename the damaged file. If several processes detect the damage, one of them renames it.

        A process that still has the old file open continues to write to it. When it closes that, SQLite deletes the log
        of the new file by its name: at worst, the last vectors are lost, or the new file is found damaged as well.
        """
        self._close()
        aside = f"{FILE}.damaged-{int(self._now_s())}"
        with self._exclusively():
            if self._is_sound():
                return
            for suffix in _SUFFIXES:
                with contextlib.suppress(FileNotFoundError):
                    self._file.with_name(FILE + suffix).rename(self._file.with_name(aside + suffix))
        self._notice(f"the cache of embeddings {self._file} was damaged ({error}); it was renamed to {aside}")

    def _is_sound(self) -> bool:
        """Whether the file is intact: another process has created a new one meanwhile."""
        try:
            with contextlib.closing(sqlite3.connect(self._file, timeout=self._busy_s)) as connection:
                return bool(connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",))
        except sqlite3.DatabaseError:
            return False

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with contextlib.suppress(sqlite3.Error):
                opened.close()


def _rows(connection: sqlite3.Connection, columns: str, keys: Sequence[bytes]) -> Iterator[Any]:
    for start in range(0, len(keys), _KEYS_PER_STATEMENT):
        batch = keys[start : start + _KEYS_PER_STATEMENT]
        marks = ",".join("?" * len(batch))
        yield from connection.execute(f"SELECT {columns} FROM vectors WHERE key IN ({marks})", batch)


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
    """Whether the file is damaged. Other errors come from the disk or from concurrent use."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
