#!/usr/bin/env python3
"""The costs of runs in Redis, and the speed of archiving, exporting and searching them: the figures of
docs/operations.md.

    python ops/sizing.py [--runs 1000]

A run of a graph with a script and an approval, first while it waits, then when it is over. Commits are a real
scheduler's, visits a real worker's; archive and `gc` are timed in this process.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "scheduler")]

from sleipnir.client.client import Client  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from sleipnir.upkeep.archive import ArchiveWriter, archived_runs  # noqa: E402
from sleipnir.upkeep.garbage import garbage_items  # noqa: E402
from sleipnir_scheduler.services.archiver import Archiver  # noqa: E402
from tests.processes import RedisServer, Stack, wait_until, write_agent  # noqa: E402

AGENT = """
name: order
start: take
nodes:
  take: {type: script, script: take.sh, next: ask}
  ask: {type: approval, question: "ship {{initial_prompt}}?", options: [yes], routes: {yes: done}, on_other: done}
  done: {type: end, output: shipped}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    redis = RedisServer("--stream-node-max-bytes", "1024")
    folder = Path(tempfile.mkdtemp(prefix="slp-sizing-"))
    try:
        with Stack(redis, folder / "home", log_level="info") as stack, stack.client() as client:
            stack.start_scheduler()
            stack.start_worker(concurrency=4)
            measure(client, redis, folder, runs)
    finally:
        redis.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure(client: Client, redis: RedisServer, folder: Path, runs: int) -> None:
    agent = write_agent(folder / "order", AGENT, take_sh="echo '{\"taken\": true}'\n")
    first = client.submit(agent, "0")
    wait_until(first.gates, "the first run asks")
    before = used(redis)
    ids = [client.submit(agent, str(number)).id for number in range(runs)]
    wait_until(lambda: len(client.gates()) == runs + 1, "all ask", 600, every_s=0.5)
    print(f"a run that waits for an answer        {(used(redis) - before) / runs / 1000:6.2f} kB")
    for run_id in ids:
        client.run(run_id).answer("yes")
    wait_until(lambda: not len(client.gates()) > 1, "all are answered", 600, every_s=0.5)
    wait_until(lambda: all(i and i.is_final for i in client.store.runs.find(ids)), "all are over", 600, every_s=0.5)
    print(f"a finished run, until it expires      {(used(redis) - before) / runs / 1000:6.2f} kB")
    timed("exported, one after the other", runs, lambda: [list(client.run(run_id).export()) for run_id in ids])
    for compressed in (False, True):
        archive = folder / f"archive-{compressed}"
        timed(f"archived{', compressed' * compressed}", runs, partial(archived, client, archive, compressed))
        size = sum(path.stat().st_size for path in archive.iterdir())
        print(f"  in the archive                      {size / runs / 1000:6.2f} kB")
    timed("listed from the archive", runs, lambda: list(archived_runs(folder / "archive-False")))
    timed("looked through by gc", runs, lambda: list(garbage_items(client.store, client.settings, sessions=False)))


def archived(client: Client, folder: Path, compressed: bool) -> None:
    """All of them; they are put back first."""
    for partition in range(client.store.keys.partitions):
        part = client.store.keys.of_partition(partition)
        client.store._client.zunionstore(part.expiring, [part.expiring, part.archived], aggregate="MAX")
        client.store._client.delete(part.archived)
    writer = ArchiveWriter(folder, "host", file_bytes=10**8, compressed=compressed)
    archiver = Archiver(client.store, writer, ahead_ms=10**12)
    while archiver.run_once(range(client.store.keys.partitions), client.store.now_ms()) > 0:
        pass
    archiver.close()


def timed(what: str, runs: int, do: Callable[[], object]) -> None:
    gc.collect()
    began, began_cpu = time.perf_counter(), time.process_time()
    do()
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    print(f"{what:<37} {runs / took_s:6.0f} runs/s, {cpu_s / runs * 1e6:5.0f} us of CPU each")


def used(redis: RedisServer) -> int:
    return int(connect(redis.url).info("memory")["used_memory"])


if __name__ == "__main__":
    main()
