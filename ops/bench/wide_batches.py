"""The costs in Redis of a batch of very many rows whose rows all change, and of idle open batches. No worker runs: rows
are admitted and ended by the scripts of the store."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.bench.figures import Values
from ops.bench.processes import redis_server
from sleipnir.batches.records import BatchPlan, place_of, row_text
from sleipnir.messages import Usage
from sleipnir.runs.run import RunSpec
from sleipnir.settings import Settings
from sleipnir.store.scripts import run_in_order
from sleipnir.store.store import Store
from sleipnir_scheduler.services.admission import Admission

SPEC = RunSpec("row", "digest")
CHUNK = 500
LOOKS = 1000
LOGGED_US = 200  # longer calls are recorded in Redis' slow log


def measure(rows: int, batches: int) -> Values:
    with tempfile.TemporaryDirectory(prefix="slp-") as folder, redis_server(Path(folder)) as (url, _):
        settings = Settings(redis_url=url, home=Path(folder))
        with Store.open(settings) as store:
            return {**all_rows(store, rows), **idle_batches(store, batches)}


def all_rows(store: Store, count: int) -> Values:
    """Retry all rows of a batch that have failed, then cancel them."""
    admit_and_fail(store, "wide", count)
    with logged(store) as longest_ms:
        began = time.perf_counter()
        assert store.batches.retry("wide") == count
        retry_s = time.perf_counter() - began
    with logged(store) as longest_cancel_ms:
        began = time.perf_counter()
        assert store.batches.cancel("wide")
        cancel_s = time.perf_counter() - began
    return {
        "batch_retry_s": retry_s,
        "batch_retry_longest_ms": longest_ms[0],
        "batch_cancel_s": cancel_s,
        "batch_cancel_longest_ms": longest_cancel_ms[0],
    }


def admit_and_fail(store: Store, batch: str, count: int) -> None:
    for at in range(0, count, CHUNK):
        rows = [(f"key {row}", row_text(f"look at number {row}", {})) for row in range(at, min(at + CHUNK, count))]
        store.batches.add(batch, SPEC, BatchPlan(parallel=count), rows)
    store.batches.seal(batch)
    while (opened := store.batches.look({}).batches[batch]) is not None and opened.kept.waiting:
        store.batches.admit([(opened, CHUNK)], opened.created_ms)
        store._client.delete(store.keys.of_partition(0).effects)  # nothing runs here
    for at in range(0, count, CHUNK):
        ends = [store.batches.ended(place_of(batch, row), "failed", 1, Usage()) for row in range(at, at + CHUNK)]
        run_in_order(store._client, ends)


@contextmanager
def logged(store: Store) -> Iterator[list[float]]:
    """After the block: the longest call in milliseconds."""
    longest_ms = [LOGGED_US / 1000]
    store._client.config_set("slowlog-log-slower-than", LOGGED_US)
    store._client.config_set("slowlog-max-len", 100_000)
    store._client.slowlog_reset()
    yield longest_ms
    calls = store._client.slowlog_get(100_000)
    longest_ms[0] = max([LOGGED_US, *(call["duration"] for call in calls)]) / 1000


def idle_batches(store: Store, count: int) -> Values:
    """The cost of a round of admission with open batches that have a running row and waiting rows."""
    epoch = store.partitions.own([0], "bench", 3_600_000)[0].epoch
    for number in range(count):
        rows = [(str(row), row_text("", {})) for row in range(2)]
        store.batches.add(f"idle-{number}", SPEC, BatchPlan(parallel=1), rows)
    admission = Admission(store, window=1)
    while admission.run_once({0: epoch}):
        pass
    quiet_us, quiet_redis_us = cost_us(store, lambda: admission.run_once({0: epoch}))
    all_us, all_redis_us = cost_us(store, lambda: store.batches.look({}), 10)
    return {
        "batch_idle_us": quiet_us,
        "batch_idle_redis_us": quiet_redis_us,
        "batch_all_ms": all_us / 1000,
        "batch_all_redis_ms": all_redis_us / 1000,
    }


def cost_us(store: Store, call: Callable[[], object], times: int = LOOKS) -> tuple[float, float]:
    """CPU of this process, and the time of Redis' commands, for one call."""
    before_us, began_s = redis_us(store), time.process_time()
    for _ in range(times):
        call()
    took_s = time.process_time() - began_s
    return took_s * 1e6 / times, (redis_us(store) - before_us) / times


def redis_us(store: Store) -> float:
    return float(sum(command["usec"] for command in store._client.info("commandstats").values()))
