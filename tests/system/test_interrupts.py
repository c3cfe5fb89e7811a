"""Interrupts of nodes on a real scheduler, real workers and a real Redis, with kills while they wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.errors import GateError, UsageError
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent

TWICE = """
name: twice
version: sleipnir/1
start: split
state: {got: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [left, right]}
  left: {type: function, call: "f.py:left", next: join}
  right: {type: function, call: "f.py:right", next: join}
  join: {type: function, call: "f.py:join", wait_for: [left, right], next: done}
  done: {type: end, output: "{{got}}"}
"""
FUNCTIONS = """
from pathlib import Path

from sleipnir import interrupt

def left(state):
    count("left")
    name = interrupt({"please": "name"}, key="name")
    try:
        age = interrupt(f"age of {name}?", key="age", response_schema={"type": "integer"})
    except Exception:
        age = "swallowed"
    return {"got": [f"{name} is {age}"]}

def right(state):
    count("right")
    return {"got": [interrupt("colour?")]}

def join(state):
    return {}

def count(node):
    with Path(FOLDER, node).open("a") as file:
        file.write("x")
"""


@pytest.fixture
def own_stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(redis_server, tmp_path / "home", key_prefix=f"int-{tmp_path.name}") as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("first")
        yield stack


def twice(folder: Path) -> Path:
    (folder / "marks").mkdir()
    functions = FUNCTIONS.replace("FOLDER", repr(str(folder / "marks")))
    return write_agent(folder / "twice", TWICE, f_py=functions)


@pytest.mark.conformance("IN-02", "IN-13", "IN-17")
def test_two_nodes_ask_and_go_on_after_workers_and_schedulers_were_killed(own_stack: Stack, tmp_path: Path) -> None:
    with own_stack.client() as client:
        run = client.submit(twice(tmp_path))
        wait_until(lambda: len(run.gates()) == 2, "both nodes ask")
        assert {gate.key: gate.payload for gate in run.gates()} == {"name": {"please": "name"}, "right#0": "colour?"}
        wait_until(lambda: run.status == "waiting", "no visit is on a worker")
        own_stack.kill("first")
        own_stack.kill("scheduler")
        run.answer("Ann", "name")
        own_stack.start_scheduler("other")
        own_stack.start_worker("second")
        wait_until(lambda: [gate.key for gate in run.gates()] == ["right#0", "age"], "the next question is asked")
        with pytest.raises(UsageError, match=r"question age of run .* \$: 'old' is not of type 'integer'"):
            run.answer_all({"right#0": "red", "age": "old"})
        assert len(run.gates()) == 2
        own_stack.kill("other")
        run.answer_all({"right#0": "red", "age": 41})
        own_stack.start_scheduler("third")
        assert run.wait(60).status == "completed"
        assert json.loads(run.output or "") == ["Ann is 41", "red"]
        marks = tmp_path / "marks"
        assert ((marks / "left").read_text(), (marks / "right").read_text()) == ("xxx", "xx")
        answers = [(step.key, step.answer) for step in run.history() if step.kind == "answered"]
        assert sorted(answers, key=str) == [("age", "41"), ("name", '"Ann"'), ("right#0", '"red"')]


@pytest.mark.conformance("IN-15", "IN-16")
def test_the_same_answer_counts_once_and_another_one_is_refused(own_stack: Stack, tmp_path: Path) -> None:
    with own_stack.client() as client:
        run = client.submit(twice(tmp_path))
        wait_until(lambda: len(run.gates()) == 2, "both nodes ask")
        gate = next(gate for gate in run.gates() if gate.key == "name")
        with pytest.raises(GateError, match=r"no open question of node 'colour'; open: .*\(name\)"):
            run.answer("red", "colour")
        run.answer("Ann", gate)
        run.answer("Ann", gate)
        wait_until(lambda: any(gate.key == "age" for gate in run.gates()), "the next question is asked")
        for named in (gate, "name"):
            run.answer("Ann", named)
            with pytest.raises(GateError, match="already answered with"):
                run.answer("Bob", named)
        run.answer(41, "age")
        run.answer("red", "right#0")
        assert run.wait(60).status == "completed"
        run.answer("red", "right#0")
        assert json.loads(run.output or "") == ["Ann is 41", "red"]


def test_questions_are_answered_from_the_command_line(own_stack: Stack, tmp_path: Path) -> None:
    with own_stack.client() as client:
        run = client.submit(twice(tmp_path))
        wait_until(lambda: len(run.gates()) == 2, "both nodes ask")
        listed = json.loads(own_stack.sleipnir("gates", "--json").stdout)
        assert {gate["key"]: gate["payload"] for gate in listed} == {"name": {"please": "name"}, "right#0": "colour?"}
        assert "right#0" in own_stack.sleipnir("gates").stdout
        assert own_stack.sleipnir("answer", run.id, "name", "Ann").returncode == 0
        wait_until(lambda: any(gate.key == "age" for gate in run.gates()), "the next question is asked")
        refused = own_stack.sleipnir("answer", run.id, "age", "old")
        assert (refused.returncode, "'old' is not of type 'integer'" in refused.stderr) == (2, True)
        file = tmp_path / "answers.json"
        file.write_text(json.dumps({"age": 41, "shape": "round"}))
        assert "no open question of node 'shape'" in own_stack.sleipnir("answer", run.id, "--map", str(file)).stderr
        file.write_text(json.dumps({"age": 41, "right#0": {"colour": "red"}}))
        assert own_stack.sleipnir("answer", run.id, "--map", str(file)).returncode == 0
        assert run.wait(60).status == "completed"
        assert json.loads(run.output or "") == ["Ann is 41", {"colour": "red"}]


PAYS = """
name: pays
start: pay
nodes:
  pay: {type: script, script: pay.sh, effect: once, next: done}
  done: {type: end, output: "{{paid}}"}
"""
PAY = """
if [ -z "$GRAPH_RESUME" ]; then echo '{"_interrupt": {"key": "sure", "value": {"pay": 7}}}'; exit; fi
echo x >> "$PAID"
echo "{\\"paid\\": $GRAPH_RESUME}"
"""


def test_a_script_with_an_effect_asks_before_it_and_has_it_once(own_stack: Stack, tmp_path: Path) -> None:
    paid = tmp_path / "paid"
    agent = write_agent(tmp_path / "pays", PAYS, pay_sh=PAY.replace("$PAID", str(paid)))
    with own_stack.client() as client:
        run = client.submit(agent)
        wait_until(run.gates, "the script asks")
        own_stack.kill("first")
        assert not paid.exists()
        assert own_stack.sleipnir("answer", run.id, "true").returncode == 0
        own_stack.start_worker("second")
        assert run.wait(60).status == "completed"
        assert (run.output, paid.read_text()) == ('{"sure":true}', "x\n")


BELOW = """
import operator
from typing import Annotated, TypedDict

from sleipnir import START, StateGraph, interrupt


class State(TypedDict, total=False):
    text: str
    got: Annotated[list[str], operator.add]


class Person(TypedDict):
    name: str


def shout(state: State) -> dict:
    return {"text": state["text"].upper()}


async def ask(state: State) -> dict:
    person = interrupt(f"who likes {state['text']}?", key="who", response_schema=Person)
    return {"got": [person["name"]]}


class Own(TypedDict, total=False):
    text: str


class Found(TypedDict, total=False):
    got: Annotated[list[str], operator.add]


def below() -> StateGraph:
    graph = StateGraph(State, input_schema=Own, output_schema=Found)
    return graph.add_sequence([shout, ask]).add_edge(START, "shout")


graph = StateGraph(State).add_node("left", below().compile()).add_node("right", below().compile())
graph = graph.add_edge(START, "left").add_edge(START, "right").compile()
"""


@pytest.mark.conformance("NI-02", "NI-06")
def test_graphs_below_ask_at_once_and_are_answered_at_the_top(own_stack: Stack, tmp_path: Path) -> None:
    agent = tmp_path / "asking"
    agent.mkdir()
    (agent / "graph.py").write_text(BELOW)
    with own_stack.client() as client:
        run = client.submit(agent, state={"text": "tea"})
        wait_until(lambda: len(run.gates()) == 2, "both graphs below ask")
        assert {gate.place: gate.payload for gate in run.gates()} == {
            "left/ask": "who likes TEA?", "right/ask": "who likes TEA?",
        }  # fmt: skip
        with pytest.raises(GateError, match="several open questions of node 'who'"):
            run.answer({"name": "Ann"}, "who")
        with pytest.raises(UsageError, match="'name' is a required property"):
            run.answer({"nom": "Ann"}, "left/ask")
        run.answer({"name": "Ann"}, "left/ask")
        wait_until(lambda: [gate.place for gate in run.gates()] == ["right/ask"], "one question is answered")
        run.answer({"name": "Bob"}, "who")
        assert run.wait(60).status == "completed"
        assert run.state()["got"] == ["Ann", "Bob"]


def test_run_answers_the_questions_of_a_node_one_after_the_other(own_stack: Stack, tmp_path: Path) -> None:
    agent = twice(tmp_path)
    given = ["--answer", "left=Ann", "--answer", "left=41", "--answer", 'right={"colour": "red"}']
    done = own_stack.sleipnir("run", str(agent), "go", *given)
    assert (done.returncode, json.loads(done.stdout)) == (0, ["Ann is 41", {"colour": "red"}]), done.stderr
    refused = own_stack.sleipnir("run", str(agent), "go", *given[:2], "--answer", "left=old", *given[4:])
    assert refused.returncode != 0
    assert "'old' is not of type 'integer'" in refused.stderr


SHOP = """
name: shop
version: sleipnir/1
start: buy
nodes:
  buy: {type: llm, model: "openai:gpt-test", prompt: "{{initial_prompt}}", tools: [look, pay],
        state_updates: {said: "{{output}}"}, next: done}
  done: {type: end, output: "{{said}}"}
"""
SHOP_TOOLS = """
from pathlib import Path

from sleipnir import interrupt


def look():
    \"\"\"Look.\"\"\"
    _count("look")
    return "tea"


def pay(amount: int):
    \"\"\"Pay.\"\"\"
    _count("pay")
    if not interrupt({"pay": amount}, key=f"pay {amount}"):
        return "refused"
    return f"paid {interrupt('which purse?')}"


def _count(name):
    with Path(FOLDER, name).open("a") as file:
        file.write("x")
"""


def test_tools_of_one_turn_ask_and_are_called_again_alone_although_everything_dies(
    own_stack: Stack, tmp_path: Path
) -> None:
    def model(request: Request) -> Reply | str:
        if request.turn == 1:
            return Reply(calls=[Call("look", {}), Call("pay", {"amount": 7}), Call("pay", {"amount": 8})])
        return ", ".join(str(each["content"]) for each in request.messages if each["role"] == "tool")

    (tmp_path / "marks").mkdir()
    tools = SHOP_TOOLS.replace("FOLDER", repr(str(tmp_path / "marks")))
    agent = write_agent(tmp_path / "shop", SHOP, tools_py=tools)
    with ModelServer(model) as server, own_stack.client() as client:
        own_stack.start_worker("models", "llm", env=server.env())
        run = client.submit(agent, "buy tea")
        wait_until(lambda: len(run.gates()) == 2, "two calls ask")
        assert {gate.key: gate.payload for gate in run.gates()} == {"pay 7": {"pay": 7}, "pay 8": {"pay": 8}}
        wait_until(lambda: run.status == "waiting", "no visit is on a worker")
        own_stack.kill("first")
        own_stack.kill("scheduler")
        run.answer_all({"pay 7": True, "pay 8": False})
        own_stack.start_scheduler("second")
        own_stack.start_worker("other")
        wait_until(lambda: [gate.key for gate in run.gates()] == ["pay#0"], "the call that pays asks again")
        own_stack.kill("second")
        run.answer("the red one", "pay#0")
        own_stack.start_scheduler("third")
        assert run.wait(60).status == "completed"
    assert run.output == '{"output":"tea"}, {"output":"paid the red one"}, {"output":"refused"}'
    assert [(tmp_path / "marks" / name).read_text() for name in ("look", "pay")] == ["x", "x" * 5]
