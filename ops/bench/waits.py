"""Very many visits that wait for one event: `python ops/bench/waits.py --waits 1000000 [--consume one]`.

The visits are put into Redis by the store's own effects, each of a run of its own that has just a status; no worker and
no planner takes part. Then one event is sent, or with `--consume one` 1,000 of them, and the scheduler's service for
effects delivers until every run's inbox has its entry. Then all visits leave.

Prints for each part how long it took, and the CPU time of Redis: of a call on average, and the longest block. A block
is what one round trip of calls took above the median of the others, so that other processes of the machine do not
count; for single calls it is the time of the call. Forking before a rewrite of the append-only file is apart. Exits
with 1 if a visit was not told exactly once, or a block took longer than 20 ms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ops.bench.processes import redis_server  # noqa: E402
from sleipnir.runs.transitions import AwaitSignal, LeaveSignal  # noqa: E402
from sleipnir.settings import Settings  # noqa: E402
from sleipnir.store.runs.requests import NO_FENCE  # noqa: E402
from sleipnir.store.scripts import run_in_order  # noqa: E402
from sleipnir.store.signals import LOOKED_AT_ONCE  # noqa: E402
from sleipnir.store.store import Store  # noqa: E402
from sleipnir_scheduler.services.deliveries import Deliveries  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

NAME = "gates.open"
CHUNK = 50
SIGNALS = 1_000  # with `--consume one`
LONGEST_MS = 20.0
AHEAD = 20_000
"""Effects that are delivered before the entries of the inboxes are counted and taken away, as schedulers do."""


class Waits:
    """The visits of one measurement, and what each part of it took."""

    def __init__(self, store: Store, pid: int, waits: int, *, one: bool) -> None:
        self._store, self._redis, self._one = store, store._client, one
        self._cpu = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self._runs = [f"run{number:09d}" for number in range(waits)]
        self._told: Counter[str] = Counter()
        self._took: dict[str, str] = {}
        self.facts: dict[str, Any] = {"waits": waits, "consume": "one" if one else "all"}

    def measure(self) -> dict[str, Any]:
        facts, store = self.facts, self._store
        self._redis.config_set("auto-aof-rewrite-percentage", 0)  # to fork counts as time of the commands
        empty = self._used()
        for chunk in chunks(self._runs):
            pipe = self._redis.pipeline(transaction=False)
            for run in chunk:
                pipe.hset(store.keys.of_run(run).run, "status", "waiting")
            pipe.execute()
        before = self._used()
        facts["await"] = self._effects(lambda run: AwaitSignal(NAME, 1, 1, 0, one=self._one, sure=self._one))
        facts["bytes"] = {
            "run": (before - empty) // len(self._runs),
            "wait": (self._used() - before) // len(self._runs),
        }
        keys = store.keys.of_signals(NAME)
        looks = [lambda: self._redis.zrandmember(keys.one if self._one else keys.every, LOOKED_AT_ONCE)] * 10
        facts["check"] = self._single(looks)
        numbers = range(SIGNALS if self._one else 1)
        facts["send"] = self._single([lambda n=n: store.signals.send(NAME, f"e{n}", "1") for n in numbers])  # type: ignore[misc]
        expected = min(len(self._runs), SIGNALS) if self._one else len(self._runs)
        facts["deliver"] = self._deliver(expected)
        facts["fork_ms"] = self._fork_ms()
        facts["told"], facts["told_twice"] = len(self._told), sum(self._told.values()) - len(self._told)
        facts["leave"] = self._effects(lambda run: LeaveSignal(NAME, 1, 1, self._took.get(run, "")))
        facts["left_bytes"] = self._used() - before
        facts["as_expected"] = (facts["told"], facts["told_twice"]) == (expected, 0)
        return facts

    def _effects(self, effect: Callable[[str], AwaitSignal | LeaveSignal]) -> dict[str, float]:
        """An effect of every visit."""
        deliver, began_s, times = self._store.signals.deliver, time.perf_counter(), list[float]()
        for chunk in chunks(self._runs):
            commands = [deliver(NO_FENCE, run, effect(run)) for run in chunk]
            times.append(self._cpu_ms(lambda commands=commands: check(run_in_order(self._redis, commands))))  # type: ignore[misc]
        return taken(began_s, times, len(self._runs), max(times) - statistics.median(times))

    def _single(self, calls: Sequence[Callable[[], object]]) -> dict[str, float]:
        began_s = time.perf_counter()
        times = [self._cpu_ms(call) for call in calls]
        return taken(began_s, times, len(calls), max(times))

    def _deliver(self, expected: int) -> dict[str, float]:
        """As a scheduler does; the entries of the inboxes are counted, and taken away as commits do."""
        service = Deliveries(self._store.effects, graphs=None, max_state_bytes=1_000_000)  # type: ignore[arg-type]
        partitions, done, began_s, times = range(self._store.keys.partitions), 0, time.perf_counter(), list[float]()
        moved = [1]  # by round; the first is none

        def once() -> None:
            moved.append(service.run_once(partitions, block_ms=10))

        while moved[-1]:
            times.append(self._cpu_ms(once))
            done += moved[-1]
            if done > AHEAD or not moved[-1]:
                done = 0
                self._take()
        an_effect_ms = sum(times) / max(1, sum(moved[1:]))  # a round has more or fewer of them
        block_ms = max(took_ms - count * an_effect_ms for took_ms, count in zip(times, moved[1:], strict=True))
        return taken(began_s, times, expected, block_ms)

    def _take(self) -> None:
        for partition in range(self._store.keys.partitions):
            inbox = self._store.keys.of_partition(partition).inbox
            while entries := self._redis.xrange(inbox, count=1_000):
                self._told.update(fields["run"] for _, fields in entries)
                if self._one:
                    self._took |= {fields["run"]: json.loads(fields["data"])["number"] for _, fields in entries}
                self._redis.xdel(inbox, *(id_ for id_, _ in entries))

    def _cpu_ms(self, act: Callable[[], object]) -> float:
        """The time of Redis on a processor."""
        before = int(self._cpu.read_text().split()[0])
        act()
        return (int(self._cpu.read_text().split()[0]) - before) / 1e6

    def _fork_ms(self) -> float:
        """How long Redis takes to fork, before it writes its append-only file anew."""
        self._redis.bgrewriteaof()
        wait_until(lambda: not self._redis.info("persistence")["aof_rewrite_in_progress"], "it is written", 300)
        return float(self._redis.info("stats")["latest_fork_usec"]) / 1000

    def _used(self) -> int:
        return int(self._redis.info("memory")["used_memory"])


def taken(began_s: float, times: Sequence[float], calls: int, block_ms: float) -> dict[str, float]:
    """`times`: of round trips, in ms of Redis."""
    took_s, each_us = time.perf_counter() - began_s, sum(times) * 1000 / calls
    return {"took_s": round(took_s, 2), "redis_us": round(each_us, 1), "block_ms": round(block_ms, 2)}


def chunks(values: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(values)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def check(replies: Iterable[object]) -> None:
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--waits", type=int, default=100_000, help="visits that wait (default 100000)")
    ask.add_argument("--consume", choices=["all", "one"], default="all")
    options = ask.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="slp-") as folder,
        redis_server(Path(folder)) as (url, pid),
        Store.open(Settings(redis_url=url, home=Path(folder))) as store,
    ):
        facts = Waits(store, pid, options.waits, one=options.consume == "one").measure()
    print(json.dumps(facts))
    blocks = [part["block_ms"] for part in facts.values() if isinstance(part, dict) and "block_ms" in part]
    sys.exit(not facts["as_expected"] or max(blocks) > LONGEST_MS)


if __name__ == "__main__":
    main()
