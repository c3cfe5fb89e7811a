"""JSON posted to a provider over plain HTTP: the answer as plain data, and what went wrong as one of two errors.

Connections are kept, proxies are those of the environment. Imported by workers that ask models alone: only those have
urllib3.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager, Retry, Timeout

CONNECTIONS = 1_000  # that are kept per server; more than a process has threads

_REDIRECTS = Retry(None, connect=False, read=False, redirect=3, status=False, other=False)
"""Attempts are the caller's: hidden ones would not be counted."""
_SAID_CHARACTERS = 500  # of an answer that is no JSON, in an error


class RequestRefused(Exception):
    """The server answered with another status than 200, or sent an error instead of a piece of its stream."""

    def __init__(self, message: str, response: BaseHTTPResponse) -> None:
        super().__init__(message)
        self.status_code = response.status
        self.response = response


class ServerUnreachable(Exception):
    """The server could not be reached, or the connection was lost."""


class Address:
    """Where something is posted. `headers` go along with the key; `timeout_s` is for each wait on the network; `tls` is
    for servers with certificates, None trusts everybody.

    Its methods raise RequestRefused, ServerUnreachable, and ValueError for an answer that is no JSON object.
    """

    def __init__(
        self, url: str, key: str, *, headers: Mapping[str, str], timeout_s: float, tls: SSLContext | None
    ) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
        self._timeout = Timeout(timeout_s)
        self._pool = _pool(_proxy_of(url), tls)

    def post(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a request."""
        with self.answered(body) as response:
            return object_of(response.read(), "answer")

    @contextmanager
    def answered(self, body: Mapping[str, Any]) -> Iterator[BaseHTTPResponse]:
        """The response to a request, with status 200. Its connection is kept if all of it is read, else closed."""
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
            raise ServerUnreachable(f"{urlsplit(self._url).netloc}: {_why(error)}") from error


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


def trusted(env: Mapping[str, str]) -> SSLContext | None:
    """Whom to trust, as litellm takes it from the environment: SSL_VERIFY is a file or `false`, and SSL_CERT_FILE a
    file; else what certifi trusts. None: everybody."""
    verify = env.get("SSL_VERIFY", "")
    if verify.lower() == "false":
        return None
    named = next((path for path in (verify, env.get("SSL_CERT_FILE", "")) if path and Path(path).exists()), None)
    return _trusting(named)


@lru_cache(maxsize=16)
def _trusting(file: str | None) -> SSLContext:
    if file is None:
        import certifi  # here: only workers with the extras llm or rag have it

        file = certifi.where()
    return ssl.create_default_context(cafile=file)


def object_of(text: bytes, what: str) -> Mapping[str, Any]:
    """The JSON object in a text; `what` is how an error calls it. Raises ValueError."""
    data = json.loads(text)
    if not isinstance(data, Mapping):
        raise ValueError(f"the {what} is no object: {str(data)[:100]}")
    return data


def _refused(response: BaseHTTPResponse) -> RequestRefused:
    """What the server says of it: in the protocol's form, or as text."""
    content = response.read()
    try:
        told = object_of(content, "error")
        said = said_in(told.get("error") or told.get("message") or told.get("detail"))
    except ValueError:
        said = None
    said = said or " ".join(content.decode(errors="replace").split())[:_SAID_CHARACTERS]
    status = f"the provider answered {response.status} {response.reason or ''}".rstrip()
    return RequestRefused(f"{status}: {said}" if said else status, response)


def said_in(error: Any) -> str | None:
    """The text of an error in OpenAI's form, an object or a text; None without one."""
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
