"""Llm nodes with tools, on real processes: killed workers cost a turn or a call, and nothing that was recorded.

The model counts its answers. Each turn asks for three tools at once, which write what they did to a file of theirs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent
from tests.system.test_secrets import forms

TURNS = 12
GRAPH = """
name: loop
start: ask
nodes:
  ask: {type: llm, model: "openai:gpt-test", prompt: "conversation {{initial_prompt}}", tools: [mark],
        max_iterations: 100, state_updates: {said: "{{output}}"}, next: e}
  e: {type: end, output: "{{said}}"}
"""
TOOLS = '''
import os
from pathlib import Path


def mark(turn: int, number: int):
    """Leave a mark."""
    for name in os.environ:
        assert not name.endswith("_API_KEY"), name
    with (Path(os.environ["GRAPH_CALLER_DIR"]) / f"{turn}.{number}").open("a") as file:
        file.write("x")
    return {"turn": turn, "number": number}
'''
KEY = "sk-planted-key-0123456789"


def replies(request: Request) -> Reply:
    """Three calls in each turn, and a check that the turn before was answered as it had to be."""
    turn = request.turn
    if turn > 1:
        last = [json.loads(result.text) for result in request.tool_results[-3:]]
        assert last == [{"turn": turn - 1, "number": number} for number in range(3)], last
    if turn > TURNS:
        return Reply(f"{turn}.")
    return Reply(f"{turn} ", calls=[Call("mark", {"turn": turn, "number": number}) for number in range(3)])


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(replies) as server:
        yield server


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix="loops", owner_ttl_s=0.5) as stack:
        yield stack


def start_workers(stack: Stack, model: ModelServer) -> None:
    stack.start_worker("models", "llm", env=model.env(key=KEY), ready=False)
    stack.start_worker("tools", "scripts", concurrency=3, ready=False)
    for name in ("models", "tools"):
        stack.wait_for_worker(name)


def marks(folder: Path) -> Counter[str]:
    return Counter({file.name: len(file.read_text()) for file in folder.iterdir()})


@pytest.mark.conformance("M07", "M16", "X08")
def test_a_loop_whose_workers_are_killed_again_and_again_ends_as_without_faults(
    own: Stack, model: ModelServer, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    agent = write_agent(tmp_path / "loop", GRAPH, tools_py=TOOLS)
    own.start_scheduler()
    start_workers(own, model)
    with own.client() as client:
        run = client.submit(agent, "one", caller_dir=scratch)
        for turn in (2, 5, 8, 11):
            wait_until(lambda turn=turn: len(marks(scratch)) >= 3 * turn, f"turn {turn}", 90)  # type: ignore[misc]
            for name in ("models", "tools"):
                own.kill(name)
            start_workers(own, model)
        info = run.wait(120)
        steps = run.history()
    assert info.status == "completed", info.error
    assert run.output == "\n".join([*(f"{turn} " for turn in range(1, TURNS + 1)), f"{TURNS + 1}."])
    parts = Counter((step.part.turn, step.part.call) for step in steps if step.part is not None)
    assert parts == {(turn, call): 1 for turn in range(TURNS) for call in (None, 0, 1, 2)} | {(TURNS, None): 1}
    done = marks(scratch)
    assert set(done) == {f"{turn}.{number}" for turn in range(1, TURNS + 1) for number in range(3)}
    lost = Counter({role: sum(step.attempt - 1 for step in steps if step.role == role) for role in ("turn", "tool")})
    assert done.total() - len(done) <= lost["tool"], "a call that was recorded is never made again"
    answered = sum(sum(turns.values()) for turns in model.counts().values())
    assert answered - (TURNS + 1) <= lost["turn"], "nor is a model asked again for an answer that was recorded"
    assert info.usage.calls == TURNS + 1, "what killed workers spent is told by nobody, and no turn counts twice"
    assert nowhere(KEY, own)


def nowhere(secret: str, stack: Stack) -> bool:
    """Nothing that was ever written to Redis, no log and no file of the stack holds it."""
    for folder in (stack.redis.folder, stack.home):
        for file in folder.rglob("*"):
            assert not file.is_file() or not any(form in file.read_bytes() for form in forms(secret)), file
    return True
