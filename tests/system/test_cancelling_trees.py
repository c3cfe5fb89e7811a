"""Cancel a run with everything below it: runs, the scripts of their workers and what those started, keys and leases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.chaos import verdict
from sleipnir.client.client import Client, Run
from sleipnir.store.connect import connect
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import is_running, wait_until

TOP = """
name: top
start: each
initial_state: {items: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}
nodes:
  each: {type: map, over: "{{items}}", as: item, branch: one, collect_into: all, max_concurrency: 10, next: done}
  one: {type: agent, agent: middle, prompt: "{{item}}"}
  done: {type: end}
"""
MIDDLE = """
name: middle
version: sleipnir/1
start: split
nodes:
  split: {type: router, next: [work, first, second]}
  work: {type: script, script: work.sh, timeout: 3600, next: done}
  first: {type: agent, agent: shell, prompt: "x", next: done}
  second: {type: agent, agent: python, prompt: "x", next: done}
  done: {type: end}
"""
LEAF = """
name: leaf
start: work
nodes:
  work: {{type: script, script: {script}, timeout: 3600, next: done}}
  done: {{type: end}}
"""
# They do not listen to SIGTERM, and neither does what they leave in the background.
SHELL = """#!/usr/bin/env bash
trap '' TERM
sleep 3600 &
echo $! > "$GRAPH_CALLER_DIR/$$.sleeps"
echo $$ > "$GRAPH_CALLER_DIR/$$.runs"
while :; do sleep 0.5; done
"""
PYTHON = """
import os, pathlib, signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
here = pathlib.Path(os.environ["GRAPH_CALLER_DIR"])
sleeps = subprocess.Popen(["sleep", "3600"])
(here / f"{os.getpid()}.sleeps").write_text(str(sleeps.pid))
(here / f"{os.getpid()}.runs").write_text(str(os.getpid()))
sleeps.wait()
"""
DESCENDANTS = 30  # ten in the middle, and two below each of them
OVER_WITHIN_MS = 30_000  # on a machine with ten times as much to do as it has cores; a second or two on a quiet one


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    agents = tmp_path / "agents"
    write_agent(agents / "top", TOP)
    write_agent(agents / "middle", MIDDLE, work_sh=SHELL)
    write_agent(agents / "shell", LEAF.format(script="work.sh"), work_sh=SHELL)
    write_agent(agents / "python", LEAF.format(script="work.py"), work_py=PYTHON)
    with Stack(redis_server, tmp_path / "home", key_prefix="trees", agents_dir=agents) as stack:
        stack.start_scheduler()
        for name in ("one", "two"):
            stack.start_worker(name, "scripts", concurrency=DESCENDANTS // 2, ready=False)
        yield stack


def pids(folder: Path) -> list[int]:
    """The processes that scripts have started, themselves among them."""
    return [int(text) for file in folder.iterdir() if (text := file.read_text().strip())]


def below(client: Client, run: Run) -> list[Run]:
    found, level = list[str](), [run.id]
    while level:
        level = [child.id for children in client.store.runs.children(level).values() for child in children]
        found += level
    return [client.run(run_id) for run_id in found]


def test_a_cancelled_tree_of_runs_leaves_no_run_process_key_or_lease(own: Stack, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with own.client() as client:
        run = client.submit("top", caller_dir=marks)
        wait_until(lambda: len(list(marks.glob("*.runs"))) == DESCENDANTS, "all scripts run", 90)
        started, runs = pids(marks), [run, *below(client, run)]
        assert (len(runs), len(started)) == (1 + DESCENDANTS, 2 * DESCENDANTS)
        assert all(map(is_running, started))
        asked_ms = client.now_ms()
        assert own.sleipnir("cancel", run.id).returncode == 0
        told_ms = client.now_ms()
        wait_until(lambda: all(info.is_final for info in client.store.runs.infos([r.id for r in runs])), "all are over")
        infos = client.store.runs.infos([each.id for each in runs])
        assert {info.status for info in infos} == {"cancelled"}
        last_ms = max(info.ended_ms or 0 for info in infos)
        print(f"{DESCENDANTS} descendants were over {last_ms - asked_ms} ms after `sleipnir cancel` was started")
        assert last_ms - told_ms < OVER_WITHIN_MS
        wait_until(lambda: not any(map(is_running, started)), "no process of theirs is left")
        print(f"their {len(started)} processes were gone after {client.now_ms() - asked_ms} ms")
        redis = connect(own.redis.url)
        wait_until(lambda: not list(verdict.leaks(client, redis)), "no lease, timer or key of theirs is left")
        prefix = client.store.keys.prefix
        of_runs = [key for key in redis.scan_iter(f"{prefix}:*:run:*", count=1000) if ":lists:" not in key]
        lasting = [key for key in of_runs if redis.ttl(key) < 0]
        assert lasting == [], "what is kept of a run that is over dies some day"
        redis.close()
