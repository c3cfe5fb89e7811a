"""A worker that is told to stop: it claims nothing more, lets visits finish for a while, and hands back the rest."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.local.home import Home
from sleipnir.settings import Settings
from sleipnir.testing import ModelServer, Reply
from tests import starter
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
PYTHON = GRAPH.replace('type: function, call: "f.py:f"', "type: script, script: a.py")

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
WAITING_PY = """
import json, os, pathlib, signal, time
here = pathlib.Path({folder!r})
first = not (here / "mark").exists()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if first:
    (here / "mark").write_text(str(os.getpid()))
while first and not (here / "go").exists():
    time.sleep(0.05)
print(json.dumps({{"who": "first" if first else "second"}}))
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
    graph, name, text = {
        "function": (GRAPH, "f_py", WAITING_F),
        "shell": (SCRIPT, "a_sh", WAITING_SH),
        "python": (PYTHON, "a_py", WAITING_PY),
    }[kind]
    agent = write_agent(folder / "drained", graph, **{name: text.format(folder=str(folder))})
    return agent, folder / "mark", folder / "go"


def exit_code(stack: Stack, name: str, timeout_s: float = 60) -> int:
    process = stack.processes[name]
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{name} did not stop\n{stack.log(name)}")


@pytest.mark.parametrize("pool", POOLS)
def test_a_draining_worker_finishes_what_runs_and_claims_nothing_new(stack: Stack, tmp_path: Path, pool: str) -> None:
    agent, mark, go = waiting_agent(tmp_path)
    stack.settings = stack.settings.replaced(drain_s=300.0)
    stack.start_worker("old", "work", pool=pool)
    with stack.client() as client:
        slow = client.submit(agent)
        wait_until(mark.exists, "the first run's function runs")
        stack.signal("old", signal.SIGTERM)
        quick = client.submit(write_agent(tmp_path / "quick", GRAPH.replace("drained", "quick"), f_py=QUICK_F))
        wait_until(lambda: not client.health().workers, "the draining worker has left the fleet")
        stack.start_worker("new", "work", pool=pool)
        assert quick.wait(60).status == "completed"
        assert quick.history()[1].worker.startswith("new@")
        assert not slow.info().is_final
        go.touch()
        assert slow.wait(60).status == "completed"
        assert (slow.output, slow.history()[1].attempt) == ("first", 1)
        assert exit_code(stack, "old") == 0
    # "2 visits" if the second message is being put back at that moment.
    assert re.search(r"draining: [12] visits? running, up to 300 s", stack.log("old"))


@pytest.mark.parametrize("kind", ["function", "shell", "python"])
@pytest.mark.parametrize("pool", POOLS)
def test_visits_that_exceed_the_grace_period_are_handed_back_and_start_on_another_worker(
    stack: Stack, tmp_path: Path, pool: str, kind: str
) -> None:
    agent, mark, _ = waiting_agent(tmp_path, kind)
    stack.settings = stack.settings.replaced(drain_s=0.5)
    stack.start_worker("old", "work", pool=pool)
    with stack.client() as client:
        run = client.submit(agent)
        pid = int(wait_until(lambda: mark.exists() and mark.read_text().strip(), "the visit runs"))
        stack.signal("old", signal.SIGTERM)
        assert exit_code(stack, "old") == 0
        assert "visit handed back" in stack.log("old")
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "nothing of the visit is left")
        check_second_attempt(stack, run)


@pytest.mark.parametrize("signals", [(signal.SIGTERM,) * 2, (signal.SIGINT,) * 2, (signal.SIGQUIT,)])
@pytest.mark.parametrize("pool", POOLS)
def test_a_second_signal_or_sigquit_hands_back_at_once(
    stack: Stack, tmp_path: Path, pool: str, signals: tuple[int, ...]
) -> None:
    agent, mark, _ = waiting_agent(tmp_path)
    stack.settings = stack.settings.replaced(drain_s=300.0)
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
    assert run.wait(60).status == "completed"
    assert run.output == "second"
    step = run.history()[1]
    assert (step.attempt, step.worker.split("@")[0]) == (2, "new")
    assert [event.type for event in run.events(follow=False)].count("late_result") == 0


def test_a_visit_that_cannot_be_stopped_is_left_to_its_lease(redis_server: RedisServer, tmp_path: Path) -> None:
    """A worker of each kind of pool, all at once, as each waits a while before it gives up."""
    settings = {"lease_s": 3.0, "heartbeat_s": 0.5, "redispatch_after_s": 300.0, "drain_s": 0.2}
    runs = []
    with (
        Stack(redis_server, tmp_path / "home", key_prefix=f"drain-{tmp_path.name}", **settings) as stack,
        stack.client() as client,
    ):
        stack.start_scheduler()
        for pool in POOLS:
            (tmp_path / pool).mkdir()
            graph, code = GRAPH.replace("queue: work", f"queue: {pool}"), STUCK_F.format(folder=str(tmp_path / pool))
            stack.start_worker(pool, pool, pool=pool, ready=False)
            runs.append(client.submit(write_agent(tmp_path / pool / "drained", graph, f_py=code)))
        for pool in POOLS:
            wait_until((tmp_path / pool / "mark").exists, "the visit runs")
        for pool in POOLS:
            stack.signal(pool, signal.SIGTERM)
        for pool in POOLS:
            assert exit_code(stack, pool) == 1
            assert "1 visit did not stop" in stack.log(pool)
        stack.start_worker("new", ",".join(POOLS))
        for run in runs:
            assert run.wait(60).status == "completed"
            assert run.output == "second"


def test_the_answer_of_a_model_that_is_not_there_yet_is_dropped(stack: Stack, tmp_path: Path) -> None:
    model = "type: llm, prompt: hi, state_updates: {who: '{{output}}'}"
    graph = GRAPH.replace('type: function, call: "f.py:f", queue: work', model)
    stack.settings = stack.settings.replaced(drain_s=0.5)
    with ModelServer([Reply(hang=True), "second"]) as server, stack.client() as client:
        env = server.env("openai", "sk-test") | {"SLEIPNIR_MODEL": "openai:gpt-test"}
        stack.start_worker("old", "llm", env=env)
        run = client.submit(write_agent(tmp_path / "drained", graph))
        wait_until(lambda: server.requests, "litellm is loaded and the model asked")
        stack.signal("old", signal.SIGTERM)
        assert exit_code(stack, "old") == 0
        stack.start_worker("new", "llm", env=env)
        assert run.wait(60).status == "completed"
        assert (run.output, run.history()[1].attempt) == ("second", 2)


def test_a_shutdown_by_remote_control_drains_too(stack: Stack, tmp_path: Path) -> None:
    agent, mark, _ = waiting_agent(tmp_path)
    stack.settings = stack.settings.replaced(drain_s=0.5)
    stack.start_worker("old", "work", pool="threads")
    with stack.client() as client:
        run = client.submit(agent)
        wait_until(mark.exists, "the visit runs")
        command = [sys.executable, "-m", "celery", "-A", "sleipnir_workers.app", "control", "shutdown"]
        # Its exit code says that nobody replied: workers that shut down do not.
        starter.run(command, stack.environment())
        assert exit_code(stack, "old") == 0
        check_second_attempt(stack, run)


def sleipnir(home: Path, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
    """The command line with a private stack in `home`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    home.mkdir(exist_ok=True)
    with (home / "said.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "sleipnir", "--home", str(home), *arguments],
            env=env | settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def test_ctrl_c_stops_a_run_in_a_private_stack_without_waiting_for_its_script(tmp_path: Path) -> None:
    agent, mark, _ = waiting_agent(tmp_path, "shell")
    agent = write_agent(agent, SCRIPT.replace("queue: work, ", ""))
    run = sleipnir(tmp_path / "h", "run", str(agent), "hi", SLEIPNIR_DRAIN_S="300")
    pid = int(wait_until(lambda: mark.exists() and mark.read_text().strip(), "the script runs"))
    run.send_signal(signal.SIGINT)
    assert run.wait(60) == 130
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "its script is gone with the stack")
    log = (tmp_path / "h" / "logs" / "worker-scripts.log").read_text()
    assert "visit handed back" in log


def test_a_second_ctrl_c_stops_up_at_once_and_the_next_one_continues(tmp_path: Path) -> None:
    agent, mark, _ = waiting_agent(tmp_path, "shell")
    agent = write_agent(agent, SCRIPT.replace("queue: work, ", ""))
    home = Home(tmp_path / "h")
    log = home.logs / "worker-scripts.log"
    up = sleipnir(home.root, "up", SLEIPNIR_DRAIN_S="300")
    wait_until(lambda: (state := home.running()) and state.workers, "the stack is up")
    with Client(Settings(redis_url=home.redis_url, home=home.root)) as client:
        run_id = client.submit(agent).id
        wait_until(mark.exists, "the script runs")
        up.send_signal(signal.SIGINT)
        wait_until(lambda: "draining: 1 visit running, up to 300 s" in log.read_text(), "the worker drains")
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
    up = sleipnir(home.root, "up")
    wait_until(lambda: (state := home.running()) and state.workers, "the stack is up again")
    with Client(Settings(redis_url=home.redis_url, home=home.root)) as client:
        assert client.run(run_id).wait(60).status == "completed"
        assert client.run(run_id).output == "second"
    up.terminate()
    assert up.wait(60) == 0


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
        assert run.wait(60).status == "completed"
        assert (run.output, run.history()[1].ok) == ("first", True)
        assert exit_code(stack, "old") == 0


@pytest.mark.parametrize("pool", POOLS)
def test_an_idle_worker_stops_at_once(stack: Stack, pool: str) -> None:
    stack.start_worker("old", "work", pool=pool)
    stack.signal("old", signal.SIGTERM)
    assert exit_code(stack, "old") == 0
    with stack.client() as client:
        assert client.health().workers == ()
