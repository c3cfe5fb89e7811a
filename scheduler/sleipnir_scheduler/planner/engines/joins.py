"""What becomes of a run whose joins cannot fire any more. runs/arrivals.py has which fire."""

from __future__ import annotations

from sleipnir.graph.model import Graph
from sleipnir.runs.arrivals import Arrived, name_of


def starved(graph: Graph, arrived: Arrived) -> str | None:
    """The error for the first join with some, but not enough, arrivals in a run without live visits."""
    for node in graph.nodes.values():
        for join in node.wait_for:
            present = [source for source, depth in arrived.get(name_of(node.id, join), {}).items() if depth > 0]
            if present:
                lacking = [source for source in join.sources if source not in present]
                needed = f" ({join.min} of {len(join.sources)} are needed)" if join.min is not None else ""
                return (
                    f"the join before node '{node.id}' can never fire: {_listed(present)} arrived, and "
                    f"{_listed(lacking)} did not{needed}, and nothing is left to run"
                )
    return None


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
