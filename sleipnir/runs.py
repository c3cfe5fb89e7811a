"""A run, as the planner sees it and the store keeps it: events in, a Transition out.

These shapes are shared by the store (which reads and writes them) and the scheduler's planner (which decides with
them). They are values: nothing here knows Redis or a clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """How a visit ended that waits for others of its super-step. `step` is its journal step (0: an end node, which is
    written when the step closes), `keys` what it wrote; `next` and `sends` are as in ResultHeader; `ok` chooses between
    success and fallback. `applied`: the writes count already, and only the way on is still to be found."""

    step: int
    ok: bool = True
    applied: bool = False
    keys: tuple[str, ...] = ()
    next: str | tuple[str, ...] | None = None
    sends: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Fan:
    """How far a map is. Its items are visits of their own, at most so many at once.

    `id` is the number of the map's visit, or of the first one if the run was retried; `next` the first item that was
    never started. `done` items have ended for good, `failed` of them badly.
    """

    id: int
    total: int
    next: int = 0
    done: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Item:
    """An item of a map, as the visit of one of its bodies: the item `index` of the fan with id `map`, in the body with
    the number `position` of the chain of the map node `of`."""

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
    def is_asking(self) -> bool:
        """Whether it waits for a person."""
        return self.queue is None and self.fan is None and self.state == "waiting"

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
    that. `steps` counts super-steps, in a `dag` visits. `arrived` says per join, by its name, which sources it has got
    since it fired last, each with its depth; below nought, how often a quorum did not wait for it. `tops` (`dag` only)
    are the ranks of what was written to keys, or to the output, while a visit of a lower rank was live.
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
    steps: int = 0
    arrived: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    tops: Mapping[str, Rank] = field(default_factory=dict)

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
    """One journal entry: a visit that ended. Step 0 is the submission (`kind` "submitted", no node).

    What it wrote counts from here on, unless it is `held` because others of its super-step have not ended. `applies`
    are the steps whose writes count from here on, in visit order, this one included if it is held; `skips` lists by
    step the keys that were written and do not count all the same. `rank` is its place in the visit order where that may
    differ from the order of the journal. `folds` names the reducer of each key that is not replaced but combined with
    what is there; `strict` says in which sense (graph.reducers). `routes` are the targets of visits that ended in
    earlier steps, by visit, as decided here.
    """

    step: int
    kind: str
    at_ms: int
    seq: int | None = None
    node: str | None = None
    attempt: int = 1
    ok: bool = True
    next: str | tuple[str, ...] | None = None
    error: str | None = None
    opened_ms: int = 0
    started_ms: int = 0
    took_ms: int = 0
    worker: str = ""
    usage: dict[str, Any] | None = None
    role: Role = "node"
    item: tuple[int, int] | None = None
    held: bool = False
    applies: tuple[int, ...] = ()
    skips: Mapping[str, tuple[str, ...]] | None = None
    rank: Rank | None = None
    folds: Mapping[str, str] | None = None
    strict: bool = False
    routes: Mapping[str, tuple[str, ...]] | None = None
    v: int = VERSION

    @classmethod
    def from_json(cls, text: str) -> Step:
        """Unknown fields are ignored, as in Visit.from_json."""
        return _known(cls, json.loads(text))


@dataclass(frozen=True)
class Collect:
    """What a map leaves: the results of the fan `id`, those of `total` items in input order, as the value of `key`."""

    id: int
    total: int
    key: str


@dataclass(frozen=True)
class Write:
    """A journal step and what it writes: the delivered delta of the result, a map's results, the planner's `values`."""

    step: Step
    delta: bool = False
    collect: Collect | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Put:
    """Values that belong to single visits: fields `<of>.0`, `<of>.1`, ... of the run's items."""

    of: int
    overlays: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Split:
    """The same, from the updates of the commands that the applied result has delivered."""

    of: int


@dataclass(frozen=True)
class Take:
    """The applied result's `key` becomes the result of an item; None: all it wrote goes to the item's overlay."""

    field: str
    key: str | None


@dataclass(frozen=True)
class Fill:
    """A value is this text from now on: an overlay, or the JSON text of an item's result; empty: it has none."""

    field: str
    text: str


@dataclass(frozen=True)
class Drop:
    """A value is not needed any more."""

    field: str


ItemOp: TypeAlias = Put | Split | Take | Fill | Drop


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
    `revives` brings a failed run back to life: its keys must no longer expire. `seq`, `paused`, `idle_ms`, `steps`,
    `arrived` and `tops` are the run's after this. Where the step of one of `writes` says which held steps count from
    now on (`applies`), the store copies what they wrote into the state, keys in `apart` left out. `folded` goes to the
    state alone: values that reducers have made. `windows` are kept for keys of a `dag` that may have to be folded anew
    (see planner/folding.py), None drops one.
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
    seq: int = 0
    steps: int = 0
    arrived: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    tops: Mapping[str, Rank] = field(default_factory=dict)
    items: tuple[ItemOp, ...] = ()
    apart: frozenset[str] = frozenset()
    folded: Mapping[str, Any] = field(default_factory=dict)
    windows: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dispatches(self) -> tuple[Visit, ...]:
        """The visits that workers have to hear of now."""
        if self.paused is not None:
            return ()
        return (*(visit for visit in self.open if visit.state == "queued"), *self.wakes)

    def apply(self, run: RunView) -> RunView:
        """The run after this transition was committed."""
        frontier = dict(run.frontier)
        for visit in self.close:
            frontier.pop(visit.seq, None)
        frontier |= {visit.seq: visit for visit in self.open}
        return changed(
            run,
            status=self.status,
            version=run.version + 1,
            seq=max([run.seq, self.seq, *(visit.seq for visit in self.open)]),
            steps=self.steps,
            arrived=self.arrived,
            tops=self.tops,
            step=max([run.step, *(write.step.step for write in self.writes)]),
            started_ms=run.started_ms if self.started_ms is None else self.started_ms,
            failed_at=self.failed_at,
            paused=self.paused,
            idle_ms=self.idle_ms,
            counts={**run.counts, **self.counts},
            timings={**run.timings, **self.timings},
            frontier=frontier,
        )
