"""OpenAI's chat protocol over plain HTTP: one request, and the answer or the pieces of its stream as plain data.

litellm translates between protocols. An endpoint that speaks the one that its callers speak needs no translation, and
what litellm and OpenAI's client make around such a call - several objects of each answer and piece, printed for a log
that nobody reads - took most of a call's CPU. Here an answer is what json.loads makes of it. Which parameters a model
takes is litellm's to say all the same (litellm_compat.py). Imported with litellm: only workers for models have urllib3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ssl import SSLContext
from typing import Any

from urllib3 import BaseHTTPResponse

from sleipnir_workers.llm.json_http import Address, RequestRefused, object_of, said_in

_READ_BYTES = 65_536


class Chat:
    """One endpoint; the parameters and errors are those of Address. An answer that is not what the protocol says is a
    ValueError too."""

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
        """The pieces of the answer to a request, as they come."""
        with self._address.answered(body) as response:
            yield Pieces(response)


class Pieces:
    """What is in an opened stream. Iterate once, then `finish`."""

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
                raise RequestRefused(said_in(error) or "the stream holds an error", self._response)
            yield piece

    def finish(self) -> None:
        """Read what follows the last piece, which is nothing: only then can another call have the connection."""
        while self._response.read1(_READ_BYTES):
            pass

    def _lines(self) -> Iterator[bytes]:
        begun = b""
        while chunk := self._response.read1(_READ_BYTES):
            *lines, begun = (begun + chunk).split(b"\n")
            yield from lines
        yield begun
