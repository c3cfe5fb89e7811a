"""The file of a base, in Loki's format (spec 8.5): the base itself, from which everything else is derived.

Additions to Loki's format: `metadata: {lines: "3-9"}` of a document (Loki leaves metadata empty), and a base without
vectors, whose `embedding_model` is null. Unknown keys are ignored.

A file may have hundreds of megabytes, so none of it is in memory twice: it is written line by line and read event by
event.
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import glob
import json
import os
import re
import secrets
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import yaml

from sleipnir.errors import UsageError
from sleipnir.knowledge.recipe import Recipe
from sleipnir.staging import sync
from sleipnir_workers.knowledge.base import Base, Chunk, Source

if TYPE_CHECKING:
    from sleipnir_workers.knowledge.base import Vectors

LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml reads 40 MB/s, Python 0.5 MB/s

_MAY_BE_MISSING: Final = ("reranker_model", "batch_size")  # as in Loki, where they may be null
_NULLS: Final = ("", "~", "null", "Null", "NULL")
_NULL_TAG: Final = "tag:yaml.org,2002:null"
_LINES: Final = re.compile(r"([1-9][0-9]*)-([1-9][0-9]*)")

_NOT_YAML: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that JSON need not escape, but that YAML forbids or takes for the end of a line."""


class UnreadableBase(UsageError):
    """The file is not a base, or is incomplete. It must be rebuilt or restored."""

    def __init__(self, file: Path, line: int | None, cause: str) -> None:
        place = "" if line is None else f"line {line}: "
        super().__init__(f"Failed to load rag '{file.stem}' at '{file}': {place}{cause}")


def write(base: Base, file: Path) -> None:
    """Replace the file by a base atomically: a reader gets the old base or the new one.

    Until then it is in a hidden file beside it (`.NAME.*.part`). A writer that is killed leaves that file, and the next
    writer removes it.
    """
    _remove_parts(file)
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # as long as this process writes and lives
            for line in _lines(base):
                out.write(line)
            out.flush()
            os.fsync(out.fileno())
            part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(file.parent)


def _remove_parts(file: Path) -> None:
    """Remove the parts whose writers have ended."""
    for part in file.parent.glob(glob.escape(f".{file.name}.") + "*.part"):
        with contextlib.suppress(OSError), part.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def _lines(base: Base) -> Iterator[str]:
    recipe = base.recipe
    yield f"embedding_model: {_scalar(recipe.embedding_model)}\n"
    yield f"chunk_size: {recipe.chunk_size}\n"
    yield f"chunk_overlap: {recipe.chunk_overlap}\n"
    yield f"reranker_model: {_scalar(recipe.reranker_model)}\n"
    yield f"top_k: {recipe.top_k}\n"
    yield f"batch_size: {_scalar(recipe.batch_size)}\n"
    yield f"next_file_id: {len(base.sources)}\n"
    yield from _list("document_paths:", (f"- {_scalar(document)}\n" for document in recipe.documents), "[]")
    yield from _list("files:", _files(base), "{}")
    yield from _list("vectors:", _vectors(base), "{}")


def _list(key: str, lines: Iterator[str], empty: str) -> Iterator[str]:
    first = next(lines, None)
    if first is None:
        yield f"{key} {empty}\n"
        return
    yield f"{key}\n"
    yield first
    yield from lines


def _files(base: Base) -> Iterator[str]:
    for number, source in enumerate(base.sources):
        yield f"  {number}:\n    hash: {_scalar(source.sha256)}\n    path: {_scalar(source.path)}\n"
        yield from _list("    documents:", (_document(chunk) for chunk in source.chunks), "[]")


def _document(chunk: Chunk) -> str:
    metadata = "{}" if chunk.lines is None else '{lines: "%d-%d"}' % chunk.lines  # noqa: UP031
    return f"    - page_content: {_scalar(chunk.text)}\n      metadata: {metadata}\n"


def _vectors(base: Base) -> Iterator[str]:
    if base.vectors is None:
        return
    rows = iter(base.vectors)
    for number, source in enumerate(base.sources):
        for index in range(len(source.chunks)):
            encoded = binascii.b2a_base64(next(rows).astype("<f4").tobytes(), newline=False).decode()
            yield f'  {number}-{index}: "{encoded}"\n'


def _scalar(value: str | int | None) -> str:
    """As JSON, which YAML reads too."""
    written = json.dumps(value, ensure_ascii=False)
    return _NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", written) if isinstance(value, str) else written


def read(file: Path) -> Base:
    """The base of a file that Loki or Sleipnir wrote. Raises UnreadableBase, and FileNotFoundError if it is missing."""
    try:
        with file.open("rb") as opened:
            return _Reader(file, yaml.parse(opened, Loader=LOADER)).base()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableBase(file, None, error.strerror or str(error)) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise UnreadableBase(file, line, error.problem or "it is not YAML") from error
    except yaml.YAMLError as error:
        raise UnreadableBase(file, None, " ".join(str(error).split())) from error


@dataclass
class _Vectors:
    """The vectors of a file, in its order: all values, the row of each key, and the line of each row."""

    values: bytearray = field(default_factory=bytearray)
    rows: dict[str, int] = field(default_factory=dict)
    lines: array[int] = field(default_factory=lambda: array("L"))
    dimensions: int = 0


class _Reader:
    """Reads the events of a file in their order. Each method consumes the events of one value."""

    def __init__(self, file: Path, events: Iterator[yaml.Event]) -> None:
        self._file, self._events = file, events
        self._event: yaml.Event | None = None
        self._advance()

    def base(self) -> Base:
        while isinstance(self._event, yaml.StreamStartEvent | yaml.DocumentStartEvent):
            self._advance()
        values: dict[str, Any] = {}
        for key in self._keys("the file"):
            if key in values:
                raise self._error(f"`{key}` is given twice")
            if read := self._KEYS.get(key):
                values[key] = read(self, f"`{key}`")
            else:
                self._skip()
        missing = [key for key in self._KEYS if key not in values and key not in _MAY_BE_MISSING]
        if missing:
            raise UnreadableBase(self._file, None, f"`{missing[0]}` is missing")
        recipe = Recipe(
            documents=values["document_paths"],
            embedding_model=values["embedding_model"],
            chunk_size=values["chunk_size"],
            chunk_overlap=values["chunk_overlap"],
            reranker_model=values.get("reranker_model"),
            top_k=values["top_k"],
            batch_size=values.get("batch_size"),
        )
        files: dict[str, Source] = values["files"]
        return Base(recipe, list(files.values()), self._matrix(recipe, files, values["vectors"]))

    def _matrix(self, recipe: Recipe, files: Mapping[str, Source], vectors: _Vectors) -> Vectors | None:
        """A row per chunk, in the order of the files; the vectors may have another order."""
        keys = [f"{number}-{index}" for number, source in files.items() for index in range(len(source.chunks))]
        if unknown := vectors.rows.keys() - set(keys):
            row, key = min((vectors.rows[key], key) for key in unknown)
            raise UnreadableBase(self._file, vectors.lines[row], f"vector {key} belongs to no chunk")
        if recipe.embedding_model is None and vectors.rows:
            raise UnreadableBase(self._file, vectors.lines[0], "there are vectors, but `embedding_model` is null")
        if recipe.embedding_model is None or not keys:
            return None
        if lacking := next((key for key in keys if key not in vectors.rows), None):
            raise UnreadableBase(self._file, None, f"chunk {lacking} has no vector")
        matrix: Vectors = np.frombuffer(vectors.values, dtype="<f4").reshape(-1, vectors.dimensions)
        order = np.fromiter((vectors.rows[key] for key in keys), dtype=np.intp, count=len(keys))
        return matrix if np.array_equal(order, np.arange(len(keys))) else matrix[order]

    def _text(self, what: str) -> str:
        text = self._text_or_null(what)
        if text is None:
            raise self._error(f"{what} is null")
        return text

    def _text_or_null(self, what: str) -> str | None:
        event = self._take(yaml.ScalarEvent, what, "text")
        null = event.value in _NULLS and (event.implicit[0] or event.tag == _NULL_TAG)
        return None if null else str(event.value)

    def _number(self, what: str) -> int:
        number = self._number_or_null(what)
        if number is None:
            raise self._error(f"{what} is null")
        return number

    def _size(self, what: str) -> int:
        number = self._number(what)
        if number < 1:
            raise self._error(f"{what} is {number}, and should be at least 1")
        return number

    def _number_or_null(self, what: str) -> int | None:
        text = self._text_or_null(what)
        if text is not None and not text.isdecimal():
            raise self._error(f"{what} is {text!r}, and should be a whole number")
        return None if text is None else int(text)

    def _texts(self, what: str) -> list[str]:
        return [self._text(f"an entry of {what}") for _ in self._entries(what)]

    def _files(self, what: str) -> dict[str, Source]:
        return {number: self._source(f"file {number}") for number in self._keys(what)}

    def _source(self, what: str) -> Source:
        values: dict[str, Any] = {}
        for key in self._keys(what):
            match key:
                case "hash" | "path":
                    values[key] = self._text(f"`{key}` of {what}")
                case "documents":
                    values[key] = [self._chunk(f"a document of {what}") for _ in self._entries(f"`{key}` of {what}")]
                case _:
                    self._skip()
        for key in ("hash", "path", "documents"):
            if key not in values:
                raise self._error(f"`{key}` of {what} is missing")
        return Source(values["path"], values["hash"], values["documents"])

    def _chunk(self, what: str) -> Chunk:
        text, lines = None, None
        for key in self._keys(what):
            match key:
                case "page_content":
                    text = self._text_or_null(f"`page_content` of {what}") or ""
                case "metadata":
                    lines = self._lines_of(f"`metadata` of {what}")
                case _:
                    self._skip()
        if text is None:
            raise self._error(f"`page_content` of {what} is missing")
        return Chunk(text, lines)

    def _lines_of(self, what: str) -> tuple[int, int] | None:
        lines = None
        for key in self._keys(what):
            if key == "lines" and isinstance(self._event, yaml.ScalarEvent):
                match = _LINES.fullmatch(self._event.value)
                lines = (int(match[1]), int(match[2])) if match else None
            self._skip()
        return lines

    def _all_vectors(self, what: str) -> _Vectors:
        vectors = _Vectors()
        for key in self._keys(what):
            line = self._line()
            try:
                value = binascii.a2b_base64(self._text(f"vector {key}"), strict_mode=True)
            except ValueError as error:
                raise UnreadableBase(self._file, line, f"vector {key} is not base64: {error}") from error
            vectors.dimensions = vectors.dimensions or len(value) // 4
            if not value or len(value) != 4 * vectors.dimensions:
                cause = f"vector {key} has {len(value)} bytes, and should have {4 * vectors.dimensions or 'some'}"
                raise UnreadableBase(self._file, line, cause)
            if not np.isfinite(np.frombuffer(value, dtype="<f4")).all():
                raise UnreadableBase(self._file, line, f"vector {key} has a value that is not a number")
            vectors.rows[key] = len(vectors.lines)
            vectors.lines.append(line)
            vectors.values += value
        return vectors

    _KEYS: ClassVar[Mapping[str, Callable[[_Reader, str], Any]]] = {
        "embedding_model": _text_or_null,
        "chunk_size": _size,
        "chunk_overlap": _number,
        "reranker_model": _text_or_null,
        "top_k": _size,
        "batch_size": _number_or_null,
        "next_file_id": _number,
        "document_paths": _texts,
        "files": _files,
        "vectors": _all_vectors,
    }

    def _keys(self, what: str) -> Iterator[str]:
        """The keys of a mapping. The caller consumes the value of each key before it requests the next one."""
        self._take(yaml.MappingStartEvent, what, "a mapping")
        while not isinstance(self._event, yaml.MappingEndEvent):
            yield str(self._take(yaml.ScalarEvent, f"a key of {what}", "text").value)
        self._advance()

    def _entries(self, what: str) -> Iterator[None]:
        """Yields once per entry of a list. The caller consumes each entry before it requests the next one."""
        self._take(yaml.SequenceStartEvent, what, "a list")
        while not isinstance(self._event, yaml.SequenceEndEvent):
            yield None
        self._advance()

    def _skip(self) -> None:
        depth = 0
        while True:
            if isinstance(self._event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(self._event, yaml.CollectionEndEvent):
                depth -= 1
            self._advance()
            if depth == 0:
                return

    def _take(self, kind: type[yaml.Event], what: str, expected: str) -> Any:
        event = self._event
        if isinstance(event, yaml.AliasEvent):
            raise self._error(f"{what} is an alias (`*{event.anchor}`), which is not supported")
        if not isinstance(event, kind):
            raise self._error(f"{what} should be {expected}")
        self._advance()
        return event

    def _advance(self) -> None:
        self._event = next(self._events, None)

    def _line(self) -> int:
        mark = self._event.start_mark if self._event else None
        return mark.line + 1 if mark else 1

    def _error(self, cause: str) -> UnreadableBase:
        return UnreadableBase(self._file, self._line(), cause)
