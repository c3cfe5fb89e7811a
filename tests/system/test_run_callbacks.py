"""`callbacks.agent` on the fleet: the agent's functions around its runs, under kills, in child runs and forks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client
from sleipnir.failpoints import VARIABLE
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: watched
version: sleipnir/1
start: work
callbacks: {agent: {before: "hooks.py:first", after: "hooks.py:last"}}
nodes:
  work: {type: function, call: "work.py:work", next: done}
  done: {type: end, output: "{{n}} {{word}}"}
"""
HOOKS = """
def first(state, info):
    if state["word"] == "ping":
        return "pong"
    state["n"] = state["n"] + 10


def last(state, info, output, error):
    state["ended"] = error or output
    return "sorry" if error else output + "!"
"""
WORK = """
def work(state):
    if state["word"] == "fail":
        raise ValueError("no luck")
    return {"n": state["n"] + 1}
"""
SLOW_GRAPH = """
name: slow
version: sleipnir/1
start: done
callbacks: {agent: {after: "hooks.py:last"}}
nodes:
  done: {type: end, output: over}
"""
SLOW_HOOKS = """
import time
from pathlib import Path


def last(state, info, output, error):
    folder = Path(state["folder"])
    with (folder / "called").open("a") as file:
        file.write("x")
    until = time.monotonic() + 25
    while not (folder / "go").exists() and time.monotonic() < until:
        time.sleep(0.05)
    state["ended"] = output
    return output + "!"
"""
PARENT = """
name: above
version: sleipnir/1
start: ask
nodes:
  ask: {type: agent, agent: watched, prompt: "x", map_in: {word: "{{word}}", n: "{{n}}"},
        state_updates: {answer: "{{output}}"}, next: done}
  done: {type: end, output: "{{answer}}"}
"""


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    agents = tmp_path / "agents"
    write_agent(agents / "watched", GRAPH, hooks_py=HOOKS, work_py=WORK)
    write_agent(agents / "above", PARENT)
    prefix = "".join(each for each in request.node.name if each.isalnum())
    times = {"owner_ttl_s": 0.5, "lease_s": 2.0, "heartbeat_s": 0.3}
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, agents_dir=agents, **times) as stack:
        yield stack


def ended(client: Client, word: str, agent: str = "watched") -> tuple[str, str | None]:
    run = client.submit(agent, state={"word": word, "n": 1})
    status = run.wait(60).status
    return status, run.output


@pytest.mark.parametrize(
    ("victim", "point"),
    [
        ("scheduler", "commit.after=kill@1"),
        ("scheduler", "commit.before=kill@2"),
        ("scheduler", "commit.after=kill@3"),
        ("worker", "deliver.before=kill@1"),
        ("worker", "deliver.after=kill@1"),
        ("worker", "deliver.before=kill@3"),
        ("worker", "deliver.after=kill@3"),
    ],
)
def test_what_they_decide_counts_once_whoever_dies(own: Stack, victim: str, point: str) -> None:
    env = {VARIABLE: point}
    own.start_scheduler("scheduler", env=env if victim == "scheduler" else None)
    own.start_worker("worker", env=env if victim == "worker" else None)
    with own.client() as client:
        run = client.submit("watched", state={"word": "hello", "n": 1})
        process = own.processes.pop(victim)
        wait_until(lambda: process.poll() is not None, f"{victim} comes to its failpoint\n{own.log(victim)}")
        assert process.returncode == -signal.SIGKILL, own.log(victim)
        if victim == "scheduler":
            own.start_scheduler("next")
        else:
            own.start_worker("next")
        assert (run.wait(60).status, run.output) == ("completed", "12 hello!"), run.error
        assert run.state() == {"word": "hello", "n": 12, "ended": "12 hello", "initial_prompt": ""}
        assert [step.role for step in run.history() if step.seq] == ["before_run", "node", "node", "after_run"]
    assert "run replaced by after hooks.py:last" in own.sleipnir("history", run.id).stdout


@pytest.mark.parametrize("victim", ["nobody", "scheduler", "worker"])
def test_a_paused_run_ends_with_what_functions_after_it_have_left_once_it_is_resumed(
    own: Stack, tmp_path: Path, victim: str
) -> None:
    write_agent(tmp_path / "agents" / "slow", SLOW_GRAPH, hooks_py=SLOW_HOOKS)
    own.start_scheduler("first")
    own.start_worker("worker", env={VARIABLE: "deliver.after=kill@1"} if victim == "worker" else None)
    with own.client() as client:
        run = client.submit("slow", state={"folder": str(tmp_path)})
        wait_until((tmp_path / "called").exists, f"the function after the run is called\n{own.log('worker')}")
        run.pause()
        wait_until(lambda: run.status == "paused", "the run is paused")
        if victim == "scheduler":
            own.kill("first")
            own.start_scheduler("second", env={VARIABLE: "commit.after=kill@1"})
        (tmp_path / "go").touch()
        if victim != "nobody":
            process = own.processes.pop("second" if victim == "scheduler" else "worker")
            wait_until(lambda: process.poll() is not None, f"the {victim} dies\n{own.log('worker')}")
            assert process.returncode == -signal.SIGKILL
            own.start_scheduler("third") if victim == "scheduler" else own.start_worker("next")
        wait_until(lambda: run.state().get("ended") == "over", "the function has returned")
        assert (run.status, run.output) == ("paused", None)
        run.resume()
        assert (run.wait(60).status, run.output) == ("completed", "over!"), run.error
        assert [step.role for step in run.history() if step.seq] == ["node", "after_run"]
        assert (tmp_path / "called").read_text() == "x", "it was called once"


def test_runs_end_with_what_they_give_also_below_another_run(own: Stack) -> None:
    own.start_scheduler()
    own.start_worker()
    with own.client() as client:
        assert ended(client, "ping") == ("completed", "pong")
        assert ended(client, "fail") == ("completed", "sorry")
        assert ended(client, "ping", "above") == ("completed", "pong")
        assert ended(client, "hello", "above") == ("completed", "12 hello!")
        assert ended(client, "fail", "above") == ("completed", "sorry")


def test_a_fork_from_the_beginning_calls_them_and_one_from_later_calls_those_after_it(own: Stack) -> None:
    own.start_scheduler()
    own.start_worker()
    with own.client() as client:
        run = client.submit("watched", state={"word": "hello", "n": 1})
        run.wait(60)
        first = run.fork(at=0, state={"n": 5})
        assert (first.wait(60).status, first.output) == ("completed", "16 hello!")
        [step] = [step.step for step in run.history() if step.node == "work" and step.role == "node"]
        later = run.fork(at=step, state={"word": "again"})
        assert (later.wait(60).status, later.output) == ("completed", "12 again!")
