"""The endpoint over real HTTP, with a registry that holds little."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from sleipnir.errors import ConfigError
from sleipnir_scheduler.metrics.endpoint import MetricsEndpoint
from sleipnir_scheduler.services import loop
from sleipnir_scheduler.services.loop import ServiceRounds

facts: dict[str, Any] = {"status": "ok"}


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    registry = CollectorRegistry()
    Gauge("sleipnir_things", "Things.", registry=registry).set(3)
    with closing(MetricsEndpoint("127.0.0.1", 0, registry, lambda: (facts["status"] == "ok", dict(facts)))) as opened:
        yield opened


def ask(endpoint: MetricsEndpoint, path: str, method: str = "GET", **headers: str) -> tuple[int, str, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read()


def test_metrics_come_as_prometheus_asks_for_them(endpoint: MetricsEndpoint) -> None:
    status, kind, body = ask(endpoint, "/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert b"# HELP sleipnir_things Things." in body
    assert b"sleipnir_things 3.0" in body
    status, kind, body = ask(endpoint, "/metrics?x=1", Accept="application/openmetrics-text; version=1.0.0")
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_a_head_has_no_body_and_other_paths_and_methods_are_refused(endpoint: MetricsEndpoint) -> None:
    assert ask(endpoint, "/metrics", "HEAD")[::2] == (200, b"")
    assert ask(endpoint, "/")[0] == 404
    assert ask(endpoint, "/metrics", "POST")[0] == 501


def test_health_is_a_status_and_facts(endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, body = ask(endpoint, "/health")
    assert (status, json.loads(body)) == (200, {"status": "ok"})
    monkeypatch.setitem(facts, "status", "stuck")
    assert ask(endpoint, "/health")[0] == 503


def test_a_client_that_sends_nothing_does_not_block_others(endpoint: MetricsEndpoint) -> None:
    with closing(socket.create_connection(("127.0.0.1", endpoint.port))):
        assert ask(endpoint, "/health")[0] == 200


def test_an_address_that_cannot_be_had_is_a_message(endpoint: MetricsEndpoint) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen for metrics on 127.0.0.1 port {endpoint.port}"):
        MetricsEndpoint("127.0.0.1", endpoint.port, CollectorRegistry(), lambda: (True, {}))


def test_a_service_is_stuck_when_its_round_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, now = ServiceRounds(), [1000.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    rounds.began("advance", 0)
    rounds.began("janitor", 60)
    now[0] += loop.STUCK_S + 30
    assert rounds.stuck() == ["advance"]
    now[0] += 60
    assert rounds.stuck() == ["advance", "janitor"]
    rounds.began("advance", 0)
    assert rounds.stuck() == ["janitor"]


def test_redis_answers_when_it_answers_every_service() -> None:
    rounds = ServiceRounds()
    rounds.answered("advance", True)
    rounds.answered("timers", False)
    assert not rounds.redis
    rounds.answered("timers", True)
    assert rounds.redis
