"""Forms with a file (multipart/form-data): the fields that come before the file are read at once, the file in pieces as
they arrive, so that it may have any size. In a page, the file is the last field of its form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser
from starlette.requests import Request

from sleipnir_console.problems import HttpProblem

MULTIPART: Final = "multipart/form-data"
MOST_FIELD_BYTES: Final = 2**20
"""Of all fields together, without the file."""
MOST_PARTS: Final = 100
MOST_DRAINED: Final = 64 * 2**20


@dataclass
class _Part:
    """A part of the body. `file`: the name that its file has on the other machine; None: it is a field."""

    headers: dict[str, str] = field(default_factory=dict)
    name: str = ""
    file: str | None = None
    data: bytearray = field(default_factory=bytearray)


class UploadedForm:
    """The form of one request."""

    def __init__(self, request: Request) -> None:
        given = Message()
        given["Content-Type"] = request.headers.get("content-type", "")
        boundary = given.get_param("boundary")
        if not isinstance(boundary, str) or not 0 < len(boundary) <= 200:
            raise HttpProblem("bad-request", "the form has no boundary between its fields")
        self.fields: dict[str, str] = {}
        self._stream = request.stream()
        self._parser = MultipartParser(boundary.encode("latin-1", "replace"), {
            "on_part_begin": self._begin, "on_header_field": self._header_name, "on_header_value": self._header_value,
            "on_header_end": self._header_end, "on_headers_finished": self._headers_end, "on_part_data": self._data,
            "on_part_end": self._end,
        })  # fmt: skip
        self._part, self._header, self._value = _Part(), bytearray(), bytearray()
        self._file: _Part | None = None
        self._field_bytes, self._parts, self._has_file_ended = 0, 0, False

    @property
    def file_name(self) -> str:
        """The name of the file; empty: none was chosen."""
        return (self._file.file or "") if self._file is not None else ""

    async def read_fields(self) -> Mapping[str, str]:
        """Read up to the content of the file, or to the end. Raises HttpProblem for what is no such form."""
        while self._file is None and await self._more():
            pass
        return self.fields

    async def pieces(self) -> AsyncIterator[bytes]:
        """The content of the file. Raises HttpProblem if it is cut off."""
        if self._file is None:
            return
        while True:
            if self._file.data:
                piece = bytes(self._file.data)
                self._file.data.clear()
                yield piece
            elif self._has_file_ended:
                return
            elif not await self._more():
                raise HttpProblem("bad-request", "the file is cut off")

    async def drain(self) -> None:
        """Read what is left, up to MOST_DRAINED bytes: a browser that still sends would not see the answer."""
        drained = 0
        async for chunk in self._stream:
            drained += len(chunk)
            if drained > MOST_DRAINED:
                return

    async def _more(self) -> bool:
        """Read the next piece of the body. False: there is none."""
        chunk = await anext(self._stream, b"")
        if not chunk:
            return False
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise HttpProblem("bad-request", f"the form cannot be read: {error}") from None
        return True

    # Called by the parser.

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise HttpProblem("bad-request", f"a form has at most {MOST_PARTS} fields")
        self._part = _Part()

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._part.headers[self._header.decode("latin-1").lower()] = self._value.decode("utf-8", "replace")
        self._header, self._value = bytearray(), bytearray()

    def _headers_end(self) -> None:
        given = Message()
        given["Content-Disposition"] = self._part.headers.get("content-disposition", "")
        name, file = (given.get_param(each, header="Content-Disposition") for each in ("name", "filename"))
        self._part.name = name if isinstance(name, str) else ""
        self._part.file = file if isinstance(file, str) else None
        if self._part.file is not None and self._file is None:
            self._file = self._part

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._part.file is None:
            self._field_bytes += end - start
            if self._field_bytes > MOST_FIELD_BYTES:
                raise HttpProblem("too-large", f"the fields of a form have at most {MOST_FIELD_BYTES:,} bytes")
            self._part.data += data[start:end]
        elif self._part is self._file:
            self._part.data += data[start:end]

    def _end(self) -> None:
        if self._part.file is None:
            self.fields[self._part.name] = self._part.data.decode("utf-8", "replace")
        elif self._part is self._file:
            self._has_file_ended = True
