"""One request to a receiver, written here because no client offers this: the host is resolved once, each of its
addresses is checked, and the connection goes to a checked address, so that a second answer of the name server changes
nothing.

A redirect is not followed. Of the response only the status and the headers are read, up to HEAD_BYTES; its body is
not. All of it together has one time limit.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from sleipnir.webhooks.addresses import AddressGuard

HEAD_BYTES: Final = 64 * 1024

Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


class ReceiverError(Exception):
    """The request was not sent, or got no response. The text says why."""


@dataclass(frozen=True)
class ReceiverResponse:
    """`retry_after_s`: how long the receiver asks us to wait; 0: it does not."""

    status_code: int
    retry_after_s: int = 0


async def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


class ReceiverClient:
    """Sends requests. `resolve` finds the addresses of a host."""

    def __init__(self, allowed: AddressGuard, *, timeout_s: float, resolve: Resolve = addresses_of) -> None:
        self._allowed, self._timeout_s, self._resolve = allowed, timeout_s, resolve
        self._tls = ssl.create_default_context()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> ReceiverResponse:
        """Raises ReceiverError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(url, headers, body)
        except TimeoutError:
            raise ReceiverError(f"no response within {self._timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise ReceiverError(f"TLS failed: {getattr(error, 'verify_message', '') or error.reason}") from None
        except (OSError, EOFError) as error:
            raise ReceiverError(f"the connection failed: {getattr(error, 'strerror', None) or error}") from None
        except ValueError as error:
            raise ReceiverError(f"the response is no HTTP: {error}") from None

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> ReceiverResponse:
        parts = urlsplit(url)
        host, is_tls = str(parts.hostname), parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        address = await self._address(host, port, parts.scheme)
        reader, writer = await asyncio.open_connection(
            address, port, limit=HEAD_BYTES, ssl=self._tls if is_tls else None, server_hostname=host if is_tls else None
        )
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            writer.write(_head(target, parts.netloc, headers, len(body)) + body)
            await writer.drain()
            return await _response(reader)
        finally:
            writer.transport.abort()  # what else it sends is of no interest

    async def _address(self, host: str, port: int, scheme: str) -> str:
        """An address of the host to which the request may go. Raises ReceiverError if any of them is not allowed: a
        host that mixes them is not trusted."""
        found = await self._resolve(host, port)
        if not found:
            raise ReceiverError(f"{host} has no address")
        for address in found:
            if problem := self._allowed.problem(address, scheme):
                raise ReceiverError(problem)
        return found[0]


def _head(target: str, host: str, headers: Mapping[str, str], length: int) -> bytes:
    lines = [
        f"POST {target} HTTP/1.1",
        f"Host: {host}",
        "User-Agent: sleipnir-webhooks",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


async def _response(reader: asyncio.StreamReader) -> ReceiverResponse:
    """Raises ValueError for what is no response, and EOFError."""
    while True:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            raise ValueError(f"its headers have more than {HEAD_BYTES:,} bytes") from None
        except asyncio.IncompleteReadError:
            raise EOFError("it was closed before a response") from None
        first, *rest = head.split("\r\n")
        version, _, after = first.partition(" ")
        code = after[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit() and len(code) == 3):
            raise ValueError(f"it begins with {first[:60]!r}")
        if int(code) >= 200:  # before it there may be others, such as 100 Continue
            return ReceiverResponse(int(code), _retry_after_s(rest))


def _retry_after_s(lines: list[str]) -> int:
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == "retry-after" and value.strip().isdigit() and len(value.strip()) < 10:
            return int(value)
    return 0
