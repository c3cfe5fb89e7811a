"""`callbacks` of graphs and nodes: how they are read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.graph.load import parse
from tests.unit.graph.test_cache import FUNCTION, graph, problems

CODE = "def before(state, info): pass\ndef one(state): pass\nasync def later(state, info): pass\n"
CODE += "def call(state, info, call): pass\n"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (f"{FUNCTION}, callbacks: {{until: 'h.py:before'}}", "unknown key 'until'"),
        (
            f"{FUNCTION}, callbacks: 'h.py:before'",
            "'callbacks' must hold a mapping of before, after, error, agent_event, model, tool and agent",
        ),
        (f"{FUNCTION}, callbacks: {{before: before}}", "'before' does not name a function"),
        (f"{FUNCTION}, callbacks: {{before: ['h.py:gone']}}", "gone"),
        (f"{FUNCTION}, callbacks: {{before: 'h.py:one'}}", "before callback 'one' takes 1 argument"),
        (f"{FUNCTION}, callbacks: {{before: 'h.py:later'}}", "before callback 'later' is async"),
        (f"{FUNCTION}, callbacks: {{error: 'h.py:before'}}", "error callback 'before' takes 2 arguments"),
        (f"{FUNCTION}, callbacks: {{model: {{before: 'h.py:call'}}}}", "'callbacks.model' has no effect on function"),
        (
            "type: rag, documents: [d], callbacks: {tool: {before: 'h.py:call'}}",
            "'callbacks.tool' has no effect on rag",
        ),
        ("type: llm, prompt: x, callbacks: {model: 'h.py:call'}", "'model' must hold a mapping of before and after"),
        ("type: llm, prompt: x, callbacks: {model: {error: 'h.py:call'}}", "unknown key 'error'"),
        (
            "type: llm, prompt: x, callbacks: {model: {before: 'h.py:one'}}",
            "before-call callback 'one' takes 1 argument",
        ),
        ("type: llm, prompt: x, callbacks: {tool: {after: ['h.py:call']}}", "after-call callback 'call' takes 3"),
        (f"{FUNCTION}, callbacks: {{agent: {{before: 'h.py:before'}}}}", "'callbacks.agent' has no effect on function"),
        ("type: tools, tools: [], callbacks: {before: 'h.py:before'}", "'callbacks.before' has no effect on tools"),
        (f"{FUNCTION}, callbacks: {{agent_event: 'h.py:call'}}", "'callbacks.agent_event' has no effect on function"),
        (
            "type: agent, agent: g, prompt: x, callbacks: {agent_event: 'h.py:before'}",
            "event callback 'before' takes 2 arguments",
        ),
        ("type: agent, agent: g, prompt: x, callbacks: {model: {}}", "'callbacks.model' has no effect on agent node"),
        ("type: graph, graph: g, callbacks: {}", "'callbacks' has no effect on a graph node"),
        ("type: router, callbacks: {}", "'callbacks' has no effect on a router node"),
    ],
)
def test_what_cannot_be_is_an_error_at_its_line(tmp_path: Path, node: str, message: str) -> None:
    (tmp_path / "h.py").write_text(CODE)
    found = problems(graph(node), tmp_path)
    assert any(
        problem.startswith(("7 SLP", "1 SLP", "2 SLP", "3 SLP", "4 SLP")) and message in problem for problem in found
    ), found


def test_those_of_the_graph_pass_over_nodes_that_cannot_have_some() -> None:
    top = "callbacks: {before: 'h.py:before'}"
    text = graph(top=top).replace("  done: {", "  chat: {type: llm, prompt: x, next: done}\n  done: {")
    read = parse(text, "graph.yaml").graph
    assert read is not None
    found = {name: read.callbacks_of(node, "before") for name, node in read.nodes.items()}
    assert found == {"work": [("graph", "h.py:before")], "chat": [("graph", "h.py:before")], "done": []}
    assert read.callbacks_of(read.nodes["chat"], "before", "model") == []


def test_a_graph_of_version_1_0_has_no_callbacks(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text(CODE)
    own = graph(f"{FUNCTION}, callbacks: {{before: 'h.py:before'}}", version="'1.0'")
    for text in (own, graph(top="callbacks: {before: 'h.py:before'}", version="'1.0'")):
        assert any("'callbacks' needs version sleipnir/1" in problem for problem in problems(text, tmp_path))


def test_functions_around_a_run_are_those_of_the_whole_graph_and_take_their_arguments(tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text(CODE)
    for top, message in (
        ("callbacks: {agent: {before: 'h.py:before'}}", None),
        ("callbacks: {agent: {before: 'h.py:one'}}", "before callback 'one' takes 1 argument"),
        ("callbacks: {agent: {after: 'h.py:before'}}", "after callback 'before' takes 2 arguments"),
        ("callbacks: {agent: {before: 'h.py:later'}}", "before callback 'later' is async"),
        ("callbacks: {agent: {error: 'h.py:before'}}", "unknown key 'error'"),
        ("callbacks: {agent: 'h.py:before'}", "'agent' must hold a mapping of before and after"),
    ):
        found = problems(graph(top=top), tmp_path)
        assert (not found) if message is None else any(message in each for each in found), (top, found)
    below = "graphs: {g: {name: g, version: sleipnir/1, start: a, callbacks: {agent: {before: 'h.py:before'}}, "
    below += "nodes: {a: {type: function, call: 'h.py:one'}}}}"
    found = problems(graph("type: graph, graph: g", top=below), tmp_path)
    assert any("SLP220" in each and "no effect on one of the `graphs`" in each for each in found), found
