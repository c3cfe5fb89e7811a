"""Callbacks on the fleet: over retries, a dead worker and the cache, and what people see of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

GRAPH = """
name: hooked
version: sleipnir/1
start: work
callbacks: {before: "hooks.py:watch", error: "hooks.py:note"}
nodes:
  work: {type: script, script: work.sh, NODE next: done}
  done: {type: end, output: "{{out}}"}
"""
HOOKS = """
def write(line):
    with open("PLACE/seen", "a") as file:
        file.write(line + "\\n")
def watch(state, info): write(f"before {info.attempt}")
def note(state, info, error): write(f"error {info.failures}")
def mend(state, info, result, error):
    write(f"after {'failure' if error else 'result'}")
    return {"out": "mended"} if error else None
"""
WORK = """
echo work >> PLACE/seen
while [ -e PLACE/block ]; do sleep 0.02; done
[ -e PLACE/fails ] && exit 1
echo '{"out": "worked"}'
"""


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """A scheduler and a worker, whose leases are short."""
    prefix = f"hooked-{tmp_path.name}"
    settings = {"key_prefix": prefix, "owner_ttl_s": 0.5, "lease_s": 2.0, "heartbeat_s": 0.3}
    with Stack(redis_server, tmp_path / "home", **settings) as stack:
        stack.start_scheduler()
        stack.start_worker("one", concurrency=2)
        yield stack


def submitted(client: Client, folder: Path, node: str) -> Run:
    text = GRAPH.replace("NODE", node)
    files = {"hooks_py": HOOKS.replace("PLACE", str(folder)), "work_sh": WORK.replace("PLACE", str(folder))}
    return client.submit(write_agent(folder / "hooked", text, **files))


def seen(folder: Path) -> list[str]:
    file = folder / "seen"
    return file.read_text().splitlines() if file.exists() else []


def test_over_retries_before_runs_once_and_after_mends_the_last_failure(own: Stack, tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    with own.client() as client:
        node = 'retry: {max_attempts: 3, initial_interval: 10ms}, callbacks: {after: "hooks.py:mend"},'
        run = submitted(client, tmp_path, node)
        assert (run.wait(60).status, run.output) == ("completed", "mended")
        assert seen(tmp_path) == [
            "before 1", "work", "error 0", "work", "error 1", "work", "error 2", "after failure",
        ]  # fmt: skip
        [step] = [step for step in run.history() if step.node == "work"]
        assert (step.ok, step.attempt, step.callbacks) == (True, 3, ("recovered by after hooks.py:mend",))
    assert "script, recovered by after hooks.py:mend" in own.sleipnir("history", run.id).stdout


def test_after_a_worker_died_all_runs_again(own: Stack, tmp_path: Path) -> None:
    (tmp_path / "block").touch()
    with own.client() as client:
        run = submitted(client, tmp_path, 'callbacks: {after: "hooks.py:mend"},')
        wait_until(lambda: "work" in seen(tmp_path), "the script runs")
        own.kill("one")
        (tmp_path / "block").unlink()
        own.start_worker("two", concurrency=2)
        assert (run.wait(60).status, run.output) == ("completed", "worked")
        assert seen(tmp_path) == ["before 1", "work", "before 2", "work", "after result"]


def test_around_a_cached_result_both_run(own: Stack, tmp_path: Path) -> None:
    with own.client() as client:
        for _ in range(2):
            run = submitted(client, tmp_path, 'cache: true, callbacks: {after: "hooks.py:mend"},')
            assert (run.wait(60).status, run.output) == ("completed", "worked")
        assert seen(tmp_path) == ["before 1", "work", "after result", "before 1", "after result"]
        assert run.info().cached_visits == 1
