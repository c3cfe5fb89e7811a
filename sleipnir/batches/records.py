"""Batches: many runs of one agent that were submitted together. The stored record of a batch, and its meaning.

A row waits in its batch, where it takes a few hundred bytes, until the scheduler admits it: then it is a run like any
other. Rows are admitted in order, retried ones after all others. All types are values: this module uses neither Redis
nor a clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from sleipnir.errors import UsageError
from sleipnir.graph.plain import compact_json
from sleipnir.messages import Usage
from sleipnir.runs.actor import Change
from sleipnir.runs.budgets import Budget, BudgetUse, check_budget
from sleipnir.runs.run import id_letters

PRIORITIES: Final = range(1, 6)
"""A batch of this priority gets so many rows for each row of a batch with priority 1, while both have rows."""

DEFAULT_PRIORITY: Final = 3

DEFAULT_PARALLEL: Final = 1_000
"""Default maximum of simultaneously active rows of a batch, including rows that wait for people."""

RowState: TypeAlias = Literal["waiting", "active", "completed", "failed", "cancelled"]

ROW_STATES: Final[Mapping[str, RowState]] = {
    "w": "waiting", "a": "active", "c": "completed", "f": "failed", "x": "cancelled",
}  # fmt: skip
"""By the byte of the state in the batch's states. `active` rows are unfinished runs."""

BatchState: TypeAlias = Literal[
    "accepting", "running", "paused", "canary", "over_budget", "cancelling", "cancelled", "done", "unreadable"
]
"""accepting   takes more rows; those that it has are admitted already
running     has rows that are not over
paused      a person holds it: no row is admitted, those under way go on
canary      its first rows are over, and a person has to say whether the others shall follow
over_budget has cost as much as it may; a person has to say whether it may cost more
cancelling  admits nothing any more, and waits for the ends of rows that are under way
cancelled   was cancelled
done        all of its rows are over
unreadable  its record is damaged or of a newer release: no row is admitted until it can be read
"""


@dataclass(frozen=True)
class BatchFork:
    """Where the rows of a batch of forks begin: each goes on from the run of a row of the batch `batch`, after its step
    `at`, or before the last visit of the node `before`; neither: at the last checkpoint that leads anywhere. As in
    run.Fork, `state` are the keys that have other values, `agent` and `model` what was given in place of its own.
    `nodes` are the overrides and patches of the forks, if any were given (graph/node_overrides.py)."""

    batch: str
    at: int | None = None
    before: str | None = None
    state: tuple[str, ...] = ()
    agent: str | None = None
    model: str | None = None
    nodes: Mapping[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class BatchPlan:
    """How the rows of a batch are run. None: no limit, except DEFAULT_PARALLEL for `parallel`.

    `canary` rows run first, then a person is asked. `max_tokens` counts tokens of prompts and answers. `fork`: its rows
    are forks.
    """

    name: str = ""
    priority: int = DEFAULT_PRIORITY
    parallel: int | None = None
    canary: int | None = None
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    fork: BatchFork | None = None


def check_plan(plan: BatchPlan) -> None:
    """Raises UsageError for an invalid plan."""
    if plan.priority not in PRIORITIES:
        raise UsageError(f"priority must be {PRIORITIES[0]} to {PRIORITIES[-1]}, not {plan.priority}")
    check_budget(plan.max_cost_usd, plan.max_tokens)
    for name in ("parallel", "canary"):
        if (value := getattr(plan, name)) is not None and value <= 0:
            raise UsageError(f"{name} must be more than 0, not {value}")


@dataclass(frozen=True)
class BatchInfo:
    """One batch. Times are milliseconds since the epoch by Redis' clock; `now_ms` is when this was read. `started_ms`
    is when its first row was admitted; `usage` is that of ended rows; `changes` are the changes by people, in order of
    time."""

    id: str
    agent: str
    state: BatchState
    created_ms: int
    now_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    total: int = 0
    waiting: int = 0
    active: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    plan: BatchPlan = field(default_factory=BatchPlan)
    usage: Usage = field(default_factory=Usage)
    unreadable: str | None = None
    """Why its record cannot be read. All other fields are then unknown."""
    failed_visits: int = 0
    """Failed visits of the runs of ended rows."""
    changes: tuple[Change, ...] = ()
    namespace: str = "default"
    tags: Mapping[str, str] = field(default_factory=dict)
    """Of all its runs."""

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def ended(self) -> int:
        """Ended rows."""
        return self.completed + self.failed + self.cancelled

    @property
    def is_over(self) -> bool:
        """Whether the batch changes no more without a request."""
        return self.state in ("cancelled", "done")

    @property
    def question(self) -> str | None:
        """The decision that it waits for."""
        match self.state:
            case "canary":
                return f"{self.ended} rows are over, {self.failed} of them failed. Continue with {self.waiting} more?"
            case "over_budget":
                return f"It has used {_spent(self.usage)}, as much as it may. Continue?"
        return None

    @property
    def rate_per_s(self) -> float | None:
        """Rows that ended per second since the first one was admitted. None: not known yet."""
        run, took_ms = self.completed + self.failed, (self.ended_ms or self.now_ms) - (self.started_ms or self.now_ms)
        return run * 1000 / took_ms if run and took_ms > 0 else None

    @property
    def eta_s(self) -> float | None:
        """The remaining time at this rate. None: not known."""
        rate = self.rate_per_s
        return (self.waiting + self.active) / rate if rate and self.state in ("running", "accepting") else None

    @property
    def forecast_usd(self) -> float | None:
        """The estimated cost of all rows, from the ended ones. None: not known."""
        run = self.completed + self.failed
        cost = self.usage.cost_usd
        return cost / run * (run + self.waiting + self.active) if run and cost is not None else None


@dataclass(frozen=True)
class RowResult:
    """The result of a row. `row` counts from 0, `key` is the submitter's key; `node` is where a failed row stopped.
    `position` is where reading continues after this result."""

    row: int
    key: str
    run: str
    status: RowState
    position: int
    output: str | None = None
    error: str | None = None
    node: str | None = None


@dataclass(frozen=True)
class ErrorGroup:
    """Rows that failed at the same node with the same message. `keys` are those of the first rows."""

    node: str | None
    message: str
    count: int
    keys: tuple[str, ...]
    runs: tuple[str, ...]


def row_run_id(batch: str, row: int) -> str:
    """The id of the run of a row: always the same, so that it cannot be started twice."""
    return id_letters(f"batch/{batch}/{row}")


def request_run_id(request_id: str, number: int) -> str:
    """The id of the run of a caller's request; `number` counts the ids that it may have."""
    return id_letters(json.dumps(["request", request_id, number]))


def submission_id(agent: str, *what: str) -> str:
    """The id of a batch, derived from its submission: the same submission again is the same batch."""
    return id_letters(json.dumps(["submission", agent, *what]))


def row_digest(text: str) -> str:
    """A digest that distinguishes the contents of rows with the same key."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def row_text(prompt: str, state: Mapping[str, Any]) -> str:
    """A waiting row as JSON. Raises ValueError and TypeError for values that JSON cannot represent."""
    fields: dict[str, Any] = {"p": prompt}
    if state:
        fields["s"] = state
    return compact_json(fields, allow_nan=False)


def fork_text(source: str) -> str:
    """A waiting row that is to be a fork of the run `source`, as JSON."""
    return compact_json({"fork": source})


def source_of(text: str) -> str:
    """The run that a row is to be a fork of."""
    return str(json.loads(text)["fork"])


def row_of(text: str) -> tuple[str, dict[str, Any]]:
    """The prompt of a row, and its initial state."""
    fields = json.loads(text)
    return fields["p"], fields.get("s", {})


def place_of(batch: str, row: int) -> str:
    """The text with which a run names its row."""
    return f"{batch}/{row}"


def parse_place(text: str) -> tuple[str, int]:
    batch, _, row = text.partition("/")
    return batch, int(row)


@dataclass(frozen=True)
class BatchCounts:
    """The counts and flags of a batch. `admitted` rows were active at least once, `cost_usd` is their known cost;
    `sealed`: no more rows will be added; `has_work`: a cancel or a retry of many rows is in progress."""

    waiting: int = 0
    active: int = 0
    admitted: int = 0
    sealed: bool = False
    paused: bool = False
    cancelling: bool = False
    tokens: int = 0
    cost_usd: float = 0.0
    has_work: bool = False


def state_of(kept: BatchCounts, plan: BatchPlan) -> BatchState:
    """The state that follows from the counts."""
    if kept.cancelling:
        return "cancelling" if kept.active or kept.waiting else "cancelled"
    if kept.sealed and not (kept.waiting or kept.active or kept.has_work):
        return "done"
    if kept.paused:
        return "paused"
    if kept.waiting and is_over_budget(kept, plan):
        return "over_budget"
    if kept.waiting and not kept.active and plan.canary and kept.admitted >= plan.canary:
        return "canary"
    return "running" if kept.sealed else "accepting"


def may_admit(kept: BatchCounts, plan: BatchPlan) -> int:
    """How many more rows may be active now by the limits of the batch itself."""
    if state_of(kept, plan) not in ("running", "accepting"):
        return 0
    most = min(kept.waiting, (plan.parallel or DEFAULT_PARALLEL) - kept.active)
    if plan.canary:
        most = min(most, plan.canary - kept.admitted)
    return max(most, 0)


def is_over_budget(kept: BatchCounts, plan: BatchPlan) -> bool:
    return Budget(plan.max_cost_usd, plan.max_tokens).is_used_up(BudgetUse(kept.tokens, kept.cost_usd))


def _spent(usage: Usage) -> str:
    tokens = f"{usage.input_tokens + usage.output_tokens:,} tokens"
    return tokens if usage.cost_usd is None else f"${usage.cost_usd:.2f} and {tokens}"
