"""Requests to an HTTP API: connections that are kept, time limits, repetitions, streams."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from sleipnir import waiting
from sleipnir.client.http.decoding import of_json
from sleipnir.client.http.problems import RefusedResponse
from sleipnir.errors import ConfigError, ServerFailed, SleipnirError, StoreUnavailable, UsageError

T = TypeVar("T")

TIMEOUT_S: Final = 60.0
PATIENCE_S: Final = 30.0
"""How long requests that may be repeated are repeated, and a stream is resumed, while the server does not answer."""
SILENCE_S: Final = 45.0
"""A stream without a byte for so long is broken: the server sends a comment every 15 s."""
FIRST_PAUSE_S: Final = 0.1
MOST_PAUSE_S: Final = 2.0
MOST_THREADS: Final = 256
MOST_IDLE: Final = 8
_UPLOAD_BYTES: Final = 64 * 2**10
_UPLOAD_S: Final = 0.5
_READ: Final = 64 * 2**10


@dataclass(frozen=True)
class ServerAddress:
    """Where an HTTP API is: `path` is what comes before `/api/v1`."""

    is_tls: bool
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> ServerAddress:
        """The address in a URL. Raises ConfigError for one that is none, or has a password."""
        try:
            parts: SplitResult = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"the URL of the HTTP API cannot be read: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url[:80]!r} is no URL of an HTTP API, as https://runs.example.com")
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ConfigError("the URL of the HTTP API has no user, password or query; a token is given by itself")
        is_tls = parts.scheme == "https"
        return cls(is_tls, parts.hostname, port or (443 if is_tls else 80), parts.path.rstrip("/"))

    @property
    def is_this_machine(self) -> bool:
        """Whether no other machine sees what is sent there."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}"


class ApiRequest(NamedTuple):
    """One request. `repeats`: sent twice it does what it does once. `missing` is the error for what is not there."""

    method: str
    path: str
    query: Mapping[str, Any] | None = None
    body: Any = None
    headers: Mapping[str, str] | None = None
    repeats: bool = False
    missing: type[UsageError] = UsageError
    timeout_s: float | None = None


class StreamFrame(NamedTuple):
    """An event of a stream; `id` is empty for one that is no place to go on from."""

    id: str
    type: str
    data: str


class _NotConnected(Exception):
    """Nothing was sent."""


class ServerConnections:
    """The connections of a client to its server. Thread-safe."""

    def __init__(self, url: str, token: str | None, ca_file: Path | None, timeout_s: float = TIMEOUT_S) -> None:
        """Opens none. Raises ConfigError for a URL that is none, a token that would be sent in clear text, and a file
        of certificates that cannot be read."""
        self.address, self._timeout_s = ServerAddress.of(url), timeout_s
        if token and not self.address.is_tls and not self.address.is_this_machine:
            raise ConfigError(f"a token is not sent in clear text: use https:// for {self.address.host}")
        if token and not (token.isascii() and token.isprintable()):
            raise ConfigError("the token has characters that no token has")
        self._headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._tls = _context(ca_file) if self.address.is_tls else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock, self._was_reached, self._is_closed = threading.Lock(), False, False
        self._threads: ThreadPoolExecutor | None = None

    # Requests with one answer.

    def get(self, path: str, query: Mapping[str, Any] | None = None, *, missing: type[UsageError] = UsageError) -> Any:
        """The JSON of a GET request."""
        return of_json(self.call(ApiRequest("GET", path, query, repeats=True, missing=missing)))

    def call(self, request: ApiRequest) -> bytes:
        """The body of a successful answer. Repeats a request that may be repeated for up to PATIENCE_S, with the pauses
        that the server asks for. Raises the error that the refusal stands for, and StoreUnavailable."""
        until_s, pause_s = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S
        while True:
            error: SleipnirError
            wait_s = pause_s
            try:
                response, body = self._blocking(lambda: self._answered(request))
            except _NotConnected as lost:
                error, may_repeat = self._unreachable(lost), self._was_reached
            except (OSError, http.client.HTTPException) as lost:
                error, may_repeat = self._unreachable(lost), request.repeats
            else:
                self._was_reached = True
                if 200 <= response.status < 300:
                    return body
                error, may_repeat = _refused(request, response, body)
                wait_s = max(pause_s, _retry_after_s(response))
            if not may_repeat or self._is_closed or time.monotonic() + wait_s > until_s:
                raise error
            waiting.sleep(wait_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _answered(self, request: ApiRequest) -> tuple[http.client.HTTPResponse, bytes]:
        """One try. A request that must not be repeated has a connection of its own: the server may be closing one that
        was idle."""
        connection = self._idle_connection() if request.repeats else None
        if connection is not None:
            try:
                return self._sent(connection, request)
            except (ConnectionError, http.client.RemoteDisconnected, http.client.BadStatusLine):
                pass  # it was closed while it was idle
        return self._sent(self._connected(request.timeout_s), request)

    def _sent(
        self, connection: http.client.HTTPConnection, request: ApiRequest
    ) -> tuple[http.client.HTTPResponse, bytes]:
        is_done = False
        try:
            if connection.sock is not None:
                connection.sock.settimeout(request.timeout_s or self._timeout_s)
            body = None if request.body is None else json.dumps(request.body, default=_as_json).encode()
            headers = {**self._headers, **(request.headers or {})}
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(request.method, self._target(request), body, headers)
            response = connection.getresponse()
            content = response.read()
            is_done = not response.will_close
            return response, content
        finally:
            if is_done:
                self._keep(connection)
            else:
                connection.close()

    # Streams.

    def frames(self, request: ApiRequest, cursor: str | None, until_s: float | None = None) -> Iterator[StreamFrame]:
        """The events of a stream after a cursor, also over breaks of the connection and restarts of the server, to the
        end that the server tells; or up to the time `until_s` (monotonic). Raises as `call`."""
        lost_s: float | None = None
        pause_s = FIRST_PAUSE_S
        while until_s is None or time.monotonic() < until_s:
            error: SleipnirError | None = None
            try:
                with contextlib.closing(self._frames_once(request, cursor, until_s)) as frames:
                    for frame in frames:
                        if frame.type == "problem" and not frame.id:
                            refusal = RefusedResponse(503, frame.data.encode(), request.missing)
                            error = refusal.error()
                            if not refusal.is_passing and not refusal.is_untried:
                                raise error
                            break
                        cursor, lost_s, pause_s = frame.id or cursor, None, FIRST_PAUSE_S
                        yield frame
            except _EndOfStream:
                return
            except _StreamRefused as refused:
                error = refused.error
                if not refused.may_repeat:
                    raise error from None
            except _NotConnected as lost:
                error = self._unreachable(lost)
                if not self._was_reached:
                    raise error from None
            except TimeoutError as lost:
                if until_s is not None and time.monotonic() >= until_s:
                    return
                error = self._unreachable(lost)
            except (OSError, http.client.HTTPException) as lost:
                error = self._unreachable(lost)
            lost_s = time.monotonic() if lost_s is None else lost_s
            if error is not None and time.monotonic() - lost_s > PATIENCE_S:
                raise error
            waiting.sleep(pause_s if until_s is None else min(pause_s, max(0.0, until_s - time.monotonic())))
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _frames_once(
        self, request: ApiRequest, cursor: str | None, until_s: float | None
    ) -> Generator[StreamFrame, None, None]:
        headers = {"Accept": "text/event-stream"} | ({} if cursor is None else {"Last-Event-ID": cursor})
        with self._opened(request, headers) as body:
            fields: dict[str, str] = {}
            for raw in body.lines(until_s):
                line = raw.decode("utf-8", "replace").rstrip("\r\n")
                if line:
                    name, _, value = line.partition(":")
                    fields[name] = value.removeprefix(" ")
                elif "data" in fields:
                    yield StreamFrame(fields.get("id", ""), fields.get("event", ""), fields["data"])
                    fields = {}
                else:
                    fields = {}

    @contextlib.contextmanager
    def _opened(self, request: ApiRequest, headers: Mapping[str, str]) -> Iterator[_Body]:
        """A response that is read as it comes. Raises _EndOfStream for one without content, and _StreamRefused."""
        connection = self._blocking(lambda: self._connected(request.timeout_s))
        try:
            response = self._blocking(lambda: self._requested(connection, request, headers))
            self._was_reached = True
            if response.status == 204:
                raise _EndOfStream
            if not 200 <= response.status < 300:
                error, may_repeat = _refused(request, response, self._blocking(response.read))
                raise _StreamRefused(error, may_repeat=may_repeat)
            yield _Body(connection, response, self._blocking)
        finally:
            _cut(connection)

    def _requested(
        self, connection: http.client.HTTPConnection, request: ApiRequest, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        connection.request(request.method, self._target(request), None, {**self._headers, **headers})
        return connection.getresponse()

    def lines(self, request: ApiRequest) -> Iterator[bytes]:
        """The lines of a response, as they come. Raises OSError or HTTPException when it is cut off, and the error that
        a refusal stands for."""
        try:
            with self._opened(request, {}) as body:
                yield from body.lines(None)
        except _StreamRefused as refused:
            raise refused.error from None

    def upload(self, request: ApiRequest, chunks: Iterable[bytes]) -> bytes:
        """Send a body as it comes; the answer. Never repeated. Raises as `call`, and what the iterable raises."""
        try:
            connection = self._blocking(lambda: self._connected(request.timeout_s))
        except _NotConnected as lost:
            raise self._unreachable(lost) from None
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has refused: its answer says why
                self._send_chunks(connection, request, chunks)
            response = self._blocking(connection.getresponse)
            body = self._blocking(response.read)
        except (OSError, http.client.HTTPException) as lost:
            raise self._unreachable(lost) from None
        finally:
            _cut(connection)
        if 200 <= response.status < 300:
            return body
        raise _refused(request, response, body)[0]

    def _send_chunks(
        self, connection: http.client.HTTPConnection, request: ApiRequest, chunks: Iterable[bytes]
    ) -> None:
        connection.putrequest(request.method, self._target(request))
        for name, value in {**self._headers, **(request.headers or {}), "Transfer-Encoding": "chunked"}.items():
            connection.putheader(name, value)
        self._blocking(connection.endheaders)
        for part in _grouped(chunks):
            framed = b"%x\r\n%b\r\n" % (len(part), part)
            self._blocking(lambda data=framed: connection.send(data))  # type: ignore[misc]
        self._blocking(lambda: connection.send(b"0\r\n\r\n"))

    # What these share.

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._is_closed, idle, self._idle = True, self._idle, []
        for connection in idle:
            connection.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _target(self, request: ApiRequest) -> str:
        path = f"{self.address.path}/api/v1{request.path}"
        given = {name: value for name, value in (request.query or {}).items() if value is not None}
        texts = {
            name: [_text(each) for each in value] if isinstance(value, list) else _text(value)
            for name, value in given.items()
        }
        return f"{path}?{urlencode(texts, doseq=True)}" if texts else path

    def _idle_connection(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < MOST_IDLE:
                self._idle.append(connection)
                return
        connection.close()

    def _connected(self, timeout_s: float | None) -> http.client.HTTPConnection:
        """A new connection. Raises _NotConnected, and ConfigError for a certificate that is not trusted."""
        address, timeout_s = self.address, timeout_s or self._timeout_s
        made: http.client.HTTPConnection
        if self._tls is None:
            made = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
        else:
            made = http.client.HTTPSConnection(address.host, address.port, timeout=timeout_s, context=self._tls)
        try:
            made.connect()
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"the certificate of {address.origin} is not trusted: {error.verify_message}. SLEIPNIR_CA_FILE names "
                "the file of another authority"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _NotConnected(str(error)) from error
        return made

    def _unreachable(self, error: BaseException) -> StoreUnavailable:
        return StoreUnavailable(f"{self.address.origin} does not answer: {str(error) or type(error).__name__}")

    def _blocking(self, function: Callable[[], T]) -> T:
        """Call what blocks: here, or from an event loop in a thread."""
        if not waiting.is_in_loop():
            return function()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="sleipnir-http")
        return waiting.awaited(asyncio.get_running_loop().run_in_executor(self._threads, function))


class _EndOfStream(Exception):
    """There is nothing after the cursor."""


class _StreamRefused(Exception):
    def __init__(self, error: SleipnirError, *, may_repeat: bool) -> None:
        super().__init__(str(error))
        self.error, self.may_repeat = error, may_repeat


class _Body:
    """The body of a response, which is read as it comes."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        blocking: Callable[[Callable[[], bytes]], bytes],
    ) -> None:
        self._socket, self._response, self._blocking = connection.sock, response, blocking

    def lines(self, until_s: float | None) -> Iterator[bytes]:
        """Its lines. Raises TimeoutError after SILENCE_S without a byte, or at the time `until_s`."""
        rest = b""
        while True:
            left_s = SILENCE_S if until_s is None else min(SILENCE_S, max(0.01, until_s - time.monotonic()))
            if self._socket is not None:
                self._socket.settimeout(left_s)
            data = self._blocking(lambda: self._response.read1(_READ))
            if not data:
                if rest:
                    yield rest
                return
            *whole, rest = (rest + data).split(b"\n")
            yield from whole


def part(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="")


def _refused(request: ApiRequest, response: http.client.HTTPResponse, body: bytes) -> tuple[SleipnirError, bool]:
    """The error, and whether the request may be sent again."""
    if 300 <= response.status < 400:
        target = response.getheader("Location", "")
        return ServerFailed(f"the server redirects to {target[:200]!r}, which is not followed: name that URL"), False
    refusal = RefusedResponse(response.status, body, request.missing)
    return refusal.error(), refusal.is_untried or (refusal.is_passing and request.repeats)


def _retry_after_s(response: http.client.HTTPResponse) -> float:
    text = response.getheader("Retry-After", "")
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0


def _grouped(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Pieces of some size, or of what has come within some time."""
    held = bytearray()
    sent_s = time.monotonic()
    for chunk in chunks:
        held += chunk
        if len(held) >= _UPLOAD_BYTES or time.monotonic() - sent_s >= _UPLOAD_S:
            yield bytes(held)
            held.clear()
            sent_s = time.monotonic()
    if held:
        yield bytes(held)


def _cut(connection: http.client.HTTPConnection) -> None:
    """Close a connection, also while a thread reads from it."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_json(value: Any) -> Any:
    """What JSON has no form of: dates have the one that the state stores."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise UsageError(f"a value of the class {type(value).__name__} cannot be sent as JSON")


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the certificates in {str(ca_file)!r} cannot be read: {error}") from None
