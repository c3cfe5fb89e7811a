"""Batches: how fast rows are accepted and begin, what submitting costs in memory, whether runs that are submitted by
themselves wait behind rows, and whether batches share the fleet as their priorities say.

One scheduler and two solo workers. Rows are of a graph of two function nodes that do nothing.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from ops.bench.engine import Stack, finish, stack, write_agent
from ops.bench.figures import BenchFailed, Values
from ops.bench.processes import PYTHON, environment, output_of
from sleipnir.batches.rows import read
from sleipnir.client.batch import Batch
from tests.waiting import wait_until

ACCEPTED, MANY, QUEUED = 10_000, 200_000, 50_000
SHARED = 400
"""The row count of the leading batch when both are compared."""
STILL_S = 120
"""The longest time that a batch may make no progress on a busy machine."""

GRAPH = """
name: row
start: a
nodes:
  a: {type: function, call: 'noop.py:noop', next: b}
  b: {type: function, call: 'noop.py:noop', next: e}
  e: {type: end}
"""

SUBMITS = """
import resource, sys
from pathlib import Path
from sleipnir import Client
from sleipnir.batches.rows import read
with Client() as client:
    batch = client.batch(sys.argv[1], read(Path(sys.argv[2]), "id"), key="id")
    assert batch.submitted.added == int(sys.argv[3]), batch.submitted
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def accepting() -> Values:
    """Rows from a file into Redis, while the first of them begin; and the memory of who submits many."""
    with stack(workers=2) as engine:
        agent, file = row_agent(engine.home), rows_file(engine.home / "rows.jsonl", ACCEPTED)
        finish([engine.client.submit(agent) for _ in range(20)], engine.client)
        asked_ms, started = engine.client.now_ms(), time.perf_counter()
        batch = engine.client.batch(agent, read(file, "id"), key="id")
        took_s = time.perf_counter() - started
        first_s = (first_start_ms(engine, batch) - asked_ms) / 1000
        batch.cancel()
        engine.client.pause_all("bench")
        many = rows_file(engine.home / "many.jsonl", MANY)
        env = environment({"SLEIPNIR_REDIS_URL": engine.redis_url, "SLEIPNIR_HOME": str(engine.home)})
        rss_mb = float(output_of([PYTHON, "-c", SUBMITS, str(agent), str(many), str(MANY)], env))
    return {"batch_accept_s": took_s, "batch_first_node_s": first_s, "batch_submit_mb": rss_mb}


def waiting_behind(runs: int) -> Values:
    """Single runs, submitted one at a time while a batch of many rows runs."""
    with stack(workers=2) as engine:
        agent = row_agent(engine.home)
        finish([engine.client.submit(agent) for _ in range(20)], engine.client)
        batch = engine.client.batch(agent, ({"prompt": str(number)} for number in range(QUEUED)))
        before, started = batch.info().completed, time.perf_counter()
        waits = []
        for _ in range(runs):
            run = engine.client.submit(agent)
            finish([run], engine.client)
            info = run.info()
            at_ms = next(event.at_ms for event in run.events(follow=False) if event.type == "visit_started")
            waits.append(at_ms - info.created_ms)
        rate = (batch.info().completed - before) / (time.perf_counter() - started)
        if not batch.info().waiting:
            raise BenchFailed("the batch was over before the runs were")
    percentiles = statistics.quantiles(waits, n=100)
    return {"batch_wait_p99_ms": percentiles[98], "batch_wait_p50_ms": percentiles[49], "batch_rows_per_s": rate}


def sharing() -> Values:
    """The deviation of two batches from their shares when the leading one has ended SHARED rows."""
    with stack(workers=2) as engine:
        agent = row_agent(engine.home)
        finish([engine.client.submit(agent) for _ in range(20)], engine.client)
        equal, three = shared(engine, agent, 3, 3), shared(engine, agent, 3, 1) / 3
    return {"batch_equal_off": abs(equal - 1), "batch_three_off": abs(three - 1)}


def shared(engine: Stack, agent: Path, *priorities: int) -> float:
    """Rows ended of the first of two batches, by those of the second."""
    engine.client.pause_all("bench")
    rows = 2 * SHARED
    first, second = (
        engine.client.batch(agent, ({"prompt": str(number)} for number in range(rows)), priority=priority)
        for priority in priorities
    )
    engine.client.resume_all()
    while_it_moves(lambda: first.info().completed >= SHARED, first, "the first batch is half done")
    ratio = first.info().completed / second.info().completed
    for batch in (first, second):
        batch.cancel()
        while_it_moves(lambda batch=batch: batch.info().is_over, batch, "it is cancelled")  # type: ignore[misc]
    return ratio


def while_it_moves(condition: Callable[[], object], batch: Batch, what: str) -> None:
    """Wait, however slow the machine is, as long as rows of the batch end. Raises BenchFailed."""
    while not condition():
        before = batch.info().ended
        wait_until(lambda before=before: condition() or batch.info().ended > before, what, STILL_S)  # type: ignore[misc]


def first_start_ms(engine: Stack, batch: Batch) -> int:
    """When the first of its rows was begun by a worker, by Redis' clock."""
    wait_until(lambda: batch.info().ended, "a row ends")
    runs = [engine.client.run(batch.run_id(row)) for row in range(8)]
    events = [event for run in runs for event in run.events(follow=False) if event.type == "visit_started"]
    return min(event.at_ms for event in events)


def row_agent(home: Path) -> Path:
    return write_agent(home / "row", GRAPH, "noop.py", "def noop(state):\n    return {}\n")


def rows_file(file: Path, count: int) -> Path:
    with file.open("w") as lines:
        for number in range(count):
            row = {"prompt": f"look at number {number}", "id": number, "text": "some words " * 10}
            lines.write(json.dumps(row) + "\n")
    return file
