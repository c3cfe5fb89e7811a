"""Counters and histograms of one instance: plain dictionaries, so that counting costs a third of a microsecond.

Rules. A series has one writing thread; concurrent reading is safe, and may miss the current increment. Names and helps
follow Prometheus: `_total`, seconds, a unit in each help. Labels chosen by authors or providers are bounded: after
MOST_SERIES combinations, further ones are counted as OTHER, so that an endpoint does not grow with submissions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

MOST_SERIES: Final = 500
OTHER: Final = "other"
SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800,
)  # fmt: skip
"""Upper bounds of buckets: a commit takes milliseconds, a model minutes, a queue at most about an hour."""


class Counter:
    """Never decreases; a restart of the process is an ordinary counter reset."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self._help, self._labels = name, help, labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, *labels: str, by: float = 1) -> None:
        values = self._values
        if labels not in values and len(values) >= MOST_SERIES:
            labels = (OTHER,) * len(labels)
        values[labels] = values.get(labels, 0) + by

    def family(self) -> CounterMetricFamily:
        family = CounterMetricFamily(self.name, self._help, labels=self._labels)
        for labels, value in dict(self._values).items():
            family.add_metric(labels, value)
        return family


class Histogram:
    """Durations in seconds, in buckets of SECONDS."""

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self._help, self._labels = name, help, labels
        self._buckets: dict[tuple[str, ...], list[float]] = {}
        """By labels: the count of each bucket, the last one without a bound, then the sum of all durations."""

    def observe(self, ms: float, *labels: str) -> None:
        """Count a duration of `ms`; a negative one, from a clock that was set back, counts as 0."""
        buckets = self._buckets.get(labels)
        if buckets is None:
            buckets = self._new(labels)
        seconds = ms / 1000 if ms > 0 else 0.0
        buckets[bisect_left(SECONDS, seconds)] += 1
        buckets[-1] += seconds

    def _new(self, labels: tuple[str, ...]) -> list[float]:
        if len(self._buckets) >= MOST_SERIES:
            labels = (OTHER,) * len(labels)
        return self._buckets.setdefault(labels, [0.0] * (len(SECONDS) + 2))

    def family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self.name, self._help, labels=self._labels)
        for labels, buckets in dict(self._buckets).items():
            *counts, total = list(buckets)
            family.add_metric(labels, _cumulative(counts), total)
        return family


def _cumulative(counts: Sequence[float]) -> list[tuple[str, float]]:
    bounds = [*(str(float(bound)) for bound in SECONDS), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))
