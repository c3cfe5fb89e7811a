"""Graphs for tests, written the short way, and what was found in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sleipnir.errors import Problem
from sleipnir.graph.check import FindAgent, check
from sleipnir.graph.load import parse
from sleipnir.graph.load_edges import has_additions
from sleipnir.graph.model import SLEIPNIR, Graph
from sleipnir.graph.source import read

FILE = "g.yaml"


def yaml_graph(nodes: str, *, start: str = "a", top: str = "") -> str:
    """A graph.yaml: `nodes` holds one node per line, as `id: {type: ..., ...}`. One with keys that only sleipnir/1 is
    made for is of that version, unless `top` says which it is; that stands last, so that lines count as they are
    written."""
    body = "".join(f"  {line.strip()}\n" for line in nodes.strip().splitlines())
    head = f"name: g\nstart: {start}\n"
    text = f"{head}{top.strip()}\nnodes:\n{body}" if top else f"{head}nodes:\n{body}"
    data = read(text, FILE).data
    is_sleipnir = isinstance(data, dict) and "version" not in data and has_additions(data)
    return f"{text}version: {SLEIPNIR}\n" if is_sleipnir else text


def graph_of(text: str) -> Graph:
    """The graph of a text that has one; its errors otherwise fail the test."""
    loaded = parse(text, FILE)
    assert loaded.graph is not None, [str(problem) for problem in loaded.problems]
    return loaded.graph


def checked(
    nodes: str,
    *,
    start: str = "a",
    top: str = "",
    folder: Path | None = None,
    agents: FindAgent | None = None,
    tools: Iterable[str] = (),
) -> list[Problem]:
    """What the rules find in a graph that loads."""
    loaded = parse(yaml_graph(nodes, start=start, top=top), FILE)
    assert loaded.graph is not None, [str(problem) for problem in loaded.problems]
    return check(loaded.graph, loaded.positions, FILE, folder, agents, tools)


def errors(problems: Iterable[Problem]) -> list[str]:
    """The errors as `[node] message`."""
    return [shown(problem) for problem in problems if problem.level == "error"]


def notices(problems: Iterable[Problem]) -> list[str]:
    """The warnings as `[node] message`."""
    return [shown(problem) for problem in problems if problem.level == "warning"]


def shown(problem: Problem) -> str:
    return f"[{problem.node}] {problem.message}" if problem.node else problem.message
