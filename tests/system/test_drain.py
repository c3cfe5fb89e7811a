"""A worker that is told to stop: it claims nothing more, lets visits finish for a while, and hands back the rest."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client import Run
from tests.processes import RedisServer, Stack, wait_until, write_agent

POOLS = ["prefork", "threads", "solo"]

GRAPH = """
name: drained
start: a
nodes:
  a: {type: function, call: "f.py:f", queue: work, next: done, timeout: 600}
  done: {type: end, output: "{{who}}"}
"""
SCRIPT = GRAPH.replace('type: function, call: "f.py:f"', "type: script, script: a.sh")

# Waits for the file `go`, which may never appear, unless the first attempt was here before.
WAITING_F = """
import os, pathlib, threading
here = pathlib.Path({folder!r})
def f(state):
    if (here / "mark").exists():
        return {{"who": "second"}}
    (here / "mark").write_text(str(os.getpid()))
    while not (here / "go").exists():
        threading.Event().wait(0.02)
    return {{"who": "first"}}
"""
WAITING_SH = """
if [ -e {folder}/mark ]; then echo '{{"who": "second"}}'; exit; fi
trap '' TERM
echo $$ > {folder}/mark
while [ ! -e {folder}/go ]; do sleep 0.05; done
echo '{{"who": "first"}}'
"""
# A lock that nobody releases: CPython cannot interrupt a thread in it.
STUCK_F = """
import pathlib, threading
mark = pathlib.Path({folder!r}) / "mark"
def f(state):
    if mark.exists():
        return {{"who": "second"}}
    mark.write_text("here")
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""
QUICK_F = "def f(state):\n    return {'who': 'quick'}\n"


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """Leases and patience that outlast every test: only a hand-back moves a visit on."""
    settings = {"lease_s": 120.0, "heartbeat_s": 0.5, "redispatch_after_s": 300.0}
    with Stack(redis_server, tmp_path / "home", key_prefix=f"drain-{tmp_path.name}", **settings) as running:
        running.start_scheduler()
        yield running


def waiting_agent(folder: Path, kind: str = "function") -> tuple[Path, Path, Path]:
    """An agent whose first attempt waits; the file that shows that it runs, and the one that lets it go."""
    files = {"f_py": WAITING_F.format(folder=str(folder))} if kind == "function" else {}
    files |= {"a_sh": WAITING_SH.format(folder=folder)} if kind == "script" else {}
    agent = write_agent(folder / "drained", GRAPH if kind == "function" else SCRIPT, **files)
    return agent, folder / "mark", folder / "go"


def exit_code(stack: Stack, name: str, timeout_s: float = 30) -> int:
    process = stack.processes[name]
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{name} did not stop\n{stack.log(name)}")


@pytest.mark.parametrize("pool", POOLS)
def test_a_draining_worker_finishes_what_runs_and_claims_nothing_new(stack: Stack, tmp_path: Path, pool: str) -> None:
    agent, mark, go = waiting_agent(tmp_path)
    stack.settings = stack.settings.model_copy(update={"drain_s": 300.0})
    stack.start_worker("old", "work", pool=pool)
    with stack.client() as client:
        slow = client.submit(agent)
        wait_until(mark.exists, "the first run's function runs")
        stack.signal("old", signal.SIGTERM)
        quick = client.submit(write_agent(tmp_path / "quick", GRAPH.replace("drained", "quick"), f_py=QUICK_F))
        wait_until(lambda: not client.health().workers, "the draining worker has left the fleet")
        stack.start_worker("new", "work", pool=pool)
        assert quick.wait(30).status == "completed"
        assert quick.history()[1].worker.startswith("new@")
        assert not slow.info().is_final
        go.touch()
        assert slow.wait(30).status == "completed"
        assert (slow.output, slow.history()[1].attempt) == ("first", 1)
        assert exit_code(stack, "old") == 0
    assert "draining: 1 visit running, up to 300 s" in stack.log("old")


@pytest.mark.parametrize("kind", ["function", "script"])
@pytest.mark.parametrize("pool", POOLS)
def test_what_does_not_finish_in_the_grace_period_is_handed_back_and_starts_elsewhere(
    stack: Stack, tmp_path: Path, pool: str, kind: str
) -> None:
    agent, mark, _ = waiting_agent(tmp_path, kind)
    stack.settings = stack.settings.model_copy(update={"drain_s": 0.5})
    stack.start_worker("old", "work", pool=pool)
    with stack.client() as client:
        run = client.submit(agent)
        pid = int(wait_until(lambda: mark.exists() and mark.read_text().strip(), "the visit runs"))
        stack.signal("old", signal.SIGTERM)
        assert exit_code(stack, "old") == 0
        assert "visit handed back" in stack.log("old")
        assert not Path(f"/proc/{pid}").exists()
        check_second_attempt(stack, run)


@pytest.mark.parametrize("signals", [(signal.SIGTERM,) * 2, (signal.SIGINT,) * 2, (signal.SIGQUIT,)])
@pytest.mark.parametrize("pool", POOLS)
def test_a_second_signal_or_sigquit_hands_back_at_once(
    stack: Stack, tmp_path: Path, pool: str, signals: tuple[int, ...]
) -> None:
    agent, mark, _ = waiting_agent(tmp_path)
    stack.settings = stack.settings.model_copy(update={"drain_s": 300.0})
    stack.start_worker("old", "work", pool=pool)
    with stack.client() as client:
        run = client.submit(agent)
        wait_until(mark.exists, "the visit runs")
        for number, signum in enumerate(signals):
            if number:
                wait_until(lambda: "draining: 1 visit running" in stack.log("old"), "the first signal has arrived")
            stack.signal("old", signum)
        assert exit_code(stack, "old") == 0
        check_second_attempt(stack, run)


def check_second_attempt(stack: Stack, run: Run) -> None:
    """Another worker runs the visit at once, though the lease was for two minutes."""
    stack.start_worker("new", "work")
    assert run.wait(30).status == "completed"
    assert run.output == "second"
    step = run.history()[1]
    assert (step.attempt, step.worker.split("@")[0]) == (2, "new")
    assert [event.type for event in run.events(follow=False)].count("late_result") == 0


@pytest.mark.parametrize("pool", POOLS)
def test_a_visit_that_cannot_be_stopped_is_left_to_its_lease(stack: Stack, tmp_path: Path, pool: str) -> None:
    agent = write_agent(tmp_path / "drained", GRAPH, f_py=STUCK_F.format(folder=str(tmp_path)))
    stack.settings = stack.settings.model_copy(update={"drain_s": 0.2, "lease_s": 3.0})
    stack.start_worker("old", "work", pool=pool)
    with stack.client() as client:
        run = client.submit(agent)
        wait_until((tmp_path / "mark").exists, "the visit runs")
        stack.signal("old", signal.SIGTERM)
        assert exit_code(stack, "old") == 1
        assert "1 visit did not stop" in stack.log("old")
        stack.start_worker("new", "work")
        assert run.wait(30).status == "completed"
        assert run.output == "second"


def test_a_signal_to_the_whole_process_group_ends_no_visit(stack: Stack, tmp_path: Path) -> None:
    """As some init processes of containers send it; a terminal does so too."""
    agent, mark, go = waiting_agent(tmp_path)
    stack.start_worker("old", "work", pool="prefork")
    with stack.client() as client:
        run = client.submit(agent)
        child = int(wait_until(lambda: mark.exists() and mark.read_text(), "the visit runs"))
        for pid in (child, stack.processes["old"].pid):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: "draining: 1 visit running" in stack.log("old"), "the worker drains")
        go.touch()
        assert run.wait(30).status == "completed"
        assert (run.output, run.history()[1].ok) == ("first", True)
        assert exit_code(stack, "old") == 0


@pytest.mark.parametrize("pool", POOLS)
def test_an_idle_worker_stops_at_once(stack: Stack, pool: str) -> None:
    stack.start_worker("old", "work", pool=pool)
    stack.signal("old", signal.SIGTERM)
    assert exit_code(stack, "old") == 0
    with stack.client() as client:
        assert client.health().workers == ()
