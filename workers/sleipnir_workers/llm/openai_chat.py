"""OpenAI's chat protocol over plain HTTP: one request, and the answer or the pieces of its stream as plain data.

litellm translates between protocols. An endpoint that speaks the one that its callers speak needs no translation, and
what litellm and OpenAI's client make around such a call - several objects of each answer and piece, printed for a log
that nobody reads - took five sixths of a call's CPU. Here an answer is what json.loads makes of it. Which parameters a
model takes is litellm's to say all the same (provider.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import httpx

OPENAI_BASE = "https://api.openai.com/v1"

_SAID_CHARACTERS = 500  # of an answer that is no JSON, in an error


class Refused(Exception):
    """The server answered with another status than 200, or sent an error instead of a piece of its stream."""

    def __init__(self, message: str, response: httpx.Response) -> None:
        super().__init__(message)
        self.response = response
        self.status_code = response.status_code


class Unreached(Exception):
    """The connection to the server could not be made, or was lost; why is in the text, and the cause."""


class Chat:
    """One endpoint. `headers` go along with the key; `timeout_s` is for each wait on the network.

    Its methods raise Refused, Unreached, and ValueError for an answer that is not what the protocol says.
    """

    def __init__(
        self, client: httpx.Client, base: str, key: str, *, headers: Mapping[str, str], timeout_s: float
    ) -> None:
        self._client = client
        self._url = f"{base.rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
        self._timeout_s = timeout_s

    def whole(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request."""
        with self._reached():
            response = self._client.post(self._url, **self._request(body))
        if not response.is_success:
            raise _refused(response)
        return _object(response.content, "answer")

    @contextmanager
    def stream(self, body: Mapping[str, Any]) -> Iterator[Pieces]:
        """The pieces of the answer to a request, as they come. Leaving the block closes the connection, unless all of
        it was read (`Pieces.finish`)."""
        with self._reached(), self._client.stream("POST", self._url, **self._request(body)) as response:
            if not response.is_success:
                response.read()
                raise _refused(response)
            yield Pieces(response)

    def _request(self, body: Mapping[str, Any]) -> dict[str, Any]:
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return {"content": content, "headers": self._headers, "timeout": self._timeout_s}

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """httpx says what happened to the connection, but not to which."""
        import httpx

        try:
            yield
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise Unreached(f"no answer from {urlsplit(self._url).netloc}: {why}") from error


class Pieces:
    """What is in an opened stream. Iterate once, then `finish`."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks = response.iter_bytes()  # its iter_lines takes twice as long

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for line in self._lines():
            if not line.startswith(b"data:"):
                continue
            data = line.removeprefix(b"data:").strip()
            if data.startswith(b"[DONE]"):
                return
            piece = _object(data, "piece of the stream")
            if error := piece.get("error"):
                raise Refused(_said(error) or "the stream holds an error", self._response)
            yield piece

    def _lines(self) -> Iterator[bytes]:
        begun = b""
        for chunk in self._chunks:
            *lines, begun = (begun + chunk).split(b"\n")
            yield from lines
        yield begun

    def finish(self) -> None:
        """Read what follows the last piece, which is nothing: only then can another call have the connection."""
        for _ in self._chunks:
            pass


def _object(text: str | bytes, what: str) -> Mapping[str, Any]:
    data = json.loads(text)
    if not isinstance(data, Mapping):
        raise ValueError(f"the {what} is no object: {str(data)[:100]}")
    return data


def _refused(response: httpx.Response) -> Refused:
    """What the server says of it: in the protocol's form, or as text."""
    try:
        said = _said(_object(response.content, "error").get("error"))
    except ValueError:
        said = None
    said = said or " ".join(response.text.split())[:_SAID_CHARACTERS]
    status = f"the provider answered {response.status_code} {response.reason_phrase}".rstrip()
    return Refused(f"{status}: {said}" if said else status, response)


def _said(error: Any) -> str | None:
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message) if message else None
