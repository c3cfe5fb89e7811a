"""The journals of the runs whose pages are open: each entry is read once, in pages, not again when the page changes.

Entries never change; what is not known of the newest ones yet (the nodes that parallel visits lead to) is read again.
What is kept is bounded: the newest entries of few runs. Any server may have any part of it, or nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sleipnir.client.async_client import AsyncRun
from sleipnir.runs.views import StepInfo

MOST_STEPS: Final = 6_000
"""The entries of a run that are read: the last ones."""
MOST_KEPT: Final = 40_000
"""Entries of all runs, about 1 kB each."""
AT_ONCE: Final = 500
UNSURE: Final = 1_000
"""Of parallel visits that have not all ended, so many of the newest entries are read again."""


class RunJournals:
    """What a server has read."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[StepInfo]] = OrderedDict()

    async def steps(self, run: AsyncRun, last: int) -> list[StepInfo]:
        """The last MOST_STEPS entries of a run up to the step `last`, oldest first. Raises RunNotFound."""
        kept = self._kept.pop(run.id, [])
        first = max(0, last - MOST_STEPS + 1)
        after = max(kept[-1].step if kept else -1, first - 1)
        found = [step for step in kept if step.step >= first]
        while after < last:
            page = await run.history(after=after if after >= 0 else None, limit=AT_ONCE)
            if len(page) < AT_ONCE:
                found += page
                break
            page = page[: _closed(page)] or page  # the rest with the end of its super-step, which knows their ways
            found += page
            after = page[-1].step
        self._keep(run.id, found[: _sure(found)])
        return found

    def _keep(self, run_id: str, steps: list[StepInfo]) -> None:
        self._kept[run_id] = steps
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MOST_KEPT:
            self._kept.popitem(last=False)


def _sure(steps: list[StepInfo]) -> int:
    """How many of the entries are as they will stay."""
    return max(_closed(steps), len(steps) - UNSURE)


def _closed(steps: list[StepInfo]) -> int:
    """How many of the entries are up to the end of a super-step."""
    return next((at for at in range(len(steps), 0, -1) if steps[at - 1].checkpoint), 0)
