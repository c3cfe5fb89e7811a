"""Connections to Redis: clients, requirements on the server, and the conversion of redis-py's errors to Sleipnir's.

redis-py repeats a command whose reply was lost, so every script may be called twice. Blocking reads are shorter than
the socket timeout.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection, SentinelManagedSSLConnection

from sleipnir.errors import StoreUnavailable, StoreUnsuitable
from sleipnir.store import loop_sockets
from sleipnir.store.address import (
    ClusterAddress,
    Sentinels,
    client_url,
    cluster,
    not_a_url,
    safe_url,
    sentinels,
)

Client: TypeAlias = Any
"""A redis-py client. Its declared reply types are unions of all possible replies, so they are not used."""

MIN_VERSION = (6, 2)
SOCKET_TIMEOUT_S = 3.0  # a call may use two dead connections that seem open, and must return within 10 s
ASK_SENTINEL_S = 0.5
ASKING_SENTINELS: Mapping[str, Any] = {
    "socket_timeout": ASK_SENTINEL_S,
    "socket_connect_timeout": ASK_SENTINEL_S,
    "retry": Retry(NoBackoff(), 0),
}
"""Options of connections to Sentinels: an unreachable one must not delay the next (redis-py waits 20 s)."""
LOOP_CONNECTIONS = 4_000
"""Of a client in an event loop, which has as many calls under way as it has tasks; redis-py refuses the 101st by
default. A blocking read of a stream holds one."""
DRIVER = DriverInfo()
"""What connections say of themselves. redis-py looks its own version up for each connection otherwise, in 0.35 ms."""
BLOCK_MS_MAX = 2_000  # below the socket timeout, else a quiet inbox would look like a dead server


def connect(url: str, *, decode: bool = True, retries: int = 3, in_loop: bool = False, **options: Any) -> Client:
    """A client with its own pool. Nothing is sent yet, except to a cluster, whose nodes say who serves what. `in_loop`:
    for calls from an event loop (loop_sockets.py), where a failed command is repeated without pauses. Raises
    ConfigError for an invalid URL, and StoreUnavailable if no node of a cluster answers."""
    options = {
        "decode_responses": decode,
        # Bytes that are not UTF-8 become half surrogates, which readers refuse (decoding.decoded). With "strict" one
        # such value fails the whole reply, including the values of other runs.
        "encoding_errors": "surrogateescape",
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": 5,
        "health_check_interval": 30,
        "retry": Retry(NoBackoff() if in_loop else ExponentialBackoff(cap=1, base=0.05), retries),
        "client_name": "sleipnir",
        "driver_info": DRIVER,
        **({"max_connections": LOOP_CONNECTIONS} if in_loop else {}),
        **options,
    }
    try:
        if (address := cluster(url)) is not None:
            return _join(url, address, options, in_loop=in_loop)
        sentinel_hosts = sentinels(url)
        if sentinel_hosts is not None:
            client = _follow(sentinel_hosts, options)
        else:
            client = redis.Redis.from_url(client_url(url), **options)
        if in_loop:
            client.connection_pool.connection_class = loop_sockets.in_loop(client.connection_pool.connection_class)
        if sentinel_hosts is None:
            client.connection_pool.make_connection()  # does not connect, but refuses unknown parameters of the URL
        return client
    except ValueError as error:
        raise not_a_url(url, error) from None
    except TypeError as error:
        unknown = re.search(r"unexpected keyword argument ('\w+')", str(error))
        raise not_a_url(url, f"unknown: {unknown[1] if unknown else 'a part of its query'}") from None


def close(client: Client) -> None:
    """Close all connections of a client, those of other threads too. redis-py leaves the pool open if it did not make
    it, as with Sentinels."""
    client.close()
    if not isinstance(client, redis.RedisCluster):
        client.connection_pool.disconnect()


def _join(url: str, address: ClusterAddress, options: dict[str, Any], *, in_loop: bool) -> Client:
    """A client of a cluster."""
    from sleipnir.store.cluster import open_cluster

    options.pop("single_connection_client", None)
    with store_errors(url):
        return open_cluster(address, options, in_loop=in_loop)


def _follow(sentinel_hosts: Sentinels, options: dict[str, Any]) -> Client:
    """A client of the current master. Each connection, also when it reconnects, asks the Sentinels for it, one after
    the other."""
    single = options.pop("single_connection_client", False)
    tls = sentinel_hosts.tls or {}
    sentinel_tls = {} if sentinel_hosts.tls is None else {"ssl": True, **tls}
    sentinel_options = {**ASKING_SENTINELS, **sentinel_hosts.login, **sentinel_tls}
    sentinel: Any = Sentinel(sentinel_hosts.hosts, sentinel_kwargs=sentinel_options)  # type: ignore[no-untyped-call]
    pool: Any = SentinelConnectionPool(  # type: ignore[no-untyped-call]
        sentinel_hosts.master,
        sentinel,
        connection_class=_ToMaster if sentinel_hosts.tls is None else _ToMasterByTLS,
        username=sentinel_hosts.username,
        password=sentinel_hosts.password,
        db=sentinel_hosts.db,
        **options,
        **tls,
    )
    return redis.Redis(connection_pool=pool, single_connection_client=single)


class _ToMaster(SentinelManagedConnection):
    """redis-py asks the Sentinels when a pool hands out a connection. A connection that is kept, as in a client with a
    single connection, would always reconnect to the same server, even if another one is the master."""

    def connect_to(self, address: Any) -> None:
        self.connect_check_health(check_health=self.connection_pool.check_connection, retry_socket_connect=False)

    def connect_check_health(self, *args: Any, **options: Any) -> None:
        if not self._sock:
            self.host, self.port = self.connection_pool.get_master_address()
            super().connect_check_health(*args, **options)


class _ToMasterByTLS(_ToMaster, SentinelManagedSSLConnection):
    pass


_PASSING = ("OOM", "READONLY", "MISCONF", "LOADING", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "TRYAGAIN")


_OF_CHANGING_CLUSTERS = (
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
    redis.exceptions.AskError,  # MOVED too
)


def is_passing(error: Exception) -> bool:
    """Whether a refusal is caused by the server's state (full, failing over, loading), not by the command.

    The word may be anywhere in the text: a script wraps the error of the command that it called. Nothing was written
    then, because a script's first write is refused. redis-py cuts the word off a command's own error, and from Redis 7
    on also off a script's.
    """
    if isinstance(error, _OF_CHANGING_CLUSTERS):
        return True
    code, text = getattr(error, "status_code", None), str(error)
    return code in _PASSING or any(word in text for word in _PASSING) or _FULL in text


_FULL = "used memory > 'maxmemory'"


def _with_code(error: Exception) -> str:
    """Redis' error text, with the word that redis-py may have cut off."""
    code, text = getattr(error, "status_code", None) or ("OOM" if _FULL in str(error) else ""), str(error)
    return text if any(word in text for word in _PASSING) or not code else f"{code} {text}"


_OF_THE_SERVER = ("NOPERM", "NOAUTH", "MOVED", "ASK ")


def is_lasting(error: Exception) -> bool:
    """Whether the same call will always fail again, because the call or its key is wrong. False for problems of the
    connection, of the server and of permissions."""
    if isinstance(error, StoreUnavailable | redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError):
        return False
    if isinstance(error, redis.exceptions.NoPermissionError | redis.exceptions.RedisClusterException):
        return False
    if not isinstance(error, redis.exceptions.ResponseError):
        return True
    return not is_passing(error) and not any(word in str(error) for word in _OF_THE_SERVER)


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Convert redis-py's connection errors to StoreUnavailable, with the address and advice."""
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
        raise StoreUnsuitable(f"the server at {safe_url(url)} is not a Redis: {error}") from error
    except redis.exceptions.ResponseError as error:
        if "DB index is out of range" in str(error):
            raise StoreUnsuitable(f"Redis at {safe_url(url)} has no database of that number") from error
        if not is_passing(error):
            raise
        raise StoreUnavailable(f"Redis at {safe_url(url)} refuses to write for now: {_with_code(error)}") from error
    except (
        redis.exceptions.ConnectionError,
        redis.exceptions.TimeoutError,
        redis.exceptions.ClusterError,
        redis.exceptions.RedisClusterException,
        OSError,
    ) as error:
        raise StoreUnavailable(
            f"Redis at {safe_url(url)} does not answer ({error}). Is it running? `sleipnir doctor` checks; "
            "without SLEIPNIR_REDIS_URL, `sleipnir run` starts a private one."
        ) from error


def deployment_info(client: Client) -> dict[str, Any]:
    """INFO of the server. Of a cluster: `nodes`, how many answer; the memory of the fullest node; the evicted keys of
    all; and of each status one that is not good, if there is one."""
    infos = server_infos(client)
    if not isinstance(client, redis.RedisCluster):
        return infos[0]

    def status(name: str) -> str:
        return next((str(info[name]) for info in infos if info.get(name, "ok") != "ok"), "ok")

    return max(infos, key=_fullness) | {
        "nodes": len(infos),
        "aof_enabled": min(int(info.get("aof_enabled", 0)) for info in infos),
        "aof_last_write_status": status("aof_last_write_status"),
        "rdb_last_bgsave_status": status("rdb_last_bgsave_status"),
        "evicted_keys": sum(int(info.get("evicted_keys", 0)) for info in infos),
    }


def _fullness(info: Mapping[str, Any]) -> float:
    most = int(info.get("maxmemory", 0))
    return int(info.get("used_memory", 0)) / most if most else 0.0


def check_server(client: Client, url: str, *, allow_eviction: bool = False) -> str:
    """The server's version; of a cluster's nodes the oldest. Raises StoreUnsuitable below 6.2, and for a server that
    evicts keys when it is full."""
    try:
        infos = server_infos(client, "server")
    except redis.exceptions.ResponseError as error:
        if "HELLO" not in str(error):
            raise
        infos = [connect(url, protocol=2).info("server")]  # older than 6.0: the old protocol still gives the version
    version = min((str(info["redis_version"]) for info in infos), key=server_version)
    if server_version(version) < MIN_VERSION:
        raise StoreUnsuitable(
            f"Redis at {safe_url(url)} is version {version}; Sleipnir needs 6.2 or newer "
            "(Redis 6.2-8 or Valkey). Upgrade it, or unset SLEIPNIR_REDIS_URL to use the embedded one."
        )
    if not allow_eviction:
        _refuse_eviction(client, url)
    return version


KEEPS_ALL = "noeviction"


def server_infos(client: Client, section: str = "default") -> list[dict[str, Any]]:
    """INFO of the server, or of each node of a cluster that answers. Raises the error of one if none does."""
    if not isinstance(client, redis.RedisCluster):
        return [client.info(section)]
    found = list(client.nodes_info(section).values())  # type: ignore[attr-defined]  # a ClusterClient
    infos = [info for info in found if not isinstance(info, Exception)]
    if not infos:
        raise found[0]
    return infos


def _refuse_eviction(client: Client, url: str) -> None:
    """Uses INFO, because managed servers forbid CONFIG. A server that reports no policy is accepted."""
    policies = {str(info.get("maxmemory_policy", KEEPS_ALL)) for info in server_infos(client, "memory")}
    for policy in policies - {KEEPS_ALL}:
        raise StoreUnsuitable(
            f"Redis at {safe_url(url)} has maxmemory-policy {policy!r}: when it is full it deletes parts of live runs. "
            f"Change it: `redis-cli CONFIG SET maxmemory-policy {KEEPS_ALL}`, and in the server's configuration. "
            "SLEIPNIR_ALLOW_EVICTION=1 accepts the policy."
        )


def time_ms(time: Sequence[Any]) -> int:
    """The reply of Redis' command TIME in milliseconds."""
    seconds, micros = time
    return int(seconds) * 1000 + int(micros) // 1000


def clock_ms(client: Client, key: str | None = None) -> int:
    """Redis' clock; in a cluster that of the node which has the key, or (None) of the first partition's."""
    if key is not None and isinstance(client, redis.RedisCluster):
        return client.times_ms([key])[key]  # type: ignore[no-any-return, attr-defined]  # a ClusterClient
    return time_ms(client.time())


def clocks_ms(client: Client, keys: Sequence[str]) -> dict[str, int]:
    """The clock for each key. Keys of a cluster's nodes that do not answer are left out."""
    if isinstance(client, redis.RedisCluster):
        return client.times_ms(keys)  # type: ignore[no-any-return, attr-defined]  # a ClusterClient
    return dict.fromkeys(keys, clock_ms(client)) if keys else {}


def server_version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def unblock_all(client: Client) -> None:
    """End the blocking reads of all clients, as after their timeout. For a private server."""
    for other in client.client_list():
        if "b" in other["flags"]:
            client.client_unblock(int(other["id"]))
