"""The keys of agent nodes in sleipnir/1: what they must say, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.graph.check import validate
from sleipnir.graph.load import parse
from sleipnir.graph.model import AgentNode

HEAD = "version: sleipnir/1\nname: g\nstart: call\nstate: {count: int}\nnodes:\n"


def problems(tmp_path: Path, node: str, *, head: str = HEAD, mappers: str = "") -> list[str]:
    (tmp_path / "graph.yaml").write_text(f"{head}  call: {{type: agent, agent: helper, {node}}}\n")
    (tmp_path / "maps.py").write_text(mappers)
    return [f"{problem.code} {problem.message}" for problem in validate(tmp_path)]


@pytest.mark.parametrize(
    "node",
    [
        'prompt: "x"',
        "input: {from: count}",
        'input: {template: "{{count}}"}, map_in: {a: 1}',
        'input: {messages: [{role: user, content: "{{count}}"}]}',
        'map_in: {a: {b: ["{{count}}"]}}',
        'prompt: x, map_out: {count: 3, text: "{{child.output}} {{child.state.a.b[0]}}"}',
        "prompt: x, map_out: {}",
        "user_input_key: count",
    ],
)
def test_each_form_is_valid(tmp_path: Path, node: str) -> None:
    assert problems(tmp_path, node) == []


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("timeout: 3", "SLP620 agent 'helper' is given nothing"),
        ("prompt: x, user_input_key: count", "SLP620 'user_input_key' has no effect on an agent node with a prompt"),
        ('user_input_key: "{{count}}"', "SLP620 'user_input_key' must name a state key, got '{{count}}'"),
        ("prompt: x, input: {from: count}", "SLP620 'prompt' and 'input' set the same value"),
        ("input: {from: count, template: x}", "SLP620 'input' must have exactly one of"),
        ("input: {}", "SLP620 'input' must have exactly one of"),
        ('input: {from: "{{count}}"}', "SLP620 'from' must name a state key, got '{{count}}'"),
        ("input: {messages: []}", "SLP620 'messages' must hold at least one message"),
        ("input: {messages: [{role: user}]}", "SLP620 a message must have a `role` and a `content`"),
        ("input: {messages: [{role: usr, content: x}]}", "SLP620 'usr' is not a role of a message"),
        ("prompt: x, map_in: {initial_prompt: y}", "SLP621 'map_in' cannot set 'initial_prompt'"),
        ("prompt: x, map_in: {_next: y}", "SLP621 'map_in' cannot set '_next'"),
        ("prompt: x, map_in: nothing", "SLP621 'map_in' must name a function, got 'nothing'"),
        (
            'prompt: x, map_out: {a: 1}, state_updates: {b: "2"}',
            "SLP621 'state_updates' has no effect beside 'map_out'",
        ),
        ("prompt: x, map_out: {a: 1}, output_schema: {}", "SLP621 'output_schema' has no effect beside 'map_out'"),
        ('prompt: x, map_out: {a: "{{child.stat}}"}', "SLP621 '{{child.stat}}' is nothing that a child has"),
        ('prompt: x, map_out: {a: "{{child.ouput.b}}"}', "SLP621 '{{child.ouput.b}}' is nothing that a child has"),
        ("prompt: x, map_out: {count: many}", "SLP806 'count' must be int, not string 'many'"),
        ('prompt: x, map_in: {a: "{{ count }}"}', "SLP401 '{{ count }}' is not a placeholder"),
        ('prompt: x, map_out: {a: "{{cuont}}"}', "SLP403 nothing writes 'cuont'"),
        ('prompt: x, map_in: "maps.py:into"', "SLP504 'maps.py' does not define 'into'"),
        ('prompt: x, map_in: "gone.py:into"', "SLP501 Function file not found"),
        ("prompt: x, options: {recursion_limt: 3}", "SLP203 unknown key 'recursion_limt'"),
        ("prompt: x, options: {max_tokens: -3}", "SLP201 'options.max_tokens' must not be negative"),
        ("prompt: x, isolated: maybe", "SLP201 'isolated' must be true or false"),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, node: str, problem: str) -> None:
    found = problems(tmp_path, node)
    assert any(each.startswith(problem) for each in found), found


def test_a_function_must_take_what_it_is_given(tmp_path: Path) -> None:
    code = "def into(): ...\ndef out(state): ...\n"
    found = problems(tmp_path, 'prompt: x, map_in: "maps.py:into", map_out: "maps.py:out"', mappers=code)
    assert found == [
        "SLP505 function 'into' takes no arguments, but it is called with the state",
        "SLP505 mapper 'out' takes 1 argument, but it is called with the state and the child",
    ]


def test_version_1_0_has_none_of_these_keys_and_needs_a_prompt(tmp_path: Path) -> None:
    head = "name: g\nstart: call\nnodes:\n  done: {type: end}\n"
    assert "SLP202 missing field `prompt`" in problems(tmp_path, "next: done", head=head)
    keys = ("input: {from: a}", "map_in: {a: 1}", "map_out: {}", "isolated: true", "event_scope: s", "options: {}")
    for key in (*keys, "user_input_key: a"):
        found = problems(tmp_path, f"prompt: x, next: done, {key}", head=head)
        assert found == [f"SLP218 '{key.partition(':')[0]}' needs version sleipnir/1"]


@pytest.mark.conformance("AG-01")
def test_an_agent_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "graph.yaml").write_text(f"{HEAD}  call: {{type: agent, agent: helper, prompt: x}}\n")
    [problem] = validate(tmp_path, agents=lambda name: None)
    assert (problem.level, problem.code) == ("error", "SLP606")


def test_nulls_are_absent_keys() -> None:
    loaded = parse(
        f"{HEAD}  call: {{type: agent, agent: helper, prompt: x, map_out: null, input: null}}\n", "graph.yaml"
    )
    assert loaded.graph is not None
    node = loaded.graph.nodes["call"]
    assert isinstance(node, AgentNode)
    assert (node.map_out, node.input) == (None, None)
