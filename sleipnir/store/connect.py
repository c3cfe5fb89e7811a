"""Reaching Redis: URLs, clients, what we demand of a server, and how redis-py's errors become ours.

redis-py repeats a command whose reply was lost, so every script of ours may be called twice. Blocking reads stay
below the socket timeout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit, urlunsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from sleipnir.errors import ConfigError, StoreUnavailable, StoreUnsuitable

Client: TypeAlias = Any
"""A redis-py client. Its declared reply types are unions of all that any server may say, so they end here."""

MIN_VERSION = (6, 2)
SOCKET_TIMEOUT_S = 3.0  # a call may meet two connections that are dead and look open, and must be back in 10 s
BLOCK_MS_MAX = 2_000  # below the socket timeout, or a quiet inbox would look like a dead server


def client_url(url: str) -> str:
    """The form redis-py understands: `redis+socket:///path?virtual_host=N` (Celery's) becomes `unix:///path?db=N`."""
    parts = urlsplit(url)
    if parts.scheme != "redis+socket":
        return url
    db = parse_qs(parts.query).get("virtual_host", ["0"])[0]
    return f"unix://{parts.path}?db={db}"


def broker_url(url: str) -> str:
    """The form Celery understands: `unix:///path?db=N` becomes `redis+socket:///path?virtual_host=N`."""
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    db = parse_qs(parts.query).get("db", ["0"])[0]
    return f"redis+socket://{parts.path}?virtual_host={db}"


def is_redis(url: str) -> bool:
    return urlsplit(url).scheme in {"redis", "rediss", "unix", "redis+socket"}


def safe_url(url: str) -> str:
    """The URL without its password, for messages and logs."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rsplit("@", 1)[1]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:***@{host}"))


def connect(url: str, *, decode: bool = True, retries: int = 3, **options: Any) -> Client:
    """A client with its own pool. Nothing is sent yet. Raises ConfigError for a URL that is not one."""
    try:
        return redis.Redis.from_url(
            client_url(url),
            decode_responses=decode,
            socket_timeout=options.pop("socket_timeout", SOCKET_TIMEOUT_S),
            socket_connect_timeout=options.pop("socket_connect_timeout", 5),
            health_check_interval=30,
            retry=Retry(ExponentialBackoff(cap=1, base=0.05), retries),
            client_name=options.pop("client_name", "sleipnir"),
            **options,
        )
    except ValueError as error:
        raise ConfigError(
            f"{safe_url(url)!r} is not a Redis URL ({error}); expected redis://HOST:PORT/DB, rediss://... or unix:///PATH"
        ) from None


_PASSING = ("OOM", "READONLY", "MISCONF", "LOADING", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "TRYAGAIN")


def is_passing(error: Exception) -> bool:
    """Whether a refusal is the server's state (full, failing over, loading) and not the command's fault.

    Looked for anywhere in the text: a script wraps the error of the command that it called. Nothing was written then,
    as the first write of a script is the one that is refused. Of a command's own error redis-py cuts the word off.
    """
    return getattr(error, "status_code", None) in _PASSING or any(word in str(error) for word in _PASSING)


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Turn redis-py's connection troubles into StoreUnavailable, with the address and a way out."""
    try:
        yield
    except redis.exceptions.AuthenticationError as error:
        raise StoreUnsuitable(f"Redis at {safe_url(url)} refused the password: {error}") from error
    except redis.exceptions.ResponseError as error:
        if not is_passing(error):
            raise
        raise StoreUnavailable(f"Redis at {safe_url(url)} refuses to write for now: {error}") from error
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
        raise StoreUnavailable(
            f"Redis at {safe_url(url)} does not answer ({error}). Is it running? `sleipnir doctor` checks; "
            "without SLEIPNIR_REDIS_URL, `sleipnir run` starts a private one."
        ) from error


def check_server(client: Client, url: str) -> str:
    """The server's version. Raises StoreUnsuitable below 6.2."""
    try:
        info: dict[str, Any] = client.info("server")
    except redis.exceptions.ResponseError as error:
        if "HELLO" not in str(error):
            raise
        info = connect(url, protocol=2).info("server")  # older than 6.0: ask in the old protocol, to name the version
    version = str(info["redis_version"])
    if server_version(version) < MIN_VERSION:
        raise StoreUnsuitable(
            f"Redis at {safe_url(url)} is version {version}; Sleipnir needs 6.2 or newer "
            "(Redis 6.2-8 or Valkey). Upgrade it, or unset SLEIPNIR_REDIS_URL to use the embedded one."
        )
    return version


def server_version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def unblock_all(client: Client) -> None:
    """End the blocking reads of all clients, as if their time were up. For a server that is ours alone."""
    for other in client.client_list():
        if "b" in other["flags"]:
            client.client_unblock(int(other["id"]))
