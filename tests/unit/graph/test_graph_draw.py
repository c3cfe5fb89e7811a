"""Pictures: every node in its shape, every edge once, and no text that can break the picture."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.graph.draw import dot, mermaid
from sleipnir.graph.model import ApprovalNode, EndNode, Graph, LlmNode, Node, ScriptNode, edges_of
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


@settings(max_examples=200, deadline=None)
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


def test_equal_graphs_give_equal_pictures_whatever_the_ids() -> None:
    def graph(names: list[str]) -> Graph:
        first, second = names
        return Graph(
            name="g",
            start=first,
            nodes={first: ScriptNode(id=first, script="s", next=second), second: EndNode(id=second)},
        )

    assert mermaid(graph(["a", "b"])) == mermaid(graph(["a", "b"]))
    assert dot(graph(["n1", "n0"])).count("-> n1") == 1
