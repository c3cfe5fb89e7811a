"""The callbacks that run around one execution, and what they have decided so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sleipnir.commands import NodeInfo
from sleipnir.graph.model import CallbackKind, CallbackLevel, CallbackPhase

RANKS: Final[Mapping[CallbackLevel, int]] = {"graph": 0, "node": 1, "plugin": 2}
"""What one level has decided, none of a lower rank changes."""


@dataclass(frozen=True)
class Callback:
    """One function. `function` is that of a plugin; None: one of the agent's, found by its name."""

    level: CallbackLevel
    name: str
    function: Callable[..., Any] | None = None


@dataclass
class VisitCallbacks:
    """In the order in which they run, by what they run around. `marks` are their decisions, for the journal; with
    `is_final` one has made a failure that no policy retries."""

    info: NodeInfo
    named: Mapping[tuple[CallbackKind, CallbackPhase], Sequence[Callback]]
    marks: list[str] = field(default_factory=list)
    is_final: bool = False

    def of(self, kind: CallbackKind, phase: CallbackPhase) -> Sequence[Callback]:
        return self.named.get((kind, phase), ())

    def has(self, kind: CallbackKind) -> bool:
        return any(each_kind == kind and callbacks for (each_kind, _), callbacks in self.named.items())
