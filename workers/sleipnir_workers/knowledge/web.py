"""One GET of an untrusted address, with bounded cost and checked targets.

Rules. A name is resolved once, all its addresses must be public, and one of these is connected to: a later change of
the name has no effect. Each redirect is checked in the same way. All of it together has TIMEOUT_S; then the socket is
shut down, so that headers or a body that arrive a byte at a time cannot delay it. The body is read up to a limit. No
cookies, no keys, no proxies.
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
CheckUrl: TypeAlias = Callable[[str], None]
"""Called with each URL before it is fetched; raises if it must not be."""
CountBytes: TypeAlias = Callable[[int], None]
"""Called with the size of each piece of a body; raises when a limit is reached."""

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
_GENERIC: Final = frozenset({"", "text/plain", "application/octet-stream", "binary/octet-stream"})
"""With these the extension in the URL counts: raw files of a repository are text/plain (added by Sleipnir)."""


@dataclass(frozen=True)
class Response:
    """`url` is where the redirects ended. `media_type` is lower case, without parameters."""

    url: str
    media_type: str
    charset: str | None
    body: bytes

    @property
    def extension(self) -> str:
        """The kind of the content (spec 8.3). Raises UnreadableContent for images, audio and video."""
        if self.media_type in _GENERIC:
            _, dot, extension = urlsplit(self.url).path.rpartition("/")[2].rpartition(".")
            return extension.lower() if dot and extension.isalnum() else "txt"
        kind, _, subtype = self.media_type.partition("/")
        if kind in ("image", "audio", "video"):
            raise UnreadableContent(f"Unexpected media type {self.media_type!r}")
        return _EXTENSIONS.get(self.media_type, subtype)


class BadStatus(Unloadable):
    """The server answered without a document."""

    def __init__(self, path: str, reason: str, code: int) -> None:
        super().__init__(path, reason)
        self.code = code


def addresses(host: str, port: int) -> list[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_private(address: str) -> bool:
    """Whether an address is not public: of this machine, of a private network, multicast or reserved."""
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
    """`refused` tells which addresses must not be connected to. Any number of threads may call `get` at once."""

    def __init__(
        self, *, max_bytes: int, refused: Callable[[str], bool] = is_private, resolve: Resolve = addresses
    ) -> None:
        self._max_bytes = max_bytes
        self._refused = refused
        self._resolve = resolve
        self._tls = ssl.create_default_context()

    def get(
        self, url: str, *, timeout_s: float = TIMEOUT_S, check: CheckUrl | None = None, count: CountBytes | None = None
    ) -> Response:
        """The document at `url`. Raises Unloadable, and BadStatus for any status but 2xx."""
        deadline = time.monotonic() + timeout_s
        current = url
        try:
            for _ in range(MAX_REDIRECTS + 1):
                if check is not None:
                    check(current)
                with self._answer(current, deadline, timeout_s) as answer:
                    target = answer.headers.get("Location") if 300 <= answer.status < 400 else None
                    if target is None:
                        return _read(current, answer, self._max_bytes, count)
                current = urljoin(current, target)
            raise Unloadable(current, f"redirects more than {MAX_REDIRECTS} times")
        except Unloadable as error:
            raise _of_first_url(error, url, current) from None

    @contextlib.contextmanager
    def _answer(self, url: str, deadline: float, timeout_s: float) -> Iterator[BaseHTTPResponse]:
        """The answer to one request, its body not read yet. All errors until the body is read become Unloadable."""
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
            problem = f"took longer than {timeout_s:g} s" if time.monotonic() >= deadline else _problem(error)
            raise Unloadable(url, problem) from None
        finally:
            watch.close()

    def _connections(self, url: str, parts: Url) -> list[HTTPConnection]:
        """A connection to each address of the host, not connected yet. Raises Unloadable if one is refused."""
        host = (parts.host or "").strip("[]")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            ips = list(dict.fromkeys(self._resolve(host, port)))
        except (OSError, UnicodeError) as error:
            raise Unloadable(url, f"the host {host!r} is not known ({error})") from None
        for ip in ips:
            if self._refused(ip):
                subject = ip if ip == host else f"{host} is {ip}, which"
                raise Unloadable(url, f"{subject} is not a public address; SLEIPNIR_PRIVATE_URLS=1 allows it")
        if parts.scheme == "http":
            return [HTTPConnection(ip, port) for ip in ips]
        return [HTTPSConnection(ip, port, server_hostname=host, ssl_context=self._tls) for ip in ips]


class _Watch:
    """Shuts a connection down at its deadline, even while another thread uses it."""

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
        self._socket = connection.sock  # the connection drops it once only the body is to be read
        return connection

    def check(self) -> None:
        """Raises TimeoutError if the deadline has passed: a connection that was shut down looks like one that ended."""
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
            with contextlib.suppress(OSError):  # not TLS's own shutdown, which breaks reads of other threads
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
    """urllib3 would need another library for it."""
    parts = urlsplit(url)
    if parts.netloc.isascii():
        return url
    return parts._replace(netloc=parts.netloc.encode("idna").decode()).geturl()


def _read(url: str, answer: BaseHTTPResponse, max_bytes: int, count: CountBytes | None) -> Response:
    if not 200 <= answer.status < 300:
        raise BadStatus(url, f"Invalid status: {answer.status} {answer.reason or ''}".rstrip(), answer.status)
    length = answer.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise Unloadable(url, f"is {size(int(length))}; {limit(max_bytes)}")
    body = bytearray()
    while piece := answer.read1(_PIECE, decode_content=True):
        body += piece
        if count is not None:
            count(len(piece))
        if len(body) > max_bytes:
            raise Unloadable(url, f"is more than {size(max_bytes)}; {limit(max_bytes)}")
    header = Message()
    header["Content-Type"] = answer.headers.get("Content-Type", "")
    return Response(url, header.get_content_type(), header.get_content_charset(), bytes(body))


def _of_first_url(error: Unloadable, url: str, target: str) -> Unloadable:
    """The error of a redirect's target as an error of the first URL, which people know."""
    if target == url:
        return error
    reason = f"{error.reason} (redirected to {target})"
    return BadStatus(url, reason, error.code) if isinstance(error, BadStatus) else Unloadable(url, reason)


def _problem(error: Exception) -> str:
    """The message of the root cause: urllib3's own messages quote its objects."""
    root: BaseException = error
    while (cause := root.__cause__ or root.__context__) is not None:
        root = cause
    match root:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not valid: {root.verify_message}"
        case OSError() if root.strerror:
            return f"no answer: {root.strerror}"
        case _:
            return f"invalid answer ({type(root).__name__}: {root})"
