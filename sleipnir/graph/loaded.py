"""The result of reading a definition: a graph, or the problems that prevent one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sleipnir.errors import Problem
from sleipnir.graph.findings import Positions
from sleipnir.graph.model import Graph
from sleipnir.graph.salvage import Salvaged
from sleipnir.graph.source import YamlDocument


@dataclass(frozen=True)
class LoadedGraph:
    """A definition that was read. `graph` is None when `problems` holds an error; problems are in file order.
    `salvaged` is the part that is readable despite errors. `document` is None for a file that could not be opened.

    Of a graph written in Python, `text` is its graph.yaml, and `files` has, by node and line, the file of the call that
    the line is of; `config` is what it has by `with_config`."""

    graph: Graph | None
    problems: tuple[Problem, ...]
    positions: Positions
    document: YamlDocument | None = None
    salvaged: Salvaged | None = None
    text: str | None = None
    files: Mapping[tuple[str | None, int | None], str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
