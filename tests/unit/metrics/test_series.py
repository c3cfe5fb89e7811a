"""Counters and histograms, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from sleipnir_scheduler.counters import series
from sleipnir_scheduler.counters.series import MOST_SERIES, SECONDS, Counter, Histogram


def read(*kept: Counter | Histogram) -> dict[str, Metric]:
    """What a server makes of them."""

    class Kept(Collector):
        def collect(self) -> list[Metric]:
            return [each.family() for each in kept]

    registry = CollectorRegistry()
    registry.register(Kept())
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def test_a_counter_counts_by_its_labels() -> None:
    counter = Counter("sleipnir_things_total", "Things.", "kind")
    counter.add("a")
    counter.add("a", by=2.5)
    counter.add("b")
    [family] = read(counter).values()
    assert family.type == "counter"
    assert {sample.labels["kind"]: sample.value for sample in family.samples} == {"a": 3.5, "b": 1}


def test_a_counter_without_labels_begins_with_zero() -> None:
    [family] = read(Counter("sleipnir_things_total", "Things.")).values()
    assert [sample.value for sample in family.samples] == [0]


def test_labels_that_keep_coming_end_up_as_other() -> None:
    counter = Counter("sleipnir_things_total", "Things.", "kind")
    for number in range(MOST_SERIES + 50):
        counter.add(f"kind {number}")
    [family] = read(counter).values()
    assert len(family.samples) == MOST_SERIES + 1
    assert next(sample.value for sample in family.samples if sample.labels["kind"] == series.OTHER) == 50


def test_a_histogram_has_cumulative_buckets_their_sum_and_their_number() -> None:
    histogram = Histogram("sleipnir_things_seconds", "Things.", "kind")
    for ms in (0, 1, 2, 40, 10**9, -5):
        histogram.observe(ms, "a")
    [family] = read(histogram).values()
    assert family.type == "histogram"
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    assert list(buckets.values()) == sorted(buckets.values())
    assert (buckets["0.001"], buckets["0.0025"], buckets["0.05"], buckets["1800.0"], buckets["+Inf"]) == (3, 4, 5, 5, 6)
    assert len(buckets) == len(SECONDS) + 1
    values = {sample.name: sample.value for sample in family.samples if "le" not in sample.labels}
    assert values == {"sleipnir_things_seconds_sum": 1_000_000.043, "sleipnir_things_seconds_count": 6}


def test_a_histogram_holds_other_labels_together_too() -> None:
    histogram = Histogram("sleipnir_things_seconds", "Things.", "kind")
    for number in range(MOST_SERIES + 3):
        histogram.observe(1, str(number))
    [family] = read(histogram).values()
    kinds = {sample.labels["kind"] for sample in family.samples}
    assert len(kinds) == MOST_SERIES + 1
    assert series.OTHER in kinds
