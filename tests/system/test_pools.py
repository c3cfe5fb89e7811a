"""Workers of the other pools, and queues of one's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deployments import ROOT
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: pooled
start: a
nodes:
  a: {type: function, call: "f.py:f", queue: gpu, next: b, timeout: 600}
  b: {type: script, script: b.sh, queue: gpu, next: done}
  done: {type: end, output: "{{pid}} {{shell}}"}
"""
F_PY = "import os\ndef f(state):\n    return {'pid': os.getpid()}\n"
B_SH = 'echo \'{"shell": "bash"}\'\n'


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_node_runs_on_the_queue_that_it_names_in_every_pool(
    redis_server: RedisServer, tmp_path: Path, pool: str
) -> None:
    agent = write_agent(tmp_path / "pooled", GRAPH, f_py=F_PY, b_sh=B_SH)
    with Stack(redis_server, tmp_path / "home", key_prefix=f"pool-{pool}") as stack:
        stack.start_scheduler()
        stack.start_worker("gpu", "gpu", pool=pool, concurrency=1)
        with stack.client() as client:
            run = client.submit(agent)
            assert run.wait(60).status == "completed"
            pid, shell = str(run.output).split()
            assert shell == "bash"
            assert (int(pid) == _worker_pid(stack)) == (pool != "prefork")


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@pytest.mark.parametrize(("env", "nice"), [({}, 10), ({"SLEIPNIR_WORKER_NICE": "0"}, 0)])
def test_functions_and_scripts_have_the_nice_value_of_workers(
    redis_server: RedisServer, tmp_path: Path, pool: str, env: dict[str, str], nice: int
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    f_py = "import os\ndef f(state):\n    return {'pid': os.getpriority(os.PRIO_PROCESS, 0)}\n"
    agent = write_agent(tmp_path / "pooled", GRAPH, f_py=f_py, b_sh='echo "{\\"shell\\": \\"$(nice)\\"}"\n')
    with Stack(redis_server, tmp_path / "home", key_prefix=f"nice-{pool}-{nice}") as stack:
        stack.start_scheduler()
        stack.start_worker("gpu", "gpu", pool=pool, concurrency=1, env=env)
        with stack.client() as client:
            run = client.submit(agent)
            assert run.wait(60).status == "completed"
            assert run.output == f"{max(own, nice)} {max(own, nice)}"
            assert os.getpriority(os.PRIO_PROCESS, stack.processes["scheduler"].pid) == own


def test_a_nice_value_that_is_greater_already_is_kept() -> None:
    code = (
        "import os\n"
        "from sleipnir_workers.machine.nice_value import raise_nice_value\n"
        "raise_nice_value(10)\n"
        "print(os.getpriority(os.PRIO_PROCESS, 0))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "workers")])}
    printed = subprocess.check_output(["nice", "-n", "15", sys.executable, "-c", code], env=env, text=True)
    assert int(printed) >= 15


def _worker_pid(stack: Stack) -> int:
    return stack.processes["gpu"].pid


def test_a_pool_child_that_is_killed_costs_one_lease_and_nothing_else(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """The main process of the worker lives on: its message is gone, but the lease of the visit lapses."""
    mark = tmp_path / "mark"
    code = (
        "import os, pathlib, threading\n"
        f"mark = pathlib.Path({str(mark)!r})\n"
        "def f(state):\n"
        "    if not mark.exists():\n"
        "        mark.write_text(str(os.getpid()))\n"
        "        threading.Event().wait(60)\n"
        "    return {'pid': 'second'}\n"
    )
    agent = write_agent(tmp_path / "pooled", GRAPH, f_py=code, b_sh=B_SH)
    with Stack(redis_server, tmp_path / "home", key_prefix="pool-kill") as stack:
        stack.start_scheduler()
        stack.start_worker("gpu", "gpu", pool="prefork", concurrency=1)
        with stack.client() as client:
            run = client.submit(agent)
            pid = int(wait_until(lambda: mark.exists() and mark.read_text(), "the function runs"))
            os.kill(pid, signal.SIGKILL)
            assert run.wait(60).status == "completed"
            assert run.output == "second bash"
            assert [step.attempt for step in run.history()[1:3]] == [2, 1]
