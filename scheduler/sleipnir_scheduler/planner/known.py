"""How planning requests values (sleipnir/runs/values.py defines them).

Code that needs an unknown value raises Missing. plan() then returns the values to fetch, and is called again with them.
Planning is pure, so planning again is safe.
"""

from __future__ import annotations

from sleipnir.runs.values import Known, Wanted


class Missing(Exception):
    """Planning needs values that were not fetched yet."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted


def require(known: Known, wanted: Wanted) -> None:
    """Raise Missing unless all of this was fetched."""
    have = known.wanted
    lacking = Wanted(
        frozenset() if have.whole else wanted.state - have.state,
        wanted.whole and not have.whole,
        wanted.delta - have.delta,
        wanted.steps - have.steps,
        wanted.items - have.items,
        wanted.windows - have.windows,
        wanted.updates and not have.updates,
        wanted.costs - have.costs,
    )
    if lacking:
        raise Missing(have | lacking)
