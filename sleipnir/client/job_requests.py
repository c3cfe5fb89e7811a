"""What a job asks of a piece of its runs. Schedulers call this; each call may be repeated.

The runs of a piece are chosen first and stored, then the requests are sent: each has a token that follows from the job
and the run, and the id of a fork does too. So a piece that is sent again, after a death, changes nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from sleipnir.client import forks
from sleipnir.client.forked_spec import in_the_place_of
from sleipnir.client.mass_requests import OF_PERSONS
from sleipnir.client.options import ForkChanges
from sleipnir.client.pinned_graph import pinned_graph
from sleipnir.errors import RecordUnreadable, RunNotFound, SleipnirError, StoreUnavailable
from sleipnir.jobs.records import (
    FORK_PAGE,
    PAGE,
    STATUSES_OF,
    JobFork,
    JobPlan,
    JobTarget,
    Refusal,
    filter_of,
    fork_name,
    request_of,
)
from sleipnir.messages import FINAL
from sleipnir.runs.actor import Person
from sleipnir.runs.run_filters import ANY_NAMESPACE, ListPosition
from sleipnir.store.runs.requests import TOLD_BEFORE

if TYPE_CHECKING:
    from sleipnir.graph.model import Graph
    from sleipnir.runs.run import RunSpec
    from sleipnir.runs.views import RunInfo
    from sleipnir.settings import Settings
    from sleipnir.store.jobs import StoredJob
    from sleipnir.store.store import Store

MOST_WHY = 500
"""Characters of the reason of a refusal."""


@dataclass(frozen=True)
class JobPiece:
    """The next runs of a job. `after` is the cursor behind them; None: there are no more. `left` runs of them need no
    request, and `refusals` says which named runs cannot get it; `looked` runs were looked at."""

    targets: tuple[JobTarget, ...]
    after: str | None
    looked: int
    left: int = 0
    refusals: tuple[Refusal, ...] = ()


def piece_size(plan: JobPlan) -> int:
    """How many runs a piece has: no more than the rate allows in a second."""
    most = FORK_PAGE if plan.action == "fork" else PAGE
    return most if plan.rate is None else max(1, min(most, int(plan.rate)))


def next_piece(store: Store, plan: JobPlan, after: str) -> JobPiece:
    """The runs that a job asks next, behind the cursor of the piece before ('': the first ones)."""
    size = piece_size(plan)
    if plan.runs:
        at = int(after or 0)
        names = plan.runs[at : at + size]
        end = at + len(names)
        cursor = None if end >= len(plan.runs) else str(end)
        infos = store.runs.find(names)
        found = {info.id: info for info in infos if info is not None and _is_of(info, plan.namespace)}
        gone = tuple(Refusal(run, "there is no such run") for run in names if run not in found)
        return _chosen(plan, list(found.values()), cursor, len(names), gone)
    page = store.runs.found(filter_of(plan.filter), size, ListPosition.of(after) if after else None)
    infos = [info for info in store.runs.find(page.ids) if info is not None]
    return _chosen(plan, infos, None if page.after is None else page.after.cursor, page.looked, ())


def _is_of(info: RunInfo, namespace: str) -> bool:
    return namespace in (ANY_NAMESPACE, info.namespace)


def _chosen(
    plan: JobPlan, infos: Sequence[RunInfo | None], after: str | None, looked: int, gone: tuple[Refusal, ...]
) -> JobPiece:
    targets, refusals, left = [], list(gone), 0
    for info in infos:
        if info is None:
            continue
        if info.status not in STATUSES_OF[plan.action]:
            if plan.runs:
                refusals.append(Refusal(info.id, f"it is {info.status}"))
            else:
                left += 1  # it has gone on since its card was read
        elif plan.action == "resume" and not any(hold.owner in OF_PERSONS for hold in info.holds):
            left += 1
        else:
            targets.append(JobTarget(info.id, info.stopped_ms))
    return JobPiece(tuple(targets), after, looked, left, tuple(refusals))


class JobRequests:
    """Sends the requests of a piece."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings

    def send(self, job: StoredJob) -> list[Refusal]:
        """Send those of the page of a job. Returns the refusals; the other runs have taken the request, now or
        before. Raises StoreUnavailable."""
        plan = job.plan
        acting = self._store.acting_as(plan.by, Person(plan.author, plan.role))
        if plan.action == "fork":
            return [each for each in (self._fork(acting, job, target.run) for target in job.progress.page) if each]
        try:
            return self._steer(acting, job, job.progress.page)
        except RecordUnreadable:
            return [each for target in job.progress.page for each in self._steer_one(acting, job, target)]

    def _steer(self, acting: Store, job: StoredJob, targets: Sequence[JobTarget]) -> list[Refusal]:
        plan = job.plan
        replies = acting.runs.steer_once(
            plan.action,
            [(target.run, request_of(job.id, target.run), target.seen_ms) for target in targets],
            reason=plan.why,
            timeout_ms=plan.timeout_ms,
            fresh_children=plan.fresh_children,
        )
        found = ((target.run, _refused(plan, reply)) for target, reply in zip(targets, replies, strict=True))
        return [Refusal(run, why) for run, why in found if why is not None]

    def _steer_one(self, acting: Store, job: StoredJob, target: JobTarget) -> list[Refusal]:
        try:
            return self._steer(acting, job, [target])
        except RecordUnreadable as error:
            return [Refusal(target.run, str(error)[:MOST_WHY])]

    def _fork(self, acting: Store, job: StoredJob, source: str) -> Refusal | None:
        try:
            self._submit_fork(acting, job, source)
        except StoreUnavailable:
            raise
        except RunNotFound:
            return Refusal(source, "there is no such run")
        except SleipnirError as error:
            return Refusal(source, str(error)[:MOST_WHY])
        return None

    def _submit_fork(self, acting: Store, job: StoredJob, source: str) -> None:
        run_id = self._fork_id(job.id, source)
        if acting.runs.find([run_id])[0] is not None:
            return  # made before this scheduler took the job over
        spec = acting.runs.spec(source)
        forks.refuse_kind(f"run {source!r}", spec)
        made = job.plan.fork or JobFork()
        again, graph = self._again(acting, spec, made, job.spec)
        values = forks.stored_values(graph, made.state)
        wanted = forks.WantedFork(source, None, made.before, values, made.agent, made.model)
        again = again.of_author(job.plan.author)
        forks.submit(acting.runs, wanted, spec, again, graph, run_id, graph_of=partial(pinned_graph, acting))

    def _again(self, acting: Store, spec: RunSpec, made: JobFork, named: RunSpec | None) -> tuple[RunSpec, Graph]:
        """What the fork of a run with this spec is submitted with, and its graph. `named` is the spec of the job."""
        from sleipnir.client.preparation import Preparation

        if named is None:
            again, graph, _ = Preparation(self._settings, acting).fork(spec, ForkChanges(model=made.model))
            return again, graph
        own = {name: value for name, value in spec.variables.items() if name in named.variables}
        now = replace(named, variables={**named.variables, **own}, strict=spec.strict, user=spec.user)
        again = in_the_place_of(spec, now)
        return again, pinned_graph(acting, again)

    def _fork_id(self, job: str, source: str) -> str:
        keys = self._store.keys
        partition, number = keys.partition_of(source), 0
        while keys.partition_of(run_id := fork_name(job, source, number)) != partition:
            number += 1
        return run_id


def _refused(plan: JobPlan, reply: str | None) -> str | None:
    """Why a run has not taken a request; None: it has."""
    match reply:
        case None:
            return "there is no such run"
        case "retrying":
            return "it is already being retried"
        case "left":
            return "its session or thread has continued without it"
    takes = reply == "failed" if plan.action == "retry" else reply not in FINAL
    return None if takes or reply == TOLD_BEFORE else f"it is {reply}"
