"""Tools nodes on real processes: killed workers and schedulers cost a call, and nothing that was recorded; external
calls are answered one by one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent

ROUNDS = 8
GRAPH = """
name: rounds
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages}
nodes:
  ask: {type: llm, instructions: "Leave marks.", tools_node: work, next: e}
  work: {type: tools, tools: [mark], parallel: {max: 2}, next: ask}
  e: {type: end, output: "{{last_response}}"}
"""
TOOLS = '''
import os
from pathlib import Path


def mark(turn: int, number: int):
    """Leave a mark."""
    with (Path(os.environ["GRAPH_CALLER_DIR"]) / f"{turn}.{number}").open("a") as file:
        file.write("x")
    return {"turn": turn, "number": number}
'''


def replies(request: Request) -> Reply:
    """Three calls in each round, and a check that the round before was answered as it had to be."""
    turn = request.turn
    if turn > 1:
        last = [json.loads(result.text) for result in request.tool_results[-3:]]
        assert last == [{"turn": turn - 1, "number": number} for number in range(3)], last
        assert [message["role"] for message in request.messages].count("user") == 1
    if turn > ROUNDS:
        return Reply("the end")
    return Reply(f"{turn} ", calls=[Call("mark", {"turn": turn, "number": number}) for number in range(3)])


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix="tools", owner_ttl_s=0.5) as stack:
        yield stack


def start_workers(stack: Stack, model: ModelServer) -> None:
    stack.start_worker("models", "llm", env=model.env(), ready=False)
    stack.start_worker("tools", "scripts", concurrency=3, ready=False)
    for name in ("models", "tools"):
        stack.wait_for_worker(name)


def marks(folder: Path) -> Counter[str]:
    return Counter({file.name: len(file.read_text()) for file in folder.iterdir()})


@pytest.mark.conformance("TL-05", "LL-29")
def test_a_tools_node_whose_workers_and_scheduler_are_killed_ends_as_without_faults(own: Stack, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    agent = write_agent(tmp_path / "rounds", GRAPH, tools_py=TOOLS)
    with ModelServer(replies) as model, own.client() as client:
        own.start_scheduler()
        start_workers(own, model)
        run = client.submit(agent, "go", caller_dir=scratch)
        for turn in (2, 4, 6):
            wait_until(lambda turn=turn: len(marks(scratch)) >= 3 * turn, f"round {turn}", 90)  # type: ignore[misc]
            for name in ("models", "tools", "scheduler"):
                own.kill(name)
            own.start_scheduler()
            start_workers(own, model)
        info = run.wait(120)
        steps = run.history()
        state = run.state()
        answered = sum(sum(turns.values()) for turns in model.counts().values())
    assert (info.status, run.output) == ("completed", "the end"), info.error
    calls = Counter((step.part.loop, step.part.call) for step in steps if step.part is not None and step.ok)
    assert set(calls.values()) == {1}
    assert len(calls) == 3 * ROUNDS
    roles = Counter(message["role"] for message in state["messages"])
    assert roles == {"user": 1, "assistant": ROUNDS + 1, "tool": 3 * ROUNDS}
    assert len({message["id"] for message in state["messages"]}) == roles.total()
    done = marks(scratch)
    assert set(done) == {f"{turn}.{number}" for turn in range(1, ROUNDS + 1) for number in range(3)}
    lost = sum(step.attempt - 1 for step in steps if step.role == "tool")
    assert done.total() - len(done) <= lost, "a call that was recorded is never made again"
    assert answered - (ROUNDS + 1) <= sum(step.attempt - 1 for step in steps if step.node == "ask")


EXTERNAL = """
name: browsing
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages}
nodes:
  ask: {type: llm, tools_node: work, next: e}
  work:
    type: tools
    tools: [{name: browse, external: true, schema: {type: object, properties: {url: {type: string}}}}]
    parallel: true
    next: ask
  e: {type: end, output: "{{last_response}}"}
"""


def browsing(request: Request) -> Reply:
    if request.turn == 1:
        return Reply(calls=[Call("browse", {"url": url}) for url in ("a", "b", "c")])
    return Reply("; ".join(result.text for result in request.tool_results))


def test_external_calls_are_open_questions_that_are_answered_singly_or_together(own: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "browsing", EXTERNAL)
    with ModelServer(browsing) as model, own.client() as client:
        own.start_scheduler()
        start_workers(own, model)
        run = client.submit(agent, "go")
        wait_until(lambda: len(run.gates()) == 3, "the calls wait", 60)
        gates = run.gates()
        assert [gate.payload["arguments"] for gate in gates] == [{"url": url} for url in "abc"]
        assert len({gate.key for gate in gates}) == 3
        assert all(gate.key and gate.key.startswith("work/") for gate in gates)
        run.answer({"title": "B"}, gates[1])
        wait_until(lambda: len(run.gates()) == 2, "one is answered", 60)
        own.kill("scheduler")
        own.start_scheduler()
        run.answer_all({gates[0].key: "plain", gates[2].key: ["C"]})
        info = run.wait(60)
    assert (info.status, run.output) == ("completed", '"plain"; {"title":"B"}; ["C"]'), info.error


IN_PYTHON = '''
from sleipnir import END, START, MessagesState, StateGraph


def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


builder = StateGraph(MessagesState).add_llm_node("ask", model="openai:gpt-test")
builder.add_tools_node("work", [add], parallel=2)
builder.add_edge(START, "ask").add_tools_conditional_edges("ask", "work", END).add_edge("work", "ask")
graph = builder.compile(name="adding")
'''


def adding(request: Request) -> Reply:
    if request.turn == 1:
        return Reply(calls=[Call("add", {"a": number}) for number in range(3)])
    return Reply("+".join(result.text for result in request.tool_results))


def test_functions_of_a_graph_in_python_are_tools_on_the_fleet(own: Stack, tmp_path: Path) -> None:
    folder = tmp_path / "adding"
    folder.mkdir()
    (folder / "graph.py").write_text(IN_PYTHON)
    with ModelServer(adding) as model, own.client() as client:
        own.start_scheduler()
        start_workers(own, model)
        own.start_worker("functions", "functions", ready=False)
        own.wait_for_worker("functions")
        run = client.submit(folder, state={"messages": [{"role": "user", "content": "go"}]})
        info = run.wait(60)
        state = run.state()
    assert info.status == "completed", info.error
    assert [message["content"] for message in state["messages"]] == ["go", "", "1", "2", "3", "1+2+3"]
    assert state["messages"][1]["tool_calls"][0] == {
        "name": "add",
        "args": {"a": 0},
        **state["messages"][1]["tool_calls"][0],
    }
