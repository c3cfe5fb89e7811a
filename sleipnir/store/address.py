"""Addresses of a Redis in three forms: of Sleipnir's settings, of redis-py, and of Celery and Flower.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]
    rediss://...                                    with TLS
    unix:///PATH[?db=N]
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]]...[/MASTER[/DB]]
    rediss+sentinel://...                           with TLS, also to the Sentinels
    redis-cluster://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]]...    some nodes of a Redis Cluster: they name the others
    rediss-cluster://...                            with TLS

With TLS, `?ssl_ca_certs=FILE` names a private authority, `ssl_certfile` and `ssl_keyfile` the client's certificate.
USER and PASSWORD are those of the Redis; the Sentinels have `?sentinel_username=...&sentinel_password=...`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, unquote, urlsplit, urlunsplit

from sleipnir.errors import ConfigError
from sleipnir.settings import OF_CLUSTERS

FORMS = (
    "redis://HOST:PORT/DB, rediss://..., unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/MASTER "
    "or redis-cluster://HOST:PORT,HOST:PORT"
)
REDIS_PORT, SENTINEL_PORT, MASTER = 6379, 26379, "mymaster"
_PLAIN = {"redis", "unix", "redis+socket", "redis+sentinel", "redis-cluster"}
_TLS = {"rediss", "rediss+sentinel", "rediss-cluster"}
_OF_SEVERAL = ("+sentinel", "-cluster")
"""The ends of the schemes of addresses with several hosts, each with a port."""
_WITHOUT_HOST = {"unix", "redis+socket"}
_PLAIN_USER = re.compile(r"[\w.%-]*")
_PASSWORD_OF_QUERY = re.compile(r"(\w*password=)[^&\s]*")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\"]+", re.IGNORECASE)
_OF_BROKERS = {"amqp", "amqps", "pyamqp", "sqs"}
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}
_OF_TLS = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname"}


@dataclass(frozen=True)
class Sentinels:
    """Who knows where the Redis is. `login` is for them; user, password and database are the Redis' own."""

    hosts: tuple[tuple[str, int], ...]
    master: str
    username: str | None
    password: str | None
    db: int
    login: Mapping[str, str] = field(default_factory=dict)
    tls: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ClusterAddress:
    """Some nodes of a Redis Cluster. `tls` is None without TLS."""

    hosts: tuple[tuple[str, int], ...]
    username: str | None
    password: str | None
    tls: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class CeleryBroker:
    """A broker in the form of Celery, Flower and kombu's Connection. `ssl` is None without TLS."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ssl: Mapping[str, Any] | None = None


def is_redis(url: str) -> bool:
    return url.partition(":")[0].lower() in _PLAIN | _TLS


def is_cluster(url: str) -> bool:
    return url.partition(":")[0].lower() in OF_CLUSTERS


def is_local(url: str) -> bool:
    """Whether only processes on the Redis' own machine can reach this address."""
    return urlsplit(url).scheme in ("unix", "redis+socket")


def safe_url(url: str) -> str:
    """The URL without its passwords, for messages and logs.

    The URL may be malformed: a password with `/`, `#` or `?` ends the host's part too early. So everything between
    `://` and the last `@` is treated as the login.
    """
    scheme, separator, rest = url.partition("://")
    login, at, place = rest.rpartition("@")
    if at and not _is_path(url):
        user, colon, _ = login.partition(":")
        rest = f"{user if colon and _PLAIN_USER.fullmatch(user) else ''}{colon}***@{place}"
    return scheme + separator + _PASSWORD_OF_QUERY.sub(r"\1***", rest)


def masked(text: str) -> str:
    """An external text, such as a library's error, without the passwords of the addresses in it."""
    return _ADDRESS.sub(lambda match: safe_url(match[0]), text)


def not_a_url(url: str, reason: object) -> ConfigError:
    if not is_redis(url) and url.partition("://")[0] in _OF_BROKERS:
        return ConfigError(f"{safe_url(url)!r} is not the address of a broker ({reason})")
    return ConfigError(f"{safe_url(url)!r} is not a Redis URL ({reason}); expected {FORMS}")


def parts_of(url: str) -> SplitResult:
    """The parts of the URL. Raises ConfigError for a malformed URL; unlike urllib's errors, the message contains no
    part of a password."""
    parts = _split(url)
    if not _is_path(url) and "@" in url and (parts is None or _ends_in_login(parts)):
        encoded = "its password has a character that must be percent-encoded: / is %2F, ? is %3F, # is %23, @ is %40"
        raise not_a_url(url, encoded)
    if parts is None:
        raise not_a_url(url, "its host and port cannot be read")
    return parts


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        if not parts.scheme.endswith(_OF_SEVERAL):
            _ = parts.port
            (parts.hostname or "").encode("idna")  # as a socket does; fails for a name that is too long
    except ValueError:
        return None
    return parts


def _ends_in_login(parts: SplitResult) -> bool:
    """Whether the parsed host is a part of the login, because the password has `/`, `?` or `#`."""
    return "@" not in parts.netloc and ("@" in parts.path + parts.fragment or parts.netloc.endswith(":"))


def _is_path(url: str) -> bool:
    scheme, _, rest = url.partition("://")
    return scheme in _WITHOUT_HOST and rest.startswith("/")


def client_url(url: str) -> str:
    """The form of redis-py: Celery's `redis+socket:///path?virtual_host=N` becomes `unix:///path?db=N`."""
    parts = parts_of(url)
    if parts.scheme != "redis+socket":
        return url
    db = parse_qs(parts.query).get("virtual_host", ["0"])[0]
    return f"unix://{parts.path}?db={db}"


def sentinels(url: str) -> Sentinels | None:
    """The parts of a `redis+sentinel://` URL; None for any other. Raises ConfigError."""
    if not parts_of(url).scheme.endswith("+sentinel"):
        return None
    try:
        return _sentinels(url)
    except ValueError as error:
        raise not_a_url(url, error) from None


def _sentinels(url: str) -> Sentinels:
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    master, _, db = parts.path.strip("/").partition("/")
    query = dict(parse_qsl(parts.query))
    if unknown := query.keys() - _OF_SENTINELS.keys() - _OF_TLS:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    return Sentinels(
        hosts=tuple(_host(text, SENTINEL_PORT) for text in hosts.split(",")),
        master=unquote(master) or MASTER,
        username=unquote(user) or None,
        password=unquote(password) or None,
        db=int(db or 0),
        login={_OF_SENTINELS[name]: value for name, value in query.items() if name in _OF_SENTINELS},
        tls=_tls(query) if parts.scheme in _TLS else None,
    )


def cluster(url: str) -> ClusterAddress | None:
    """The parts of a `redis-cluster://` URL; None for any other. Raises ConfigError."""
    if not is_cluster(url):
        return None
    parts = parts_of(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    query = dict(parse_qsl(parts.query))
    try:
        if unknown := query.keys() - _OF_TLS:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        if parts.path.strip("/") not in ("", "0"):
            raise ValueError("a cluster has only database 0")
        return ClusterAddress(
            tuple(_host(text, REDIS_PORT) for text in hosts.split(",")),
            unquote(user) or None,
            unquote(password) or None,
            _tls(query) if parts.scheme in _TLS else None,
        )
    except ValueError as error:
        raise not_a_url(url, error) from None


def celery_broker(url: str) -> CeleryBroker:
    """The form of Celery. Raises ConfigError."""
    parts = parts_of(url)
    if parts.scheme == "sentinel":
        raise not_a_url(url, "it is Celery's form, which does not name the master")
    if parts.scheme == "unix":
        db = parse_qs(parts.query).get("db", ["0"])[0]
        return CeleryBroker(f"redis+socket://{parts.path}?virtual_host={db}")
    if parts.scheme == "rediss":
        return CeleryBroker(urlunsplit(parts._replace(query="")), ssl=_tls(dict(parse_qsl(parts.query))))
    hosts = sentinels(url)
    if hosts is None:
        _need_transport(url, parts.scheme)
        return CeleryBroker(url)
    secret = f":{quote(hosts.password, safe='')}" if hosts.password else ""
    login = f"{quote(hosts.username or '', safe='')}{secret}@" if hosts.username or secret else ""
    urls = [f"sentinel://{login}{host}:{port}/{hosts.db}" for host, port in hosts.hosts]
    tls = {} if hosts.tls is None else {"ssl": True, **hosts.tls}
    options = {"master_name": hosts.master, "sentinel_kwargs": {**hosts.login, **tls}}
    return CeleryBroker(";".join(urls), options, hosts.tls)


def _need_transport(url: str, scheme: str) -> None:
    """Raises ConfigError if kombu has no transport of this name."""
    from kombu.transport import TRANSPORT_ALIASES

    name = scheme.partition("+")[0]
    if scheme not in TRANSPORT_ALIASES and name not in TRANSPORT_ALIASES and "." not in name:
        close = difflib.get_close_matches(name, TRANSPORT_ALIASES, n=1)
        hint = f"did you mean {close[0]}://?" if close else f"expected amqp://..., or as a Redis {FORMS}"
        raise ConfigError(f"{safe_url(url)!r} is not the address of a broker: there is no transport {name!r}; {hint}")


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("one of its hosts has no name")
    parts.hostname.encode("idna")
    return parts.hostname, parts.port or port


def _tls(query: Mapping[str, str]) -> dict[str, Any]:
    """The TLS options of redis-py's connections. Certificates are verified unless the URL disables it."""
    options: dict[str, Any] = {name: value for name, value in query.items() if name in _OF_TLS}
    if "ssl_check_hostname" in options:
        options["ssl_check_hostname"] = options["ssl_check_hostname"].lower() not in ("0", "false", "no")
    return {"ssl_cert_reqs": "required"} | options
