"""The drawing as a part of a page: links, and nothing that a strict policy of content refuses."""

from __future__ import annotations

from xml.etree import ElementTree

from sleipnir.graph.draw import Mark, RunProgress, page_svg
from sleipnir.graph.load import load_graph

GRAPH = """
name: two
start: fetch
nodes:
  fetch: {type: input, question: "<b>which?</b>", next: done}
  done: {type: end, output: done}
"""


def test_nodes_are_links_and_the_page_has_the_styles() -> None:
    graph = load_graph(GRAPH, "graph.yaml", "two")
    progress = RunProgress("run", {"fetch": Mark("failed", "<i>failed</i>")})
    drawn = page_svg(graph, progress=progress, links={"fetch": '/runs/x?node="fetch"&a'}, selected="fetch")
    root = ElementTree.fromstring(drawn)
    (link,) = root.iter("a")
    assert link.attrib == {"href": '/runs/x?node="fetch"&a', "class": "sel", "aria-current": "true"}
    assert link.find("g").attrib["class"] == "node failed"  # type: ignore[union-attr]
    assert "<style" not in drawn
    assert "style=" not in drawn
    assert "<i>" not in drawn
