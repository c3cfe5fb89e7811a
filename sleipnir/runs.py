"""A run, as the planner sees it and the store keeps it: events in, a Transition out.

These shapes are shared by the store (which reads and writes them) and the scheduler's planner (which decides with
them). They are values: nothing here knows Redis or a clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar

from sleipnir.messages import FINAL, MOST_KEYS, VERSION, ResultHeader, Role, RunStatus


@dataclass(frozen=True)
class RunSpec:
    """What a run was submitted with; never changes. Paths are text: they may belong to another machine."""

    agent: str
    bundle: str
    variables: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    caller_dir: str | None = None
    v: int = VERSION


VisitState: TypeAlias = Literal["ready", "queued", "waiting", "ended", "failed"]
"""As the planner knows it.

ready    waits for a slot of its run (limits of concurrency), or, in a `dag`, for a visit of the same node to end
queued   is a worker's business: none has claimed it yet, or one works on it
waiting  for a person, a timer, or (a map) for its items
ended    has ended, and waits for the others of its super-step
failed   cannot go on, nor can its run; kept so that `retry` knows what to run again
"""

Rank: TypeAlias = tuple[int, str, str, int]
"""Where a visit stands in the visit order: depth, node, lineage, index. Reducers fold in this order.

`depth` is the number of its super-step, or in a `dag` one more than its deepest cause's; `lineage` (`dag` only) tells
visits of different causes apart; `index` those of one list of commands.
"""


@dataclass(frozen=True)
class Ended:
    """How a visit ended that waits for others of its super-step. `step` is its journal step, `keys` what it wrote;
    `next` and `sends` are as in ResultHeader; `ok` chooses between success and fallback."""

    step: int
    ok: bool = True
    keys: tuple[str, ...] = ()
    next: str | tuple[str, ...] | None = None
    sends: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Fan:
    """How far a map is. Its items are visits of their own, at most so many at once.

    `next` is the first item that was never started; `again` are items to start anew, `failed` those that failed for
    good, `error` why the first of them (in input order) did.
    """

    total: int
    next: int = 0
    done: int = 0
    again: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Item:
    """An item of a map, as the visit of one of its bodies: of the map's visit `map`, the item `index`, in the body that
    is number `position` of the chain of the map node `of`."""

    map: int
    index: int
    position: int = 0
    of: str = ""


@dataclass(frozen=True)
class Visit:
    """One live visit. `queue` None: no worker needed; the visit waits for a person, or is a map (later: a child).

    `group` is the super-step it belongs to; in a `dag` every visit is a group of its own. `overlay` names values that
    this visit alone sees, `batch` the visit whose list of commands asked for it.
    `attempt` counts executions, and is the fence. Those before this one ended as a failure that a retry policy
    forgave (`failures`), with a lost worker (`losses`), or were handed back by a worker that stopped.
    `wake_ms` is when the visit's timer is due: the next try of a failed one, the expiry of a question.
    `error` is why the last execution ended.
    """

    seq: int
    node: str
    kind: str
    attempt: int
    opened_ms: int
    queue: str | None = None
    failures: int = 0
    losses: int = 0
    wake_ms: int | None = None
    error: str | None = None
    role: Role = "node"
    group: int = 0
    depth: int = 0
    lineage: str = ""
    index: int = 0
    overlay: str | None = None
    batch: int | None = None
    ready: bool = False
    failed: bool = False
    ended: Ended | None = None
    fan: Fan | None = None
    item: Item | None = None
    v: int = VERSION

    @property
    def state(self) -> VisitState:
        if self.failed:
            return "failed"
        if self.ended is not None:
            return "ended"
        if self.ready:
            return "ready"
        return "queued" if self.queue and self.wake_ms is None else "waiting"

    @property
    def rank(self) -> Rank:
        return (self.depth, self.node, self.lineage, self.index)

    @classmethod
    def from_json(cls, text: str) -> Visit:
        """Unknown fields are ignored: a newer scheduler may have written more than this release knows."""
        data = json.loads(text)
        for name, kind in (("ended", Ended), ("fan", Fan), ("item", Item)):
            if name in data:
                data[name] = _known(kind, data[name])
        return _known(cls, data)

    @property
    def timer(self) -> str:
        """The name of its timer within the run; another attempt's is another one."""
        return f"visit/{self.seq}/{self.attempt}"


K = TypeVar("K")


def _known(kind: type[K], data: Mapping[str, Any]) -> K:
    """An instance from a stored object; JSON knows no tuples."""
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name in fields}
    )


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


@dataclass(frozen=True)
class Pause:
    """Who holds a run, or all of a deployment, and since when. What runs ends and is committed; nothing new starts."""

    by: str
    at_ms: int
    reason: str | None = None
    v: int = VERSION


@dataclass(frozen=True)
class Timing:
    """How long the visits of one node took that have ended."""

    visits: int = 0
    total_ms: int = 0
    max_ms: int = 0

    def plus(self, took_ms: int) -> Timing:
        return Timing(self.visits + 1, self.total_ms + took_ms, max(self.max_ms, took_ms))


@dataclass(frozen=True)
class RunView:
    """Everything the planner needs of a run, state values apart.

    `version` counts commits and is the fence of the next one; `seq` is the last visit's number, `step` the last
    journal step, `failed_at` the node where a failed run can be continued, `counts` how often each node was
    entered, `timings` how long its visits took. `idle_ms` is how long earlier pauses lasted: the deadline is later by
    that.
    """

    id: str
    spec: RunSpec
    status: RunStatus = "submitted"
    version: int = 0
    seq: int = 0
    step: int = 0
    started_ms: int = 0
    failed_at: str | None = None
    paused: Pause | None = None
    idle_ms: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)
    frontier: Mapping[int, Visit] = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        return self.status in FINAL


# Events: what happened to a run. Each is one entry of a partition's inbox.


@dataclass(frozen=True)
class Submitted:
    """The run was accepted."""


@dataclass(frozen=True)
class Resulted:
    """A worker delivered the result of a visit's attempt."""

    seq: int
    attempt: int
    header: ResultHeader


@dataclass(frozen=True)
class Answered:
    """A person answered the question that a visit's attempt asks."""

    seq: int
    text: str
    attempt: int = 1


@dataclass(frozen=True)
class Cancelled:
    """Somebody wants the run to end."""


@dataclass(frozen=True)
class Retried:
    """Somebody wants a failed run to go on from where it failed."""


@dataclass(frozen=True)
class Paused:
    """Somebody holds the run."""

    by: str
    reason: str | None = None


@dataclass(frozen=True)
class Resumed:
    """Somebody lets a held run go on."""


@dataclass(frozen=True)
class LeaseLost:
    """The worker of a visit's attempt fell silent, or (`handed_back`) stopped and gave it back unfinished."""

    seq: int
    attempt: int
    worker: str
    handed_back: bool = False


@dataclass(frozen=True)
class TimerFired:
    """A timer of the run came due."""

    name: str


@dataclass(frozen=True)
class Unreadable:
    """An entry that this release does not understand; a newer one beside it does. Left where it is."""

    type: str


Event: TypeAlias = (
    Submitted | Resulted | Answered | Cancelled | Retried | Paused | Resumed | LeaseLost | TimerFired | Unreadable
)


@dataclass(frozen=True)
class Step:
    """One journal entry: a visit that ended. Step 0 is the submission (`kind` "submitted", no node)."""

    step: int
    kind: str
    at_ms: int
    seq: int | None = None
    node: str | None = None
    attempt: int = 1
    ok: bool = True
    next: str | None = None
    error: str | None = None
    opened_ms: int = 0
    started_ms: int = 0
    took_ms: int = 0
    worker: str = ""
    usage: dict[str, Any] | None = None
    v: int = VERSION


@dataclass(frozen=True)
class Write:
    """A journal step with what it writes: the delivered delta of the result, then the planner's own `values`."""

    step: Step
    delta: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Notice:
    """Something for watchers: an entry of the run's event stream."""

    type: str
    data: dict[str, Any]


RUN_DEADLINE = "deadline"

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


@dataclass(frozen=True)
class Transition:
    """What one event changes. Applied by the store in one atomic commit, or not at all.

    `delivered` is the visit whose result this applies: its delivery has ended its lease already. `wakes` are live
    visits that workers have to hear of again. `unless_claimed`: only while no worker has any of the closed visits.
    `revives` brings a failed run back to life: its keys must no longer expire. `paused` and `idle_ms` are the run's
    after this.
    """

    close: tuple[Visit, ...] = ()
    open: tuple[Visit, ...] = ()
    gates: tuple[Gate, ...] = ()
    writes: tuple[Write, ...] = ()
    delivered: int | None = None
    wakes: tuple[Visit, ...] = ()
    unless_claimed: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)
    status: RunStatus = "running"
    started_ms: int | None = None
    ended_ms: int | None = None
    error: str | None = None
    failed_at: str | None = None
    paused: Pause | None = None
    idle_ms: int = 0
    revives: bool = False
    output: str | None = None
    usage: dict[str, Any] | None = None
    timers: Mapping[str, int] = field(default_factory=dict)
    untimers: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()

    @property
    def dispatches(self) -> tuple[Visit, ...]:
        """The visits that workers have to hear of now."""
        if self.paused is not None:
            return ()
        return (*(visit for visit in self.open if visit.state == "queued"), *self.wakes)

    def apply(self, run: RunView) -> RunView:
        """The run after this transition was committed."""
        closed = {visit.seq for visit in self.close}
        frontier = {seq: visit for seq, visit in run.frontier.items() if seq not in closed}
        frontier |= {visit.seq: visit for visit in self.open}
        return replace(
            run,
            status=self.status,
            version=run.version + 1,
            seq=max([run.seq, *(visit.seq for visit in self.open)]),
            step=max([run.step, *(write.step.step for write in self.writes)]),
            started_ms=run.started_ms if self.started_ms is None else self.started_ms,
            failed_at=self.failed_at,
            paused=self.paused,
            idle_ms=self.idle_ms,
            counts={**run.counts, **self.counts},
            timings={**run.timings, **self.timings},
            frontier=frontier,
        )
