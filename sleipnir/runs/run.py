"""A run, as the planner sees it and the store keeps it: what it was submitted with, its questions, what holds it.

visits.py has its visits. Events (events.py) happen to it, and transitions (transitions.py) change it. All are values,
shared by the store, which reads and writes them, and the scheduler's planner, which decides with them: nothing here
knows Redis or a clock.
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
from sleipnir.runs.budgets import NOTHING_SPENT, Budget, Spent
from sleipnir.runs.visits import Child, Rank, Visit


@dataclass(frozen=True)
class RunSpec:
    """What a run was submitted with; never changes. Paths are text: they may belong to another machine.

    `agents` are the bundles of all agents that it and its children may start, by name: what was there when the run at
    the top was submitted. A child run has a `parent`, whose visit `parent_seq` in its attempt `parent_attempt` waits
    for it; `root` is the run at the top, `depth` how many runs are above, `path` the nodes that lead here from there.
    `overrides` is what the environment of who submitted it says of agents, by their names (graph/overrides.py), and
    `presets` are the variables that it gives to agents that may be started, `sessions` the names of the sessions in
    which these go on. `knowledge` are the digests of the bases that nodes of all these agents ask, by `agent/node`:
    those of the moment of submission. `max_cost_usd` and `max_tokens` are what it may use, with all runs below, before
    a person is asked; child runs have no budget of their own. `descriptions` say in a line what agents are for that a
    model may start, by name. A `strict` run fails for every failed visit. `caller_marks` tell where `caller_dir` is the
    same directory (local/same_directory.py); empty: an earlier release has submitted it.
    `by_version`: the language of its graph is chosen by `version:`. False: an earlier release has submitted it, which
    went by the keys that the graph has (Graph.of_earlier_release).
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
    v: int = VERSION

    @property
    def budget(self) -> Budget | None:
        """What it may use to begin with. None: as much as it likes."""
        if self.max_cost_usd is None and self.max_tokens is None:
            return None
        return Budget(self.max_cost_usd, self.max_tokens)

    def base_of(self, node: str) -> str | None:
        """The digest of the knowledge base of a node of this run; None: there is none."""
        return self.knowledge.get(f"{self.agent}/{node}")


ID_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Of run ids. Crockford's: no letter that looks like another."""

ID_LENGTH: Final = 12


def child_id(parent: str, seq: int, session: str | None = None) -> str:
    """The id of the run that a visit starts: always the same, so that nobody starts it twice. With the name of a
    session (as SessionName is written) it has the same CRC16, so that the run is in the session's partition, however
    many there are."""
    first = _letters(f"{parent}/{seq}", ID_LENGTH)
    if session is None:
        return first
    for attempt in itertools.count():  # the first one will do, but for one in millions
        head = _letters(f"{parent}/{seq}/{attempt}", ID_LENGTH - 4)
        if (tail := _tail(head, binascii.crc_hqx(session.encode(), 0))) is not None:
            return head + tail
    raise AssertionError("there is no end to attempts")


_PAIRS: Final = tuple(map(bytes, itertools.product(ID_ALPHABET.encode(), repeat=2)))
_LAST: Final = {binascii.crc_hqx(pair, 0): pair for pair in _PAIRS}


def _tail(head: str, crc: int) -> str | None:
    """Four letters with which `head` has this CRC16. What they add is the exclusive or of what each pair adds alone, so
    the last one is looked up."""
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
    """What models call an agent that runs as `run`."""
    return f"agent_{agent}_{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def question_id(run: str, seq: int) -> str:
    """What models call a question of a child run, which its visit `seq` asks."""
    return f"esc_{hashlib.sha256(f'{run}/{seq}'.encode()).hexdigest()[:8]}"


K = TypeVar("K")


def from_fields(kind: type[K], data: Any) -> K:
    """An instance from a stored object, which another release may have written. Raises RecordUnreadable."""
    return read(kind, data)


def changed(value: K, **fields: Any) -> K:
    """The same with other fields. As dataclasses.replace, which takes ten times as long: it calls __init__."""
    new = object.__new__(type(value))
    new.__dict__.update(value.__dict__, **fields)
    return new


@dataclass(frozen=True)
class Gate:
    """An open question to a person; belongs to the visit `seq`, and to its `attempt`."""

    seq: int
    node: str
    kind: str
    question: str
    options: tuple[str, ...] = ()
    default: str | None = None
    opened_ms: int = 0
    attempt: int = 1
    v: int = VERSION


HoldOwner: TypeAlias = Literal["person", "parent", ""]
"""Whose hold of a run it is: a person's, or its parent run's, which is held itself. Empty: that of a release that did
not tell them apart; whoever resumes the run ends it."""


@dataclass(frozen=True)
class Hold:
    """Who holds a run, or all of a deployment, and since when. What runs ends and is committed; nothing new starts. A
    run has one hold of each owner at most, and goes on when none is left."""

    by: str
    at_ms: int
    reason: str | None = None
    owner: HoldOwner = ""
    v: int = VERSION

    def ends_with(self, owner: HoldOwner) -> bool:
        """Whether it ends when `owner` lets the run go on."""
        return owner in ("", self.owner) or self.owner == ""


@dataclass(frozen=True)
class Parked:
    """A run that is set aside: a scheduler cannot read or plan something of it. Its inbox entries stay, in order, and
    it goes on when a scheduler applies one. `by` is the scheduler that has set it aside at `at_ms`, `release` its
    release, `entry` the inbox entry that waits first."""

    reason: str
    at_ms: int
    by: str = ""
    release: str = ""
    entry: str = ""
    v: int = VERSION


@dataclass(frozen=True)
class Slot:
    """The slot of its agent that a run has, or (not `granted`) waits for: of the runs with this `key` at most `limit`
    go on at once. `ticket` tells it from those that the run had before it was retried. One that asked `again`, because
    it was retried, goes on from where it failed; `fresh_children` and `by` as in events.Retried."""

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
    """How long the visits of one node took that have ended."""

    visits: int = 0
    total_ms: int = 0
    max_ms: int = 0

    def plus(self, took_ms: int) -> Timing:
        return Timing(self.visits + 1, self.total_ms + took_ms, max(self.max_ms, took_ms))


FEW_FAILED = 5
"""Failed visits of which a run's record keeps the error."""

ERROR_LENGTH = 300
"""Characters of an error that a run's record keeps; the journal has all of it."""


@dataclass(frozen=True)
class FailedVisit:
    """One failed visit. `ends_run`: the run failed for it. `run`: it is of that child run, or of one below, and `node`
    is the path to it: `ask/search`, `search` of the run that `ask` has started. None: of the run itself."""

    node: str
    error: str
    ends_run: bool = False
    run: str | None = None


@dataclass(frozen=True)
class FailedVisits:
    """The visits of a run that failed and that no fallback, retry or `on_error` node took over: how many, and the
    first of them. The run failed for `ending` of them. Those after which a child run went on count in its parent too:
    `of_children` are such. Those for which a child run failed do not: there a visit of the parent has failed."""

    count: int = 0
    ending: int = 0
    first: tuple[FailedVisit, ...] = ()
    of_children: int = 0
    v: int = VERSION

    @property
    def own(self) -> int:
        """Those of the run itself."""
        return self.count - self.of_children

    def plus(self, node: str, error: str, *, ends_run: bool) -> FailedVisits:
        """One more."""
        first = self.first
        if len(first) < FEW_FAILED:
            first = (*first, FailedVisit(node, error[:ERROR_LENGTH], ends_run))
        return changed(self, count=self.count + 1, ending=self.ending + ends_run, first=first)

    def plus_child(self, node: str, child: Child, visits: FailedVisits) -> FailedVisits:
        """With those of a child run of `node` that are not counted yet; `visits` are all after which it went on."""
        more = visits.count - child.failed_visits
        if more <= 0:
            return self
        later = (
            FailedVisit(f"{node}/{each.node}", each.error, run=each.run or child.run)
            for each in visits.first[child.failed_visits :]
        )
        first = (*self.first, *later)[:FEW_FAILED]
        return changed(self, count=self.count + more, of_children=self.of_children + more, first=first)

    def without_ending(self) -> FailedVisits:
        """Those after which the run went on. When it is retried, the others run again."""
        if not self.ending:
            return self
        first = tuple(each for each in self.first if not each.ends_run)
        return changed(self, count=self.count - self.ending, ending=0, first=first)


NO_FAILED_VISITS: Final = FailedVisits()


@dataclass(frozen=True)
class RunView:
    """Everything the planner needs of a run, state values apart.

    `version` counts commits, `last_event` is the inbox entry of the last one; both are the fence of the next one, as
    two pasts of a run (Redis was restored) have the same versions. `seq` is the last visit's number, `step` the last
    journal step, `failed_at` the node where a failed run can be continued, `counts` how often each node was
    entered, `timings` how long its visits took. `holds` are those of persons and of its parent, oldest first; its
    budget has one of its own. `idle_ms` is how long earlier pauses lasted: the deadline is later by
    that. `steps` counts super-steps, in a `dag` visits. `arrived` says per join, by its name, which sources it has got
    since it fired last, each with its depth; below nought, how often a quorum did not wait for it. `tops` (`dag` only)
    are the ranks of what was written to keys, or to the output, while a visit of a lower rank was live. `batch` is the
    row that it is, or that the run at the top is (batches.place_of). `slot` None: its agent has any number of runs, or
    the run is over. `budget` is what it may use by now (None: what it was submitted with), `spent`, kept of runs with a
    budget alone, what it has used.
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
    tops: Mapping[str, Rank] = field(default_factory=dict)
    batch: str | None = None
    slot: Slot | None = None
    budget: Budget | None = None
    spent: Spent = NOTHING_SPENT
    failed_visits: FailedVisits = NO_FAILED_VISITS

    @property
    def waits_for_slot(self) -> bool:
        """Whether nothing of it may start, as its agent has as many runs as it may have at once."""
        return self.slot is not None and not self.slot.granted

    @property
    def is_held(self) -> bool:
        """Whether nothing may start: a person or its parent holds it, or it has used its budget."""
        return bool(self.holds) or (self.budget is not None and self.budget.asked is not None)

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def may_go_on(self) -> bool:
        """Whether a run that is over may be retried: one that failed, and a child run that was cancelled because its
        parent failed."""
        return self.status == "failed" or (self.status == "cancelled" and self.spec.parent is not None)


RUN_AGAIN: Final = "run again"

FAIL: Final = "fail"


def read_effect_answer(text: str) -> Literal["run again", "fail"] | dict[str, Any]:
    """What a person says of a node with `effect: once` whose worker died: RUN_AGAIN, FAIL, or the output it had.

    Raises ValueError, with a message fit for that person, for anything else.
    """
    said = text.strip()
    if said == RUN_AGAIN:
        return RUN_AGAIN
    if said == FAIL:
        return FAIL
    try:
        output = json.loads(said, parse_constant=_refuse)
        json.dumps(output, ensure_ascii=False).encode()  # refuses half a surrogate pair, which could not be stored
    except (ValueError, RecursionError):
        output = None
    if isinstance(output, dict) and len(output) <= MOST_KEYS:
        return output
    raise ValueError(f"the answer must be '{RUN_AGAIN}', '{FAIL}' or a JSON object, not {text[:40]!r}")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
