"""A picture inside a web page."""

from __future__ import annotations

import base64
from typing import TypedDict

from sleipnir import START, StateGraph
from sleipnir.graph.draw import Mark, RunProgress
from sleipnir.graph.draw.embedded import MOST_CHARS, MOST_NODES, embedded, html_text


class Text(TypedDict):
    text: str


def unchanged(state: Text) -> Text:
    return state


def chain(nodes: int) -> StateGraph:
    graph = StateGraph(Text)
    names = [f"node{number}" for number in range(nodes)]
    for node in names:
        graph.add_node(node, unchanged)
    for source, target in zip([START, *names], names, strict=False):
        graph.add_edge(source, target)
    return graph


def test_a_graph_in_a_notebook_is_a_picture_of_which_no_name_is_markup() -> None:
    html = chain(1).compile(name='"><script>alert(1)</script>')._repr_html_()
    assert html.startswith('<img alt="&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;" ')
    assert html.count("<") == 1
    picture = base64.b64decode(html.partition("base64,")[2].removesuffix('">')).decode()
    assert ">node0</text>" in picture
    assert "<script" not in picture


def test_the_progress_of_a_run_is_in_the_picture_and_its_caption_in_the_text_beside_it() -> None:
    model = chain(1).compile(name="g").model
    html = embedded(model, RunProgress('run "1"', {"node0": Mark("failed", "failed <b>")}))
    assert html.startswith('<img alt="g: run &quot;1&quot;" ')
    picture = base64.b64decode(html.partition("base64,")[2].removesuffix('">')).decode()
    assert ">failed &lt;b&gt;</text>" in picture


def test_a_graph_of_too_many_nodes_is_text_of_a_bounded_size() -> None:
    html = chain(MOST_NODES + 1).compile(name="<b>")._repr_html_()
    assert html.startswith("<pre>&lt;b&gt;\n")
    assert "node0" in html
    assert len(html) < 8 * MOST_CHARS
    assert "<img" not in html


def test_half_a_character_is_shown_as_a_question_mark() -> None:
    assert html_text("a\ud800<") == "a?&lt;"
