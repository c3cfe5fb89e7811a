"""A run, as the planner sees it and the store keeps it: its submission, its questions, its holds.

visits.py has its visits. Events (events.py) happen to it, and transitions (transitions.py) change it. All are values:
the store reads and writes them, and the scheduler's planner decides with them. This module does not use Redis or a
clock.
"""

from __future__ import annotations

import binascii
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar

from sleipnir.decoding import read
from sleipnir.messages import FINAL, MOST_KEYS, VERSION, RunStatus
from sleipnir.runs.budgets import NOTHING_SPENT, Budget, BudgetUse
from sleipnir.runs.visits import Child, Rank, Visit


@dataclass(frozen=True)
class Checkpoint:
    """A run after its journal step `step`: the `nodes` that its next super-step opens, in order (a node before which a
    join fires may be there twice); and as in RunView `counts`, `steps`, `arrived` and `deferred` before that.
    `commands` of the visits to open have values of their own."""

    step: int
    nodes: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    arrived: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deferred: Mapping[str, int] = field(default_factory=dict)
    commands: int = 0


@dataclass(frozen=True)
class Fork:
    """Where a fork begins: after `checkpoint` of its source, the run `run`."""

    run: str
    checkpoint: Checkpoint


@dataclass(frozen=True)
class RunSpec:
    """The submission of a run; it never changes. Paths are text: they may belong to another machine.

    `agents` are the bundles of all agents that it and its children may start, by name, as they were when the run at the
    top was submitted. A child run has a `parent`, whose visit `parent_seq` in its attempt `parent_attempt` waits for
    it; `root` is the run at the top, `depth` the number of runs above it, `path` the nodes that lead from the root to
    it. `overrides` are the overrides of agents from the environment of the submitter, by agent (graph/overrides.py).
    `presets` are the variables that the environment gives to agents that the run may start, `sessions` the names of the
    sessions that these agents use. `knowledge` are the digests of the knowledge bases that nodes of all these agents
    search, by `agent/node`, as of the submission. `max_cost_usd` and `max_tokens` limit what it and all runs below may
    use before it asks a person; child runs have no budget of their own. `descriptions` describe in one line each agent
    that a model may start, by name. A `strict` run fails for every failed visit. `caller_marks` identify the directory
    `caller_dir` on other machines (local/same_directory.py); empty: an earlier release submitted the run. `by_version`:
    `version:` chooses the language of its graph. False: an earlier release submitted the run; it derived the language
    from the keys of the graph (Graph.of_earlier_release). `config` and `context` are what nodes of a graph written in
    Python get under these names (python_graph/run_config.py, objects.stored_context). `fork`: it goes on from a
    checkpoint of another run.
    """

    agent: str
    bundle: str
    variables: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    caller_dir: str | None = None
    session: str | None = None
    agents: dict[str, str] = field(default_factory=dict)
    parent: str | None = None
    parent_seq: int = 0
    parent_attempt: int = 1
    root: str | None = None
    depth: int = 0
    path: list[str] = field(default_factory=list)
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    presets: dict[str, dict[str, str]] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)
    knowledge: dict[str, str] = field(default_factory=dict)
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    caller_marks: str = ""
    descriptions: dict[str, str] = field(default_factory=dict)
    strict: bool = False
    by_version: bool = False
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] | None = None
    fork: Fork | None = None
    v: int = VERSION

    @property
    def budget(self) -> Budget | None:
        """The budget that it starts with. None: no limit."""
        if self.max_cost_usd is None and self.max_tokens is None:
            return None
        return Budget(self.max_cost_usd, self.max_tokens)

    def base_of(self, node: str) -> str | None:
        """The digest of the knowledge base of a node of this run; None: it has none."""
        return self.knowledge.get(f"{self.agent}/{node}")


ID_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""The letters of run ids. Crockford's alphabet: no two letters look alike."""

ID_LENGTH: Final = 12


def child_id(parent: str, seq: int, session: str | None = None) -> str:
    """The id of the run that a visit starts: always the same, so that it starts only once. With the name of a session
    (as SessionName is written) the id has the CRC16 of that name, so that the run is in the session's partition, for
    any number of partitions."""
    first = _letters(f"{parent}/{seq}", ID_LENGTH)
    if session is None:
        return first
    for attempt in itertools.count():  # the first one fits, except for one in millions
        head = _letters(f"{parent}/{seq}/{attempt}", ID_LENGTH - 4)
        if (tail := _tail(head, binascii.crc_hqx(session.encode(), 0))) is not None:
            return head + tail
    raise AssertionError("count() does not end")


_PAIRS: Final = tuple(map(bytes, itertools.product(ID_ALPHABET.encode(), repeat=2)))
_LAST: Final = {binascii.crc_hqx(pair, 0): pair for pair in _PAIRS}


def _tail(head: str, crc: int) -> str | None:
    """Four letters that give `head` this CRC16. Their contribution is the exclusive or of the contributions of both
    pairs, so the last pair is a lookup."""
    so_far = binascii.crc_hqx(head.encode(), 0)
    for pair in _PAIRS:
        last = _LAST.get(crc ^ binascii.crc_hqx(pair + b"\0\0", so_far))
        if last is not None:
            return (pair + last).decode()
    return None


def _letters(text: str, count: int) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest())
    return "".join(ID_ALPHABET[number >> 5 * place & 31] for place in range(count))


def agent_id(run: str, agent: str) -> str:
    """The name that models use for an agent whose run is `run`."""
    return f"agent_{agent}_{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def question_id(run: str, seq: int) -> str:
    """The name that models use for the question that the visit `seq` of a child run asks."""
    return f"esc_{hashlib.sha256(f'{run}/{seq}'.encode()).hexdigest()[:8]}"


K = TypeVar("K")


def from_fields(kind: type[K], data: Any) -> K:
    """An instance from a stored object, possibly one of another release. Raises RecordUnreadable."""
    return read(kind, data)


def changed(value: K, **fields: Any) -> K:
    """A copy with other fields, ten times as fast as dataclasses.replace, which calls __init__."""
    new = object.__new__(type(value))
    new.__dict__.update(value.__dict__, **fields)
    return new


@dataclass(frozen=True)
class Gate:
    """An open question to a person; belongs to the visit `seq`, and to its `attempt`. An interrupt of a node's code is
    named by its `key`; it shows `payload`, and its answer is JSON that must match `schema`. It expires at `due_ms`."""

    seq: int
    node: str
    kind: str
    question: str
    options: tuple[str, ...] = ()
    default: str | None = None
    opened_ms: int = 0
    attempt: int = 1
    key: str | None = None
    payload: Any = None
    schema: Any = None
    due_ms: int | None = None
    v: int = VERSION


HoldOwner: TypeAlias = Literal["person", "parent", ""]
"""The owner of a hold: a person, or the parent run, which is held itself. Empty: a hold of a release that did not
distinguish owners; any resume ends it."""


@dataclass(frozen=True)
class Hold:
    """Who holds a run, or a whole deployment, and since when. Work that has started ends and is committed; nothing new
    starts. A run has at most one hold of each owner, and goes on when it has none."""

    by: str
    at_ms: int
    reason: str | None = None
    owner: HoldOwner = ""
    v: int = VERSION

    def ends_with(self, owner: HoldOwner) -> bool:
        """Whether it ends when `owner` resumes the run."""
        return owner in ("", self.owner) or self.owner == ""


@dataclass(frozen=True)
class Parked:
    """A run that is set aside, because a scheduler cannot read or plan part of it. Its inbox entries stay, in order. It
    goes on when a scheduler applies one. `by` is the scheduler that set it aside at `at_ms`, `release` its release,
    `entry` the first inbox entry that waits."""

    reason: str
    at_ms: int
    by: str = ""
    release: str = ""
    entry: str = ""
    v: int = VERSION


@dataclass(frozen=True)
class Slot:
    """The slot of its agent that a run has, or (not `granted`) waits for: at most `limit` runs with this `key` go on at
    once. `ticket` distinguishes it from the slots that the run had before a retry. A run that asked `again`, because it
    was retried, goes on from where it failed; `fresh_children` and `by` are as in events.Retried."""

    key: str
    limit: int
    ticket: int
    granted: bool = False
    again: bool = False
    fresh_children: bool = False
    by: str = ""
    v: int = VERSION


@dataclass(frozen=True)
class Timing:
    """The durations of the ended visits of one node."""

    visits: int = 0
    total_ms: int = 0
    max_ms: int = 0

    def plus(self, took_ms: int) -> Timing:
        return Timing(self.visits + 1, self.total_ms + took_ms, max(self.max_ms, took_ms))


FEW_FAILED = 5
"""The number of failed visits whose errors the record of a run keeps."""

ERROR_LENGTH = 300
"""Characters of an error that a run's record keeps; the journal has all of it."""


@dataclass(frozen=True)
class FailedVisit:
    """One failed visit. `ends_run`: the run failed because of it. `run` is the child run, at any depth, that the visit
    belongs to; `node` is then a path: `ask/search` is the node `search` of the run that `ask` started. None: the run
    itself."""

    node: str
    error: str
    ends_run: bool = False
    run: str | None = None


@dataclass(frozen=True)
class FailedVisits:
    """The visits of a run that failed and that no fallback, retry or `on_error` node took over: how many, and the first
    of them. The run failed because of `ending` of them. A failed visit after which a child run went on also counts in
    its parent; `of_children` counts these. A failed visit that ended a child run does not count in the parent: there
    the visit that waited for the child has failed."""

    count: int = 0
    ending: int = 0
    first: tuple[FailedVisit, ...] = ()
    of_children: int = 0
    v: int = VERSION

    @property
    def own(self) -> int:
        """The number of failed visits of the run itself."""
        return self.count - self.of_children

    def plus(self, node: str, error: str, *, ends_run: bool) -> FailedVisits:
        """With one more failed visit."""
        first = self.first
        if len(first) < FEW_FAILED:
            first = (*first, FailedVisit(node, error[:ERROR_LENGTH], ends_run))
        return changed(self, count=self.count + 1, ending=self.ending + ends_run, first=first)

    def plus_child(self, node: str, child: Child, visits: FailedVisits) -> FailedVisits:
        """With the failed visits of a child run of `node` that are not counted yet; `visits` are all after which it
        went on."""
        more = visits.count - child.failed_visits
        if more <= 0:
            return self
        later = (
            FailedVisit(f"{node}/{visit.node}", visit.error, run=visit.run or child.run)
            for visit in visits.first[child.failed_visits :]
        )
        first = (*self.first, *later)[:FEW_FAILED]
        return changed(self, count=self.count + more, of_children=self.of_children + more, first=first)

    def without_ending(self) -> FailedVisits:
        """Only the failed visits after which the run went on. A retry runs the others again."""
        if not self.ending:
            return self
        first = tuple(visit for visit in self.first if not visit.ends_run)
        return changed(self, count=self.count - self.ending, ending=0, first=first)


NO_FAILED_VISITS: Final = FailedVisits()


@dataclass(frozen=True)
class RunView:
    """Everything the planner needs of a run, except state values.

    `version` counts commits, `last_event` is the inbox entry of the last commit; both are the fence of the next one,
    because two histories of a run (after Redis was restored) may have the same version. `seq` is the number of the last
    visit, `step` the last journal step. `failed_at` is the node where a failed run of an older release goes on.
    `counts` are the entries into each node, `timings` the durations of its visits. `holds` are the holds of persons and
    of the parent run, oldest first; the hold of the budget is in `budget`. `idle_ms` is the duration of earlier pauses,
    which moves the deadline. `steps` counts super-steps, in a `dag` visits. `arrived` has, by join, the depth of each
    source that arrived since the join fired last; negative: the number of arrivals still to ignore. `deferred` are the
    nodes that run when nothing else is left to run, with the super-step that led to them. `tops` (`dag` only)
    are the ranks of writes to keys, or to the output, that happened while a visit of a lower rank was live. `batch` is
    the row of a batch that this run, or the run at the top, executes (batches.place_of). `slot` None: its agent has no
    `concurrency:`, or the run is over. `budget` is its current budget (None: that of its submission), `spent` what it
    has used (only of runs with a budget).
    """

    id: str
    spec: RunSpec
    status: RunStatus = "submitted"
    version: int = 0
    last_event: str = ""
    seq: int = 0
    step: int = 0
    started_ms: int = 0
    failed_at: str | None = None
    holds: tuple[Hold, ...] = ()
    idle_ms: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)
    frontier: Mapping[int, Visit] = field(default_factory=dict)
    steps: int = 0
    arrived: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deferred: Mapping[str, int] = field(default_factory=dict)
    tops: Mapping[str, Rank] = field(default_factory=dict)
    batch: str | None = None
    slot: Slot | None = None
    budget: Budget | None = None
    spent: BudgetUse = NOTHING_SPENT
    failed_visits: FailedVisits = NO_FAILED_VISITS

    @property
    def waits_for_slot(self) -> bool:
        """Whether no visit may start because its agent has as many runs as its limit allows."""
        return self.slot is not None and not self.slot.granted

    @property
    def is_held(self) -> bool:
        """Whether nothing may start: a person or its parent holds it, or its budget is used up."""
        return bool(self.holds) or (self.budget is not None and self.budget.asked is not None)

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def may_go_on(self) -> bool:
        """Whether a final run may be retried: a failed run, and a child run that was cancelled because its parent
        failed."""
        return self.status == "failed" or (self.status == "cancelled" and self.spec.parent is not None)


RUN_AGAIN: Final = "run again"

FAIL: Final = "fail"


def read_effect_answer(text: str) -> Literal["run again", "fail"] | dict[str, Any]:
    """The answer of a person about a node with `effect: once` whose worker died: RUN_AGAIN, FAIL, or the output it had.
    Raises ValueError for anything else; its message is for that person.
    """
    answer = text.strip()
    if answer == RUN_AGAIN:
        return RUN_AGAIN
    if answer == FAIL:
        return FAIL
    try:
        output = json.loads(answer, parse_constant=_refuse)
        json.dumps(output, ensure_ascii=False).encode()  # refuses half a surrogate pair, which could not be stored
    except (ValueError, RecursionError):
        output = None
    if isinstance(output, dict) and len(output) <= MOST_KEYS:
        return output
    raise ValueError(f"the answer must be '{RUN_AGAIN}', '{FAIL}' or a JSON object, not {text[:40]!r}")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
