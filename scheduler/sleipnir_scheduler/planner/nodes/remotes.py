"""The node of the graph of a remote agent (graph/model/remotes.py): a task elsewhere, and a visit that waits for it
without a worker.

    a worker sends the message ─► the visit waits ─► a worker looks at the task ─► it waits again, asks, or ends

Each execution leaves what the next one has to know in the key of what it asks or waits for; only the newest is kept. A
run that is cancelled after its task has become known ends once a worker has cancelled that: its answers are then under
CANCELLING. A second cancel ends it at once.
"""

from __future__ import annotations

from typing import Final

from sleipnir.graph.model import REMOTE, Json, RemoteNode
from sleipnir.messages import InterruptQuestion
from sleipnir.runs.events import Cancelled
from sleipnir.runs.interrupts import UsedAnswer, answers_of, answers_text
from sleipnir.runs.remote_tasks import CANCELS
from sleipnir.runs.run import changed
from sleipnir.runs.transitions import DropValue, SetValue
from sleipnir.runs.visits import Delay, Question, Ready, SignalWait, Visit, Work
from sleipnir_scheduler.planner.context import Context

CANCELLING: Final = ".cancelling"
"""The end of the name of what the executions of a visit are given that cancels its task."""


def is_remote(context: Context, visit: Visit) -> bool:
    """Whether a visit is that of a remote agent's task."""
    return isinstance(context.graph.nodes.get(visit.node), RemoteNode)


def newest(asked: InterruptQuestion, value: Json, before: str) -> list[UsedAnswer]:
    """What the next execution of such a visit is given; `before` is what the last one was. After a wait the answer of a
    person stays: it may not have been sent yet."""
    if asked.wait is not None:
        earlier = answers_of(before)
        value = earlier[-1].value if earlier else None
    return [UsedAnswer(asked.key, asked.at, value)]


def is_cancelling(visit: Visit) -> bool:
    """Whether the executions of a visit cancel its task."""
    work = _work_of(visit)
    return work is not None and work.given is not None and work.given.endswith(CANCELLING)


def cancel(context: Context, event: Cancelled) -> bool:
    """Let a worker cancel the task of a run. False: there is none that is known, or it is being cancelled already.
    Raises MissingValues."""
    if not isinstance(context.graph.nodes.get(REMOTE), RemoteNode):
        return False
    visit = next(iter(context.draft.visits.all()), None)
    work = None if visit is None else _work_of(visit)
    if visit is None or work is None or is_cancelling(visit):
        return False
    known = _known(context, visit, work)
    if known is None:
        return False
    draft = context.draft
    if work.given is not None:
        draft.record.item(DropValue(work.given))
    given = f"{visit.seq}{CANCELLING}"
    draft.record.item(SetValue(given, answers_text([UsedAnswer(known, CANCELS)])))
    again = changed(work, given=given, error=None)
    is_queued = isinstance(visit.body, Work)
    draft.visits.move(visit, again if is_queued else Ready(again), attempt=visit.attempt + 1)
    draft.clock.hold(())
    draft.record.notice("remote_cancelling", seq=visit.seq, node=visit.node, by=event.by)
    return True


def cancelled(context: Context, visit: Visit, error: str | None) -> None:
    """The task is cancelled, or could not be (`error`): the run is over."""
    work = _work_of(visit)
    if work is not None and work.given is not None:
        context.draft.record.item(DropValue(work.given))
    why = f": the task of the remote agent may still run: {error}" if error else ""
    context.end("cancelled", error=f"Graph '{context.graph.name}' aborted at '{visit.node}'{why}")


def _known(context: Context, visit: Visit, work: Work) -> str | None:
    """What the last execution has left. None: none has left anything. Raises MissingValues."""
    if isinstance(visit.body, (Delay, SignalWait, Question)) and visit.body.asked is not None:
        return visit.body.asked.key
    if work.given is None:
        return None
    answers = answers_of(context.values.item(work.given) or "")
    return answers[-1].key if answers else None


def _work_of(visit: Visit) -> Work | None:
    match visit.body:
        case Work() as work:
            return work
        case Ready(Work() as work) | Question(_, Work() as work):
            return work
        case Delay(work=Work() as work) | SignalWait(work=Work() as work):
            return work
    return None
