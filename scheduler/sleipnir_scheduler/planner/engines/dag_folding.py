"""How the writes of a `dag` fold: one visit at a time, with the same result for any order of ends.

A visit's writes count immediately, while visits of lower rank may still be live. A key written meanwhile has a *top*,
the highest rank that has written it, and if it has a reducer, a *window*: its earlier value, and the updates since, by
rank. A late write of a lower rank folds the window again, or is superseded. Tops and windows are dropped when no live
visit has a lower rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sleipnir.graph.model import Graph, Json
from sleipnir.graph.reducers import ABSENT, is_custom
from sleipnir.runs.visits import Rank
from sleipnir_scheduler.planner.folding import FoldResult, Value, Writer, fold_with, open_fold


@dataclass(frozen=True)
class Window:
    """The history of a key of a `dag` since the oldest live visit: the earlier value, and the updates, by rank."""

    base: Json
    parts: tuple[tuple[Rank, Json], ...] = ()

    def plus(self, rank: Rank, update: Json) -> Window:
        return replace(self, parts=tuple(sorted((*self.parts, (rank, update)), key=lambda part: part[0])))

    def to_json(self) -> dict[str, Any]:
        parts = [[list(rank), update] for rank, update in self.parts]
        return {"parts": parts} if self.base is ABSENT else {"base": self.base, "parts": parts}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Window:
        return cls(data.get("base", ABSENT), tuple((tuple(rank), update) for rank, update in data["parts"]))


@dataclass
class FoldedVisit(FoldResult):
    """The result of folding the writes of one visit, with the new tops and windows."""

    tops: dict[str, Rank] = field(default_factory=dict)
    windows: dict[str, Window] = field(default_factory=dict)


def fold_visit(
    graph: Graph,
    writer: Writer,
    current: Callable[[str], Json],
    value: Value,
    *,
    tops: Mapping[str, Rank],
    window: Callable[[str], Window],
    lower_lives: bool,
) -> FoldedVisit:
    """The writes of one visit of a `dag`. `lower_lives`: a visit that comes before it in visit order has not ended."""
    folded = FoldedVisit()
    for key in writer.keys:
        top, reducer = tops.get(key), graph.reducer_of(key)
        if reducer is None:
            if top is not None and top > writer.rank:
                folded.apart.add(key)
                continue
        else:
            history = window(key) if top is not None else Window(current(key))
            history = history.plus(writer.rank, value(writer.step, key))
            updates = [update for _, update in history.parts]
            folded.apart.add(key)
            if is_custom(reducer):
                folded.open[key] = open_fold(history.base, updates)
            else:
                folded.values[key] = fold_with(key, reducer, history.base, updates, strict=False)
            if lower_lives or top is not None:
                folded.windows[key] = history
        if lower_lives or top is not None:
            folded.tops[key] = writer.rank if top is None else max(top, writer.rank)
    return folded
