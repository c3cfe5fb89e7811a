"""`cache` of graphs and nodes: how it is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sleipnir.graph.check import check_loaded
from sleipnir.graph.load import parse
from sleipnir.graph.model import NodeCache

GRAPH = """
name: g
version: VERSION
start: work
CACHE
nodes:
  work: {TYPE, next: done}
  done: {type: end}
"""
FUNCTION = 'type: function, call: "f.py:work"'


def graph(node: str = FUNCTION, top: str = "", version: str = "sleipnir/1") -> str:
    return GRAPH.replace("VERSION", version).replace("CACHE", top).replace("TYPE", node)


def problems(text: str, folder: Path) -> list[str]:
    (folder / "f.py").write_text("def work(state): return {}\ndef key(state): return 1\n")
    (folder / "a.sh").write_text("")
    loaded = parse(text, "graph.yaml")
    found = check_loaded(loaded, folder / "graph.yaml", folder)
    return [f"{problem.line} {problem.code}: {problem.message}" for problem in found if problem.level == "error"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("true", True),
        ("false", False),
        ("{}", NodeCache()),
        ("{ttl: 60s}", NodeCache(ttl=60_000)),
        ("{ttl: 0}", NodeCache(ttl=0)),
        ("{key: n}", NodeCache(key="n")),
        ("{key: [n, user_id], version: 3}", NodeCache(key=["n", "user_id"], version="3")),
        ('{key: "{{a.b}}"}', NodeCache(key="{{a.b}}")),
        ("{key_func: f.py:key}", NodeCache(key_func="f.py:key")),
    ],
)
def test_what_is_written_is_read(written: str, read: NodeCache | bool) -> None:
    at_node = parse(graph(f"{FUNCTION}, cache: {written}"), "graph.yaml").graph
    at_top = parse(graph(top=f"cache: {written}"), "graph.yaml").graph
    assert at_node is not None
    assert at_top is not None
    assert (at_node.nodes["work"].cache, at_top.cache) == (read, read)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (f"{FUNCTION}, cache: {{ttl: long}}", "'cache.ttl' must be a duration"),
        (f"{FUNCTION}, cache: {{until: 5s}}", "unknown key 'until'"),
        (f"{FUNCTION}, cache: 60s", "'cache' must hold a mapping, or true or false"),
        (f"{FUNCTION}, cache: {{key: []}}", "'cache.key' is empty"),
        (f"{FUNCTION}, cache: {{key: 'n +'}}", "'cache.key' cannot be read: expression `n +`"),
        (f"{FUNCTION}, cache: {{key: '{{{{ n }}}}'}}", "'cache.key' cannot be read: '{{ n }}' is not a placeholder"),
        (f"{FUNCTION}, cache: {{key: [n], key_func: 'f.py:key'}}", "'key' and 'key_func' both make the key"),
        (f"{FUNCTION}, cache: {{key_func: key}}", "'key' does not name a function"),
        (f"{FUNCTION}, cache: {{key_func: 'f.py:gone'}}", "gone"),
        (f"{FUNCTION}, effect: once, cache: true", "must happen for each visit"),
        ("type: llm, prompt: x, tools: [fetch_url], cache: true", "its model calls tools"),
        ("type: agent, agent: g, prompt: x, cache: true", "'cache' has no effect on an agent node"),
        ("type: router, cache: true", "'cache' has no effect on a router node"),
    ],
)
def test_what_cannot_be_is_an_error_at_its_line(tmp_path: Path, node: str, message: str) -> None:
    found = problems(graph(node), tmp_path)
    assert any(problem.startswith("7 SLP") and message in problem for problem in found), found


def test_a_key_function_of_the_graph_is_for_models_too() -> None:
    text = graph(top="cache: {key_func: 'f.py:key'}").replace("  done: {", "  ask: {type: llm, prompt: x}\n  done: {")
    read = parse(text, "graph.yaml").graph
    assert read is not None
    assert read.cache_of(read.nodes["work"]) == NodeCache(key_func="f.py:key")
    assert read.cache_of(read.nodes["ask"]) == NodeCache(key_func="f.py:key")


def test_a_graph_node_has_no_cache(tmp_path: Path) -> None:
    text = graph("type: graph, graph: below, cache: true")
    assert any("'cache' has no effect on a graph node" in problem for problem in problems(text, tmp_path))


def test_a_graph_of_version_1_0_has_no_cache(tmp_path: Path) -> None:
    for text in (graph(f"{FUNCTION}, cache: true", version="'1.0'"), graph(top="cache: true", version="'1.0'")):
        assert any("'cache' needs version sleipnir/1" in problem for problem in problems(text, tmp_path))
