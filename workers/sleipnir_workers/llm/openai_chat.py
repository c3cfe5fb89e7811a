"""OpenAI's chat protocol over plain HTTP: one request, and the answer or the pieces of its stream as plain data.

litellm translates between protocols. An endpoint that speaks the one that its callers speak needs no translation, and
what litellm and OpenAI's client make around such a call - several objects of each answer and piece, printed for a log
that nobody reads - took most of a call's CPU. Here an answer is what json.loads makes of it. Which parameters a model
takes is litellm's to say all the same (provider.py). Imported with litellm: only workers for models have urllib3.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager, Retry, Timeout

CONNECTIONS = 1_000  # that are kept per server; more than a process has threads

_REDIRECTS = Retry(None, connect=False, read=False, redirect=3, status=False, other=False)
"""Attempts are the caller's: hidden ones would not be counted."""
_READ_BYTES = 65_536
_SAID_CHARACTERS = 500  # of an answer that is no JSON, in an error


class Refused(Exception):
    """The server answered with another status than 200, or sent an error instead of a piece of its stream."""

    def __init__(self, message: str, response: BaseHTTPResponse) -> None:
        super().__init__(message)
        self.status_code = response.status
        self.response = response


class Unreached(Exception):
    """The server could not be reached, or the connection was lost."""


class Chat:
    """One endpoint. `headers` go along with the key; `timeout_s` is for each wait on the network; `tls` is for servers
    with certificates, None trusts everybody.

    Its methods raise Refused, Unreached, and ValueError for an answer that is not what the protocol says.
    """

    def __init__(
        self, base: str, key: str, *, headers: Mapping[str, str], timeout_s: float, tls: SSLContext | None
    ) -> None:
        self._url = f"{base.rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
        self._timeout = Timeout(timeout_s)
        self._pool = _pool(_proxy_of(self._url), tls)

    def whole(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request."""
        with self._answered(body) as response:
            return _object(response.read(), "answer")

    @contextmanager
    def stream(self, body: Mapping[str, Any]) -> Iterator[Pieces]:
        """The pieces of the answer to a request, as they come."""
        with self._answered(body) as response:
            yield Pieces(response)

    @contextmanager
    def _answered(self, body: Mapping[str, Any]) -> Iterator[BaseHTTPResponse]:
        """The response to a request. Its connection is kept if all of it was read, and closed otherwise."""
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        try:
            response = self._pool.request(
                "POST",
                self._url,
                body=content,
                headers=self._headers,
                timeout=self._timeout,
                retries=_REDIRECTS,
                preload_content=False,
            )
            try:
                if response.status != 200:
                    raise _refused(response)
                yield response
            finally:
                response.close()  # does nothing to a connection that was given back
        except urllib3.exceptions.HTTPError as error:
            raise Unreached(f"{urlsplit(self._url).netloc}: {_why(error)}") from error


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
            piece = _object(data, "piece of the stream")
            if error := piece.get("error"):
                raise Refused(_said(error) or "the stream holds an error", self._response)
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


@lru_cache(maxsize=16)
def _pool(proxy: str | None, tls: SSLContext | None) -> PoolManager:
    """The connections of this process; thread-safe."""
    how: dict[str, Any] = {"maxsize": CONNECTIONS, "ssl_context": tls}
    if tls is None:
        how = {"maxsize": CONNECTIONS, "cert_reqs": "CERT_NONE"}
    return PoolManager(**how) if proxy is None else ProxyManager(proxy, **how)


@lru_cache(maxsize=256)
def _proxy_of(url: str) -> str | None:
    """The proxy that the environment names for `url`: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY."""
    split, proxies = urlsplit(url), getproxies()
    if proxy_bypass(split.netloc):
        return None
    return proxies.get(split.scheme) or proxies.get("all")


def _object(text: bytes, what: str) -> Mapping[str, Any]:
    data = json.loads(text)
    if not isinstance(data, Mapping):
        raise ValueError(f"the {what} is no object: {str(data)[:100]}")
    return data


def _refused(response: BaseHTTPResponse) -> Refused:
    """What the server says of it: in the protocol's form, or as text."""
    content = response.read()
    try:
        said = _said(_object(content, "error").get("error"))
    except ValueError:
        said = None
    said = said or " ".join(content.decode(errors="replace").split())[:_SAID_CHARACTERS]
    status = f"the provider answered {response.status} {response.reason or ''}".rstrip()
    return Refused(f"{status}: {said}" if said else status, response)


def _said(error: Any) -> str | None:
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message) if message else None


def _why(error: BaseException) -> str:
    """What happened to a connection, in the words of who saw it first; urllib3's quote its own objects."""
    first: BaseException = error
    while (before := first.__cause__ or first.__context__) is not None and not isinstance(first, OSError):
        first = before
    if isinstance(first, http.client.RemoteDisconnected):
        return "the server closed the connection without an answer"
    if isinstance(first, OSError):
        return str(first)
    if isinstance(first, http.client.IncompleteRead | urllib3.exceptions.IncompleteRead | ValueError):
        return "the server closed the connection in the middle of its answer"
    return str(error)
