"""The effects that a transition owes to other runs and to the batch: those that planning adds, and those that follow
from its changes.

Code that closes a visit does not look for child runs that no visit waits for: `all_of` compares the visits before and
after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sleipnir.runs.run import RunView, Slot, question_id
from sleipnir.runs.transitions import (
    AwaitSignal,
    Effect,
    FreeSlot,
    LeaveSignal,
    Notice,
    RetryChild,
    StartChild,
    TellBatch,
    TellChild,
    TellParent,
    TellRoot,
    TellRun,
)
from sleipnir.runs.visits import Call, Question, SignalWait, Visit

SETTLED = "settled"
"""The event that withdraws a question at the run at the top."""

_SHOWN_AT_THE_TOP = (
    "gate_opened", "gate_answered", "gate_expired", "child_started", "child_retried", "child_ended", "run_stopped",
)  # fmt: skip

Changes = list[tuple[Visit | None, Visit | None]]


@dataclass
class Owed:
    """`ended` are child runs that this event is about: they are over, gone, or cannot go on, so nothing cancels them.
    `recalled` are child runs that are cancelled nevertheless. `took` are the numbers of the signals that visits have
    taken with this event, by visit; `choosy` the visits that begin to wait for a signal and may decline one."""

    effects: list[Effect] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    recalled: list[str] = field(default_factory=list)
    took: dict[int, str] = field(default_factory=dict)
    choosy: set[int] = field(default_factory=set)

    def add(self, effect: Effect) -> None:
        self.effects.append(effect)


def all_of(
    run: RunView,
    owed: Owed,
    changes: Changes,
    notices: Sequence[Notice],
    slot: Slot | None,
    *,
    ends: bool,
    stays_over: bool,
) -> Iterator[Effect]:
    """The added effects, and those that follow from the changes: child runs that no visit waits for are cancelled; the
    run at the top receives notices of questions and children, and withdrawals of questions; the slot of a run that
    `ends` becomes free, and its parent or its batch is notified. The parent of a run that `stays_over` receives its
    later cost."""
    yield from owed.effects
    if changes:
        yield from _cancelled_children(owed, changes)
        yield from _signals(owed, changes)
    for child in owed.recalled:
        yield TellChild(child, "cancelled")
    spec = run.spec
    if spec.root is not None:
        for notice in notices:
            if notice.type in _SHOWN_AT_THE_TOP:
                yield TellRoot(notice.type, {"run": run.id, **notice.data, "path": spec.path})
        for before, after in changes:
            if before and _asks_at_the_top(before) and not (after and _asks_at_the_top(after)):
                yield TellRun(spec.root, SETTLED, {"escalation_id": question_id(run.id, before.seq)})
    if ends and slot is not None:
        yield FreeSlot(spec.agent, slot.key, slot.ticket)
    if spec.parent is not None and (ends or stays_over):
        yield TellParent()
    elif run.batch is not None and ends:
        yield TellBatch(run.batch, run.version + 1)


def children_of(visits: Iterable[Visit | None]) -> dict[str, None]:
    """The runs that end with these visits, each once, in order."""
    return dict.fromkeys(child for visit in visits if visit is not None for child in visit.children)


def _signals(owed: Owed, changes: Changes) -> Iterator[Effect]:
    """What those who deliver signals need to know of the visits that wait for one."""
    for before, after in changes:
        was, now = before and before.body, after and after.body
        if was is now:
            continue
        if before is not None and isinstance(was, SignalWait):
            yield LeaveSignal(was.name, before.seq, before.attempt, owed.took.get(before.seq, ""))
        if after is not None and isinstance(now, SignalWait):
            sure = now.one and after.seq not in owed.choosy
            yield AwaitSignal(now.name, after.seq, after.attempt, now.since_ms, now.one, sure)


def _cancelled_children(owed: Owed, changes: Changes) -> Iterator[Effect]:
    """Cancels of child runs that no visit waits for now. The child of a failed visit keeps its results: it may go on
    when the visit runs again."""
    started = [effect.child for effect in owed.effects if isinstance(effect, (StartChild, RetryChild))]
    concerned = dict.fromkeys((*children_of(before for before, _ in changes), *started))
    if not concerned:
        return
    current = children_of(after for _, after in changes)
    may_go_on = {after.former.run for _, after in changes if after is not None and after.former is not None}
    for child in concerned:
        if child not in current and child not in owed.ended:
            yield TellChild(child, "cancelled", keeps=child in may_go_on)


def _asks_at_the_top(visit: Visit) -> bool:
    """Whether it asks a question of a model, which the model at the top may answer too. An interrupt of a tool is for
    people."""
    if not isinstance(visit.place, Call) or not visit.is_asking or visit.kind == "tools":
        return False
    return not (isinstance(visit.body, Question) and visit.body.asked is not None)
