"""Jobs in Redis: submitted and stopped by clients, carried out by schedulers.

Every change is one script, and names the revision that it is based on, as for schedules (store/schedules.py). Before
the requests to a piece of runs are sent, these runs are stored; each request has a token that follows from the job and
the run. So after any death the piece is sent again, and no run takes its request twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sleipnir.access.audit import KEEP_MS
from sleipnir.decoding import read_text
from sleipnir.errors import JobNotFound, RecordUnreadable
from sleipnir.jobs.records import MOST_REFUSALS, JobInfo, JobPlan, JobProgress, Refusal
from sleipnir.runs.run import RunSpec
from sleipnir.store.connect import Client
from sleipnir.store.keys import Keys
from sleipnir.store.record_text import record
from sleipnir.store.scripts import Arg, LuaScript

_WRITE = LuaScript("job_write")

PAGE: Final = 50
"""Jobs that are read at once."""

AGAIN_MS: Final = 60_000
"""When a job is looked at again that cannot be carried out here."""

_RECORDS: Final = ("rev", "plan", "progress", "spec")


@dataclass(frozen=True)
class StoredJob:
    """A job, as a change of it is based on. `spec`: what its forks are submitted with, if their agent is named."""

    id: str
    rev: str
    plan: JobPlan
    progress: JobProgress
    spec: RunSpec | None = None


class JobRecords:
    """The operations of clients and schedulers on jobs. `entry` is the text of an entry of the audit, which is written
    with the change."""

    def __init__(self, client: Client, keys: Keys, *, expire_ms: int, audit_ms: int = KEEP_MS) -> None:
        self._client, self._keys, self._expire_ms, self._audit_ms = client, keys, expire_ms, audit_ms

    def add(self, job: str, plan: JobPlan, spec: RunSpec | None = None, *, entry: str = "") -> bool:
        """False: there is a job of this id."""
        fields = {"plan": record(plan), "progress": record(JobProgress())}
        if spec is not None:
            fields["spec"] = record(spec)
        return self._write(job, "", plan, plan.start_ms, fields, entry=entry)

    def change(
        self, of: StoredJob, progress: JobProgress, look_ms: int, refusals: Sequence[Refusal] = (), *, entry: str = ""
    ) -> bool:
        """False: it has changed since it was read."""
        return self._write(of.id, of.rev, of.plan, look_ms, {"progress": record(progress)}, refusals, entry=entry)

    def get(self, job: str) -> StoredJob:
        """Raises JobNotFound and RecordUnreadable."""
        reply = self._client.hmget(self._keys.of_job(job).job, _RECORDS)
        if reply[0] is None:
            raise JobNotFound(f"no job {job!r:.60}; `sleipnir job ls` lists them")
        return _stored(job, reply)

    def infos(self, jobs: Sequence[str]) -> list[JobInfo | None]:
        """Several jobs in one round trip; None for a missing one."""
        pipe = self._client.pipeline(transaction=False)
        for job in jobs:
            pipe.hmget(self._keys.of_job(job).job, _RECORDS)
        return [_info(job, reply) for job, reply in zip(jobs, pipe.execute(), strict=True)]

    def newest(self, limit: int, before_ms: int | None = None) -> list[tuple[str, int]]:
        """The ids and times of the jobs that were submitted last, up to `limit`: before a time, if it is given."""
        pipe = self._client.pipeline(transaction=False)
        most: Any = "+inf" if before_ms is None else f"({before_ms}"
        for partition in range(self._keys.partitions):
            pipe.zrevrangebyscore(
                self._keys.of_partition(partition).jobs, most, "-inf", start=0, num=limit, withscores=True
            )
        found = [(job, int(at_ms)) for part in pipe.execute() for job, at_ms in part]
        return sorted(found, key=lambda each: (-each[1], each[0]))[:limit]

    def unfinished(self) -> int:
        """How many jobs are not over."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.zcard(self._keys.of_partition(partition).jobs_due)
        return sum(pipe.execute())

    def refusals(self, job: str, limit: int) -> list[Refusal]:
        """The first refusals of a job. One that cannot be read is left out."""
        found = []
        for text in self._client.lrange(self._keys.of_job(job).refusals, 0, limit - 1):
            try:
                found.append(read_text(Refusal, text, "refusal", job))
            except RecordUnreadable:
                continue
        return found

    def due(self, partitions: Collection[int]) -> list[str]:
        """The jobs of partitions that are to be looked at, up to PAGE of each."""
        if not partitions:
            return []
        numbers = list(partitions)
        pipe = self._client.pipeline(transaction=False)
        for number in numbers:
            pipe.zrange(self._keys.of_partition(number).jobs_due, 0, PAGE - 1, withscores=True)
        pipe.time()
        *parts, time = pipe.execute()
        now_ms = time[0] * 1000 + time[1] // 1000
        return [job for part in parts for job, look_ms in part if look_ms <= now_ms]

    def defer(self, job: str, now_ms: int) -> None:
        """Look at a job later, which cannot be carried out here."""
        keys = self._keys.of_job(job)
        due = self._keys.of_partition(keys.partition).jobs_due
        if not self._client.exists(keys.job):
            self._client.zrem(due, job)
        else:
            self._client.zadd(due, {job: now_ms + AGAIN_MS}, xx=True)

    def forget_expired(self, partition: int, before_ms: int, limit: int) -> int:
        """Drop jobs that were submitted before a time and have expired from the list. Returns how many."""
        index = self._keys.of_partition(partition).jobs
        jobs = self._client.zrangebyscore(index, "-inf", before_ms, start=0, num=limit)
        if not jobs:
            return 0
        pipe = self._client.pipeline(transaction=False)
        for job in jobs:
            pipe.exists(self._keys.of_job(job).job)
        gone = [job for job, is_there in zip(jobs, pipe.execute(), strict=True) if not is_there]
        return int(self._client.zrem(index, *gone)) if gone else 0

    def _write(
        self,
        job: str,
        rev: str,
        plan: JobPlan,
        look_ms: int,
        fields: dict[str, str],
        refusals: Sequence[Refusal] = (),
        *,
        entry: str = "",
    ) -> bool:
        keys = self._keys.of_job(job)
        part = self._keys.of_partition(keys.partition)
        names = {
            "job": keys.job, "refusals": keys.refusals, "jobs": part.jobs, "due": part.jobs_due, "audit": part.audit,
        }  # fmt: skip
        args: dict[str, Arg] = {
            "id": job, "rev": rev, "next_rev": secrets.token_hex(8), "at_ms": plan.at_ms, "look_ms": look_ms,
            "expire_ms": self._expire_ms, "most": MOST_REFUSALS, "entry": entry, "keep_ms": self._audit_ms,
            "fields": len(fields),
        }  # fmt: skip
        rest: list[Arg] = [part for pair in fields.items() for part in pair]
        return bool(_WRITE(self._client, names, args, [*rest, *map(record, refusals)]))


def _stored(job: str, reply: Sequence[str | None]) -> StoredJob:
    """Raises RecordUnreadable."""
    rev, plan, progress, spec = reply
    return StoredJob(
        job,
        rev or "",
        read_text(JobPlan, plan or "", "job", job),
        read_text(JobProgress, progress or "", "progress of a job", job),
        None if spec is None else read_text(RunSpec, spec, "spec", f"job {job}"),
    )


def _info(job: str, reply: Sequence[str | None]) -> JobInfo | None:
    if reply[0] is None:
        return None
    try:
        stored = _stored(job, reply)
    except RecordUnreadable as error:
        return JobInfo(job, JobPlan("cancel", "", "", 0, 0), JobProgress(after=None), str(error))
    return JobInfo(job, stored.plan, stored.progress)
