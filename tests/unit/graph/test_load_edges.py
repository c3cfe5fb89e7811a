"""The keys by which a graph branches: every form they may take, what each becomes, and what is refused where."""

from __future__ import annotations

import pytest

from sleipnir.graph.load import parse
from sleipnir.graph.model import (
    SLEIPNIR,
    Branch,
    Choice,
    FunctionNode,
    Graph,
    Join,
    JoinNode,
    Limits,
    LlmNode,
    MapNode,
    Node,
    RouterNode,
    ScriptNode,
    StateField,
)
from tests.unit.graph.writing import errors, graph_of, notices, yaml_graph

END = "a: {type: end}"


def node(text: str) -> Node:
    """The node `a`, written as the inside of its mapping."""
    return graph_of(yaml_graph(f"a: {{{text}}}")).nodes["a"]


def found(text: str, *, top: str = "") -> list[str]:
    """What is found in the node `a`, as `column level message`."""
    problems = parse(yaml_graph(f"a: {{{text}}}", top=top), "g.yaml").problems
    return [f"{problem.column} {problem.level} {problem.message}" for problem in problems]


def top_errors(top: str) -> list[str]:
    problems = parse(yaml_graph(END, top=top), "g.yaml").problems
    assert [(problem.line, problem.level) for problem in problems] == [(3, "error")] * len(problems)
    return errors(problems)


# --- next


@pytest.mark.conformance("Y01")
def test_a_list_as_next_is_kept_in_its_order() -> None:
    assert node("type: llm, prompt: p, next: [c, b]").targets == ["c", "b"]


def test_a_target_twice_is_one_edge_and_a_warning() -> None:
    text = "type: llm, prompt: p, next: [c, b, c]"
    assert node(text).next == ["c", "b"]
    assert found(text) == ["42 warning 'next' names 'c' twice; the second is ignored"]
    assert node("type: llm, prompt: p, next: [c, c]").next == "c"


def test_a_run_has_one_beginning() -> None:
    (problem,) = parse("name: g\nstart: [a, b]\nnodes: {a: {type: end}, b: {type: end}}", "g.yaml").problems
    assert str(problem) == (
        "g.yaml:2:1: 'start' must name one node, got a list\n"
        "    A run has one start node: use a node of type router whose `next` names these."
    )


# --- whose rules hold


ADDITIONS = [
    (END, "engine: bsp"),
    (END, "state: {}"),
    (END, "limits: {max_steps: 3}"),
    ("a: {type: llm, prompt: p, branch: {by: x}}", ""),
    ("a: {type: end, wait_for: [a]}", ""),
    ("a: {type: script, script: s.py, ends: [a]}", ""),
    ("a: {type: router}", ""),
    ("a: {type: join}", ""),
]
"""Each has a key by which releases before sleipnir/1 chose the language."""

PLAIN = [
    (END, ""),
    ("a: {type: llm, prompt: p, next: [b, c]}\nb: {type: end}\nc: {type: end}", "reducers: {k: sum}"),
    ("a: {type: map, for_each: x, as: i, node: b, collect: k, next: b}\nb: {type: end}", ""),
    (END, "engine:\nstate:\nlimits:"),
]


@pytest.mark.parametrize(("nodes", "top"), [*ADDITIONS, *PLAIN])
def test_the_version_alone_chooses_the_rules(nodes: str, top: str) -> None:
    """Issue 15: a key that was added for another reason must not change what a failure or an end does."""
    for version, is_loki in (("", True), ('version: "1.0"', True), ("version: sleipnir/1", False)):
        graph = graph_of(yaml_graph(nodes, top=f"{version or 'version:'}\n{top}"))
        assert (graph.is_loki, graph.fails_by_default, graph.has_additions) == (
            is_loki,
            not is_loki,
            (nodes, top) in ADDITIONS,
        )


@pytest.mark.parametrize(("nodes", "top"), [*ADDITIONS, *PLAIN])
def test_a_run_of_an_earlier_release_continues_by_the_keys_that_its_graph_has(nodes: str, top: str) -> None:
    graph = graph_of(yaml_graph(nodes, top=f"version:\n{top}")).of_earlier_release
    assert (graph.is_loki, graph.fails_by_default) == ((nodes, top) in PLAIN, False)


def test_an_unknown_key_is_a_warning_in_lokis_format_and_an_error_in_sleipnir_1() -> None:
    """Finding U3 of the second review."""
    nodes = "a: {type: llm, prompt: p, interrupt_before: true, script: s.sh, next: e}\ne: {type: end}"
    for version, level in (("'1.0'", "warning"), ("sleipnir/1", "error")):
        top = f"version: {version}\ncheckpoint: true\nmemory: true"
        problems = parse(yaml_graph(nodes, top=top), "g.yaml").problems
        assert [(problem.level, problem.line) for problem in problems] == [(level, line) for line in (4, 5, 7, 7)]


@pytest.mark.parametrize("key", ["has_additions", "by_keys"])
def test_no_key_sets_what_the_loader_derives(key: str) -> None:
    problems = parse(yaml_graph(END, top=f"{key}: true"), "g.yaml").problems
    assert notices(problems) == [f"unknown key '{key}' is ignored"]


# --- branch


@pytest.mark.conformance("BD-19")
@pytest.mark.parametrize(
    ("text", "branch"),
    [
        ("{by: '{{x}}'}", Branch(by="{{x}}")),
        (
            "{by: '{{x}}', to: {1.0: b, y: c}, default: d}",
            Branch(by="{{x}}", to={"1.0": "b", "y": "c"}, default="d"),
        ),
        ("{call: 'f.py:g', many: true}", Branch(call="f.py:g", many=True)),
        ("[{when: x, to: b}, {else: c}]", Branch(cases=[Choice(when="x", to="b")], default="c")),
        ("[{when: x, to: b}]", Branch(cases=[Choice(when="x", to="b")])),
        ("{cases: [{when: x, to: b}], default: c}", Branch(cases=[Choice(when="x", to="b")], default="c")),
    ],
)
def test_a_branch_may_be_written_in_these_forms(text: str, branch: Branch) -> None:
    assert node(f"type: router, branch: {text}").branch == branch


@pytest.mark.conformance("BD-19")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", ["21 error 'branch' must be a mapping or a list of cases, got the text 'x'"]),
        ("{}", ["21 error 'branch' does not say how to choose"]),
        ("{to: {x: b}}", ["21 error 'branch' does not say how to choose"]),
        ("{by: x, call: 'f.py:g'}", ["37 error 'branch' chooses by 'by' and by 'call'"]),
        ("{by: x, cases: [{when: x, to: b}]}", ["37 error 'branch' chooses by 'by' and by 'cases'"]),
        ("{call: nothing}", ["30 error 'nothing' does not name a function"]),
        ("{by: [x]}", ["30 error 'branch.by' must be text, got a list"]),
        ("{by: x, many: 1}", ["37 error 'branch.many' must be true or false, got 1"]),
        (
            "{cases: [{when: x, to: b}], many: true}",
            ["57 error 'many' cannot be used with cases: only the first true case is taken"],
        ),
        ("[]", ["21 error the cases of a branch must be a list, got an empty list"]),
        ("[x]", ["30 error a case must be a mapping, got the text 'x'"]),
        ("[{when: x}]", ["30 error missing field `to`"]),
        ("[{to: x}]", ["30 error missing field `when`"]),
        ("[{else: b}, {when: x, to: b}]", ["41 error nothing can come after 'else'"]),
        ("[{else: [b]}]", ["31 error 'else' must be the only key and name a node"]),
        ("[{else: b, when: x}]", ["31 error 'else' must be the only key and name a node"]),
        ("{cases: [{when: x, to: b}, {else: c}], default: d}", ["68 error 'default' and 'else' set the same value"]),
    ],
)
def test_any_other_branch_is_refused_where_it_is_wrong(text: str, expected: list[str]) -> None:
    assert found(f"type: router, branch: {text}") == expected


# --- ends


def test_a_list_of_ends_names_each_target_by_itself() -> None:
    assert node("type: router, ends: [b, end]").ends == {"b": "b", "end": "end"}
    assert node("type: router, ends: {yes: b, no: end}").ends == {"yes": "b", "no": "end"}


@pytest.mark.parametrize("ends", ["5", "[]", "{x: [b]}", "[[b]]"])
def test_other_ends_are_refused(ends: str) -> None:
    assert [line.split()[1] for line in found(f"type: router, ends: {ends}")] == ["error"]


# --- wait_for


@pytest.mark.parametrize(
    ("text", "joins"),
    [
        ("[b]", [Join(("b",))]),
        ("[b, c]", [Join(("b", "c"))]),
        ("[[b, c], [d]]", [Join(("b", "c")), Join(("d",))]),
        ("{from: [b, c], min: 1}", [Join(("b", "c"), 1)]),
        ("{from: [b, c]}", [Join(("b", "c"))]),
        ("[{from: [b, c], min: 2}, [d]]", [Join(("b", "c"), 2), Join(("d",))]),
    ],
)
def test_a_node_may_wait_in_these_forms(text: str, joins: list[Join]) -> None:
    assert node(f"type: join, wait_for: {text}").wait_for == joins


@pytest.mark.conformance("BD-20")
def test_the_order_of_sources_does_not_matter_and_a_source_twice_counts_once() -> None:
    assert node("type: join, wait_for: [c, b, c]") == node("type: join, wait_for: [b, c]")
    assert found("type: join, wait_for: [c, b, c]") == ["36 warning 'wait_for' names 'c' twice; the second is ignored"]
    both = node("type: join, wait_for: [[b, c], [b_c]]")
    assert len({join.sources for join in both.wait_for}) == 2


@pytest.mark.conformance("BD-15")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b", ["19 error 'wait_for' must list nodes, got the text 'b'"]),
        ("[]", ["19 error 'wait_for' must list nodes, got an empty list"]),
        ("[[]]", ["30 error 'wait_for' must list nodes, got an empty list"]),
        ("[[b], c]", ["35 error 'wait_for' must list nodes, got the text 'c'"]),
        ("{min: 2}", ["19 error missing field `from`"]),
        ("{from: b}", ["30 error 'from' must list nodes, got the text 'b'"]),
        ("{from: [b, 5]}", ["40 error 'from[1]' must name a node, got 5"]),
        ("{from: [b], min: 0}", ["41 error 'min' must be a whole number from 1, got 0"]),
        ("{from: [b], min: true}", ["41 error 'min' must be a whole number from 1, got true"]),
        (
            "{from: [b], min: 2}",
            ["41 error the join can never fire: 'min' is 2, and it waits for 1 node only"],
        ),
        ("{from: [b], mni: 1}", ["41 error unknown key 'mni'"]),
        ("[[b, c], {from: [c, b], min: 1}]", ["19 error 'wait_for' has two joins of b, c"]),
    ],
)
def test_any_other_wait_is_refused_where_it_is_wrong(text: str, expected: list[str]) -> None:
    assert found(f"type: join, wait_for: {text}") == expected


def test_a_graph_knows_the_joins_that_a_node_is_a_source_of() -> None:
    nodes = "a: {type: router}\nb: {type: join, wait_for: [[a], [a, b]]}\nc: {type: end, wait_for: [a]}"
    assert graph_of(yaml_graph(nodes)).joins == {
        "a": [("b", Join(("a",))), ("b", Join(("a", "b"))), ("c", Join(("a",)))],
        "b": [("b", Join(("a", "b")))],
    }


# --- maps


@pytest.mark.conformance("Y04")
def test_both_spellings_of_a_map_mean_the_same() -> None:
    theirs = "type: map, over: '{{l}}', as: x, branch: b, collect_into: k, max_concurrency: 3, next: c"
    added = "type: map, for_each: '{{l}}', as: x, node: b, collect: k, max_parallel: 3, next: c"
    expected = MapNode(
        id="a", over="{{l}}", item="x", body=["b"], collect_into="k", max_concurrency=3, next="c", output_key="output"
    )
    assert node(theirs) == node(added) == expected


def test_the_body_of_a_map_may_be_a_chain() -> None:
    body = node("type: map, for_each: '{{l}}', as: x, node: [b, c, b], collect: k, on_item_error: skip, output_key: o")
    assert isinstance(body, MapNode)
    assert (body.body, body.on_item_error, body.output_key) == (["b", "c", "b"], "skip", "o")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "for_each: l, over: l, as: x, node: b, collect: k",
            ["31 error 'for_each' and 'over' set the same value"],
        ),
        ("for_each: [l], as: x, node: b, collect: k", ["18 error 'for_each' must be text, got a list"]),
        ("for_each: l, node: b, collect: k", ["3 error missing field `as`"]),
        ("for_each: l, as: x, collect: k", ["3 error missing field `node`"]),
        ("over: l, as: x, collect_into: k", ["3 error missing field `branch`"]),
        ("for_each: l, as: x, node: [], collect: k", ["38 error 'node' must name a node, got an empty list"]),
        (
            "over: l, as: x, collect_into: k, branch: {by: x}",
            ["51 error 'branch' of a map node must name a node, got a mapping"],
        ),
        (
            "for_each: l, as: x, node: b, collect: k, max_parallel: -1",
            ["59 error 'max_parallel' must not be negative, got -1"],
        ),
        (
            "for_each: l, as: x, node: b, collect: k, on_item_error: ignore",
            ["59 error 'on_item_error' must be `fail`, `skip` or `collect`, got the text 'ignore'"],
        ),
    ],
)
def test_a_wrong_map_is_refused_in_the_words_of_its_author(text: str, expected: list[str]) -> None:
    assert found(f"type: map, {text}") == expected


def test_missing_keys_of_a_map_are_reported_in_the_spelling_of_the_file() -> None:
    hints = [
        parse(yaml_graph(f"a: {{type: map, {key}: x}}"), "g.yaml").problems[0].hint for key in ("over", "for_each")
    ]
    assert hints == [
        "A map node needs: over, as, branch, collect_into.",
        "A map node needs: for_each, as, node, collect.",
    ]


# --- the top level


@pytest.mark.conformance("DG-08")
def test_an_engine_that_does_not_exist_is_refused() -> None:
    assert top_errors("engine: dga") == ["'engine' must be `bsp` or `dag`, got the text 'dga'"]
    assert [graph_of(yaml_graph(END, top=f"engine: {name}")).engine for name in ("bsp", "dag", "")] == [
        "bsp",
        "dag",
        "bsp",
    ]


def test_a_declared_key_may_be_written_as_its_type_alone() -> None:
    top = "state: {n: int, l: {type: list, items: string, reducer: append, default: []}, r: {required: true}}"
    assert graph_of(yaml_graph(END, top=top)).state == {
        "n": StateField(type="int"),
        "l": StateField(type="list", items="string", reducer="append", default=[]),
        "r": StateField(required=True),
    }


@pytest.mark.parametrize(
    ("top", "message"),
    [
        ("state: [x]", "'state' must be a mapping, got a list"),
        ("state: {n: 5}", "'state' must hold a type, or a mapping, per key, got 5"),
        ("state: {n: {required: 1}}", "'state.n.required' must be true or false, got 1"),
        ("state: {n: {schema: x}}", "'state.n.schema' must be a mapping, got the text 'x'"),
        ("reducers: [x]", "'reducers' must be a mapping, got a list"),
        ("reducers: {x: [append]}", "'reducers.x' must be text, got a list"),
        ("limits: 3", "'limits' must hold a mapping, got 3"),
        ("limits: {max_steps: -1}", "'limits.max_steps' must not be negative, got -1"),
        ("limits: {max_concurrency: 1.5}", "'limits.max_concurrency' must be a whole number, got 1.5"),
        (
            "limits: {step_timeout: soon}",
            "'limits.step_timeout' must be a duration such as 500ms, 30s or 5m, got the text 'soon'",
        ),
        ("limits: {on_max_steps: go}", "'limits.on_max_steps' must be `error` or `stop`, got the text 'go'"),
    ],
)
def test_a_wrong_value_at_the_top_is_refused_by_name(top: str, message: str) -> None:
    assert top_errors(top) == [message]


@pytest.mark.conformance("LM-01")
@pytest.mark.parametrize("given", ["0", "-1", "~"])
def test_a_concurrency_of_zero_or_less_means_the_default(given: str) -> None:
    graph = graph_of(yaml_graph(END, top=f"limits: {{max_concurrency: {given}}}\nsettings: {{max_concurrency: 5}}"))
    assert (graph.limits, graph.max_concurrency) == (Limits(), 5)


def timeouts(limits: str) -> list[int | None]:
    nodes = """
        a: {type: script, script: s.py}
        b: {type: function, call: "f.py:g"}
        c: {type: llm, prompt: p}
        d: {type: script, script: s.py, timeout: 7}
        e: {type: rag, documents: [d]}
    """
    graph = graph_of(yaml_graph(nodes, top=f"limits: {limits}"))
    return [getattr(node, "timeout", None) for node in graph.nodes.values()]


@pytest.mark.conformance("LM-03")
@pytest.mark.parametrize(
    ("limits", "default"),
    [
        ("{node_timeout: 90s}", 90),
        ("{node_timeout: 1500ms}", 2),
        ("{node_timeout: 3, step_timeout: 60}", 3),
        ("{step_timeout: 60}", 30),
        ("{step_timeout: 5s}", 3),
        ("{step_timeout: 1s}", 1),
        ("{step_timeout: 100ms}", 1),
    ],
)
def test_a_step_or_node_timeout_times_the_nodes_that_declare_none(limits: str, default: int) -> None:
    assert timeouts(limits) == [default, default, default, 7, 120]


@pytest.mark.parametrize("limits", ["{}", "{step_timeout: 0, node_timeout: 0}"])
def test_without_such_a_limit_each_type_keeps_its_own(limits: str) -> None:
    assert timeouts(limits) == [30, 30, None, 7, 120]


# --- what the graph says of itself


def graph_with(**keys: object) -> Graph:
    nodes: dict[str, Node] = {
        "a": RouterNode(id="a", ends={"go": "b", "b": "c", "stop": "end"}),
        "b": ScriptNode(id="b", script="s.py"),
        "c": FunctionNode(id="c", call="f.py:g"),
    }
    return Graph(name="g", start="a", nodes=nodes, version=SLEIPNIR, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("label", "target"), [("go", "b"), ("b", "c"), ("c", "c"), ("stop", "end"), ("end", "end"), ("nowhere", None)]
)
def test_a_way_that_a_node_names_is_one_of_its_ends_else_a_node(label: str, target: str | None) -> None:
    graph = graph_with()
    assert graph.target_of(graph.nodes["a"], label) == target


@pytest.mark.conformance("RT-02", "RT-03", "RT-04")
@pytest.mark.parametrize(
    ("label", "target"), [("go", "c"), ("c", "c"), ("b", "c"), ("odd", "b"), ("x", "b"), ("end", "end")]
)
def test_a_label_is_looked_up_in_the_map_then_in_the_ends_then_among_the_nodes(label: str, target: str) -> None:
    branch = Branch(by="{{x}}", to={"go": "c", "x": "go"}, default="go")
    a = RouterNode(id="a", ends={"go": "b", "b": "c"}, branch=branch)
    graph = Graph(name="g", start="a", nodes={"a": a, **dict(list(graph_with().nodes.items())[1:])}, version=SLEIPNIR)
    assert graph.target_of_choice(a, label) == target


def test_end_is_a_node_where_there_is_one_and_nothing_in_a_graph_of_loki() -> None:
    added = graph_of(yaml_graph("a: {type: join}\nend: {type: end}"))
    theirs = graph_of(yaml_graph("a: {type: llm, prompt: p}"))
    assert [graph.ends_branch("end") for graph in (added, theirs, graph_with())] == [False, False, True]


def test_the_reducer_of_a_key_is_that_of_its_declaration_else_of_the_block() -> None:
    top = "reducers: {a: sum, b: max}\nstate: {b: {type: int, reducer: min}, m: messages, n: int}"
    graph = graph_of(yaml_graph("a: {type: end}", top=top))
    assert [graph.reducer_of(key) for key in "abmnx"] == ["sum", "min", "messages", None, None]


def test_every_kind_of_node_but_a_map_may_have_a_conditional_edge() -> None:
    llm = node("type: llm, prompt: p, branch: {by: x}")
    assert isinstance(llm, LlmNode)
    assert llm.branch == Branch(by="x")
    assert node("type: join, wait_for: [b]") == JoinNode(id="a", wait_for=[Join(("b",))])
