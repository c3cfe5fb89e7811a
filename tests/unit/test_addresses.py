"""Addresses of a Redis: what redis-py, Celery and people who read logs are told."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.errors import ConfigError
from sleipnir.store.address import CeleryBroker, Sentinels, celery_broker, is_redis, masked, safe_url, sentinels
from sleipnir.store.connect import connect

TWO = "redis+sentinel://us%3Aer:p%40ss@a:1,b/prod/2?sentinel_password=s3cret"


def test_a_sentinel_url_has_the_sentinels_and_the_login() -> None:
    assert sentinels(TWO) == Sentinels(
        hosts=(("a", 1), ("b", 26379)), master="prod", username="us:er", password="p@ss", db=2,
        login={"password": "s3cret"},
    )  # fmt: skip
    assert sentinels("redis+sentinel://a") == Sentinels((("a", 26379),), "mymaster", None, None, 0)
    assert sentinels("redis+sentinel://[::1]:7") == Sentinels((("::1", 7),), "mymaster", None, None, 0)
    assert sentinels("redis://a") is None


def test_celery_gets_the_same_options_for_sentinels() -> None:
    assert celery_broker(TWO) == CeleryBroker(
        "sentinel://us%3Aer:p%40ss@a:1/2;sentinel://us%3Aer:p%40ss@b:26379/2",
        {"master_name": "prod", "sentinel_kwargs": {"password": "s3cret"}},
    )
    with_tls = celery_broker("rediss+sentinel://a,b?ssl_ca_certs=/ca.pem")
    tls = {"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca.pem"}
    assert with_tls.url == "sentinel://a:26379/0;sentinel://b:26379/0"
    assert with_tls.ssl == tls
    assert with_tls.options["sentinel_kwargs"] == {"ssl": True, **tls}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://:p@a:1/2", CeleryBroker("redis://:p@a:1/2")),
        ("unix:///tmp/r.sock?db=3", CeleryBroker("redis+socket:///tmp/r.sock?virtual_host=3")),
        ("amqp://u:p@rabbit//", CeleryBroker("amqp://u:p@rabbit//")),
        ("rediss://a/1", CeleryBroker("rediss://a/1", ssl={"ssl_cert_reqs": "required"})),
        (
            "rediss://a/1?ssl_ca_certs=/ca.pem&ssl_check_hostname=false",
            CeleryBroker(
                "rediss://a/1",
                ssl={"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False},
            ),
        ),
    ],
)
def test_celery_gets_the_same_options_for_one_server(url: str, told: CeleryBroker) -> None:
    assert celery_broker(url) == told


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://a:x/m", "not a Redis URL"),
        ("redis+sentinel:///m", "one of its hosts has no name"),
        ("redis+sentinel://a/m/one", "invalid literal"),
        ("redis+sentinel://:p@a/m?sentinel_pasword=q", "unknown: sentinel_pasword"),
        ("redis://[::1", "its host and port cannot be read"),
        ("redis://a:b/0", "its host and port cannot be read"),
        ("redis://:p@a?foo=bar", "unknown: 'foo'"),
        ("redis://:p@a?ssl_ca_certs=/c", "unknown: 'ssl_ca_certs'"),
        ("redis://:p@a?socket_timeout=x", "socket_timeout"),
        ("http://a", r"expected redis://HOST:PORT/DB, rediss://..., unix:///PATH, redis\+sentinel://"),
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        connect(url)
    assert ":p@" not in str(refused.value)


def test_celery_s_own_spelling_of_sentinels_is_refused_with_ours() -> None:
    with pytest.raises(ConfigError, match=r"does not name the master\); expected .*redis\+sentinel://"):
        celery_broker("sentinel://a:26379/0")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://a:1/2?db=3", "redis://a:1/2?db=3"),
        ("redis://u:p@a:1/2", "redis://u:***@a:1/2"),
        (TWO, "redis+sentinel://us%3Aer:***@a:1,b/prod/2?sentinel_password=***"),
        ("redis+sentinel://a?sentinel_password=p&ssl_ca_certs=/c", "redis+sentinel://a?sentinel_password=***&ssl_ca_certs=/c"),
    ],
)  # fmt: skip
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert safe_url(url) == shown


AWKWARD = [
    "/x",
    "x/y/z",
    "x#y",
    "#",
    "x?y",
    "?y=z",
    "x%zz",
    "50%",
    "x@y",
    "a:b@c/d#e?f",
    "1/2@3",
    "a://b",
    "x'y",
    'x"y',
    "sp ace",
]
PLACES = ["a", "a:6379/1", "[::1]:7/2", "a/0?db=3"]


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "amqp"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("secret", AWKWARD)
def test_a_password_of_any_characters_is_not_shown(secret: str, place: str, scheme: str) -> None:
    """S8 of the second review: with / # or ? in a password, all of it was in errors and in doctor --settings."""
    assert safe_url(f"{scheme}://user:{secret}@{place}") == f"{scheme}://user:***@{place}"
    assert safe_url(f"{scheme}://:{secret}@{place}") == f"{scheme}://:***@{place}"
    assert safe_url(f"{scheme}://{secret}@{place}").endswith(f"***@{place}")


@pytest.mark.parametrize("read", [connect, celery_broker])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("secret", ["s3/cret", "s3#cret", "s3?cret", "12/3s3cret", "/s3cret", "?s3cret"])
def test_a_password_that_ends_the_host_too_early_is_refused_with_a_way_out(secret: str, place: str, read: Any) -> None:
    """S8 of the second review. What urllib says of such a URL has a part of the password."""
    with pytest.raises(ConfigError, match=r"percent-encoded: / is %2F") as refused:
        read(f"redis://user:{secret}@{place}")
    assert "cret" not in str(refused.value)
    assert "s3" not in str(refused.value)


def test_a_password_is_read_as_it_was_encoded() -> None:
    client: Any = connect("redis://:s3%2Fcret%23%3F%25@a/0?ssl_cert_reqs=none".replace("redis", "rediss"))
    assert client.connection_pool.connection_kwargs["password"] == "s3/cret#?%"
    path: Any = connect("unix:///tmp/a@b/redis.sock?db=1")
    assert path.connection_pool.connection_kwargs["path"] == "/tmp/a@b/redis.sock"
    assert safe_url("unix:///tmp/a@b/redis.sock") == "unix:///tmp/a@b/redis.sock"
    assert connect("redis://a/0?client_name=x@y") is not None


def test_a_text_of_others_shows_no_password() -> None:
    """S8 of the second review: an error of a library may quote the address."""
    text = "cannot reach redis://u:p/q@a:1/2 nor 'amqp://me:s@t@b//' (see https://example.org/a?b)"
    assert masked(text) == "cannot reach redis://u:***@a:1/2 nor 'amqp://me:***@b//' (see https://example.org/a?b)"


@pytest.mark.parametrize("url", ["foo://a", "ampq://a", "://a", ""])
def test_a_broker_without_a_transport_is_refused(url: str) -> None:
    """S13 of the second review: a KeyError of kombu."""
    with pytest.raises(ConfigError, match="there is no transport"):
        celery_broker(url)


@pytest.mark.parametrize("url", ["redis://a", "rediss://a", "unix:///a", "redis+sentinel://a", "rediss+sentinel://a"])
def test_each_of_them_is_a_redis(url: str) -> None:
    assert is_redis(url)
    assert not is_redis("amqp://a")


def test_a_client_of_sentinels_shows_its_certificate_to_redis_and_sentinels() -> None:
    client: Any = connect("rediss+sentinel://u:p@a,b/prod/1?ssl_ca_certs=/ca.pem&sentinel_username=w")
    of_redis = client.connection_pool.connection_kwargs
    assert (of_redis["username"], of_redis["password"], of_redis["db"]) == ("u", "p", 1)
    assert of_redis["ssl_ca_certs"] == "/ca.pem"
    asked = client.connection_pool.sentinel_manager.sentinels
    assert [each.connection_pool.connection_kwargs["host"] for each in asked] == ["a", "b"]
    assert {each.connection_pool.connection_kwargs["ssl_ca_certs"] for each in asked} == {"/ca.pem"}
    assert {each.connection_pool.connection_kwargs["username"] for each in asked} == {"w"}
