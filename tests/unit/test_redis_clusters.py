"""What is known of a Redis Cluster without one: its addresses, the slots of keys and its errors."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from sleipnir.errors import ConfigError, StoreUnavailable
from sleipnir.settings import Settings
from sleipnir.store.address import ClusterAddress, cluster
from sleipnir.store.cluster import FLEET_KEY, slot_of, slots_of
from sleipnir.store.connect import is_lasting, is_passing, store_errors
from sleipnir.store.keys import Keys


def test_an_address_names_some_nodes() -> None:
    found = cluster("redis-cluster://sleipnir:p%40ss@a:7000,b,[::1]:7002")
    assert found == ClusterAddress((("a", 7000), ("b", 6379), ("::1", 7002)), "sleipnir", "p@ss")
    assert cluster("redis://a:6379/0") is None
    secure = cluster("rediss-cluster://a?ssl_ca_certs=/ca.pem")
    assert secure is not None
    assert secure.tls == {"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca.pem"}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis-cluster://:p@a/1", "a cluster has only database 0"),
        ("redis-cluster://:p@a?db=1", "unknown: db"),
        ("redis-cluster://:p@a,,b", "one of its hosts has no name"),
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        cluster(url)
    assert ":p@" not in str(refused.value)


def test_a_cluster_is_no_broker() -> None:
    with pytest.raises(ConfigError, match="SLEIPNIR_BROKER_URL is not set"):
        _ = Settings(redis_url="redis-cluster://a").broker
    assert Settings(redis_url="redis-cluster://a", broker_url="redis://b").broker == "redis://b"


def test_commands_without_a_key_are_for_the_node_of_those_with_one() -> None:
    assert slot_of("slp:{p07}:inbox") == slot_of("slp:{p07}:run:x") == slot_of(b"{p07}")
    assert slot_of("slp:meta") != slot_of("slp:workers"), "keys without a tag have slots of their own"
    [first, clock] = slots_of([("HGETALL", "slp:{p07}:owner"), ("TIME",)])
    assert first == clock == slot_of("{p07}")
    assert slots_of([("TIME",)]) == [slot_of(FLEET_KEY)]
    assert slots_of([("EVALSHA", "sha", 1, "slp:{p03}:inbox")]) == [slot_of("{p03}")]


@pytest.mark.parametrize("nodes", [3, 6])
@pytest.mark.parametrize("partitions", [256, 1_024, 4_096])
def test_the_partitions_of_a_deployment_are_spread_over_the_nodes(nodes: int, partitions: int) -> None:
    keys = Keys(known_partitions=partitions, of_cluster=True)
    slots = [slot_of(keys.of_partition(number).inbox) for number in range(partitions)]
    of_nodes = [sum(slot * nodes // 16_384 == node for slot in slots) for node in range(nodes)]
    assert max(of_nodes) <= 1.15 * partitions / nodes, of_nodes
    assert min(of_nodes) >= 0.85 * partitions / nodes, of_nodes


CHANGES: tuple[Any, ...] = (
    redis.exceptions.ClusterDownError("The cluster is down"),
    redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"),
    redis.exceptions.MovedError("1 127.0.0.1:7000"),
    redis.exceptions.AskError("1 127.0.0.1:7000"),
)


@pytest.mark.parametrize("error", CHANGES, ids=lambda error: type(error).__name__)
def test_what_a_changing_cluster_refuses_is_not_refused_for_good(error: Exception) -> None:
    """An effect that Redis always refuses becomes a dead letter."""
    assert is_passing(error)
    assert not is_lasting(error)
    with pytest.raises(StoreUnavailable), store_errors("redis-cluster://a"):
        raise error


def test_a_slot_that_no_node_serves_is_a_store_that_does_not_answer() -> None:
    error = redis.exceptions.SlotNotCoveredError("Slot 5 is not covered")
    assert not is_lasting(error)
    with pytest.raises(StoreUnavailable, match="Slot 5"), store_errors("redis-cluster://a"):
        raise error
