"""What starting a visit means, by the type of its node: a queue, a question, items, or nothing at all."""

from __future__ import annotations

from sleipnir.graph.length_rule import LengthRuleError, parse_length_rule
from sleipnir.graph.model import (
    AgentNode,
    ApprovalNode,
    EndNode,
    FunctionNode,
    InputNode,
    JoinNode,
    LlmNode,
    MapNode,
    RagNode,
    RouterNode,
    ScriptNode,
    ToolNode,
)
from sleipnir.graph.template import TemplateError, keys_read, render, render_lenient, updates_read
from sleipnir.messages import QUEUE_OF
from sleipnir.runs.run import Gate, Visit, changed
from sleipnir_scheduler.planner import agents, failing, loops, maps, steps
from sleipnir_scheduler.planner.context import Context, Outcome, VisitFailed, at_node


def start(context: Context, visit: Visit) -> None:
    """A visit leaves the state `ready`. One that cannot be made fails; others of its step may still end."""
    node = context.graph.nodes.get(visit.node)
    if visit.role != "node":  # a function of the agent's own that is called again, whatever its node is
        context.draft.begin(visit, visit.queue or QUEUE_OF["function"])
        return
    if node is None:
        steps.refuse(context, visit, f"Node '{visit.node}' not found in graph '{context.graph.name}'")
        return
    try:
        match node:
            case LlmNode(tools=[_, *_]):
                loops.start(context, visit, node)
            case RagNode() if context.graph.loop is not None and context.run.spec.base_of(node.id) is None:
                # An agent with documents of which nobody has made a knowledge base runs without them (spec 8.7).
                steps.ended(context, context.draft.begin(visit, None), Outcome())
            case ScriptNode(effect="once") | FunctionNode(effect="once") if visit.generation is None:
                context.draft.begin(changed(visit, generation=context.generation or None), queue_of(node))
            case ScriptNode() | FunctionNode() | LlmNode() | ToolNode() | RagNode():
                context.draft.begin(visit, queue_of(node))
            case AgentNode() if visit.given is not None:
                context.draft.begin(visit, node.queue or QUEUE_OF[node.kind])
            case AgentNode():
                agents.start(context, visit, node)
            case ApprovalNode() | InputNode():
                _ask(context, visit, node)
            case MapNode():
                maps.start(context, visit, node)
            case EndNode():
                steps.end_reached(context, context.draft.begin(visit, None))
            case RouterNode() | JoinNode():
                values = context.updates(node, context.state(updates_read(node), visit))
                steps.ended(context, context.draft.begin(visit, None), Outcome(values=values))
    except VisitFailed as failure:
        if visit.item is not None:
            maps.item_ended(context, visit, Outcome(ok=False, error=str(failure)))
        elif failing.reaction(context, node) == "fail":
            context.draft.count_failed(node.id, str(failure), ends_run=True)
            steps.refuse(context, visit, at_node(node.id, str(failure)))
        else:
            steps.ended(context, context.draft.begin(visit, None), Outcome(ok=False, error=str(failure)))


def queue_of(node: ScriptNode | FunctionNode | LlmNode | ToolNode | RagNode) -> str:
    return node.queue or QUEUE_OF[node.kind]


def input_value(context: Context, visit: Visit, node: InputNode, text: str) -> str:
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
        return render_lenient(node.default, context.state(keys_read(node.default), visit))
    except TemplateError as error:
        raise VisitFailed(str(error)) from None


def _ask(context: Context, visit: Visit, node: ApprovalNode | InputNode) -> None:
    what = "approval" if isinstance(node, ApprovalNode) else "input"
    try:
        question = render(node.question, context.state(keys_read(node.question), visit))
    except TemplateError as error:
        raise VisitFailed(f"Failed to interpolate {what} question: {error}") from None
    default = None
    if isinstance(node, InputNode) and node.default:
        default = _default(context, visit, node) or None
    if default is not None:
        question = f"{question} [default: {default}]"
    options = tuple(node.options) if isinstance(node, ApprovalNode) else ()
    expires_ms = context.now_ms + node.timeout * 1000 if node.timeout is not None else None
    gate = Gate(visit.seq, node.id, node.kind, question, options, default, context.now_ms)
    context.draft.ask(visit, gate, expires_ms)
