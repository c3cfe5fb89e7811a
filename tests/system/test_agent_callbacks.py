"""Callbacks of agent nodes on real processes that are killed: what they decided counts once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.failpoints import VARIABLE
from tests.branching import committed
from tests.processes import RedisServer, Stack, wait_until, write_agent

PARENT = """
name: parent
version: sleipnir/1
start: ask
nodes:
  ask:
    type: agent
    agent: child
    prompt: "{{word}}"
    state_updates: {answer: "{{output}}"}
    callbacks: {before: "hooks.py:view", after: "hooks.py:answered", agent_event: "hooks.py:heard"}
    next: done
  done: {type: end, output: "{{answer}} {{word}}"}
"""
HOOKS = """
from sleipnir import emit


def heard(state, info, event):
    emit("heard", [event["type"], event["data"].get("node"), event["data"].get("keys")])


def view(state, info):
    state["word"] = state["word"] + " there"


def answered(state, info, result, error):
    assert info.context["child"]["status"] == "completed"
    return {"answer": result["answer"] + " (" + info.node + ")"}
"""
CHILD = """
name: child
version: sleipnir/1
start: work
nodes:
  work: {type: function, call: "work.py:work", next: done}
  done: {type: end, output: "{{said}}"}
"""
WORK = """
def work(state):
    return {"said": state["initial_prompt"] + "!"}
"""
HEARD = [["visit_closed", "work", ["said"]], ["visit_closed", "done", []], ["run_ended", None, None]]
MARKS = ("input changed: word by before hooks.py:view", "replaced by after hooks.py:answered")


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    agents = tmp_path / "agents"
    write_agent(agents / "parent", PARENT, hooks_py=HOOKS)
    write_agent(agents / "child", CHILD, work_py=WORK)
    prefix = "".join(each for each in request.node.name if each.isalnum())
    times = {"owner_ttl_s": 0.5, "lease_s": 2.0, "heartbeat_s": 0.3}
    with Stack(redis_server, tmp_path / "home", key_prefix=prefix, agents_dir=agents, **times) as stack:
        yield stack


def dies(stack: Stack, name: str) -> None:
    process = stack.processes.pop(name)
    wait_until(lambda: process.poll() is not None, f"{name} comes to its failpoint\n{stack.log(name)}")
    assert process.returncode == -signal.SIGKILL, stack.log(name)


@pytest.mark.parametrize(
    ("victim", "point"),
    [
        ("scheduler", "commit.after=kill@2"),
        ("scheduler", "create_run.after=kill@1"),
        ("scheduler", "child_ended.after=kill@1"),
        ("worker", "deliver.before=kill@1"),
        ("worker", "deliver.after=kill@3"),
    ],
)
def test_what_callbacks_of_an_agent_node_decided_counts_once(own: Stack, victim: str, point: str) -> None:
    env = {VARIABLE: point}
    own.start_scheduler("scheduler", env=env if victim == "scheduler" else None)
    own.start_worker("worker", env=env if victim == "worker" else None)
    with own.client() as client:
        run = client.submit("parent", state={"word": "hello"})
        dies(own, victim)
        if victim == "scheduler":
            own.start_scheduler("next")
        else:
            own.start_worker("next")
        assert (run.wait(60).status, run.output) == ("completed", "hello there! (ask) hello"), run.error
        assert committed(run) == {"ask": 1, "done": 1}
        [asked] = [step for step in run.history() if step.node == "ask"]
        assert asked.callbacks == MARKS
        told = [event.data for event in run.stream(["custom"]) if event.type == "custom"]
        last = max(each["attempt"] for each in told)
        assert [each["payload"] for each in told if each["attempt"] == last] == HEARD
    assert (
        "agent, input changed: word by before hooks.py:view, replaced by after"
        in own.sleipnir("history", run.id).stdout
    )
