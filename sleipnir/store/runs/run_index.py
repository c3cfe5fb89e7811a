"""Which runs there are: the index of runs, newest first, and their statuses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sleipnir.messages import FINAL
from sleipnir.runs.views import RunInfo
from sleipnir.store.runs.connection import PAGE
from sleipnir.store.runs.run_infos import RunInfos, status_of
from sleipnir.store.runs.visit_infos import whole_number

FIRST_PAGE = 50  # the number of runs that are shown to people


@dataclass(frozen=True)
class RunEnd:
    """The status of a run, and when it ended; None: it has not ended, or an earlier release did not record it."""

    status: str
    ended_ms: int | None


class RunIndex(RunInfos):
    """List runs."""

    def recent(self, limit: int, statuses: Collection[str] | None = None) -> Iterator[RunInfo]:
        """The runs with these statuses among the `limit` newest runs, newest first; read lazily, a page at a time. Only
        the status of the other runs is read.

        If only unfinished statuses are requested, a finished run that is being retried is left out until a scheduler
        has processed the retry: finished runs are excluded by the index, regardless of their number.
        """
        listed = self._newest(limit)
        if statuses is not None and FINAL.isdisjoint(statuses):
            listed = self._without_ended(listed)
        for at in (0, *range(FIRST_PAGE, len(listed), PAGE)):
            page = listed[at : at + (PAGE if at else FIRST_PAGE)]
            if statuses is not None:
                page = [run_id for run_id, status in self._statuses(page) if status in statuses]
            yield from (info for info in self.find(page) if info is not None)

    def count(self) -> int:
        """The number of runs, finished or not."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.zcard(self._keys.of_partition(partition).runs)
        return sum(pipe.execute())

    def _newest(self, limit: int) -> list[str]:
        """The ids of the newest runs, newest first. Runs are spread evenly over the partitions, so slightly more than a
        partition's share is read of each; more is read if that does not prove to be enough."""
        most = 2 * limit // self._keys.partitions + 10
        while True:
            pipe = self._client.pipeline(transaction=False)
            for partition in range(self._keys.partitions):
                pipe.zrevrange(self._keys.of_partition(partition).runs, 0, most - 1, withscores=True)
            replies = pipe.execute()
            # In a partition that may have more runs, all runs newer than the last one read are known.
            since = max((reply[-1][1] for reply in replies if len(reply) == most), default=-math.inf)
            listed = sorted(((at_ms, run_id) for reply in replies for run_id, at_ms in reply), reverse=True)[:limit]
            if most >= limit or not listed or listed[-1][0] > since:
                return [run_id for _, run_id in listed]
            most *= 4

    def _without_ended(self, run_ids: Sequence[str]) -> list[str]:
        """The runs that the index does not list as finished; archived runs are not in this index."""
        by_partition = defaultdict(list)
        for run_id in run_ids:
            by_partition[self._keys.partition_of(run_id)].append(run_id)
        pipe = self._client.pipeline(transaction=False)
        for partition, members in by_partition.items():
            pipe.zmscore(self._keys.of_partition(partition).expiring, members)
        read = zip(by_partition.values(), pipe.execute(), strict=True)
        over = {
            run_id
            for members, scores in read
            for run_id, score in zip(members, scores, strict=True)
            if score is not None
        }
        return [run_id for run_id in run_ids if run_id not in over]

    def ends(self, run_ids: Sequence[str]) -> dict[str, RunEnd | None]:
        """The statuses of runs, and when they ended; None: no such run."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hmget(self._keys.of_run(run_id).run, "status", "retrying", "ended_ms")
        return {
            run_id: None if status is None else RunEnd(str(status_of(status, retrying)), whole_number(ended_ms))
            for run_id, (status, retrying, ended_ms) in zip(run_ids, pipe.execute(), strict=True)
        }

    def _statuses(self, run_ids: Sequence[str]) -> Iterator[tuple[str, str | None]]:
        """The status of each run; None: no such run."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hmget(self._keys.of_run(run_id).run, "status", "retrying")
        for run_id, (status, retrying) in zip(run_ids, pipe.execute(), strict=True):
            yield run_id, status_of(status, retrying)

    def ids_starting_with(self, prefix: str, limit: int = 20) -> list[str]:
        """Ids of listed runs by prefix, to complete and resolve user input."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.zrevrange(self._keys.of_partition(partition).runs, 0, 9_999)
        return sorted(run_id for reply in pipe.execute() for run_id in reply if run_id.startswith(prefix))[:limit]
