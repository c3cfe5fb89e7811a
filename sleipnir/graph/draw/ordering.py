"""Orders the vertices of each row so that few lines cross.

Sweeps down and up put each vertex at the mean place of its neighbours in the previous row; then adjacent vertices are
swapped while this removes crossings. The best order is kept. Lines connect vertices of adjacent rows only.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import TypeAlias

Rows: TypeAlias = list[list[int]]
Neighbours: TypeAlias = Sequence[Sequence[int]]

_MOST_SWEEPS = 24
_PATIENCE = 5  # sweeps without a gain
_SWAPPED_UP_TO = 1500  # vertices; with more, swapping takes too long for the crossings that it removes


def ordered(rows: Rows, ups: Neighbours, downs: Neighbours) -> Rows:
    """The same rows, each in a new order."""
    current = _walked(rows, downs)
    small = sum(map(len, rows)) <= _SWAPPED_UP_TO
    best, fewest, idle = current, crossings(current, downs), 0
    for sweep in range(_MOST_SWEEPS):
        if not fewest or idle == _PATIENCE:
            break
        current = _swept(current, ups if sweep % 2 == 0 else downs, down=sweep % 2 == 0, mirrored=sweep % 4 >= 2)
        if small:
            _exchange(current, ups, downs)
        count = crossings(current, downs)
        idle += 1
        if count < fewest:
            best, fewest, idle = [list(row) for row in current], count, 0
    return best


def crossings(rows: Rows, downs: Neighbours) -> int:
    """The number of pairs of lines that cross."""
    total = 0
    for row, below in itertools.pairwise(rows):
        place = {vertex: index for index, vertex in enumerate(below)}
        passed: list[int] = []
        for vertex in row:
            ends = [place[target] for target in downs[vertex]]
            total += sum(len(passed) - bisect_right(passed, end) for end in ends)
            for end in ends:
                insort(passed, end)
    return total


def _walked(rows: Rows, downs: Neighbours) -> Rows:
    """The vertices in the order of a depth-first walk from the top: branches stay together."""
    row_of = {vertex: number for number, row in enumerate(rows) for vertex in row}
    order: Rows = [[] for _ in rows]
    visited: set[int] = set()
    for root in (vertex for row in rows for vertex in row):
        stack = [root]
        while stack:
            vertex = stack.pop()
            if vertex not in visited:
                visited.add(vertex)
                order[row_of[vertex]].append(vertex)
                stack += reversed(downs[vertex])
    return order


def _swept(rows: Rows, towards: Neighbours, *, down: bool, mirrored: bool) -> Rows:
    """One sweep. `towards` are the neighbours in the previous row; `mirrored` breaks ties the other way."""
    fresh: Rows = [list(row) for row in rows]
    numbers = range(1, len(rows)) if down else range(len(rows) - 2, -1, -1)
    for number in numbers:
        before = fresh[number - 1 if down else number + 1]
        fresh[number] = _by_mean(fresh[number], before, towards, mirrored)
    return fresh


def _by_mean(row: list[int], before: list[int], towards: Neighbours, mirrored: bool) -> list[int]:
    """Vertices without neighbours keep their place; the others share the remaining places by their mean."""
    place = {vertex: index for index, vertex in enumerate(before)}
    mean = {
        vertex: sum(place[other] for other in towards[vertex]) / len(towards[vertex])
        for vertex in row
        if towards[vertex]
    }
    movable = [vertex for vertex in (reversed(row) if mirrored else row) if vertex in mean]
    sequence = iter(sorted(movable, key=mean.__getitem__))
    return [next(sequence) if vertex in mean else vertex for vertex in row]


def _exchange(rows: Rows, ups: Neighbours, downs: Neighbours) -> None:
    """Swap adjacent vertices while this removes crossings."""
    place = {vertex: index for row in rows for index, vertex in enumerate(row)}
    improved = True
    while improved:
        improved = False
        for row in rows:
            for index in range(len(row) - 1):
                left, right = row[index], row[index + 1]
                if _gain(left, right, ups, place) + _gain(left, right, downs, place) > 0:
                    row[index], row[index + 1] = right, left
                    place[left], place[right] = index + 1, index
                    improved = True


def _gain(left: int, right: int, towards: Neighbours, place: dict[int, int]) -> int:
    """The number of crossings with one adjacent row that a swap removes."""
    gain = 0
    for first in towards[left]:
        for second in towards[right]:
            gain += (place[first] > place[second]) - (place[first] < place[second])
    return gain
