"""Llm nodes with tools: one visit that waits, a visit for each turn of the model and one for each call of a tool
(spec/graph-agents.md 2.7.1, 4.5).

    turn 0 ─► its calls, all at once ─► turn 1 ─► ... ─► a turn without calls: the node has ended

The conversation is put aside among the run's items: `<loop>.first` is what the model was told, `<loop>.<turn>` the
message that it replied with, `<loop>.<turn>.<call>` a call's result. The values never pass through here, so what a
commit has recorded is never asked or done again: a turn whose worker dies is repeated alone.
"""

from __future__ import annotations

import json

from sleipnir.graph.model import Json, LlmNode
from sleipnir.messages import ANSWER, MESSAGES, PERSON, QUEUE_OF, RESULT, ResultHeader, ToolCall
from sleipnir.runs import Loop, Part, Visit, changed
from sleipnir.transitions import Fill, Forget, Take
from sleipnir.values import Wanted
from sleipnir_scheduler.planner import maps, questions, steps
from sleipnir_scheduler.planner.context import Context, Outcome, RunFailed
from sleipnir_scheduler.planner.known import require


def start(context: Context, visit: Visit, node: LlmNode) -> None:
    """Open the first turn. The node's `timeout` is over all of them."""
    wake_ms = None if node.timeout is None else context.now_ms + node.timeout * 1000
    waiting = context.draft.begin(visit, None, wake_ms)
    _open_turn(context, context.draft.put(changed(waiting, loop=Loop(visit.seq))))


def turn_ended(context: Context, visit: Visit, header: ResultHeader, notes: tuple[str, ...]) -> None:
    """The model has replied: its calls are opened, or the node has ended, well or not."""
    of, part, draft = _loop_of(context, visit), _part(visit), context.draft
    outcome, names = Outcome.of(header, notes), tuple(call.name for call in header.calls)
    draft.deliver(visit, header)
    draft.drop(visit)
    draft.journal(visit, None, ok=header.ok, error=header.error, calls=names, **outcome.how)
    if not (header.ok and header.calls):
        _end(context, of, changed(outcome, how={"worker": header.worker}))
        return
    told = {"turn": part.turn, "calls": list(names), "took_ms": header.took_ms}
    draft.notice("turn_ended", seq=of.seq, node=of.node, **told, **_item(of))
    if part.turn == 0:
        draft.item(Take(f"{part.loop}.first", MESSAGES))
    draft.item(Take(f"{part.loop}.{part.turn}", ANSWER))
    done = sum(_open_call(context, of, part, number, call) for number, call in enumerate(header.calls))
    here = Loop(part.loop, part.turn, len(header.calls), len(header.calls) - done)
    _go_on_if_answered(context, draft.put(changed(of, loop=here)))


def call_ended(context: Context, visit: Visit, outcome: Outcome) -> None:
    """A tool has answered; an error is an answer too, for the model to read."""
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
    _go_on_if_answered(context, draft.put(changed(of, loop=changed(of.loop, open=of.loop.open - 1))))


def answered(context: Context, visit: Visit, text: str) -> None:
    """A person has answered a call of a `user__*` tool; what cannot be understood is asked again."""
    part, field = _part(visit), f"{_part(visit).loop}.{_part(visit).turn}"
    require(context.known, Wanted(items=frozenset([field])))
    arguments = questions.asked(json.loads(context.known.items[field]), part.call or 0)
    context.draft.notice("gate_answered", seq=visit.seq, node=visit.node, answer=text)
    try:
        found = questions.result_of(part.tool, arguments, text)
    except questions.Unclear as error:
        gate = questions.gate_of(visit, part.tool, arguments, context.now_ms, str(error))
        context.draft.ask_instead(visit, gate)
        return
    call_ended(context, visit, Outcome(values={RESULT: found}))


def given_up(context: Context, visit: Visit, error: str) -> None:
    """No worker could do this part: the node fails for a turn, the model is told of a tool."""
    if _part(visit).call is None:
        fail(context, _loop_of(context, visit), error)
    else:
        call_ended(context, visit, Outcome(ok=False, error=error))


def resume(context: Context) -> None:
    """The run was paused, and the clocks of its loops stood still."""
    paused = context.run.paused
    assert paused is not None
    for visit in context.draft.visits():
        if visit.loop is not None and visit.wake_ms is not None:
            held_ms = context.now_ms - max(paused.at_ms, visit.opened_ms)
            context.draft.put(changed(visit, wake_ms=visit.wake_ms + held_ms))


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


def _open_call(context: Context, of: Visit, part: Part, number: int, call: ToolCall) -> bool:
    """True when the call is answered already: by the worker of the turn, which has delivered the result."""
    here = Part(part.loop, part.turn, number, call.name, call.id)
    if not call.where:
        context.draft.item(Take(f"{part.loop}.{part.turn}.{number}", f"{RESULT}.{number}"))
        return True
    context.draft.notice("tool_called", node=of.node, seq=of.seq, call=call.id, name=call.name, **_item(of))
    if call.where != PERSON:
        _open(context, of, "tool", here, call.where)
        return False
    require(context.known, Wanted(delta=frozenset([ANSWER])))
    visit = context.draft.open(of.node, of.kind, role="tool", part=here, **_place(of))
    arguments = questions.asked(context.known.delta[ANSWER], number)
    context.draft.ask(visit, questions.gate_of(visit, call.name, arguments, context.now_ms))
    return False


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
    _open_turn(context, context.draft.put(changed(of, loop=Loop(of.loop.id, of.loop.turn + 1))))


def _end(context: Context, of: Visit, outcome: Outcome) -> None:
    """The node has ended, whatever of it is still under way."""
    assert of.loop is not None
    for visit in context.draft.visits():
        if visit.part is not None and visit.part.loop == of.loop.id:
            context.draft.drop(visit)
    context.draft.item(Forget(of.loop.id, of.loop.turn, of.loop.calls))
    of = context.draft.put(changed(of, loop=None, wake_ms=None))
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
