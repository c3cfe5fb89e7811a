"""Tools nodes: a visit that waits, and a visit for each tool call of a message (spec/graph-package.md F22, F23, F60).

    the newest message with calls ─► its calls, as many at once as `parallel` allows ─► the results, in call order

The visit is a Loop of one turn, whose reply is that message: workers get a call as they get one of a model's loop, and
a call that has ended never runs again. Only the planner reads the results, when the last one has come: they become
messages. A call without a worker is answered here: one that the permissions deny, one that waits for a person's
permission, and one of an external tool, whose result is the answer to a question. The first failure ends the node, and
with it the calls that still run, unless the model is to read errors as results.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sleipnir.graph.message_keys import (
    LAST_TOOL_RESPONSE,
    MESSAGES,
    NODE_RESPONSES,
    Author,
    MessageCall,
    as_openai,
    calls_of,
    last_with_calls,
    message_id,
)
from sleipnir.graph.model import Json, ToolsNode
from sleipnir.graph.plain import compact_json
from sleipnir.graph.template import updates_read
from sleipnir.graph.tools import MCP_FUNCTIONS
from sleipnir.messages import QUEUE_OF, RESULT
from sleipnir.runs.interrupts import INTERRUPT, answer_of
from sleipnir.runs.run import Gate, changed
from sleipnir.runs.transitions import ForgetConversation, SetValue, TakeResult
from sleipnir.runs.values import WantedValues
from sleipnir.runs.visits import Call, Loop, Question, Ready, Visit, Work
from sleipnir_scheduler.planner.context import Context, RunFailed, VisitFailed, VisitOutcome
from sleipnir_scheduler.planner.ending import close
from sleipnir_scheduler.planner.known import require
from sleipnir_scheduler.planner.loops.model_loop import ModelLoop, change, loop_of, now
from sleipnir_scheduler.planner.loops.questions import storable

MOST_CALLS: Final = 1_000
"""The most calls of one message."""

YES, NO = "yes", "no"
_SHOWN = 2_000  # characters of arguments in a question; its payload has all


def start(context: Context, visit: Visit, node: ToolsNode) -> None:
    """Open the first calls of the newest message that has some. Raises VisitFailed."""
    reply, pending = _pending(context, visit, node)
    calls = calls_of(reply)
    due_ms = None if node.timeout is None else context.now_ms + node.timeout * 1000
    loop = Loop(visit.seq, calls=len(calls), open=len(pending), waiting=tuple(pending), due_ms=due_ms)
    tool_loop = ModelLoop(context.begin(visit, loop), loop)
    context.draft.record.item(SetValue(f"{loop.id}.0", compact_json(as_openai(reply))))
    _go_on(context, tool_loop)


def _pending(context: Context, visit: Visit, node: ToolsNode) -> tuple[Mapping[str, Json], list[int]]:
    """The message, and the numbers of its calls that have no result yet."""
    messages = context.values.state([MESSAGES], visit).get(MESSAGES)
    if not isinstance(messages, list) or not messages:
        raise VisitFailed(f"tools node '{node.id}' found no messages in the state")
    index = last_with_calls(messages)
    if index is None:
        raise VisitFailed(f"tools node '{node.id}' found no message with tool calls after the last message of the user")
    calls = calls_of(messages[index])
    if len(calls) > MOST_CALLS:
        raise VisitFailed(f"a message has {len(calls):,} tool calls; a tools node executes at most {MOST_CALLS:,}")
    answered = {
        later.get("tool_call_id")
        for later in messages[index + 1 :]
        if isinstance(later, dict) and later.get("role") == "tool"
    }
    return messages[index], [number for number, call in enumerate(calls) if not call.id or call.id not in answered]


def call_ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """A call has ended: keep its result and open the next ones, or end the node."""
    tool_loop, place, record = loop_of(context, visit), _place(visit), context.draft.record
    close(context.draft, visit)
    record.write(visit, ok=outcome.ok, error=outcome.error, **outcome.how)
    took_ms = outcome.how.get("took_ms", context.now_ms - visit.opened_ms)
    _notice(context, "tool_ended", tool_loop, place, ok=outcome.ok, took_ms=took_ms)
    if not outcome.ok and not _node(context, visit).answers_errors:
        fail(context, tool_loop, outcome.error or f"tool '{place.tool}' failed", outcome)
        return
    if RESULT in outcome.keys:
        record.item(TakeResult(_field(tool_loop.loop, place.call), RESULT))
    else:
        answer = outcome.values.get(RESULT, {"tool_call_error": outcome.error or "failed"})
        record.item(SetValue(_field(tool_loop.loop, place.call), compact_json(answer)))
    _go_on(context, change(context, tool_loop, open=tool_loop.loop.open - 1))


def answered(context: Context, visit: Visit, text: str, by: str) -> None:
    """A person has decided on a call, or a program has executed one of an external tool."""
    place, node = _place(visit), _node(context, visit)
    declared, calls = node.declared(place.tool), _calls(context, loop_of(context, visit).loop)
    context.answered(visit, text, by, _key(visit, calls))
    if declared is not None and declared.external:
        call_ended(context, visit, VisitOutcome(values={RESULT: answer_of(text)}))
    elif text.strip().lower() in (YES, "y", "true", '"yes"'):
        work = Ready(Work(_queue(node, place.tool)))
        context.draft.visits.move(visit, work, attempt=visit.attempt + 1)
    elif text.strip().lower() in (NO, "n", "false", '"no"'):
        call_ended(context, visit, VisitOutcome(values={RESULT: refusal(place.tool, "a person has refused it")}))
    else:
        asking = context.draft.visits.move(visit, Question(None))
        context.draft.record.ask(asking, _permission(context, asking, calls, f"The answer must be {YES} or {NO}.\n"))


def refusal(tool: str, why: str) -> dict[str, Json]:
    """The result of a call that is not executed."""
    return {"tool_call_error": f"The tool '{tool}' was not called: {why}."}


def timed_out(context: Context, visit: Visit, loop: Loop) -> None:
    """The node has timed out. Results that its workers still deliver are dropped."""
    fail(context, ModelLoop(visit, loop), f"tools node timed out after {_node(context, visit).timeout}s")


def fail(context: Context, tool_loop: ModelLoop, error: str, cause: VisitOutcome | None = None) -> None:
    """Fail the node, and cancel the calls that still run."""
    outcome = context.given_up(tool_loop.visit, error)
    end(context, tool_loop, outcome if cause is None else changed(outcome, error_type=cause.error_type))


def end(context: Context, tool_loop: ModelLoop, outcome: VisitOutcome) -> None:
    """End the node, and close its live calls."""
    visit, loop = now(context, tool_loop)
    for call in _live(context, loop):
        close(context.draft, call)
    context.draft.record.item(ForgetConversation(loop.id, loop.turn, loop.calls))
    context.kinds.ended(context, visit, outcome)


def _go_on(context: Context, tool_loop: ModelLoop) -> None:
    """Open the calls that there is room for, and end the node after the last. Raises RunFailed after the run's
    deadline, as turns.py does."""
    visit, loop = tool_loop
    if context.deadline_passed():
        raise RunFailed(context.timed_out(f"at '{visit.node}'"))
    if loop.open and not loop.waiting:
        return
    calls = _calls(context, loop)
    while (number := _next(context, tool_loop, calls)) is not None:
        loop = tool_loop.loop
        rest = tuple(each for each in loop.waiting if each != number)
        tool_loop = change(context, tool_loop, waiting=rest)
        tool_loop = _begin(context, tool_loop, number, calls)
    if tool_loop.loop.open == 0:
        end(context, tool_loop, _outcome(context, tool_loop, calls))


def _calls(context: Context, loop: Loop) -> list[MessageCall]:
    """The calls of the message that this event or an earlier one has stored. Raises MissingValues."""
    return calls_of(json.loads(context.values.item(f"{loop.id}.0") or "{}"))


def _next(context: Context, tool_loop: ModelLoop, calls: list[MessageCall]) -> int | None:
    """The first call that may be opened now. None: there is none."""
    visit, loop = tool_loop
    parallel = _node(context, visit).parallel
    live = [_place(call).tool for call in _live(context, loop)]
    if not loop.waiting or len(live) >= (1 if parallel is None else parallel.max):
        return None
    if parallel is None or not parallel.groups:
        return loop.waiting[0]
    under_way = Counter(live)
    full = {
        tool
        for group in parallel.groups
        if sum(under_way[each] for each in group.tools) >= group.limit
        for tool in group.tools
    }
    return next((number for number in loop.waiting if calls[number].name not in full), None)


def _begin(context: Context, tool_loop: ModelLoop, number: int, calls: list[MessageCall]) -> ModelLoop:
    """Open a call, or answer one that is not permitted."""
    (visit, loop), node, call = tool_loop, _node(context, tool_loop.visit), calls[number]
    place = Call(loop.id, loop.turn, number, call.name, call.id)
    _notice(context, "tool_called", tool_loop, place)
    permission, declared = node.permissions.get(call.name, "allow"), node.declared(call.name)
    if permission == "deny":
        denied = compact_json(refusal(call.name, "this graph does not permit it"))
        context.draft.record.item(SetValue(_field(loop, number), denied))
        _notice(context, "tool_ended", tool_loop, place, ok=True, took_ms=0)
        return change(context, tool_loop, open=loop.open - 1)
    opened = context.draft.visits.open(
        visit.node,
        visit.kind,
        place=place,
        group=visit.group,
        depth=visit.depth,
        lineage=visit.lineage,
        index=visit.index,
    )
    if declared is not None and declared.external:
        asking = context.draft.visits.begin(opened, Question(None))
        context.draft.record.ask(asking, _external(context, asking, calls))
    elif permission == "ask":
        asking = context.draft.visits.begin(opened, Question(None))
        context.draft.record.ask(asking, _permission(context, asking, calls))
    else:
        context.draft.visits.begin(opened, Work(_queue(node, call.name)))
    return tool_loop


def _queue(node: ToolsNode, tool: str) -> str:
    """The queue of the workers that execute a call. Servers are reached where models are, unless the node says else."""
    declared = node.declared(tool)
    if node.queue is not None:
        return node.queue
    if declared is not None and declared.call is not None:
        return QUEUE_OF["function"]
    return QUEUE_OF["llm"] if tool.startswith(MCP_FUNCTIONS) else QUEUE_OF[node.kind]


def _external(context: Context, visit: Visit, calls: list[MessageCall]) -> Gate:
    """The question for the result of an external tool."""
    return _gate(context, visit, calls, INTERRUPT, "Call {}, and answer with its result.")


def _permission(context: Context, visit: Visit, calls: list[MessageCall], remark: str = "") -> Gate:
    """The question whether a call may be executed."""
    return changed(_gate(context, visit, calls, "confirm", remark + "May it be called: {}?"), options=(YES, NO))


def _gate(context: Context, visit: Visit, calls: list[MessageCall], kind: str, question: str) -> Gate:
    call = calls[_place(visit).call]
    text = storable(f"{call.name} {call.arguments}")
    return Gate(
        visit.seq,
        visit.node,
        kind,
        question.format(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"),
        opened_ms=context.now_ms,
        key=_key(visit, calls),
        payload={"tool": call.name, "tool_call_id": call.id, "arguments": _arguments(call)},
    )


def _key(visit: Visit, calls: list[MessageCall]) -> str:
    """The key under which a call is answered: the node and the model's id of the call, with its number if the message
    has several calls of that id."""
    place = _place(visit)
    is_unique = sum(1 for call in calls if call.id == place.id) == 1
    return f"{visit.node}/{place.id}" if place.id and is_unique else f"{visit.node}/{place.id}/{place.call}"


def _arguments(call: MessageCall) -> Json:
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments


# The end


def _outcome(context: Context, tool_loop: ModelLoop, calls: list[MessageCall]) -> VisitOutcome:
    """What the node writes: a message for each call that it has executed, in call order."""
    visit, loop = tool_loop
    node, spec = _node(context, visit), context.run.spec
    author = Author.of(context.run.id, spec.agent, spec.depth)
    results = dict(_results(context, loop))
    messages = [
        {
            "role": "tool",
            "tool_call_id": calls[number].id,
            "name": calls[number].name,
            "content": compact_json(result),
            "id": message_id(author, visit.seq, str(number)),
        }
        for number, result in results.items()
    ]
    responses = [
        {"tool_id": calls[number].id, "tool_name": calls[number].name, "output": result}
        for number, result in results.items()
    ]
    values: dict[str, Json] = {MESSAGES: messages, NODE_RESPONSES: {node.id: compact_json(responses)}}
    if messages:
        values[LAST_TOOL_RESPONSE] = messages[-1]["content"]
    try:
        updates = context.updates(node, context.values.state(updates_read(node), visit), responses)
    except VisitFailed as failure:
        return VisitOutcome(ok=False, error=str(failure))
    return VisitOutcome(values={**values, **updates})


def _results(context: Context, loop: Loop) -> Iterator[tuple[int, Json]]:
    """The numbers of the executed calls, and their results. Raises MissingValues."""
    changed_items, known = context.draft.record.changed_items, context.known
    fields = {number: _field(loop, number) for number in range(loop.calls)}
    taken = any(isinstance(changed_items.get(field), TakeResult) for field in fields.values())
    earlier = frozenset(field for field in fields.values() if field not in changed_items)
    require(known, WantedValues(items=earlier, delta=frozenset([RESULT] if taken else [])))
    for number, field in fields.items():
        operation = changed_items.get(field)
        if isinstance(operation, SetValue):
            yield number, json.loads(operation.text)
        elif isinstance(operation, TakeResult):
            yield number, known.delta[RESULT]
        elif text := known.items.get(field):
            yield number, json.loads(text)


# Small parts


def _field(loop: Loop, number: int) -> str:
    return f"{loop.id}.{loop.turn}.{number}"


def _live(context: Context, loop: Loop) -> list[Visit]:
    """The visits of its calls."""
    visits = context.draft.visits.all()
    return [visit for visit in visits if isinstance(visit.place, Call) and visit.place.loop == loop.id]


def _notice(context: Context, what: str, tool_loop: ModelLoop, place: Call, **data: Any) -> None:
    visit = tool_loop.visit
    context.draft.record.notice(what, node=visit.node, seq=visit.seq, call=place.id, name=place.tool, **data)


def _place(visit: Visit) -> Call:
    if not isinstance(visit.place, Call):
        raise TypeError(f"visit {visit.seq} of node '{visit.node}' is no call")
    return visit.place


def _node(context: Context, visit: Visit) -> ToolsNode:
    node = context.graph.nodes[visit.node]
    if not isinstance(node, ToolsNode):
        raise TypeError(f"node '{visit.node}' is no tools node")
    return node
