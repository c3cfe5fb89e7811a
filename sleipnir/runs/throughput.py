"""What a deployment has committed in each minute and each hour: visits, the times of hops, runs that ended, cost.

Each scheduler counts what it commits, and stores its totals of a minute and of an hour as one record each, which it
replaces as they grow: writing twice changes nothing, and a reader adds the records of all schedulers. A scheduler that
is killed loses what it has counted since its last write, some seconds.

A hop is what a visit costs besides its work: from the moment when a worker could take it to its claim, and from the
delivery of its result to the commit. Times are counted in buckets, four to a doubling, so that a percentile is at most
a fifth too large or too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sleipnir.decoding import decoded_object
from sleipnir.errors import RecordUnreadable
from sleipnir.graph.plain import compact_json

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
MINUTES: Final = 60
"""Whole minutes that are shown."""
HOURS: Final = 24
RECENT_MINUTES: Final = 5
"""The percentiles of hops are those of so many whole minutes, and of the current one."""
MOST_BUCKET: Final = 100
"""Of 2^25 ms, nine hours, and more."""
_PER_DOUBLING: Final = 4


@dataclass(frozen=True)
class NamespaceTotal:
    """What ended in a namespace: runs without child runs, how many of them failed, and the known cost of visits."""

    ended: int = 0
    failed: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: NamespaceTotal) -> NamespaceTotal:
        return NamespaceTotal(self.ended + other.ended, self.failed + other.failed, self.cost_usd + other.cost_usd)


@dataclass(frozen=True)
class ThroughputTotal:
    """What was committed in a span of time. `hops` counts first attempts of visits by bucket."""

    visits: int = 0
    hops: Mapping[int, int] = field(default_factory=dict)
    namespaces: Mapping[str, NamespaceTotal] = field(default_factory=dict)

    def of(self, namespace: str | None) -> NamespaceTotal:
        """Of one namespace; None: of all."""
        if namespace is not None:
            return self.namespaces.get(namespace, NamespaceTotal())
        return sum(self.namespaces.values(), NamespaceTotal())

    def percentile_ms(self, share: float) -> float | None:
        """The time that this share of the hops did not exceed. None: there was none."""
        wanted, seen = share * sum(self.hops.values()), 0
        for bucket, count in sorted(self.hops.items()):
            if seen + count >= wanted:
                least, most = _bounds(bucket)
                return least + (most - least) * (wanted - seen) / count
            seen += count
        return None


@dataclass(frozen=True)
class ThroughputPoint:
    """One whole minute, from `at_ms` on. The times of hops are None if no visit was claimed."""

    at_ms: int
    visits: int
    hop_p50_ms: float | None
    hop_p99_ms: float | None
    cost_usd: float


@dataclass(frozen=True)
class Throughput:
    """What the schedulers have committed, by Redis' clock, as of some seconds ago.

    `minutes` are the last 60 whole minutes, the oldest first. `visits_per_s` is of the last whole minute and the
    current one, `visits_hour` of the last 60 and the current one, and the percentiles of hops are of the last five
    minutes; None: no visit was claimed. These, and `visits` and hops of the minutes, are of all namespaces.
    `ended_day`, `failed_day` and the costs are of the asked namespace: runs that ended since `day_since_ms`, about 24
    hours ago, without child runs, and how many of them failed, and the known cost of visits since midnight UTC.
    `daily_budget_usd` is SLEIPNIR_DAILY_BUDGET_USD; None: it is not set. `is_complete` False: a record was written by
    another release, and does not count."""

    now_ms: int
    minutes: tuple[ThroughputPoint, ...]
    visits_per_s: float
    visits_hour: int
    hop_p50_ms: float | None
    hop_p99_ms: float | None
    day_since_ms: int
    ended_day: int
    failed_day: int
    cost_today_usd: float
    daily_budget_usd: float | None = None
    is_complete: bool = True


def bucket_of(ms: float) -> int:
    """The bucket of a time; of a negative one, from a clock that was set back, that of 0."""
    return 0 if ms < 1 else min(MOST_BUCKET, 1 + int(math.log2(ms) * _PER_DOUBLING))


def _bounds(bucket: int) -> tuple[float, float]:
    if bucket == 0:
        return 0.0, 1.0
    return float(2 ** ((bucket - 1) / _PER_DOUBLING)), float(2 ** (bucket / _PER_DOUBLING))


def sum_of(totals: Iterable[ThroughputTotal]) -> ThroughputTotal:
    """The total of several."""
    visits, hops, namespaces = 0, dict[int, int](), dict[str, NamespaceTotal]()
    for total in totals:
        visits += total.visits
        for bucket, count in total.hops.items():
            hops[bucket] = hops.get(bucket, 0) + count
        for name, of_name in total.namespaces.items():
            namespaces[name] = namespaces.get(name, NamespaceTotal()) + of_name
    return ThroughputTotal(visits, hops, namespaces)


def total_text(total: ThroughputTotal) -> str:
    """The stored record of one scheduler."""
    of = {name: [each.ended, each.failed, round(each.cost_usd, 9)] for name, each in total.namespaces.items()}
    return compact_json({"v": 1, "visits": total.visits, "hops": {str(k): n for k, n in total.hops.items()}, "of": of})


def total_of(text: str) -> ThroughputTotal:
    """Raises RecordUnreadable."""
    what = "throughput of a scheduler"
    record = decoded_object(text, what)
    try:
        hops = {int(bucket): int(count) for bucket, count in record.get("hops", {}).items()}
        of: Mapping[str, Any] = record.get("of", {})
        totals = {name: NamespaceTotal(int(each[0]), int(each[1]), float(each[2])) for name, each in of.items()}
        return ThroughputTotal(int(record.get("visits", 0)), hops, totals)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise RecordUnreadable(what, "", f"damaged: {error}") from None


def throughput_of(
    now_ms: int,
    minutes: Mapping[int, ThroughputTotal],
    hours: Mapping[int, ThroughputTotal],
    *,
    namespace: str | None,
    daily_budget_usd: float | None = None,
    is_complete: bool = True,
) -> Throughput:
    """From the totals by number of minute and of hour since the epoch; one that is missing is empty."""
    minute, hour = now_ms // MINUTE_MS, now_ms // HOUR_MS
    none = ThroughputTotal()
    shown = [(number, minutes.get(number, none)) for number in range(minute - MINUTES, minute)]
    current = minutes.get(minute, none)
    recent = sum_of([*(total for _, total in shown[-RECENT_MINUTES:]), current])
    day = sum_of(hours.get(number, none) for number in range(hour - HOURS + 1, hour + 1)).of(namespace)
    today = sum_of(hours.get(number, none) for number in range(hour - hour % 24, hour + 1)).of(namespace)
    elapsed_s = (MINUTE_MS + now_ms % MINUTE_MS) / 1000
    return Throughput(
        now_ms,
        tuple(
            ThroughputPoint(number * MINUTE_MS, each.visits, each.percentile_ms(0.5), each.percentile_ms(0.99),
                            each.of(namespace).cost_usd)
            for number, each in shown
        ),
        visits_per_s=(shown[-1][1].visits + current.visits) / elapsed_s,
        visits_hour=sum(each.visits for _, each in shown) + current.visits,
        hop_p50_ms=recent.percentile_ms(0.5),
        hop_p99_ms=recent.percentile_ms(0.99),
        day_since_ms=(hour - HOURS + 1) * HOUR_MS,
        ended_day=day.ended,
        failed_day=day.failed,
        cost_today_usd=today.cost_usd,
        daily_budget_usd=daily_budget_usd,
        is_complete=is_complete,
    )  # fmt: skip
