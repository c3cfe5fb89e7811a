"""The values that planning an event needs: the planner requests them, and the store fetches them.

Most events need names only. Control nodes, conditions and reducers need values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sleipnir.runs.run import PastState, RunSpec


@dataclass(frozen=True)
class WantedTurn:
    """The queued turn with this `spec` is to begin. With `folds`, the values of these keys are only read first: its
    own, and those of the last run of its thread. Later `folded` are the values that reducers made of them, as JSON
    text, and `ended_ms` the time when that run had ended."""

    spec: RunSpec
    folds: tuple[str, ...] = ()
    folded: Mapping[str, str] = field(default_factory=dict)
    ended_ms: str = ""


@dataclass(frozen=True)
class TurnState:
    """Whether a queued turn has `begun`; if not, why there is no state to take (`lost`), or the values to fold: `own`
    ones, and those `before`. None of these: it is not its turn yet."""

    begun: bool = False
    lost: str | None = None
    own: Mapping[str, Any] | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    ended_ms: str = ""


@dataclass(frozen=True)
class WantedValues:
    """The values to fetch: `state` keys as last committed (`whole`: all of them), keys of the `delta` of the event, the
    `updates` of its commands, the writes of journal `steps`, fields of the run's `items`, `windows` of keys, and the
    `costs` of child runs as counted so far. Absent values are left out. `past`: a fork takes this state of its source,
    as its own, before anything is fetched; `turn`: a queued turn takes that of its thread."""

    state: frozenset[str] = frozenset()
    whole: bool = False
    delta: frozenset[str] = frozenset()
    steps: frozenset[int] = frozenset()
    items: frozenset[str] = frozenset()
    windows: frozenset[str] = frozenset()
    updates: bool = False
    costs: frozenset[str] = frozenset()
    past: PastState | None = None
    turn: WantedTurn | None = None

    def __or__(self, other: WantedValues) -> WantedValues:
        return WantedValues(
            self.state | other.state,
            self.whole or other.whole,
            self.delta | other.delta,
            self.steps | other.steps,
            self.items | other.items,
            self.windows | other.windows,
            self.updates or other.updates,
            self.costs | other.costs,
            self.past or other.past,
            other.turn or self.turn,
        )

    @classmethod
    def together(cls, parts: Iterable[WantedValues]) -> WantedValues:
        """The union of these, at the cost of one union per field, even of thousands."""
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


NONE = WantedValues()


@dataclass(frozen=True)
class KnownValues:
    """The fetched values that were `wanted`: a value missing in the mappings is absent from the store.

    `items` are the texts of overlays or of items' results; `windows` are as in planner/dag_folding.py; `updates` are
    the texts of overlays, by the number of the command; `costs` use the names of the run's own sums (store/keys.py);
    `lost` is why there is no state to take (`past`), `turn` whether a queued turn has begun.
    """

    wanted: WantedValues = NONE
    state: Mapping[str, Any] = field(default_factory=dict)
    delta: Mapping[str, Any] = field(default_factory=dict)
    steps: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    items: Mapping[str, str] = field(default_factory=dict)
    windows: Mapping[str, Any] = field(default_factory=dict)
    updates: tuple[str, ...] = ()
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    lost: str | None = None
    turn: TurnState | None = None


NOTHING = KnownValues()
