"""One event of one run: which visits close and open, what is written, whether the run ends.

    plan(graph, run, event, now_ms, known) -> Transition | NeedValues | Ignore

`known` holds the values known so far. A control node renders templates, a condition looks at the state, a reducer
folds; when one needs a value that is not known, the answer is NeedValues: fetch them and plan again. Planning is pure,
so planning again is safe. See scheduler/README.md for the picture.
"""

from __future__ import annotations

from dataclasses import dataclass

from sleipnir.graph.config_agent import AGENT, DYNAMIC
from sleipnir.graph.model import (
    ApprovalNode,
    FunctionNode,
    Graph,
    InputNode,
    ScriptNode,
)
from sleipnir.graph.template import updates_read
from sleipnir.graph.tools import INSTRUCTIONS
from sleipnir.messages import DEFINITION
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.events import (
    RUN_DEADLINE,
    SLOT_GRANTED,
    Answered,
    Cancelled,
    ChildEnded,
    ChildGone,
    Continued,
    Event,
    LeaseLost,
    Paused,
    Resulted,
    Resumed,
    Retried,
    Submitted,
    TimerFired,
    Told,
)
from sleipnir.runs.run import RunView, Visit, changed, seq_of_timer
from sleipnir.runs.transitions import Drop, Notice, Transition
from sleipnir.runs.values import NOTHING, Known, Wanted
from sleipnir_scheduler.planner import agents, budgets, effects, loops, maps, retries, slots, starting, steps
from sleipnir_scheduler.planner.context import STEP_TIMER, Context, Outcome, RunFailed, VisitFailed
from sleipnir_scheduler.planner.draft import Draft
from sleipnir_scheduler.planner.known import Missing
from sleipnir_scheduler.planner.settle import has_more_to_start as settle_has_more
from sleipnir_scheduler.planner.settle import settle


@dataclass(frozen=True)
class NeedValues:
    """Plan again with these values known."""

    wanted: Wanted


@dataclass(frozen=True)
class Ignore:
    """The event changes nothing; `notice` is for watchers (a late result)."""

    reason: str
    notice: Notice | None = None


def plan(
    graph: Graph,
    run: RunView,
    event: Event,
    now_ms: int,
    known: Known = NOTHING,
    *,
    max_redeliveries: int = 3,
    generation: str = "",
) -> Transition | NeedValues | Ignore:
    """What `event`, which happened at `now_ms`, changes in `run`. `generation` is Redis' (Generation.data): a visit
    that must happen once is asked about if it is claimed in another one."""
    if run.is_final and not (run.may_go_on and isinstance(event, Retried)):
        if isinstance(event, ChildEnded) and event.usage:
            return _paid_late(run, event, now_ms)
        return Ignore(f"run is {run.status}", _late(event))
    planner = _Planner(graph, run, now_ms, known, max_redeliveries, generation)
    try:
        try:
            ignored = planner.plan(event)
        except RunFailed as failure:
            if not planner.draft.is_held:
                planner.fail(str(failure), failure.node)
                return planner.draft.transition()
            # It fails for that once it goes on. What the event has brought is kept.
            planner = _Planner(graph, run, now_ms, known, max_redeliveries, generation, defers=True)
            ignored = planner.plan(event)
    except Missing as missing:
        return NeedValues(missing.wanted)
    return planner.draft.transition() if ignored is None else ignored


def fail(graph_name: str, run: RunView, message: str, now_ms: int) -> Transition:
    """End a run for a reason outside its graph (its bundle cannot be read, a bug in Sleipnir); one that was to go on
    after it had failed, again."""
    draft = Draft(run, now_ms)
    if run.is_final:
        draft.heard()
    draft.end("failed", error=f"Graph execution failed for agent '{run.spec.agent}' ({graph_name}): {message}")
    return draft.transition()


def cancel(run: RunView, event: Cancelled, now_ms: int) -> Transition | Ignore:
    """End a run as its cancel asks, without its graph, which cannot be read here."""
    if run.is_final:
        return Ignore("the run is over")
    draft = Draft(run, now_ms)
    oldest = min(run.frontier.values(), key=lambda visit: visit.seq, default=None)
    place = f" at '{oldest.node}'" if oldest else ""
    draft.end("cancelled", error=f"Graph of agent '{run.spec.agent}' aborted{place}", keeps=event.keeps)
    return draft.transition()


def _paid_late(run: RunView, event: ChildEnded, now_ms: int) -> Transition:
    """A run that is over hears what a child has cost that ended with it, or was cancelled before."""
    draft = Draft(run, now_ms)
    draft.run_ended(event)
    return draft.transition()


def _late(event: Event) -> Notice | None:
    if not isinstance(event, Resulted):
        return None
    detail = {"seq": event.seq, "attempt": event.attempt, "worker": event.header.worker}
    return Notice("late_result", detail)


class _Planner(Context):
    """What each kind of event means."""

    def plan(self, event: Event) -> Ignore | None:
        """Decide about an event, and start what may start after it. Raises RunFailed and Missing."""
        ignored = self.decide(event)
        if ignored is None:
            settle(self)
            budgets.count(self)
        return ignored

    def decide(self, event: Event) -> Ignore | None:
        if self.run.waits_for_slot and not slots.concerns_one_that_waits(event):
            return Ignore("the run waits for a slot of its agent", _late(event))
        match event:
            case Submitted():
                return self._start()
            case Resulted():
                return self._result(event)
            case Answered():
                return self._answer(event)
            case LeaseLost():
                return self._lease_lost(event)
            case Cancelled():
                self._cancel(event)
                return None
            case Retried():
                return self._retry(event)
            case Paused():
                return self._pause(event)
            case Resumed():
                return self._resume(event)
            case TimerFired():
                return self._timer(event)
            case ChildEnded():
                return self._child_ended(event)
            case ChildGone():
                return self._child_gone(event)
            case Told() if event.what == SLOT_GRANTED:
                return self._slot_granted(event)
            case Continued():
                return None if maps.gather(self) or settle_has_more(self) else Ignore("nothing is left to start")
            case Told():
                return None if loops.told(self, event) else Ignore("nobody here waits to be told that")
            case _:
                return Ignore(f"unknown event {event!r}")

    def _start(self) -> Ignore | None:
        if self.run.seq or self.run.slot is not None:
            return Ignore("already started")
        if self.graph.concurrency is not None:
            slots.ask(self, self.graph.concurrency)
        else:
            self._begin()
        return None

    def _slot_granted(self, event: Told) -> Ignore | None:
        slot = slots.granted(self, event)
        if slot is None:
            return Ignore("the run does not wait for that slot")
        if slot.again:
            self._go_on(slot.fresh_children, slot.by)
        else:
            self._begin()
        return None

    def _begin(self) -> None:
        deadline_ms = self.graph.settings.timeout and self.now_ms + self.graph.settings.timeout * 1000
        start = self.graph.start
        if self.run.spec.session is not None and start == DYNAMIC and INSTRUCTIONS in self.state([INSTRUCTIONS]):
            start = AGENT  # the session has kept its instructions
        self.draft.start(self.graph.name, start, deadline_ms)
        steps.enter(self, start)

    def _result(self, event: Resulted) -> Ignore | None:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.attempt != event.attempt or visit.state != "queued":
            return Ignore("the visit is over, or another attempt owns it", _late(event))
        header = event.header
        notes = header.notes
        if header.later_ms is not None:
            self.draft.put_off(visit, header, header.later_ms)
            return None
        if header.error_kind == DEFINITION:
            raise RunFailed(f"node '{visit.node}': {header.error}", visit.node)
        if not header.ok:
            verdict = self._retry_or_not(visit, event)
            if isinstance(verdict, retries.Again):
                self.draft.try_again(visit, header, verdict.at_ms, verdict.most)
                return None
            notes = (*notes, verdict.why) if verdict.why else notes
        if visit.role == "turn":
            loops.turn_ended(self, visit, header, notes)
            return None
        self.draft.deliver(visit, header)
        if visit.given is not None and visit.part is None:
            self.draft.item(Drop(visit.given))
            visit = self.draft.put(changed(visit, given=None))
        self._ended(visit, Outcome.of(header, notes))
        return None

    def _ended(self, visit: Visit, outcome: Outcome) -> None:
        if visit.part is not None:
            loops.call_ended(self, visit, outcome)
        elif visit.item is not None:
            maps.item_ended(self, visit, outcome)
        else:
            steps.ended(self, visit, outcome)

    def _retry_or_not(self, visit: Visit, failure: Resulted) -> retries.Again | retries.GiveUp:
        policies = self.graph.retries_of(self.graph.nodes[visit.node]) if visit.role in ("node", "turn") else []
        return retries.decide(
            policies, visit, failure.header, run=self.run.id, now_ms=self.now_ms, deadline_ms=self.deadline_ms()
        )

    def _child_ended(self, event: ChildEnded) -> Ignore | None:
        if loops.agent_ended(self, event):
            return None
        visit = self.run.frontier.get(event.seq)
        awaited = visit is not None and visit.attempt == event.attempt and visit.child is not None
        if visit is None or not awaited or visit.child.run != event.child:  # type: ignore[union-attr]
            if not event.usage:
                return Ignore("nobody waits for that child any more")
            self.draft.run_ended(event)
            return None
        outcome = agents.ended(self, visit, event)
        if outcome is not None:
            self._ended(self.draft.frontier[visit.seq], outcome)
        return None

    def _child_gone(self, event: ChildGone) -> Ignore | None:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.attempt != event.attempt or visit.child is None or visit.child.run != event.child:
            return Ignore("nobody waits for that child any more")
        try:
            agents.gone(self, visit)
        except VisitFailed as failure:
            self._ended(self.draft.frontier[visit.seq], Outcome(ok=False, error=str(failure)))
        return None

    def _answer(self, event: Answered) -> Ignore | None:
        visit = self.run.frontier.get(event.seq)
        if visit is None or not visit.is_asking or visit.attempt != event.attempt:
            return Ignore("the question is closed, or another one")
        if visit.kind == BUDGET:
            budgets.answered(self, visit, event.text, event.by)
            return None
        if visit.part is not None:
            loops.answered(self, visit, event.text, event.by)
            return None
        node = self.graph.nodes[visit.node]
        if isinstance(node, ScriptNode | FunctionNode):
            ended = effects.answered(self, visit, node, event.text, event.by)
            if isinstance(ended, str):
                self._give_up(visit, ended)
            elif ended is not None:
                self._ended(visit, ended)
            return None
        if not isinstance(node, ApprovalNode | InputNode):
            return Ignore(f"a {node.kind} node asks no question")
        self.answered(visit, event.text, event.by)
        self._ended(visit, self._answered(visit, node, event.text))
        return None

    def _answered(self, visit: Visit, node: ApprovalNode | InputNode, text: str) -> Outcome:
        try:
            value = starting.input_value(self, visit, node, text) if isinstance(node, InputNode) else text
            values = self.updates(node, self.state(updates_read(node), visit), value)
        except VisitFailed as failure:
            return Outcome(ok=False, error=str(failure))
        chosen = node.routes.get(text, node.on_other) if isinstance(node, ApprovalNode) else None
        return Outcome(values=values, next=chosen)

    def _lease_lost(self, event: LeaseLost) -> Ignore | None:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.attempt != event.attempt or visit.state != "queued":
            return Ignore("the visit is over, or another attempt owns it")
        what = "visit_handed_back" if event.handed_back else "visit_in_doubt" if event.restored else "worker_lost"
        self.draft.notice(what, seq=visit.seq, node=visit.node, attempt=visit.attempt, worker=event.worker)
        if self.deadline_passed():
            raise RunFailed(self.timed_out(f"at '{visit.node}'"))
        node = self.graph.nodes[visit.node]
        is_once = isinstance(node, ScriptNode | FunctionNode) and node.effect == "once" and visit.role == "node"
        if is_once and event.begun:
            effects.ask(self, visit, event)
        elif visit.losses < self.max_redeliveries or (event.handed_back and not event.lacks_directory):
            # A missing directory counts as a lost worker does: if no worker has it, the visit must come to an end.
            self.draft.redeliver(visit, losses=1 if event.lacks_directory or not event.handed_back else 0)
        elif event.lacks_directory:
            self._give_up(visit, self._nowhere(visit, event))
        else:
            lost = f"WorkerLost: {visit.losses + 1} workers died while running this visit, last {event.worker}"
            self._give_up(visit, lost)
        return None

    def _nowhere(self, visit: Visit, event: LeaseLost) -> str:
        wanted = self.run.spec.cwd or self.run.spec.caller_dir
        return (
            f"no working directory: {wanted!r} was missing on the worker each time that one took this visit, "
            f"{visit.losses + 1} times, last on {event.worker}. Create it there, or give the node a `queue:` that only "
            "workers with this directory serve, or submit without --cwd"
        )

    def _give_up(self, visit: Visit, error: str) -> None:
        """A visit without a result fails, as if its node had."""
        if visit.part is not None:
            loops.given_up(self, visit, error)
        else:
            self._ended(visit, self.given_up(visit, error))

    def _pause(self, event: Paused) -> Ignore | None:
        if any(hold.owner == event.owner for hold in self.run.holds):
            return Ignore("the run has that hold already")
        self.draft.pause(event.by, event.reason, event.owner)
        return None

    def _resume(self, event: Resumed) -> Ignore | None:
        if not any(hold.ends_with(event.owner) for hold in self.run.holds):
            return Ignore("the run has no such hold")
        self.draft.resume(event.owner, event.by)
        if not self.run.waits_for_slot:
            self.restart_clocks()
            steps.go_on_after_hold(self)
        return None

    def _cancel(self, event: Cancelled) -> None:
        self.draft.note_wish("cancelled", event.by)
        aborted = f"Graph '{self.graph.name}' aborted at '{self._somewhere()}'"
        self.end("cancelled", error=aborted, keeps=event.keeps)

    def _somewhere(self) -> str:
        """The oldest live visit's node, else the start."""
        oldest = min(self.run.frontier.values(), key=lambda visit: visit.seq, default=None)
        return oldest.node if oldest else self.graph.start

    def _retry(self, event: Retried) -> Ignore | None:
        """Run again what has failed. What has ended stays, a map keeps the items that are done."""
        if not self.run.is_final:
            if self.run.spec.parent is None:
                return Ignore("only a failed run can be retried")
            self.draft.heard()
            return None
        if self.run.status == "cancelled" and not self.run.frontier:
            # It was asked to go on while a person's cancel was on its way: its parent is told of that.
            self.draft.heard()
            self._cancel(Cancelled())
            return None
        if self.graph.concurrency is not None:
            self.draft.heard()
            slots.ask(self, self.graph.concurrency, again=True, fresh_children=event.fresh_children, by=event.by)
        else:
            self._go_on(event.fresh_children, event.by)
        return None

    def _go_on(self, fresh_children: bool, by: str) -> None:
        """What has failed runs again, as visits of their own."""
        failed = [visit for visit in self.draft.visits() if visit.failed]
        nodes = sorted({visit.node for visit in failed if visit.is_branch and visit.spread is None})
        begun = self.draft.steps > 0  # else it failed before its first step, or in an older release
        self.draft.revive(nodes if begun else nodes or [self.run.failed_at or self.graph.start], by)
        if self.graph.settings.timeout:
            self.draft.arm_deadline(self.now_ms + self.graph.settings.timeout * 1000)
        for node in nodes:
            self.draft.count(node)
        for visit in failed:
            fresh = self.draft.reopen(changed(visit, former=None) if fresh_children else visit)
            if visit.spread is not None:
                self.draft.put(changed(fresh, ready=False))
                continue
            if visit.fan is not None:
                fresh = self.draft.put(maps.with_failed_items_to_do(self, fresh))
            if self.graph.engine == "dag" and visit.role == "node" and visit.is_branch:
                fresh = self.draft.put(changed(fresh, group=fresh.seq))
            if effects.in_doubt(visit, self.graph.nodes.get(visit.node)):
                effects.ask_again(self, fresh)
        if failed:
            self.arm_step()
        ended = {visit.group for visit in self.draft.visits() if visit.ended} - {visit.group for visit in failed}
        for group in sorted(ended):
            steps.close(self, group, self.draft.last_step)
        if not begun and not self.draft.visits():
            steps.enter(self, self.run.failed_at or self.graph.start)

    def _timer(self, event: TimerFired) -> Ignore | None:
        if event.name == RUN_DEADLINE:
            return self._deadline()
        if event.name.startswith(STEP_TIMER):
            return self._step_deadline(int(event.name.removeprefix(STEP_TIMER)))
        visit = self.run.frontier.get(seq_of_timer(event.name))
        if visit is None or visit.timer != event.name or visit.wake_ms is None:
            return Ignore("the visit is over, or another attempt of it is on its way")
        if visit.queue is not None:
            self.draft.wake(visit)
        elif visit.loop is not None or visit.child is not None:
            return self._time_is_up(visit, visit.wake_ms)
        else:
            self._unanswered(visit)
        return None

    def _time_is_up(self, visit: Visit, due_ms: int) -> Ignore | None:
        """The time of an llm node with tools is up, or of a child run."""
        if self.run.is_held:
            return Ignore("the run is held, and the clocks of its nodes with it")
        if self.now_ms < due_ms:  # this was the timer of a deadline that has moved since
            self.draft.arm(visit.timer, due_ms)
        elif visit.loop is not None:
            loops.timed_out(self, visit)
        else:
            outcome = agents.timed_out(self, visit)
            self._ended(self.draft.frontier[visit.seq], outcome)
        return None

    def _deadline(self) -> Ignore | None:
        """The run's deadline. A visit that a worker has may finish, and the next step looks again then (spec 2.4),
        unless the graph says `interrupt_on_timeout`."""
        deadline_ms = self.deadline_ms()
        if deadline_ms is None or self.run.is_held:
            return Ignore("the run has no deadline, or is held, and its deadline with it")
        if not self.deadline_passed():  # this was the timer of a deadline that has moved since
            self.draft.arm_deadline(deadline_ms)
            return None
        if not self.graph.settings.interrupt_on_timeout:
            self.draft.unless_claimed()
        raise RunFailed(self.timed_out(f"at '{self._somewhere()}'"))

    def _step_deadline(self, number: int) -> Ignore | None:
        """The time of a super-step is up: its visits are stopped. One that was held has all its time again. So has one
        where only visits are left that wait for a person: questions have expiries of their own."""
        if self.run.is_held:
            return Ignore("the run is held, and the clock of its step with it")
        late = [visit for visit in self.draft.group(number) if visit.state not in ("ended", "failed")]
        if not late:
            return Ignore("the step is over")
        late = [visit for visit in late if not self._waits_for_a_person(visit)]
        if not late:
            self.arm_step(number)
            return None
        names = ", ".join(f"'{name}'" for name in dict.fromkeys(visit.node for visit in late))
        timeout_s = (self.graph.limits.step_timeout or 0) / 1000
        raise RunFailed(f"super-step {number} timed out after {timeout_s:g}s; not done by then: {names}")

    def _waits_for_a_person(self, visit: Visit) -> bool:
        """Whether a visit, or a call of its loop, has a question open."""
        if visit.loop is None:
            return visit.is_asking
        loop = visit.loop.id
        return any(each.part is not None and each.part.loop == loop and each.is_asking for each in self.draft.visits())

    def _unanswered(self, visit: Visit) -> None:
        """No answer has come in time: `on_timeout`, else an input's default, else the visit fails. A model is told.

        An answer that was accepted counts, though the timer is ahead of it in the inbox: then this changes nothing."""
        self.draft.unless_answered()
        if visit.part is not None:
            loops.unanswered(self, visit)
            return
        node = self.graph.nodes[visit.node]
        assert isinstance(node, ApprovalNode | InputNode)
        self.draft.notice("gate_expired", seq=visit.seq, node=visit.node)
        if node.on_timeout is not None:
            self._ended(visit, Outcome(next=node.on_timeout))
        elif isinstance(node, InputNode) and node.default is not None:
            self._ended(visit, self._answered(visit, node, ""))
        else:
            error = f"{node.kind} node '{node.id}' was not answered within {node.timeout}s"
            self._ended(visit, Outcome(ok=False, error=error))
