"""Graphs for tests, written the short way, and what was found in them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sleipnir.errors import Problem
from sleipnir.graph.check import FindAgent, check
from sleipnir.graph.load import parse
from sleipnir.graph.model import Graph

FILE = "g.yaml"


def yaml_graph(nodes: str, *, start: str = "a", top: str = "") -> str:
    """A graph.yaml: `nodes` holds one node per line, as `id: {type: ..., ...}`."""
    body = "".join(f"  {line.strip()}\n" for line in nodes.strip().splitlines())
    head = f"name: g\nstart: {start}\n"
    return f"{head}{top.strip()}\nnodes:\n{body}" if top else f"{head}nodes:\n{body}"


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
