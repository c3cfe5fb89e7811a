"""Lets held runs go on, as people have asked. Without it a resumed part of a held deployment would wait until the
outbox looks at its visits again.

What was resumed as a whole (runs of some agents, or everything) is walked once: its queued visits become due, each
partition by its owner. A walk that a death interrupts begins anew. After everything of a namespace was walked, its hold
ends; that of the deployment ends at once, by the client.

What goes on at a rate is marked run by run, by the owner of the first partition alone, which keeps the pace in memory:
another one begins with nothing saved up, so that a death makes it slower for a moment, never faster. After a stop of
the process at most the runs of one second come at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import structlog

from sleipnir.runs.deployment_holds import DEPLOYMENT, DeploymentHolds, ScopeHold
from sleipnir.store.partitions.held_runs import HeldRuns

FIRST_PARTITION: Final = 0
SAVED_S: Final = 1.0
"""For so long the runs of a rate are saved up while none wait."""


class Resuming:
    """Keeps the cursors of walks, and the pace of rates."""

    def __init__(self, store: HeldRuns, *, partitions: int) -> None:
        self._store, self._partitions = store, partitions
        self._cursors: dict[tuple[int, str], int] = {}
        self._places: dict[tuple[int, str], int] = {}
        self._saved: dict[str, tuple[int, float]] = {}
        """When runs of a scope were let go on last, and how many more may at that time."""
        self._log = structlog.get_logger().bind(service="resuming")

    def run_once(self, epochs: Collection[int], holds: Mapping[int, DeploymentHolds], now_ms: int) -> int:
        """A step of each walk, and the runs that may go on by now. Returns how many runs were marked; several may run
        at once."""
        for partition in epochs:
            for held in holds[partition].scopes.values() if partition in holds else ():
                if held.resumption is not None and (held.resumption.agents or held.resumption.everything):
                    self._walk(partition, held)
        paced = [
            held
            for held in (holds[FIRST_PARTITION].scopes.values() if FIRST_PARTITION in holds else ())
            if FIRST_PARTITION in epochs and held.resumption is not None and held.resumption.rate is not None
        ]
        for gone in self._saved.keys() - {held.scope for held in paced}:
            del self._saved[gone]
        return sum(self._pace(held, now_ms) for held in paced)

    def _walk(self, partition: int, held: ScopeHold) -> None:
        place = (partition, held.scope)
        if place not in self._cursors and self._store.walked(partition, held):
            assert held.resumption is not None
            if held.resumption.everything and held.scope != DEPLOYMENT and self._store.end_hold(partition, held):
                self._log.info("the hold of a namespace has ended", namespace=held.scope, partition=partition)
            return
        following = self._store.walk(partition, held, self._cursors.get(place, 0))
        if following:
            self._cursors[place] = following
        else:
            self._cursors.pop(place, None)

    def _pace(self, held: ScopeHold, now_ms: int) -> int:
        """Let as many runs go on as the rate allows by now, in turns from the partitions."""
        assert held.resumption is not None and held.resumption.rate is not None
        rate = held.resumption.rate
        last_ms, saved = self._saved.get(held.scope, (now_ms, 0.0))
        most = max(1.0, rate * SAVED_S)
        saved = min(most, saved + rate * max(0, now_ms - last_ms) / 1000)
        allowed, marked = int(saved), 0
        if allowed:
            marked = self._mark(held.scope, allowed)
        self._saved[held.scope] = (now_ms, saved - marked)
        return marked

    def _mark(self, scope: str, allowed: int) -> int:
        """Let so many runs go on, the oldest of those that are seen in one look at each partition."""
        looks = {
            partition: self._store.waiting(partition, scope, self._places.get((partition, scope), 0))
            for partition in range(self._partitions)
        }
        found = [(run.created_ms, run.run, partition) for partition, look in looks.items() for run in look.runs]
        chosen = {run for _, run, _ in sorted(found)[:allowed]}
        marked = 0
        for partition, look in looks.items():
            runs = [run for run in look.runs if run.run in chosen]
            if runs and look.held is not None:
                marked += self._store.resume_runs(partition, look.held, runs)
            if len(runs) == len(look.runs):  # those that were not chosen are looked at again
                self._places[(partition, scope)] = look.following
        return marked
