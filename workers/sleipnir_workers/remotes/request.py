"""One request to the server of a remote agent, with bounded cost and a checked target.

Rules. The host is resolved once, each of its addresses must be allowed, and the connection goes to one of these: a
later change of the name has no effect. Redirects are not followed, proxies are not used. All of it together has
TIMEOUT_S; then the socket is shut down, so that an answer that arrives a byte at a time cannot delay it. The body is
read up to a limit.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from sleipnir.errors import NodeFailed
from sleipnir.webhooks.addresses import AddressGuard

TIMEOUT_S: Final = 30.0
_PIECE: Final = 64 * 1024


class RemoteFailure(Exception):
    """The server could not be reached, gave no answer, or says that it cannot answer now."""


@dataclass(frozen=True)
class RemoteResponse:
    """What a server has answered."""

    status: int
    body: bytes


def request(
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    guard: AddressGuard,
    most_bytes: int,
    timeout_s: float = TIMEOUT_S,
) -> RemoteResponse:
    """The answer to a POST of `body`, or without one to a GET. Raises RemoteFailure, and NodeFailed for an address that
    is not allowed and an answer that is too large."""
    parts = urlsplit(url)
    host, is_tls = str(parts.hostname), parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    try:
        address = _address(host, port, parts.scheme, guard)
        connection = _Connection(host, port, address, is_tls=is_tls, timeout_s=timeout_s)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with contextlib.closing(connection), _deadline(connection, timeout_s):
            connection.request("GET" if body is None else "POST", target, body, dict(headers))
            response = connection.getresponse()
            return RemoteResponse(response.status, _read(response, most_bytes, host))
    except ssl.SSLError as error:
        raise RemoteFailure(f"{host}: TLS failed: {getattr(error, 'verify_message', '') or error.reason}") from None
    except TimeoutError:
        raise RemoteFailure(f"{host}: no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise RemoteFailure(f"{host}: {error.strerror or error}") from None
    except http.client.HTTPException as error:
        raise RemoteFailure(f"{host}: the answer is no HTTP, or breaks off: {type(error).__name__}") from None


class _Connection(http.client.HTTPConnection):
    """A connection to a checked address of the host."""

    def __init__(self, host: str, port: int, address: str, *, is_tls: bool, timeout_s: float) -> None:
        super().__init__(host, port, timeout=timeout_s)
        self._address, self._is_tls = address, is_tls
        self.default_port = 443 if is_tls else 80  # for the header Host
        self.raw: socket.socket | None = None

    def connect(self) -> None:
        self.raw = sock = socket.create_connection((self._address, self.port), self.timeout)
        if self._is_tls:
            self.raw = sock = ssl.create_default_context().wrap_socket(sock, server_hostname=self.host)
        self.sock = sock


@contextlib.contextmanager
def _deadline(connection: _Connection, timeout_s: float) -> Iterator[None]:
    """Shut the connection down after this time. What breaks off then is a TimeoutError."""
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        if connection.raw is not None:
            with contextlib.suppress(OSError):  # not TLS's own shutdown, which breaks reads of other threads
                socket.socket.shutdown(connection.raw, socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        if is_over.is_set():
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()
    if is_over.is_set():  # a body without a length looks as if it had ended
        raise TimeoutError


def _address(host: str, port: int, scheme: str, guard: AddressGuard) -> str:
    """An address of the host to which a request may go. Raises NodeFailed if any of them is not allowed: a host that
    mixes them is not trusted."""
    found = list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
    for address in found:
        if problem := guard.problem(address, scheme):
            raise NodeFailed(f"{host}: {problem}", "address")
    if not found:
        raise RemoteFailure(f"{host} has no address")
    return found[0]


def _read(response: http.client.HTTPResponse, most_bytes: int, host: str) -> bytes:
    body = bytearray()
    while piece := response.read1(_PIECE):
        body += piece
        if len(body) > most_bytes:
            raise NodeFailed(f"{host}: the answer has more than {most_bytes:,} bytes", "too_large")
    return bytes(body)
