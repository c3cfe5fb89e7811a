"""What reading a definition gives: a graph, or the reasons why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from sleipnir.errors import Problem
from sleipnir.graph.findings import Positions
from sleipnir.graph.model import Graph


@dataclass(frozen=True)
class Loaded:
    """What a text says. `graph` is None when `problems` holds an error; problems are in file order."""

    graph: Graph | None
    problems: tuple[Problem, ...]
    positions: Positions
