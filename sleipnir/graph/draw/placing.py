"""Places the vertices along each row: near their neighbours, long lines straight, with the required distances.

The method of Brandes and Köpf (2001), compacted as a longest path over blocks: vertices are aligned with their median
neighbours in four ways (from above and below, from the left and the right), and the two middle places of the four
are averaged. Each of the four keeps the distances within a row, so the average keeps them too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from sleipnir.graph.draw.ordering import Neighbours, Rows

Distance: TypeAlias = Callable[[int, int], float]
"""The least distance between the centres of two vertices, the first directly left of the second."""

Places: TypeAlias = dict[int, float]


def placed(
    rows: Rows,
    ups: Neighbours,
    downs: Neighbours,
    on_line: Sequence[bool],
    distance: Distance,
    loose: Collection[tuple[int, int]] = (),
) -> Places:
    """The centre of each vertex along its row.

    `on_line`: the vertex is a bend of a long line, or its label. `loose` steps, each from a vertex to one in the row
    below, have no priority for a straight line.
    """
    crossed = _crossed_lines(rows, ups, on_line)
    straight_ups = [[up for up in above if (up, vertex) not in loose] for vertex, above in enumerate(ups)]
    straight_downs = [[down for down in below if (vertex, down) not in loose] for vertex, below in enumerate(downs)]
    candidates: list[Places] = []
    for upwards in (False, True):
        for mirrored in (False, True):
            ordered_rows = [row[::-1] if mirrored else row for row in (rows[::-1] if upwards else rows)]
            root = _aligned(ordered_rows, straight_downs if upwards else straight_ups, crossed)
            distance_between: Distance = (lambda left, right: distance(right, left)) if mirrored else distance
            places = _compacted(ordered_rows, root, distance_between)
            candidates.append({vertex: -x for vertex, x in places.items()} if mirrored else places)
    _side_by_side(candidates)
    return {vertex: sum(sorted(places[vertex] for places in candidates)[1:3]) / 2 for vertex in candidates[0]}


def _crossed_lines(rows: Rows, ups: Neighbours, on_line: Sequence[bool]) -> set[tuple[int, int]]:
    """The steps between adjacent rows that cross a step of a long line, which has priority."""
    crossed: set[tuple[int, int]] = set()
    for above, row in itertools.pairwise(rows):
        place = {vertex: index for index, vertex in enumerate(above)}
        start, leftmost = 0, 0
        for index, vertex in enumerate(row):
            inner = next((up for up in ups[vertex] if on_line[vertex] and on_line[up]), None)
            if inner is None and index < len(row) - 1:
                continue
            rightmost = len(above) if inner is None else place[inner]
            for other in row[start : index + 1]:
                for up in ups[other]:
                    outside = place[up] < leftmost or place[up] > rightmost
                    if outside and not (on_line[up] and on_line[other]):
                        crossed.add((up, other))
            start, leftmost = index + 1, rightmost
    return crossed


def _aligned(rows: Rows, towards: Neighbours, crossed: set[tuple[int, int]]) -> dict[int, int]:
    """The root of each vertex's block: the vertices of a block are vertically aligned."""
    root = {vertex: vertex for row in rows for vertex in row}
    above: list[int] = []
    for row in rows:
        place = {vertex: index for index, vertex in enumerate(above)}
        last = -1
        for vertex in row:
            near = sorted(towards[vertex], key=place.__getitem__)
            for other in near[(len(near) - 1) // 2 : len(near) // 2 + 1]:
                free = root[vertex] == vertex and place[other] > last
                if free and (other, vertex) not in crossed and (vertex, other) not in crossed:
                    root[vertex], last = root[other], place[other]
        above = row
    return root


def _compacted(rows: Rows, root: Mapping[int, int], distance: Distance) -> Places:
    """Every block as far left as possible, then as far right as its right neighbours allow."""
    after: dict[int, dict[int, float]] = {block: {} for block in root.values()}
    before: dict[int, dict[int, float]] = {block: {} for block in root.values()}
    for row in rows:
        for left, right in itertools.pairwise(row):
            first, second = root[left], root[right]
            apart = max(after[first].get(second, 0.0), distance(left, right))
            after[first][second] = before[second][first] = apart
    order = _from_left(after, before)
    place: Places = {}
    for block in order:
        place[block] = max((place[other] + apart for other, apart in before[block].items()), default=0.0)
    for block in reversed(order):
        if after[block]:
            place[block] = max(place[block], min(place[other] - apart for other, apart in after[block].items()))
    return {vertex: place[block] for vertex, block in root.items()}


def _from_left(after: Mapping[int, Mapping[int, float]], before: Mapping[int, Mapping[int, float]]) -> list[int]:
    remaining = {block: len(others) for block, others in before.items()}
    order = [block for block, count in remaining.items() if not count]
    for block in order:  # grows while it is read
        for other in after[block]:
            remaining[other] -= 1
            if not remaining[other]:
                order.append(other)
    return order


def _side_by_side(candidates: list[Places]) -> None:
    """Shift the four to the left edge (those from the left) or the right edge of the narrowest."""
    edges = [(min(places.values()), max(places.values())) for places in candidates]
    low, high = min(edges, key=lambda edge: edge[1] - edge[0])
    for index, places in enumerate(candidates):
        mirrored = index % 2 == 1
        shift = high - edges[index][1] if mirrored else low - edges[index][0]
        for vertex in places:
            places[vertex] += shift
