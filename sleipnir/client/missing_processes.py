"""Which processes are missing for runs that do not advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sleipnir.runs.views import MissingProcesses, RunInfo

_LEVELS: Final = 5
"""Levels of runs below that are looked at for what they lack,"""
_FEW: Final = 20
"""and runs of one level."""


def missing_among(
    run_ids: Sequence[str], look: Callable[[Sequence[str]], Sequence[RunInfo]], has_scheduler: Callable[[], bool]
) -> MissingProcesses:
    """See Run.missing, for several runs and the runs that they wait for. `look` finds runs with the reasons of their
    visits; those that are over, or not there, may be left out."""
    top, level, queues = set(run_ids), list(run_ids), dict[str, str]()
    for _ in range(_LEVELS):
        found, level = look(level), []
        for info in found:
            for visit in () if info.is_final else info.visits:
                if visit.reason.code == "queued" and visit.reason.consumers == 0:
                    place = visit.node if info.id in top else f"{visit.node} of run {info.id}"
                    queues.setdefault(str(visit.reason.queue), place)
                if visit.reason.run is not None and len(level) < _FEW:
                    level.append(visit.reason.run)
        if not level:
            break
    return MissingProcesses(not has_scheduler(), queues)
