"""The kinds of visits, as three tables of handlers.

    PLACES   by the place of a visit: handlers of its end
    BODIES   by its body: handlers of answers and timers
    NODES    by the type of its node: the function that starts it

To add a type of node, write its start function in its own module, and add a row to NODES. A new body needs its moves in
states.py too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from sleipnir.graph.model import (
    AgentNode,
    ApprovalNode,
    EndNode,
    FunctionNode,
    GraphNode,
    InputNode,
    JoinNode,
    LlmNode,
    MapNode,
    Node,
    RagNode,
    RemoteNode,
    RouterNode,
    ScriptNode,
    ToolNode,
    ToolsNode,
    WaitNode,
)
from sleipnir.messages import QUEUE_OF, ResultHeader
from sleipnir.runs.visits import (
    AgentFunction,
    Backoff,
    Body,
    Branch,
    Call,
    ChildWait,
    Delay,
    Doubt,
    Item,
    Loop,
    Place,
    Question,
    Ready,
    Receipt,
    RunFunction,
    SignalWait,
    Turn,
    Visit,
    WholeRun,
    Work,
)
from sleipnir_scheduler.planner import budgets, failing, updates, whole_run
from sleipnir_scheduler.planner.context import Context, VisitFailed, VisitOutcome, at_node
from sleipnir_scheduler.planner.engines import steps
from sleipnir_scheduler.planner.loops import tool_calls, turns
from sleipnir_scheduler.planner.loops.model_loop import TOOLS
from sleipnir_scheduler.planner.nodes import agents, interrupts, maps, once, starting, waiting


class PlaceKind(NamedTuple):
    """The handlers of the end of a visit, by its place.

    `ended`: the visit has an outcome; `replied`: so has a turn, with the header of its result. `given_up`: no worker
    could execute it. `answered` and `unanswered`: a question of it has an answer, or has expired.
    `cannot_start`: its node cannot be started.
    """

    ended: Callable[[Context, Visit, VisitOutcome], None]
    given_up: Callable[[Context, Visit, str], None]
    answered: Callable[[Context, Visit, str, str], None]
    unanswered: Callable[[Context, Visit], None]
    cannot_start: Callable[[Context, Visit, Node, str], None]
    replied: Callable[[Context, Visit, VisitOutcome, ResultHeader], None] | None = None


class BodyKind(NamedTuple):
    """The handlers of events about a visit, by its body. None: such events do not concern it (states.CONCERNS).

    `answered`: a person has answered. `due`: its timer has fired; the clocks of loops and child runs stand still while
    the run is held (`stands_still`).
    """

    answered: Callable[[Context, Visit, Any, str, str], None] | None = None
    due: Callable[[Context, Visit, Any], None] | None = None
    stands_still: bool = False


Start: TypeAlias = Callable[[Context, Visit, Any], None]


# Branches, items and the agent's own functions


def _given_up(context: Context, visit: Visit, error: str) -> None:
    if isinstance(visit.body, Work):
        interrupts.forget_answers(context, visit.body)
    ended(context, visit, context.given_up(visit, error))


def _cannot_start(context: Context, visit: Visit, node: Node, error: str) -> None:
    if failing.reaction(context, node) == "fail":
        failing.count_failed_visit(context, node.id, error, ends_run=True)
        steps.refuse(context, visit, at_node(node.id, error))
    else:
        steps.ended(context, context.pass_by(visit), VisitOutcome(ok=False, error=error))


def _item_cannot_start(context: Context, visit: Visit, node: Node, error: str) -> None:
    maps.item_ended(context, visit, VisitOutcome(ok=False, error=error))


def _call_ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    (tool_calls if visit.kind == TOOLS else turns).call_ended(context, visit, outcome)


def _call_given_up(context: Context, visit: Visit, error: str) -> None:
    _call_ended(context, visit, VisitOutcome(ok=False, error=error))


def _call_answered(context: Context, visit: Visit, text: str, by: str) -> None:
    (tool_calls if visit.kind == TOOLS else turns).answered(context, visit, text, by)


def _loop_due(context: Context, visit: Visit, loop: Loop) -> None:
    (tool_calls if visit.kind == TOOLS else turns).timed_out(context, visit, loop)


def _turn_ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    turns.turn_given_up(context, visit, outcome.error or "failed")


def _refused(context: Context, visit: Visit, *_: Any) -> None:
    raise TypeError(f"this cannot happen to visit {visit.seq} of node '{visit.node}', a {type(visit.place).__name__}")


PLACES: Final[Mapping[type[Place], PlaceKind]] = {
    Branch: PlaceKind(steps.ended, _given_up, starting.answered, starting.unanswered, _cannot_start),
    Item: PlaceKind(maps.item_ended, _given_up, starting.answered, starting.unanswered, _item_cannot_start),
    Turn: PlaceKind(_turn_ended, turns.turn_given_up, _refused, _refused, _refused, turns.turn_replied),
    Call: PlaceKind(_call_ended, _call_given_up, _call_answered, turns.unanswered, _refused),
    AgentFunction: PlaceKind(steps.agent_function_ended, _given_up, _refused, _refused, _refused),
    WholeRun: PlaceKind(_refused, _refused, budgets.answered, _refused, _refused),
    RunFunction: PlaceKind(whole_run.ended, whole_run.given_up, _refused, _refused, _refused),
}


# Bodies


def _question_answered(context: Context, visit: Visit, question: Question, text: str, by: str) -> None:
    if question.asked is not None:
        interrupts.answered(context, visit, question, text, by)
    else:
        PLACES[type(visit.place)].answered(context, visit, text, by)


NOT_CHECKED: Final = (
    "An answer came from an earlier release of Sleipnir, which does not know who may answer. Answer again."
)


def ask_checked(context: Context, visit: Visit) -> bool:
    """Ask anew what an earlier release has answered without a look at who may; False: everybody may."""
    question, node = visit.body, context.graph.nodes.get(visit.node)
    if not isinstance(question, Question):
        return False
    if question.asked is not None:
        if question.asked.rules is None:
            return False
        interrupts.ask_again(context, visit, question, NOT_CHECKED)
    elif not isinstance(node, ApprovalNode | InputNode) or node.answer_rules is None:
        return False
    else:
        try:
            starting.ask_again(context, visit, NOT_CHECKED)
        except VisitFailed as failure:
            PLACES[type(visit.place)].cannot_start(context, visit, node, str(failure))
    return True


def _question_due(context: Context, visit: Visit, question: Question) -> None:
    """An accepted answer counts even if the timer precedes it in the inbox: then the timer changes nothing."""
    context.draft.unless_answered = True
    if question.asked is not None:
        interrupts.unanswered(context, visit, question)
    else:
        PLACES[type(visit.place)].unanswered(context, visit)


def _backoff_due(context: Context, visit: Visit, backoff: Backoff) -> None:
    """The next attempt; it runs once there is a slot for it."""
    context.draft.visits.move(visit, Ready(backoff.work))


def _receipt_due(context: Context, visit: Visit, receipt: Receipt) -> None:
    context.draft.unless_answered = True
    turns.unreported(context, visit, receipt)


BODIES: Final[Mapping[type[Body], BodyKind]] = {
    Question: BodyKind(answered=_question_answered, due=_question_due),
    Doubt: BodyKind(answered=once.answered),
    Backoff: BodyKind(due=_backoff_due),
    Loop: BodyKind(due=_loop_due, stands_still=True),
    ChildWait: BodyKind(due=agents.timed_out, stands_still=True),
    Delay: BodyKind(due=waiting.elapsed),
    SignalWait: BodyKind(due=waiting.timed_out),
    Receipt: BodyKind(due=_receipt_due),
}


# Nodes

NODES: Final[Mapping[type[Node], Start]] = {
    ScriptNode: starting.work_once,
    FunctionNode: starting.work_once,
    ToolNode: starting.work,
    RemoteNode: starting.work,
    RagNode: starting.rag,
    LlmNode: lambda context, visit, node: (turns.start if node.has_loop else starting.work)(context, visit, node),
    AgentNode: agents.start,
    GraphNode: agents.start,
    ApprovalNode: starting.ask,
    InputNode: starting.ask,
    MapNode: maps.start,
    RouterNode: starting.pass_through,
    JoinNode: starting.pass_through,
    WaitNode: waiting.start,
    ToolsNode: tool_calls.start,
    EndNode: starting.end,
}


def ended(context: Context, visit: Visit, outcome: VisitOutcome) -> None:
    """A visit has ended, with success or failure: call the handler of its place."""
    PLACES[type(visit.place)].ended(context, visit, outcome)


def start(context: Context, visit: Visit) -> None:
    """A visit leaves the state `ready`. One that cannot be made fails; others of its step may still end."""
    node = context.graph.nodes.get(visit.node)
    if not isinstance(visit.place, (Branch, Item)):  # a part of a loop, or a function of the agent, that is tried again
        earlier = visit.body.resumes if isinstance(visit.body, Ready) else None
        context.draft.visits.begin(visit, earlier if isinstance(earlier, Work) else Work(QUEUE_OF["function"]))
    elif node is None:
        steps.refuse(context, visit, f"Node '{visit.node}' not found in graph '{context.graph.name}'")
    elif (values := updates.values_of(context, visit)) is not None:
        updates.start(context, visit, node, values)
    else:
        try:
            NODES[type(node)](context, visit, node)
        except VisitFailed as failure:
            PLACES[type(visit.place)].cannot_start(context, visit, node, str(failure))
