"""OpenAI's chat protocol over plain HTTP: one request, and the answer or the pieces of its stream as plain data.

An endpoint that speaks OpenAI's protocol needs no translation. litellm and OpenAI's client take most of the CPU of such
a call: they create several objects for each answer and piece, and format them for a log that is not used. Here an
answer is plain JSON data. litellm still decides which parameters a model accepts (litellm_compat.py). Only workers that
call models import this module, because only these have urllib3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ssl import SSLContext
from typing import Any

from urllib3 import BaseHTTPResponse

from sleipnir_workers.llm.json_http import Address, RequestRefused, error_message, object_of

_READ_BYTES = 65_536


class Chat:
    """One endpoint; the parameters and errors are those of Address. An answer that breaks the protocol is also a
    ValueError."""

    def __init__(
        self, base: str, key: str, *, headers: Mapping[str, str], timeout_s: float, tls: SSLContext | None
    ) -> None:
        url = f"{base.rstrip('/')}/chat/completions"
        self._address = Address(url, key, headers=headers, timeout_s=timeout_s, tls=tls)

    def whole(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request."""
        return self._address.post(body)

    @contextmanager
    def stream(self, body: Mapping[str, Any]) -> Iterator[Pieces]:
        """The pieces of the answer to a request, as they arrive."""
        with self._address.response(body) as response:
            yield Pieces(response)


class Pieces:
    """The pieces of an open stream. Iterate once, then call `finish`."""

    def __init__(self, response: BaseHTTPResponse) -> None:
        self._response = response

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for line in self._lines():
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data.startswith(b"[DONE]"):
                return
            piece = object_of(data, "piece of the stream")
            if error := piece.get("error"):
                raise RequestRefused(error_message(error) or "the stream holds an error", self._response)
            yield piece

    def finish(self) -> None:
        """Read to the end of the stream, which is empty: only then can another call use the connection."""
        while self._response.read1(_READ_BYTES):
            pass

    def _lines(self) -> Iterator[bytes]:
        incomplete = b""
        while chunk := self._response.read1(_READ_BYTES):
            *lines, incomplete = (incomplete + chunk).split(b"\n")
            yield from lines
        yield incomplete
