"""The live visits of a run: the place and the body of each.

A visit is two unions. Its *place* is what it is part of, which decides what its end means: a branch of a super-step, an
item of a map, a turn or a call of a model loop, a function of the agent for another visit or around the run, or the
run itself. Its *body* is what it does or waits for now, with only the fields of that; the state of a visit is the state
of its body. So the types rule out a visit that waits for a person and has a queue, or one on a worker with a deadline.

planner/states.py has the legal moves between bodies. store/visit_records.py reads and writes the JSON of a visit.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, TypeAlias

from sleipnir.messages import VERSION, InterruptQuestion, Role

VisitState: TypeAlias = Literal["ready", "queued", "waiting", "ended", "failed"]
"""The state of a visit, which follows from its body.

ready    waits for a slot of its run (limits of concurrency), or, in a `dag`, for a visit of the same node to end
queued   belongs to the workers: none has claimed it yet, or one works on it
waiting  for a person, a timer, the items of a map, the parts of a loop, a child run, or for slots for its commands
ended    has ended, and waits for the others of its super-step
failed   cannot go on, and its run fails; kept for `retry`, which runs it again
"""

Rank: TypeAlias = tuple[int, str, str, int]
"""The position of a visit in the visit order: depth, node, lineage, index. Reducers fold in this order.

`depth` is the number of its super-step, or in a `dag` one more than its deepest cause's; `lineage` (`dag` only) tells
visits of different causes apart; `index` those of one list of commands.
"""


def lineage_of(cause: str) -> str:
    """The lineage of visits with this cause."""
    return f"{zlib.crc32(cause.encode()):08x}"


def lineage_after(rank: Rank, *, is_one_of_a_list: bool) -> str:
    """The lineage of the visits that a visit of a `dag` opens. After two firings of a join these have the same hash,
    and keep the order of the firings; `is_one_of_a_list`: the visit's index is that of a list of commands."""
    depth, node, lineage, index = rank
    base, dot, firing = lineage.partition(".")
    if index and not is_one_of_a_list:
        return f"{lineage_of(str((depth, node, base, 0)))}{dot}{firing}.{index:06}"
    return f"{lineage_of(str((depth, node, base, index)))}{dot}{firing}"


# Places: what a visit is part of


@dataclass(frozen=True)
class Part:
    """The address of a turn, or of a call, of the loop with id `loop`, as journals and workers know it: turn `turn`,
    and of that turn call number `call` of the tool `tool`, which the model calls `id`."""

    loop: int
    turn: int
    call: int | None = None
    tool: str = ""
    id: str = ""


@dataclass(frozen=True)
class Branch:
    """A visit of its super-step; in a `dag` every visit is a super-step of its own. `batch` is the visit whose list of
    commands opened it."""

    batch: int | None = None

    is_branch: ClassVar[bool] = True
    role: ClassVar[Role] = "node"
    part: ClassVar[Part | None] = None


BRANCH: Final = Branch()
"""The place of a visit that no list of commands opened."""


@dataclass(frozen=True)
class Item:
    """An item of a map, as the visit of one of its bodies: the item `index` of the fan with id `map`, in the body with
    the number `position` of the chain of the map node `of`."""

    map: int
    index: int
    position: int = 0
    of: str = ""

    is_branch: ClassVar[bool] = False
    role: ClassVar[Role] = "node"
    part: ClassVar[Part | None] = None


@dataclass(frozen=True)
class Turn:
    """The turn number `turn` of the loop with id `loop`. `item`: that loop is the visit of an item, and its last turn
    leaves the item's result."""

    loop: int
    turn: int
    item: Item | None = None

    is_branch: ClassVar[bool] = False
    role: ClassVar[Role] = "turn"

    @property
    def part(self) -> Part | None:
        return Part(self.loop, self.turn)


@dataclass(frozen=True)
class Call:
    """Call number `call` of a turn. With `summary` a worker makes a summary of the call's result, which is too long for
    the model to read."""

    loop: int
    turn: int
    call: int
    tool: str
    id: str
    summary: bool = False

    is_branch: ClassVar[bool] = False

    @property
    def role(self) -> Role:
        return "summary" if self.summary else "tool"

    @property
    def part(self) -> Part | None:
        return Part(self.loop, self.turn, self.call, self.tool, self.id)


@dataclass(frozen=True)
class AgentFunction:
    """A function of the agent's own that a worker calls for a visit that has ended: `branch` chooses its way on,
    `reduce` folds what its step has written. `visit` is the number of that visit."""

    role: Literal["branch", "reduce"]
    visit: int

    is_branch: ClassVar[bool] = True
    part: ClassVar[Part | None] = None


@dataclass(frozen=True)
class WholeRun:
    """The run itself: the question whether it may use more than its budget. It belongs to no super-step."""

    is_branch: ClassVar[bool] = False
    role: ClassVar[Role] = "node"
    part: ClassVar[Part | None] = None


WHOLE_RUN: Final = WholeRun()


@dataclass(frozen=True)
class Ending:
    """How a run ends, unless the agent's functions after it decide otherwise. They are given its output."""

    status: Literal["completed", "failed"]
    error: str | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class RunFunction:
    """The agent's functions around the whole run, which a worker calls: before its first visit, or once it is to end
    as `ending` says. It belongs to no super-step; its node is that at which the graph starts. If they have returned
    while the run is paused, `ending` is what they have left of it."""

    role: Literal["before_run", "after_run"]
    ending: Ending | None = None

    is_branch: ClassVar[bool] = False
    part: ClassVar[Part | None] = None


Place: TypeAlias = Branch | Item | Turn | Call | AgentFunction | WholeRun | RunFunction


# Bodies: what a visit does now


@dataclass(frozen=True)
class Child:
    """The run that a visit waits for, or waited for before it failed, and the agent of that run. Its parent has already
    counted `failed_visits` of it, if the run ended before and goes on. `callbacks` are what callbacks have decided
    before it began."""

    run: str
    agent: str
    failed_visits: int = 0
    callbacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """A worker of `queue` runs it. Of the executions before this one, `failures` ended as a failure that a retry policy
    forgave, and `losses` with a lost worker; `error` is why the last one ended. `given` names a value among the run's
    items that its worker gets. `generation`, of a visit whose effect must happen once, is Redis' when it was queued
    first: in another one it may have run in what Redis has lost. `sees`: its executions see the state after that
    journal step, as an earlier one did that a pause has stopped in a `dag`; None: the current state. `child`: the run
    that is over and whose end its worker maps; a retry waits for that run again. `input_changed`: a callback has
    changed what an execution saw of the state, so it is asked again."""

    queue: str
    failures: int = 0
    losses: int = 0
    error: str | None = None
    given: str | None = None
    generation: str | None = None
    sees: int | None = None
    child: Child | None = None
    input_changed: bool = False

    state: ClassVar[VisitState] = "queued"
    due_ms: ClassVar[int | None] = None


@dataclass(frozen=True)
class Fan:
    """A map that waits for its items, which are visits of their own, at most so many at once.

    `id` is the number of the map's visit, or of the first one if the run was retried; `next` the first item that was
    never started. `done` items have ended for good, `failed` of them with a failure. In a map in chunks, the values of
    the first `put` items are stored one by one (None: of all), and the results of `gathered` chunks are in one piece
    each.
    """

    id: int
    total: int
    next: int = 0
    done: int = 0
    failed: int = 0
    put: int | None = None
    gathered: int = 0

    state: ClassVar[VisitState] = "waiting"
    due_ms: ClassVar[int | None] = None


@dataclass(frozen=True)
class Ready:
    """It waits for a slot of its run. `resumes` is its earlier body: work that is tried again, a map with items that
    have not ended, or a child run that goes on; None: it has not started yet."""

    resumes: Work | Fan | Child | None = None

    state: ClassVar[VisitState] = "ready"
    due_ms: ClassVar[int | None] = None


READY: Final = Ready()


@dataclass(frozen=True)
class Backoff:
    """Work that is tried again at `due_ms`: after a failure, or (`limited`) because its worker met a limit."""

    work: Work
    due_ms: int
    limited: bool = False

    state: ClassVar[VisitState] = "waiting"


@dataclass(frozen=True)
class Question:
    """A person has to answer, until `due_ms` (None: without limit). The code of a node has `asked` (without its value,
    which is part of the gate): `work` goes on with the answer."""

    due_ms: int | None = None
    work: Work | None = None
    asked: InterruptQuestion | None = None

    state: ClassVar[VisitState] = "waiting"


@dataclass(frozen=True)
class Doubt:
    """A person has to decide about lost work of a node with `effect: once`, which may or may not be done."""

    work: Work

    state: ClassVar[VisitState] = "waiting"
    due_ms: ClassVar[int | None] = None


@dataclass(frozen=True)
class Spawned:
    """An agent that the model of a loop has started, until its result was collected or it was cancelled: `id` is the
    model's name for it. The visit `seq` was the call that started the run `run`. `exit` is the end of that run, as the
    model reads it (`Completed`, `Failed("...")`); None while it runs."""

    id: str
    run: str
    agent: str
    seq: int
    exit: str | None = None


@dataclass(frozen=True)
class Loop:
    """An llm node with tools, which waits for its turns and calls: visits of their own.

    `id` is the number of the visit, and names the conversation among the run's items. `turn` is under way, counted from
    0; of the `calls` that the model asked for in it, `open` have not ended. `agents` are those that it has spawned.
    `has_tasks`: its model has a task queue. `escalations` are questions of child runs that it may answer
    (planner/loops/escalating.py). Its time ends at `due_ms`. A tools node is a loop of one turn, the message whose
    calls it executes: the calls `waiting` are not visits yet.
    """

    id: int
    turn: int = 0
    calls: int = 0
    open: int = 0
    agents: tuple[Spawned, ...] = ()
    has_tasks: bool = False
    escalations: tuple[Mapping[str, Any], ...] = ()
    waiting: tuple[int, ...] = ()
    due_ms: int | None = None

    state: ClassVar[VisitState] = "waiting"

    @property
    def tasks(self) -> str:
        """The field of the run's items that holds its task queue."""
        return f"{self.id}.tasks"

    def output_of(self, agent: Spawned) -> str:
        """The field of the run's items that holds the output of an agent whose run has ended."""
        return f"{self.id}.agents.{agent.id}"


@dataclass(frozen=True)
class ChildWait:
    """The visit waits for a child run, until `due_ms` (None: without limit)."""

    child: Child
    due_ms: int | None = None

    state: ClassVar[VisitState] = "waiting"


@dataclass(frozen=True)
class Delay:
    """The visit waits until `due_ms`. The code of its node has `asked` for that: `work` goes on then."""

    due_ms: int
    work: Work | None = None
    asked: InterruptQuestion | None = None

    state: ClassVar[VisitState] = "waiting"


@dataclass(frozen=True)
class SignalWait:
    """The visit waits for a signal `name` that has come at `since_ms` or later, until `due_ms` (None: without limit).
    `one`: for one that no other such visit takes. `work` and `asked` are as in Delay."""

    name: str
    since_ms: int
    due_ms: int | None = None
    one: bool = False
    work: Work | None = None
    asked: InterruptQuestion | None = None

    state: ClassVar[VisitState] = "waiting"


@dataclass(frozen=True)
class Receipt:
    """A call that sends a message waits until the parent run reports whether the agent `addressee` exists."""

    addressee: str
    due_ms: int | None = None

    state: ClassVar[VisitState] = "waiting"


WIDE: Final = 128
"""The most visits of a list of commands that wait for slots; further commands become visits as others end."""


@dataclass(frozen=True)
class Commands:
    """The commands of the visit `of` that become visits as others end: there are too many to make them all at once.

    `targets` are the nodes, by the number of the command; an empty one makes no visit. `next` is the first command that
    has made none yet, `left` how many visits are to come by node, `index` the next one's place among those of its node.
    """

    of: int
    targets: tuple[str, ...]
    next: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    index: Mapping[str, int] = field(default_factory=dict)

    state: ClassVar[VisitState] = "waiting"
    due_ms: ClassVar[int | None] = None


@dataclass(frozen=True)
class Ended:
    """It has ended, and waits for others of its super-step, or until its paused run may end. `step` is its journal step
    (0: an end node, which is written when the step closes), `keys` what it wrote; `next` and `sends` are as in
    ResultHeader; `ok` chooses between success and fallback. `applied`: the writes count already, and only its routes
    are still to be chosen."""

    step: int
    ok: bool = True
    applied: bool = False
    keys: tuple[str, ...] = ()
    next: str | tuple[str, ...] | None = None
    sends: tuple[str, ...] | None = None

    state: ClassVar[VisitState] = "ended"
    due_ms: ClassVar[int | None] = None


@dataclass(frozen=True)
class Failure:
    """Why a run failed, for programs. `kind` is `visit`: a visit failed, number `seq`; `writes`: the writes of visits
    contradict each other, or a reducer refuses one; `steps`: no more steps, or entries into a node, are allowed.
    `error_type` is the exception that the visit's own code raised, as `package.module:Name`, `code` its code; where
    failures are collected, `node` and `step` say of which visit. If a run failed because
    one below it did, it is the failure of that one, and `seq` the visit that waited for it."""

    kind: str
    seq: int | None = None
    error_type: str | None = None
    code: str | None = None
    node: str | None = None
    step: int | None = None
    v: int = VERSION


MOST_MESSAGE: Final = 2_000
"""Characters of the message of a failure that are recorded."""

_OF_AGENT: Final = re.compile(r"sleipnir_agent_[0-9a-f]+\.([^:]+):")


def stable_type(error_type: str | None) -> str | None:
    """An exception by a name that does not change with the agent's other files: `file.py:Name` for one of its own."""
    return error_type and _OF_AGENT.sub(lambda match: f"{match[1].replace('.', '/')}.py:", error_type)


@dataclass(frozen=True)
class Failed:
    """It has failed for good. `was` is the body from which `retry` goes on (None: it starts anew), `begun` whether its
    work may have begun. `failure` is what the run fails for because of it. `counted`: its entry into its node was
    counted; a limit that it broke may have come first."""

    error: str | None = None
    was: Work | Doubt | Fan | Loop | Child | Commands | None = None
    begun: bool = True
    failure: Failure | None = None
    counted: bool = True

    state: ClassVar[VisitState] = "failed"
    due_ms: ClassVar[int | None] = None


Body: TypeAlias = (
    Ready
    | Work
    | Backoff
    | Question
    | Doubt
    | Fan
    | Loop
    | ChildWait
    | Delay
    | SignalWait
    | Receipt
    | Commands
    | Ended
    | Failed
)


@dataclass(frozen=True)
class Visit:
    """One live visit. `attempt` counts executions, and is the fence. `group` is the number of its super-step; in a
    `dag`, its own. `overlay` names values that this visit alone sees."""

    seq: int
    node: str
    kind: str
    attempt: int
    opened_ms: int
    place: Place = BRANCH
    body: Body = READY
    group: int = 0
    depth: int = 0
    lineage: str = ""
    index: int = 0
    overlay: str | None = None

    @property
    def state(self) -> VisitState:
        return self.body.state

    @property
    def role(self) -> Role:
        """The role in which its worker executes it."""
        return self.place.role

    @property
    def part(self) -> Part | None:
        """Its address in a loop; None: it is part of none."""
        return self.place.part

    @property
    def item(self) -> Item | None:
        """The item of a map that it, or its loop, is. None: neither is one, or it is a call."""
        place = self.place
        return place if isinstance(place, Item) else place.item if isinstance(place, Turn) else None

    @property
    def twin(self) -> int | None:
        """What tells it apart from other visits of its node that are live at once: the index of its item, or of its
        command. None: no other one is."""
        if (item := self.item) is not None:
            return item.index
        return self.index if isinstance(self.place, Branch) and self.place.batch is not None else None

    @property
    def is_asking(self) -> bool:
        """Whether it waits for a person."""
        return isinstance(self.body, (Question, Doubt))

    @property
    def children(self) -> tuple[str, ...]:
        """The live runs that end with it: the run that it waits for, and those that its model has spawned."""
        match self.body:
            case ChildWait(child):
                return (child.run,)
            case Loop(agents=agents):
                return tuple(agent.run for agent in agents if agent.exit is None)
        return ()

    @property
    def former(self) -> Child | None:
        """The child run that it waited for before it failed, and that goes on when it is run again."""
        body = self.body
        earlier = body.was if isinstance(body, Failed) else body.resumes if isinstance(body, Ready) else None
        return earlier if isinstance(earlier, Child) else None

    @property
    def queue(self) -> str | None:
        """The queue of the workers that execute it, now or at its next attempt. None: it needs no worker."""
        body = self.body.work if isinstance(self.body, Backoff) else self.body
        return body.queue if isinstance(body, Work) else None

    @property
    def is_branch(self) -> bool:
        """Whether it is a member of its super-step, not an item of a map, part of a loop or question about the
        budget."""
        return self.place.is_branch

    @property
    def rank(self) -> Rank:
        return (self.depth, self.node, self.lineage, self.index)

    @property
    def due_ms(self) -> int | None:
        """When its timer is due: the next try, the end of a delay, the expiry of a question, the end of a loop's or a
        child's time."""
        return self.body.due_ms

    @property
    def timer(self) -> str:
        """The name of its timer within the run; each attempt has its own."""
        return f"visit/{self.seq}/{self.attempt}"


def seq_of_timer(name: str) -> int:
    """The number of the visit whose timer has this name (Visit.timer); -1: not a timer of a visit."""
    owner, _, visit = name.partition("/")
    seq = visit.partition("/")[0]
    return int(seq) if owner == "visit" and seq.isdecimal() else -1
