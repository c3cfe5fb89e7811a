"""Rules about what happens when a visit fails: `on_error` of nodes and of the graph, beside `fallback`."""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.findings import suggestion
from sleipnir.graph.model import CONTINUE, FAIL, EndNode, FunctionNode, LlmNode, ScriptNode

_FORMS = "Write `fail`, `continue` or the name of a node."


def every_on_error_of_the_graph_leads_to_a_node(case: Case) -> None:
    """`on_error` of a node is checked like its other edges."""
    target = case.graph.on_error
    if target not in (None, FAIL, CONTINUE) and not case.graph.is_node_or_end(str(target)):
        hint = suggestion(str(target), [FAIL, CONTINUE, *case.graph.nodes], "targets")
        case.findings.error(("on_error",), f"References non-existent node '{target}' in 'on_error'", hint or _FORMS)
    elif target in case.graph.nodes and case.graph.nodes[str(target)].wait_for:
        message = f"the graph's 'on_error' bypasses the join of '{target}'"
        case.findings.error(("on_error",), message, "Name a node without `wait_for`.")


def no_node_is_named_like_a_keyword(case: Case) -> None:
    reactions = {case.graph.on_error, *(node.on_error for node in case.graph.nodes.values())}
    for name in (FAIL, CONTINUE):
        if name in reactions and name in case.graph.nodes:
            message = f"`on_error: {name}` does not lead to the node '{name}': it is a keyword"
            case.findings.warning(("nodes", name), message, "Give the node another name.")


def every_on_error_has_an_effect(case: Case) -> None:
    """An end node, or a node whose `fallback` comes first, never uses `on_error`."""
    for node_id, node in case.graph.nodes.items():
        if node.on_error is None:
            continue
        path = ("nodes", node_id, "on_error")
        if isinstance(node, EndNode):
            case.findings.warning(path, "'on_error' has no effect on an end node: nothing comes after it")
        elif isinstance(node, ScriptNode | FunctionNode | LlmNode) and node.fallback is not None:
            case.findings.error(
                path, "'fallback' and 'on_error' both define what happens after a failure", "Keep one of the two."
            )
        elif node.on_error == node_id:
            hint = "To run it again, use `retry: {max_attempts: 3}`."
            case.findings.error(path, "'on_error' names the node itself", hint)
        elif node.on_error == CONTINUE and case.is_loki:
            leads = node.targets or node.branch or node_id in case.graph.joins
            if not leads:
                message = "`on_error: continue` leads nowhere: the node has no `next`"
                case.findings.error(path, message, "Add a `next`, or name the node to continue with.")


RULES: Sequence[Rule] = (
    every_on_error_of_the_graph_leads_to_a_node,
    no_node_is_named_like_a_keyword,
    every_on_error_has_an_effect,
)
