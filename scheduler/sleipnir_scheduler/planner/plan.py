"""Plans one event of one run: which visits close and open, which values are written, whether the run ends.

    plan(graph, run, event, now_ms, known) -> Transition | NeedValues | IgnoredEvent

`known` holds the values fetched so far. Templates of control nodes, conditions and reducers need values; when one is
missing, the answer is NeedValues: fetch the values and plan again. Planning is pure, so planning again is safe.
scheduler/README.md has a picture.

An event about one visit has an effect only if it names the visit's current attempt and concerns its body (states.py).
The tables of kinds.py then select the function that handles it. This module and retried_run.py handle events about the
run itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from sleipnir.graph.config_agent import AGENT, DYNAMIC
from sleipnir.graph.model import AgentNode, Graph, GraphNode, ToolsNode
from sleipnir.graph.plain import compact_json
from sleipnir.graph.tools import INSTRUCTIONS
from sleipnir.messages import CACHE_HIT, DEFINITION, INPUT_CHANGED, RESULT, ResultHeader
from sleipnir.runs.events import (
    PAST_DUE,
    PAUSE_DEADLINE,
    RUN_DEADLINE,
    SIGNALLED,
    SLOT_GRANTED,
    Answered,
    AwaitedAgain,
    Cancelled,
    ChildEnded,
    ChildGone,
    Commented,
    Continued,
    Event,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    Skipped,
    Submitted,
    TimerFired,
    Told,
    TurnReached,
)
from sleipnir.runs.retry_rules import tool_policies
from sleipnir.runs.run import RunView, changed
from sleipnir.runs.skips import SkipRefused
from sleipnir.runs.transitions import DropValue, Notice, Transition
from sleipnir.runs.values import NOTHING, KnownValues, WantedValues
from sleipnir.runs.visits import Call, ChildWait, Loop, Visit, Work, seq_of_timer
from sleipnir_scheduler.planner import (
    budgets,
    concurrency,
    forked_run,
    holds,
    kinds,
    queued_turn,
    retried_run,
    retry_policy,
    skipping,
    whole_run,
)
from sleipnir_scheduler.planner.context import STEP_TIMER, Context, Engine, RunFailed, VisitOutcome, at_node
from sleipnir_scheduler.planner.draft.draft import Draft
from sleipnir_scheduler.planner.ending import end_run
from sleipnir_scheduler.planner.engines import bsp, dag, steps
from sleipnir_scheduler.planner.known import MissingValues, require
from sleipnir_scheduler.planner.loops import turns
from sleipnir_scheduler.planner.nodes import agents, interrupts, maps, once, remotes, waiting
from sleipnir_scheduler.planner.settle import has_more_to_start, settle
from sleipnir_scheduler.planner.states import CONCERNS
from sleipnir_scheduler.planner.values import Values


@dataclass(frozen=True)
class NeedValues:
    """Plan again with these values known."""

    wanted: WantedValues


@dataclass(frozen=True)
class IgnoredEvent:
    """The event changes nothing; `notice` is for watchers (a late result)."""

    reason: str
    notice: Notice | None = None


ENGINES: Final[dict[str, Engine]] = {"bsp": bsp, "dag": dag}


def plan(
    graph: Graph,
    run: RunView,
    event: Event,
    now_ms: int,
    known: KnownValues = NOTHING,
    *,
    max_redeliveries: int = 3,
    generation: str = "",
) -> Transition | NeedValues | IgnoredEvent:
    """The changes that `event`, which happened at `now_ms`, makes to `run`. `generation` is that of Redis
    (Generation.data): if a visit that must happen once is claimed in another generation, a person decides."""
    if run.is_final and not _revives(run, event):
        if isinstance(event, ChildEnded) and event.usage:
            return _paid_late(graph, run, event, now_ms)
        return IgnoredEvent(f"run is {run.status}", _late(event))
    context = _context(graph, run, now_ms, known, max_redeliveries, generation)
    try:
        try:
            ignored = _plan(context, event)
        except RunFailed as failure:
            if not context.draft.clock.is_held:
                context.fail(at_node(failure.node, str(failure)), failure.failure)
                return context.draft.transition()
            # It fails when it goes on. The values that the event brought are kept.
            context = _context(graph, run, now_ms, known, max_redeliveries, generation, defers=True)
            ignored = _plan(context, event)
    except MissingValues as missing:
        return NeedValues(missing.wanted)
    return context.draft.transition() if ignored is None else ignored


def fail(graph_name: str, run: RunView, message: str, now_ms: int) -> Transition:
    """End a run, or a failed run that a retry was to continue, for a reason outside its graph: an unreadable bundle, or
    a bug in Sleipnir."""
    draft = Draft.of(run, now_ms)
    if run.is_final:
        draft.revives = True
    end_run(draft, "failed", error=f"Graph execution failed for agent '{run.spec.agent}' ({graph_name}): {message}")
    return draft.transition()


def cancel(run: RunView, event: Cancelled, now_ms: int) -> Transition | IgnoredEvent:
    """Cancel a run without its graph, which cannot be read here."""
    if run.is_final:
        return IgnoredEvent("the run is over")
    draft = Draft.of(run, now_ms)
    oldest = min(run.frontier.values(), key=lambda visit: visit.seq, default=None)
    place = f" at '{oldest.node}'" if oldest else ""
    end_run(draft, "cancelled", error=f"Graph of agent '{run.spec.agent}' aborted{place}", keeps=event.keeps)
    return draft.transition()


def _context(
    graph: Graph,
    run: RunView,
    now_ms: int,
    known: KnownValues,
    most_losses: int,
    generation: str,
    *,
    defers: bool = False,
) -> Context:
    draft = Draft.of(run, now_ms)
    engine, values = ENGINES[graph.engine], Values(graph, known, draft)
    return Context(graph, run, now_ms, known, most_losses, generation, engine, kinds, draft, values, defers)


def _paid_late(graph: Graph, run: RunView, event: ChildEnded, now_ms: int) -> Transition:
    """Count the cost of a child that ended with its parent, or was cancelled before, in a run that is over."""
    context = _context(graph, run, now_ms, NOTHING, 0, "")
    agents.note_cost(context, event)
    return context.draft.transition()


def _late(event: Event) -> Notice | None:
    if not isinstance(event, Resulted):
        return None
    detail = {"seq": event.seq, "attempt": event.attempt, "worker": event.header.worker}
    return Notice("late_result", detail)


def _plan(context: Context, event: Event) -> IgnoredEvent | None:
    """Decide on an event, and start the visits that may start after it. Raises RunFailed and MissingValues."""
    ignored = _decide(context, event)
    if ignored is None:
        settle(context)
        if context.draft.clock.budget is not None:
            budgets.count(context)
    return ignored


def _decide(context: Context, event: Event) -> IgnoredEvent | None:
    if context.run.waits_for_turn and not queued_turn.concerns_one_that_waits(event):
        return IgnoredEvent("the run waits for its turn", _late(event))
    if context.run.waits_for_slot and not concurrency.concerns_one_that_waits(event):
        return IgnoredEvent("the run waits for a slot of its agent", _late(event))
    match event:
        case Resulted():
            return _result(context, event)
        case Submitted():
            return _submitted(context)
        case TurnReached():
            return _turn_due(context)
        case Answered():
            return _answer(context, event)
        case Commented():
            return _comment(context, event)
        case LeaseLost():
            return _lease_lost(context, event)
        case Cancelled():
            _cancel(context, event)
            return None
        case Retried():
            return _retry(context, event)
        case Skipped():
            return _skip(context, event)
        case Paused():
            return _pause(context, event)
        case Resumed():
            return _resume(context, event)
        case TimerFired():
            return _timer(context, event)
        case ChildEnded():
            return _child_ended(context, event)
        case ChildGone():
            return _child_gone(context, event)
        case Told() if event.what == SLOT_GRANTED:
            return _slot_granted(context, event)
        case Told() if event.what == SIGNALLED:
            return None if waiting.signalled(context, event) else IgnoredEvent("the visit does not wait for a signal")
        case AwaitedAgain():
            return None if waiting.awaited_again(context, event) else IgnoredEvent("the visit does not wait any more")
        case Continued():
            return (
                None if maps.gather(context) or has_more_to_start(context) else IgnoredEvent("nothing is left to start")
            )
        case Told():
            return None if turns.notified(context, event) else IgnoredEvent("no visit here waits for that")
        case _:
            return IgnoredEvent(f"unknown event {event!r}")


# Events about one visit


def _addressee(
    context: Context, event: Resulted | LeaseLost | Answered | Commented | ChildEnded | ChildGone
) -> Visit | None:
    """The visit that an event is about. None: the visit is over, has another attempt, or waits for something else,
    because messages come late and repeat."""
    visit: Visit | None = context.run.frontier.get(event.seq)
    if visit is None or visit.attempt != event.attempt or type(visit.body) not in CONCERNS[type(event)]:
        return None
    return visit


def _result(context: Context, event: Resulted) -> IgnoredEvent | None:
    visit = _addressee(context, event)
    if visit is None or not isinstance(visit.body, Work):
        return IgnoredEvent("the visit is over, or another attempt owns it", _late(event))
    header = event.header
    notes, work = header.notes, _work_after(visit.body, header)
    if header.later_ms is not None:
        retry_policy.put_off(context.draft, visit, work, header, header.later_ms)
        return None
    if header.interrupt is not None:
        asks = interrupts if header.interrupt.wait is None else waiting
        asks.ask(context, visit, work, header, header.interrupt)
        return None
    if remotes.is_cancelling(visit):
        context.draft.deliver(visit, header)
        remotes.cancelled(context, visit, header.error)
        return None
    if header.error_kind == DEFINITION:
        raise RunFailed(f"node '{visit.node}': {header.error}", visit.node)
    if not header.ok:
        verdict = _retry_or_not(context, visit, visit.body, event)
        if isinstance(verdict, retry_policy.RetryTime) and not header.is_final:
            retry_policy.try_again(context.draft, visit, work, header, verdict)
            return None
        why = verdict.why if isinstance(verdict, retry_policy.GiveUp) else None
        notes = (*notes, why) if why else notes
    context.draft.deliver(visit, header)
    if visit.body.given is not None and not isinstance(visit.place, Call):
        context.draft.record.item(DropValue(visit.body.given))
    kind = kinds.PLACES[type(visit.place)]
    outcome = agents.with_decisions(work.child, _outcome_of(header, notes))
    node = context.graph.nodes.get(visit.node)
    if isinstance(node, AgentNode | GraphNode) and visit.role == "node":  # its time is that of its child too
        outcome = replace(outcome, how={name: value for name, value in outcome.how.items() if name != "took_ms"})
    if header.returns:
        _return(context, visit, outcome)
    elif _is_before_child(context, visit, visit.body, header) and isinstance(node, AgentNode | GraphNode):
        changed_input = _has_changed_input(header)
        agents.begin(context, visit, node, input_changed=changed_input, decided=header.callbacks)
    elif kind.replied is not None:
        kind.replied(context, visit, outcome, header)
    else:
        kind.ended(context, visit, outcome)
    return None


def _work_after(work: Work, header: ResultHeader) -> Work:
    """The work of a visit that may be executed again: whether callbacks have changed what it sees."""
    return changed(work, input_changed=True) if _has_changed_input(header) else work


def _has_changed_input(header: ResultHeader) -> bool:
    return any(mark.startswith(INPUT_CHANGED) for mark in header.callbacks)


def _is_before_child(context: Context, visit: Visit, work: Work, header: ResultHeader) -> bool:
    """Whether a worker has made what a child is to begin with; a callback may have ended the visit without one."""
    if not header.ok or visit.role != "node" or work.given is not None or RESULT not in header.keys:
        return False
    return agents.needs_first_state(context.graph.nodes.get(visit.node), context.graph)


def _return(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """The visit ends its run, whose output is for the graph above. The writes of its super-step are lost. Raises
    MissingValues."""
    require(context.known, WantedValues(delta=frozenset([RESULT])))
    fields = context.engine.journal_fields(context, visit, None)
    context.draft.record.write(visit, delta=False, ok=True, notes=outcome.notes, held=False, **outcome.how, **fields)
    context.end("completed", output=compact_json(context.known.delta[RESULT]))


def _outcome_of(header: ResultHeader, notes: tuple[str, ...]) -> VisitOutcome:
    """The outcome that a worker has delivered."""
    fields: dict[str, Any] = {
        "started_ms": header.started_ms,
        "took_ms": header.took_ms,
        "worker": header.worker,
        "usage": header.usage,
    }
    if header.cache == CACHE_HIT:
        fields["cached"] = True
    if header.callbacks:
        fields["callbacks"] = header.callbacks
    return VisitOutcome(
        header.ok,
        header.error,
        header.keys,
        next=header.next,
        sends=header.sends,
        notes=notes,
        how=fields,
        error_type=header.error_type,
        error_kind=header.error_kind,
        error_code=header.error_code,
        recoverable=header.recoverable,
    )


def _retry_or_not(
    context: Context, visit: Visit, work: Work, failure: Resulted
) -> retry_policy.RetryTime | retry_policy.GiveUp:
    graph = context.graph
    node = graph.nodes[visit.node]
    policies = graph.retries_of(node) if visit.role in ("node", "turn") else []
    if isinstance(node, ToolsNode):
        policies = tool_policies(node, failure.header)
    return retry_policy.decide(
        policies,
        visit,
        work.failures,
        failure.header,
        run=context.run.id,
        now_ms=context.now_ms,
        deadline_ms=context.deadline_ms(),
        step_deadline_ms=context.step_deadline_ms(visit),
    )


def _answer(context: Context, event: Answered) -> IgnoredEvent | None:
    visit = _addressee(context, event)
    if visit is None or (answered := kinds.BODIES[type(visit.body)].answered) is None:
        return IgnoredEvent("the question is closed, or another one")
    if not event.checked and kinds.ask_checked(context, visit):
        return None
    context.draft.record.comment, context.draft.record.voices = event.reason, event.voices
    context.renew_limit()
    answered(context, visit, visit.body, event.text, event.by)
    return None


def _comment(context: Context, event: Commented) -> IgnoredEvent | None:
    visit = _addressee(context, event)
    if visit is None:
        return IgnoredEvent("the question is closed, or another one")
    record = context.draft.record
    record.write_request("commented", event.by, reason=event.text, gate=visit.seq, attempt=visit.attempt)
    return None


def _lease_lost(context: Context, event: LeaseLost) -> IgnoredEvent | None:
    visit = _addressee(context, event)
    if visit is None or not isinstance(visit.body, Work):
        return IgnoredEvent("the visit is over, or another attempt owns it")
    work, draft = visit.body, context.draft
    if event.stopped:
        work = _stopped(context, visit, work, event)
    else:
        notice = "visit_handed_back" if event.handed_back else "visit_in_doubt" if event.restored else "worker_lost"
        draft.record.notice(notice, seq=visit.seq, node=visit.node, attempt=visit.attempt, worker=event.worker)
    if context.deadline_passed():
        raise RunFailed(context.timed_out(f"at '{visit.node}'"))
    # A missing directory counts as a lost worker: if no worker has it, the visit must end.
    counts = event.lacks_directory or not event.handed_back
    if event.begun and once.applies_to(context.graph.nodes[visit.node], visit):
        once.ask(context, visit, work, event)
    elif work.losses < context.max_redeliveries or not counts:
        again = changed(work, losses=work.losses + 1) if counts else work
        draft.visits.move(visit, again, attempt=visit.attempt + 1)
    elif remotes.is_cancelling(visit):
        remotes.cancelled(context, visit, _why_given_up(context, work, event))
    else:
        kinds.PLACES[type(visit.place)].given_up(context, visit, _why_given_up(context, work, event))
    return None


def _stopped(context: Context, visit: Visit, work: Work, event: LeaseLost) -> Work:
    """A pause has taken a visit from its worker: the work that runs again. In a `dag` it sees the state that this
    execution saw, though others have written since; in super-steps nothing has changed."""
    draft = context.draft
    draft.record.notice("visit_stopped", seq=visit.seq, node=visit.node, attempt=visit.attempt, worker=event.worker)
    on = f" on {event.worker}" if event.worker else ""
    why = f"visit {visit.seq} of node '{visit.node}' was stopped{on}"
    draft.record.write_request("stopped", draft.clock.holder or "", reason=why, gate=visit.seq, attempt=visit.attempt)
    is_first = context.graph.engine == "dag" and work.sees is None
    return changed(work, sees=event.seen) if is_first else work


def _why_given_up(context: Context, work: Work, event: LeaseLost) -> str:
    if not event.lacks_directory:
        return f"WorkerLost: {work.losses + 1} workers died while running this visit, last {event.worker}"
    directory = context.run.spec.cwd or context.run.spec.caller_dir
    return (
        f"no working directory: {directory!r} was missing on the worker each time that one took this visit, "
        f"{work.losses + 1} times, last on {event.worker}. Create it there, or give the node a `queue:` that only "
        "workers with this directory serve, or submit without --cwd"
    )


def _child_ended(context: Context, event: ChildEnded) -> IgnoredEvent | None:
    if turns.agent_ended(context, event):
        return None
    visit = _addressee(context, event)
    if visit is None or not isinstance(visit.body, ChildWait) or visit.body.child.run != event.child:
        if not event.usage:
            return IgnoredEvent("no visit waits for that child any more")
        agents.note_cost(context, event)
        return None
    agents.ended(context, visit, visit.body.child, event)
    return None


def _child_gone(context: Context, event: ChildGone) -> IgnoredEvent | None:
    visit = _addressee(context, event)
    if visit is None or not isinstance(visit.body, ChildWait) or visit.body.child.run != event.child:
        return IgnoredEvent("no visit waits for that child any more")
    agents.gone(context, visit, visit.body)
    return None


def _timer(context: Context, event: TimerFired) -> IgnoredEvent | None:
    if event.name == RUN_DEADLINE:
        return _deadline(context)
    if event.name == PAST_DUE:
        return _past_due(context)
    if event.name == PAUSE_DEADLINE:
        return _pause_deadline(context)
    if event.name.startswith(STEP_TIMER):
        return _step_deadline(context, int(event.name.removeprefix(STEP_TIMER)))
    visit = context.run.frontier.get(seq_of_timer(event.name))
    if visit is None or visit.timer != event.name or visit.due_ms is None:
        return IgnoredEvent("the visit is over, or another attempt of it is on its way")
    kind = kinds.BODIES[type(visit.body)]
    if kind.due is None:
        return IgnoredEvent("the visit waits for no timer")
    if kind.stands_still and context.run.is_held:
        return IgnoredEvent("the run is held, and the clocks of its nodes with it")
    if kind.stands_still and context.now_ms < visit.due_ms:  # this was the timer of a deadline that has moved since
        context.draft.clock.arm(visit.timer, visit.due_ms)
        return None
    kind.due(context, visit, visit.body)
    return None


# Events about the run


def _submitted(context: Context) -> IgnoredEvent | None:
    if context.run.seq or context.run.slot is not None:
        return IgnoredEvent("already started")
    if context.graph.concurrency is not None:
        concurrency.ask(context, context.graph.concurrency)
    else:
        _begin(context)
    return None


def _turn_due(context: Context) -> IgnoredEvent | None:
    queued = context.run.queued
    if queued is not None and context.run.waits_for_turn and not queued_turn.takes_its_turn(context, queued):
        return IgnoredEvent("it is not the run's turn")
    return _submitted(context)


def _slot_granted(context: Context, event: Told) -> IgnoredEvent | None:
    slot = concurrency.granted(context, event)
    if slot is None:
        return IgnoredEvent("the run does not wait for that slot")
    if slot.again:
        retried_run.go_on(context, slot.fresh_children, slot.by)
    else:
        _begin(context)
    return None


def _begin(context: Context) -> None:
    timeout, start, draft = context.graph.settings.timeout, context.graph.start, context.draft
    fork = context.run.spec.fork
    if (lost := context.lost_past()) is not None:
        context.fail(lost)
        return
    in_session = context.run.spec.session is not None and start == DYNAMIC
    if in_session and INSTRUCTIONS in context.values.state([INSTRUCTIONS]):
        start = AGENT  # the session already has its instructions
    draft.clock.start()
    begin = start if fork is None else ", ".join(fork.checkpoint.opens)
    draft.record.notice("run_started", graph=context.graph.name, start=begin, agent=context.run.spec.agent)
    if timeout:
        draft.clock.arm_deadline(context.now_ms + timeout * 1000)
    if whole_run.calls_before(context):
        whole_run.begin(context)
    elif fork is None:
        steps.enter(context, start)
    else:
        forked_run.begin(context, fork)


def _past_due(context: Context) -> IgnoredEvent | None:
    """The source of a fork that still waits for its slot may expire soon."""
    if (lost := context.lost_past()) is None:
        return IgnoredEvent("the fork has a state of its own")
    context.fail(lost)
    return None


def _pause(context: Context, event: Paused) -> IgnoredEvent | None:
    """Hold the run. A second request of an owner counts only if its deadline is earlier."""
    due_ms = event.due_ms
    if due_ms is None and event.timeout_ms is not None:
        due_ms = context.now_ms + event.timeout_ms
    before = holds.held_by(context.draft, event.owner)
    if before is not None:
        is_earlier = due_ms is not None and (before.due_ms is None or due_ms < before.due_ms)
        if before.forced or not is_earlier:
            return IgnoredEvent("the run has that hold already")
    holds.pause(context.draft, event.by, event.reason, event.owner, due_ms)
    return None


def _pause_deadline(context: Context) -> IgnoredEvent | None:
    """The time is over for the visits that still run."""
    if context.draft.clock.pending_ms is None:
        return IgnoredEvent("no hold of the run waits for a deadline")
    holds.stop_if_due(context.draft)
    return None


def _resume(context: Context, event: Resumed) -> IgnoredEvent | None:
    if not any(hold.ends_with(event.owner, event.seen_ms) for hold in context.run.holds):
        return IgnoredEvent("the run has no such hold")
    if any(hold.breakpoint is not None and hold.ends_with(event.owner, event.seen_ms) for hold in context.run.holds):
        context.renew_limit()
    holds.resume(context.draft, event.owner, event.by, event.seen_ms)
    if not context.run.waits_for_slot:
        context.restart_clocks()
        steps.go_on_after_hold(context)
        whole_run.go_on_after_hold(context)
    return None


def _cancel(context: Context, event: Cancelled) -> None:
    context.draft.record.write_request("cancelled", event.by, reason=event.reason)
    if remotes.cancel(context, event):
        return
    aborted = f"Graph '{context.graph.name}' aborted at '{_somewhere(context)}'"
    context.end("cancelled", error=aborted, keeps=event.keeps)


def _somewhere(context: Context) -> str:
    """The oldest live visit's node, else the start."""
    oldest = min(context.run.frontier.values(), key=lambda visit: visit.seq, default=None)
    return oldest.node if oldest else context.graph.start


def _retry(context: Context, event: Retried) -> IgnoredEvent | None:
    """Run failed visits again. Ended visits stay, and a map keeps its ended items."""
    run, draft = context.run, context.draft
    if not run.is_final:
        if run.spec.parent is None:
            return IgnoredEvent("only a failed run can be retried")
        draft.revives = True  # the run has not ended, so its parent has nothing to do
        return None
    draft.revives = True
    if run.status == "cancelled" and not run.frontier:
        # A person cancelled it while its parent asked it to go on: it reports that to the parent.
        _cancel(context, Cancelled())
    elif context.graph.concurrency is not None:
        fresh = event.fresh_children
        concurrency.ask(context, context.graph.concurrency, again=True, fresh_children=fresh, by=event.by)
    else:
        retried_run.go_on(context, event.fresh_children, event.by)
    return None


def _revives(run: RunView, event: Event) -> bool:
    """Whether an event lets a run that is over go on."""
    return (run.may_go_on and isinstance(event, Retried)) or (run.status == "failed" and isinstance(event, Skipped))


def _skip(context: Context, event: Skipped) -> IgnoredEvent | None:
    """End a visit with a given value. If that cannot be, a live run goes on as it was, and a failed one fails again."""
    run, visit = context.run, context.run.frontier.get(event.seq)
    try:
        if visit is None:
            raise SkipRefused(f"visit {event.seq} is over")
        if not run.is_final:
            skipping.skip(context, visit, event)
            return None
        skipping.skip_failed(context, visit, event)
    except SkipRefused as refused:
        node = None if visit is None else visit.node
        if run.is_final:
            context.draft.revives = True
            context.fail(at_node(node, f"a skip was refused: {refused}"), calls_after=False)
            return None
        return IgnoredEvent(
            str(refused), Notice(skipping.REFUSED, {"seq": event.seq, "node": node, "error": str(refused)})
        )
    return _retry(context, Retried(by=event.by))


def _deadline(context: Context) -> IgnoredEvent | None:
    """The run's deadline. A visit on a worker may finish, and the next step checks the deadline again (spec 2.4),
    unless the graph sets `interrupt_on_timeout`."""
    deadline_ms = context.deadline_ms()
    if deadline_ms is None or context.run.is_held:
        return IgnoredEvent("the run has no deadline, or is held, and its deadline with it")
    if not context.deadline_passed():  # this was the timer of a deadline that has moved since
        context.draft.clock.arm_deadline(deadline_ms)
        return None
    if not context.graph.settings.interrupt_on_timeout:
        context.draft.unless_claimed = True
    raise RunFailed(context.timed_out(f"at '{_somewhere(context)}'"))


def _step_deadline(context: Context, number: int) -> IgnoredEvent | None:
    """The time limit of a super-step has passed: its visits are stopped. A step whose live visits all wait for a person
    gets its whole time again: questions have their own expiry."""
    if context.run.is_held:
        return IgnoredEvent("the run is held, and the clock of its step with it")
    late = [visit for visit in context.draft.visits.group(number) if visit.state not in ("ended", "failed")]
    if not late:
        return IgnoredEvent("the step is over")
    late = [visit for visit in late if not _waits_for_a_person(context, visit)]
    if not late:
        context.arm_step(number)
        return None
    names = ", ".join(f"'{name}'" for name in dict.fromkeys(visit.node for visit in late))
    timeout_s = (context.graph.limits.step_timeout or 0) / 1000
    raise RunFailed(f"super-step {number} timed out after {timeout_s:g}s; not done by then: {names}")


def _waits_for_a_person(context: Context, visit: Visit) -> bool:
    """Whether a visit, or a call of its loop, waits for an answer."""
    if not isinstance(visit.body, Loop):
        return visit.is_asking
    loop = visit.body.id
    parts = (part for call in context.draft.visits.all() if call.is_asking and (part := call.part) is not None)
    return any(part.loop == loop for part in parts)
