"""How the writes of a step change the state (spec/graph-agents.md 2.11, graph-package.md F02).

Workers send updates, never merged state. This module merges them once, when they begin to count. Three rules:

1. Writes fold in visit order, not in the order of ends.
2. By Loki's rules a write of an unchanged value is no write, reducers are strict, and two branches that write a key
without a reducer are an error. In sleipnir/1 the last write in visit order counts.
3. A reducer of the agent runs on a worker: its input is an open fold, and its step closes afterwards.

In a `dag` each visit is its own step: dag_folding.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sleipnir.graph.model import Graph, Json
from sleipnir.graph.reducers import ABSENT, ReducerError, fold_all, is_custom
from sleipnir.runs.visits import Rank


class FoldError(Exception):
    """The writes contradict each other, or a reducer refuses them. Fails the run."""


class Writer(NamedTuple):
    """A visit that has written: its node, its rank, the journal step that holds the values."""

    node: str
    rank: Rank
    step: int
    keys: tuple[str, ...]


@dataclass
class FoldResult:
    """The result of folding. `values` go to the state; keys in `apart` are not copied from the journal. `skips` are
    writes that do not count, by step. `open` are the inputs of the agent's own reducers: {current, incoming}."""

    values: dict[str, Json] = field(default_factory=dict)
    apart: set[str] = field(default_factory=set)
    skips: dict[int, list[str]] = field(default_factory=dict)
    open: dict[str, dict[str, Json]] = field(default_factory=dict)


ERROR_KEYS = ("_error", "last_error")
"""The keys that failures write. Several branches may fail and go on: the last in visit order counts."""

Value = Callable[[int, str], Json]
"""Reads the value that a step wrote to a key."""


def fold_step(graph: Graph, writers: Sequence[Writer], current: Callable[[str], Json], value: Value) -> FoldResult:
    """The writes of a super-step; `writers` in visit order. `current` gives a key's value before it, or ABSENT.

    Raises FoldError.
    """
    folded = FoldResult()
    by_key: dict[str, list[Writer]] = {}
    for writer in writers:
        for key in writer.keys:
            by_key.setdefault(key, []).append(writer)
    strict = graph.is_loki
    for key in sorted(by_key):
        reducer, key_writers = graph.reducer_of(key), by_key[key]
        if len(key_writers) > 1 and graph.takes_one_write(key):
            raise FoldError(
                f"At key '{key}': Can receive only one value per step. Use an Annotated key to handle multiple values."
            )
        if reducer is None and (not strict or len(key_writers) == 1 or key in ERROR_KEYS):
            continue  # copied in visit order
        if strict:
            key_writers = _changing_writers(key, key_writers, current, value, folded)
        if reducer is None:
            _refuse_collision(key, key_writers)
            folded.values |= {key: value(key_writers[0].step, key)} if key_writers else {}
            folded.apart.add(key)
            continue
        folded.apart.add(key)
        if is_custom(reducer):
            folded.open[key] = open_fold(current(key), [value(writer.step, key) for writer in key_writers])
        elif key_writers:
            folded.values[key] = fold_with(
                key, reducer, current(key), [value(w.step, key) for w in key_writers], strict
            )
    return folded


def open_fold(current: Json, incoming: list[Json]) -> dict[str, Json]:
    """The input of a visit with the role `reduce` for one key."""
    return {"incoming": incoming} if current is ABSENT else {"current": current, "incoming": incoming}


def _changing_writers(
    key: str, writers: list[Writer], current: Callable[[str], Json], value: Value, folded: FoldResult
) -> list[Writer]:
    """Loki's diff: the writers whose value differs from the earlier one. The others go to the `skips` of `folded`."""
    before, changed = current(key), []
    for writer in writers:
        if before is ABSENT or not _same(before, value(writer.step, key)):
            changed.append(writer)
        else:
            folded.skips.setdefault(writer.step, []).append(key)
    return changed


def _same(left: Json, right: Json) -> bool:
    """Whether two values are equal as JSON; in Python, True equals 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return bool(left == right)


def _refuse_collision(key: str, writers: list[Writer]) -> None:
    if len(writers) > 1:
        raise FoldError(
            f"Key '{key}' was written by {len(writers)} parallel branches but has no reducer declared. Add a reducer "
            f"for '{key}' to the graph's `reducers:` block, or rename one writer."
        )


def fold_with(key: str, reducer: str, value: Json, updates: list[Json], strict: bool) -> Json:
    """The value of a key after updates. Raises FoldError."""
    try:
        return fold_all(reducer, value, updates, strict=strict)
    except ReducerError as error:
        raise FoldError(f"state key '{key}': {error}") from None
