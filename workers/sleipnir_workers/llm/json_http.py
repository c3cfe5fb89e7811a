"""JSON requests to a provider over plain HTTP: the answer as plain data, a failure as one of two errors.

Connections are kept; proxies are those of the environment. Only workers that call models import this module, because
only these have urllib3.
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

from sleipnir.graph.plain import compact_json

CONNECTIONS = 1_000  # kept per server; more than a process has threads

_REDIRECTS = Retry(None, connect=False, read=False, redirect=3, status=False, other=False)
"""Only redirects: retries are the caller's, as hidden attempts would not be counted."""
_QUOTED_CHARACTERS = 500  # of an answer that is no JSON, in an error


class RequestRefused(Exception):
    """The server answered with a status other than 200, or sent an error instead of a piece of its stream."""

    def __init__(self, message: str, response: BaseHTTPResponse) -> None:
        super().__init__(message)
        self.status_code = response.status
        self.response = response


class ServerUnreachable(Exception):
    """The server could not be reached, or the connection was lost."""


class Address:
    """A URL for requests. `headers` are sent with the key; `timeout_s` applies to each wait on the network; `tls` has
    the trusted certificates, None trusts every server.

    The methods raise RequestRefused, ServerUnreachable, and ValueError for an answer that is not a JSON object.
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
        with self.response(body) as response:
            return object_of(response.read(), "answer")

    @contextmanager
    def response(self, body: Mapping[str, Any]) -> Iterator[BaseHTTPResponse]:
        """The response with status 200. Its connection is kept if the caller reads all of it, else closed."""
        content = compact_json(body, allow_nan=False).encode()
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
                response.close()  # no effect after the connection was returned to the pool
        except urllib3.exceptions.HTTPError as error:
            raise ServerUnreachable(f"{urlsplit(self._url).netloc}: {_why(error)}") from error


@lru_cache(maxsize=16)
def _pool(proxy: str | None, tls: SSLContext | None) -> PoolManager:
    """The connections of this process; thread-safe."""
    options: dict[str, Any] = {"maxsize": CONNECTIONS, "ssl_context": tls}
    if tls is None:
        options = {"maxsize": CONNECTIONS, "cert_reqs": "CERT_NONE"}
    return PoolManager(**options) if proxy is None else ProxyManager(proxy, **options)


@lru_cache(maxsize=256)
def _proxy_of(url: str) -> str | None:
    """The proxy that the environment names for `url`: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY."""
    split, proxies = urlsplit(url), getproxies()
    if proxy_bypass(split.netloc):
        return None
    return proxies.get(split.scheme) or proxies.get("all")


def trusted(env: Mapping[str, str]) -> SSLContext | None:
    """The certificates to trust, by the variables that litellm reads: SSL_VERIFY is a file or `false`, SSL_CERT_FILE a
    file; else those of certifi. None: every server is trusted."""
    verify = env.get("SSL_VERIFY", "")
    if verify.lower() == "false":
        return None
    named = next((path for path in (verify, env.get("SSL_CERT_FILE", "")) if path and Path(path).exists()), None)
    return _trusting(named)


@lru_cache(maxsize=16)
def _trusting(file: str | None) -> SSLContext:
    if file is None:
        import certifi  # lazy: only workers with the extras llm or rag have it

        file = certifi.where()
    return ssl.create_default_context(cafile=file)


def object_of(text: bytes, what: str) -> Mapping[str, Any]:
    """The JSON object in a text; `what` names it in an error. Raises ValueError."""
    data = json.loads(text)
    if not isinstance(data, Mapping):
        raise ValueError(f"the {what} is no object: {str(data)[:100]}")
    return data


def _refused(response: BaseHTTPResponse) -> RequestRefused:
    """The error of a response, with the server's message in the protocol's form or as text."""
    content = response.read()
    try:
        body = object_of(content, "error")
        message = error_message(body.get("error") or body.get("message") or body.get("detail"))
    except ValueError:
        message = None
    message = message or " ".join(content.decode(errors="replace").split())[:_QUOTED_CHARACTERS]
    status = f"the provider answered {response.status} {response.reason or ''}".rstrip()
    return RequestRefused(f"{status}: {message}" if message else status, response)


def error_message(error: Any) -> str | None:
    """The message of an error in OpenAI's form, an object or a text; None without one."""
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message) if message else None


def _why(error: BaseException) -> str:
    """What happened to a connection, by the innermost error: urllib3's own messages quote its objects."""
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
