"""What is stored of a job, and what people see of it. Times are milliseconds since the epoch by Redis' clock."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from sleipnir.errors import UsageError
from sleipnir.messages import FINAL, STATUSES, VERSION
from sleipnir.runs.run import id_letters
from sleipnir.runs.run_filters import RunFilter

JobAction: TypeAlias = Literal["cancel", "pause", "resume", "retry", "fork"]
JobState: TypeAlias = Literal["waiting", "running", "stopping", "done", "stopped"]
"""`waiting` until its start, `stopping` until the requests to a last page of runs are accounted for."""

ACTIONS: Final[tuple[JobAction, ...]] = get_args(JobAction)
DELAY_S: Final = 10.0
"""So long a job waits before it begins: meanwhile it can be stopped without any effect."""
MOST_DELAY_S: Final = 24 * 3600.0
MOST_RUNS: Final = 1_000
"""Runs that a job can name. More are chosen by a filter."""
MOST_RATE: Final = 1_000
"""Requests per second of a job, also without a rate."""
MOST_REFUSALS: Final = 200
"""Refusals that are kept of a job, the first ones; all are counted."""
MOST_WHY: Final = 1_000
MOST_STATE: Final = 256 * 1024
"""Bytes of the values that the forks of a job begin with."""
PAGE: Final = 100
"""Runs of one piece: requests to them share a round trip."""
FORK_PAGE: Final = 20
"""The same of forks: each reads the journal of its source."""

STATUSES_OF: Final[Mapping[JobAction, frozenset[str]]] = {
    "cancel": STATUSES - FINAL,
    "pause": STATUSES - FINAL - {"paused"},
    "resume": frozenset({"paused"}),
    "retry": frozenset({"failed"}),
    "fork": STATUSES,
}
"""The statuses of the runs that an action is for."""

_SETS: Final = ("statuses", "reasons", "agents")


@dataclass(frozen=True)
class JobFork:
    """What the forks of a job have in the place of what their sources have. `agent` is the name of the definition that
    all of them have, as it was when the job was submitted; None: each has that of its source. The rest is as in
    Run.fork."""

    before: str | None = None
    state: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    agent: str | None = None


@dataclass(frozen=True)
class JobPlan:
    """What a job does: `action`, to `runs`, or to those that fit `filter` (stored_filter) and were submitted before the
    job. `by` is the actor as text, `author` the person; `why` their reason. `expected` runs fitted when it was
    submitted; `is_exact` False: at least that many. `rate` bounds the requests per second; None: MOST_RATE does.
    `timeout_ms` is the deadline of a pause, `fresh_children` is as in Run.retry."""

    action: JobAction
    namespace: str
    by: str
    at_ms: int
    start_ms: int
    filter: dict[str, Any] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    author: str = ""
    role: str | None = None
    why: str = ""
    expected: int = 0
    is_exact: bool = True
    rate: float | None = None
    timeout_ms: int | None = None
    fresh_children: bool = False
    fork: JobFork | None = None
    v: int = VERSION


@dataclass(frozen=True)
class JobTarget:
    """A run that a request of the job is for. `seen_ms`: the last breakpoint that it had stopped at."""

    run: str
    seen_ms: int = 0


@dataclass(frozen=True)
class JobProgress:
    """How far a job is. `page` are the runs whose requests are being sent: after the death of a scheduler they are sent
    again, and a run knows the request. `after` is the cursor behind them; None: they are the last ones. `done` runs got
    the request, `refused` ones did not take it, and `left` ones did not need it."""

    state: JobState = "waiting"
    page: tuple[JobTarget, ...] = ()
    after: str | None = ""
    looked: int = 0
    done: int = 0
    left: int = 0
    refused: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    stopped_by: str | None = None
    stopped_why: str = ""
    v: int = VERSION

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "stopped")


@dataclass(frozen=True)
class Refusal:
    """A run that did not take the request of a job, and why."""

    run: str
    why: str
    v: int = VERSION


@dataclass(frozen=True)
class JobInfo:
    """One job. `unreadable`: why this release cannot read its records; then little more than its id is known."""

    id: str
    plan: JobPlan
    progress: JobProgress
    unreadable: str | None = None

    @property
    def is_over(self) -> bool:
        return self.progress.is_over


@dataclass(frozen=True)
class JobPreview:
    """What a job would do now: to how many runs, which are the first of them, and how many have each status (of the
    runs that were looked at). `is_exact` False: at least so many."""

    action: JobAction
    count: int
    is_exact: bool
    runs: tuple[str, ...] = ()
    by_status: Mapping[str, int] = field(default_factory=dict)


def checked_action(action: str) -> JobAction:
    """Raises UsageError for what is no action."""
    if action not in ACTIONS:
        raise UsageError(f"{action!r:.60} is no action of a job; there are {', '.join(ACTIONS)}")
    return action


def refuse_plan(plan: JobPlan) -> None:
    """Raises UsageError for what no job does."""
    if plan.rate is not None and not 0 < plan.rate <= MOST_RATE:
        raise UsageError(f"the rate of a job is a number of runs per second, up to {MOST_RATE:,}, not {plan.rate:g}")
    if len(plan.why) > MOST_WHY:
        raise UsageError(f"the reason of a job has at most {MOST_WHY:,} characters")
    if len(plan.runs) > MOST_RUNS:
        raise UsageError(f"a job names at most {MOST_RUNS:,} runs; choose more by a filter")
    if plan.timeout_ms is not None and plan.action != "pause":
        raise UsageError("a timeout is for a job that pauses runs")
    if plan.fresh_children and plan.action != "retry":
        raise UsageError("fresh_children is for a job that retries runs")
    if plan.fork is not None and len(json.dumps(plan.fork.state)) > MOST_STATE:
        raise UsageError(f"the state that the forks of a job begin with has at most {MOST_STATE // 1024:,} KiB")


def for_action(action: JobAction, statuses: Collection[str] | None) -> frozenset[str]:
    """The wanted statuses that the action is for. Raises UsageError if there are none."""
    wanted = STATUSES_OF[action] & frozenset(statuses or STATUSES)
    if not wanted:
        of = ", ".join(sorted(STATUSES_OF[action]))
        raise UsageError(f"no run of these statuses can {action}; it is for those that are {of}")
    return wanted


def stored_filter(wanted: RunFilter) -> dict[str, Any]:
    """The stored form of a filter."""
    fields = {name: value for name, value in vars(wanted).items() if value not in (None, frozenset(), {})}
    return {name: sorted(value) if name in _SETS else value for name, value in fields.items()}


def filter_of(stored: Mapping[str, Any]) -> RunFilter:
    """The filter of its stored form, without what a newer release has added. Raises UsageError."""
    known: dict[str, Any] = {name: value for name, value in stored.items() if name in RunFilter.__dataclass_fields__}
    known.update({name: frozenset(known[name]) for name in _SETS if name in known})
    return RunFilter(**known)


def request_of(job: str, run: str) -> str:
    """The token of a job's request to a run: a run takes it once."""
    return id_letters(json.dumps(["job", job, run]))


def fork_name(job: str, run: str, number: int) -> str:
    """An id for the fork that a job makes of a run: the first of them that is in the right partition is taken."""
    return id_letters(json.dumps(["fork of a job", job, run, number]))


def stopped(progress: JobProgress, by: str, why: str, now_ms: int) -> JobProgress:
    """The progress of a job that a person stops. What was done stays done."""
    if progress.state not in ("waiting", "running"):
        return progress
    after = replace(progress, stopped_by=by, stopped_why=why)
    if progress.page:
        return replace(after, state="stopping")
    return replace(after, state="stopped", ended_ms=now_ms, after=None)
