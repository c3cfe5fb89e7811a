"""The throughput of a deployment: a record of each scheduler for each minute and each hour.

Reading takes one round trip of 85 commands, whatever the number of runs and visits.
"""

from __future__ import annotations

from collections.abc import Mapping

from sleipnir.errors import RecordUnreadable
from sleipnir.runs.throughput import (
    HOUR_MS,
    HOURS,
    MINUTE_MS,
    MINUTES,
    Throughput,
    ThroughputTotal,
    sum_of,
    throughput_of,
    total_of,
    total_text,
)
from sleipnir.store.connect import Client, clock_ms
from sleipnir.store.keys import Keys

KEPT_MINUTES_S = 2 * 3600
KEPT_HOURS_S = 49 * 3600


class ThroughputHistory:
    """Schedulers write it, clients read it."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client, self._keys = client, keys

    def write(
        self, instance: str, minutes: Mapping[int, ThroughputTotal], hours: Mapping[int, ThroughputTotal]
    ) -> None:
        """Replace the totals of a scheduler for these minutes and hours since the epoch. Safe to repeat."""
        pipe = self._client.pipeline(transaction=False)
        for spans, key_of, kept_s in (
            (minutes, self._keys.throughput_minute, KEPT_MINUTES_S),
            (hours, self._keys.throughput_hour, KEPT_HOURS_S),
        ):
            for number, total in spans.items():
                pipe.hset(key_of(number), instance, total_text(total))
                pipe.expire(key_of(number), kept_s)
        pipe.execute()

    def read(self, namespace: str | None, daily_budget_usd: float | None = None) -> Throughput:
        """What all schedulers have written, of one namespace; None: of all."""
        now_ms = clock_ms(self._client)
        minute, hour = now_ms // MINUTE_MS, now_ms // HOUR_MS
        minutes, hours = range(minute - MINUTES, minute + 1), range(hour - HOURS + 1, hour + 1)
        pipe = self._client.pipeline(transaction=False)
        for number in minutes:
            pipe.hvals(self._keys.throughput_minute(number))
        for number in hours:
            pipe.hvals(self._keys.throughput_hour(number))
        is_complete, totals = True, list[ThroughputTotal]()
        for texts in pipe.execute():
            found = []
            for text in texts:
                try:
                    found.append(total_of(text))
                except RecordUnreadable:
                    is_complete = False
            totals.append(sum_of(found))
        return throughput_of(
            now_ms,
            dict(zip(minutes, totals, strict=False)),
            dict(zip(hours, totals[len(minutes) :], strict=True)),
            namespace=namespace,
            daily_budget_usd=daily_budget_usd,
            is_complete=is_complete,
        )
