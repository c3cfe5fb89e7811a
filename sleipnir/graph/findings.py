"""Findings about a graph file, each with its position and a hint for the author.

A finding never stops the search for the next one: readers and rules add theirs to a `Findings` and continue.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from sleipnir.errors import Problem
from sleipnir.graph.codes import GENERAL

KeyPath: TypeAlias = tuple[str | int, ...]
"""The path of a value in the data: `("nodes", "review", "options", 0)`."""

Position: TypeAlias = tuple[int, int]
"""Line and column, both from 1: of the key for a value in a mapping, of the item for a value in a list."""

Positions: TypeAlias = Mapping[KeyPath, Position]

LISTED = 12  # in a longer list of choices the right one is hard to find


class Findings:
    """Problems of one file, in the order they were found. A path that is not in the file means its nearest parent."""

    def __init__(self, file: str, positions: Positions, problems: Iterable[Problem] = ()) -> None:
        self.file = file
        self.code = GENERAL
        """The code of findings that are reported without one."""
        self._positions = positions
        self.problems: list[Problem] = list(problems)
        self.error_paths: list[KeyPath] = []
        self.broken: frozenset[KeyPath] = frozenset()
        """Paths that were already reported: nothing more is reported below them."""

    def error(
        self,
        path: KeyPath,
        message: str,
        hint: str | None = None,
        *,
        at: Position | None = None,
        file: str | None = None,
        code: str | None = None,
    ) -> None:
        """Report an error; it belongs to a node if the path leads into one. `at` overrides the position of the path;
        with `file` it is a position in that file."""
        self._add("error", path, message, hint, _node_of(path), at, file, code)

    def warning(
        self,
        path: KeyPath,
        message: str,
        hint: str | None = None,
        *,
        at: Position | None = None,
        file: str | None = None,
        code: str | None = None,
    ) -> None:
        """Like `error`, but the graph still runs."""
        self._add("warning", path, message, hint, _node_of(path), at, file, code)

    def graph_error(self, path: KeyPath, message: str, hint: str | None = None, *, code: str | None = None) -> None:
        """An error of the graph as a whole, even if the path leads into a node."""
        self._add("error", path, message, hint, None, None, None, code)

    def graph_warning(self, path: KeyPath, message: str, hint: str | None = None, *, code: str | None = None) -> None:
        self._add("warning", path, message, hint, None, None, None, code)

    def has(self, path: KeyPath) -> bool:
        """Whether the file holds a value at `path`."""
        return path in self._positions

    def add(self, problems: Iterable[Problem], path: KeyPath) -> None:
        """Add the problems of the part of the file at `path`."""
        before = len(self.problems)
        self.problems += problems
        if any(problem.level == "error" for problem in self.problems[before:]):
            self.error_paths.append(path)

    @property
    def has_errors(self) -> bool:
        return any(problem.level == "error" for problem in self.problems)

    def _add(
        self,
        level: Literal["error", "warning"],
        path: KeyPath,
        message: str,
        hint: str | None,
        node: str | None,
        at: Position | None,
        file: str | None,
        code: str | None,
    ) -> None:
        if self._is_known(path):
            return
        if level == "error":
            self.error_paths.append(path)
        place = at if file is not None else at or position_of(self._positions, path)
        line, column = place or (None, None)
        self.problems.append(Problem(level, message, file or self.file, line, column, node, hint, code or self.code))

    def _is_known(self, path: KeyPath) -> bool:
        """Whether `path` is at or below a reported path: the rules see a stand-in there."""
        return any(path[:length] in self.broken for length in range(1, len(path) + 1))


def position_of(positions: Positions, path: KeyPath) -> Position | None:
    """The position of the value at `path`, or of the nearest parent that has one. None for an empty file."""
    for length in range(len(path), -1, -1):
        if path[:length] in positions:
            return positions[path[:length]]
    return None


def below(positions: Positions, path: KeyPath) -> Positions:
    """The positions of the part of a file at `path`, by paths within it."""
    return {known[len(path) :]: place for known, place in positions.items() if known[: len(path)] == path}


def in_file_order(problems: Iterable[Problem]) -> list[Problem]:
    """By line and column; problems of the whole file first. The sort is stable."""
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))


def suggestion(name: str, known: Iterable[str], plural: str) -> str | None:
    """A hint for a name that is not in `known`: the closest name, else the list. None if `known` is empty."""
    known = list(known)
    close = closest(name, known)
    if close is not None:
        return f'Did you mean "{close}"?'
    if not known:
        return None
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"The {plural} are: {', '.join(known[:LISTED])}{more}."


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` may be a misspelling of, ignoring case."""
    folded = {other.casefold()[:80]: other for other in known}
    typed = name.casefold()[:80]
    matches = difflib.get_close_matches(typed, folded, n=3)
    return next((folded[other] for other in matches if _is_misspelling(typed, other)), None)


def _is_misspelling(typed: str, meant: str) -> bool:
    """Whether few characters differ. difflib's ratio alone matches `edges` with `reducers`."""
    return _distance(typed, meant) <= max(1, max(len(typed), len(meant)) // 3)


def _distance(left: str, right: str) -> int:
    """The edit distance: characters that are missing, added, replaced, or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(right, 1):
            best = min(row[j - 1] + 1, before[j] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                best = min(best, last[j - 2] + 1)
            row.append(best)
    return row[-1]


def _node_of(path: KeyPath) -> str | None:
    return str(path[1]) if len(path) > 1 and path[0] == "nodes" else None
