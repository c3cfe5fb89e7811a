"""Joins: which sources have arrived, and which joins fire (spec/graph-package.md F17).

A join counts a source once until it fires: a second arrival of the same source changes nothing. Firing resets the
count, so joins work in loops. A quorum (`min`) fires early; it notes each missing source, and ignores the next arrival
of that source. In a loop one source may be several rounds behind.

Edges from a source to the node that waits for it open no visit (planner/engines/routing.py): a source arrives by
ending.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import NamedTuple

from sleipnir.graph.model import Graph, Join

Arrived = Mapping[str, Mapping[str, int]]
"""Join name -> source -> its depth; negative: the number of its arrivals still to ignore."""


class Fired(NamedTuple):
    """A join that starts its node. `depth` is that of its deepest source."""

    name: str
    target: str
    depth: int


def name_of(target: str, join: Join) -> str:
    """The name of a join. Different sets of sources have different names, for any names of nodes."""
    return json.dumps([target, *join.sources], ensure_ascii=False)


def arrive(graph: Graph, arrived: Arrived, sources: Collection[tuple[str, int]]) -> tuple[Arrived, list[Fired]]:
    """Nodes have completed, each at its depth: the arrivals from now on, and the joins that fire."""
    now: dict[str, Mapping[str, int]] = dict(arrived)
    fired: list[Fired] = []
    for source, depth in sources:
        for target, join in graph.joins.get(source, ()):
            name = name_of(target, join)
            arrivals = dict(now.get(name, {}))
            late = min(arrivals.get(source, 0), 0)
            arrivals[source] = late + 1 if late else max(depth, arrivals.get(source, 0))
            depths = [at for at in arrivals.values() if at > 0]
            if len(depths) >= join.needed:
                fired.append(Fired(name, target, max(depths)))
                arrivals = {
                    late_source: arrivals.get(late_source, 0) - 1
                    for late_source in join.sources
                    if arrivals.get(late_source, 0) <= 0
                }
            if arrivals := {other: at for other, at in arrivals.items() if at}:
                now[name] = arrivals
            else:
                now.pop(name, None)
    return now, fired
