"""Breakpoints in a graph.yaml: what they say, and what is refused."""

from __future__ import annotations

import pytest

from sleipnir.graph.check import check
from sleipnir.graph.check_breakpoints import breakpoint_nodes
from sleipnir.graph.load import load_graph, parse

TEXT = """\
name: g
version: {version}
start: a
interrupt_before: {before}
interrupt_after: {after}
nodes:
  a: {{type: router, next: m, interrupt: {a}}}
  m: {{type: map, over: "{{{{items}}}}", as: x, branch: s, collect_into: found, next: e}}
  s: {{type: script, script: s.sh{s}}}
  e: {{type: end}}
"""


def text(*, before: str = "", after: str = "", a: str = "", s: str = "", version: str = "sleipnir/1") -> str:
    return TEXT.format(before=before, after=after, a=a, s=s, version=version)


def findings(text: str) -> list[str]:
    """The errors, with their lines and codes."""
    loaded = parse(text, "graph.yaml")
    found = [*loaded.problems, *(check(loaded.graph, loaded.positions, "graph.yaml") if loaded.graph else ())]
    return [f"{each.line} {each.code} {each.message}" for each in found if each.level == "error"]


def test_nodes_and_the_graph_name_breakpoints() -> None:
    graph = load_graph(text(before="[m]", after="[a, e]", a="both"), "graph.yaml", "g")
    assert graph.breakpoints == {"before": {"a", "m"}, "after": {"a", "e"}}
    assert graph.has_breakpoints
    assert not load_graph(text(), "graph.yaml", "g").has_breakpoints


@pytest.mark.conformance("SI-05", "BD-13")
def test_an_unknown_name_is_an_error_with_its_line() -> None:
    assert findings(text(before="[a, nobody]")) == [
        "4 SLP329 References non-existent node 'nobody' in 'interrupt_before'"
    ]
    assert findings(text(after="[nobody]")) == ["5 SLP329 References non-existent node 'nobody' in 'interrupt_after'"]


def test_an_unknown_phase_is_an_error() -> None:
    assert findings(text(a="during")) == [
        "7 SLP201 'interrupt' must be `before`, `after` or `both`, got the text 'during'"
    ]


def test_a_breakpoint_at_an_item_of_a_map_is_an_error() -> None:
    why = "has no effect on 's', which the map 'm' runs for each item"
    assert findings(text(s=", interrupt: after")) == [f"9 SLP329 'interrupt' {why}"]
    assert findings(text(before="[s]")) == [f"4 SLP329 'interrupt_before' {why}"]


def test_version_1_0_has_no_breakpoints() -> None:
    assert findings(text(version='"1.0"', before="[a]", after="[a]", a="before")) == [
        "4 SLP218 'interrupt_before' needs version sleipnir/1",
        "5 SLP218 'interrupt_after' needs version sleipnir/1",
        "7 SLP218 'interrupt' needs version sleipnir/1",
    ]


def test_a_submission_names_nodes_or_all_of_them() -> None:
    graph = load_graph(text(), "graph.yaml", "g")
    assert breakpoint_nodes(graph, None, "before") is breakpoint_nodes(graph, [], "after") is None
    assert breakpoint_nodes(graph, "*", "after") == ["a", "m", "e"]
    assert breakpoint_nodes(graph, ["m", "a", "m"], "before") == ["m", "a"]
    for name in ("nobody", "s"):
        with pytest.raises(ValueError, match=f"^Interrupt node `{name}` not found"):
            breakpoint_nodes(graph, ["a", name], "before")


def test_after_an_end_node_of_version_1_0_no_run_can_stop() -> None:
    graph = load_graph(text(version='"1.0"').replace("interrupt: ", "").replace(", }", "}"), "graph.yaml", "g")
    assert breakpoint_nodes(graph, "*", "before") == ["a", "m", "e"]
    assert breakpoint_nodes(graph, "*", "after") == ["a", "m"]
    with pytest.raises(ValueError, match="Interrupt node `e` not found"):
        breakpoint_nodes(graph, ["e"], "after")
