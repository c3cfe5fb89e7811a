"""Joins: who has arrived, and what fires (spec/graph-package.md F17).

A join counts a source once until it fires: the second arrival of a source that is there already changes nothing, and
firing starts the count anew, so joins work in loops. A quorum (`min`) fires early; each source that it did not wait for
is noted, and its next arrival is then not counted. In a loop one source may be behind by several rounds.

Edges from a source to the node that waits for it start nothing (routing.py): to have ended is to have arrived.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from sleipnir.graph.model import Graph, Join

Arrived = Mapping[str, Mapping[str, int]]
"""Join name -> source -> its depth; below nought, how many of its arrivals are not to be counted."""


class Fired(NamedTuple):
    """A join that starts its node. `depth` is that of its deepest source."""

    name: str
    target: str
    depth: int


def name_of(target: str, join: Join) -> str:
    """Different sets of sources have different names, whatever the names of nodes look like."""
    return json.dumps([target, *join.sources], ensure_ascii=False)


def arrive(graph: Graph, arrived: Arrived, sources: Collection[tuple[str, int]]) -> tuple[Arrived, list[Fired]]:
    """Nodes have completed, each at its depth: the arrivals from now on, and the joins that fire."""
    now: dict[str, Mapping[str, int]] = dict(arrived)
    fired: list[Fired] = []
    for source, depth in sources:
        for target, join in graph.joins.get(source, ()):
            name = name_of(target, join)
            seen = dict(now.get(name, {}))
            late = min(seen.get(source, 0), 0)
            seen[source] = late + 1 if late else max(depth, seen.get(source, 0))
            there = [at for at in seen.values() if at > 0]
            if len(there) >= join.needed:
                fired.append(Fired(name, target, max(there)))
                seen = {other: seen.get(other, 0) - 1 for other in join.sources if seen.get(other, 0) <= 0}
            if seen := {other: at for other, at in seen.items() if at}:
                now[name] = seen
            else:
                now.pop(name, None)
    return now, fired


def starved(graph: Graph, arrived: Arrived) -> str | None:
    """What to say of the first join that has got some of its sources, in a run where nothing is left to run."""
    for node in graph.nodes.values():
        for join in node.wait_for:
            there = [source for source, depth in arrived.get(name_of(node.id, join), {}).items() if depth > 0]
            if there:
                lacking = [source for source in join.sources if source not in there]
                needed = f" ({join.min} of {len(join.sources)} are needed)" if join.min is not None else ""
                return (
                    f"the join before node '{node.id}' can never fire: {_listed(there)} arrived, and "
                    f"{_listed(lacking)} did not{needed}, and nothing is left to run"
                )
    return None


def _listed(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))
