"""Llm nodes with tools: one visit that waits, a visit for each turn of the model and one for each call of a tool
(spec/graph-agents.md 2.7.1, 4.5).

    turn 0 ─► its calls, all at once ─► turn 1 ─► ... ─► a turn without calls: the node has ended

A turn without calls may go on too, where its worker says so: the next one follows at once (auto-continuation, spec 5).
Calls about agents are answered here (spawning.py).

The conversation is put aside among the run's items: `<loop>.first` is what the model was told, `<loop>.<turn>` the
message that it replied with, `<loop>.<turn>.<call>` a call's result, `<loop>.<turn>.user` what the model is told after
a reply without calls, or besides the results of calls (escalating.py). The values never pass through here, so what a
commit has recorded is never asked or done again: a turn whose worker dies is repeated alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from sleipnir.graph.model import Json, LlmNode
from sleipnir.messages import AGENTS, ANSWER, FOLLOW_UP, MESSAGES, PERSON, QUEUE_OF, RESULT, ResultHeader, ToolCall
from sleipnir.runs.events import ChildEnded, Told
from sleipnir.runs.run import Loop, Part, Visit, changed
from sleipnir.runs.transitions import Fill, Forget, Take
from sleipnir.runs.values import Wanted
from sleipnir_scheduler.planner import escalating, maps, messaging, questions, spawning, steps
from sleipnir_scheduler.planner.context import Context, Outcome, RunFailed
from sleipnir_scheduler.planner.draft import SETTLED
from sleipnir_scheduler.planner.known import require


def start(context: Context, visit: Visit, node: LlmNode) -> None:
    """Open the first turn. The node's `timeout` is over all of them."""
    wake_ms = None if node.timeout is None else context.now_ms + node.timeout * 1000
    waiting = context.draft.begin(visit, None, wake_ms)
    _open_turn(context, context.draft.put(changed(waiting, loop=Loop(visit.seq))))


def turn_ended(context: Context, visit: Visit, header: ResultHeader, notes: tuple[str, ...]) -> None:
    """The model has replied: its calls are opened, or its next turn is, or the node has ended, well or not."""
    of, part, draft = _loop_of(context, visit), _part(visit), context.draft
    outcome, names = Outcome.of(header, notes), tuple(call.name for call in header.calls)
    draft.deliver(visit, header)
    draft.drop(visit)
    draft.journal(visit, None, ok=header.ok, error=header.error, calls=names, goes_on=header.goes_on, **outcome.how)
    if not (header.ok and (header.calls or header.goes_on)):
        _end(context, of, changed(outcome, how={"worker": header.worker}))
        return
    told = {"turn": part.turn, "calls": list(names), "took_ms": header.took_ms}
    if header.goes_on:
        told |= {"goes_on": True, "notes": list(notes)}
    draft.notice("turn_ended", seq=of.seq, node=of.node, **told, **_item(of))
    if part.turn == 0:
        draft.item(Take(f"{part.loop}.first", MESSAGES))
    draft.item(Take(f"{part.loop}.{part.turn}", ANSWER))
    if header.goes_on:
        draft.item(Take(f"{part.loop}.{part.turn}.user", FOLLOW_UP))
    assert of.loop is not None
    count = len(header.calls)
    draft.put(changed(of, loop=changed(of.loop, calls=count, open=count)))
    for number, call in enumerate(header.calls):
        _open_call(context, draft.frontier[of.seq], part, number, call)
    _go_on_if_answered(context, draft.frontier[of.seq])


def call_ended(context: Context, visit: Visit, outcome: Outcome) -> None:
    """A tool has answered; an error is an answer too, for the model to read."""
    if visit.role == "summary" and not outcome.ok:
        outcome = changed(outcome, values={RESULT: spawning.shortened(context, visit, outcome.error or "failed")})
    _go_on_if_answered(context, _close_call(context, visit, outcome))


def agent_ended(context: Context, event: ChildEnded) -> bool:
    """The run of an agent that a model has spawned is over. False: it is none of those that the model still has."""
    of = next((each for each in context.draft.visits() if event.child in _agents_under_way(each)), None)
    if of is None:
        return False
    spawning.ended(context, of, event)
    answered = _answer_waiting(context, of)
    spawning.start_tasks(context, context.draft.frontier[of.seq])
    if answered:
        _go_on_if_answered(context, context.draft.frontier[of.seq])
    return True


def _agents_under_way(of: Visit) -> list[str]:
    return [each.run for each in of.loop.agents if each.exit is None] if of.loop else []


def _answer_waiting(context: Context, of: Visit) -> bool:
    """Answer the calls that have waited for agents that are over now, or gone. False: there are none."""
    assert of.loop is not None
    any_answered = False
    for visit in context.draft.visits():
        if visit.child is None or visit.part is None or visit.part.loop != of.loop.id:
            continue
        result = spawning.collected_for(context, context.draft.frontier[of.seq], visit)
        if result is not None:
            _close_call(context, visit, Outcome(values={RESULT: result}))
            any_answered = True
    return any_answered


def _close_call(context: Context, visit: Visit, outcome: Outcome) -> Visit:
    """A call has its result. Returns its loop."""
    of, part, draft = _loop_of(context, visit), _part(visit), context.draft
    assert of.loop is not None
    draft.drop(visit)
    draft.journal(visit, None, ok=outcome.ok, error=outcome.error, **outcome.how)
    field = f"{part.loop}.{part.turn}.{part.call}"
    if RESULT in outcome.keys:
        draft.item(Take(field, RESULT))
    else:
        answer = outcome.values.get(RESULT, {"tool_call_error": outcome.error or "failed"})
        draft.item(Fill(field, json.dumps(answer, ensure_ascii=False, separators=(",", ":"))))
    took_ms = outcome.how.get("took_ms", context.now_ms - visit.opened_ms)
    told = {"call": part.id, "name": part.tool, "ok": outcome.ok, "took_ms": took_ms}
    draft.notice("tool_ended", node=visit.node, seq=of.seq, **told, **_item(of))
    return draft.put(changed(of, loop=changed(of.loop, open=of.loop.open - 1)))


def answered(context: Context, visit: Visit, text: str, by: str) -> None:
    """A person has answered a call of a `user__*` tool; what cannot be understood is asked again."""
    part, field = _part(visit), f"{_part(visit).loop}.{_part(visit).turn}"
    require(context.known, Wanted(items=frozenset([field])))
    arguments = questions.asked(json.loads(context.known.items[field]), part.call or 0)
    context.answered(visit, text, by)
    try:
        found = questions.result_of(part.tool, arguments, text)
    except questions.Unclear as error:
        gate = questions.gate_of(visit, part.tool, arguments, context.now_ms, str(error))
        context.draft.ask_instead(visit, gate)
        context.draft.put(changed(context.draft.frontier[visit.seq], wake_ms=visit.wake_ms))
        return
    call_ended(context, visit, Outcome(values={RESULT: found}))


def told(context: Context, event: Told) -> bool:
    """Another run lets this one know of a message, a question, or the answer to one of this run's. False: it changes
    nothing. Raises Missing."""
    if event.what == messaging.SENT:
        return messaging.receive(context, event.data)
    if event.what == messaging.PASSED_ON:
        return messaging.pass_on(context, event.data)
    if event.what == messaging.ARRIVED:
        return _arrived(context, event.data)
    if event.what == escalating.REPLIED:
        return _replied(context, event.data["seq"], event.data["attempt"], event.data["text"])
    of = escalating.listener(context)
    if of is None:
        return False
    if event.what == SETTLED:
        return escalating.taken_back(context, of, event.data["escalation_id"])
    if event.what != escalating.ASKED or not escalating.noted(context, of, event.data):
        return False
    if _answer_waiting(context, of):
        _go_on_if_answered(context, context.draft.frontier[of.seq])
    return True


def _replied(context: Context, seq: int, attempt: int, text: str) -> bool:
    """The model at the top has answered a question of this run's."""
    visit = context.draft.visit(seq)
    if visit is None or visit.part is None or not visit.is_asking or visit.attempt != attempt:
        return False
    context.draft.unless_answered()  # a person was told that the answer was taken
    context.answered(visit, text, f"the model of run {context.run.spec.root}")
    call_ended(context, visit, Outcome(values={RESULT: {"answer": text}}))
    return True


def _arrived(context: Context, data: Mapping[str, Json]) -> bool:
    """The parent says whether there was an agent for a message of this run's."""
    visit = context.draft.visit(data["seq"])
    if visit is None or visit.addressee is None:
        return False
    call_ended(context, visit, Outcome(values={RESULT: messaging.told(visit.addressee, found=data["found"])}))
    return True


def unanswered(context: Context, visit: Visit) -> None:
    """Nobody has answered a call of a `user__*` tool in time, or has said whether a message has arrived; the model goes
    on without that."""
    if visit.addressee is not None:
        call_ended(context, visit, Outcome(values={RESULT: messaging.not_heard_of(visit.addressee)}))
        return
    context.draft.notice("gate_expired", seq=visit.seq, node=visit.node)
    waited_s = spawning.patience_s(context)
    told = f"Escalation timed out after {waited_s} seconds waiting for user response"
    found = {"error": told, "fallback": "Make your best judgment and proceed"}
    call_ended(context, visit, Outcome(values={RESULT: found}))


def given_up(context: Context, visit: Visit, error: str) -> None:
    """No worker could do this part: the node fails for a turn, the model is told of a tool."""
    if _part(visit).call is None:
        fail(context, _loop_of(context, visit), error)
    else:
        call_ended(context, visit, Outcome(ok=False, error=error))


def timed_out(context: Context, of: Visit) -> None:
    """The node's time is up. What its workers still do is dropped."""
    node = _node(context, of)
    fail(context, of, f"llm node timed out after {node.timeout}s")


def fail(context: Context, of: Visit, error: str) -> None:
    """The node fails for a reason that no worker has told."""
    _end(context, of, context.given_up(of, error))


def _open_turn(context: Context, of: Visit) -> None:
    assert of.loop is not None
    part = Part(of.loop.id, of.loop.turn)
    _open(context, of, "turn", part, _node(context, of).queue or QUEUE_OF["llm"])


def _open_call(context: Context, of: Visit, part: Part, number: int, call: ToolCall) -> None:
    here = Part(part.loop, part.turn, number, call.name, call.id)
    if not call.where:  # the worker of the turn has answered it already, and has delivered the result
        assert of.loop is not None
        context.draft.item(Take(f"{part.loop}.{part.turn}.{number}", f"{RESULT}.{number}"))
        context.draft.put(changed(of, loop=changed(of.loop, open=of.loop.open - 1)))
        return
    context.draft.notice("tool_called", node=of.node, seq=of.seq, call=call.id, name=call.name, **_item(of))
    if call.where not in (PERSON, AGENTS):
        _open(context, of, "tool", here, call.where)
        return
    require(context.known, Wanted(delta=frozenset([ANSWER])))
    visit = context.draft.open(of.node, of.kind, role="tool", part=here, **_place(of))
    if call.where == AGENTS:
        _call_of_agents(context, of, visit, spawning.asked(context.known.delta[ANSWER], number))
        return
    arguments = questions.asked(context.known.delta[ANSWER], number)
    patience_s = spawning.patience_s(context)
    expires_ms = None if patience_s is None else context.now_ms + patience_s * 1000
    context.draft.ask(visit, questions.gate_of(visit, call.name, arguments, context.now_ms), expires_ms)
    escalating.ask(context, visit, arguments)


def _call_of_agents(context: Context, of: Visit, visit: Visit, arguments: Mapping[str, Json]) -> None:
    try:
        result = spawning.call(context, of, visit, arguments)
    except spawning.CannotDo as error:
        outcome = Outcome(ok=False, error=f"Supervisor tool failed: {error}")
    else:
        if result is None:
            return
        outcome = Outcome(values={RESULT: result})
    _close_call(context, visit, outcome)
    _answer_waiting(context, of)
    spawning.start_tasks(context, context.draft.frontier[of.seq])


def _open(context: Context, of: Visit, role: Json, part: Part, queue: str) -> None:
    item = of.item if role == "turn" else None  # the last turn leaves the result of a map's item
    visit = context.draft.open(of.node, of.kind, role=role, part=part, item=item, overlay=of.overlay, **_place(of))
    context.draft.begin(visit, queue)


def _place(of: Visit) -> dict[str, Json]:
    return {"group": of.group, "depth": of.depth, "lineage": of.lineage, "index": of.index}


def _item(of: Visit) -> dict[str, Json]:
    """For watchers, who may not want to know of each item of a map."""
    return {"item": of.item.index} if of.item is not None else {}


def _go_on_if_answered(context: Context, of: Visit) -> None:
    """Open the next turn once all calls have ended. The run's timer may have come while a worker had a part of the
    loop, and does not come again: raises RunFailed then."""
    assert of.loop is not None
    if context.deadline_passed():
        raise RunFailed(context.timed_out(f"at '{of.node}'"))
    if of.loop.open:
        return
    most = _node(context, of).max_iterations
    if of.loop.turn + 1 >= most:
        fail(context, of, f"llm node hit max_iterations ({most}) before LLM concluded")
        return
    if of.loop.calls and (told := escalating.announcement(of)) is not None:
        context.draft.item(Fill(f"{of.loop.id}.{of.loop.turn}.user", told))
    _open_turn(context, context.draft.put(changed(of, loop=changed(of.loop, turn=of.loop.turn + 1, calls=0, open=0))))


def _end(context: Context, of: Visit, outcome: Outcome) -> None:
    """The node has ended, whatever of it is still under way."""
    assert of.loop is not None
    for visit in context.draft.visits():
        if visit.part is not None and visit.part.loop == of.loop.id:
            context.draft.drop(visit)
    context.draft.item(Forget(of.loop.id, of.loop.turn, of.loop.calls))
    of = context.draft.put(changed(context.draft.without_agents(of), loop=None, wake_ms=None))
    if of.item is not None:
        maps.item_ended(context, of, outcome)
    else:
        steps.ended(context, of, outcome)


def _loop_of(context: Context, visit: Visit) -> Visit:
    number = _part(visit).loop
    return next(other for other in context.draft.visits() if other.loop and other.loop.id == number)


def _part(visit: Visit) -> Part:
    assert visit.part is not None
    return visit.part


def _node(context: Context, visit: Visit) -> LlmNode:
    node = context.graph.nodes[visit.node]
    assert isinstance(node, LlmNode)
    return node
