"""Addresses of a Redis: as our settings spell them, as redis-py does, and as Celery and Flower do.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]
    rediss://...                                    with TLS
    unix:///PATH[?db=N]
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]]...[/MASTER[/DB]]
    rediss+sentinel://...                           with TLS, to the Sentinels too

With TLS, `?ssl_ca_certs=FILE` names our own authority, `ssl_certfile` and `ssl_keyfile` the certificate that we show.
USER and PASSWORD are those of the Redis; the Sentinels have `?sentinel_username=...&sentinel_password=...`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from sleipnir.errors import ConfigError

FORMS = "redis://HOST:PORT/DB, rediss://..., unix:///PATH or redis+sentinel://HOST:PORT,HOST:PORT/MASTER"
SENTINEL_PORT, MASTER = 26379, "mymaster"
_PLAIN, _TLS = {"redis", "unix", "redis+socket", "redis+sentinel"}, {"rediss", "rediss+sentinel"}
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
class CeleryBroker:
    """What Celery, Flower and kombu's Connection are told of a broker. `ssl` is None without TLS."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    ssl: Mapping[str, Any] | None = None


def is_redis(url: str) -> bool:
    return urlsplit(url).scheme in _PLAIN | _TLS


def safe_url(url: str) -> str:
    """The URL without its passwords, for messages and logs."""
    parts = urlsplit(url)
    if parts.password is not None:
        host = parts.netloc.rsplit("@", 1)[1]
        parts = parts._replace(netloc=f"{parts.username or ''}:***@{host}")
    if "password=" in parts.query:
        query = [(name, "***" if "password" in name else value) for name, value in parse_qsl(parts.query)]
        parts = parts._replace(query=urlencode(query, safe="*/"))
    return url if parts == urlsplit(url) else urlunsplit(parts)


def not_a_url(url: str, reason: object) -> ConfigError:
    return ConfigError(f"{safe_url(url)!r} is not a Redis URL ({reason}); expected {FORMS}")


def client_url(url: str) -> str:
    """The form redis-py understands: `redis+socket:///path?virtual_host=N` (Celery's) becomes `unix:///path?db=N`."""
    parts = urlsplit(url)
    if parts.scheme != "redis+socket":
        return url
    db = parse_qs(parts.query).get("virtual_host", ["0"])[0]
    return f"unix://{parts.path}?db={db}"


def sentinels(url: str) -> Sentinels | None:
    """What a `redis+sentinel://` URL says; None for any other. Raises ConfigError."""
    if not urlsplit(url).scheme.endswith("+sentinel"):
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
        hosts=tuple(_host(text) for text in hosts.split(",")),
        master=unquote(master) or MASTER,
        username=unquote(user) or None,
        password=unquote(password) or None,
        db=int(db or 0),
        login={_OF_SENTINELS[name]: value for name, value in query.items() if name in _OF_SENTINELS},
        tls=_tls(query) if parts.scheme in _TLS else None,
    )


def celery_broker(url: str) -> CeleryBroker:
    """The form Celery understands. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme == "sentinel":
        raise not_a_url(url, "Celery's spelling, which does not name the master")
    if parts.scheme == "unix":
        db = parse_qs(parts.query).get("db", ["0"])[0]
        return CeleryBroker(f"redis+socket://{parts.path}?virtual_host={db}")
    if parts.scheme == "rediss":
        return CeleryBroker(urlunsplit(parts._replace(query="")), ssl=_tls(dict(parse_qsl(parts.query))))
    known = sentinels(url)
    if known is None:
        return CeleryBroker(url)
    secret = f":{quote(known.password, safe='')}" if known.password else ""
    login = f"{quote(known.username or '', safe='')}{secret}@" if known.username or secret else ""
    urls = [f"sentinel://{login}{host}:{port}/{known.db}" for host, port in known.hosts]
    options = {"master_name": known.master, "sentinel_kwargs": {**known.login, **_with_tls(known.tls)}}
    return CeleryBroker(";".join(urls), options, known.tls)


def _with_tls(tls: Mapping[str, Any] | None) -> dict[str, Any]:
    return {} if tls is None else {"ssl": True, **tls}


def _host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError("a Sentinel has no host name")
    return parts.hostname, parts.port or SENTINEL_PORT


def _tls(query: Mapping[str, str]) -> dict[str, Any]:
    """As redis-py's connections name it. Certificates are looked at unless the URL says otherwise."""
    given: dict[str, Any] = {name: value for name, value in query.items() if name in _OF_TLS}
    if "ssl_check_hostname" in given:
        given["ssl_check_hostname"] = given["ssl_check_hostname"].lower() not in ("0", "false", "no")
    return {"ssl_cert_reqs": "required"} | given
