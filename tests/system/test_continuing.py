"""An agent with a todo list goes on by itself until it is done, on real processes: killed workers change nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until

TASKS = 3
CONFIG = """
name: worker
model: openai:gpt-test
auto_continue: true
max_auto_continues: 5
continuation_prompt: Go on.
"""
TOOLS = '''
import os
from pathlib import Path


def mark(task: int):
    """Leave a mark."""
    with (Path(os.environ["GRAPH_CALLER_DIR"]) / str(task)).open("a") as file:
        file.write("x")
    return "marked"
'''


class Model:
    """Makes a list of tasks, then announces each before it does it. The first time that it is asked for one of `hung`
    turns, it says nothing."""

    def __init__(self, *hung: int) -> None:
        self.asked: Counter[int] = Counter()
        self._hung = hung

    def __call__(self, request: Request) -> Reply:
        turn = request.turn
        self.asked[turn] += 1
        if turn in self._hung and self.asked[turn] == 1:
            return Reply(hang=True)
        if turn == 1:
            adding = [Call("todo__add", {"task": f"task {number + 1}"}) for number in range(TASKS)]
            return Reply(calls=[Call("todo__init", {"goal": "all"}), *adding])
        if turn == 2 * TASKS + 2:
            return Reply("all done")
        task = turn // 2
        if turn % 2 == 0:
            return Reply(f"next is {task}")
        told = [f"  {'✓' if number < task else '○'} {number}. task {number}" for number in range(1, TASKS + 1)]
        assert request.prompt == "\n".join(
            ["Go on.", "", "Goal: all", f"Progress: {task - 1}/{TASKS} completed", *told]
        )
        return Reply(calls=[Call("mark", {"task": task}), Call("todo__done", {"id": str(task)})])


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix="continuing", owner_ttl_s=0.5) as stack:
        yield stack


@pytest.mark.conformance("D02", "D03")
def test_an_agent_that_continues_by_itself_ends_as_without_faults_though_its_workers_are_killed(
    own: Stack, tmp_path: Path
) -> None:
    agent, scratch = tmp_path / "worker", tmp_path / "scratch"
    agent.mkdir()
    scratch.mkdir()
    (agent / "config.yaml").write_text(CONFIG)
    (agent / "tools.py").write_text(TOOLS)
    killed_in = (4, 5)  # in a turn that goes on, and in the one that follows it
    model = Model(*killed_in)
    with ModelServer(model) as server, own.client() as client:
        own.start_scheduler()
        own.start_worker("tools", "scripts", ready=False)
        own.start_worker("models", "llm", env=server.env(), ready=False)
        run = client.submit(agent, "one", caller_dir=scratch)
        for turn in killed_in:
            wait_until(lambda turn=turn: model.asked[turn], f"turn {turn} is asked for", 90)  # type: ignore[misc]
            own.kill("models")
            own.start_worker("models", "llm", env=server.env(), ready=False)
        info = run.wait(90)
        steps = run.history()
        told = [event.data for event in client.stream(run, modes=["events"]) if event.type == "turn_ended"]
    assert info.status == "completed", info.error
    assert run.output == "\n".join([*(f"next is {task + 1}" for task in range(TASKS)), "all done"])
    assert {file.name: file.read_text() for file in scratch.iterdir()} == {str(n + 1): "x" for n in range(TASKS)}
    assert model.asked == {turn: 1 + (turn in killed_in) for turn in range(1, 2 * TASKS + 3)}
    assert [step.goes_on for step in steps if step.role == "turn"] == [False, *[True, False] * TASKS, False]
    notes = [note for data in told for note in data.get("notes", ())]
    assert notes == [
        f"📋 Auto-continuing ({n}/5): {TASKS + 1 - n} incomplete todo(s) remain" for n in range(1, TASKS + 1)
    ]
    shown = own.sleipnir("history", run.id).stdout
    assert shown.count("llm, turn 2, continues") == 1
    assert notes[0] in own.sleipnir("watch", run.id).stderr
