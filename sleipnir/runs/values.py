"""The values that planning an event needs: what the planner asks for, and what the store fetches.

Most events need none: names are enough. Values are only fetched for control nodes, conditions and reducers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Wanted:
    """What to fetch: `state` keys as last committed (`whole`: all of them), keys of the `delta` that the event brings,
    the `updates` of the commands that it brings, the writes of journal `steps`, fields of the run's `items`,
    `windows` of keys, and what was counted so far of the `costs` of child runs. Absent ones may stay absent."""

    state: frozenset[str] = frozenset()
    whole: bool = False
    delta: frozenset[str] = frozenset()
    steps: frozenset[int] = frozenset()
    items: frozenset[str] = frozenset()
    windows: frozenset[str] = frozenset()
    updates: bool = False
    costs: frozenset[str] = frozenset()

    def __or__(self, other: Wanted) -> Wanted:
        return Wanted(
            self.state | other.state,
            self.whole or other.whole,
            self.delta | other.delta,
            self.steps | other.steps,
            self.items | other.items,
            self.windows | other.windows,
            self.updates or other.updates,
            self.costs | other.costs,
        )

    @classmethod
    def together(cls, parts: Iterable[Wanted]) -> Wanted:
        """All that is wanted by any of these. Thousands cost as much as they have fields."""
        parts = list(parts)
        return cls(
            frozenset[str]().union(*(part.state for part in parts)),
            any(part.whole for part in parts),
            frozenset[str]().union(*(part.delta for part in parts)),
            frozenset[int]().union(*(part.steps for part in parts)),
            frozenset[str]().union(*(part.items for part in parts)),
            frozenset[str]().union(*(part.windows for part in parts)),
            any(part.updates for part in parts),
            frozenset[str]().union(*(part.costs for part in parts)),
        )

    def __bool__(self) -> bool:
        return self != NONE


NONE = Wanted()


@dataclass(frozen=True)
class Known:
    """Values that were fetched because they were `wanted`: what is not in the mappings is absent from the store.

    `items` are texts, of overlays or of items' results; `windows` are as planner/folding.py has them; `updates` are the
    texts of overlays, by the number of the command; `costs` have the names of the run's own sums (store/keys.py).
    """

    wanted: Wanted = NONE
    state: Mapping[str, Any] = field(default_factory=dict)
    delta: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    items: Mapping[str, str] = field(default_factory=dict)
    windows: Mapping[str, Any] = field(default_factory=dict)
    updates: tuple[str, ...] = ()
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


NOTHING = Known()
