"""The start of visits for the node types without a module of their own (kinds.py has the table of all)."""

from __future__ import annotations

from sleipnir.graph.length_rule import LengthRuleError, parse_length_rule
from sleipnir.graph.model import (
    ApprovalNode,
    EndNode,
    FunctionNode,
    InputNode,
    JoinNode,
    Json,
    LlmNode,
    Node,
    RagNode,
    RemoteNode,
    RouterNode,
    ScriptNode,
    ToolNode,
)
from sleipnir.graph.template import TemplateError, keys_read, render, render_lenient, updates_read
from sleipnir.messages import QUEUE_OF
from sleipnir.runs.run import Gate, changed
from sleipnir.runs.visits import Question, Ready, Visit, Work
from sleipnir_scheduler.planner.context import Context, VisitFailed, VisitOutcome
from sleipnir_scheduler.planner.engines import steps


def work(
    context: Context, visit: Visit, node: ScriptNode | FunctionNode | LlmNode | ToolNode | RagNode | RemoteNode
) -> None:
    """A worker executes the node."""
    body = visit.body
    if isinstance(body, Ready) and isinstance(body.resumes, Work):
        context.begin(visit, changed(body.resumes, queue=queue_of(node)))
    else:
        context.begin(visit, Work(queue_of(node)))


def work_once(context: Context, visit: Visit, node: ScriptNode | FunctionNode) -> None:
    """A worker executes the node; with `effect: once`, Redis' generation goes with it."""
    if node.effect != "once":
        work(context, visit, node)
        return
    earlier = visit.body.resumes if isinstance(visit.body, Ready) else None
    queued = earlier if isinstance(earlier, Work) else Work("")
    generation = queued.generation or context.generation or None
    context.begin(visit, changed(queued, queue=queue_of(node), generation=generation))


def rag(context: Context, visit: Visit, node: RagNode) -> None:
    """A worker searches. An agent whose documents have no knowledge base runs without them (spec 8.7)."""
    if context.graph.loop is not None and context.run.spec.base_of(node.id) is None:
        steps.ended(context, context.pass_by(visit), VisitOutcome())
    else:
        work(context, visit, node)


def end(context: Context, visit: Visit, node: EndNode) -> None:
    steps.end_reached(context, context.pass_by(visit))


def pass_through(context: Context, visit: Visit, node: RouterNode | JoinNode) -> None:
    """Only write `state_updates`. Raises VisitFailed."""
    values = updated(context, visit, node)
    steps.ended(context, context.pass_by(visit), VisitOutcome(values=values))


def updated(context: Context, visit: Visit, node: Node) -> dict[str, Json]:
    """What the `state_updates` write of a node without a result of its own. Raises VisitFailed."""
    return context.updates(node, context.values.state(updates_read(node), visit))


def ask(context: Context, visit: Visit, node: ApprovalNode | InputNode) -> None:
    """Let a person answer. Raises VisitFailed."""
    due_ms = context.now_ms + node.timeout * 1000 if node.timeout is not None else None
    gate = _gate(context, visit, node, due_ms)
    context.draft.record.ask(context.begin(visit, Question(due_ms)), gate)


def ask_again(context: Context, visit: Visit, remark: str) -> None:
    """Let a person answer anew, until the same time. Raises VisitFailed."""
    gate = _gate(context, visit, _asking_node(context, visit), visit.due_ms)
    asking = context.draft.visits.move(visit, Question(visit.due_ms))
    context.draft.record.ask(asking, changed(gate, question=f"{remark}\n{gate.question}"))


def _gate(context: Context, visit: Visit, node: ApprovalNode | InputNode, due_ms: int | None) -> Gate:
    """The question of a node. Raises VisitFailed."""
    kind = "approval" if isinstance(node, ApprovalNode) else "input"
    try:
        question = render(node.question, context.values.state(keys_read(node.question), visit))
    except TemplateError as error:
        raise VisitFailed(f"Failed to interpolate {kind} question: {error}") from None
    default = None
    if isinstance(node, InputNode) and node.default:
        default = _default(context, visit, node) or None
    if default is not None:
        question = f"{question} [default: {default}]"
    options = tuple(node.options) if isinstance(node, ApprovalNode) else ()
    gate = Gate(visit.seq, node.id, node.kind, question, options, default, context.now_ms, due_ms=due_ms)
    return context.restricted(gate, node.answer_rules)


def answered(context: Context, visit: Visit, text: str, by: str) -> None:
    """A person has answered the question of a node."""
    node = _asking_node(context, visit)
    context.answered(visit, text, by)
    context.kinds.ended(context, visit, outcome_of(context, visit, node, text))


def unanswered(context: Context, visit: Visit) -> None:
    """The question has expired: take `on_timeout`, else an input's default, else the visit fails."""
    node = _asking_node(context, visit)
    context.draft.record.notice("gate_expired", seq=visit.seq, node=visit.node)
    if node.on_timeout is not None:
        outcome = VisitOutcome(next=node.on_timeout)
    elif isinstance(node, InputNode) and node.default is not None:
        outcome = outcome_of(context, visit, node, "")
    else:
        error = f"{node.kind} node '{node.id}' was not answered within {node.timeout}s"
        outcome = VisitOutcome(ok=False, error=error)
    context.kinds.ended(context, visit, outcome)


def queue_of(node: ScriptNode | FunctionNode | LlmNode | ToolNode | RagNode | RemoteNode) -> str:
    return node.queue or QUEUE_OF[node.kind]


def outcome_of(context: Context, visit: Visit, node: ApprovalNode | InputNode, text: str) -> VisitOutcome:
    """How a visit ends whose question is answered with `text`. Raises MissingValues."""
    try:
        value = _input_value(context, visit, node, text) if isinstance(node, InputNode) else text
        values = context.updates(node, context.values.state(updates_read(node), visit), value)
    except VisitFailed as failure:
        return VisitOutcome(ok=False, error=str(failure))
    chosen = node.target_of_answer(text) if isinstance(node, ApprovalNode) else None
    return VisitOutcome(values=values, next=chosen)


def _input_value(context: Context, visit: Visit, node: InputNode, text: str) -> str:
    """The answer, or the rendered default for an empty one; only a real answer is validated (spec 2.7.4).

    Raises VisitFailed.
    """
    if text == "":
        return _default(context, visit, node)
    try:
        rule = parse_length_rule(node.validation) if node.validation is not None else None
    except LengthRuleError as error:
        raise VisitFailed(str(error)) from None
    if rule is not None and not rule.accepts(text):
        raise VisitFailed(rule.refusal(text))
    return text


def _default(context: Context, visit: Visit, node: InputNode) -> str:
    if not node.default:
        return ""
    try:
        return render_lenient(node.default, context.values.state(keys_read(node.default), visit))
    except TemplateError as error:
        raise VisitFailed(str(error)) from None


def _asking_node(context: Context, visit: Visit) -> ApprovalNode | InputNode:
    node = context.graph.nodes[visit.node]
    if not isinstance(node, (ApprovalNode, InputNode)):
        raise TypeError(f"node '{visit.node}' asks no question")
    return node
