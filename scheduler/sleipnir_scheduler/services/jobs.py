"""Carries out jobs: one request to many runs, piece by piece. Without it a job would ask nothing of any run.

A piece has two steps, each ended by one script that refuses an old revision: the runs of the next piece are chosen and
stored; the requests to them are sent, and counted. A scheduler that dies between sends nothing twice, because runs know
the requests (client/job_requests.py). Two instances that dispute a partition send the same requests, and one counts.

A job goes on while the deployment is paused: its requests are taken then, as those of a person. A job that cannot be
carried out here is looked at again after a minute.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import structlog

from sleipnir.client.job_requests import JobRequests, next_piece
from sleipnir.errors import JobNotFound, SleipnirError
from sleipnir.jobs.records import MOST_RATE, JobProgress, Refusal
from sleipnir.settings import Settings
from sleipnir.store.connect import is_lasting
from sleipnir.store.jobs import StoredJob
from sleipnir.store.store import Store


class JobPieces:
    """Several instances may run at once."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._requests = store, JobRequests(store, settings)
        self._log = structlog.get_logger().bind(service="jobs")

    def run_once(self, partitions: Collection[int]) -> int:
        """A step of each job that is due. Returns how many."""
        return sum(self._go_on(job) for job in self._store.jobs.due(partitions))

    def _go_on(self, job_id: str) -> bool:
        try:
            job = self._store.jobs.get(job_id)
            if job.progress.is_over:
                return False
            return self._send(job) if job.progress.page else self._choose(job)
        except Exception as error:
            if not is_lasting(error):
                raise  # not an error of the job
            if not isinstance(error, JobNotFound):
                self._say(job_id, error)
            self._store.jobs.defer(job_id, self._store.now_ms())
            return False

    def _send(self, job: StoredJob) -> bool:
        """Send the requests of the stored piece, and count them."""
        refusals = self._requests.send(job)
        progress = job.progress
        counted = replace(
            progress,
            page=(),
            done=progress.done + len(progress.page) - len(refusals),
            refused=progress.refused + len(refusals),
        )
        now_ms = self._store.now_ms()
        if progress.state == "stopping":
            return self._write(job, replace(counted, state="stopped", after=None, ended_ms=now_ms), 0, refusals)
        look_ms = now_ms + round(1000 * len(progress.page) / (job.plan.rate or MOST_RATE))
        return self._write(job, *_ended_or(counted, look_ms, now_ms), refusals)

    def _choose(self, job: StoredJob) -> bool:
        """Choose the next piece, and store it."""
        now_ms = self._store.now_ms()
        piece = next_piece(self._store, job.plan, job.progress.after or "")
        progress = replace(
            job.progress,
            state="running",
            page=piece.targets,
            after=piece.after,
            looked=job.progress.looked + piece.looked,
            left=job.progress.left + piece.left,
            refused=job.progress.refused + len(piece.refusals),
            started_ms=now_ms if job.progress.started_ms is None else job.progress.started_ms,
        )
        if job.progress.started_ms is None:
            self._log.info("a job begins", job=job.id, action=job.plan.action, by=job.plan.by)
        if piece.targets:
            return self._write(job, progress, now_ms, piece.refusals)
        return self._write(job, *_ended_or(progress, now_ms, now_ms), piece.refusals)

    def _write(
        self, job: StoredJob, progress: JobProgress, look_ms: int, refusals: list[Refusal] | tuple[Refusal, ...]
    ) -> bool:
        if not self._store.jobs.change(job, progress, look_ms, refusals):
            return False  # it was stopped, or another instance was faster: the next round reads it again
        if progress.is_over:
            counts = {"done": progress.done, "left": progress.left, "refused": progress.refused}
            self._log.info("a job has ended", job=job.id, state=progress.state, **counts)
        return True

    def _say(self, job_id: str, error: Exception) -> None:
        if isinstance(error, SleipnirError):
            self._log.warning("a job cannot be carried out", job=job_id, reason=str(error))
        else:
            self._log.error("a job cannot be carried out", job=job_id, exc_info=error)


def _ended_or(progress: JobProgress, look_ms: int, now_ms: int) -> tuple[JobProgress, int]:
    """The progress, and when the job is looked at again; 0: it is done."""
    if progress.after is not None:
        return progress, look_ms
    return replace(progress, state="done", ended_ms=now_ms), 0
