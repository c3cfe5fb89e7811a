#!/usr/bin/env python3
"""The drill of a restore: back Redis up while runs go on, lose everything, restore into a fresh server, and go on.

    python ops/drill.py [--runs 60]

It restores once from a snapshot (RDB) and once from a copy of the append-only file, as docs/operations.md describes
them. A robot answers every question. Each run that the backup holds must end right, and no visit that it holds as
committed may run again. Prints what it measured; exit code 1 when anything is missing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

from sleipnir.client.client import Client  # noqa: E402
from sleipnir.store.connect import connect  # noqa: E402
from tests.processes import RedisServer, Stack, wait_until, write_agent  # noqa: E402

AGENT = """
name: order
start: take
nodes:
  take: {{type: script, script: take.sh, next: ask}}
  ask: {{type: approval, question: ship?, options: [yes], routes: {{yes: ship}}, on_other: ship}}
  ship: {{type: script, script: ship.sh, next: done}}
  done: {{type: end, output: "shipped {{{{initial_prompt}}}}"}}
"""
SCRIPT = """echo "$GRAPH_VISIT" >> {marks}; sleep 0.2; echo '{{"{key}": true}}'\n"""
ENOUGH_S = 240.0


class Restored(RedisServer):
    """A new server on the data of a backup."""

    def __init__(self, backup: Path, *options: str) -> None:
        self._backup = backup
        super().__init__(*options)

    def start(self) -> None:
        shutil.copytree(self._backup, self.folder, dirs_exist_ok=True)
        super().start()


def by_snapshot(redis: RedisServer, target: Path) -> Callable[[], RedisServer]:
    """BGSAVE, and a copy of the file. How to restore: start without the append-only file, then switch it on."""
    client = connect(redis.url)
    before = client.lastsave()
    time.sleep(1.0)  # its clock has whole seconds
    client.bgsave()
    wait_until(lambda: client.lastsave() != before, "the snapshot is written", 60)
    assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"
    shutil.copy(redis.folder / "dump.rdb", target)

    def restore() -> RedisServer:
        restored = Restored(target, "--appendonly", "no")
        connect(restored.url).config_set("appendonly", "yes")
        return restored

    return restore


def by_append_only_file(redis: RedisServer, target: Path) -> Callable[[], RedisServer]:
    """A copy of the directory while no rewrite replaces its files. How to restore: start on the copy; a last command
    that was cut is left out (`aof-load-truncated yes`, the default)."""
    client = connect(redis.url)
    client.config_set("auto-aof-rewrite-percentage", 0)
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"], "no rewrite is under way", 60)
    if (redis.folder / "appendonlydir").is_dir():
        shutil.copytree(redis.folder / "appendonlydir", target / "appendonlydir")
    else:  # before Redis 7 it is one file
        shutil.copy(redis.folder / "appendonly.aof", target)
    client.config_set("auto-aof-rewrite-percentage", 100)
    return lambda: Restored(target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=60)
    runs = parser.parse_args().runs
    problems = []
    for backup in (by_snapshot, by_append_only_file):
        with tempfile.TemporaryDirectory(prefix="slp-drill-") as folder:
            problems += drill(Path(folder), backup, runs)
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


def drill(folder: Path, backup: Callable[[RedisServer, Path], Callable[[], RedisServer]], runs: int) -> list[str]:
    marks, target = folder / "marks", folder / "backup"
    marks.touch()
    target.mkdir()
    scripts = {f"{key}_sh": SCRIPT.format(marks=marks, key=key) for key in ("take", "ship")}
    agent = write_agent(folder / "order", AGENT.format(), **scripts)
    redis = RedisServer()
    try:
        with Stack(redis, folder / "home") as stack, stack.client() as client:
            start(stack)
            ids = [client.submit(agent, str(number)).id for number in range(runs)]
            live_on(client, lambda: done(client) >= runs // 4)
            began = time.monotonic()
            restore = backup(redis, target)
            took_s = time.monotonic() - began
            live_on(client, lambda: done(client) >= runs // 2)
    finally:
        redis.stop()  # the disaster: everything is killed, and the data are deleted
    marks.write_text("")
    began = time.monotonic()
    redis = restore()
    try:
        with Stack(redis, folder / "home2") as stack, stack.client() as client:
            return check(stack, client, ids, marks, backup.__name__, took_s, size_of(target), began)
    finally:
        redis.stop()


def check(
    stack: Stack, client: Client, ids: list[str], marks: Path, how: str, took_s: float, size: int, began: float
) -> list[str]:
    held = [info for info in client.store.runs.find(ids) if info is not None]
    committed = {f"{info.id}/{step.seq}" for info in held for step in client.run(info.id).history() if step.seq}
    statuses = Counter(info.status for info in held)
    start(stack)
    live_on(client, lambda: done(client) == len(held))
    ended_s = time.monotonic() - began
    print(f"{how}: {len(held)} of {len(ids)} runs in {size:,} bytes, backed up in {took_s:.1f} s while they ran")
    print(f"  in the backup: {dict(statuses)}, {len(committed)} committed visits")
    print(f"  restored, and all over {ended_s:.1f} s after; {len(marks.read_text().split())} scripts ran")
    problems = [] if len(held) == len(ids) else [f"{how}: {len(ids) - len(held)} runs are missing"]
    for number, run_id in enumerate(ids):
        run = client.run(run_id)
        if (run.status, run.output) != ("completed", f"shipped {number}"):
            problems.append(f"{how}: {run_id} is {run.status}: {run.error or run.output}")
    again = committed & set(marks.read_text().split())
    return problems + [f"{how}: {visit} was committed, and ran again" for visit in sorted(again)]


def start(stack: Stack) -> None:
    stack.start_scheduler()
    stack.start_worker(concurrency=4)


def live_on(client: Client, until: Callable[[], Any]) -> None:
    """Answer every question until then."""
    deadline = time.monotonic() + ENOUGH_S
    while not until():
        assert time.monotonic() < deadline, "nothing moves any more"
        for gate in client.gates():
            client.run(gate.run).answer("yes", gate)
        time.sleep(0.05)


def done(client: Client) -> int:
    return sum(info.is_final for info in client.store.runs.recent(100_000))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
