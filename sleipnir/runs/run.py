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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from sleipnir.commands import END
from sleipnir.decoding import read
from sleipnir.graph.answer_rules import AnswerRules
from sleipnir.messages import FINAL, MOST_KEYS, VERSION, RunStatus
from sleipnir.runs.budgets import NOTHING_SPENT, Budget, BudgetUse
from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE
from sleipnir.runs.visits import Child, Rank, Visit

if TYPE_CHECKING:
    from sleipnir.graph.node_overrides import NodeOverrides


@dataclass(frozen=True)
class CommandList:
    """The commands of an ended visit that are still to be done: `seq` and `rank` are its number and its rank, `targets`
    are the nodes in the order of the commands, each with how many of them follow one another; '' is none, or is done.
    `sent`: it was opened by a command itself, and its own are few enough to become visits at once. `begun`: of a `dag`,
    visits of them may have begun their work."""

    seq: int
    rank: Rank
    targets: tuple[tuple[str, int], ...]
    sent: bool = False
    begun: bool = False

    @property
    def nodes(self) -> list[str]:
        """The targets, by number of the command."""
        return [node for node, count in self.targets for _ in range(count)]


@dataclass(frozen=True)
class UnfinishedVisit:
    """A visit of a `dag` that had not ended at a checkpoint. `begun`: an earlier step has opened it, so its work may
    have begun."""

    rank: Rank
    begun: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A run after its journal step `step`: the `nodes` that its next super-step opens, in order (a node before which a
    join fires may be there twice); and as in RunView `counts`, `steps`, `arrived` and `deferred` before that.
    `commands` of the visits to open have values of their own; `lists` are these commands, unless an earlier release has
    not kept them. Of a `dag`, `visits` are the unfinished visits, whose nodes are `nodes`."""

    step: int
    nodes: tuple[str, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    arrived: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deferred: Mapping[str, int] = field(default_factory=dict)
    commands: int = 0
    lists: tuple[CommandList, ...] = ()
    visits: tuple[UnfinishedVisit, ...] = ()

    @property
    def opens(self) -> tuple[str, ...]:
        """The nodes that a run goes on with."""
        sent = (node for each in self.lists for node, _ in each.targets if node)
        return tuple(dict.fromkeys((*self.nodes, *sent)))


@dataclass(frozen=True)
class Fork:
    """Where a fork begins: after `checkpoint` of its source, the run `run`; and what it changes: the values of these
    `keys`, its definition (`agent`, as it was named), the `model` of all llm nodes. None: it has that of its source.
    With an `update`, its first visit stands for the one node of the checkpoint, which is not called: it writes these
    values, and the run stops after it."""

    run: str
    checkpoint: Checkpoint
    keys: tuple[str, ...] = ()
    agent: str | None = None
    model: str | None = None
    update: dict[str, Any] | None = None

    @property
    def as_node(self) -> str | None:
        """The node that its update is of (`__end__`: it ends what was to come next). None: it has none."""
        if self.update is None:
            return None
        return self.checkpoint.nodes[0] if self.checkpoint.nodes else END


OF_FORK: Final = 2
"""The version of the spec of a fork that an earlier release would begin at the wrong node (one that waits for a slot of
its agent), would execute with another model, or whose first node it would call in the place of an update."""

IN_THE_MIDDLE: Final = 3
"""The version of the spec of a fork that goes on with commands, or with unfinished visits of a `dag`: an earlier
release would begin with other visits."""

WITH_BREAKPOINTS: Final = 2
"""The version of the spec of a run that has breakpoints of its own, or is in a thread."""

RETURNING: Final = 2
"""The version of the spec of a run that returns more than its output: an earlier release would return only that."""

IN_NAMESPACE: Final = 4
"""The version of the spec of a run with a thread or sessions of another namespace than `default`: an earlier release
would go on with those of the same name there."""

WITH_SHARED: Final = 2
"""The version of the spec of a run with shared values: an earlier release would not write them back."""

WITH_OVERRIDES: Final = 2
"""The version of the spec of a run with overrides of its nodes, which an earlier release would ignore."""


@dataclass(frozen=True)
class PastState:
    """The state of a fork that has not begun: that of the run `run` after its step `step`. It is the current one of
    that run while its last step is `last` and it has `keys`; `last` -1: it has to be computed from the journal."""

    run: str
    step: int
    last: int = -1
    keys: int = 0
    v: int = VERSION


@dataclass(frozen=True)
class RunSpec:
    """The submission of a run; it never changes. Paths are text: they may belong to another machine.

    `agents` are the bundles of all agents that it and its children may start, by name, as they were when the run at the
    top was submitted. A child run has a `parent`, whose visit `parent_seq` in its attempt `parent_attempt` waits for
    it; `root` is the run at the top, `depth` the number of runs above it, `path` the nodes that lead from the root to
    it (`each[3]` for one of several visits). `overrides` are the overrides of agents from the environment of the
    submitter, by agent, and those of nodes, for this run alone (graph/overrides.py); with
    such ones it is of version 2. `presets` are the variables that the environment gives to agents that the
    run may start, `sessions` the names of the sessions that these agents use. `knowledge` are the digests of the
    knowledge bases that nodes of all these agents search, by `agent/node`, as of the submission. `max_cost_usd` and
    `max_tokens` limit what it and all runs below may use before it asks a person; a child run has a budget of its own
    only if its node says so. `descriptions` describe in one line each agent that a model may start, by name. A `strict`
    run fails for every failed visit. `caller_marks` identify the directory `caller_dir` on other machines
    (local/same_directory.py); empty: an earlier release submitted the run. `by_version`: `version:` chooses the
    language of its graph. False: an earlier release submitted the run; it derived the language from the keys of the
    graph (Graph.of_earlier_release). `config` and `context` are what nodes of a graph written in Python get under these
    names (python_graph/run_config.py, objects.stored_context). `fork`: it goes on from a checkpoint of another run.
    `interrupt_before` and `interrupt_after` are the nodes before and after which it stops, instead of those that its
    graph names; None: those of its graph. With one of them it is of version 2: a release that knows no breakpoints
    parks the run. Of a run in a thread, which is of version 2 too, `thread` is its name, `turn` counts its runs from 1,
    and `previous` is the run before. A run that an agent node started with `map_out` `returns` the values of these
    state keys to it, and is of version 2. `event_scope` names it among the runs of its tree. Its
    text goes to the node stream `stream` of its parent, if its node says so. Of a run with shared values, which is of
    version 2, `scopes` says which ones (graph/key_scopes.py): those of its agent, and with a `user` those of that. It
    was started by the fire of the time `fired_ms` of the schedule `schedule`. It is found in the lists of its
    `namespace`, and by its `tags` (cards.py); runs that it starts have the same. `author` is the person who submitted
    it, or the run at the top; None: nobody is known. `thread_namespace` is that of its thread or session, and of the
    sessions of the runs that it starts; one other than `default`, which earlier releases do not know, makes it of
    version 4.
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
    interrupt_before: list[str] | None = None
    interrupt_after: list[str] | None = None
    thread: str | None = None
    turn: int = 0
    previous: str | None = None
    returns: tuple[str, ...] | None = None
    event_scope: str | None = None
    stream: str | None = None
    user: str | None = None
    scopes: tuple[str, ...] = ()
    schedule: str | None = None
    fired_ms: int = 0
    namespace: str = DEFAULT_NAMESPACE
    tags: dict[str, str] | None = None
    author: str | None = None
    thread_namespace: str = DEFAULT_NAMESPACE
    v: int = VERSION

    def of_author(self, name: str) -> RunSpec:
        """The same, submitted by the person of this name; '' for nobody that is known."""
        return changed(self, author=name or None)

    def stopping(self, before: Sequence[str] | None, after: Sequence[str] | None) -> RunSpec:
        """The same with these breakpoints. None: those of the graph."""
        is_plain = before is None and after is None and self.thread is None and not self.scopes
        version = VERSION if is_plain else WITH_BREAKPOINTS
        lists = (None if names is None else list(names) for names in (before, after))
        interrupt_before, interrupt_after = lists
        return changed(self, interrupt_before=interrupt_before, interrupt_after=interrupt_after, v=version)

    def in_thread(self, thread: str, turn: int, previous: str | None) -> RunSpec:
        """The same as a turn of a thread."""
        version = max(self.v, WITH_BREAKPOINTS)
        return changed(self, thread=thread, turn=turn, previous=previous, v=version).naming_in_its_namespace()

    def naming_in_its_namespace(self) -> RunSpec:
        """The same with a thread and sessions of its own namespace."""
        if self.namespace == DEFAULT_NAMESPACE:
            return self
        return changed(self, thread_namespace=self.namespace, v=IN_NAMESPACE)

    @property
    def of_nodes(self) -> NodeOverrides:
        """Its overrides and patches of nodes, by path."""
        if not self.overrides:
            return {}
        from sleipnir.graph.overrides import nodes_of  # reads YAML

        return nodes_of(self.overrides, self.agent)

    def overriding(self, nodes: NodeOverrides) -> RunSpec:
        """The same with these overrides of nodes, and no others."""
        from sleipnir.graph.overrides import with_nodes

        version = max(self.v, WITH_OVERRIDES) if nodes else self.v
        return changed(self, overrides=with_nodes(self.overrides, self.agent, nodes), v=version)

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
"""The 32 letters of run ids. Crockford's alphabet: no two letters look alike."""

ID_LENGTH: Final = 12


def child_id(parent: str, seq: int, session: str | None = None) -> str:
    """The id of the run that a visit starts: always the same, so that it starts only once. With the name of a session
    (as SessionName is written) the id has the CRC16 of that name, so that the run is in the session's partition, for
    any number of partitions."""
    first = id_letters(f"{parent}/{seq}", ID_LENGTH)
    if session is None:
        return first
    for attempt in itertools.count():  # the first one fits, except for one in millions
        head = id_letters(f"{parent}/{seq}/{attempt}", ID_LENGTH - 4)
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


def id_letters(text: str, count: int = ID_LENGTH) -> str:
    """The id that follows from a text, or so many letters of one."""
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


def place_name(node: str, twin: int | None) -> str:
    """`each[3]`: a node, with what tells its visit apart from others that are live at once."""
    return node if twin is None else f"{node}[{twin}]"


@dataclass(frozen=True)
class Gate:
    """An open question to a person; belongs to the visit `seq`, and to its `attempt`. An interrupt of a node's code is
    named by its `key`; it shows `payload`, and its answer is JSON that must match `schema`. It expires at `due_ms`.
    `twin` is that of its visit. `rules` say who may answer, and `author` is who has submitted the run if that person
    may not. `secret`: its answer is shown to nobody."""

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
    twin: int | None = None
    rules: AnswerRules | None = None
    author: str | None = None
    secret: bool = False
    v: int = VERSION


BREAKPOINT: Final = "breakpoint"
"""Who holds a run at a breakpoint, where a hold, a step or a notice names somebody."""


@dataclass(frozen=True)
class Breakpoint:
    """Where a run stops: `before` its `nodes` start, or `after` they have ended. `planned` are all nodes that start
    next. Once the run goes on, it stops again before the nodes `then`."""

    phase: Literal["before", "after"]
    nodes: tuple[str, ...]
    planned: tuple[str, ...] = ()
    then: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """`before 'pay', 'ship'`."""
        return f"{self.phase} {_listed(self.nodes)}"

    @property
    def in_words(self) -> str:
        """`before 'pay', 'ship'; next: 'log', 'pay', 'ship'`."""
        return f"{self.place}; {f'next: {_listed(self.planned)}' if self.planned else 'nothing comes next'}"

    def plus(self, other: Breakpoint) -> Breakpoint:
        """Both, of one phase: in a `dag`, nodes that ran when the run stopped end one after the other."""
        nodes, planned = dict.fromkeys((*self.nodes, *other.nodes)), dict.fromkeys((*self.planned, *other.planned))
        return Breakpoint(self.phase, (*nodes,), (*planned,), (*dict.fromkeys((*self.then, *other.then)),))


MOST_LISTED: Final = 5
"""The nodes of a breakpoint that a sentence names."""


def _listed(nodes: tuple[str, ...]) -> str:
    names = [f"'{node}'" for node in nodes[:MOST_LISTED]]
    more = len(nodes) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


HoldOwner: TypeAlias = Literal["person", "parent", ""]
"""The owner of a hold: a person, or the parent run, which is held itself. Empty: a hold of a release that did not
distinguish owners; any resume ends it."""


@dataclass(frozen=True)
class Hold:
    """Who holds a run, or a whole deployment, and since when. Work that has started ends and is committed; nothing new
    starts. A run has at most one hold of each owner, and goes on when it has none. At a `breakpoint` it has one more
    for each phase, which ends when a person resumes the run. At `due_ms` visits that still run are stopped, to run
    again later (None: they end); `forced`: that has happened."""

    by: str
    at_ms: int
    reason: str | None = None
    owner: HoldOwner = ""
    breakpoint: Breakpoint | None = None
    due_ms: int | None = None
    forced: bool = False
    v: int = VERSION

    @property
    def pending_ms(self) -> int | None:
        """When visits that still run are stopped. None: never, or that has happened."""
        return None if self.forced else self.due_ms

    def ends_with(self, owner: HoldOwner, seen_ms: int | None = None) -> bool:
        """Whether it ends when `owner` resumes the run, who has seen the breakpoints up to `seen_ms` (None: all)."""
        if self.breakpoint is not None and seen_ms is not None and self.at_ms > seen_ms:
            return False
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
class QueuedTurn:
    """What a turn of a thread that waits for the runs before it does with the state that it will begin with: its own
    values replace those, except for `defaults`, which only add missing keys, and `folds`, which go through reducers."""

    defaults: tuple[str, ...] = ()
    folds: tuple[str, ...] = ()
    v: int = VERSION


@dataclass(frozen=True)
class Timing:
    """The durations of the ended visits of one node, and how many of them had `cached` results."""

    visits: int = 0
    total_ms: int = 0
    max_ms: int = 0
    cached: int = 0

    def plus(self, took_ms: int, *, cached: bool = False) -> Timing:
        most_ms = max(self.max_ms, took_ms)
        return Timing(self.visits + 1, self.total_ms + took_ms, most_ms, self.cached + cached)


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


def limited_from(step: int) -> int:
    """RunView.limited_from of a run that goes on with the super-step `step`. As in LangGraph, a call that goes on does
    that one and as many more as its limit says; in a new run, the input counts as one."""
    return step + 1


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
    has used (only of runs with a budget). `limited_from` is the super-step from which on the recursion limit of
    its configuration counts, because it was retried or forked; 0: from the beginning. `past`: it is a fork that had no
    state of its own when this was read. `queued`: it was a queued turn of its thread then.
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
    limited_from: int = 0
    past: PastState | None = None
    queued: QueuedTurn | None = None

    @property
    def waits_for_turn(self) -> bool:
        """Whether it has not begun because runs before it in its thread are not over."""
        return self.queued is not None and not (self.is_final or self.seq or self.started_ms or self.slot)

    @property
    def waits_for_slot(self) -> bool:
        """Whether no visit may start because its agent has as many runs as its limit allows."""
        return self.slot is not None and not self.slot.granted

    @property
    def is_held(self) -> bool:
        """Whether nothing may start: a person or its parent holds it, or its budget is used up."""
        return bool(self.holds) or (self.budget is not None and self.budget.asked is not None)

    @property
    def cached_visits(self) -> int:
        return sum(timing.cached for timing in self.timings.values())

    @property
    def is_at_breakpoint(self) -> bool:
        return not self.is_final and any(hold.breakpoint is not None for hold in self.holds)

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
