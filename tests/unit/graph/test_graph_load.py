"""Text to graph: what is taken, what is converted with a warning, what is refused, and where."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.errors import GraphError
from sleipnir.graph.load import load_graph, parse
from sleipnir.graph.model import (
    AgentNode,
    ApprovalNode,
    Concurrency,
    EndNode,
    FunctionNode,
    Graph,
    InputNode,
    LlmNode,
    RagNode,
    ScriptNode,
    Settings,
    Variable,
    WaitNode,
)
from tests.examples import examples
from tests.unit.graph.writing import errors, graph_of, notices, yaml_graph

END = "a: {type: end}"
WAIT_FORMS = "'for' must be a duration such as 500ms, 30s or 5m"
WAIT_BOUNDS = "'for' must be longer than 0 and at most 8760h (365 days)"


def problems_of(nodes: str, *, start: str = "a", top: str = "") -> list[str]:
    """What is found, as `line:column level [node] message`."""
    found = parse(yaml_graph(nodes, start=start, top=top), "g.yaml").problems
    return [f"{p.line}:{p.column} {p.level} {f'[{p.node}] ' if p.node else ''}{p.message}" for p in found]


def test_the_defaults_are_those_of_the_specification() -> None:
    nodes = """
        a: {type: llm, prompt: p}
        b: {type: script, script: s.py}
        c: {type: function, call: "s.py:f"}
        d: {type: agent, agent: x, prompt: p}
        e: {type: rag, documents: [d]}
        f: {type: approval, question: q, options: [], routes: {}, on_other: a}
        g: {type: input, question: q}
        h: {type: end}
    """
    assert graph_of(yaml_graph(nodes)) == Graph(
        name="g",
        start="a",
        description="",
        version="1.0",
        model=None,
        temperature=None,
        top_p=None,
        global_tools=[],
        mcp_servers=[],
        conversation_starters=[],
        variables=[],
        initial_state={},
        settings=Settings(
            max_loop_iterations=100,
            timeout=None,
            log_state_snapshots=True,
            validate_before_run=True,
            max_concurrency=8,
        ),
        nodes={
            "a": LlmNode(id="a", prompt="p", max_attempts=1, max_iterations=10, timeout=None),
            "b": ScriptNode(id="b", script="s.py", timeout=30),
            "c": FunctionNode(id="c", call="s.py:f", timeout=30),
            "d": AgentNode(id="d", agent="x", prompt="p", timeout=300),
            "e": RagNode(id="e", documents=["d"], query="{{initial_prompt}}", timeout=120),
            "f": ApprovalNode(id="f", question="q", options=[], routes={}, on_other="a"),
            "g": InputNode(id="g", question="q"),
            "h": EndNode(id="h", output=""),
        },
    )


def test_every_key_is_taken_as_it_is_written() -> None:
    top = """
description: d
version: "1.0"
model: p:m
temperature: 0
top_p: 0.5
global_tools: [x.sh]
mcp_servers: [s]
conversation_starters: [hi]
variables: [{name: v, description: d}, {name: w, description: d, default: ""}]
settings:
  {max_loop_iterations: 0, timeout: 5, log_state_snapshots: false, validate_before_run: False, max_concurrency: 1}
initial_state: {list: [1, two, 3.0, null, true], map: {k: v}}
"""
    graph = graph_of(yaml_graph(END, top=top))
    assert graph.variables == [
        Variable(name="v", description="d", default=None),
        Variable(name="w", description="d", default=""),
    ]
    assert graph.settings == Settings(
        max_loop_iterations=0, timeout=5, log_state_snapshots=False, validate_before_run=False, max_concurrency=1
    )
    assert (graph.model, graph.temperature, graph.top_p) == ("p:m", 0.0, 0.5)
    assert (graph.global_tools, graph.mcp_servers, graph.conversation_starters) == (["x.sh"], ["s"], ["hi"])


@pytest.mark.conformance("T11")
def test_the_initial_state_keeps_its_types() -> None:
    state = graph_of(yaml_graph(END, top="initial_state: {l: [1, 2.5], b: true, n: null, t: '1', d: 2024-01-01}"))
    assert json.dumps(state.initial_state) == '{"l": [1, 2.5], "b": true, "n": null, "t": "1", "d": "2024-01-01"}'


@pytest.mark.conformance("BD-03")
def test_a_node_twice_is_refused_with_the_place_of_the_first() -> None:
    assert problems_of("a: {type: end}\nb: {type: end}\na: {type: end}") == [
        "6:3 error duplicate key 'a': it is already set at line 4, column 3"
    ]


@pytest.mark.conformance("BD-04")
@pytest.mark.parametrize("key", ["''", '"  "'])
def test_a_node_without_a_name_is_refused(key: str) -> None:
    assert problems_of(f"a: {{type: end}}\n{key}: {{type: end}}")[-1] == "5:3 error a node needs a name"


def test_nodes_keep_the_order_of_the_file() -> None:
    nodes = "z: {type: end}\na: {type: end}\nm: {type: end}"
    assert list(graph_of(yaml_graph(nodes)).nodes) == ["z", "a", "m"]


# --- Loki's five checks


@pytest.mark.conformance("T01")
@pytest.mark.parametrize("version", ["2.0", '"1.1"', "1", '""', "1.00", "sleipnir", "sleipnir/2"])
def test_a_version_that_there_is_not_is_refused(version: str) -> None:
    message = f"Unsupported graph schema version '{version.strip(chr(34))}'. Supported versions: 1.0, sleipnir/1"
    assert problems_of(END, top=f"version: {version}") == [f"3:1 error {message}"]


@pytest.mark.conformance("T02")
@pytest.mark.parametrize("top", ["", "version:", "version: null"])
def test_a_graph_without_a_version_is_of_version_1_0(top: str) -> None:
    assert graph_of(yaml_graph(END, top=top)).version == "1.0"


@pytest.mark.conformance("T03")
def test_a_version_without_quotes_is_accepted() -> None:
    loaded = parse(yaml_graph(END, top="version: 1.0"), "g.yaml")
    assert loaded.problems == ()
    assert loaded.graph is not None
    assert loaded.graph.version == "1.0"


@pytest.mark.conformance("T04", "BD-01")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start: a\nnodes: {a: {type: end}}", ["missing field `name`"]),
        ("name:\nstart: a\nnodes: {a: {type: end}}", ["missing field `name`"]),
        ("name: ''\nstart: a\nnodes: {a: {type: end}}", ["Graph must have a non-empty 'name' field"]),
        ("name: '  '\nstart: a\nnodes: {a: {type: end}}", ["Graph must have a non-empty 'name' field"]),
        ("name: g\nnodes: {a: {type: end}}", ["missing field `start`"]),
        ("name: g\nstart: a", ["missing field `nodes`"]),
        ("name: g\nstart: a\nnodes: {}", ["Graph 'g' has no nodes defined"]),
        ("name: g\nstart: a\nnodes:", ["Graph 'g' has no nodes defined"]),
        ("name: g\nstart: a\nnodes: [a]", ["'nodes' must be a mapping, got a list"]),
        ("{}", ["missing field `name`", "missing field `start`", "missing field `nodes`"]),
        ("- a", ["a graph must be a mapping of keys, got a list"]),
        ("just text", ["a graph must be a mapping of keys, got the text 'just text'"]),
    ],
)
def test_a_graph_needs_a_name_a_start_and_nodes(text: str, expected: list[str]) -> None:
    loaded = parse(text, "g.yaml")
    assert loaded.graph is None
    assert errors(loaded.problems) == expected


@pytest.mark.conformance("T05", "BD-02")
def test_an_unknown_start_is_refused_with_the_nodes_there_are() -> None:
    loaded = parse(yaml_graph("triage: {type: end}\nother: {type: end}", start="trige"), "g.yaml")
    assert [str(problem) for problem in loaded.problems] == [
        "g.yaml:2:1: Start node 'trige' not found in graph 'g'. Available nodes: triage, other\n"
        '    Did you mean "triage"?'
    ]


@pytest.mark.conformance("T15")
def test_a_node_is_called_by_its_key() -> None:
    nodes = "a: {type: end}\nb: {type: end, id: b}\nc: {type: end, id: ''}\nd: {type: end, id: ~}"
    assert [node.id for node in graph_of(yaml_graph(nodes)).nodes.values()] == ["a", "b", "c", "d"]


@pytest.mark.conformance("T15")
def test_an_id_other_than_the_key_is_refused() -> None:
    assert problems_of("a: {type: end, id: b}") == [
        "4:18 error [a] Node ID mismatch: key 'a' does not match node.id 'b'"
    ]


def test_the_five_checks_are_reported_together() -> None:
    text = "version: '2'\nname: ''\nstart: x\nnodes:\n  a: {type: end, id: b}\n"
    assert errors(parse(text, "g.yaml").problems) == [
        "Unsupported graph schema version '2'. Supported versions: 1.0, sleipnir/1",
        "Graph must have a non-empty 'name' field",
        "Start node 'x' not found in graph ''. Available nodes: a",
        "[a] Node ID mismatch: key 'a' does not match node.id 'b'",
    ]


# --- node types and required fields


@pytest.mark.conformance("T16")
@pytest.mark.parametrize(
    ("kind", "message", "hint"),
    [
        ("lm", "unknown node type 'lm'", 'Did you mean "llm"? '),
        ("LLM", "unknown node type 'LLM'", 'Did you mean "llm"? '),
        ("aproval", "unknown node type 'aproval'", 'Did you mean "approval"? '),
        ("zzz", "unknown node type 'zzz'", ""),
        ("5", "'type' must be the name of a node type, got 5", ""),
    ],
)
def test_an_unknown_node_type_is_refused_with_the_valid_ones(kind: str, message: str, hint: str) -> None:
    (problem,) = parse(yaml_graph(f"a: {{type: {kind}}}"), "g.yaml").problems
    assert (problem.message, problem.node, problem.line, problem.column) == (message, "a", 4, 7)
    types = "agent, script, approval, input, llm, rag, end, map, function, router, join"
    assert problem.hint == f"{hint}Valid node types: {types}."


@pytest.mark.parametrize(
    ("node", "error"),
    [
        ("{type: tools}", "5:3 error [a] missing field `tools`"),
        ("{type: wait, for: soon}", f"5:19 error [a] {WAIT_FORMS}, got the text 'soon'"),
        ("{type: wait, for: -5s}", f"5:19 error [a] {WAIT_FORMS}, got the text '-5s'"),
        ("{type: wait, for: [5s]}", f"5:19 error [a] {WAIT_FORMS}, got a list"),
        ("{type: wait, for: 0}", f"5:19 error [a] {WAIT_BOUNDS}, got 0"),
        ("{type: wait, for: 0.1ms}", f"5:19 error [a] {WAIT_BOUNDS}, got the text '0.1ms'"),
        ("{type: wait, for: 8761h}", f"5:19 error [a] {WAIT_BOUNDS}, got the text '8761h'"),
        ("{type: wait, for: 1s, retry: {}}", "5:28 error [a] 'retry' has no effect on a wait node"),
        (
            "{type: wait, event: e, look_back: 25h}",
            "5:29 error [a] 'look_back' must be at most 24h, got the text '25h'",
        ),
    ],
)
def test_a_wait_node_without_a_time_that_it_can_wait_is_refused(node: str, error: str) -> None:
    assert problems_of(f"a: {node}", top="version: sleipnir/1") == [error]


@pytest.mark.parametrize(("written", "ms"), [("30s", 30_000), ("2", 2_000), ("1ms", 1), ("8760h", 365 * 86_400_000)])
def test_a_wait_node_has_its_time_in_milliseconds(written: str, ms: int) -> None:
    graph = graph_of(yaml_graph(f"a: {{type: wait, for: {written}}}", top="version: sleipnir/1"))
    assert graph.nodes["a"] == WaitNode(id="a", duration=ms)


def test_version_1_0_refuses_a_wait_node_and_reports_which_version_has_it() -> None:
    (problem,) = parse(yaml_graph("a: {type: wait, for: 30s}"), "g.yaml").problems
    assert (problem.message, problem.line, problem.column) == ("node type 'wait' needs version sleipnir/1", 4, 7)
    assert problem.hint == "Write `version: sleipnir/1`."


@pytest.mark.conformance("T16")
@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("{prompt: x}", "missing field `type`"),
        ("{type: ~}", "missing field `type`"),
        ("", "a node must be a mapping that holds a type, got nothing"),
        ("llm", "a node must be a mapping that holds a type, got the text 'llm'"),
        ("[llm]", "a node must be a mapping that holds a type, got a list"),
    ],
)
def test_a_node_without_a_type_is_refused(node: str, message: str) -> None:
    assert problems_of(f"a: {node}") == [f"4:3 error [a] {message}"]


REQUIRED: dict[str, dict[str, Any]] = {
    "agent": {"agent": "x", "prompt": "p"},
    "script": {"script": "s.py"},
    "approval": {"question": "q", "options": ["y"], "routes": {"y": "a"}, "on_other": "a"},
    "input": {"question": "q"},
    "llm": {"prompt": "p"},
    "rag": {"documents": ["d"]},
    "map": {"over": "{{l}}", "as": "x", "branch": "b", "collect_into": "k"},
    "function": {"call": "s.py:f"},
}


@pytest.mark.conformance("T17", "A03")
@pytest.mark.parametrize(("kind", "missing"), [(kind, key) for kind, keys in REQUIRED.items() for key in keys])
@pytest.mark.parametrize("is_null", [False, True])
def test_a_missing_required_key_is_named_with_those_that_the_type_needs(kind: str, missing: str, is_null: bool) -> None:
    keys: dict[str, Any] = {"type": kind, **REQUIRED[kind], missing: None}
    if not is_null:
        del keys[missing]
    (problem,) = parse(yaml_graph(f"a: {json.dumps(keys)}"), "g.yaml").problems
    assert (problem.level, problem.node, problem.line) == ("error", "a", 4)
    assert problem.message == f"missing field `{missing}`"
    assert problem.hint is not None
    assert problem.hint.endswith(f"{kind} node needs: {', '.join(REQUIRED[kind])}.")


# --- values of the wrong kind

NODE = "a: {{type: llm, prompt: p, {}}}"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("timeout: -1", "'timeout' must not be negative, got -1"),
        ("timeout: 1.5", "'timeout' must be a whole number, got 1.5"),
        ("timeout: 5.0", "'timeout' must be a whole number, got 5.0"),
        ("timeout: 1500ms", "'timeout' must be a whole number, got 1.5"),
        ("timeout: '5'", "'timeout' must be a whole number, got the text '5'"),
        ("timeout: true", "'timeout' must be a whole number, got true"),
        ("timeout: 9007199254740992", "'timeout' must be at most 2**53 - 1, got 9007199254740992"),
        ("max_attempts: []", "'max_attempts' must be a whole number, got a list"),
        ("temperature: hot", "'temperature' must be a number, got the text 'hot'"),
        ("temperature: false", "'temperature' must be a number, got false"),
        ("temperature: .nan", "'temperature' must be a finite number, got .nan"),
        ("tools: x", "'tools' must be a list, got the text 'x'"),
        ("tools: {a: b}", "'tools' must be a list, got a mapping"),
        ("tools: [~]", "'tools[0]' must be text, got nothing"),
        ("tools: [[x]]", "'tools[0]' must be text, got a list"),
        ("state_updates: [x]", "'state_updates' must be a mapping, got a list"),
        ("state_updates: {k: ~}", "'state_updates.k' must be text, got nothing"),
        ("state_updates: {k: {}}", "'state_updates.k' must be text, got a mapping"),
        ("output_schema: x", "'output_schema' must be a mapping, got the text 'x'"),
        ("output_schema: {x: [.inf]}", "'output_schema.x[0]' must be a finite number, got .inf"),
        ("instructions: [x]", "'instructions' must be text, got a list"),
        ("next: {a: b}", "'next' must name a node, got a mapping"),
        ("next: []", "'next' must name a node, got an empty list"),
        ("next: [~]", "'next[0]' must name a node, got nothing"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(entry: str, message: str) -> None:
    loaded = parse(yaml_graph(NODE.format(entry)), "g.yaml")
    assert loaded.graph is None
    assert errors(loaded.problems) == [f"[a] {message}"]
    assert loaded.problems[0].line == 4


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ("settings: [x]", "'settings' must hold a mapping, got a list"),
        ("settings: {timeout: 1.5}", "'settings.timeout' must be a whole number, got 1.5"),
        (
            "settings: {log_state_snapshots: yes}",
            "'settings.log_state_snapshots' must be true or false, got the text 'yes'",
        ),
        ("settings: {validate_before_run: 0}", "'settings.validate_before_run' must be true or false, got 0"),
        ("variables: x", "'variables' must be a list, got the text 'x'"),
        ("variables: [x]", "'variables' must hold mappings with a name and a description, got the text 'x'"),
        ("variables: [{name: x}]", "missing field `description`"),
        ("initial_state: [x]", "'initial_state' must be a mapping, got a list"),
        ("initial_state: {x: -.inf}", "'initial_state.x' must be a finite number, got -.inf"),
        ("global_tools: x", "'global_tools' must be a list, got the text 'x'"),
        ("model: [x]", "'model' must be text, got a list"),
        ("version: {}", "'version' must be text, got a mapping"),
        ("concurrency: 5", "'concurrency' must hold a mapping with a limit, got 5"),
        ("concurrency: {key: x}", "missing field `limit`"),
        ("concurrency: {limit: 0}", "'concurrency.limit' must be at least 1, got 0"),
        ("concurrency: {limit: 2.0}", "'concurrency.limit' must be a whole number, got 2.0"),
        ("concurrency: {limit: 1, key: [x]}", "'concurrency.key' must be text, got a list"),
        ("concurrency: {limit: 1, kye: x}", "unknown key 'kye' in 'concurrency'"),
        ('concurrency: {limit: 1, key: "{{ x }}"}', "'concurrency.key' holds '{{ x }}', which is not a placeholder"),
        ('concurrency: {limit: 1, key: "{{a}}}}"}', "'concurrency.key' holds '}}', which is not a placeholder"),
        ('concurrency: {limit: 1, key: "{{a}}-{{b"}', "'concurrency.key' holds '{{b', which is not a placeholder"),
    ],
)
def test_a_wrong_value_outside_the_nodes_is_refused_by_name(top: str, message: str) -> None:
    loaded = parse(yaml_graph(END, top=top), "g.yaml")
    assert errors(loaded.problems) == [message]
    assert loaded.problems[0].line == 3


def test_a_wrong_limit_of_concurrency_is_reported_with_its_place_and_a_suggestion() -> None:
    [problem] = parse(yaml_graph(END, top="concurrency:\n  kye: x\n  limit: 3"), "g.yaml").problems
    assert (problem.line, problem.column, problem.hint) == (4, 3, 'Did you mean "key"?')


def test_a_limit_of_concurrency_is_for_the_whole_agent_unless_it_has_a_key() -> None:
    graph = graph_of(yaml_graph(END, top="concurrency: {limit: 5}"))
    assert graph.concurrency == Concurrency(key="", limit=5)
    graph = graph_of(yaml_graph(END, top='concurrency: {limit: 5, key: "{{tenant}}/{{plan.name}}"}'))
    assert graph.concurrency == Concurrency(key="{{tenant}}/{{plan.name}}", limit=5)


def test_a_template_without_quotes_is_answered_with_the_way_out() -> None:
    problems = parse(yaml_graph("a: {type: end}\nb: {type: llm, prompt: {{topic}}}"), "g.yaml").problems
    assert [problem.hint for problem in problems if problem.message.startswith("'prompt'")] == [
        'Text that starts with a brace needs quotes: "{{name}}".'
    ]


# --- conversions


def test_scalars_inside_nodes_become_the_text_they_were_written_as_with_a_warning() -> None:
    nodes = """
        a: {type: approval, question: 1.50, options: [true, 0x10, no], routes: {true: b, 0x10: b, no: b}, on_other: b}
        b: {type: end, output: 5, state_updates: {n: 1.0}}
    """
    graph = graph_of(yaml_graph(nodes))
    review, end = graph.nodes["a"], graph.nodes["b"]
    assert isinstance(review, ApprovalNode)
    assert (review.question, review.options) == ("1.50", ["true", "0x10", "no"])
    assert review.routes == {"true": "b", "0x10": "b", "no": "b"}
    assert end == EndNode(id="b", output="5", state_updates={"n": "1.0"})
    assert problems_of(nodes) == [
        "4:23 warning [a] 'question' is not text; it is read as '1.50'",
        "4:49 warning [a] 'options[0]' is not text; it is read as 'true'",
        "4:55 warning [a] 'options[1]' is not text; it is read as '0x10'",
        "4:75 warning [a] key true is not text; it is read as 'true'",
        "4:84 warning [a] key 0x10 is not text; it is read as '0x10'",
        "5:18 warning [b] 'output' is not text; it is read as '5'",
        "5:45 warning [b] 'state_updates.n' is not text; it is read as '1.0'",
    ]


def test_scalars_at_the_top_become_text_without_a_warning() -> None:
    top = "description: 5\nmodel: true\nglobal_tools: [1.0]\nvariables: [{name: 1, description: 2, default: 0.50}]"
    loaded = parse(yaml_graph("1: {type: end}", start="1", top=top), "g.yaml")
    assert loaded.graph is not None
    assert (loaded.graph.description, loaded.graph.model, loaded.graph.global_tools) == ("5", "true", ["1.0"])
    assert loaded.graph.variables == [Variable(name="1", description="2", default="0.50")]
    assert notices(loaded.problems) == ["[1] key 1 is not text; it is read as '1'"]


@pytest.mark.conformance("T14")
def test_yes_and_no_are_text() -> None:
    nodes = """
        a: {type: approval, question: q, options: [yes, no, on], routes: {yes: b, no: b, on: b}, on_other: b}
        b: {type: end}
    """
    loaded = parse(yaml_graph(nodes), "g.yaml")
    assert loaded.problems == ()
    assert loaded.graph is not None
    review = loaded.graph.nodes["a"]
    assert isinstance(review, ApprovalNode)
    assert review.options == list(review.routes) == ["yes", "no", "on"]


def test_null_for_an_optional_key_means_that_it_is_absent() -> None:
    nodes = (
        "a: {type: llm, prompt: p, description: ~, timeout: null, max_attempts: , tools: ~, next: ~, state_updates: ~}"
    )
    top = "settings:\ninitial_state: ~\nvariables:\ntop_p: null\nreducers: {}"
    assert graph_of(yaml_graph(nodes, top=top)) == graph_of(yaml_graph("a: {type: llm, prompt: p}"))


def test_a_next_of_one_element_is_a_plain_edge() -> None:
    graph = graph_of(yaml_graph("a: {type: llm, prompt: p, next: [b]}\nb: {type: end}"))
    assert graph.nodes["a"].next == "b"


# --- keys that mean nothing here


@pytest.mark.conformance("T13")
@pytest.mark.parametrize(
    ("nodes", "top", "message", "hint"),
    [
        (END, "intial_state: {}", "unknown key 'intial_state' is ignored", 'Did you mean "initial_state"?'),
        (END, "settings: {speed: 3}", "unknown key 'speed' is ignored", "The keys here are: "),
        (END, "settings: {time_out: 3}", "unknown key 'time_out' is ignored", 'Did you mean "timeout"?'),
        (END, "variables: [{name: x, description: d, defualt: 1}]", "unknown key 'defualt' is ignored", "Did you mean"),
        ("a: {type: end, ouput: x}", "", "[a] unknown key 'ouput' is ignored", 'Did you mean "output"?'),
        ("a: {type: end, zzz: x}", "", "[a] unknown key 'zzz' is ignored", "The keys here are: output, description, "),
        ("a: {type: end, interrupt_before: 1}", "", "[a] unknown key 'interrupt_before' is ignored", "To ask a person"),
        (END, "edges: []", "unknown key 'edges' is ignored", "Write edges at their source node"),
        (
            "a: {type: agent, agent: x, prompt: p, tools: [y]}",
            "",
            "[a] 'tools' has no effect on an agent node",
            "It belongs to nodes of type llm.",
        ),
    ],
)
def test_an_unknown_key_is_ignored_with_a_warning_and_a_suggestion(
    nodes: str, top: str, message: str, hint: str
) -> None:
    loaded = parse(yaml_graph(nodes, top=top), "g.yaml")
    assert loaded.graph is not None
    assert notices(loaded.problems) == [message]
    assert (loaded.problems[0].hint or "").startswith(hint)
    assert loaded.problems[0].line == (4 if not top else 3)


NEWER = [
    "max_tool_result_chars", "memory", "hooks", "enabled_tools", "spawnable_agents",
    "can_spawn_agents", "max_concurrent_agents", "max_agent_depth", "max_concurrent_jobs", "mcp_tools",
]  # fmt: skip


@pytest.mark.conformance("T13")
@pytest.mark.parametrize("key", NEWER)
def test_a_key_of_another_release_is_ignored_and_the_warning_reports_why(key: str) -> None:
    loaded = parse(yaml_graph(END, top=f"{key}: high"), "g.yaml")
    assert loaded.graph is not None
    assert notices(loaded.problems) == [f"'{key}' is ignored"]
    assert loaded.problems[0].hint


def test_keys_of_another_release_are_reported_once_for_the_whole_graph() -> None:
    """Finding U7 of the second review."""
    top = "hooks: {a: b}\nmemory: null"
    nodes = "a: {type: llm, prompt: p, hooks: {}, next: b}\n  b: {type: llm, prompt: p, global_hooks: [c]}"
    loaded = parse(yaml_graph(nodes, top=top), "g.yaml")
    assert notices(loaded.problems) == ["'hooks', 'global_hooks' are ignored"]
    assert loaded.problems[0].line == 3


@pytest.mark.conformance("T18")
def test_documents_at_the_top_are_ignored_with_a_pointer_to_rag_nodes() -> None:
    loaded = parse(yaml_graph(END, top="documents: [a]"), "g.yaml")
    assert loaded.graph is not None
    assert [str(problem) for problem in loaded.problems] == [
        "g.yaml:3:1: warning: 'documents' is ignored\n    Knowledge belongs to a node: list it in a node of type rag."
    ]


@pytest.mark.conformance("T10")
def test_only_a_graph_with_an_agent_node_may_spawn_agents() -> None:
    assert not graph_of(yaml_graph(END, top="can_spawn_agents: true")).can_spawn_agents
    nodes = "a: {type: agent, agent: x, prompt: p, next: b}\nb: {type: end}"
    assert graph_of(yaml_graph(nodes, top="can_spawn_agents: false")).can_spawn_agents


# --- function nodes


@pytest.mark.parametrize(
    "call", ["f.py:run", "sub/dir-1/f.py:run", "f.py:Steps.run", "package.module:run", "module:_run1"]
)
def test_a_call_names_a_file_or_a_module_and_a_function(call: str) -> None:
    assert graph_of(yaml_graph(f"a: {{type: function, call: '{call}'}}")).nodes["a"] == FunctionNode(id="a", call=call)


@pytest.mark.parametrize(
    "call", ["f.py", "run", "f.py:", ":run", "f.py:run()", "f.py:1a", "d/f.sh:run", "a..b:run", "1a:b", ""]
)
def test_any_other_call_is_refused(call: str) -> None:
    assert problems_of(f"a: {{type: function, call: '{call}'}}") == [
        f"4:23 error [a] '{call}' does not name a function"
    ]


# --- all at once, and the raising form


@pytest.mark.conformance("V08")
def test_all_problems_are_reported_together_in_file_order() -> None:
    nodes = """
        a: {type: llm, promt: p, timeout: -1, next: [b, 5.5, []]}
        b: {type: nosuch}
        c: {type: approval, question: q}
    """
    assert problems_of(nodes, start="x", top="version: 3\nmodel: [m]") == [
        "2:1 error Start node 'x' not found in graph 'g'. Available nodes: a, b, c",
        "3:1 error Unsupported graph schema version '3'. Supported versions: 1.0, sleipnir/1",
        "4:1 error 'model' must be text, got a list",
        "6:3 error [a] missing field `prompt`",
        "6:18 warning [a] unknown key 'promt' is ignored",
        "6:28 error [a] 'timeout' must not be negative, got -1",
        "6:51 warning [a] 'next[1]' is not text; it is read as '5.5'",
        "6:56 error [a] 'next[2]' must name a node, got a list",
        "7:7 error [b] unknown node type 'nosuch'",
        "8:3 error [c] missing field `options`",
        "8:3 error [c] missing field `routes`",
        "8:3 error [c] missing field `on_other`",
    ]


def test_a_checked_graph_loads_without_problems() -> None:
    assert load_graph(yaml_graph("a: {type: end, zzz: 1}"), "g.yaml", "hello").nodes == {"a": EndNode(id="a")}


def test_a_graph_that_cannot_load_raises_with_every_problem() -> None:
    with pytest.raises(GraphError) as caught:
        load_graph("name: g\nstart: a\nextra: 1\nnodes: {a: {type: x}, b: 1}", "g.yaml", "hello")
    headline, *lines = str(caught.value).splitlines()
    assert headline == "Failed to load graph.yaml for agent 'hello'"
    assert "  g.yaml:4:13: [a] unknown node type 'x'" in lines
    assert [problem.level for problem in caught.value.problems] == ["warning", "error", "error"]


LINES = """name: g
start: a
nodes:
  a: {type: end}
  b:
    type: llm
    prompt: {{x}}
    next: [a]
    tools: [1, ~]
version: 1.0
settings: {timeout: -1}
variables: [~]
nodes: [1]
  - x
? [a]
initial_state: {a: .inf}
  <<: *a
  a: &a {type: rag}
    id: 5
reducers: 1
    next: [a, b]
    branch: [{when: "1", to: a}, {else: 1}]
    branch: {by: x}
    wait_for: [[a], {from: [b], min: 9}]
    wait_for: 1
    ends: [x]
  m: {type: map, node: [a, 1], for_each: 1}
state: {a: 1, b: int}
limits: {max_steps: .nan, step_timeout: 1s}
engine: [x]
    type: [x]
\t"""
GRAPH_LIKE = st.lists(st.sampled_from(LINES.splitlines()), max_size=14).map("\n".join)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=60) | GRAPH_LIKE)
def test_parsing_never_raises_and_gives_a_graph_or_an_error(text: str) -> None:
    loaded = parse(text, "g.yaml")
    assert (loaded.graph is None) == any(problem.level == "error" for problem in loaded.problems)
