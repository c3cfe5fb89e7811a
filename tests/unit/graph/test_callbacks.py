"""`callbacks` of graphs and nodes: how they are read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.graph.load import parse
from tests.unit.graph.test_cache import FUNCTION, graph, problems

CODE = "def before(state, info): pass\ndef one(state): pass\nasync def later(state, info): pass\n"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (f"{FUNCTION}, callbacks: {{until: 'h.py:before'}}", "unknown key 'until'"),
        (f"{FUNCTION}, callbacks: 'h.py:before'", "'callbacks' must hold a mapping of before, after and error"),
        (f"{FUNCTION}, callbacks: {{before: before}}", "'before' does not name a function"),
        (f"{FUNCTION}, callbacks: {{before: ['h.py:gone']}}", "gone"),
        (f"{FUNCTION}, callbacks: {{before: 'h.py:one'}}", "before callback 'one' takes 1 argument"),
        (f"{FUNCTION}, callbacks: {{before: 'h.py:later'}}", "before callback 'later' is async"),
        (f"{FUNCTION}, callbacks: {{error: 'h.py:before'}}", "error callback 'before' takes 2 arguments"),
        ("type: llm, prompt: x, callbacks: {before: 'h.py:before'}", "'callbacks' has no effect on an llm node"),
        ("type: agent, agent: g, prompt: x, callbacks: {}", "'callbacks' has no effect on an agent node"),
        ("type: router, callbacks: {}", "'callbacks' has no effect on a router node"),
    ],
)
def test_what_cannot_be_is_an_error_at_its_line(tmp_path: Path, node: str, message: str) -> None:
    (tmp_path / "h.py").write_text(CODE)
    found = problems(graph(node), tmp_path)
    assert any(problem.startswith(("7 SLP", "1 SLP", "2 SLP", "3 SLP")) and message in problem for problem in found), (
        found
    )


def test_those_of_the_graph_pass_over_nodes_that_cannot_have_some() -> None:
    top = "callbacks: {before: 'h.py:before'}"
    text = graph(top=top).replace("  done: {", "  chat: {type: llm, prompt: x, next: done}\n  done: {")
    read = parse(text, "graph.yaml").graph
    assert read is not None
    found = {name: read.callbacks_of(node, "before") for name, node in read.nodes.items()}
    assert found == {"work": ["h.py:before"], "chat": [], "done": []}


def test_a_graph_of_version_1_0_has_no_callbacks(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text(CODE)
    own = graph(f"{FUNCTION}, callbacks: {{before: 'h.py:before'}}", version="'1.0'")
    for text in (own, graph(top="callbacks: {before: 'h.py:before'}", version="'1.0'")):
        assert any("'callbacks' needs version sleipnir/1" in problem for problem in problems(text, tmp_path))
