"""Which run a fork goes on from, and which forks a run has. fork_run.lua lists them at the source."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sleipnir.errors import RunNotFound
from sleipnir.runs.views import Lineage, RunInfo
from sleipnir.store.keys import FORKS_PAGE
from sleipnir.store.runs.run_infos import RunInfos

MOST_RUNS = 1_000
"""Runs of a lineage that are read, besides the sources of the run that it is for."""

MOST_SOURCES = 1_000


class RunLineage(RunInfos):
    """Read forks and their sources."""

    def forks(self, run_id: str, first: int, limit: int) -> Lineage:
        """A run with `limit` of its forks, from the number `first` on. Raises RunNotFound."""
        info = self.info(run_id)
        [(count, ids)] = self._forks([run_id], first, limit)
        found = self.find(ids) if ids else []
        return Lineage(run_id, info, count, tuple(map(Lineage, ids, found)))

    def lineage(self, run_id: str, limit: int) -> Lineage:
        """The lineage of a run, from its first source on: of each run the first `limit` forks, and those that lead to
        this run. Raises RunNotFound."""
        way = self._way_to(run_id)
        infos: dict[str, RunInfo | None] = {}
        found: dict[str, tuple[int, list[str]]] = {}
        level = [way[0]]
        while level:
            infos |= dict(zip(level, self.find(level), strict=True))
            found |= dict(zip(level, self._forks(level, 0, limit), strict=True))
            for source, fork in pairwise(way):
                if source in level and fork not in found[source][1]:
                    count, forks = found[source]
                    found[source] = (max(count, 1), [*forks, fork])
            level = [fork for run in level for fork in found[run][1]][: max(0, MOST_RUNS - len(infos))]
            level += [run for run in way if run not in infos and run not in level][:1]

        def of(run: str) -> Lineage:
            count, forks = found[run]
            return Lineage(run, infos[run], count, tuple(of(fork) for fork in forks if fork in infos))

        return of(way[0])

    def _way_to(self, run_id: str) -> list[str]:
        """A run after its sources, the first one first; the first one may have expired. Raises RunNotFound."""
        way = [run_id]
        while len(way) <= MOST_SOURCES:
            try:
                fork = self.spec(way[0]).fork
            except RunNotFound:
                if len(way) == 1:
                    raise
                return way
            if fork is None:
                return way
            way.insert(0, fork.run)
        return way

    def _forks(self, run_ids: Sequence[str], first: int, limit: int) -> list[tuple[int, list[str]]]:
        pages = range(first // FORKS_PAGE, (first + limit - 1) // FORKS_PAGE + 1)
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hmget(self._keys.of_run(run_id).children, ["forks:", *(f"forks:{page}" for page in pages)])
        skipped = first - pages.start * FORKS_PAGE
        return [
            (int(count or 0), "".join(text or "" for text in texts).split()[skipped : skipped + limit])
            for count, *texts in pipe.execute()
        ]
