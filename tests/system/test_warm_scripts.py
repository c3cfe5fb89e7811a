"""Warm Python scripts in whole workers: every pool, and launchers that die."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import RedisServer, Stack, wait_until, write_agent

# Not what a version manager puts there: that is a script, and scripts of such a python3 start cold.
PATH = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}

GRAPH = """
name: warm
start: a
nodes:
  a: {type: script, script: a.py, next: b}
  b: {type: script, script: b.py, next: done}
  done: {type: end, output: "{{a}} {{b}} {{worker}}"}
"""
PARENT_PY = "import json, os\nprint(json.dumps({%r: os.getppid()}))\n"
WORKER_PY = (
    "import json, os\nparent = os.getppid()\n"
    "grandparent = int(open(f'/proc/{parent}/stat').read().rpartition(')')[2].split()[1])\n"
    "print(json.dumps({'b': parent, 'worker': grandparent}))\n"
)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_scripts_of_a_worker_process_have_one_launcher(
    redis_server: RedisServer, tmp_path: Path, pool: str
) -> None:
    agent = write_agent(tmp_path / "warm", GRAPH, a_py=PARENT_PY % "a", b_py=WORKER_PY)
    with Stack(redis_server, tmp_path / "home", key_prefix=f"warm-{pool}") as stack:
        stack.start_scheduler()
        stack.start_worker("worker", pool=pool, concurrency=1, env=PATH)
        with stack.client() as client:
            run = client.submit(agent)
            assert run.wait(60).status == "completed"
            first, second, worker = (int(pid) for pid in str(run.output).split())
        assert first == second
        assert (worker == stack.processes["worker"].pid) == (pool == "threads")
        stack.kill("worker")
        if pool == "prefork":
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{first}").exists(), "the launcher went with its worker")


def test_warm_starts_can_be_switched_off(redis_server: RedisServer, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "warm", GRAPH, a_py=PARENT_PY % "a", b_py=WORKER_PY)
    with Stack(redis_server, tmp_path / "home", key_prefix="warm-off", warm_python=False) as stack:
        stack.start_scheduler()
        stack.start_worker("worker", concurrency=1, env=PATH)
        with stack.client() as client:
            run = client.submit(agent)
            assert run.wait(60).status == "completed"
            parents = {int(pid) for pid in str(run.output).split()[:2]}
        assert parents == {stack.processes["worker"].pid}


KILLER = """
import json, os, pathlib, time
mark = pathlib.Path({mark!r})
if mark.exists():
    print(json.dumps({{"a": "second"}}))
else:
    mark.write_text(f"{{os.getppid()}}\\n")
    time.sleep(60)
"""


def test_a_visit_whose_launcher_is_killed_starts_again_at_once_as_the_next_attempt(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    agent = write_agent(tmp_path / "warm", GRAPH, a_py=KILLER.format(mark=str(mark)), b_py=WORKER_PY)
    with Stack(redis_server, tmp_path / "home", key_prefix="warm-kill", lease_s=60.0, heartbeat_s=1.0) as stack:
        stack.start_scheduler()
        stack.start_worker("worker", concurrency=2, env=PATH)
        with stack.client() as client:
            run = client.submit(agent)
            wait_until(lambda: mark.exists() and mark.read_text().endswith("\n"), "the script runs")
            os.kill(int(mark.read_text()), signal.SIGKILL)
            assert run.wait(60).status == "completed", "within the lease: it was handed back"
            assert str(run.output).startswith("second ")
            assert [step.attempt for step in run.history()[1:3]] == [2, 1]
