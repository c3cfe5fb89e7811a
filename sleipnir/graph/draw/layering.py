"""Assigns a row to each node: arcs lead down, and as few of them as possible are long.

Nodes are numbers; an arc is a pair (source, target). The first node is the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

Arc: TypeAlias = tuple[int, int]


def turned(count: int, arcs: Sequence[Arc]) -> set[int]:
    """The arcs (their numbers) that close a cycle in a depth-first walk from the start in the given order.

    Reversing them leaves no cycle. They are also the arcs that a reader sees as loops.
    """
    outs: list[list[int]] = [[] for _ in range(count)]
    entered = [False] * count
    for number, (source, target) in enumerate(arcs):
        outs[source].append(number)
        entered[target] = True
    visited, on_path = [False] * count, [False] * count
    closing: set[int] = set()
    roots = sorted(range(count), key=lambda node: (node != 0, entered[node]))
    for root in roots:
        path: list[tuple[int, Iterator[int]]] = []
        if not visited[root]:
            visited[root] = on_path[root] = True
            path.append((root, iter(outs[root])))
        while path:
            node, rest = path[-1]
            following = next(rest, None)
            if following is None:
                on_path[node] = False
                path.pop()
                continue
            target = arcs[following][1]
            if on_path[target]:
                closing.add(following)
            elif not visited[target]:
                visited[target] = on_path[target] = True
                path.append((target, iter(outs[target])))
    return closing


def layers(count: int, arcs: Sequence[Arc]) -> list[int]:
    """The row of each node; the arcs must have no cycle. Rows are as high as possible, but a node with more outgoing
    than incoming arcs moves down to its targets, and a node without arcs to the bottom. No row is empty."""
    ins: list[list[int]] = [[] for _ in range(count)]
    outs: list[list[int]] = [[] for _ in range(count)]
    for source, target in arcs:
        outs[source].append(target)
        ins[target].append(source)
    order = _topological(count, ins, outs)
    row = [0] * count
    for node in order:
        row[node] = max((row[source] + 1 for source in ins[node]), default=0)
    for node in reversed(order):
        if len(outs[node]) > len(ins[node]):
            row[node] = min(row[target] for target in outs[node]) - 1
    bottom = max(row)
    for node in range(1, count):
        if not ins[node] and not outs[node]:
            row[node] = bottom
    used = {old: new for new, old in enumerate(sorted(set(row)))}
    return [used[old] for old in row]


def _topological(count: int, ins: list[list[int]], outs: list[list[int]]) -> list[int]:
    remaining = [len(sources) for sources in ins]
    order = [node for node in range(count) if not remaining[node]]
    for node in order:  # grows while it is read
        for target in outs[node]:
            remaining[target] -= 1
            if not remaining[target]:
                order.append(target)
    return order
