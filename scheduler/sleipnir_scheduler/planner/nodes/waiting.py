"""Wait nodes, and `wait()` in the code of others: the visit waits for a time or a signal, without a worker and without
a slot. Code goes on as after an interrupt: it runs again from its beginning, with one more answer.

A hold does not stop a wait. If it ends meanwhile, its end is committed, and the run goes on once no hold is left.

A commit after which a visit begins to wait for a signal, or waits no more, owes that to the partition of the signal's
name (draft/owed.py), which tells the run of each signal, once per visit. A signal of `consume: one` is offered to one
visit at a time: each answer (it was taken, declined, the visit has left) is an effect too.
"""

from __future__ import annotations

from sleipnir.graph.model import WaitNode
from sleipnir.graph.signal_names import name_problem
from sleipnir.graph.template import TemplateError, keys_read, render, updates_read
from sleipnir.graph.waits import FilterError, TimeError, matches, state_keys, time_ms
from sleipnir.messages import InterruptQuestion, ResultHeader, WaitRequest
from sleipnir.runs.events import AwaitedAgain, Told
from sleipnir.runs.interrupts import TIMED_OUT
from sleipnir.runs.signals import Signalled
from sleipnir.runs.transitions import AwaitSignal, DeclineSignal
from sleipnir.runs.visits import Delay, SignalWait, Visit, Work
from sleipnir_scheduler.planner.context import Context, VisitFailed, VisitOutcome
from sleipnir_scheduler.planner.nodes import interrupts, starting


def start(context: Context, visit: Visit, node: WaitNode) -> None:
    """Raises VisitFailed."""
    if node.duration is not None:
        context.begin(visit, Delay(context.now_ms + node.duration))
        return
    if node.event is not None:
        _start_to_await(context, visit, node)
        return
    due_ms = _until(context, visit, node)
    if due_ms > context.now_ms:
        context.begin(visit, Delay(due_ms))
    else:
        values = starting.updated(context, visit, node)
        context.kinds.ended(context, context.pass_by(visit), VisitOutcome(values=values))


def ask(context: Context, visit: Visit, work: Work, header: ResultHeader, asked: InterruptQuestion) -> None:
    """An execution has delivered what it waits for in place of a result."""
    wanted = asked.wait or WaitRequest()
    context.draft.deliver(visit, header)
    if wanted.event is not None:
        due_ms = None if asked.timeout_ms is None else context.now_ms + asked.timeout_ms
        since_ms = context.now_ms - wanted.look_back_ms
        wait = SignalWait(wanted.event, since_ms, due_ms, wanted.one, work, asked)
        _await(context, context.draft.visits.move(visit, wait), wait, wanted.filter)
    else:
        due_ms = context.now_ms + (wanted.for_ms or 0) if wanted.until_ms is None else wanted.until_ms
        context.draft.visits.move(visit, Delay(max(due_ms, context.now_ms), work, asked))


def elapsed(context: Context, visit: Visit, delay: Delay) -> None:
    """The time is over: the visit writes the `state_updates` of its node, and ends; or its code goes on."""
    if delay.work is not None and delay.asked is not None:
        interrupts.go_on(context, visit, delay.work, delay.asked, None)
        return
    try:
        outcome = VisitOutcome(values=starting.updated(context, visit, context.graph.nodes[visit.node]))
    except VisitFailed as failure:
        outcome = VisitOutcome(ok=False, error=str(failure))
    context.kinds.ended(context, visit, outcome)


def timed_out(context: Context, visit: Visit, wait: SignalWait) -> None:
    """No signal has come in time: the visit takes `on_timeout`, or fails; or its code goes on."""
    context.draft.record.notice("signal_missed", seq=visit.seq, node=visit.node, name=wait.name)
    if wait.work is not None and wait.asked is not None:
        interrupts.go_on(context, visit, wait.work, wait.asked, TIMED_OUT)
        return
    node = _node(context, visit)
    if node.on_timeout is not None:
        outcome = VisitOutcome(next=node.on_timeout)
    else:
        waited_s = (node.timeout or 0) / 1000
        outcome = VisitOutcome(ok=False, error=f"no event {wait.name!r} for wait node '{node.id}' within {waited_s:g}s")
    context.kinds.ended(context, visit, outcome)


def signalled(context: Context, told: Told) -> bool:
    """A signal has come. False: no visit waits for it any more. Raises MissingValues and RecordUnreadable."""
    signal = Signalled.of(told.data)
    visit: Visit | None = context.run.frontier.get(signal.seq)
    wait = None if visit is None else visit.body
    if visit is None or visit.attempt != signal.attempt or not isinstance(wait, SignalWait):
        return False
    if wait.name != signal.name:
        return False
    if _fits(context, visit, wait, signal):
        _take(context, visit, wait, signal)
    elif signal.one:
        context.draft.owed.add(DeclineSignal(signal.name, visit.seq, visit.attempt, signal.number))
    return True


def awaited_again(context: Context, event: AwaitedAgain) -> bool:
    """The run is no longer parked: the visit gets in line again. False: it does not wait for that any more."""
    visit: Visit | None = context.run.frontier.get(event.seq)
    wait = None if visit is None else visit.body
    if visit is None or visit.attempt != event.attempt or not isinstance(wait, SignalWait) or wait.name != event.name:
        return False
    sure = wait.one and _filter_of(context, visit, wait) is None
    context.draft.owed.add(AwaitSignal(wait.name, visit.seq, visit.attempt, wait.since_ms, wait.one, sure))
    return True


def _start_to_await(context: Context, visit: Visit, node: WaitNode) -> None:
    """Raises VisitFailed."""
    name = _rendered(context, visit, node.event or "")
    if problem := name_problem(name):
        raise VisitFailed(f"`event` of wait node '{node.id}': {problem}")
    due_ms = None if node.timeout is None else context.now_ms + node.timeout
    wait = SignalWait(name, context.now_ms - (node.look_back or 0), due_ms, node.consume == "one")
    _await(context, context.begin(visit, wait), wait, node.filter)


def _await(context: Context, visit: Visit, wait: SignalWait, filter_: str | None) -> None:
    """A visit has begun to wait for a signal."""
    if filter_ is not None:
        context.draft.owed.choosy.add(visit.seq)
    told = {"seq": visit.seq, "node": visit.node, "name": wait.name}
    context.draft.record.notice("signal_awaited", **told, until_ms=wait.due_ms)


def _fits(context: Context, visit: Visit, wait: SignalWait, signal: Signalled) -> bool:
    """Whether the filter of a visit is true for a signal. One that cannot be applied is false: what is sent from
    outside must not fail a run."""
    filter_ = _filter_of(context, visit, wait)
    if filter_ is None:
        return True
    try:
        keys = state_keys(filter_)
        state = context.values.whole_state() if keys is None else context.values.state(keys, visit)
        fits, problem = matches(filter_, signal.event, state), None
    except FilterError as error:
        fits, problem = False, str(error)
    if not fits:
        seen = {"seq": visit.seq, "node": visit.node, "name": signal.name, "id": signal.id}
        context.draft.record.notice("signal_declined", **seen, error=problem)
    return fits


def _filter_of(context: Context, visit: Visit, wait: SignalWait) -> str | None:
    asked = None if wait.asked is None else wait.asked.wait
    return _node(context, visit).filter if asked is None else asked.filter


def _take(context: Context, visit: Visit, wait: SignalWait, signal: Signalled) -> None:
    """The visit ends with the signal, or its code goes on with that."""
    event = signal.event
    context.draft.owed.took[visit.seq] = signal.number
    if wait.work is not None and wait.asked is not None:
        interrupts.go_on(context, visit, wait.work, wait.asked, event)
        return
    node = _node(context, visit)
    try:
        values = context.updates(node, context.values.state(updates_read(node), visit), event)
        outcome = VisitOutcome(values=values, notes=(f"event {signal.name} ({signal.id})",))
    except VisitFailed as failure:
        outcome = VisitOutcome(ok=False, error=str(failure))
    context.kinds.ended(context, visit, outcome)


def _node(context: Context, visit: Visit) -> WaitNode:
    node = context.graph.nodes[visit.node]
    if not isinstance(node, WaitNode):
        raise TypeError(f"node '{visit.node}' waits for no event")
    return node


def _until(context: Context, visit: Visit, node: WaitNode) -> int:
    """The time of a node's `until`. Raises VisitFailed."""
    try:
        return time_ms(_rendered(context, visit, node.until or ""), context.now_ms)
    except TimeError as error:
        raise VisitFailed(f"`until` of wait node '{node.id}': {error}") from None


def _rendered(context: Context, visit: Visit, template: str) -> str:
    """Raises VisitFailed."""
    try:
        return render(template, context.values.state(keys_read(template), visit))
    except TemplateError as error:
        raise VisitFailed(str(error)) from None
