"""Callbacks on the fleet: over retries, a dead worker and the cache, and what people see of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.testing import Call, ModelServer, Reply
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


@pytest.mark.conformance("EM-08")
def test_an_after_callback_emits_what_its_node_has_made(own: Stack, tmp_path: Path) -> None:
    hooks = """
from sleipnir import emit
def tell(state, info, result, error): emit("made", result["out"])
"""
    text = GRAPH.replace("NODE", 'callbacks: {after: "tell.py:tell"},')
    files = {"hooks_py": HOOKS.replace("PLACE", str(tmp_path)), "work_sh": WORK.replace("PLACE", str(tmp_path))}
    with own.client() as client:
        run = client.submit(write_agent(tmp_path / "hooked", text, tell_py=hooks, **files))
        [event] = [event for event in run.stream(["custom"]) if event.mode == "custom"]
        assert (event.data["type"], event.data["payload"], event.data["node"]) == ("made", "worked", "work")


MODELS = """
name: asking
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages, scene: string}
callbacks:
  before: "hooks.py:watch"
  model: {before: "hooks.py:ask", after: "hooks.py:answered"}
  tool: {before: "hooks.py:call", after: "hooks.py:called"}
nodes:
  ask: {type: llm, tools_node: work, next: done}
  work: {type: tools, tools: [add], next: ask}
  done: {type: end, output: "{{last_response}}"}
"""
MODEL_HOOKS = """
import os, time
def write(line):
    with open("PLACE/seen", "a") as file:
        file.write(line + "\\n")
def watch(state, info):
    state["scene"] = "seen by " + info.node
    if info.visit == 1:
        write(f"before {os.environ.get('OPENAI_API_KEY')} {os.getpid()}")
    while os.path.exists("PLACE/block"):
        time.sleep(0.02)
def ask(state, info, request): info.context["scene"] = state["scene"]
def answered(state, info, request, response, error):
    write("answered " + info.context["scene"])
    return response["content"] + "!" if response["content"] else None
def call(state, info, call): call["arguments"]["b"] = 40
def called(state, info, call, result, error): write(f"called {result['sum']}")
"""
ADD = '''
def add(a: int, b: int):
    """Add two numbers."""
    return {"sum": a + b}
'''


def test_a_model_and_its_tools_have_callbacks_and_a_killed_worker_takes_its_callback_along(
    own: Stack, tmp_path: Path
) -> None:
    (tmp_path / "block").touch()
    hooks = MODEL_HOOKS.replace("PLACE", str(tmp_path))
    agent = write_agent(tmp_path / "asking", MODELS, hooks_py=hooks, tools_py=ADD)
    with ModelServer([Reply(calls=[Call("add", {"a": 1, "b": 2})]), "The end"]) as model, own.client() as client:
        own.start_worker("models", "llm", env=model.env())
        run = client.submit(agent, "go")
        wait_until(lambda: len(seen(tmp_path)) == 1, "the callback runs", 60)
        own.kill("models")
        child = int(seen(tmp_path)[0].split()[-1])
        wait_until(lambda: not Path(f"/proc/{child}").exists(), "the callback is dead")
        (tmp_path / "block").unlink()
        own.start_worker("models", "llm", env=model.env())
        assert (run.wait(60).status, run.output) == ("completed", "The end!")
        steps = run.history()
        assert [json.loads(result.text)["sum"] for result in model.requests[1].tool_results] == [41]
    lines = seen(tmp_path)
    assert [line.split()[:2] for line in lines[:2]] == [["before", "None"]] * 2, "no key of a provider is there"
    assert lines[2:] == ["answered seen by ask", "called 41", "answered seen by ask"]
    changed = "input changed: scene by before hooks.py:watch"
    marks = [(step.node, step.role, step.callbacks) for step in steps if step.callbacks]
    assert marks == [
        ("ask", "node", (changed,)),
        ("work", "tool", ("tool call changed by before hooks.py:call",)),
        ("ask", "node", (changed, "model call replaced by after hooks.py:answered")),
    ]
    assert run.state()["scene"] == "", "nothing of that is stored"
    shown = own.sleipnir("history", run.id).stdout
    assert "llm, input changed: scene by before hooks.py:watch" in shown


TELLING = """
name: telling
version: sleipnir/1
start: ask
model: openai:gpt-test
nodes:
  ask: {type: llm, prompt: "Say {{word}}.", state_updates: {out: "{{output}}"}, callbacks: AROUND, next: done}
  done: {type: end, output: "{{out}}"}
"""
TELLING_HOOKS = """
from sleipnir import emit, emit_progress
def first(state, info): emit("first", state["word"])
def last(state, info, result, error): emit("last", result["out"])
def answered(state, info, request, response, error): emit_progress(50, response["content"])
"""


def test_callbacks_of_a_model_emit_beside_its_text(own: Stack, tmp_path: Path) -> None:
    around = '{before: "h.py:first", after: "h.py:last", model: {after: "h.py:answered"}}'
    agent = write_agent(tmp_path / "telling", TELLING.replace("AROUND", around), h_py=TELLING_HOOKS)
    with ModelServer(["Hello, all of you"]) as model, own.client() as client:
        own.start_worker("models", "llm", env=model.env())
        run = client.submit(agent, state={"word": "hello"})
        events = list(run.stream(["custom", "messages"]))
        assert run.output == "Hello, all of you"
    told = [event.data for event in events if event.mode == "custom"]
    assert [each.get("payload") for each in told if "payload" in each] == ["hello", "Hello, all of you"]
    assert [each["progress"] for each in told if "progress" in each] == [50]
    assert {each["node"] for each in told} == {"ask"}
    assert not any(event.data["lost"] for event in events if event.type in ("text", "custom"))
    assert "".join(event.data["text"] for event in events if event.type == "text") == "Hello, all of you"


POLITE = """
import os
from typing import TypedDict

from sleipnir import END, START, NodeMiddleware, StateGraph


class State(TypedDict, total=False):
    topic: str
    text: str


class Polite(NodeMiddleware):
    @staticmethod
    def before(state, info):
        if info.type == "llm":
            assert "OPENAI_API_KEY" not in os.environ
            state["topic"] += " and whistles"

    @staticmethod
    def before_model(state, info, request):
        request["messages"][-1]["content"] += ", please"


def choose(state: State):
    return {"topic": "bells"}


builder = StateGraph(State).add_node(choose)
builder.add_llm_node("ask", prompt="about {{topic}}", model="openai:gpt-test", state_updates={"text": "{{output}}"})
graph = builder.add_edge(START, "choose").add_edge("choose", "ask").compile(middleware=Polite)
"""


def test_a_middleware_of_a_graph_in_python_is_found_again_beside_the_keys_of_models(own: Stack, tmp_path: Path) -> None:
    agent = tmp_path / "polite"
    agent.mkdir()
    (agent / "graph.py").write_text(POLITE)
    with ModelServer(["ding"]) as model, own.client() as client:
        own.start_worker("models", "llm", env=model.env())
        run = client.submit(agent)
        assert run.wait(60).status == "completed", run.error
        assert model.requests[0].prompt == "about bells and whistles, please"
        assert (run.state()["topic"], run.state()["text"]) == ("bells", "ding")
        [marks] = [step.callbacks for step in run.history() if step.node == "ask"]
    assert [mark.split(" by ")[0] for mark in marks] == ["input changed: topic", "model call changed"]
