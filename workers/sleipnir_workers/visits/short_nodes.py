"""Which nodes are known to be short, so that a worker may take several of their visits at once (visits/group.py)."""

from __future__ import annotations

from typing import Final

from sleipnir.messages import VisitCall

SHORT_S: Final = 0.004
"""A mean below this is short."""
UNKNOWN_S: Final = 0.02
"""The mean of a node before its first visit here: it is known to be short after eight very short ones."""
LONGEST_S: Final = 1.0
"""A longer visit counts as this: eighteen very short ones outweigh it."""
WEIGHT: Final = 0.2
"""The weight of the last visit in the mean."""
MOST_NODES: Final = 10_000


class ShortNodes:
    """The mean durations of nodes in this process."""

    def __init__(self) -> None:
        self._means_s: dict[tuple[str, str, str, str], float] = {}

    def note(self, call: VisitCall, took_s: float) -> None:
        key = (call.bundle, call.agent, call.node, call.role)
        mean_s = self._means_s.get(key, UNKNOWN_S)
        if len(self._means_s) >= MOST_NODES:
            self._means_s.clear()
        self._means_s[key] = mean_s + WEIGHT * (min(took_s, LONGEST_S) - mean_s)

    def mean_s(self, call: VisitCall) -> float:
        return self._means_s.get((call.bundle, call.agent, call.node, call.role), UNKNOWN_S)

    def has(self, call: VisitCall) -> bool:
        """Whether a visit is likely to be short. Not one that is executed again: its first worker may have died of
        it."""
        return call.attempt == 1 and self.mean_s(call) < SHORT_S
