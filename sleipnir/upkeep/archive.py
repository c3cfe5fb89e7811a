"""The archive: finished runs in a folder, as lines of JSON (export.py has the format), written before they expire.

1. A file is `runs-<date>-<host>-<number>.jsonl`, or `.jsonl.gz`; the date is that of writing, in UTC. Only the process
that created it appends to it, and not after a restart. So a line that a crash has truncated is the last one of its
file.
2. A run is written at least once. If it appears twice (a crash, two schedulers, a retry), the one that ended last
counts. One without `outcome` is truncated and ignored: a complete copy follows.
3. This module never deletes a file. Delete whole days.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from sleipnir.errors import ConfigError, RunNotFound

_NAME = re.compile(r"runs-(\d{4}-\d{2}-\d{2})-.+\.jsonl(\.gz)?")
_LINE = re.compile(rb'\{"type":"(\w+)","run":"([^"]*)"')


class ArchiveWriter:
    """Appends runs. For one thread. `host` distinguishes the files of several machines."""

    def __init__(self, folder: Path, host: str, *, file_bytes: int, compressed: bool) -> None:
        self.folder, self._host = folder, re.sub(r"[^\w.-]", "_", host) or "_"
        self._file_bytes, self._compressed = file_bytes, compressed
        self._date, self._number = "", 0
        self._file: IO[bytes] | None = None
        self._into: IO[bytes] | None = None  # the file, or what compresses into it
        self._path, self._synced = folder, 0

    def write(self, runs: Iterable[Iterable[str]], now_ms: int) -> None:
        """Append runs, each given as its lines. They are on disk when this returns.

        Raises OSError: then none of them counts, though some may be written. Other exceptions of the lines are passed
        on.
        """
        date = datetime.fromtimestamp(now_ms / 1000, UTC).date().isoformat()
        try:
            if date != self._date:
                self.close()
                self._date, self._number = date, 0
            for lines in runs:
                self._append(lines)
            self._sync()
        except BaseException:
            self._leave()
            raise

    def _append(self, lines: Iterable[str]) -> None:
        into = self._into or self._open()
        for line in lines:
            into.write(line.encode())
        if self._file is not None and self._file.tell() >= self._file_bytes:
            self.close()

    def _open(self) -> IO[bytes]:
        file = self._file = self._file or self._new_file()
        into = gzip.GzipFile(fileobj=file, mode="wb", mtime=0) if self._compressed else file
        self._into = cast("IO[bytes]", into)
        return self._into

    def _new_file(self) -> IO[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        suffix = ".jsonl.gz" if self._compressed else ".jsonl"
        while True:
            self._number += 1
            path = self.folder / f"runs-{self._date}-{self._host}-{self._number}{suffix}"
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                self._path, self._synced = path, 0
                return os.fdopen(descriptor, "wb")

    def _sync(self) -> None:
        file, into, self._into = self._file, self._into, None
        if file is None or into is None:
            return
        if into is not file:
            into.close()
        file.flush()
        os.fsync(file.fileno())
        self._synced = file.tell()

    def close(self) -> None:
        """Close the current file; the next run starts another one. Raises OSError."""
        self._sync()
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _leave(self) -> None:
        """Abandon the file, and truncate it after the last successful write, which frees space on a full disk."""
        file, into, self._file, self._into = self._file, self._into, None, None
        if file is None:
            return
        for handle in (into or file, file):
            with contextlib.suppress(OSError):
                handle.close()  # tries once more to write what is in its buffer
        with contextlib.suppress(OSError):
            os.truncate(self._path, self._synced)
            if not self._synced:
                self._path.unlink()


@dataclass(frozen=True)
class ArchivedRun:
    """A run in the archive, by its first and its last line."""

    run: str
    agent: str
    status: str
    created_ms: int
    ended_ms: int
    file: Path


Damage: TypeAlias = Callable[[Path, str], None]
"""Called for a damaged file, with the problem. Data before it counts. A file that a crash has truncated is not
damaged."""


def archived_runs(folder: Path, on_damage: Damage = lambda file, reason: None) -> Iterator[ArchivedRun]:
    """The runs of an archive, last written first, each once; read lazily, a file at a time.

    Raises ConfigError when the folder cannot be read.
    """
    seen: set[str] = set()
    for file in _files(folder):
        by_run = {archived.run: archived for archived in _complete(file, on_damage)}  # the later of two entries
        for archived in reversed(by_run.values()):
            if archived.run not in seen:
                seen.add(archived.run)
                yield archived


def archived_lines(folder: Path, run_id: str, on_damage: Damage = lambda file, reason: None) -> Iterator[str]:
    """The lines of a run. Raises RunNotFound when it is not in the archive, ConfigError when that cannot be read."""
    for file in _files(folder):
        number = max((number for number, run in _ends(file, on_damage) if run == run_id), default=None)
        if number is not None:
            yield from _block(file, run_id, number, on_damage)
            return
    raise RunNotFound(f"no run {run_id!r} in the archive {folder}")


def _files(folder: Path) -> list[Path]:
    """Those written last first."""
    try:
        files = [(match[1], path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, _, path in sorted(((date, path.stat().st_mtime_ns, path) for date, path in files))][::-1]
    except OSError as error:
        raise ConfigError(f"cannot read the archive {folder}: {error.strerror}") from error


def _raw_lines(file: Path, on_damage: Damage) -> Iterator[tuple[str, str, bytes]]:
    """Type, run and text of every complete line. A truncated file ends at its last complete line."""
    number = 0
    try:
        with _opened(file) as content:
            for number, line in enumerate(content, 1):
                if line.endswith(b"\n") and (match := _LINE.match(line)):
                    yield match[1].decode(), match[2].decode(), line
                elif line.endswith(b"\n"):
                    on_damage(file, f"line {number} is not one of an archive")
    except EOFError:  # cut by a crash
        return
    except (zlib.error, gzip.BadGzipFile) as error:
        on_damage(file, f"what follows line {number} cannot be decompressed ({error})")
    except UnicodeDecodeError:
        on_damage(file, f"line {number} is not text in UTF-8")
    except OSError as error:
        on_damage(file, f"it cannot be read: {error.strerror}")


def _opened(file: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(file)) if file.suffix == ".gz" else file.open("rb")


def _complete(file: Path, on_damage: Damage) -> Iterator[ArchivedRun]:
    head: dict[str, Any] = {}
    for kind, run, line in _raw_lines(file, on_damage):
        try:
            if kind == "run":
                head = json.loads(line)
            elif kind == "outcome" and head:
                end = json.loads(line)
                if end["run"] == head["run"]:
                    agent = head["spec"]["agent"]
                    yield ArchivedRun(end["run"], agent, end["status"], head["created_ms"], end["ended_ms"] or 0, file)
                head = {}
        except (ValueError, KeyError, TypeError, RecursionError):
            on_damage(file, f"the record of run {run!r} cannot be read")
            head = {}


def _ends(file: Path, on_damage: Damage) -> Iterator[tuple[int, str]]:
    """The runs that are complete, each with the number of its first line."""
    began: tuple[int, str] = 0, ""
    for number, (kind, run, _) in enumerate(_raw_lines(file, on_damage)):
        if kind == "run":
            began = number, run
        elif kind == "outcome" and run == began[1]:
            yield began


def _block(file: Path, run_id: str, first: int, on_damage: Damage) -> Iterator[str]:
    for number, (kind, run, line) in enumerate(_raw_lines(file, on_damage)):
        if number >= first and run == run_id:
            yield line.decode(errors="replace")
            if kind == "outcome":
                return
