"""Llm nodes with tools: one visit that waits, one visit for each turn of the model, and one for each call of a tool
(spec/graph-agents.md 2.7.1, 4.5).

    turn 0 ─► its calls, all at once ─► turn 1 ─► ... ─► a turn without calls: the node has ended

If its worker requests it, a turn without calls continues too: the next turn follows immediately (auto-continuation,
spec 5). The planner itself answers calls about agents (spawning.py).

The conversation is stored in the run's items: `<loop>.first` are the first messages to the model, `<loop>.<turn>` is
its reply, `<loop>.<turn>.<call>` the result of a call, `<loop>.<turn>.user` a message to the model after a reply
without calls, or after the results of calls (escalating.py). The planner does not read these values. A committed turn
or call never runs again: only a turn whose worker is lost is repeated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sleipnir.graph.model import Json, LlmNode
from sleipnir.graph.plain import compact_json
from sleipnir.messages import AGENTS, ANSWER, FOLLOW_UP, MESSAGES, PERSON, QUEUE_OF, RESULT, ResultHeader, ToolCall
from sleipnir.runs.events import ChildEnded, Told
from sleipnir.runs.run import changed
from sleipnir.runs.transitions import ForgetConversation, SetValue, TakeResult
from sleipnir.runs.values import WantedValues
from sleipnir.runs.visits import Call, ChildWait, Item, Loop, Question, Receipt, Turn, Visit, Work
from sleipnir_scheduler.planner.context import Context, RunFailed, VisitOutcome
from sleipnir_scheduler.planner.draft.owed import SETTLED
from sleipnir_scheduler.planner.ending import close, without_agents
from sleipnir_scheduler.planner.known import require
from sleipnir_scheduler.planner.loops import escalating, messaging, questions, spawning
from sleipnir_scheduler.planner.loops.model_loop import ModelLoop, change, loop_of, loops, node_of, now


def start(context: Context, visit: Visit, node: LlmNode) -> None:
    """Open the first turn. The node's `timeout` covers all turns."""
    due_ms = None if node.timeout is None else context.now_ms + node.timeout * 1000
    loop = Loop(visit.seq, due_ms=due_ms)
    _open_turn(context, ModelLoop(context.begin(visit, loop), loop))


def turn_replied(context: Context, visit: Visit, outcome: VisitOutcome, header: ResultHeader) -> None:
    """The model has replied: open its calls or its next turn, or end the node, with success or failure."""
    model_loop, draft = loop_of(context, visit), context.draft
    loop, turn = model_loop.loop.id, model_loop.loop.turn
    names = tuple(call.name for call in header.calls)
    close(draft, visit)
    draft.record.write(visit, ok=header.ok, error=header.error, calls=names, goes_on=header.goes_on, **outcome.how)
    if not (header.ok and (header.calls or header.goes_on)):
        end(context, model_loop, changed(outcome, how={"worker": header.worker}))
        return
    progress: dict[str, Any] = {"turn": turn, "calls": list(names), "took_ms": header.took_ms}
    if header.goes_on:
        progress |= {"goes_on": True, "notes": list(outcome.notes)}
    _notice(context, "turn_ended", model_loop, **progress)
    if turn == 0:
        draft.record.item(TakeResult(f"{loop}.first", MESSAGES))
    draft.record.item(TakeResult(f"{loop}.{turn}", ANSWER))
    if header.goes_on:
        draft.record.item(TakeResult(f"{loop}.{turn}.user", FOLLOW_UP))
    count = len(header.calls)
    change(context, model_loop, calls=count, open=count)
    for number, call in enumerate(header.calls):
        _open_call(context, now(context, model_loop), number, call)
    _go_on_if_answered(context, now(context, model_loop))


def call_ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """A call has ended; the model also reads an error as its result."""
    if visit.role == "summary" and not outcome.ok and isinstance(visit.body, Work):
        shortened = spawning.shortened(context, visit.body.given or "", outcome.error or "failed")
        outcome = changed(outcome, values={RESULT: shortened})
    _go_on_if_answered(context, _close_call(context, visit, outcome))


def agent_ended(context: Context, event: ChildEnded) -> bool:
    """The run of a spawned agent is over. False: no model of this run has that agent now."""
    model_loop = next((each for each in loops(context) if event.child in each.visit.children), None)
    if model_loop is None:
        return False
    spawning.ended(context, model_loop, event)
    answered_any = _answer_waiting(context, model_loop)
    spawning.start_tasks(context, now(context, model_loop))
    if answered_any:
        _go_on_if_answered(context, now(context, model_loop))
    return True


def answered(context: Context, visit: Visit, text: str, by: str) -> None:
    """A person has answered a call of a `user__*` tool; after an invalid answer, ask again."""
    call = _call(visit)
    message = context.values.item(f"{call.loop}.{call.turn}")
    arguments = questions.asked(json.loads(message or "{}"), call.call)
    context.answered(visit, text, by)
    try:
        result = questions.result_of(call.tool, arguments, text)
    except questions.UnclearAnswer as error:
        visit = context.draft.visits.move(visit, Question(visit.due_ms))
        gate = questions.gate_of(visit, call.tool, arguments, context.now_ms, str(error))
        context.draft.record.ask(visit, gate)
        return
    call_ended(context, visit, VisitOutcome(values={RESULT: result}))


def notified(context: Context, event: Told) -> bool:
    """Another run sent a message, a question, or the answer to a question of this run. False: it changes nothing.
    Raises MissingValues."""
    if event.what == messaging.SENT:
        return messaging.receive(context, event.data)
    if event.what == messaging.PASSED_ON:
        return messaging.pass_on(context, event.data)
    if event.what == messaging.ARRIVED:
        return _arrived(context, event.data)
    if event.what == escalating.REPLIED:
        return _replied(context, event.data["seq"], event.data["attempt"], event.data["text"])
    model_loop = escalating.listener(context)
    if model_loop is None:
        return False
    if event.what == SETTLED:
        return escalating.taken_back(context, model_loop, event.data["escalation_id"])
    if event.what != escalating.ASKED or not escalating.noted(context, model_loop, event.data):
        return False
    if _answer_waiting(context, model_loop):
        _go_on_if_answered(context, now(context, model_loop))
    return True


def _replied(context: Context, seq: int, attempt: int, text: str) -> bool:
    """The model at the top has answered a question of this run."""
    visit = context.draft.visits.get(seq)
    if visit is None or not isinstance(visit.place, Call) or not visit.is_asking or visit.attempt != attempt:
        return False
    context.draft.unless_answered = True  # an accepted answer of a person comes first
    context.answered(visit, text, f"the model of run {context.run.spec.root}")
    call_ended(context, visit, VisitOutcome(values={RESULT: {"answer": text}}))
    return True


def _arrived(context: Context, data: Mapping[str, Json]) -> bool:
    """The parent reports whether the addressee of a message of this run exists."""
    visit = context.draft.visits.get(data["seq"])
    if visit is None or not isinstance(visit.body, Receipt):
        return False
    receipt = messaging.receipt(visit.body.addressee, exists=data["found"])
    call_ended(context, visit, VisitOutcome(values={RESULT: receipt}))
    return True


def unanswered(context: Context, visit: Visit) -> None:
    """A call of a `user__*` tool has expired; the model goes on without an answer."""
    context.draft.record.notice("gate_expired", seq=visit.seq, node=visit.node)
    waited_s = spawning.patience_s(context)
    error = f"Escalation timed out after {waited_s} seconds waiting for user response"
    result = {"error": error, "fallback": "Make your best judgment and proceed"}
    call_ended(context, visit, VisitOutcome(values={RESULT: result}))


def unreported(context: Context, visit: Visit, receipt: Receipt) -> None:
    """The parent has not reported in time whether a message arrived; the model goes on without the report."""
    call_ended(context, visit, VisitOutcome(values={RESULT: messaging.no_receipt(receipt.addressee)}))


def turn_given_up(context: Context, visit: Visit, error: str) -> None:
    """No worker could execute a turn: the node fails."""
    fail(context, loop_of(context, visit), error)


def timed_out(context: Context, visit: Visit, loop: Loop) -> None:
    """The node has timed out. Results that its workers still deliver are dropped."""
    error = f"llm node timed out after {node_of(context, visit).timeout}s"
    fail(context, ModelLoop(visit, loop), error)


def fail(context: Context, model_loop: ModelLoop, error: str) -> None:
    """Fail the node for a reason that no worker reported."""
    end(context, model_loop, context.given_up(model_loop.visit, error))


def _answer_waiting(context: Context, model_loop: ModelLoop) -> bool:
    """End the calls that waited for agents that are over or gone. False: there are none."""
    any_answered = False
    for visit in context.draft.visits.all():
        place, body = visit.place, visit.body
        if not isinstance(body, ChildWait) or not isinstance(place, Call) or place.loop != model_loop.loop.id:
            continue
        result = spawning.collected_for(context, now(context, model_loop), visit, body.child)
        if result is not None:
            _close_call(context, visit, VisitOutcome(values={RESULT: result}))
            any_answered = True
    return any_answered


def _close_call(context: Context, visit: Visit, outcome: VisitOutcome) -> ModelLoop:
    """End a call, and store its result. Returns its loop."""
    model_loop, call, record = loop_of(context, visit), _call(visit), context.draft.record
    close(context.draft, visit)
    record.write(visit, ok=outcome.ok, error=outcome.error, **outcome.how)
    field = f"{call.loop}.{call.turn}.{call.call}"
    if RESULT in outcome.keys:
        record.item(TakeResult(field, RESULT))
    else:
        answer = outcome.values.get(RESULT, {"tool_call_error": outcome.error or "failed"})
        record.item(SetValue(field, compact_json(answer)))
    took_ms = outcome.how.get("took_ms", context.now_ms - visit.opened_ms)
    _notice(context, "tool_ended", model_loop, call=call.id, name=call.tool, ok=outcome.ok, took_ms=took_ms)
    return change(context, model_loop, open=model_loop.loop.open - 1)


def _open_turn(context: Context, model_loop: ModelLoop) -> None:
    visit, loop = model_loop
    item = visit.place if isinstance(visit.place, Item) else None  # the last turn leaves the result of a map's item
    turn = _open(context, model_loop, Turn(loop.id, loop.turn, item), overlay=visit.overlay)
    context.draft.visits.begin(turn, Work(node_of(context, visit).queue or QUEUE_OF["llm"]))


def _open_call(context: Context, model_loop: ModelLoop, number: int, call: ToolCall) -> None:
    visit, loop = model_loop
    place = Call(loop.id, loop.turn, number, call.name, call.id)
    if not call.where:  # the worker of the turn has delivered the result already
        context.draft.record.item(TakeResult(f"{loop.id}.{loop.turn}.{number}", f"{RESULT}.{number}"))
        change(context, model_loop, open=loop.open - 1)
        return
    _notice(context, "tool_called", model_loop, call=call.id, name=call.name)
    if call.where not in (PERSON, AGENTS):
        opened = _open(context, model_loop, place, overlay=visit.overlay)
        context.draft.visits.begin(opened, Work(call.where))
        return
    require(context.known, WantedValues(delta=frozenset([ANSWER])))
    opened = _open(context, model_loop, place)
    if call.where == AGENTS:
        _call_of_agents(context, model_loop, opened, spawning.asked(context.known.delta[ANSWER], number))
        return
    arguments = questions.asked(context.known.delta[ANSWER], number)
    patience_s = spawning.patience_s(context)
    asking = context.draft.visits.begin(
        opened, Question(None if patience_s is None else context.now_ms + patience_s * 1000)
    )
    context.draft.record.ask(asking, questions.gate_of(asking, call.name, arguments, context.now_ms))
    escalating.ask(context, asking, call.name, arguments)


def _call_of_agents(context: Context, model_loop: ModelLoop, visit: Visit, arguments: Mapping[str, Json]) -> None:
    try:
        result = spawning.call(context, model_loop, visit, _call(visit), arguments)
    except spawning.CallRefused as error:
        outcome = VisitOutcome(ok=False, error=f"Supervisor tool failed: {error}")
    else:
        if result is None:
            return
        outcome = VisitOutcome(values={RESULT: result})
    _close_call(context, visit, outcome)
    _answer_waiting(context, now(context, model_loop))
    spawning.start_tasks(context, now(context, model_loop))


def _open(context: Context, model_loop: ModelLoop, place: Turn | Call, overlay: str | None = None) -> Visit:
    visit = model_loop.visit
    return context.draft.visits.open(
        visit.node,
        visit.kind,
        place=place,
        group=visit.group,
        depth=visit.depth,
        lineage=visit.lineage,
        index=visit.index,
        overlay=overlay,
    )


def _go_on_if_answered(context: Context, model_loop: ModelLoop) -> None:
    """Open the next turn once all calls have ended. Raises RunFailed after the run's deadline: its timer may have fired
    while a worker had a part of the loop, and does not fire again."""
    visit, loop = model_loop
    if context.deadline_passed():
        raise RunFailed(context.timed_out(f"at '{visit.node}'"))
    if loop.open:
        return
    most = node_of(context, visit).max_iterations
    if loop.turn + 1 >= most:
        fail(context, model_loop, f"llm node hit max_iterations ({most}) before LLM concluded")
        return
    if loop.calls and (announcement := escalating.announcement(loop)) is not None:
        context.draft.record.item(SetValue(f"{loop.id}.{loop.turn}.user", announcement))
    _open_turn(context, change(context, model_loop, turn=loop.turn + 1, calls=0, open=0))


def end(context: Context, model_loop: ModelLoop, outcome: VisitOutcome) -> None:
    """End the node, and close its live turns and calls."""
    loop, draft = model_loop.loop, context.draft
    for visit in draft.visits.all():
        if isinstance(visit.place, (Turn, Call)) and visit.place.loop == loop.id:
            close(draft, visit)
    draft.record.item(ForgetConversation(loop.id, loop.turn, loop.calls))
    context.kinds.ended(context, without_agents(draft, now(context, model_loop).visit), outcome)


def _notice(context: Context, what: str, model_loop: ModelLoop, **data: Any) -> None:
    """Add a notice for watchers, with the item, so that they can leave items of maps out."""
    visit = model_loop.visit
    item = {"item": visit.place.index} if isinstance(visit.place, Item) else {}
    context.draft.record.notice(what, node=visit.node, seq=visit.seq, **data, **item)


def _call(visit: Visit) -> Call:
    if not isinstance(visit.place, Call):
        raise TypeError(f"visit {visit.seq} of node '{visit.node}' is no call")
    return visit.place
