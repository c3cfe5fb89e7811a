"""Views of a run: values that `Client` returns and `--json` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from sleipnir.graph.answer_rules import AnswerRules
from sleipnir.messages import FINAL, Role, RunStatus, Usage
from sleipnir.runs.actor import Change
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.conversation_names import DEFAULT_NAMESPACE
from sleipnir.runs.deployment_holds import ScopeHold
from sleipnir.runs.handling import NO_HANDLING, GateHandling, Voice
from sleipnir.runs.run import NO_FAILED_VISITS, Breakpoint, FailedVisits, Gate, Hold, Parked, place_name
from sleipnir.runs.visits import MOST_MESSAGE, Failure, Part, stable_type

ReasonCode: TypeAlias = Literal[
    "queued", "paused", "retry", "limit", "lease", "stream", "result", "lost", "person", "answered", "slot", "siblings",
    "items", "turns", "child", "message", "commands", "timer", "event",
]  # fmt: skip


@dataclass(frozen=True)
class Reason:
    """The reason of a visit's position, for programs; `reasons.in_words` formats it for people. None: does not
    apply.

    queued      waits for a worker of `queue`, which `consumers` live ones serve; `position` 1 is next in line, None
                when that is not known (far back, on its way to a worker, a broker that cannot be asked)
    paused      would be queued on `queue`, but `by` holds the run or the deployment
    retry       failed with `error`, and is queued again at `until_ms`
    limit       meets the limit of its model that `error` tells of, and is queued again at `until_ms`
    lease       runs on `worker`, which owns it until `until_ms` and renews that
    stream      as lease, and its code waits for the node `writer` to begin the node stream `stream`
    result      `worker` has delivered its result; waits for a scheduler
    lost        `worker` has lost it or gave it back; waits for a scheduler
    person      waits for the answer to its question, until `until_ms` if the question expires
    answered    its question is answered; waits for a scheduler
    slot        waits until one of the visits that are `under_way` ends: the run, or a map, may have no more at once
    siblings    has ended; waits for the others of its super-step
    turns       an llm node with tools: turn number `turn` is under way, and of its calls `progress` have ended and are
                there; none while the model is asked. `spawned` are the runs of agents that it has started and that
                have not ended
    message     a message that a model has sent: its parent has still to say whether there is an agent for it, until
                `until_ms`
    child       waits for the run `run` of `agent`, until `until_ms`
    timer       a wait node: waits until `until_ms`
    event       a wait node: waits for the signal named `event`, until `until_ms`
    commands    its list of commands is long: `progress` is how many of them are visits, or have been, and how many
                there are; the others become visits as slots come free
    items       a map: `progress` is how many of its items have ended and how many there are, `failed` those that ended
                badly, `under_way` those that are live now
    """

    code: ReasonCode
    queue: str | None = None
    position: int | None = None
    consumers: int | None = None
    worker: str | None = None
    until_ms: int | None = None
    by: str | None = None
    error: str | None = None
    progress: tuple[int, int] | None = None
    failed: int | None = None
    under_way: int | None = None
    turn: int | None = None
    run: str | None = None
    agent: str | None = None
    spawned: tuple[str, ...] | None = None
    event: str | None = None
    stream: str | None = None
    writer: str | None = None


VisitState: TypeAlias = Literal["ready", "queued", "started", "waiting", "ended"]


@dataclass(frozen=True)
class VisitInfo:
    """A live visit. `state` is ready (for a slot of its run), queued, started, waiting, or ended (and the others of its
    super-step have not); `since_ms` when that began, or when the visit was opened. `item` is the number of the map's
    visit and of the item, `part` the turn or the call of an llm node's loop.
    """

    seq: int
    node: str
    kind: str
    attempt: int
    state: VisitState
    since_ms: int
    reason: Reason
    worker: str | None = None
    role: Role = "node"
    item: tuple[int, int] | None = None
    part: Part | None = None

    @property
    def progress(self) -> tuple[int, int] | None:
        """For a map: the number of its ended items, and of all items."""
        return self.reason.progress if self.kind == "map" else None


@dataclass(frozen=True)
class KeptVisit:
    """A visit of a failed run that is kept. `again`: `retry` runs it again; else it has ended, and is applied when its
    super-step ends. For a map, `left` are the numbers of unfinished and of all items; `child` is the child run that
    continues with it."""

    seq: int
    node: str
    again: bool
    error: str | None = None
    role: Role = "node"
    item: tuple[int, int] | None = None
    left: tuple[int, int] | None = None
    child: str | None = None


@dataclass(frozen=True)
class SlotInfo:
    """The slot of its agent that a run has or waits for: at most `limit` runs with this `key` are active at once."""

    key: str
    limit: int
    granted: bool


HoldOwner: TypeAlias = Literal["person", "parent", "breakpoint", "budget", "deployment", "namespace"]


@dataclass(frozen=True)
class HoldInfo:
    """Why no visit of a run starts: a `person` paused it, its `parent` run is paused, it is at a `breakpoint`, it has
    used its `budget`, or a person paused the `deployment` or its `namespace`. Each ends independently, except that
    `resume` ends a pause and a breakpoint together; the run continues when none is left. For `parent`, `by` is who
    paused the parent. At `due_ms` visits that still run are stopped; `forced`: that time has come. A `breakpoint` is
    before or after (`phase`) its `nodes`; `planned` are all nodes that start next."""

    owner: HoldOwner
    by: str
    at_ms: int
    reason: str | None = None
    due_ms: int | None = None
    forced: bool = False
    breakpoint: Breakpoint | None = None

    @property
    def in_words(self) -> str:
        """`ann@host (cli)`, `its parent run (ann@host (cli))`, `its budget`, `a breakpoint before 'pay'`."""
        if self.breakpoint is not None:
            return f"a breakpoint {self.breakpoint.place}"
        return f"its parent run ({self.by})" if self.owner == "parent" else self.by


def hold_info(hold: Hold) -> HoldInfo:
    """A hold of a run, for people."""
    if hold.breakpoint is not None:
        return HoldInfo("breakpoint", hold.by, hold.at_ms, hold.breakpoint.in_words, breakpoint=hold.breakpoint)
    return HoldInfo(hold.owner or "person", hold.by, hold.at_ms, hold.reason, hold.due_ms, hold.forced)


def fatal_errors(info: RunInfo) -> list[dict[str, Any]]:
    """The failure of a run that collects its failures, as a record; empty if it did not fail."""
    failure = info.failure
    if failure is None or failure.node is None:
        return []
    about = {"node": failure.node, "step": failure.step, "type": stable_type(failure.error_type) or failure.kind}
    told = {"message": (info.error or "")[:MOST_MESSAGE], "code": failure.code, "time": info.ended_ms}
    return [{"severity": "fatal", **about, **told}]


@dataclass(frozen=True)
class RunInfo:
    """One run. Times are milliseconds since the epoch by Redis' clock; `visits` are the live ones, `kept` those from
    which `retry` continues. A child run has a `parent` and a `root`; usage includes ended children. `session` is its
    session, `batch` the row (batches.place_of) of it or of its root. `retries` is the number of its retries. `holds`
    are the reasons why none of its visits start, oldest first; `slot` is set if its agent limits concurrent runs; while
    the run waits for it, it has no visits. `max_cost_usd` and `max_tokens` are its current limits; None: no limit.
    `stopped_by` is the limit that ended a completed run early (`max_steps`). `failed_visits` are unhandled failures, so
    a completed run may lack their work; `cached_visits` had results that were cached. `changes` are the last
    requests of each kind: who paused, resumed, retried or cancelled it, or answered its questions. `failure` is why
    it failed, for programs; None: for another reason. A fork goes on from the step `forked_at` of the run
    `forked_from`, with other values of `fork_keys`, with the definition of `fork_agent` and the model `fork_model`
    (None: those of its source), and `as_node` began with an update of the state as that node. It is the run number
    `turn` of the `thread`, after the run `previous`; `is_queued`: it waits for the end of that. `event_scope`
    is its name among the runs of its tree, if a node gave one. `schedule` is the one that has
    started it. `overrides` are its overrides and patches of nodes, by path (graph/node_overrides.py). It is
    listed in its `namespace`, and found by its `tags`."""

    id: str
    agent: str
    status: RunStatus
    created_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    error: str | None = None
    failure: Failure | None = None
    step: int = 0
    visits: tuple[VisitInfo, ...] = ()
    usage: Usage = field(default_factory=Usage)
    kept: tuple[KeptVisit, ...] = ()
    parent: str | None = None
    root: str | None = None
    session: str | None = None
    event_scope: str | None = None
    retries: int = 0
    batch: str | None = None
    slot: SlotInfo | None = None
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    holds: tuple[HoldInfo, ...] = ()
    stopped_by: str | None = None
    failed_visits: FailedVisits = NO_FAILED_VISITS
    cached_visits: int = 0
    changes: tuple[Change, ...] = ()
    forked_from: str | None = None
    forked_at: int | None = None
    thread: str | None = None
    turn: int = 0
    previous: str | None = None
    is_queued: bool = False
    fork_keys: tuple[str, ...] = ()
    fork_agent: str | None = None
    fork_model: str | None = None
    as_node: str | None = None
    schedule: str | None = None
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    namespace: str = "default"
    tags: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    """The digest of the bundle of its agent; empty: not known."""

    parked: Parked | None = None
    """Why it is parked, if a scheduler cannot read or plan part of it."""
    unreadable: str | None = None
    """Why its records cannot be read by this release; then little more than `id` and `status` is known."""

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """Those at which it has stopped: at most one of each phase."""
        return tuple(hold.breakpoint for hold in self.holds if hold.breakpoint is not None)

    @property
    def stopped_ms(self) -> int:
        """When it has stopped last at a breakpoint; 0: it is at none."""
        return max((hold.at_ms for hold in self.holds if hold.breakpoint is not None), default=0)

    @property
    def is_over_budget(self) -> bool:
        """Whether it is paused until a person decides about its budget."""
        return any(visit.kind == BUDGET for visit in self.visits)

    @property
    def awaits(self) -> tuple[str, ...]:
        """The child runs that it waits for or will wait for."""
        reasons = [visit.reason for visit in self.visits]
        runs = [reason.run for reason in reasons] + [run for reason in reasons for run in reason.spawned or ()]
        return tuple(dict.fromkeys(run for run in runs if run is not None))

    def with_reasons(self, reason_of: Callable[[VisitInfo], Reason]) -> RunInfo:
        """The same run with other reasons for its visits."""
        return replace(self, visits=tuple(replace(visit, reason=reason_of(visit)) for visit in self.visits))


@dataclass(frozen=True)
class DefinitionText:
    """The text of the graph.yaml or config.yaml that a run is pinned to."""

    file: str
    text: str


@dataclass(frozen=True)
class ChildInfo:
    """A run that another run started, for its visit `seq`."""

    id: str
    agent: str
    seq: int


@dataclass(frozen=True)
class RunTree:
    """A run and the runs that it started, in the order of their visits. `info` is None for an expired one."""

    id: str
    agent: str
    info: RunInfo | None
    children: tuple[RunTree, ...] = ()


@dataclass(frozen=True)
class Lineage:
    """A run and the runs that were forked from it, the first one first: `count` is their number, `forks` those that
    were read. `info` is None for an expired run, whose other forks are not known."""

    id: str
    info: RunInfo | None
    count: int = 0
    forks: tuple[Lineage, ...] = ()


@dataclass(frozen=True)
class StepInfo:
    """One journal entry: a visit that ended, or (no `seq`) a request on the run: paused, resumed, cancelled, retried,
    commented, answered. `by` is the actor, `reason` its reason or comment, `answer` the answer (`[redacted]` if its
    name is secret-like), `gate` the visit of the question if that visit did not end, `key` the name of that question if
    it is an interrupt. Step 0 is the submission. `keys` are the state keys it
    wrote, `next` the node or nodes it led to (for parallel visits known when all of them have ended), `item` the number
    of the map's visit and of the item. `goes_on`: a turn without calls that was not the last of its loop
    (auto-continuation). `checkpoint`: the run was at a consistent point after it, so its state there can be read and
    forked from: each step that closes a super-step, in a `dag` each ended visit. `skipped`: `by` gave the output of
    the visit; the digest of that (runs/skips.py). `cached`: nothing was executed, its result was in the cache.
    `callbacks` decided on the result: `recovered by after hooks.py:mend`. `voices` are the answers of all who have
    answered a question with a quorum.
    """

    step: int
    kind: str
    at_ms: int
    seq: int | None
    node: str | None
    attempt: int
    ok: bool
    next: str | tuple[str, ...] | None
    error: str | None
    took_ms: int
    worker: str
    keys: tuple[str, ...]
    usage: Usage | None = None
    role: Role = "node"
    item: tuple[int, int] | None = None
    part: Part | None = None
    calls: tuple[str, ...] = ()
    goes_on: bool = False
    checkpoint: bool = False
    by: str = ""
    reason: str | None = None
    gate: int | None = None
    answer: str | None = None
    key: str | None = None
    skipped: str | None = None
    cached: bool = False
    callbacks: tuple[str, ...] = ()
    voices: tuple[Voice, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """The nodes it led to."""
        return self.next if isinstance(self.next, tuple) else (self.next,) if self.next else ()

    def answers(self, seq: int) -> bool:
        """Whether it has the answer of a person to the question of the visit `seq`."""
        if not self.by:
            return False
        if self.seq is None:
            return self.gate == seq and self.answer is not None
        return self.seq == seq and self.kind in ("approval", "input")


@dataclass(frozen=True)
class LateResult:
    """A result that arrived after its visit was given to another attempt or had ended: it was refused without any
    change."""

    at_ms: int
    seq: int
    node: str | None
    attempt: int
    worker: str
    kind: Literal["late_result"] = "late_result"
    text: Literal["late result refused"] = "late result refused"


@dataclass(frozen=True)
class GateInfo:
    """An open question to a person. An attempt of a visit asks it, and answers are for that attempt. `path` are the
    nodes of the ancestors that lead to its run; empty for a root run. `twin` is the index of the item or the command
    whose visit asks; None: of an ordinary visit.

    Of an interrupt (`kind` "interrupt"), `key` is the name of the question, `payload` the JSON that is asked, of which
    `question` is the text, and `schema` the JSON Schema of the answer, if there is one. It expires at `due_ms`.

    `rules` say who may answer (None: everybody who may answer at all), but never its `author`, who has submitted the
    run; `handling` is what people have done with it. `agent` is that of its run; empty: not known."""

    run: str
    seq: int
    node: str
    kind: str
    question: str
    options: tuple[str, ...]
    default: str | None
    opened_ms: int
    attempt: int = 1
    path: tuple[str, ...] = ()
    key: str | None = None
    payload: Any = None
    schema: Any = None
    due_ms: int | None = None
    twin: int | None = None
    rules: AnswerRules | None = None
    author: str | None = None
    handling: GateHandling = NO_HANDLING
    agent: str = ""

    @classmethod
    def of(cls, run: str, gate: Gate, path: tuple[str, ...], handling: GateHandling = NO_HANDLING) -> GateInfo:
        fields = {name: value for name, value in vars(gate).items() if name not in ("v", "secret")}
        shown = handling.redacted() if gate.secret else handling
        return cls(run, path=path, **{**fields, "options": tuple(gate.options), "handling": shown})

    @property
    def place(self) -> str:
        """`review/approve`: its node, after the nodes that lead to it, `each[3]` for one of several visits."""
        return "/".join((*self.path, place_name(self.node, self.twin)))

    @property
    def address(self) -> str:
        """`review/sure`: the key of an interrupt, after the path to its run; of another question its place."""
        return self.place if self.key is None else "/".join((*self.path, self.key))

    @property
    def names(self) -> frozenset[str]:
        """All names by which a person may mean it, besides the number of its visit. Those without indexes (`each/sure`)
        are for where only one is open."""
        plain = [place.partition("[")[0] for place in self.path]
        ends = (self.node,) if self.key is None else (self.node, self.key)
        return frozenset((*ends, self.place, self.address, *("/".join((*plain, end)) for end in ends)))


@dataclass(frozen=True)
class RunEvent:
    """An event of a run, for watchers. `id` resumes a stream after this event."""

    id: str
    at_ms: int
    type: str
    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The object that `--stream --json` prints as a line."""
        return dict(vars(self))


StreamMode: TypeAlias = Literal[
    "messages", "custom", "updates", "tools", "events", "values", "tasks", "checkpoints", "debug"
]

STEP_MODES: tuple[StreamMode, ...] = ("values", "tasks", "checkpoints", "debug")
"""The modes that are made of a run's journal."""

DEFAULT_MODES: tuple[StreamMode, ...] = ("messages", "updates", "tools")


@dataclass(frozen=True)
class StreamEvent(RunEvent):
    """One thing of a run's stream. `id` is the cursor from which the stream goes on after it; a text to be handed back.

    messages  `text`: data has what live.Piece has: seq, node, attempt, turn, draft, piece, text, lost, last. A text
              belongs to (seq, attempt, turn, draft); the piece 0 begins it
    custom    `custom`: what the code of a node emits, with seq, node and attempt of its visit, and its `category`; or
              a `chunk` that it wrote; with neither, `lost` is how many were dropped
    updates   what changed: visits that closed, with the `keys` they wrote, and where the run is
    tools     `tool_called` and `tool_ended`
    events    everything else that happened
    values    `values`: data is the state after each checkpoint
    tasks     `task` and `task_result`: data is LangGraph's chunk of a visit that begins, or has ended or asks
    checkpoints  `checkpoint`: data is LangGraph's chunk
    debug     `debug`: data is LangGraph's chunk, for those of tasks and checkpoints
    """

    mode: StreamMode


@dataclass(frozen=True)
class TreeEvent(StreamEvent):
    """One thing of the stream of a run with all runs below it. It is of the run `run`, to which the nodes of `path`
    lead from the run that is followed (empty: that one), and whose event scope is `event_scope` (None: it has none).
    `id` is the cursor of all of them."""

    run: str = ""
    path: tuple[str, ...] = ()
    event_scope: str | None = None


def mode_of(event_type: str) -> StreamMode:
    """The mode of the events of this type; those of texts have `messages`."""
    return _MODES.get(event_type, "events")


_MODES: Mapping[str, StreamMode] = {
    **dict.fromkeys(("tool_called", "tool_ended"), "tools"),
    **dict.fromkeys(
        ("run_started", "run_paused", "run_stopped", "run_resumed", "run_retried", "run_ended", "visit_closed"),
        "updates",
    ),
}


@dataclass(frozen=True)
class AgentInfo:
    """An agent folder. `problem` says why a broken one cannot run."""

    name: str
    kind: Literal["graph", "config", "broken"]
    folder: Path
    description: str = ""
    problem: str | None = None
    conversation_starters: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionInfo:
    """A session of an agent: the number of its messages, and its active run. `dropped` is the number of older messages
    that were removed because there were too many."""

    agent: str
    name: str
    created_ms: int
    used_ms: int
    messages: int
    run: str | None = None
    dropped: int = 0
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True)
class ThreadInfo:
    """A thread of an agent: how many runs it has had, and the last one that has begun with its status (None: it is
    gone). The `queued` runs are turns that begin after it, the next one first."""

    agent: str
    name: str
    created_ms: int
    used_ms: int
    turns: int
    run: str
    status: str | None = None
    queued: tuple[str, ...] = ()
    namespace: str = DEFAULT_NAMESPACE


@dataclass(frozen=True)
class WorkerInfo:
    """A worker, as it last announced itself at `seen_ms`; its ages were true then.

    `busy` of its `slots` are taken, `leased` of them by visits under a lease. `loop_age_ms`: since its loop last
    turned; `broker_age_ms`: since the last answer of a broker that it polls (None: it should not poll now);
    `broker_lost_for_ms`: since it has no connection to the broker; `wedged_for_ms`: since all slots are taken, none by
    a visit. `stopped` has, by queue that it does not take now, why its machine cannot run visits; it tries again
    automatically. `dropped` counts messages that it cannot read as a call of a visit. Fields that a worker of an older
    release does not report are None, 0 or empty.
    """

    name: str
    queues: tuple[str, ...]
    seen_ms: int
    host: str = ""
    pid: int = 0
    pool: str = ""
    slots: int = 0
    busy: int = 0
    leased: int = 0
    loop_age_ms: int | None = None
    broker_age_ms: int | None = None
    broker_lost_for_ms: int | None = None
    wedged_for_ms: int | None = None
    stopped: Mapping[str, str] = field(default_factory=dict)
    dropped: int = 0


@dataclass(frozen=True)
class ArchiveState:
    """The state of a scheduler's archiving. `error`: why the last write failed, None if it succeeded; `written` runs
    are in the archive, `lost` runs expired unarchived, both since its start."""

    folder: str
    error: str | None = None
    written: int = 0
    lost: int = 0


_WHY_A_GENERATION_BEGAN: Mapping[str, str] = {
    "first": "the deployment began",
    "stopped_cleanly": "Redis was stopped after all services had stopped, and lost nothing",
    "restarted": "Redis restarted, or another server took its place",
    "went_back": "Redis has lost writes that it had acknowledged",
    "emptied": "Redis has lost all of its data",
    "restored": "a person declared that a backup was restored",
    "clock_stepped": "the clock of Redis was set",
}


@dataclass(frozen=True)
class Generation:
    """The lifetime of Redis' data set between restarts, fail-overs, restores and steps of its clock
    (store/generations.py).

    `data` is the id of the last generation that may have begun with a loss of acknowledged writes. Leases can be
    trusted from `steady_ms` on. Times are Redis'; `pulse_ms` is the time of the last pulse of any scheduler before this
    was read (0: none).
    """

    id: str
    data: str
    since_ms: int
    why: str
    pulse: int
    steady_ms: int
    now_ms: int
    pulse_ms: int

    @property
    def is_steady(self) -> bool:
        """Whether an expired lease means that its worker could have renewed it but did not."""
        return self.now_ms >= self.steady_ms

    @property
    def meaning(self) -> str:
        """Why it began, as a sentence."""
        return _WHY_A_GENERATION_BEGAN.get(self.why, self.why)


@dataclass(frozen=True)
class MissingProcesses:
    """Missing processes that runs need: whether there is no scheduler, and by queue the place (`run/node`, or the node
    of the requested run) of a visit that no live worker serves."""

    scheduler: bool
    queues: Mapping[str, str]


@dataclass(frozen=True)
class Health:
    """The data of the store for `doctor`."""

    version: str
    appendonly: bool
    maxmemory_policy: str
    queues: Mapping[str, int]
    schedulers: tuple[str, ...]
    workers: tuple[WorkerInfo, ...]
    now_ms: int
    persists: bool = True
    """Whether Redis' last write to its append-only file, and its last snapshot, went well."""
    used_memory: int = 0
    maxmemory: int = 0
    """Bytes; 0: Redis has no limit of its own."""
    valkey: str = ""
    """Its version, if it is Valkey; `version` is that of the compatible Redis."""
    nodes: int = 0
    """Of a cluster; 0 for one Redis. The memory is that of the fullest node."""
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Short digests of the settings that all schedulers must share, by scheduler and name."""
    archives: Mapping[str, ArchiveState] = field(default_factory=dict)
    """The archive reports of schedulers, by their names."""
    generation: Generation | None = None
    """None: no scheduler of a release with generations has run yet."""
    parked: int = 0
    """Runs that are parked because a scheduler cannot read or plan part of them."""
    parked_reasons: tuple[str, ...] = ()
    """`run: reason` for a few of these."""
    dead_letters: int = 0
    """Effects that cannot be delivered."""
    holds: tuple[ScopeHold, ...] = ()
    """What is paused: the deployment (`*`) and namespaces, and what of them goes on."""
    oldest_ms: Mapping[str, int] = field(default_factory=dict)
    """For how long the next visit of each queue has waited, approximately the oldest one. Empty if it is not known."""
