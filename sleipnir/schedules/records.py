"""What is stored of a schedule, and what people see of it. Times are milliseconds since the epoch by Redis' clock."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from sleipnir.errors import UsageError
from sleipnir.messages import VERSION, RunStatus
from sleipnir.runs.run import id_letters

if TYPE_CHECKING:
    from sleipnir.schedules.times import FireTimes

Overlap: TypeAlias = Literal["skip", "queue", "allow", "cancel"]
"""What a fire does while the run of an earlier one is not over: nothing; it waits, one at most; it starts; it starts
and cancels that run."""

OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)

Outcome: TypeAlias = Literal["started", "queued", "skipped", "missed"]
"""What became of a fire. A queued one gets another entry when it starts."""

MOST_FIRES: Final = 100
"""The entries of the log of a schedule."""

MOST_JITTER_MS: Final = 24 * 3_600_000
MOST_CATCH_UP_MS: Final = 366 * 24 * 3_600_000
MOST_REASON: Final = 500

MOST_ROWS: Final = 10_000
"""The rows of a schedule. A fire copies all of them at once, while other effects of the scheduler wait."""

MOST_ROWS_BYTES: Final = 16 * 2**20

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class ScheduledBatch:
    """What the batches of a schedule are submitted with: `rows` is the number of its rows, which are stored beside it;
    the others are as in batches.BatchPlan."""

    rows: int
    name: str
    priority: int
    parallel: int | None = None
    canary: int | None = None
    max_cost_usd: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class SchedulePlan:
    """When a schedule fires, and what a fire does: it starts a run, or a `batch` if there is one. `cron`, `every_ms`,
    `at_ms`, `tz` and `anchor_ms` are as in FireTimes. Fires that no scheduler has made for more than a minute are made
    up for if they are at most `catch_up_ms` old; None: only the last one, however old. Each fire is put off by up to
    `jitter_ms`."""

    cron: str | None = None
    every_ms: int | None = None
    at_ms: int | None = None
    tz: str = "UTC"
    anchor_ms: int = 0
    overlap: Overlap = "skip"
    catch_up_ms: int | None = None
    jitter_ms: int = 0
    batch: ScheduledBatch | None = None
    v: int = VERSION

    @property
    def work(self) -> str:
        """What a fire starts."""
        return "run" if self.batch is None else "batch"

    @property
    def timing(self) -> FireTimes:
        from sleipnir.schedules.times import FireTimes

        return FireTimes(self.cron, self.every_ms, self.at_ms, self.tz, self.anchor_ms)


@dataclass(frozen=True)
class SchedulePause:
    """Who has paused a schedule, when and why."""

    by: str
    at_ms: int
    reason: str = ""


@dataclass(frozen=True)
class ScheduleProgress:
    """Where a schedule is. All times up to `cursor_ms` are decided; `next_ms` is the next one, None: there is none.
    `waiting_ms` is the fire that waits for the end of the run `last_run`, which that of `last_ms` has started. `fires`,
    `skipped` and `missed` count fires that have started runs, that the overlap policy left out, and times that came
    while nothing fired, as far as they are counted (once for a series)."""

    cursor_ms: int
    next_ms: int | None
    waiting_ms: int | None = None
    last_run: str | None = None
    last_ms: int | None = None
    fires: int = 0
    skipped: int = 0
    missed: int = 0
    paused: SchedulePause | None = None
    v: int = VERSION


@dataclass(frozen=True)
class Fire:
    """An entry of the log of a schedule: the fire of the time `at_ms`, which was decided at `made_ms`. `run` is the run
    (or batch) that it has started, `why` why it has not, or who has made it. `missed` is a series of times from `at_ms`
    on."""

    at_ms: int
    made_ms: int
    outcome: Outcome
    run: str | None = None
    why: str | None = None
    v: int = VERSION


@dataclass(frozen=True)
class ScheduleOrigin:
    """Who has added a schedule and changed it last. `token` distinguishes schedules that had the same name one after
    the other."""

    token: str
    by: str
    at_ms: int
    edited_by: str | None = None
    edited_ms: int | None = None
    v: int = VERSION


@dataclass(frozen=True)
class ScheduleInputs:
    """What the runs were asked to begin with, for `edit`: the initial state is computed from it. `given` are the state
    keys that the caller gave, which shared values do not replace."""

    prompt: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    v: int = VERSION


@dataclass(frozen=True)
class ScheduledRun:
    """A run of a schedule, and its status; None: it has not begun, or has expired. For a schedule of batches it is a
    batch, and `batch` is its state."""

    id: str
    at_ms: int
    status: RunStatus | None
    batch: str | None = None


@dataclass(frozen=True)
class ScheduleInfo:
    """One schedule. `state` is `active`, `paused` or `over` (it never fires again); `unreadable`: why this release
    cannot read its records, then little more than its name is known. `next` are its next times, without jitter.
    `namespace` is that of its runs; None: it is not known."""

    name: str
    state: Literal["active", "paused", "over", "unreadable"]
    agent: str = ""
    plan: SchedulePlan = SchedulePlan()
    progress: ScheduleProgress = ScheduleProgress(0, None)
    origin: ScheduleOrigin = ScheduleOrigin("", "", 0)
    next: tuple[int, ...] = ()
    unreadable: str | None = None
    namespace: str | None = None


def checked_name(name: str) -> str:
    """Raises UsageError for what is no name of a schedule."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{name!r:.80} cannot name a schedule: up to 64 letters, digits, '.', '_' and '-' can")
    return name


def checked_plan(plan: SchedulePlan, now_ms: int) -> SchedulePlan:
    """Raises UsageError for a plan that is wrong, or that never fires."""
    from sleipnir.schedules.times import checked

    checked(plan.timing, now_ms)
    if plan.overlap not in OVERLAPS:
        raise UsageError(f"the overlap policy is one of {', '.join(OVERLAPS)}, not {plan.overlap!r:.60}")
    if not 0 <= plan.jitter_ms <= MOST_JITTER_MS:
        raise UsageError("the jitter of a schedule is at most a day")
    if plan.catch_up_ms is not None and not 0 <= plan.catch_up_ms <= MOST_CATCH_UP_MS:
        raise UsageError("the catch-up window of a schedule is at most 366 days")
    return plan


def fire_run_id(name: str, token: str, at_ms: int) -> str:
    """The id of the run, or the batch, of a fire: a repeated fire starts no second one."""
    return id_letters(json.dumps(["fire", name, token, at_ms]))


def manual_run_id(name: str, token: str, request: str) -> str:
    """The id of the run, or the batch, that a person's request has started."""
    return id_letters(json.dumps(["run now", name, token, request]))


def jitter_of(name: str, plan: SchedulePlan, at_ms: int) -> int:
    """By how much a fire is put off: the same whenever it is computed."""
    if not plan.jitter_ms:
        return 0
    digest = hashlib.sha256(f"{name}\n{at_ms}".encode()).digest()
    return int.from_bytes(digest[:8]) % (plan.jitter_ms + 1)


def due_ms(name: str, plan: SchedulePlan, at_ms: int) -> int:
    """When the fire of a time is made."""
    return at_ms + jitter_of(name, plan, at_ms)
