"""Requests to many runs at once: pause and resume all that a filter chooses, or the active rows of a batch.

Runs are read in pages, and a page is one round trip. Nothing is kept of what was done: after an error the same call
again does the rest, because a run ignores a request that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from sleipnir.messages import FINAL

if TYPE_CHECKING:
    from sleipnir.runs.views import HoldInfo, RunInfo
    from sleipnir.store.runs import Runs

PAGE: Final = 500

OF_PERSONS: Final = frozenset({"person", "breakpoint"})
"""The holds that `resume` ends."""


@dataclass(frozen=True)
class SteeredRuns:
    """How many runs got a request; `left` did not need it: they were over by then, or no person holds them."""

    requested: int = 0
    left: int = 0

    def plus(self, requested: int, left: int) -> SteeredRuns:
        return SteeredRuns(self.requested + requested, self.left + left)


OnSteered: TypeAlias = Callable[[SteeredRuns], None]


def pause(
    runs: Runs,
    infos: Iterable[RunInfo],
    *,
    reason: str | None,
    timeout_ms: int | None,
    on_progress: OnSteered | None = None,
) -> SteeredRuns:
    """Pause these runs; see Run.pause."""
    done = SteeredRuns()
    for page in _pages(infos):
        statuses = runs.pause_several([info.id for info in page], reason=reason, timeout_ms=timeout_ms)
        done = _with(done, statuses, 0, on_progress)
    return done


def resume(
    runs: Runs,
    infos: Iterable[RunInfo],
    *,
    reason: str | None = None,
    on_progress: OnSteered | None = None,
) -> SteeredRuns:
    """Resume those of these runs that a person holds (with a `reason`: for that one), or that are at a breakpoint."""
    done = SteeredRuns()
    for page in _pages(infos):
        held = [info for info in page if any(_ends(hold, reason) for hold in info.holds)]
        statuses = runs.resume_several([(info.id, info.stopped_ms) for info in held])
        done = _with(done, statuses, len(page) - len(held), on_progress)
    return done


def _ends(hold: HoldInfo, reason: str | None) -> bool:
    return hold.owner in OF_PERSONS and (reason is None or hold.reason == reason)


def _pages(infos: Iterable[RunInfo]) -> Iterator[list[RunInfo]]:
    left = iter(infos)
    while page := list(islice(left, PAGE)):
        yield page


def _with(done: SteeredRuns, statuses: list[str | None], left: int, on_progress: OnSteered | None) -> SteeredRuns:
    over = sum(status is None or status in FINAL for status in statuses)
    done = done.plus(len(statuses) - over, left + over)
    if on_progress is not None:
        on_progress(done)
    return done
