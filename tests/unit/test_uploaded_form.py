"""Forms with a file: fields first, then the file in pieces, whatever the pieces of the body are."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request

from sleipnir_console.pages import uploaded_form
from sleipnir_console.pages.uploaded_form import UploadedForm
from sleipnir_console.problems import HttpProblem

BOUNDARY = "x-y-z"
CONTENT = b'{"prompt": "r\xc3\xa4v"}\r\n--x-y\r\n{"prompt": "2"}\n'
"""With what looks like a boundary, and is none."""


def body(*parts: tuple[str, str | None, bytes]) -> bytes:
    found = b""
    for name, file, content in parts:
        of_file = "" if file is None else f'; filename="{file}"\r\nContent-Type: text/csv'
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'
        found += head.encode() + content + b"\r\n"
    return found + f"--{BOUNDARY}--\r\n".encode()


class Sent:
    """A request whose body arrives in pieces. `read` bytes of it were taken."""

    def __init__(self, data: bytes, piece: int, boundary: str = BOUNDARY) -> None:
        self._data, self._piece, self.read = data, piece, 0
        headers = [(b"content-type", f"multipart/form-data; boundary={boundary}".encode())]
        self.request = Request({"type": "http", "method": "POST", "headers": headers}, self._receive)

    async def _receive(self) -> dict[str, object]:
        piece = self._data[self.read : self.read + self._piece]
        self.read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": self.read < len(self._data)}


async def content_of(form: UploadedForm) -> bytes:
    return b"".join([piece async for piece in form.pieces()])


@pytest.mark.parametrize("piece", [1, 2, 7, 64, 10_000])
def test_fields_and_file_are_the_same_however_they_arrive(piece: int) -> None:
    async def read() -> None:
        sent = Sent(body(("csrf", None, b"abc"), ("name", None, "räv".encode()), ("file", "rows.csv", CONTENT)), piece)
        form = UploadedForm(sent.request)
        assert await form.read_fields() == {"csrf": "abc", "name": "räv"}
        assert form.file_name == "rows.csv"
        assert await content_of(form) == CONTENT

    asyncio.run(read())


def test_the_file_is_not_read_before_it_is_asked_for() -> None:
    async def read() -> None:
        sent = Sent(body(("csrf", None, b"abc"), ("file", "rows.csv", b"x" * 1_000_000)), 1_000)
        form = UploadedForm(sent.request)
        await form.read_fields()
        assert sent.read == 1_000
        sizes = [len(piece) async for piece in form.pieces()]
        assert sum(sizes) == 1_000_000
        assert max(sizes) <= 2_000

    asyncio.run(read())


def test_a_form_without_a_file_has_fields_alone() -> None:
    async def read() -> None:
        form = UploadedForm(Sent(body(("name", None, b"n"), ("file", "", b"")), 100).request)
        assert await form.read_fields() == {"name": "n"}
        assert form.file_name == ""
        form = UploadedForm(Sent(body(("name", None, b"n")), 100).request)
        await form.read_fields()
        assert await content_of(form) == b""

    asyncio.run(read())


def test_a_file_that_is_cut_off_is_an_error() -> None:
    async def read() -> None:
        whole = body(("file", "rows.csv", CONTENT))
        form = UploadedForm(Sent(whole[: whole.index(b"r\xc3")], 10).request)
        await form.read_fields()
        await content_of(form)

    with pytest.raises(HttpProblem, match="the file is cut off"):
        asyncio.run(read())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"nothing of the kind", "the form cannot be read"),
        (body(("big", None, b"x" * 2_000)), "at most 1,000 bytes"),
        (body(*(("n", None, b"") for _ in range(200))), "at most 100 fields"),
    ],
)
def test_what_is_no_such_form_is_refused(data: bytes, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploaded_form, "MOST_FIELD_BYTES", 1_000)

    async def read() -> None:
        await UploadedForm(Sent(data, 100).request).read_fields()

    with pytest.raises(HttpProblem, match=why):
        asyncio.run(read())


def test_a_form_needs_a_boundary() -> None:
    with pytest.raises(HttpProblem, match="no boundary"):
        UploadedForm(Sent(b"", 1, boundary="").request)
