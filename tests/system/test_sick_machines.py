"""A worker whose machine cannot run visits loses none of them, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.runs.views import WorkerInfo
from tests.disks import full_disk
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: rows
start: a
nodes:
  a: {type: script, script: a.sh, next: done}
  done: {type: end, output: "{{said}}"}
"""
A_SH = 'echo \'{"said": "hello"}\'\n'


def _worker(client: Client, name: str) -> WorkerInfo:
    return next(worker for worker in client.health().workers if worker.name.startswith(f"{name}@"))


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
def test_a_worker_with_a_full_disk_leaves_its_visits_to_a_sound_one(
    redis_server: RedisServer, tmp_path: Path, pool: str
) -> None:
    """Finding C18."""
    agent = write_agent(tmp_path / "rows", GRAPH, a_sh=A_SH)
    with (
        full_disk(tmp_path / "full") as disk,
        Stack(redis_server, tmp_path / "home", key_prefix=f"sick-{pool}", max_redeliveries=0) as stack,
        stack.client() as client,
    ):
        stack.start_scheduler()
        stack.start_worker("sick", "scripts", pool=pool, env={"SLEIPNIR_HOME": str(disk.folder)})
        runs = [client.submit(agent) for _ in range(20)]
        wait_until(lambda: _worker(client, "sick").stopped, "the sick worker says so")
        assert _worker(client, "sick").queues == ()
        assert "disk" in _worker(client, "sick").stopped["scripts"]
        assert stack.sleipnir("worker", "--health", "--name", "sick").returncode == 0, "a restart would not help"
        assert "disk" in stack.sleipnir("doctor").stdout
        stack.start_worker("sound", "scripts")
        for run in runs:
            assert run.wait(60).status == "completed"
            assert run.output == "hello"
        stack.kill("sound")
        after = client.submit(agent)
        disk.make_room()
        assert after.wait(60).status == "completed", "the sick worker tries again automatically"
        assert after.output == "hello"
        wait_until(lambda: not _worker(client, "sick").stopped, "it says that it is sound")
        assert all(step.attempt == 1 or step.error is None for run in runs for step in run.history())
