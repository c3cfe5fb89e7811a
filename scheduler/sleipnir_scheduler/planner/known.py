"""How planning requests values (sleipnir/runs/values.py defines them).

Code that needs an unknown value raises MissingValues. plan() then returns the values to fetch, and is called again with
them. Planning is pure, so planning again is safe."""

from __future__ import annotations

from sleipnir.runs.values import KnownValues, WantedValues


class MissingValues(Exception):
    """Planning needs values that were not fetched yet."""

    def __init__(self, wanted: WantedValues) -> None:
        self.wanted = wanted


def require(known: KnownValues, wanted: WantedValues) -> None:
    """Raise MissingValues unless all of this was fetched."""
    have = known.wanted
    lacking = WantedValues(
        frozenset() if have.whole else wanted.state - have.state,
        wanted.whole and not have.whole,
        wanted.delta - have.delta,
        wanted.steps - have.steps,
        wanted.items - have.items,
        wanted.windows - have.windows,
        wanted.updates and not have.updates,
        wanted.costs - have.costs,
        None if have.past else wanted.past,
    )
    if lacking:
        raise MissingValues(have | lacking)
