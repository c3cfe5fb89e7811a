"""Reaching Redis: clients, what we demand of a server, and how redis-py's errors become Sleipnir's.

redis-py repeats a command whose reply was lost, so every script may be called twice. Blocking reads stay
below the socket timeout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection

from sleipnir.errors import StoreUnavailable, StoreUnsuitable
from sleipnir.store.address import Sentinels, client_url, not_a_url, safe_url, sentinels

Client: TypeAlias = Any
"""A redis-py client. Its declared reply types are unions of all that any server may say, so they end here."""

MIN_VERSION = (6, 2)
SOCKET_TIMEOUT_S = 3.0  # a call may meet two connections that are dead and look open, and must be back in 10 s
ASK_SENTINEL_S = 0.5
ASKING_SENTINELS: Mapping[str, Any] = {
    "socket_timeout": ASK_SENTINEL_S,
    "socket_connect_timeout": ASK_SENTINEL_S,
    "retry": Retry(NoBackoff(), 0),
}
"""Options of connections to Sentinels: one that is away must not keep us from asking the next (redis-py's 20 s)."""
BLOCK_MS_MAX = 2_000  # below the socket timeout, or a quiet inbox would look like a dead server


def connect(url: str, *, decode: bool = True, retries: int = 3, **options: Any) -> Client:
    """A client with its own pool. Nothing is sent yet. Raises ConfigError for a URL that is not one."""
    options = {
        "decode_responses": decode,
        # Bytes that are not UTF-8 become half surrogates, which readers refuse (reading.decoded). With "strict" one
        # such value fails the whole reply, with all that other runs have in it.
        "encoding_errors": "surrogateescape",
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": 5,
        "health_check_interval": 30,
        "retry": Retry(ExponentialBackoff(cap=1, base=0.05), retries),
        "client_name": "sleipnir",
        **options,
    }
    try:
        known = sentinels(url)
        if known is not None:
            return _follow(known, options)
        client = redis.Redis.from_url(client_url(url), **options)
        client.connection_pool.make_connection()  # not a connect: it refuses what a query of the URL may not say
        return client
    except ValueError as error:
        raise not_a_url(url, error) from None
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument ('\w+')", str(error))
        raise not_a_url(url, f"unknown: {unknown[1] if unknown else 'a part of its query'}") from None


def _follow(known: Sentinels, options: dict[str, Any]) -> Client:
    """A client of the Redis that is the master now. Each connection, also one that connects again, asks the Sentinels
    for it, one after the other."""
    single = options.pop("single_connection_client", False)
    tls = known.tls or {}
    asking = {**ASKING_SENTINELS, **known.login, **({} if known.tls is None else {"ssl": True, **tls})}
    asked: Any = Sentinel(known.hosts, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    pool: Any = SentinelConnectionPool(  # type: ignore[no-untyped-call]
        known.master,
        asked,
        connection_class=_ToMaster if known.tls is None else _ToMasterByTLS,
        username=known.username,
        password=known.password,
        db=known.db,
        **options,
        **tls,
    )
    return redis.Redis(connection_pool=pool, single_connection_client=single)


class _ToMaster(SentinelManagedConnection):
    """redis-py asks the Sentinels when a pool hands out a connection. One that is kept and breaks, as that of a client
    with a single connection, would be connected to the same server for ever, though another is the master."""

    def connect_to(self, address: Any) -> None:
        self.connect_check_health(check_health=self.connection_pool.check_connection, retry_socket_connect=False)

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        if not self._sock:
            self.host, self.port = self.connection_pool.get_master_address()
            super().connect_check_health(*args, **options)


class _ToMasterByTLS(_ToMaster, SentinelManagedSSLConnection):
    pass


_PASSING = ("OOM", "READONLY", "MISCONF", "LOADING", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "TRYAGAIN")


def is_passing(error: Exception) -> bool:
    """Whether a refusal is the server's state (full, failing over, loading) and not the command's fault.

    Looked for anywhere in the text: a script wraps the error of the command that it called. Nothing was written then,
    as the first write of a script is the one that is refused. Of a command's own error, and from Redis 7 on of a
    script's too, redis-py cuts the word off.
    """
    code, text = getattr(error, "status_code", None), str(error)
    return code in _PASSING or any(word in text for word in _PASSING) or _FULL in text


_FULL = "used memory > 'maxmemory'"


def _with_code(error: Exception) -> str:
    """What Redis said, with the word that redis-py may have cut off."""
    code, text = getattr(error, "status_code", None) or ("OOM" if _FULL in str(error) else ""), str(error)
    return text if any(word in text for word in _PASSING) or not code else f"{code} {text}"


_OF_THE_SERVER = ("NOPERM", "NOAUTH", "MOVED", "ASK ")


def is_lasting(error: Exception) -> bool:
    """Whether the same call will fail again, however Redis is then: the call is wrong, or the key that it is for. False
    for troubles of the connection, of the server and of its users' rights."""
    if isinstance(error, StoreUnavailable | redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError):
        return False
    if isinstance(error, redis.exceptions.NoPermissionError):
        return False
    if not isinstance(error, redis.exceptions.ResponseError):
        return True
    return not is_passing(error) and not any(word in str(error) for word in _OF_THE_SERVER)


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Turn redis-py's connection troubles into StoreUnavailable, with the address and a way out."""
    try:
        yield
    except redis.exceptions.AuthenticationError as error:
        raise StoreUnsuitable(f"Redis at {safe_url(url)} refused the password: {error}") from error
    except redis.exceptions.NoPermissionError as error:
        raise StoreUnsuitable(
            f"Redis at {safe_url(url)} does not allow this user what Sleipnir needs: {error}. "
            "docs/deployment.md lists the rights; ops/deploy/redis/users.acl has such a user."
        ) from error
    except redis.exceptions.InvalidResponse as error:
        raise StoreUnsuitable(f"what answers at {safe_url(url)} is no Redis: {error}") from error
    except redis.exceptions.ResponseError as error:
        if "DB index is out of range" in str(error):
            raise StoreUnsuitable(f"Redis at {safe_url(url)} has no database of that number") from error
        if not is_passing(error):
            raise
        raise StoreUnavailable(f"Redis at {safe_url(url)} refuses to write for now: {_with_code(error)}") from error
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, OSError) as error:
        raise StoreUnavailable(
            f"Redis at {safe_url(url)} does not answer ({error}). Is it running? `sleipnir doctor` checks; "
            "without SLEIPNIR_REDIS_URL, `sleipnir run` starts a private one."
        ) from error


def check_server(client: Client, url: str, *, allow_eviction: bool = False) -> str:
    """The server's version. Raises StoreUnsuitable below 6.2, and for a server that deletes keys when it is full."""
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
    if not allow_eviction:
        _refuse_eviction(client, url)
    return version


KEEPS_ALL = "noeviction"


def _refuse_eviction(client: Client, url: str) -> None:
    """INFO and not CONFIG, which managed servers forbid. One that says nothing of its policy is used."""
    policy = str(client.info("memory").get("maxmemory_policy", KEEPS_ALL))
    if policy != KEEPS_ALL:
        raise StoreUnsuitable(
            f"Redis at {safe_url(url)} has maxmemory-policy {policy!r}: when it is full it deletes parts of live runs. "
            f"Set it right: `redis-cli CONFIG SET maxmemory-policy {KEEPS_ALL}`, and in the server's configuration. "
            "SLEIPNIR_ALLOW_EVICTION=1 uses it as it is."
        )


def server_version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def unblock_all(client: Client) -> None:
    """End the blocking reads of all clients, as if their time were up. For a private server."""
    for other in client.client_list():
        if "b" in other["flags"]:
            client.client_unblock(int(other["id"]))
