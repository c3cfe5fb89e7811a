"""Jobs: `client.jobs`.

    seen = client.jobs.preview("retry", agents=["triage"], text="rate limit")
    job = client.jobs.submit("retry", agents=["triage"], text="rate limit", why="the provider is back")
    client.jobs.stop(job.id)

A job asks many runs for the same: those that fit a filter, or named ones. A scheduler carries it out in pieces, also
after the death of another one, and begins after a delay: until then it can be stopped without any effect. Each change
has its entry in the audit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sleipnir.access.audit import audit_text
from sleipnir.client import forks, run_queries
from sleipnir.client.options import ForkChanges
from sleipnir.client.run import pause_ms
from sleipnir.errors import UsageError
from sleipnir.jobs.records import (
    DELAY_S,
    MOST_DELAY_S,
    MOST_RUNS,
    STATUSES_OF,
    JobFork,
    JobInfo,
    JobPlan,
    JobPreview,
    Refusal,
    checked_action,
    for_action,
    refuse_plan,
    stopped,
    stored_filter,
)
from sleipnir.jobs.records import filter_of as filter_of_stored
from sleipnir.runs.run import id_letters
from sleipnir.runs.run_filters import ANY_NAMESPACE, RunCount, RunFilter
from sleipnir.store.runs.requests import random_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from sleipnir.client.preparation import Preparation
    from sleipnir.runs.actor import Actor
    from sleipnir.runs.run import RunSpec
    from sleipnir.settings import Settings
    from sleipnir.store.store import Store

MOST_TRIES: Final = 50
MOST_UNFINISHED: Final = 1_000
"""Jobs that are not over, of a deployment."""
SHOWN: Final = 20
"""Runs that a preview names."""
MOST_COUNTED: Final = 10_000
_FORK: Final = ("before", "state", "agent", "model")


class PageOfJobs(list[JobInfo]):
    """Jobs, the newest first. `after` is the cursor of the next page; None: there is none."""

    def __init__(self, jobs: Collection[JobInfo] = (), after: str | None = None) -> None:
        super().__init__(jobs)
        self.after = after


class Jobs:
    """The operations on jobs. Every one raises StoreUnavailable; those on one job raise JobNotFound, and
    RecordUnreadable for a damaged record."""

    def __init__(self, store: Store, settings: Settings, actor: Actor, prepared: Callable[[], Preparation]) -> None:
        self._store, self._settings, self._actor, self._prepared = store, settings, actor, prepared

    def preview(
        self,
        /,
        action: str,
        status: Collection[str] | None = None,
        *,
        runs: Sequence[str] | None = None,
        **query: Any,
    ) -> JobPreview:
        """What a job would do now. `status` and `query` choose runs as for Client.runs, of those that the action is
        for; or `runs` names them by their ids. Raises UsageError."""
        with self._store.errors():
            plan = self._plan(action, status, runs, query)
            return self._seen(plan)

    def submit(
        self,
        /,
        action: str,
        status: Collection[str] | None = None,
        *,
        runs: Sequence[str] | None = None,
        why: str = "",
        rate: float | None = None,
        delay_s: float = DELAY_S,
        timeout: float | None = None,
        fresh_children: bool = False,
        before: str | None = None,
        state: Mapping[str, Any] | None = None,
        agent: str | Path | None = None,
        model: str | None = None,
        request_id: str | None = None,
        **query: Any,
    ) -> JobInfo:
        """Submit a job: `cancel`, `pause`, `resume`, `retry` or `fork` all runs that fit, as `preview` counts them, and
        that were submitted before the job; or the named `runs`.

        It begins after `delay_s`, and asks at most `rate` runs per second (None: about 1,000). `why` is for the audit,
        and the reason of a pause. `timeout` is as in Run.pause, `fresh_children` as in Run.retry; `before`, `state`,
        `agent` and `model` are as in Run.fork, where `agent` is read now, once. A run that does not take the request is
        counted and named as refused. With a `request_id` a repetition returns the same job.

        Raises UsageError, and like Run.fork for an agent; nothing is stored then.
        """
        if isinstance(delay_s, bool) or not 0 <= delay_s <= MOST_DELAY_S:
            raise UsageError(f"a job begins after 0 to {MOST_DELAY_S:,.0f} seconds, not {delay_s!r:.40}")
        changes = {"before": before, "state": state, "agent": agent, "model": model}
        given = {name for name, value in changes.items() if value is not None}
        if given and action != "fork":
            raise UsageError(f"{', '.join(sorted(given))}: only a job that forks runs has these")
        with self._store.errors():
            job = random_id() if request_id is None else id_letters(f"job {self._actor.person.name} {request_id}")
            [known] = self._store.jobs.infos([job])
            if known is not None:
                return self._same(known, action)
            plan = self._plan(action, status, runs, query)
            seen = self._seen(plan)
            if not seen.count:
                raise UsageError(f"no run fits: there is nothing to {action}")
            made, spec = self._fork(seen.runs[0], changes) if action == "fork" else (None, None)
            plan = replace(
                plan,
                start_ms=plan.at_ms + round(delay_s * 1000), why=why, rate=rate, timeout_ms=pause_ms(timeout),
                fresh_children=fresh_children, fork=made, expected=seen.count, is_exact=seen.is_exact,
            )  # fmt: skip
            refuse_plan(plan)
            if self._store.jobs.unfinished() >= MOST_UNFINISHED:
                raise UsageError(f"{MOST_UNFINISHED:,} jobs are not over; stop some, or wait")
            if not self._store.jobs.add(
                job, plan, spec, entry=self._entry("submitted", job, after=_shown(plan), reason=why)
            ):
                [known] = self._store.jobs.infos([job])
                assert known is not None, "it was there"
                return self._same(known, action)
            return self._get(job)

    def get(self, job: str) -> JobInfo:
        """How far a job is."""
        with self._store.errors():
            return self._get(job)

    def page(self, limit: int = 50, *, after: str | None = None, namespace: str | None = None) -> PageOfJobs:
        """Jobs, the newest first. `namespace` as that of Client.runs: those whose runs are in it. A page with few jobs
        and a cursor says that few fit. Raises UsageError."""
        of = run_queries.one_namespace(namespace, self._settings.namespace)
        if limit < 1:
            raise UsageError(f"a page has at least one job, not {limit}")
        with self._store.errors():
            named = self._store.jobs.newest(limit, _time_of(after))
            infos = self._store.jobs.infos([job for job, _ in named])
        found = [info for info in infos if info is not None and (of is None or info.plan.namespace == of)]
        return PageOfJobs(found, str(named[-1][1]) if len(named) == limit else None)

    def refusals(self, job: str, limit: int = 200) -> list[Refusal]:
        """The runs that did not take the request of a job, and why: the first 200 of them."""
        with self._store.errors():
            self._store.jobs.get(job)
            return self._store.jobs.refusals(job, limit)

    def stop(self, job: str, why: str = "") -> JobInfo:
        """Let a job ask no more runs. What it has asked stays; one that has not begun has no effect. Safe to repeat."""
        with self._store.errors():
            for _ in range(MOST_TRIES):
                stored, now_ms = self._store.jobs.get(job), self._store.now_ms()
                progress = stopped(stored.progress, str(self._actor), why, now_ms)
                if progress == stored.progress:
                    return self._get(job)
                counts = {"done": progress.done, "refused": progress.refused}
                entry = self._entry("stopped", job, after=counts, reason=why)
                if self._store.jobs.change(stored, progress, 0 if progress.is_over else now_ms, entry=entry):
                    return self._get(job)
        raise UsageError(f"job {job!r} changes all the time; try again")

    def _get(self, job: str) -> JobInfo:
        stored = self._store.jobs.get(job)
        return JobInfo(job, stored.plan, stored.progress)

    def _same(self, known: JobInfo, action: str) -> JobInfo:
        if known.unreadable is None and known.plan.action != action:
            raise UsageError(f"this request_id belongs to the job {known.id!r}, which does something else")
        return known

    def _plan(
        self, action: str, status: Collection[str] | None, runs: Sequence[str] | None, query: Mapping[str, Any]
    ) -> JobPlan:
        """The plan without what only a submission says."""
        of, person, now_ms = checked_action(action), self._actor.person, self._store.now_ms()
        common: dict[str, Any] = {
            "action": of, "by": str(self._actor), "author": person.name, "role": person.role, "at_ms": now_ms,
            "start_ms": now_ms,
        }  # fmt: skip
        if runs is not None:
            if status is not None or set(query) - {"namespace"}:
                raise UsageError("a job has a filter, or names its runs, not both")
            if not 0 < len(runs) <= MOST_RUNS:
                raise UsageError(f"a job names 1 to {MOST_RUNS:,} runs, not {len(runs):,}; choose more by a filter")
            named = run_queries.one_namespace(query.get("namespace"), self._settings.namespace)
            return JobPlan(runs=tuple(dict.fromkeys(runs)), namespace=named or ANY_NAMESPACE, **common)
        wanted = run_queries.filter_of(
            self._store, self._settings.namespace, for_action(of, status), query, children=False  # type: ignore[arg-type]
        )  # fmt: skip
        last_ms = now_ms + 1 if wanted.before_ms is None else min(wanted.before_ms, now_ms + 1)
        return JobPlan(filter=stored_filter(replace(wanted, before_ms=last_ms)), namespace=wanted.namespace, **common)

    def _seen(self, plan: JobPlan) -> JobPreview:
        if plan.runs:
            infos = [info for info in self._store.runs.find(plan.runs) if info is not None]
            infos = [info for info in infos if plan.namespace in (ANY_NAMESPACE, info.namespace)]
            fit = [info for info in infos if info.status in STATUSES_OF[plan.action]]
            count = RunCount(len(fit))
        else:
            wanted = filter_of_stored(plan.filter)
            fit = [info for info in self._store.runs.find(self._first(wanted)) if info is not None]
            count = self._store.runs.count_found(wanted, MOST_COUNTED)
        by_status = Counter[str](info.status for info in fit)
        return JobPreview(
            plan.action, int(count), count.is_exact, tuple(info.id for info in fit[:SHOWN]), dict(by_status)
        )

    def _first(self, wanted: RunFilter) -> Sequence[str]:
        return self._store.runs.found(wanted, SHOWN).ids

    def _fork(self, first: str, changes: Mapping[str, Any]) -> tuple[JobFork, RunSpec | None]:
        """What the forks have, and what they are submitted with if their agent is named: with the definition that it
        has now. The `first` of their sources has to fit. Raises as Run.fork."""
        before, state, agent, model = (changes[name] for name in _FORK)
        spec = self._store.runs.spec(first)
        again, graph, roster = self._prepared().fork(spec, ForkChanges(state or {}, agent, model))
        if before is not None and before not in graph.nodes:
            raise UsageError(f"the graph {graph.name!r} has no node {before!r}; it has: {', '.join(graph.nodes)}")
        forks.stored_values(graph, state or {})
        kept: RunSpec | None = None
        if roster is not None:
            self._prepared().offer(roster)
            kept = again
        return JobFork(before, dict(state or {}), model, None if agent is None else str(agent)), kept

    def _entry(self, what: str, job: str, **fields: Any) -> str:
        return audit_text(f"job {what}", f"job {job}", str(self._actor), **fields)


def _shown(plan: JobPlan) -> dict[str, Any]:
    """What the audit has of a plan. The state of forks is not in it."""
    found: dict[str, Any] = {"action": plan.action, "namespace": plan.namespace, "expected": plan.expected}
    found |= {"runs": list(plan.runs[:SHOWN])} if plan.runs else {"filter": plan.filter}
    if plan.fork is not None:
        found["fork"] = {"before": plan.fork.before, "agent": plan.fork.agent, "model": plan.fork.model}
    return found


def _time_of(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (isinstance(cursor, str) and cursor.isascii() and cursor.isdecimal() and len(cursor) < 17):
        raise UsageError(f"{cursor!r:.60} is no cursor of jobs")
    return int(cursor)
