"""What distinguishes two states of a run, or of two runs. Apart from the journal, which imports the reducers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StateDifference:
    """What distinguishes the state at one step from that at another: by key the values at both, or the only one."""

    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    added: dict[str, Any] = field(default_factory=dict)
    removed: dict[str, Any] = field(default_factory=dict)

    def reversed(self) -> StateDifference:
        """The same from the other step."""
        changed = {name: (after, before) for name, (before, after) in self.changed.items()}
        return StateDifference(changed, self.removed, self.added)


def same(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON: in Python, True equals 1, and 1.0 too."""
    return left == right and json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
