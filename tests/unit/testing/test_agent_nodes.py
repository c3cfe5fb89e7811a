"""Agent nodes with mappings in one process: chained and nested, with templates and with functions."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import TypedDict

import pytest

from sleipnir import END, START, StateGraph
from sleipnir.errors import UsageError
from sleipnir.testing import RunResult, run

EXPERT = """
    name: expert
    version: sleipnir/1
    start: work
    initial_state: {n: 0, fails: false}
    nodes:
      work: {type: function, call: "steps.py:work"}
"""
STEPS = """
    def work(state):
        if state["fails"]:
            raise ValueError("asked to")
        assert "secret" not in state
        return {"verdict": {"n": state["n"], "said": state["initial_prompt"]}, "twice": state["n"] * 2}
"""
MAPPERS = """
    def into(state):
        return {"n": state["n"] + 1}

    def out(state, child):
        state["n"] = child["state"]["twice"]
        return {"n": state["n"], "seen": [child["status"], child["agent"], child["state"]["verdict"]["n"]]}

    def nothing(state, child=None):
        return None

    def why(state, child):
        return {"why": [child["status"], child["error_kind"], child["error_type"]]}

    def wrong(state, child=None):
        return [1]
"""


@pytest.fixture(autouse=True)
def agents_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(tmp_path))


def agent(folder: Path, graph: str, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "graph.yaml").write_text(dedent(graph))
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text))
    return folder


def parent(tmp_path: Path, nodes: str, *, name: str = "parent") -> Path:
    agent(tmp_path / "expert", EXPERT, steps=STEPS)
    start = nodes.strip().partition(":")[0]
    head = f"name: {name}\nversion: sleipnir/1\nstart: {start}\nstate: {{n: int}}\nnodes:\n"
    body = "".join(f"  {line}\n" for line in dedent(nodes).strip().splitlines())
    return agent(tmp_path / name, head + body, maps=MAPPERS)


def finished(folder: Path, **state: object) -> RunResult:
    result = run(folder, "hello", state=state)
    assert result.status == "completed", result.error
    return result


@pytest.mark.conformance("AG-09", "AG-23", "EX-22")
def test_functions_map_the_state_of_a_run_to_its_child_and_back(tmp_path: Path) -> None:
    folder = parent(tmp_path, 'ask: {type: agent, agent: expert, map_in: "maps.py:into", map_out: "maps.py:out"}')
    result = finished(folder, n=3, secret="s")
    assert result.state == {
        "initial_prompt": "hello",
        "n": 8,
        "secret": "s",
        "seen": ["completed", "expert", 4],
    }


@pytest.mark.conformance("AG-05", "AG-10")
def test_mappers_that_return_nothing_give_and_write_nothing(tmp_path: Path) -> None:
    nodes = 'ask: {type: agent, agent: expert, map_in: "maps.py:nothing", map_out: "maps.py:nothing"}'
    assert finished(parent(tmp_path, nodes), n=3).state == {"initial_prompt": "hello", "n": 3}


def test_a_mapper_that_returns_no_object_fails_its_visit(tmp_path: Path) -> None:
    for key in ("map_in", "map_out"):
        folder = parent(tmp_path, f'ask: {{type: agent, agent: expert, prompt: x, {key}: "maps.py:wrong"}}')
        result = run(folder, "hello", state={"n": 1})
        assert result.status == "failed"
        assert "Function 'maps.py:wrong' returned a list; return a dict, or None" in str(result.error)


@pytest.mark.conformance("AG-11", "AG-12", "ER-06")
def test_a_function_is_told_why_a_child_failed_if_the_run_goes_on(tmp_path: Path) -> None:
    nodes = 'ask: {type: agent, agent: expert, map_in: {fails: true}, map_out: "maps.py:why", on_error: MORE}'
    result = finished(parent(tmp_path, nodes.replace("MORE", "continue")), n=1)
    assert result.state["why"] == ["failed", "visit", "builtins:ValueError"]
    assert {"node": "ask", "kind": "visit", "type": "builtins:ValueError"}.items() <= result.state["_error"].items()
    failed = run(parent(tmp_path, nodes.replace("MORE", "fail")), "hello", state={"n": 1})
    assert failed.status == "failed"
    assert "why" not in failed.state


@pytest.mark.conformance("AG-13")
def test_a_child_that_handled_its_own_failure_has_completed(tmp_path: Path) -> None:
    folder = parent(tmp_path, 'ask: {type: agent, agent: brave, map_in: {n: 1}, map_out: {status: "{{child.status}}"}}')
    brave = """
        name: brave
        version: sleipnir/1
        start: call
        nodes:
          call: {type: agent, agent: expert, map_in: {fails: true}, on_error: saved}
          saved: {type: router}
    """
    agent(tmp_path / "brave", brave)
    assert finished(folder).state["status"] == "completed"


@pytest.mark.conformance("AG-14")
def test_one_of_several_children_at_once_fails_the_parent(tmp_path: Path) -> None:
    nodes = """
        both: {type: router, next: [good, bad]}
        good: {type: agent, agent: expert, map_in: {n: 1}, map_out: {good: "{{child.state.twice}}"}}
        bad: {type: agent, agent: expert, map_in: {fails: true}, map_out: {bad: "{{child.status}}"}}
    """
    result = run(parent(tmp_path, nodes), "hello")
    assert result.status == "failed"
    assert "at node 'bad': Agent 'expert' failed" in str(result.error)


@pytest.mark.conformance("AG-24")
def test_agents_are_chained_and_nested_with_their_values(tmp_path: Path) -> None:
    inner = """
        first: {type: agent, agent: expert, prompt: "{{initial_prompt}}", map_in: {n: "{{n}}"},
                map_out: {n: "{{child.state.twice}}"}}
    """
    parent(tmp_path, inner, name="inner")
    nodes = """
        one: {type: agent, agent: inner, input: {from: initial_prompt}, map_in: {n: "{{n}}"},
              map_out: {n: "{{child.state.n}}"}, next: two}
        two: {type: agent, agent: inner, prompt: "{{n}}!", map_in: {n: "{{n}}"},
              map_out: {n: "{{child.state.n}}", all: "{{child.state}}"}}
    """
    state = finished(parent(tmp_path, nodes), n=3).state
    assert state["n"] == 12
    assert state["all"] == {"initial_prompt": "6!", "n": 12}


@pytest.mark.conformance("AG-19")
def test_options_apply_to_one_child_only(tmp_path: Path) -> None:
    loops = """
        name: loops
        version: sleipnir/1
        start: a
        nodes: {a: {type: router, next: b}, b: {type: router, next: c}, c: {type: router}}
    """
    agent(tmp_path / "loops", loops)
    nodes = """
        free: {type: agent, agent: loops, prompt: x, next: bound}
        bound: {type: agent, agent: loops, prompt: x, options: {recursion_limit: 2}, next: free2}
        free2: {type: agent, agent: loops, prompt: x}
    """
    result = run(parent(tmp_path, nodes), "hello")
    assert result.status == "failed"
    assert "at node 'bound': Agent 'loops' failed" in str(result.error)
    assert "Recursion limit of 2 reached" in str(result.error)


def test_values_that_do_not_fit_the_state_of_the_child_fail_the_visit(tmp_path: Path) -> None:
    strict = "name: strict\nversion: sleipnir/1\nstart: a\nstate: {n: int}\nnodes: {a: {type: router}}\n"
    agent(tmp_path / "strict", strict)
    folder = parent(tmp_path, 'ask: {type: agent, agent: strict, map_in: {n: "{{initial_prompt}}"}}')
    result = run(folder, "many")
    assert result.status == "failed"
    assert "the values that it is given do not fit its state: state key 'n' must be int" in str(result.error)


def test_each_item_of_a_map_gets_a_child_with_its_own_values(tmp_path: Path) -> None:
    nodes = """
        each: {type: map, for_each: "{{initial_prompt}}", as: item, node: ask, collect: all}
        ask: {type: agent, agent: expert, map_in: {n: "{{item}}"}, map_out: {output: "{{child.state.twice}}"}}
    """
    folder = parent(tmp_path, nodes.replace("{{initial_prompt}}", "{{items}}"))
    assert finished(folder, items=[1, 2, 3]).state["all"] == [2, 4, 6]


def test_the_children_of_items_are_mapped_by_functions_too(tmp_path: Path) -> None:
    nodes = """
        each: {type: map, for_each: "{{items}}", as: n, node: ask, collect: all}
        ask: {type: agent, agent: expert, map_in: "maps.py:into", map_out: "maps.py:item"}
    """
    folder = parent(tmp_path, nodes)
    with (folder / "maps.py").open("a") as file:
        file.write("\ndef item(state, child):\n    return {'output': child['state']['twice']}\n")
    assert finished(folder, items=[1, 2, 3]).state["all"] == [4, 6, 8]


@pytest.mark.parametrize("size", [10, 400_000])
def test_large_values_of_a_child_arrive_as_they_are(tmp_path: Path, size: int) -> None:
    nodes = """
        ask: {type: agent, agent: expert, prompt: "{{long}}", map_in: {n: 5},
              map_out: {n: "{{child.state.twice}}", said: "{{child.state.verdict.said}}", mine: "{{own}}"}}
    """
    state = finished(parent(tmp_path, nodes), long="x" * size, own=[1]).state
    assert (state["n"], state["said"], state["mine"]) == (10, "x" * size, [1])


TALK = """
    version: sleipnir/1
    name: talk
    start: START
    state: {messages: messages, q2: string}
    nodes:
"""


def talking(tmp_path: Path, nodes: str, **state: object) -> RunResult:
    """A run of a graph with messages whose agent nodes run one that says what it was given."""
    agent(tmp_path / "echo", ECHO)
    start = nodes.strip().partition(":")[0]
    body = "".join(f"      {line}\n" for line in dedent(nodes).strip().splitlines())
    return finished(agent(tmp_path / "talk", TALK.replace("START", start) + body), **state)


ECHO = """
    version: sleipnir/1
    name: echo
    start: done
    nodes:
      done: {type: end, output: "said: {{initial_prompt}}"}
"""


@pytest.mark.conformance("AG-08", "AG-25")
def test_in_a_graph_with_messages_a_node_takes_the_users_input_and_writes_its_response(tmp_path: Path) -> None:
    history = [{"role": "user", "content": "hi"}]
    nodes = """
        first: {type: agent, agent: echo, next: second}
        second: {type: agent, agent: echo, next: third}
        third: {type: agent, agent: echo, input: {from: last_response}}
    """
    state = talking(tmp_path, nodes, messages=history).state
    assert state["node_responses"] == {"first": "said: hello", "second": "said: ", "third": "said: said: "}
    assert (state["last_response"], state["last_response_id"]) == ("said: said: ", "")
    assert (state["user_input"], [each["content"] for each in state["messages"]]) == ("", ["hi"])


@pytest.mark.conformance("AG-07")
def test_another_key_of_the_users_input_is_used_and_cleared(tmp_path: Path) -> None:
    state = talking(tmp_path, "ask: {type: agent, agent: echo, user_input_key: q2}", q2="second question").state
    assert (state["last_response"], state["q2"], state["user_input"]) == ("said: second question", "", "hello")


@pytest.mark.conformance("AG-06")
def test_a_node_with_a_prompt_leaves_the_users_input_to_the_rest(tmp_path: Path) -> None:
    nodes = """
        ask: {type: agent, agent: echo, prompt: "{{user_input}}!", state_updates: {last_response: "mine: {{output}}"}}
    """
    state = talking(tmp_path, nodes).state
    assert (state["last_response"], state["user_input"]) == ("mine: said: hello!", "hello")
    assert state["node_responses"] == {"ask": "said: hello!"}


@pytest.mark.conformance("AG-09", "AG-10")
def test_a_node_with_a_mapping_writes_what_that_says_alone(tmp_path: Path) -> None:
    nodes = """
        ask: {type: agent, agent: echo, map_out: {q2: "{{child.output}}"}}
    """
    state = talking(tmp_path, nodes, q2="").state
    assert (state["q2"], state["user_input"]) == ("said: hello", "hello")
    assert (state["last_response"], state["node_responses"]) == ("", {})


def test_a_graph_without_messages_gets_no_responses(tmp_path: Path) -> None:
    agent(tmp_path / "echo", ECHO)
    state = finished(parent(tmp_path, "ask: {type: agent, agent: echo, prompt: x}")).state
    assert "last_response" not in state and "node_responses" not in state


class State(TypedDict, total=False):
    n: int


@pytest.mark.conformance("AG-02")
def test_a_call_of_a_graph_refuses_agent_nodes_before_anything_runs() -> None:
    graph = StateGraph(State)
    graph.add_agent_node("ask", "expert", input_mapper=dict, output_mapper={"n": "{{child.state.n}}"}, isolated=True)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    with pytest.raises(
        UsageError, match="node 'ask' runs another agent, 'expert', which a call of a graph cannot find"
    ):
        graph.compile().invoke({"n": 1})
