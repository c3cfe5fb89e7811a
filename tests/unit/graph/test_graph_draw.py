"""Pictures in Mermaid and DOT: every node in its shape, every edge once, and no text that can break the picture."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.graph.draw import DotContent, Mark, RunProgress, dot, mermaid
from sleipnir.graph.model import (
    SLEIPNIR,
    ApprovalNode,
    Branch,
    Choice,
    EndNode,
    FunctionNode,
    Graph,
    Join,
    JoinNode,
    LlmNode,
    MapNode,
    Node,
    RouterNode,
    ScriptNode,
    edges_of,
)
from tests.examples import examples
from tests.unit.graph.writing import graph_of, yaml_graph

NODES = """
    a: {type: script, script: s.py, next: b, fallback: h}
    b: {type: llm, prompt: p, next: c, fallback: g}
    c: {type: agent, agent: x, prompt: p, next: d}
    d: {type: rag, documents: [x], next: e}
    e: {type: input, question: q, next: f}
    f: {type: approval, question: q, options: [yes, no], routes: {yes: h, no: g}, on_other: e2, next: a}
    e2: {type: function, call: "m:f", next: g, fallback: nowhere}
    g: {type: end, next: a}
    h: {type: end}
"""

MERMAID = """flowchart TD
    start((start))
    n0["a<br/>script"]
    n1("b<br/>llm")
    n2[["c<br/>agent"]]
    n3[("d<br/>rag")]
    n4[/"e<br/>input"/]
    n5{"f<br/>approval"}
    n6{{"e2<br/>function"}}
    n7(["g<br/>end"])
    n8(["h<br/>end"])
    n9["nowhere<br/>missing"]
    start --> n0
    n0 --> n1
    n0 -.->|"fallback"| n8
    n1 --> n2
    n1 -.->|"fallback"| n7
    n2 --> n3
    n3 --> n4
    n4 --> n5
    n5 -->|"yes"| n8
    n5 -->|"no"| n7
    n5 -->|"other"| n6
    n6 --> n7
    n6 -.->|"fallback"| n9
"""

DOT = r"""digraph "g" {
    start [shape=circle, label=start];
    n0 [shape="box", label="a\nscript"];
    n1 [shape="box", style="rounded", label="b\nllm"];
    n2 [shape="component", label="c\nagent"];
    n3 [shape="cylinder", label="d\nrag"];
    n4 [shape="parallelogram", label="e\ninput"];
    n5 [shape="diamond", label="f\napproval"];
    n6 [shape="hexagon", label="e2\nfunction"];
    n7 [shape="box", style="rounded,bold", label="g\nend"];
    n8 [shape="box", style="rounded,bold", label="h\nend"];
    n9 [shape="box", style="dashed", label="nowhere\nmissing"];
    start -> n0;
    n0 -> n1;
    n0 -> n8 [label="fallback", style="dashed"];
    n1 -> n2;
    n1 -> n7 [label="fallback", style="dashed"];
    n2 -> n3;
    n3 -> n4;
    n4 -> n5;
    n5 -> n8 [label="yes"];
    n5 -> n7 [label="no"];
    n5 -> n6 [label="other"];
    n6 -> n7;
    n6 -> n9 [label="fallback", style="dashed"];
}
"""


def test_mermaid_shows_every_type_in_its_shape_and_every_edge_with_its_label() -> None:
    assert mermaid(graph_of(yaml_graph(NODES))) == MERMAID


def test_dot_shows_every_type_in_its_shape_and_every_edge_with_its_label() -> None:
    assert dot(graph_of(yaml_graph(NODES))) == DOT


def branching(*nodes: Node) -> Graph:
    return Graph(name="g", start=nodes[0].id, nodes={node.id: node for node in nodes}, version=SLEIPNIR)


BRANCHING = branching(
    ScriptNode(id="a", script="s", next=["b", "c"]),
    ScriptNode(id="b", script="s"),
    ScriptNode(id="c", script="s"),
    ScriptNode(id="d", script="s", next="r", wait_for=[Join(("b", "c"))]),
    RouterNode(id="r", branch=Branch(cases=[Choice(when="state.n > 1", to="m")], default="end")),
    MapNode(id="m", over="{{l}}", item="file", body=["x", "y"], collect_into="k", next="f"),
    ScriptNode(id="x", script="s", next="a"),
    ScriptNode(id="y", script="s"),
    FunctionNode(id="f", call="m:f", ends={"more": "a"}),
    JoinNode(id="j", wait_for=[Join(("b", "c"), 1)], next="end"),
)

BRANCHING_MERMAID = """flowchart TD
    start((start))
    n0["a<br/>script"]
    n1["b<br/>script"]
    n2["c<br/>script"]
    n3["d<br/>script"]
    n4>"r<br/>router"]
    n5[/"m<br/>map"\\]
    n6["x<br/>script"]
    n7["y<br/>script"]
    n8{{"f<br/>function"}}
    n9[\\"j<br/>join 1 of 2"/]
    finish((("end")))
    j0(("all"))
    start --> n0
    n0 --> n1
    n0 --> n2
    n3 --> n4
    n4 -.->|"state.n #62; 1"| n5
    n4 -.->|"else"| finish
    n5 --> n8
    n5 -.->|"each file"| n6
    n6 -.-> n7
    n8 -.->|"more"| n0
    n9 --> finish
    n1 --> j0
    n2 --> j0
    j0 --> n3
    n1 --> n9
    n2 --> n9
    linkStyle 7,8,9 stroke-dasharray:1 4
"""

BRANCHING_DOT = r"""digraph "g" {
    start [shape=circle, label=start];
    n0 [shape="box", label="a\nscript"];
    n1 [shape="box", label="b\nscript"];
    n2 [shape="box", label="c\nscript"];
    n3 [shape="box", label="d\nscript"];
    n4 [shape="cds", label="r\nrouter"];
    n5 [shape="trapezium", label="m\nmap"];
    n6 [shape="box", label="x\nscript"];
    n7 [shape="box", label="y\nscript"];
    n8 [shape="hexagon", label="f\nfunction"];
    n9 [shape="invtrapezium", label="j\njoin 1 of 2"];
    finish [shape="doublecircle", label="end"];
    j0 [shape="underline", label="all"];
    start -> n0;
    n0 -> n1;
    n0 -> n2;
    n3 -> n4;
    n4 -> n5 [label="state.n > 1", style="dashed"];
    n4 -> finish [label="else", style="dashed"];
    n5 -> n8;
    n5 -> n6 [label="each file", style="dotted"];
    n6 -> n7 [style="dotted"];
    n8 -> n0 [label="more", style="dotted"];
    n9 -> finish;
    n1 -> j0;
    n2 -> j0;
    j0 -> n3;
    n1 -> n9;
    n2 -> n9;
}
"""


@pytest.mark.conformance("VZ-01")
def test_branches_are_solid_conditions_dashed_and_what_a_run_asks_for_dotted() -> None:
    assert mermaid(BRANCHING) == BRANCHING_MERMAID
    assert dot(BRANCHING) == BRANCHING_DOT


def test_names_of_ends_are_resolved_and_drawn_once() -> None:
    to = Branch(by="{{x}}", to={"ok": "done"})
    labelled = branching(ScriptNode(id="a", script="s", branch=to, ends={"done": "b"}), EndNode(id="b"))
    assert mermaid(labelled).count("n0 -.-") == 1
    assert 'n0 -.->|"ok"| n1' in mermaid(labelled)


@pytest.mark.conformance("VZ-02")
def test_ends_of_a_condition_without_labels_of_its_own_are_its_labels() -> None:
    node = ScriptNode(id="a", script="s", branch=Branch(by="{{x}}"), ends={"ok": "b"})
    assert 'n0 -> n1 [label="ok", style="dashed"]' in dot(branching(node, EndNode(id="b")))


@pytest.mark.conformance("VZ-03")
def test_dot_leaves_out_start_and_ends_and_marks_the_first_node() -> None:
    node = ScriptNode(id="a", script="s", next="end", ends={"ok": "b"})
    graph = branching(node, ScriptNode(id="b", script="s"))
    shown = dot(graph)
    assert "start -> n0;" in shown and "n0 -> finish;" in shown and "peripheries" not in shown
    bare = dot(graph, content=DotContent(start_end=False, label='The "graph"'))
    assert "start" not in bare and "finish" not in bare
    assert [line.strip() for line in bare.splitlines() if "peripheries=2" in line] == [
        'n0 [shape="box", label="a\\nscript", peripheries=2];'
    ]
    assert r'labelloc="t"; label="The \"graph\"";' in bare
    assert "dotted" in bare and "dotted" not in dot(graph, content=DotContent(dotted=False))


def test_what_a_single_node_is_waited_for_needs_no_bar() -> None:
    graph = branching(ScriptNode(id="a", script="s"), ScriptNode(id="b", script="s", wait_for=[Join(("a",))]))
    assert mermaid(graph).endswith("    start --> n0\n    n0 --> n1\n")


def test_pictures_lie_on_request() -> None:
    assert mermaid(BRANCHING, direction="LR").startswith("flowchart LR\n")
    assert "rankdir=LR" in dot(BRANCHING, direction="LR")


RUN = RunProgress(
    "run x", {"a": Mark("done", "done ×2"), "b": Mark("failed", "failed")}, frozenset({("a", "b"), ("b", "y")})
)


def test_a_run_colours_what_it_reached_and_strengthens_the_ways_it_took() -> None:
    text = mermaid(BRANCHING, progress=RUN)
    assert 'n0["a<br/>script<br/>done ×2"]' in text.replace("#215;", "×")
    assert "    class n0 done\n" in text and "    class n1 failed\n" in text
    assert "linkStyle 0,1,11,14,16 stroke-width:3px" in text, "start, a to b, b to its joins, b to y"
    text = dot(BRANCHING, progress=RUN)
    assert 'style="filled", label="a\\nscript\\ndone ×2", fillcolor=' in text
    assert "n0 -> n1 [penwidth=3];" in text and "n0 -> n2;" in text


def test_a_way_that_the_file_does_not_declare_is_drawn_when_a_run_took_it() -> None:
    assert "n1 -> n7" not in dot(BRANCHING)
    assert 'n1 -> n7 [style="dotted", penwidth=3];' in dot(BRANCHING, progress=RUN)


def test_a_start_that_does_not_exist_is_drawn_as_missing() -> None:
    graph = Graph(name="g", start="x", nodes={"a": EndNode(id="a")})
    assert 'n1["x<br/>missing"]\n    start --> n1' in mermaid(graph)
    assert 'label="x\\nmissing"];\n    start -> n1;' in dot(graph)


ODD = [
    'say "hi"',
    "a\nb",
    "a\r\n\u2028b",
    "back\\slash",
    "}",
    "]; x",
    "--> n1",
    "a|b",
    "<script>",
    "#quot;",
    "`md`",
    "ü 😀",
    "",
]
NODE_LINE = re.compile(r'    n\d+(\[|\(|\{|\[\[|\(\[)"[^"\n]*<br/>\w+"(\]|\)|\}|\]\]|\]\))')
EDGE_LINE = re.compile(r'    (start|n\d+) (-->|-\.->)(\|"[^"\n]+"\|)? n\d+')
QUOTED = r'"(?:[^"\\\n]|\\.)*"'
DOT_NODE = re.compile(rf'    n\d+ \[shape="\w+"(, style="[\w,]+")?, label={QUOTED}\];')
DOT_EDGE = re.compile(rf'    (start|n\d+) -> n\d+( \[(label={QUOTED})?(, )?(style="dashed")?\])?;')


def odd_graph(first: str, second: str, option: str) -> Graph:
    """A graph whose ids and options are any text; the ids are made different."""
    review, end = first, second + "2"
    nodes: dict[str, Node] = {
        review: ApprovalNode(id=review, question="q", options=[option], routes={option: end}, on_other=end),
        end: EndNode(id=end),
    }
    return Graph(name=first + second, start=review, nodes=nodes)


def assert_structure(graph: Graph) -> None:
    """Every line is a whole statement, and there are as many of each kind as the graph has."""
    lines = mermaid(graph).rstrip("\n").split("\n")
    assert lines[:2] == ["flowchart TD", "    start((start))"]
    body = lines[2 : 2 + len(graph.nodes)]
    assert all(NODE_LINE.fullmatch(line) for line in body), body
    arrows = lines[2 + len(graph.nodes) :]
    assert all(EDGE_LINE.fullmatch(line) for line in arrows), arrows
    assert len(arrows) == 1 + sum(len(edges_of(node)) for node in graph.nodes.values())

    lines = dot(graph).rstrip("\n").split("\n")
    assert re.fullmatch(rf"digraph {QUOTED} {{", lines[0])
    assert lines[-1] == "}"
    assert all(DOT_NODE.fullmatch(line) for line in lines[2 : 2 + len(graph.nodes)])
    assert all(DOT_EDGE.fullmatch(line) for line in lines[2 + len(graph.nodes) : -1])
    assert len(lines) == 3 + len(graph.nodes) + len(arrows)


@pytest.mark.parametrize("text", ODD)
def test_odd_texts_do_not_break_the_picture(text: str) -> None:
    assert_structure(odd_graph(text, text, text))


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=12))
def test_no_text_breaks_the_picture(first: str, second: str, option: str) -> None:
    if first != second + "2":
        assert_structure(odd_graph(first, second, option))


def test_special_characters_become_codes_and_letters_stay() -> None:
    graph = Graph(
        name="g", start="é", nodes={"é": LlmNode(id="é", prompt="p", next='a "b"'), 'a "b"': EndNode(id='a "b"')}
    )
    assert 'n0("é<br/>llm")' in mermaid(graph)
    assert 'n1(["a #34;b#34;<br/>end"])' in mermaid(graph)
    assert 'label="a \\"b\\"\\nend"' in dot(graph)


def test_a_backslash_is_no_escape_in_dot() -> None:
    graph = Graph(name="g\\", start="a\\l", nodes={"a\\l": EndNode(id="a\\l")})
    assert dot(graph).startswith('digraph "g\\\\" {\n')
    assert 'label="a\\\\l\\nend"' in dot(graph)


def test_equal_graphs_give_equal_pictures_with_any_ids() -> None:
    def graph(names: list[str]) -> Graph:
        first, second = names
        return Graph(
            name="g",
            start=first,
            nodes={first: ScriptNode(id=first, script="s", next=second), second: EndNode(id=second)},
        )

    assert mermaid(graph(["a", "b"])) == mermaid(graph(["a", "b"]))
    assert dot(graph(["n1", "n0"])).count("-> n1") == 1


def test_the_routers_of_a_graph_in_python_are_drawn_as_conditional_edges_and_its_end_once() -> None:
    nodes = """
    a: {type: function, call: g:a, protocol: state_graph, routers: [{call: g:r, to: {x: b, y: __end__}}, {call: g:s}]}
    b: {type: function, call: "g:b", protocol: state_graph, next: end}
    """
    graph = graph_of(yaml_graph(nodes, top="version: sleipnir/1\nstate_classes: ['g:S']"))
    assert mermaid(graph).splitlines()[1:] == [
        "    start((start))",
        '    n0{{"a<br/>function"}}',
        '    n1{{"b<br/>function"}}',
        '    finish((("end")))',
        "    start --> n0",
        '    n0 -.->|"x"| n1',
        '    n0 -.->|"y"| finish',
        "    n1 --> finish",
    ]
