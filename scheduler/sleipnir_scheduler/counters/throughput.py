"""What this instance has committed in each minute, for the history in Redis (store/throughput.py).

Counting is some additions to dictionaries, by the thread that commits. A separate service stores the sums, so that no
commit waits for it. Minutes of this hour and the last one are kept: the total of an hour is the sum of its minutes.
"""

from __future__ import annotations

from typing import Final

from sleipnir.runs.throughput import (
    HOUR_MS,
    MINUTE_MS,
    NamespaceTotal,
    ThroughputTotal,
    bucket_of,
    sum_of,
)

PER_HOUR: Final = HOUR_MS // MINUTE_MS
MOST_NAMESPACES: Final = 200
OTHER: Final = "*other"
"""No namespace has this name."""


class MinuteCounts:
    """The counts of one minute. One thread adds to them; another one may read a copy at any time."""

    def __init__(self) -> None:
        self.visits = 0
        self.hops: dict[int, int] = {}
        self.ended: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.cost_usd: dict[str, float] = {}

    def total(self) -> ThroughputTotal:
        ended, failed, cost_usd = dict(self.ended), dict(self.failed), dict(self.cost_usd)
        namespaces = {
            name: NamespaceTotal(ended.get(name, 0), failed.get(name, 0), cost_usd.get(name, 0.0))
            for name in {**ended, **failed, **cost_usd}
        }
        return ThroughputTotal(self.visits, dict(self.hops), namespaces)


class ThroughputCounter:
    """All minutes of this hour and the last one."""

    def __init__(self) -> None:
        self._minutes: dict[int, MinuteCounts] = {}
        self._stored: dict[int, ThroughputTotal] = {}
        """By minute, what was stored last."""

    def visit(self, now_ms: float) -> None:
        """A visit has ended."""
        self._of(now_ms).visits += 1

    def hop(self, now_ms: float, ms: float) -> None:
        """A visit has cost `ms` besides its work."""
        hops, bucket = self._of(now_ms).hops, bucket_of(ms)
        hops[bucket] = hops.get(bucket, 0) + 1

    def ended(self, now_ms: float, namespace: str, *, is_failed: bool) -> None:
        """A run has ended that no other run has started."""
        counts = self._of(now_ms)
        _add(counts.ended, namespace, 1)
        if is_failed:
            _add(counts.failed, namespace, 1)

    def cost(self, now_ms: float, namespace: str, usd: float) -> None:
        """A visit has cost so much."""
        _add(self._of(now_ms).cost_usd, namespace, usd)

    def changed(self, now_ms: float) -> tuple[dict[int, ThroughputTotal], dict[int, ThroughputTotal]]:
        """The totals by minute and by hour since the epoch that differ from what was stored last; minutes before the
        last hour are dropped."""
        first = (int(now_ms) // HOUR_MS - 1) * PER_HOUR
        for minute in [minute for minute in list(self._minutes) if minute < first]:
            del self._minutes[minute]
            self._stored.pop(minute, None)
        totals = {minute: counts.total() for minute, counts in list(self._minutes.items())}
        minutes = {minute: total for minute, total in totals.items() if total != self._stored.get(minute)}
        hours = {
            hour: sum_of(total for minute, total in totals.items() if minute // PER_HOUR == hour)
            for hour in {minute // PER_HOUR for minute in minutes}
        }
        return minutes, hours

    def stored(self, minutes: dict[int, ThroughputTotal]) -> None:
        """These totals are in Redis."""
        self._stored |= minutes

    def _of(self, now_ms: float) -> MinuteCounts:
        minute = int(now_ms // MINUTE_MS)
        counts = self._minutes.get(minute)
        if counts is None:
            counts = self._minutes[minute] = MinuteCounts()
        return counts


def _add(counts: dict[str, int] | dict[str, float], namespace: str, number: float) -> None:
    if namespace not in counts and len(counts) >= MOST_NAMESPACES:
        namespace = OTHER
    counts[namespace] = counts.get(namespace, 0) + number  # type: ignore[assignment]
