"""Interrupts of runs below: shown and answered at the root, whatever they are below, with kills while they wait."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.errors import GateError, UsageError
from sleipnir.testing import Call, ModelServer, Reply, Request
from tests.processes import RedisServer, Stack, wait_until, write_agent

ASKS = """
name: asks
version: sleipnir/1
start: ask
nodes:
  ask: {type: function, call: "f.py:ask", next: done}
  done: {type: end, output: "{{initial_prompt}} {{said}}"}
"""
ASK = """
from sleipnir import interrupt

def ask(state):
    return {"said": interrupt(f"who is {state['initial_prompt']}?", key="who")}
"""
BETWEEN = """
name: between
version: sleipnir/1
start: call
nodes:
  call: {type: agent, agent: asks, prompt: "{{initial_prompt}}", state_updates: {said: "{{output}}"}, next: done}
  done: {type: end, output: "{{said}}"}
"""
TOP = """
name: top
version: sleipnir/1
start: split
state: {names: list, answers: list}
initial_state: {names: [Ann, Bob]}
nodes:
  split: {type: router, next: [left, right, each]}
  left: {type: agent, agent: between, prompt: left, state_updates: {left: "{{output}}"}, next: join}
  right: {type: agent, agent: between, prompt: right, state_updates: {right: "{{output}}"}, next: join}
  each: {type: map, over: "{{names}}", as: name, branch: one, output_key: said, collect_into: answers, next: join}
  one: {type: agent, agent: asks, prompt: "{{name}}", state_updates: {said: "{{output}}"}}
  join: {type: function, call: "f.py:own", wait_for: [left, right, each], next: done}
  done: {type: end, output: "{{left}}, {{right}}, {{answers}}, {{own}}"}
"""
OWN = """
from sleipnir import interrupt

def own(state):
    return {"own": interrupt("and you?", key="own")}
"""
BOSS = "name: boss\nmodel: openai:gpt-test\ncan_spawn_agents: true\n"


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    agents = tmp_path / "agents"
    write_agent(agents / "asks", ASKS, f_py=ASK)
    write_agent(agents / "between", BETWEEN)
    write_agent(agents / "top", TOP, f_py=OWN)
    (agents / "boss").mkdir()
    (agents / "boss" / "config.yaml").write_text(BOSS)
    with Stack(redis_server, tmp_path / "home", key_prefix=f"ni-{tmp_path.name}", agents_dir=agents) as stack:
        yield stack


def asking(client: Client) -> Run:
    """A run of `top` of which four runs below ask, with one key."""
    run = client.submit("top")
    wait_until(lambda: len(run.gates()) == 4, "all four runs below ask")
    return run


@pytest.mark.conformance("NI-01", "NI-04", "NI-06")
def test_questions_of_all_levels_are_shown_and_answered_at_the_root_while_everything_dies(stack: Stack) -> None:
    stack.start_scheduler("first")
    stack.start_worker("worker")
    with stack.client() as client:
        run = asking(client)
        places = {gate.place: (gate.address, gate.key, gate.node, gate.payload) for gate in run.gates()}
        assert places == {
            "left/call/ask": ("left/call/who", "who", "ask", "who is left?"),
            "right/call/ask": ("right/call/who", "who", "ask", "who is right?"),
            "one[0]/ask": ("one[0]/who", "who", "ask", "who is Ann?"),
            "one[1]/ask": ("one[1]/who", "who", "ask", "who is Bob?"),
        }
        between = next(child for child in run.tree().children if child.agent == "between")
        [below] = client.run(between.id).gates()
        assert below in run.gates()
        assert run.status == "waiting"
        stack.kill("worker")
        stack.kill("first")
        with pytest.raises(
            GateError, match=r"several open questions of node 'who'; open: .*left/call/who.*by its path"
        ):
            run.answer("?", "who")
        with pytest.raises(GateError, match=r"no open question of node 'left/who'"):
            run.answer("?", "left/who")
        with pytest.raises(UsageError, match=r"two of the answers are for the question left/call/who"):
            run.answer_all({"left/call/who": 1, "left/call/ask": 2})
        run.answer("R", "right/call/ask")
        stack.start_scheduler("second")
        stack.start_worker("other")
        wait_until(lambda: len(run.gates()) == 3, "one of four is answered")
        run.answer_all({"one[1]/who": "B", "left/call/who": "L"})
        wait_until(lambda: [gate.place for gate in run.gates()] == ["one[0]/ask"], "three of four are answered")
        stack.kill("second")
        run.answer("A", "who")
        stack.start_scheduler("third")
        wait_until(lambda: [gate.key for gate in run.gates()] == ["own"], "the root asks itself")
        run.answer("me", "own")
        assert run.wait(60).status == "completed"
        assert run.output == 'left L, right R, ["Ann A","Bob B"], me'


@pytest.mark.conformance("NI-03")
def test_one_map_of_answers_is_for_questions_of_children_now_and_for_the_parent_later(
    stack: Stack, tmp_path: Path
) -> None:
    stack.start_scheduler("scheduler")
    stack.start_worker("worker")
    answers = {"left/call/who": "L", "right/call/who": "R", "one[0]/who": "A", "one[1]/who": "B"}
    with stack.client() as client:
        run = asking(client)
        with pytest.raises(GateError, match="no open question of node 'own'"):
            run.answer_all({**answers, "own": "me"})
        assert len(run.gates()) == 4
        run.answer_all({**answers, "own": "me"}, ahead=True, timeout_s=60)
        assert run.wait(60).status == "completed"
        assert run.output == 'left L, right R, ["Ann A","Bob B"], me'

        run = asking(client)
        file = tmp_path / "answers.json"
        with pytest.raises(TimeoutError, match="has not asked for 'own' within 1 s"):
            run.answer_all({"left/call/who": "L", "own": "me"}, ahead=True, timeout_s=1)
        del answers["left/call/who"]
        file.write_text(json.dumps({**answers, "own": "me", "never": 1}))
        refused = stack.sleipnir("answer", run.id, "--map", str(file), "--ahead")
        assert (refused.returncode, "has not asked for 'never'" in refused.stderr) == (2, True), refused.stderr
        assert run.output == 'left L, right R, ["Ann A","Bob B"], me'


def test_the_questions_of_one_run_are_listed_and_answered_from_the_command_line(stack: Stack) -> None:
    stack.start_scheduler("scheduler")
    stack.start_worker("worker")
    with stack.client() as client:
        run, other = asking(client), client.submit("asks", "x")
        wait_until(other.gates, "another run asks")
        listed = json.loads(stack.sleipnir("gates", run.id, "--json").stdout)
        assert {gate["twin"] for gate in listed} == {None}
        assert sorted("/".join(gate["path"]) for gate in listed) == ["left/call", "one[0]", "one[1]", "right/call"]
        assert "one[1]/ask" in stack.sleipnir("gates", run.id).stdout
        assert len(json.loads(stack.sleipnir("gates", "--json").stdout)) == 5
        assert "one[0]/ask" in stack.sleipnir("show", run.id).stdout
        assert stack.sleipnir("answer", run.id, "one[0]/who", "A").returncode == 0
        wait_until(lambda: len(run.gates()) == 3, "one of four is answered")
        assert stack.sleipnir("gates", "nothing-like-it").returncode == 2


@pytest.mark.conformance("NI-05", "TL-30")
def test_a_question_of_an_agent_that_a_model_called_is_answered_at_the_root_and_no_other_run_gets_it(
    stack: Stack,
) -> None:
    def model(request: Request) -> Reply | str:
        if request.turn == 1:
            return Reply(calls=[Call("agent__spawn", {"agent": "asks", "prompt": each}) for each in ("one", "two")])
        results = [json.loads(str(each["content"])) for each in request.messages if each["role"] == "tool"]
        if request.turn == 2:
            return Reply(calls=[Call("agent__collect", {"id": each["id"]}) for each in results])
        return ", ".join(sorted(each["output"] for each in results[2:]))

    with ModelServer(model) as server, stack.client() as client:
        stack.start_scheduler("scheduler")
        stack.start_worker("worker", "llm,scripts,functions", env=server.env())
        run = client.submit("boss", "ask two")
        wait_until(lambda: len(run.gates()) == 2, "both agents ask")
        two = next(gate for gate in run.gates() if gate.payload == "who is two?")
        run.answer("2", two.address)
        wait_until(lambda: [gate.payload for gate in run.gates()] == ["who is one?"], "only one is answered")
        run.answer("1", "who")
        assert run.wait(60).status == "completed"
        assert run.output == "one 1, two 2"
