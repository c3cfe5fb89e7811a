"""SVG pictures: well-formed, safe, readable without colour, and honest about what a run did."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.graph.draw import Mark, RunProgress, svg
from sleipnir.graph.draw.colours import DARK, LIGHT, Colour
from sleipnir.graph.draw.layout import Direction, Size
from sleipnir.graph.draw.shapes import dent, outline, size_around
from sleipnir.graph.draw.svg import Theme
from sleipnir.graph.draw.text import one_line, width
from sleipnir.graph.model import (
    NODE_TYPES,
    SLEIPNIR,
    AgentNode,
    ApprovalNode,
    Branch,
    Choice,
    EndNode,
    FunctionNode,
    Graph,
    GraphNode,
    InputNode,
    Join,
    JoinNode,
    LlmNode,
    MapNode,
    Node,
    RagNode,
    RouterNode,
    ScriptNode,
    ToolsNode,
    WaitNode,
)
from tests.examples import examples

NAMESPACE = "{http://www.w3.org/2000/svg}"


def graph_of(*nodes: Node) -> Graph:
    return Graph(name="g", start=nodes[0].id, nodes={node.id: node for node in nodes}, version=SLEIPNIR)


EVERYTHING = graph_of(
    RouterNode(id="route", branch=Branch(by="{{x}}", to={"a": "script", "b": "llm"}, default="agent")),
    ScriptNode(id="script", script="s", next=["rag", "function"], fallback="script"),
    LlmNode(id="llm", prompt="p", branch=Branch(cases=[Choice(when="state.n > 3", to="route")], default="end")),
    AgentNode(id="agent", agent="x", prompt="p", next="ask"),
    RagNode(id="rag", documents=["d"]),
    FunctionNode(id="function", call="m:f", ends={"again": "route"}),
    InputNode(id="ask", question="q", next="sure"),
    ApprovalNode(id="sure", question="q", options=["yes"], routes={"yes": "each"}, on_other="ask"),
    MapNode(id="each", over="{{l}}", item="file", body=["one", "two"], collect_into="r", next="done"),
    ScriptNode(id="one", script="s"),
    ScriptNode(id="two", script="s"),
    JoinNode(id="join", wait_for=[Join(("function", "rag"), 1)], next="late"),
    ScriptNode(id="late", script="s", wait_for=[Join(("agent", "join"))], next="pause"),
    WaitNode(id="pause", duration=30_000, next="below"),
    GraphNode(id="below", graph="other", next="calls"),
    ToolsNode(id="calls", tools=["a"], next="done"),
    EndNode(id="done"),
)


def parsed(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{NAMESPACE}text")]


def test_every_type_has_a_picture_and_every_name_and_label_is_in_it() -> None:
    root = parsed(svg(EVERYTHING))
    assert {node.kind for node in EVERYTHING.nodes.values()} == set(NODE_TYPES)
    shown = texts(root)
    assert set(EVERYTHING.nodes) <= set(shown)
    assert {"a", "b", "default", "state.n > 3", "else", "fallback", "again", "each file", "1 of 2", "all"} - set(
        shown
    ) == {"1 of 2"}, "a join node says its quorum beside its type"
    assert "join 1 of 2" in shown


def test_the_legend_names_what_the_picture_uses_and_plain_graphs_have_none() -> None:
    assert texts(parsed(svg(EVERYTHING)))[-4:] == [
        "next",
        "on a condition",
        "if the run asks for it",
        "waits for several",
    ]
    plain = graph_of(ScriptNode(id="a", script="s", next="b"), EndNode(id="b"))
    assert texts(parsed(svg(plain))) == ["a", "script", "b", "end"]


def test_a_picture_can_be_read_out() -> None:
    root = parsed(svg(graph_of(EndNode(id="b"))))
    named = (root.get("aria-labelledby") or "").split()
    found = {element.get("id"): element.text for element in root.iter() if element.get("id")}
    assert root.get("role") == "img"
    assert [found[name] for name in named] == ["g", "1 node, 1 arrow"]


def test_it_loads_no_external_resource_and_runs_no_code() -> None:
    text = svg(EVERYTHING)
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert {element.tag.removeprefix(NAMESPACE) for element in parsed(text).iter()} == {
        "svg", "title", "desc", "style", "g", "path", "rect", "circle", "text",
    }  # fmt: skip
    assert "url(" not in text and "@import" not in text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_fixed_theme_needs_no_css_variables(theme: Theme) -> None:
    text = svg(EVERYTHING, theme=theme)
    assert "var(" not in text and "@media" not in text
    assert (DARK if theme == "dark" else LIGHT).paper in text


def test_by_default_the_reader_chooses_between_light_and_dark() -> None:
    text = svg(EVERYTHING)
    assert "@media (prefers-color-scheme:dark)" in text
    assert LIGHT.paper in text and DARK.paper in text


def test_every_colour_has_a_value_for_readers_that_know_no_css_variables() -> None:
    """Finding U15 of the second review: librsvg drew all in black."""
    text = svg(EVERYTHING)
    rules = text[text.index("<style>") : text.index("</style>")]
    before = re.findall(r"(\w+):(#[0-9a-f]{6});\1:var\(--[\w-]+\)", rules)
    assert len(before) == rules.count("var(") > 20
    assert f"fill:{LIGHT.paper};fill:var(--paper)" in rules


HOSTILE = ['"><script>alert(1)</script>', "]]>", "&amp;", "a\0b\x1f\ufffe", "\u202eabc", "", "é" * 300, "漢字 😀"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_texts_and_nothing_else(name: str) -> None:
    graph = graph_of(ScriptNode(id=name, script="s", next=name + "2", fallback=name + "3"))
    progress = RunProgress(name, {name: Mark("done", name)}, frozenset({(name, name + "2")}))
    root = parsed(svg(Graph(name=name, start=name, nodes=graph.nodes, description=name), progress=progress))
    assert {element.tag.removeprefix(NAMESPACE) for element in root.iter()}.isdisjoint({"script", "a", "image", "use"})
    assert not any(attribute.startswith("on") for element in root.iter() for attribute in element.attrib)


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=50), st.text(max_size=50), st.sampled_from(["TB", "LR"]))
def test_no_text_breaks_the_picture(name: str, label: str, direction: Direction) -> None:
    node = ApprovalNode(id=name, question="q", options=[label], routes={label: name}, on_other=label)
    text = svg(graph_of(node), direction=direction)
    parsed(text)
    assert svg(graph_of(node), direction=direction) == text


def test_a_run_is_described_in_words_and_counts_in_addition_to_colours() -> None:
    progress = RunProgress(
        "run abc · running",
        {"route": Mark("done", "done ×3"), "script": Mark("running", "running ×2", ended=False)},
        frozenset({("route", "script")}),
    )
    root = parsed(svg(EVERYTHING, progress=progress))
    shown = texts(root)
    assert {"run abc · running", "done ×3", "running ×2", "done: 1", "running: 1", "not reached: 15"} <= set(shown)
    classes = [element.get("class") or "" for element in root.iter(f"{NAMESPACE}g")]
    taken = [name for name in classes if "taken" in name]
    assert taken == ["way solid taken", "way dashed taken", "way solid taken"], "from the start, to the script; legend"
    assert sum("faded" in name for name in classes) > 10


@pytest.mark.parametrize("kind", sorted([*NODE_TYPES, "start", "finish", "bar", "missing"]))
def test_outlines_fill_their_size_and_have_room_for_the_text(kind: str) -> None:
    text = Size(120.0, 31.0)
    size = size_around(kind, text)
    corners = outline(kind, size)
    assert max(corner.x for corner in corners) - min(corner.x for corner in corners) == pytest.approx(size.width)
    assert max(corner.y for corner in corners) - min(corner.y for corner in corners) == pytest.approx(size.height)
    assert dent(kind, size, "top", 0.0) == pytest.approx(0.0, abs=0.1)
    assert dent(kind, size, "bottom", 0.0) == pytest.approx(0.0, abs=0.1)
    for height in (-text.height / 2, text.height / 2):
        if kind not in ("start", "finish"):
            inner = size.width - dent(kind, size, "left", height) - dent(kind, size, "right", height)
            assert inner >= text.width, "the first and the last line fit"


def test_widths_grow_with_the_text_and_wide_letters_are_wide() -> None:
    assert width("iii", 10) < width("nnn", 10) < width("mmm", 10) < width("漢漢漢", 10)
    assert width("e\u0301", 10) == width("e", 10)


def test_a_line_holds_no_breaks_nothing_unseen_and_not_too_much() -> None:
    assert one_line(" a\r\nb\u202e\0c ", 10) == "a b c"
    assert one_line("a" * 11, 10) == "a" * 9 + "…"


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_texts_have_enough_contrast(palette: object) -> None:
    assert palette in (LIGHT, DARK)
    chosen = LIGHT if palette is LIGHT else DARK
    colours: list[Colour] = [*chosen.kinds.values(), *chosen.states.values()]
    assert min(contrast(colour.ink, colour.fill) for colour in colours) >= 7
    assert contrast(chosen.ink, chosen.paper) >= 7
    assert contrast(chosen.faint, chosen.paper) >= 4.5
    assert contrast(chosen.line, chosen.paper) >= 3


def test_graphs_of_thirty_and_of_three_hundred_nodes_are_drawn() -> None:
    def made(count: int) -> Graph:
        nodes: list[Node] = []
        for at in range(count):
            targets = [f"n{min(at + 1, count)}", f"n{min(at + 5, count)}"]
            back = Branch(by="{{x}}", to={"again": f"n{max(0, at - 4)}"})
            nodes.append(ScriptNode(id=f"n{at}", script="s", next=targets, fallback=f"n{count}", branch=back))
        return graph_of(*nodes, EndNode(id=f"n{count}"))

    for count in (30, 300):
        drawn = svg(made(count))
        assert all(f">n{at}<" in drawn for at in range(count))
