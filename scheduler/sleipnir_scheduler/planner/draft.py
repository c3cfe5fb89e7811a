"""The transition under construction: bookkeeping of visits, steps and counters, so that the rest reads as decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from sleipnir.graph.model import Json
from sleipnir.messages import ResultHeader, Role, RunStatus
from sleipnir.runs.budgets import BUDGET, Budget
from sleipnir.runs.events import RUN_DEADLINE, ChildEnded
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.run import (
    Child,
    Ended,
    FailedVisits,
    Gate,
    HoldOwner,
    Pause,
    Rank,
    RunView,
    Slot,
    Timing,
    Visit,
    changed,
    question_id,
)
from sleipnir.runs.transitions import (
    AskSlot,
    Collect,
    Drop,
    Effect,
    Fill,
    Forget,
    FreeSlot,
    ItemOp,
    Notice,
    Put,
    RetryChild,
    Split,
    StartChild,
    Step,
    Take,
    TellBatch,
    TellChild,
    TellParent,
    TellRoot,
    TellRun,
    Transition,
    Write,
)

MOST_STARTS = 1_000
"""Visits that one event may start: what a scheduler plans in 20 ms, and Redis commits in 10."""

SETTLED = "settled"
"""What a run tells the one at the top: a question needs no answer any more."""

_TOLD_AT_THE_TOP = ("gate_opened", "gate_answered", "gate_expired", "child_started", "child_retried", "child_ended")


class Member(NamedTuple):
    """A visit of a step, and what is asked of thousands when the step closes: each is looked at once. `rests`: it has
    ended, and nothing else is stored of it."""

    rank: Rank
    seq: int
    role: Role
    ended: Ended | None
    overlay: str | None
    rests: bool
    visit: Visit


class Draft:
    """What one event changes, so far. Mutable, and never leaves one call of plan()."""

    def __init__(self, run: RunView, now_ms: int) -> None:
        self._run, self._now_ms = run, now_ms
        self.started_ms, self.idle_ms, self.holds = run.started_ms, run.idle_ms, run.holds
        self.slot = run.slot
        self.failed_visits = run.failed_visits
        self.budget, self.spent = run.budget or run.spec.budget, run.spent
        self.steps = run.steps
        self.arrived: Mapping[str, Mapping[str, int]] = run.arrived
        self.tops = dict(run.tops)
        self.folded: dict[str, Json] = {}
        self.copies: tuple[int, ...] | None = None
        self.apart: set[str] = set()
        self.windows: dict[str, Any] = {}
        self.left: dict[str, Take | Fill] = {}
        """What has become of items in this draft."""
        self.put_aside: dict[str, Mapping[str, Json]] = {}
        """Overlays of this draft by field: they are not in the store yet."""
        self.split: int | None = None
        """The visit whose commands are followed in this draft: their updates are not in the store yet."""
        self.output: str | None = None
        self.over = False
        self.frontier = Frontier.of(run.frontier)
        self._touched: dict[int, None] = {}
        self._step, self._seq = run.step, run.seq
        self._counts: dict[str, int] = {}
        self._forgiven: set[str] = set()
        self._timings: dict[str, Timing] = {}
        self._gates: dict[int, Gate] = {}
        self._writes: list[Write] = []
        self._notices: list[Notice] = []
        self._timers: dict[str, int] = {}
        self._untimers: dict[str, None] = {}
        self._wakes: list[Visit] = []
        self._items: list[ItemOp] = []
        self._gone: dict[int, tuple[int, ...]] = {}
        self._drops: list[str] = []
        self._effects: list[Effect] = []
        self._children_ended: set[str] = set()
        self._recalled: list[str] = []
        self._starts = 0
        self._continues = False
        self._closings: dict[int, dict[str, Any]] = {}
        self._fields: dict[str, Any] = {}
        self._status: RunStatus | None = None
        self._answer: tuple[int, str, str] | None = None

    # The run

    def start(self, graph: str, start: str, deadline_ms: int | None) -> None:
        self._start_clock()
        self.notice("run_started", graph=graph, start=start, agent=self._run.spec.agent)
        if deadline_ms is not None:
            self.arm_deadline(deadline_ms)

    def _start_clock(self) -> None:
        """The run's time begins now. Where it is held, what was before does not count."""
        self.started_ms = self._fields["started_ms"] = self._now_ms
        self.idle_ms = 0 if self.held_since_ms is None else self.held_since_ms - self._now_ms

    def arm_deadline(self, deadline_ms: int) -> None:
        """One millisecond later: the rule is "elapsed > timeout", strictly."""
        self.arm(RUN_DEADLINE, deadline_ms + 1)

    def arm(self, timer: str, due_ms: int) -> None:
        self._timers[timer] = due_ms

    def disarm(self, timer: str) -> None:
        """It may have been armed by this draft and by an event before it."""
        self._timers.pop(timer, None)
        self._untimers[timer] = None

    def count(self, node: str) -> int:
        """Count an entry into `node`; how many that makes."""
        before = self._counts.get(node, 0 if node in self._forgiven else self._run.counts.get(node, 0))
        self._counts[node] = before + 1
        return before + 1

    def note_wish(self, kind: str, by: str, **fields: Any) -> None:
        """Journal what somebody wants of the run, and who that is."""
        self._step += 1
        self._writes.append(Write(Step(step=self._step, kind=kind, at_ms=self._now_ms, by=by, **fields)))

    def revive(self, nodes: list[str], by: str) -> None:
        """Bring a run back that is over: its clock and the caps of the nodes it failed at start anew."""
        self._fields["revives"] = True
        self._start_clock()
        self._forgiven |= set(nodes)
        self.failed_visits = self.failed_visits.without_ending()
        self.note_wish("retried", by, next=nodes[0] if len(nodes) == 1 else tuple(nodes) or None)
        self.notice("run_retried", node=", ".join(nodes), by=by)

    def heard(self) -> None:
        """What was wanted of the run, should it have failed, is not needed: it has not ended."""
        self._fields["revives"] = True

    def ask_slot(self, slot: Slot) -> None:
        """Nothing starts until the run has this slot of its agent."""
        agent = self._run.spec.agent
        self.slot = slot
        self.effect(AskSlot(agent, slot.key, slot.limit, slot.ticket))
        if self._run.batch is None:  # rows may wait by the thousand, and the first event of a run costs 4 kB
            self.notice("slot_asked", agent=agent, key=slot.key, limit=slot.limit)

    @property
    def waits_for_slot(self) -> bool:
        return self.slot is not None and not self.slot.granted

    def pause(self, by: str, reason: str | None, owner: HoldOwner) -> None:
        """Hold the run: what would start from here on waits until no hold is left."""
        if self.holder is None:
            self._tell_children("paused", by)
        self.holds = (*self.holds, Pause(by, self._now_ms, reason, owner))
        self.note_wish("paused", self._name(by, owner), reason=reason)
        self.notice("run_paused", by=by, reason=reason, owner=owner)

    def resume(self, owner: HoldOwner, by: str) -> None:
        """End the holds of an owner. The run goes on unless another one is left; its clocks have stood still."""
        since_ms = self.held_since_ms
        assert since_ms is not None
        self.holds = tuple(hold for hold in self.holds if not hold.ends_with(owner))
        self._release(since_ms)
        self.note_wish("resumed", self._name(by, owner))
        self.notice("run_resumed", by=by, owner=owner)

    def _name(self, by: str, owner: HoldOwner) -> str:
        """Who wants something of the run, for its journal."""
        parent = f"run {self._run.spec.parent}"
        if owner != "parent" or by.startswith(parent):
            return by
        return f"{parent} ({by})" if by else parent

    def answered(self, visit: Visit, answer: str, by: str) -> None:
        """A question was answered. The journal says so in the step with which the visit ends, else in one of its own
        (see `transition`)."""
        self._answer = (visit.seq, answer, by)
        self.notice("gate_answered", seq=visit.seq, node=visit.node, answer=answer, by=by)

    def note_answer(self) -> None:
        """Journal an answer that ends no visit, unless that is done."""
        if self._answer is not None:
            seq, answer, by = self._answer
            self._answer = None
            self.note_wish("answered", by, gate=seq, answer=answer)

    def hold(self, visit: Visit) -> None:
        """Hold the run until it is allowed more; `visit` is the one that asks for that."""
        assert self.budget is not None
        if self.holder is None:
            self._tell_children("paused", f"the budget of run {self._run.id}")
        self.budget = changed(self.budget, asked=visit.seq, asked_ms=self._now_ms)

    def allow(self, budget: Budget) -> None:
        """Let the run go on with another budget, unless it has another hold; its clocks have stood still."""
        since_ms, self.budget = self.held_since_ms, budget
        assert since_ms is not None
        self._release(since_ms)

    @property
    def holder(self) -> str | None:
        """Who holds the run. None: it is not held."""
        if self.holds:
            return self.holds[0].by
        asks = self.budget is not None and self.budget.asked is not None
        return f"the budget of run {self._run.id}" if asks else None

    @property
    def is_held(self) -> bool:
        return self.holder is not None

    @property
    def held_since_ms(self) -> int | None:
        """Since when the run is held, as far as `idle_ms` does not count that yet. None: it is not."""
        since = [hold.at_ms for hold in self.holds]
        if self.budget is not None and self.budget.asked is not None:
            since.append(self.budget.asked_ms)
        return min(since, default=None)

    def _release(self, since_ms: int) -> None:
        """A hold has ended; the run was held since then. The holds that are left count from their own beginning."""
        other_ms = self.held_since_ms
        until_ms = self._now_ms if other_ms is None else max(since_ms, other_ms)
        self.idle_ms += until_ms - since_ms
        for visit in self.visits():  # the clocks of loops and children have stood still
            if (visit.loop is not None or visit.child is not None) and visit.wake_ms is not None:
                idle_ms = max(0, until_ms - max(since_ms, visit.opened_ms))
                self.put(changed(visit, wake_ms=visit.wake_ms + idle_ms))
        if other_ms is None:
            self._tell_children("resumed")
            self._wakes += [visit for visit in self._run.frontier.values() if visit.state == "queued"]

    def unless_claimed(self) -> None:
        """Let the commit be void when a worker has one of the visits by then."""
        self._fields["unless_claimed"] = True

    def unless_answered(self) -> None:
        """Let the commit be void when a person has answered one of the questions that it closes."""
        self._fields["unless_answered"] = True

    def count_failed(self, node: str, error: str, *, ends_run: bool) -> None:
        """A visit has failed, and nothing has taken that over."""
        self.failed_visits = self.failed_visits.plus(node, error, ends_run=ends_run)

    def count_failed_of_child(self, node: str, child: Child, visits: FailedVisits) -> None:
        """The run that a visit of `node` has waited for is over. Each end is counted once: nobody waits for it then."""
        self.failed_visits = self.failed_visits.plus_child(node, child, visits)

    def stopped_by(self, limit: str) -> None:
        """The run, should it complete, has not done all: a limit has stopped it, as its author wants."""
        self._fields["stopped_by"] = limit

    @property
    def _is_unclaimed(self) -> bool:
        return bool(self._fields.get("unless_claimed"))

    def end(
        self, status: RunStatus, *, error: str | None = None, output: str | None = None, keeps: bool = False
    ) -> None:
        """The run is over. Nothing stays open; of a failed run, and of one that `keeps` them, the visits stay that
        ended or are to be run again."""
        keeps = keeps or status == "failed"
        for visit in self.visits():
            if not keeps or visit.part is not None or visit.kind == BUDGET:
                self.drop(visit)
            elif visit.state not in ("ended", "failed"):
                never_begun = visit.ready or visit.wake_ms is not None or self._is_unclaimed
                stays = changed(self.without_agents(visit), failed=True, wake_ms=None, ready=never_begun, child=None)
                self.put(changed(stays, former=visit.child or visit.former))
        self._wakes = []
        self._gates = {}
        if self.budget is not None:
            self.budget = changed(self.budget, asked=None, asked_ms=0)
        self._status, self.over = status, True
        self.output = self.output if output is None else output
        self._fields |= {"ended_ms": self._now_ms, "error": error, "keeps": keeps}
        self.notice(
            "run_ended",
            status=status,
            error=error,
            took_ms=self._now_ms - (self.started_ms or self._now_ms),
            output_bytes=len(self.output.encode()) if self.output is not None else 0,
            **({"failed_visits": self.failed_visits.count} if self.failed_visits.count else {}),
        )

    # Visits

    def visits(self) -> list[Visit]:
        """Live visits, those that ended and wait for others, and those that failed, by number."""
        return list(self.frontier.values())

    def visit(self, seq: int) -> Visit | None:
        visit: Visit | None = self.frontier.get(seq)
        return visit

    def group(self, number: int) -> list[Visit]:
        """The visits of a super-step in visit order; items of maps are their map's business."""
        members = self.members(number)
        return sorted(members, key=lambda visit: visit.rank) if len(members) > 1 else members

    def ranked(self, number: int) -> list[Member]:
        """The same, with what closing the step asks of each."""
        return sorted(
            Member(
                (visit.depth, visit.node, visit.lineage, visit.index),
                visit.seq,
                visit.role,
                visit.ended,
                visit.overlay,
                visit.wake_ms is None
                and not (visit.queue or visit.child or visit.loop or visit.given or visit.spread)
                and not (visit.failed or visit.ready or visit.lineage or visit.ended is None),
                visit,
            )
            for visit in self.members(number)
        )

    def members(self, number: int) -> list[Visit]:
        """The same in no order."""
        if number in self.frontier.members:
            return [
                visit
                for visit in self.frontier.values()
                if visit.group == number and visit.item is None and visit.part is None and visit.kind != BUDGET
            ]
        # of a `dag`: a visit, and what runs functions of the agent's own for it
        seqs = {number, *self.frontier.helpers}
        found = [visit for seq in seqs if (visit := self.frontier.get(seq)) is not None]
        return [visit for visit in found if visit.group == number and visit.is_branch]

    def has_mates(self, visit: Visit) -> bool:
        """Whether there are other visits of its step. There may be thousands, and this is asked for each."""
        if (members := self.frontier.members.get(visit.group)) is not None and not visit.lineage:
            return members > 1
        return len(self.members(visit.group)) > 1

    def has_ended_step(self, group: int) -> bool:
        """Whether all visits of a step have ended."""
        if group in self.frontier.members:
            return group not in self.frontier.unfinished
        return all(visit.state == "ended" for visit in self.members(group))

    def may_start(self) -> bool:
        """Whether this event may start one more visit. Otherwise the run goes on with an event of its own, after those
        of other runs."""
        self._starts += 1
        if self._starts <= MOST_STARTS:
            return True
        self.continue_later()
        return False

    @property
    def continues(self) -> bool:
        """Whether the run goes on with an event of its own."""
        return self._continues

    def continue_later(self) -> None:
        """Let the commit post an event to the run itself (events.Continued)."""
        self._continues = True

    def open(self, node: str, kind: str, **place: Any) -> Visit:
        """A new visit, not yet started."""
        visit = Visit(self.number(), node, kind, 1, self._now_ms, ready=True, **place)
        return self.put(visit)

    def number(self) -> int:
        """A number for something that is no visit itself."""
        self._seq += 1
        return self._seq

    def put(self, visit: Visit) -> Visit:
        """A new visit, or a live one as it is from now on."""
        self.frontier.put(visit)
        self._touched[visit.seq] = None
        return visit

    def drop(self, visit: Visit) -> None:
        """The visit is over, and a part of a loop needs no longer what was given to it."""
        if visit.given is not None and visit.part is not None:
            self.item(Drop(visit.given))
        self.frontier.drop(visit.seq)
        self._touched[visit.seq] = None

    def drop_step(self, group: int, members: list[Member]) -> None:
        """The visits of a step that has closed are over, and what they alone saw is dropped."""
        had, have, rest = self._run.frontier, self.frontier, []
        for _, seq, _, _, overlay, rests, visit in members:
            if overlay is not None:
                self._drops.append(overlay)
            if rests and had.get(seq) is visit and have.get(seq) is visit:
                rest.append(seq)
            else:
                self.drop(visit)
        if rest:
            self.frontier.drop_members(group, rest)
            self._gone[group] = tuple(rest)

    def reopen(self, visit: Visit) -> Visit:
        """Run a failed visit again, as a new one in its place."""
        self.drop(visit)
        if visit.loop is not None:
            self.item(Forget(visit.loop.id, visit.loop.turn, visit.loop.calls))
        self._seq += 1
        fresh = changed(
            visit, seq=self._seq, loop=None, attempt=1, opened_ms=self._now_ms, ready=True, failed=False, queue=None
        )
        return self.put(changed(fresh, failures=0, losses=0, wake_ms=None, error=None, limited=False, generation=None))

    def begin(self, visit: Visit, queue: str | None, wake_ms: int | None = None) -> Visit:
        """A visit leaves the state `ready`: for a queue, or to wait for somebody or something."""
        opened_ms = self._now_ms if visit.attempt == 1 else visit.opened_ms
        begun = changed(visit, ready=False, queue=queue, opened_ms=opened_ms, wake_ms=wake_ms)
        if visit.is_branch and visit.role == "node" and visit.attempt == 1:
            self.notice("visit_opened", seq=visit.seq, node=visit.node, kind=visit.kind)
        return self.put(begun)

    def ask(self, visit: Visit, gate: Gate, expires_ms: int | None = None) -> None:
        """Let a visit wait for a person."""
        self._ask(self.begin(visit, None, expires_ms), gate)

    def ask_instead(self, visit: Visit, gate: Gate) -> None:
        """Let a live visit of a worker wait for a person; asking the same again is possible."""
        self._ask(self.put(changed(visit, queue=None, wake_ms=None, ready=False, error=None)), gate)

    def _ask(self, visit: Visit, gate: Gate) -> None:
        self._gates[visit.seq] = changed(gate, seq=visit.seq, attempt=visit.attempt)
        self.notice(
            "gate_opened",
            seq=visit.seq,
            attempt=visit.attempt,
            node=visit.node,
            kind=gate.kind,
            question=gate.question,
            options=list(gate.options),
            default=gate.default,
        )

    def redeliver(self, visit: Visit, *, losses: int) -> None:
        """Give a visit to another worker, as its next attempt; `losses` more workers died on it."""
        self.put(changed(visit, attempt=visit.attempt + 1, losses=visit.losses + losses))

    def run_again(self, visit: Visit, queue: str) -> None:
        """Let a visit that waited for a person run, as its next attempt, once there is a slot for it."""
        again = changed(visit, attempt=visit.attempt + 1, queue=queue, wake_ms=None, ready=True)
        self.put(changed(again, generation=None))

    def try_again(self, visit: Visit, header: ResultHeader, at_ms: int, most: int) -> None:
        """Put a failed visit off until `at_ms`, as its next attempt. What it delivered is dropped, its cost is not."""
        self.deliver(visit, header)
        again = changed(
            visit, attempt=visit.attempt + 1, failures=visit.failures + 1, wake_ms=at_ms, error=header.error
        )
        self.put(again)
        self.notice(
            "visit_retrying",
            seq=visit.seq,
            node=visit.node,
            attempt=again.failures,
            max_attempts=most,
            delay_ms=at_ms - self._now_ms,
            error=header.error,
        )

    def put_off(self, visit: Visit, header: ResultHeader, until_ms: int) -> None:
        """Hand a visit back until then, as its next attempt: its worker met a limit before it began."""
        self.deliver(visit, header)
        self.put(changed(visit, attempt=visit.attempt + 1, wake_ms=until_ms, error=header.error, limited=True))
        self.notice("visit_put_off", seq=visit.seq, node=visit.node, until_ms=until_ms, reason=header.error)

    def wake(self, visit: Visit) -> None:
        """The time of a visit that was put off has come; it runs once there is a slot for it."""
        self.put(changed(visit, wake_ms=None, ready=True, limited=False))

    # Children

    def effect(self, effect: Effect) -> None:
        """What this commit owes to another run."""
        self._effects.append(effect)

    def child_ended(self, visit: Visit, event: ChildEnded) -> Visit:
        """The run that a visit waits for is over."""
        self.run_ended(event)
        return self.put(changed(visit, child=None, wake_ms=None))

    def child_gone(self, child: str) -> None:
        """There is no such run any more, or it cannot go on: nobody needs to cancel it."""
        self._children_ended.add(child)

    def run_ended(self, event: ChildEnded) -> None:
        """A run that this one has started is over, or tells what it has cost in all; what it brought is used up by this
        commit."""
        self._children_ended.add(event.child)
        if event.status == "refused":  # who has refused it may have died, and another has found no reason to
            self._recalled.append(event.child)
        self._fields["delivered"] = event.seq
        if event.usage:
            self._fields |= {"usage": dict(event.usage), "usage_of": event.child}

    def notice_child_ended(self, seq: int, node: str, event: ChildEnded) -> None:
        failed = {"failed_visits": event.failed_visits.count} if event.failed_visits.count else {}
        self.notice("child_ended", seq=seq, node=node, child=event.child, status=event.status, **failed)

    def has_ended(self, child: str) -> bool:
        """Whether this draft is about the end of that run."""
        return child in self._children_ended

    def without_agents(self, of: Visit) -> Visit:
        """A loop that is over: nobody asks any more for the agents that it has spawned, nor for what they have said or
        shall do."""
        if of.loop is None:
            return of
        if of.loop.has_tasks:
            self.item(Drop(of.loop.tasks))
        for agent in of.loop.agents:
            if agent.exit is not None:
                self.item(Drop(of.loop.said_by(agent)))
        return self.put(changed(of, loop=changed(of.loop, agents=(), has_tasks=False, escalations=())))

    def _tell_children(self, what: Literal["paused", "resumed"], by: str = "") -> None:
        for child in _children(self.frontier.values()):
            self.effect(TellChild(child, what, by))

    def _owed(self, changed: list[tuple[Visit | None, Visit | None]]) -> Iterator[Effect]:
        """The effects, and what follows from this draft: children that nobody waits for any more are cancelled, who
        watches at the top sees questions and children, the model there hears which questions need no answer any more,
        the slot of a run that is over is free, and its parent or its batch is told."""
        yield from self._effects
        started = [effect.child for effect in self._effects if isinstance(effect, StartChild | RetryChild)]
        had, kept = _children(before for before, _ in changed), _children(after for _, after in changed)
        may_go_on = {after.former.run for _, after in changed if after is not None and after.former is not None}
        for child in dict.fromkeys((*had, *started)):
            if child not in kept and child not in self._children_ended:
                yield TellChild(child, "cancelled", keeps=child in may_go_on)
        for child in self._recalled:
            yield TellChild(child, "cancelled")
        spec = self._run.spec
        if spec.root is not None:
            for notice in self._notices:
                if notice.type in _TOLD_AT_THE_TOP:
                    yield TellRoot(notice.type, {"run": self._run.id, **notice.data, "path": spec.path})
            for before, after in changed:
                if before and _asks_at_the_top(before) and not (after and _asks_at_the_top(after)):
                    yield TellRun(spec.root, SETTLED, {"escalation_id": question_id(self._run.id, before.seq)})
        if self._status and self.slot is not None:
            yield FreeSlot(spec.agent, self.slot.key, self.slot.ticket)
        if spec.parent is not None and (self._status or self._was_over):
            yield TellParent()
        elif self._run.batch is not None and self._status:
            yield TellBatch(self._run.batch, self._run.version + 1)

    # What is written

    @property
    def cost(self) -> tuple[Mapping[str, Any], str | None] | None:
        """What this commit adds to the cost of the run, or with a child run what that has cost in all."""
        usage = self._fields.get("usage")
        return (usage, self._fields.get("usage_of")) if usage else None

    def deliver(self, visit: Visit, header: ResultHeader) -> None:
        """This commit uses up what a worker has delivered."""
        self._fields["delivered"] = visit.seq
        if header.usage:
            self._fields["usage"] = header.usage

    def journal(
        self,
        visit: Visit,
        target: str | tuple[str, ...] | None,
        *,
        delta: bool = False,
        collect: Collect | None = None,
        values: Mapping[str, Json] | None = None,
        keys: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        **how: Any,
    ) -> int:
        """Write the step of a visit that has ended; its number. `keys` are all that it writes; `how` fields of the
        step."""
        self._step += 1
        how.setdefault("took_ms", self._now_ms - visit.opened_ms)
        if self._answer is not None and self._answer[0] == visit.seq:
            _, how["answer"], how["by"] = self._answer
            self._answer = None
        step = Step(
            step=self._step,
            kind=visit.kind,
            at_ms=self._now_ms,
            seq=visit.seq,
            node=visit.node,
            attempt=visit.attempt,
            next=target,
            opened_ms=visit.opened_ms,
            role=visit.role,
            item=(visit.item.map, visit.item.index) if visit.item else None,
            part=visit.part,
            **how,
        )
        self._writes.append(Write(step, delta, collect, values or {}))
        if visit.part is not None:
            return self._step
        timing = self._timings.get(visit.node) or self._run.timings.get(visit.node) or Timing()
        self._timings[visit.node] = timing.plus(step.took_ms)
        if visit.item is None:
            self._closings[self._step] = closing = {
                "seq": step.seq,
                "node": step.node,
                "kind": step.kind,
                "ok": step.ok,
                "next": step.next,
                "keys": list(keys),
                "took_ms": step.took_ms,
                "notes": list(notes),
                "error": step.error,
                **({"failed_visit": True} if step.failed_visit else {}),
            }
            self._notices.append(Notice("visit_closed", closing))
        return self._step

    @property
    def last_step(self) -> int:
        return self._step

    def written(self, step: int) -> Write | None:
        """What this draft journals as `step`; None for a step of the past."""
        index = step - self._run.step - 1
        return self._writes[index] if index >= 0 else None

    def amend(self, step: int, **fields: Any) -> None:
        """Say more in a step of this draft."""
        index = step - self._run.step - 1
        assert index >= 0, "a step of the past cannot be changed"
        self._writes[index] = changed(self._writes[index], step=changed(self._writes[index].step, **fields))
        if "next" in fields:
            self._closings[step]["next"] = fields["next"]

    def item(self, op: ItemOp) -> None:
        self._items.append(op)
        if isinstance(op, Take | Fill):
            self.left[op.field] = op
        elif isinstance(op, Split):
            self.split = op.of
        elif isinstance(op, Put):
            fields = (f"{op.of}.{number}" for number in range(op.first, op.first + len(op.overlays)))
            self.put_aside.update(zip(fields, op.overlays, strict=True))

    def notice(self, type_: str, **data: Any) -> None:
        self._notices.append(Notice(type_, data))

    # The result

    def transition(self) -> Transition:
        self.note_answer()
        changed = list(self._changed())
        close = tuple(before for before, after in changed if before is not None and (after is None or _busy(before)))
        return Transition(
            close=close,
            gone=self._gone,
            open=tuple(after for _, after in changed if after is not None),
            gates=tuple(self._gates.values()),
            writes=tuple(self._writes),
            delivered=self._fields.get("delivered"),
            wakes=tuple(self._wakes),
            unless_claimed=self._fields.get("unless_claimed", False),
            unless_answered=self._fields.get("unless_answered", False),
            stopped_by=self._fields.get("stopped_by"),
            counts=self._counts,
            timings=self._timings,
            status=self._status or self._live_status(),
            started_ms=self._fields.get("started_ms"),
            ended_ms=self._fields.get("ended_ms"),
            error=self._fields.get("error"),
            holds=() if self._status else self.holds,
            slot=None if self._status else self.slot,
            idle_ms=self.idle_ms,
            revives=self._fields.get("revives", False),
            keeps=self._fields.get("keeps", False),
            output=self.output,
            usage=self._fields.get("usage"),
            usage_of=self._fields.get("usage_of"),
            timers={} if self._status else self._due(changed),
            untimers=self._ended_timers(changed),
            notices=tuple(self._notices),
            seq=self._seq,
            steps=self.steps,
            arrived=self.arrived,
            tops=self.tops,
            items=tuple(self._items),
            drops=tuple(self._drops),
            apart=frozenset(self.apart),
            copies=self.copies,
            folded=self.folded,
            windows=self.windows,
            effects=tuple(self._owed(changed)),
            budget=self.budget,
            spent=self.spent,
            failed_visits=self.failed_visits,
            continues=self._continues and not self._status,
            frontier=self.frontier,
        )

    @property
    def _was_over(self) -> bool:
        """Whether the run is over, and stays so: it only hears what its children have cost."""
        return self._run.is_final and not self._fields.get("revives")

    def _changed(self) -> Iterator[tuple[Visit | None, Visit | None]]:
        for seq in self._touched:
            before, after = self._run.frontier.get(seq), self.frontier.get(seq)
            if before is not after:
                yield before, after

    def _due(self, changed: list[tuple[Visit | None, Visit | None]]) -> dict[str, int]:
        visits = {after.timer: after.wake_ms for _, after in changed if after and after.wake_ms is not None}
        return {**self._timers, **visits}

    def _ended_timers(self, changed: list[tuple[Visit | None, Visit | None]]) -> tuple[str, ...]:
        timers = [before.timer for before, _ in changed if before and before.wake_ms is not None]
        return (*timers, *self._untimers, *((RUN_DEADLINE,) if self._status else ()))

    def _live_status(self) -> RunStatus:
        """Waiting when every live visit waits for something else than a worker."""
        if self._was_over:
            return self._run.status
        if self.holder is not None:
            return "paused"
        frontier = self.frontier
        if frontier.queued or frontier.ready or self._continues:
            return "running"
        return "waiting" if frontier.waiting else "running"


def _children(visits: Iterable[Visit | None]) -> dict[str, None]:
    """The runs that end with these visits, each once, in order."""
    return dict.fromkeys(child for visit in visits if visit is not None for child in visit.children)


def _asks_at_the_top(visit: Visit) -> bool:
    """Whether it asks a question of a model, which the one at the top may answer too."""
    return visit.part is not None and visit.is_asking


def _busy(visit: Visit) -> bool:
    """Whether workers or people know of the visit, so that what they hold must be taken from them."""
    asks = visit.state == "waiting" and visit.fan is None and visit.child is None
    return visit.state == "queued" or visit.wake_ms is not None or asks
