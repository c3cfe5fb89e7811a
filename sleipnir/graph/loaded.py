"""What reading a definition gives: a graph, or the reasons why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from sleipnir.errors import Problem
from sleipnir.graph.findings import Positions
from sleipnir.graph.model import Graph
from sleipnir.graph.salvage import Salvaged
from sleipnir.graph.source import Document


@dataclass(frozen=True)
class Loaded:
    """What a text says. `graph` is None when `problems` holds an error; problems are in file order. `salvaged` is what
    can be read in spite of the errors. `document` is None for a file that could not be opened."""

    graph: Graph | None
    problems: tuple[Problem, ...]
    positions: Positions
    document: Document | None = None
    salvaged: Salvaged | None = None
