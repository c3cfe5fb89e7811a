"""One GET, of an address that anybody may have written: what it costs us is bounded, and where it leads is looked at.

Rules. A name is resolved once, every address it has must be public, and one of these is connected to: what the name
means a moment later is of no consequence. Each redirect is looked at in the same way. All of it together has TIMEOUT_S;
then the socket is shut down, so that neither headers nor a body that come a byte at a time hold us up. The body is read
up to a limit. No cookies, no keys, no proxies.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import Final, TypeAlias
from urllib.parse import urljoin, urlsplit

from urllib3 import BaseHTTPResponse
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError, LocationParseError
from urllib3.util import Url, parse_url

from sleipnir_workers.knowledge.failures import Unloadable, UnreadableContent
from sleipnir_workers.knowledge.loaders.content import limit, size

TIMEOUT_S: Final = 16.0
USER_AGENT: Final = "curl/8.6.0"
"""Loki's for crawls (spec 8.3); servers answer with plain pages."""
MAX_REDIRECTS: Final = 10
_PIECE: Final = 64 * 1024
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
Look: TypeAlias = Callable[[str], None]
"""Is shown each URL before it is fetched, and raises if it must not be."""
Count: TypeAlias = Callable[[int], None]
"""Is told of each piece of a body, in bytes, and raises when it is enough."""

_EXTENSIONS: Final = {
    "application/pdf": "pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
    "application/vnd.oasis.opendocument.text": "odt",
    "application/vnd.oasis.opendocument.spreadsheet": "ods",
    "application/vnd.oasis.opendocument.presentation": "odp",
    "application/rtf": "rtf",
    "text/javascript": "js",
    "application/javascript": "js",
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/markdown": "md",
    "text/x-markdown": "md",
    "text/tab-separated-values": "tsv",
}
_SAYS_NOTHING: Final = frozenset({"", "text/plain", "application/octet-stream", "binary/octet-stream"})
"""Then the name in the URL says more: raw files of a repository come as text/plain (added by Sleipnir)."""


@dataclass(frozen=True)
class Response:
    """`url` is where the redirects ended. `media_type` is lower case, without parameters."""

    url: str
    media_type: str
    charset: str | None
    body: bytes

    @property
    def extension(self) -> str:
        """What the content is (spec 8.3). Raises UnreadableContent for pictures, sound and films."""
        if self.media_type in _SAYS_NOTHING:
            _, dot, extension = urlsplit(self.url).path.rpartition("/")[2].rpartition(".")
            return extension.lower() if dot and extension.isalnum() else "txt"
        kind, _, subtype = self.media_type.partition("/")
        if kind in ("image", "audio", "video"):
            raise UnreadableContent(f"Unexpected media type {self.media_type!r}")
        return _EXTENSIONS.get(self.media_type, subtype)


class Status(Unloadable):
    """The server answered, and not with a document."""

    def __init__(self, path: str, reason: str, code: int) -> None:
        super().__init__(path, reason)
        self.code = code


def addresses(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_private(address: str) -> bool:
    """Whether an address is anything but a public one: of this machine, of a network behind a router, of a group."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner:
            return is_private(str(inner))
        if ip.is_site_local:
            return True
    return not ip.is_global or ip.is_multicast or ip.is_reserved


class Web:
    """`refused` says which addresses are not connected to. Any number of threads may `get` at once."""

    def __init__(
        self, *, max_bytes: int, refused: Callable[[str], bool] = is_private, resolve: Resolve = addresses
    ) -> None:
        self._max_bytes = max_bytes
        self._refused = refused
        self._resolve = resolve
        self._tls = ssl.create_default_context()

    def get(
        self, url: str, *, timeout_s: float = TIMEOUT_S, look: Look | None = None, count: Count | None = None
    ) -> Response:
        """The document at `url`. Raises Unloadable, and Status for any status but 2xx."""
        deadline = time.monotonic() + timeout_s
        here = url
        try:
            for _ in range(MAX_REDIRECTS + 1):
                if look is not None:
                    look(here)
                with self._answer(here, deadline, timeout_s) as answer:
                    target = answer.headers.get("Location") if 300 <= answer.status < 400 else None
                    if target is None:
                        return _read(here, answer, self._max_bytes, count)
                here = urljoin(here, target)
            raise Unloadable(here, f"redirects more than {MAX_REDIRECTS} times")
        except Unloadable as error:
            raise _as_asked(error, url, here) from None

    @contextlib.contextmanager
    def _answer(self, url: str, deadline: float, timeout_s: float) -> Iterator[BaseHTTPResponse]:
        """The answer to one request, its body not read yet. What goes wrong until that is done is Unloadable."""
        parts = _parse(url)
        connections = self._connections(url, parts)
        watch = _Watch(deadline)
        try:
            connection = watch.connect(connections)
            headers = {"Host": parts.netloc or "", "User-Agent": USER_AGENT, "Accept": "*/*"}
            connection.request("GET", parts.request_uri, headers=headers, preload_content=False)
            with contextlib.closing(connection.getresponse()) as answer:
                yield answer
            watch.check()
        except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            problem = f"was not done in {timeout_s:g} s" if time.monotonic() >= deadline else _problem(error)
            raise Unloadable(url, problem) from None
        finally:
            watch.close()

    def _connections(self, url: str, parts: Url) -> list[HTTPConnection]:
        """To each address of the host, not connected yet. Raises Unloadable if one of them is refused."""
        host = (parts.host or "").strip("[]")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            found = list(dict.fromkeys(self._resolve(host, port)))
        except (OSError, UnicodeError) as error:
            raise Unloadable(url, f"the host {host!r} is not known ({error})") from None
        for address in found:
            if self._refused(address):
                named = address if address == host else f"{host} is {address}, which"
                raise Unloadable(url, f"{named} is no public address; SLEIPNIR_PRIVATE_URLS=1 allows it")
        if parts.scheme == "http":
            return [HTTPConnection(address, port) for address in found]
        return [HTTPSConnection(address, port, server_hostname=host, ssl_context=self._tls) for address in found]


class _Watch:
    """Shuts a connection down at its deadline, whatever it is doing."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._connection: HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(max(0.0, deadline - time.monotonic()), self._shut_down)
        self._timer.daemon = True
        self._timer.start()

    def connect(self, connections: Sequence[HTTPConnection]) -> HTTPConnection:
        """The first of these that answers, connected. Raises the last one's error."""
        *others, last = connections
        for connection in others:
            with contextlib.suppress(HTTPError, OSError):
                return self._connected(connection)
        return self._connected(last)

    def _connected(self, connection: HTTPConnection) -> HTTPConnection:
        self.close_connection()
        connection.timeout = max(0.001, self._deadline - time.monotonic())
        self._connection = connection
        connection.connect()
        self._socket = connection.sock  # a connection forgets it when the body is the last thing to come
        return connection

    def check(self) -> None:
        """Raises TimeoutError if the deadline has passed: a connection that is shut down looks like one at its end."""
        if time.monotonic() >= self._deadline:
            raise TimeoutError

    def close(self) -> None:
        self._timer.cancel()
        self.close_connection()

    def close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _shut_down(self) -> None:
        sock = self._socket or (self._connection and self._connection.sock)
        if sock:
            with contextlib.suppress(OSError):  # not TLS's own shutdown, which other threads' reads do not survive
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _parse(url: str) -> Url:
    try:
        parts = parse_url(_with_ascii_host(url))
    except (LocationParseError, ValueError):
        raise Unloadable(url, "is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.host:
        raise Unloadable(url, "is not an address of the web (http or https)")
    return parts


def _with_ascii_host(url: str) -> str:
    """urllib3 would want one more library for it."""
    parts = urlsplit(url)
    if parts.netloc.isascii():
        return url
    return parts._replace(netloc=parts.netloc.encode("idna").decode()).geturl()


def _read(url: str, answer: BaseHTTPResponse, max_bytes: int, count: Count | None) -> Response:
    if not 200 <= answer.status < 300:
        raise Status(url, f"Invalid status: {answer.status} {answer.reason or ''}".rstrip(), answer.status)
    length = answer.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise Unloadable(url, f"is {size(int(length))}; {limit(max_bytes)}")
    body = bytearray()
    while piece := answer.read1(_PIECE, decode_content=True):
        body += piece
        if count is not None:
            count(len(piece))
        if len(body) > max_bytes:
            raise Unloadable(url, f"goes on after {size(max_bytes)}; {limit(max_bytes)}")
    header = Message()
    header["Content-Type"] = answer.headers.get("Content-Type", "")
    return Response(url, header.get_content_type(), header.get_content_charset(), bytes(body))


def _as_asked(error: Unloadable, url: str, here: str) -> Unloadable:
    """The error of a redirect's target, as one of the URL that people know."""
    if here == url:
        return error
    reason = f"{error.reason} (redirected to {here})"
    return Status(url, reason, error.code) if isinstance(error, Status) else Unloadable(url, reason)


def _problem(error: Exception) -> str:
    """What happened, in the words of who saw it first; urllib3 quotes its own objects."""
    first: BaseException = error
    while (cause := first.__cause__ or first.__context__) is not None:
        first = cause
    match first:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not valid: {first.verify_message}"
        case OSError() if first.strerror:
            return f"no answer: {first.strerror}"
        case _:
            return f"no answer that can be understood ({type(first).__name__}: {first})"
