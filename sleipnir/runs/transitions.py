"""The changes that one event makes to a run: the planner decides them, and the store applies them.

A Transition is applied by one atomic commit, or not at all. Its parts are what is stored of a run besides its visits:
journal steps and what they write, values of single visits, notices for watchers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from sleipnir.decoding import needed_by, read, read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import VERSION, Role, RunStatus
from sleipnir.runs.budgets import NOTHING_SPENT, Budget, BudgetUse
from sleipnir.runs.child_run import ChildSettings
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.run import NO_FAILED_VISITS, FailedVisits, Gate, Hold, RunView, Slot, Timing, changed
from sleipnir.runs.visits import Failure, Part, Rank, Visit


@dataclass(frozen=True)
class Closing:
    """A super-step closes: all its visits have ended, and the next one opens. What the journal does not have otherwise:

    `nodes` are those that open, `commands` is the number of further visits that do, with values of their own. `arrived`
    and `deferred` are those of the run after that (run.RunView); None: as at the last closing, {} before the first.
    `lists` are these commands, by the visit that gave them: their targets as in run.CommandList.

    A `dag` has no super-steps: `ways` are the nodes that ended visits open, by visit, where their targets in the
    journal do not tell; `nodes`, `arrived` and `deferred` are not used.
    """

    nodes: tuple[str, ...] = ()
    arrived: Mapping[str, Mapping[str, int]] | None = None
    deferred: Mapping[str, int] | None = None
    commands: int = 0
    lists: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    ways: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One journal entry: a visit that ended, or (no `seq`) a request about the run.

    Step 0 is the submission (`kind` "submitted"). The requests are paused, resumed, cancelled, retried, commented
    (what a person says of the question of the visit `gate`), and answered, where the answer to that question does not
    end the visit; `by` is the actor (by.By, as text), `reason` the reason, or the comment. `answer` is the answer of
    `by` to a question, `key` the name of that question if it is an interrupt.

    Its writes count from this step on, unless it is `held` because others of its super-step have not ended.
    `applies` are the steps whose writes count from here on, in visit order, this one included if it is held;
    `skips` lists by step the written keys that do not count. `rank` is its place in the visit order where that may
    differ from the order of the journal. `folds` names the reducer of each key whose value is combined, not
    replaced; `strict` selects its rules (graph.reducers). `routes` are the targets of visits that ended in earlier
    steps, by visit, as decided here. `part` is the turn or call of a loop that it was, `calls` are the tools that
    the model called in it; `failed_visit`: it failed, and no fallback, retry or `on_error` node took that over;
    `goes_on`: the next turn follows although the turn has no calls. `closing`: its super-step closes with it; None
    if it does not, and for a visit that was alone in its super-step and leads to `next`, with nothing else to say.
    `skipped`: `by` gave the output of the visit, for `reason`; it is the digest of that (skips.digest_of), and
    `gate` the visit that had failed, if one had.
    `sent_by` is the visit whose list of commands opened it, if one did.
    `overlays` are the updates of the commands that a visit gave, by that visit, as one text (messages.OVERLAYS): the
    store adds them to its step, and to step 0 of a fork that goes on with them. `unrouted`: the visit of a `dag` has
    ended, but its ways on are chosen at a later step, whose `routes` have them.
    `voices` are the answers of all who have answered a question with a quorum (handling.Voice), in order of time.
    `past`, of step 0 of a fork (`kind` "forked"), is the run and the step after whose state it begins; the writes
    of step 0 are laid over that state. `cached`: nothing was executed, the result was that of an earlier visit.
    `callbacks` decided on the result (VisitResult.callbacks).
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
    part: Part | None = None
    calls: tuple[str, ...] = ()
    goes_on: bool = False
    by: str = ""
    reason: str | None = None
    gate: int | None = None
    answer: str | None = None
    key: str | None = None
    failed_visit: bool = False
    closing: Closing | None = None
    past: tuple[str, int] | None = None
    skipped: str | None = None
    sent_by: int | None = None
    cached: bool = False
    callbacks: tuple[str, ...] = ()
    overlays: Mapping[str, str] | None = None
    unrouted: bool = False
    voices: tuple[Mapping[str, Any], ...] = ()
    v: int = VERSION

    @property
    def is_checkpoint(self) -> bool:
        """Whether the run was at a consistent point after it: a super-step has closed, or, in a `dag`, a visit has
        ended. False for the steps of earlier releases that closed super-steps of several visits."""
        if self.closing is not None or self.rank is not None or self.step == 0:
            return not self.unrouted
        return self.next is not None and self.seq is not None and not self.held

    @classmethod
    def from_json(cls, text: str) -> Step:
        """Raises RecordUnreadable."""
        return read_text(Step, text, "journal step")


@dataclass(frozen=True)
class CollectResults:
    """The result of a map: the results of the fan `id`, those of `total` items in input order, become the value of
    `key`. `pieces` is the number of texts that hold them; 0: one per item."""

    id: int
    total: int
    key: str
    pieces: int = 0


@dataclass(frozen=True)
class Write:
    """A journal step and its writes: the delivered delta of the result, a map's results, the planner's `values`. With
    `keeps_commands` the step gets the updates of the commands of its visit (Step.overlays)."""

    step: Step
    delta: bool = False
    collect: CollectResults | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    keeps_commands: bool = False


@dataclass(frozen=True)
class PutValues:
    """Values that belong to single visits: fields `<of>.<first>`, `<of>.<first + 1>`, ... of the run's items."""

    of: int
    overlays: tuple[Mapping[str, Any], ...]
    first: int = 0


@dataclass(frozen=True)
class SplitCommands:
    """As PutValues, with the updates of the commands in the applied result."""

    of: int


@dataclass(frozen=True)
class TakeResult:
    """The applied result's `key` becomes the result of an item; None: all its `keys` go to the item's overlay."""

    field: str
    key: str | None
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetValue:
    """Set a value to this text: an overlay, or the JSON text of an item's result; empty: no result."""

    field: str
    text: str


@dataclass(frozen=True)
class GatherResults:
    """The results of the items `first` to `first + count - 1` of the fan `of` become one text, the piece number
    `piece`: JSON texts in input order, separated by commas."""

    of: int
    first: int
    count: int
    piece: int


def piece_field(fan: int, piece: int) -> str:
    """The field of the run's items that holds a piece of a map's results."""
    return f"{fan}.piece.{piece}"


@dataclass(frozen=True)
class DropValue:
    """Delete a value."""

    field: str


@dataclass(frozen=True)
class ForgetConversation:
    """Delete the conversation of a loop. All calls before turn `turn` have ended; some of the `calls` of that turn may
    not have."""

    id: int
    turn: int
    calls: int


ItemOp: TypeAlias = PutValues | SplitCommands | TakeResult | SetValue | GatherResults | DropValue | ForgetConversation


@dataclass(frozen=True)
class StartChild:
    """Start a run of `agent` with this id and prompt, for the visit `seq` of `node`, in its attempt. With a `state` it
    is a run of a graph of the parent's own bundle, which begins with that state and has no prompt. `twin` tells the
    child apart from others of the node that run at once: it is the index of an item or a command, or for an agent that
    a model starts the number of its visit. With `settings` it is an effect of version 2: an earlier release would start
    the child without them."""

    child: str
    agent: str
    prompt: str
    node: str
    seq: int
    attempt: int
    state: Mapping[str, Any] | None = None
    twin: int | None = None
    settings: ChildSettings | None = None


@dataclass(frozen=True)
class RetryChild:
    """Continue a run of `agent` that failed or was cancelled: the visit `seq` waits for it now, in its attempt. An
    `isolated` run is in no session, and the effect is of version 2."""

    child: str
    agent: str
    seq: int
    attempt: int
    isolated: bool = False


@dataclass(frozen=True)
class TellChild:
    """Pass a cancel, a pause or a resumption of a run on to its child run. A child that `keeps` its results may go on
    when its parent is retried. At `due_ms` a pause stops what still runs."""

    child: str
    what: Literal["cancelled", "paused", "resumed"]
    by: str = ""
    keeps: bool = False
    due_ms: int | None = None


@dataclass(frozen=True)
class TellParent:
    """Report to the parent that this run is over."""


@dataclass(frozen=True)
class TellRoot:
    """Show a notice of this run to watchers of the run at the top."""

    type: str
    data: dict[str, Any]


@dataclass(frozen=True)
class TellRun:
    """Send an event to another run's planner: `what` happened, with its `data`."""

    run: str
    what: str
    data: dict[str, Any]


@dataclass(frozen=True)
class StartRow:
    """Start the run of a row of a batch; `text` is the row (batches.row_text). The batch owes this, not a run."""

    batch: str
    row: int
    text: str


@dataclass(frozen=True)
class ForkRow:
    """Start the run of a row of a batch of forks; `text` is the row (batches.fork_text). The batch owes this."""

    batch: str
    row: int
    text: str


@dataclass(frozen=True)
class RetryRow:
    """Continue the failed run of a row of a batch. The batch owes this, not a run. `version` is that of the run when it
    failed; None, in effects of older releases: unknown."""

    batch: str
    row: int
    version: int | None = None


@dataclass(frozen=True)
class TellBatch:
    """Report to the batch that the run of the row `place` (batches.place_of) is over. `version` is that of the run
    after its end."""

    place: str
    version: int


@dataclass(frozen=True)
class AskSlot:
    """Ask for a slot of the run's agent: of the runs with this key, at most `limit` have one. A TellRun grants it."""

    agent: str
    key: str
    limit: int
    ticket: int


@dataclass(frozen=True)
class FreeSlot:
    """Free the run's slot, or withdraw its request."""

    agent: str
    key: str
    ticket: int


@dataclass(frozen=True)
class AwaitSignal:
    """The visit `seq`, in its attempt, waits for signals `name` of `since_ms` or later. `one`: each goes to one visit
    only; then `sure` says that the visit takes the first, as it has no filter."""

    name: str
    seq: int
    attempt: int
    since_ms: int
    one: bool = False
    sure: bool = False


@dataclass(frozen=True)
class LeaveSignal:
    """The visit waits no more. `took` is the number of the signal that it has taken; empty: none."""

    name: str
    seq: int
    attempt: int
    took: str = ""


@dataclass(frozen=True)
class DeclineSignal:
    """The visit, which still waits, does not take the signal with this number: its filter is false."""

    name: str
    seq: int
    attempt: int
    number: str


@dataclass(frozen=True)
class PassSignal:
    """The signal with this number was withdrawn from the visit, whose run is parked: it goes to others. The visit is
    offered no more until it waits again (events.AwaitedAgain)."""

    name: str
    seq: int
    attempt: int
    number: str


@dataclass(frozen=True)
class SpreadSignals:
    """More visits wait for signals `name` than one script reaches. signals.lua owes this, not a run."""

    name: str


@dataclass(frozen=True)
class ShareValues:
    """Write the state keys `keys` of the run back to the shared values of this scope, with the values that the run has
    when this is delivered. commit.lua owes this."""

    scope: str
    keys: tuple[str, ...]


@dataclass(frozen=True)
class StartScheduled:
    """Start the run of a fire of a schedule. `token` is that of the schedule (schedules.ScheduleOrigin): one that was
    removed starts nothing more. The store of schedules owes this, not a run."""

    schedule: str
    token: str
    run: str
    at_ms: int


@dataclass(frozen=True)
class StartBatch:
    """Start the batch of a fire of a schedule, as StartScheduled starts a run."""

    schedule: str
    token: str
    batch: str
    at_ms: int


@dataclass(frozen=True)
class CancelBatch:
    """Cancel the batch of an earlier fire of a schedule."""

    schedule: str
    batch: str


Effect: TypeAlias = (
    StartChild | RetryChild | TellChild | TellParent | TellRoot | TellRun | StartRow | ForkRow | RetryRow
    | TellBatch | AskSlot | FreeSlot | AwaitSignal | LeaveSignal | DeclineSignal | PassSignal
    | SpreadSignals | ShareValues | StartScheduled | StartBatch | CancelBatch
)  # fmt: skip
"""An effect that a commit owes to another run, which may be in another partition, or to a batch. It is delivered after
the commit, in order, at least once."""


_EFFECTS: Final[Mapping[str, type[Effect]]] = {
    "start_child": StartChild, "retry_child": RetryChild, "tell_child": TellChild, "tell_parent": TellParent,
    "tell_root": TellRoot, "tell_run": TellRun, "start_row": StartRow, "fork_row": ForkRow, "retry_row": RetryRow,
    "tell_batch": TellBatch, "ask_slot": AskSlot, "free_slot": FreeSlot, "await_signal": AwaitSignal,
    "leave_signal": LeaveSignal, "decline_signal": DeclineSignal, "pass_signal": PassSignal,
    "spread_signals": SpreadSignals, "share_values": ShareValues, "start_scheduled": StartScheduled,
    "start_batch": StartBatch, "cancel_batch": CancelBatch,
}  # fmt: skip
_NAMES: Final[Mapping[type[Effect], str]] = {kind: name for name, kind in _EFFECTS.items()}


WITH_SETTINGS: Final = 2
"""The version of a StartChild with settings, and of a RetryChild of an isolated run."""


def effect_fields(effect: Effect) -> dict[str, Any]:
    """An effect as it is stored."""
    fields = {"do": kind_of(effect), "v": VERSION, **vars(effect)}
    if isinstance(effect, TellChild) and effect.due_ms is None:
        del fields["due_ms"]
    if isinstance(effect, RetryChild):
        if effect.isolated:
            fields["v"] = WITH_SETTINGS
        else:
            del fields["isolated"]
    elif isinstance(effect, StartChild):
        if effect.settings is None:
            del fields["settings"]
        else:
            fields |= {"v": WITH_SETTINGS, "settings": effect.settings.to_json()}
    return fields


def kind_of(effect: Effect) -> str:
    """The name under which an effect is stored."""
    return _NAMES[type(effect)]


def effect_of(fields: Mapping[str, Any]) -> Effect | None:
    """A stored effect. None for an effect of a newer release: an unknown kind, a greater version, or without fields
    that this release needs. Raises RecordUnreadable for an effect that no release can read."""
    name = fields.get("do", "")
    kind = _EFFECTS.get(name) if isinstance(name, str) else None
    if kind is None and isinstance(name, str):
        return None
    if kind is None:
        raise RecordUnreadable("effect", "", f"damaged: its kind is {ascii(name)[:60]}")
    if not needed_by(kind) <= fields.keys():
        return None
    try:
        return read(kind, fields, "effect")
    except RecordUnreadable as error:
        if error.newer:
            return None
        raise


@dataclass(frozen=True)
class Notice:
    """Something for watchers: an entry of the run's event stream."""

    type: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Transition:
    """The changes that one event makes. The store applies them in one atomic commit, or not at all.

    `delivered` is the visit whose result this applies: its delivery has ended its lease already. `usage` is the cost of
    that result; with `usage_of`, it is the total cost of that child run, and replaces the cost counted before. `wakes`
    are live visits to publish again. `unless_claimed`: apply only while no worker has any of the closed visits;
    `unless_answered`: only while none of their questions is answered. `revives` continues a run that is over: its keys
    no longer expire. `keeps`: a cancelled run keeps what a retry needs, as a failed run does. `seq`, `holds`, `slot`,
    `idle_ms`, `steps`, `arrived`, `deferred`, `tops`, `budget`, `spent`, `failed_visits` and `limited_from` are the
    run's after this. Where the step of one of `writes` `applies` held steps, the store copies their writes into the
    state, except keys in `apart`. `folded` are values made by reducers, which go to the state only. `windows` are kept
    for keys of a `dag` that may be folded again (planner/dag_folding.py); None drops one. `gone` are the numbers of
    further closed visits, by super-step: they have ended, and nothing else is stored of them. `drops` are fields of
    items that nothing needs after this. `stops`: the visits that workers have are taken from them; the commit posts a
    LeaseLost for each. `continues`: the commit posts events.Continued to the run. Of the applied held steps, `copies`
    are those whose writes the store copies (None: all): each key of the others has a later writer.
    """

    close: tuple[Visit, ...] = ()
    gone: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    open: tuple[Visit, ...] = ()
    gates: tuple[Gate, ...] = ()
    writes: tuple[Write, ...] = ()
    delivered: int | None = None
    wakes: tuple[Visit, ...] = ()
    unless_claimed: bool = False
    unless_answered: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)
    status: RunStatus = "running"
    started_ms: int | None = None
    ended_ms: int | None = None
    error: str | None = None
    failure: Failure | None = None
    stopped_by: str | None = None
    holds: tuple[Hold, ...] = ()
    slot: Slot | None = None
    idle_ms: int = 0
    revives: bool = False
    keeps: bool = False
    output: str | None = None
    usage: dict[str, Any] | None = None
    usage_of: str | None = None
    timers: Mapping[str, int] = field(default_factory=dict)
    untimers: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    seq: int = 0
    steps: int = 0
    arrived: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    deferred: Mapping[str, int] = field(default_factory=dict)
    tops: Mapping[str, Rank] = field(default_factory=dict)
    items: tuple[ItemOp, ...] = ()
    drops: tuple[str, ...] = ()
    apart: frozenset[str] = frozenset()
    copies: tuple[int, ...] | None = None
    folded: Mapping[str, Any] = field(default_factory=dict)
    windows: Mapping[str, Any] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    continues: bool = False
    stops: bool = False
    budget: Budget | None = None
    spent: BudgetUse = NOTHING_SPENT
    failed_visits: FailedVisits = NO_FAILED_VISITS
    limited_from: int = 0
    frontier: Frontier | None = field(default=None, compare=False, repr=False)
    """The result of `visits_after` for the run that this was planned on, if the planner has computed it."""

    @property
    def dispatches(self) -> tuple[Visit, ...]:
        """The visits to publish to workers."""
        if self.status == "paused":
            return ()
        return (*(visit for visit in self.open if visit.state == "queued"), *self.wakes)

    def visits_after(self, run: RunView) -> Frontier:
        """The visits of the run after this."""
        frontier = Frontier.of(run.frontier)
        for visit in self.close:
            if visit.seq in frontier:
                frontier.drop(visit.seq)
        for group, seqs in self.gone.items():
            frontier.drop_members(group, seqs)
        for visit in self.open:
            frontier.put(visit)
        return frontier

    def apply(self, run: RunView, event: str = "") -> RunView:
        """The run after this transition was committed for the inbox entry `event`."""
        frontier = self.visits_after(run) if self.frontier is None else self.frontier
        return changed(
            run,
            status=self.status,
            version=run.version + 1,
            last_event=event,
            seq=max([run.seq, self.seq, *(visit.seq for visit in self.open)]),
            steps=self.steps,
            arrived=self.arrived,
            deferred=self.deferred,
            tops=self.tops,
            step=max([run.step, *(write.step.step for write in self.writes)]),
            started_ms=run.started_ms if self.started_ms is None else self.started_ms,
            failed_at=None,  # only older releases set it
            holds=self.holds,
            slot=self.slot,
            idle_ms=self.idle_ms,
            counts={**run.counts, **self.counts},
            timings={**run.timings, **self.timings},
            frontier=frontier,
            budget=self.budget,
            spent=self.spent,
            failed_visits=self.failed_visits,
            limited_from=self.limited_from,
        )


def usage_fields(transition: Transition) -> dict[str, Any]:
    """What a transition adds to the sums of a run, by their names (store/keys.py); with `usage_of`, the total of that
    child run."""
    if not (usage := transition.usage):
        return {}
    adds = {"tokens_in": usage.get("input_tokens", 0), "tokens_out": usage.get("output_tokens", 0)}
    adds["model_calls"] = usage.get("calls", 0)
    if usage.get("cost_usd") is None:
        adds["unpriced_calls"] = usage.get("calls", 0)
    else:
        adds["cost_usd"] = usage["cost_usd"]
    return {name: by for name, by in adds.items() if by}


NO_CHANGES: Final = Transition()
