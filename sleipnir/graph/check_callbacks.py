"""Rules about callbacks: which kinds of nodes they can run around."""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.model import AgentNode, CallbackKind, NodeCallbacks, calls_back

_CALLS: Sequence[tuple[CallbackKind, str]] = (
    ("model", "calls no model"),
    ("tool", "calls no tools"),
    ("agent", "is no whole run, and only the top-level `callbacks` have them"),
)


def every_callback_has_something_to_run_around(case: Case) -> None:
    """Those of the graph pass over the nodes that have no such calls."""
    for node_id, node in case.graph.nodes.items():
        callbacks: NodeCallbacks | None = getattr(node, "callbacks", None)
        if callbacks is None:
            continue
        path = ("nodes", node_id, "callbacks")
        for kind, why in _CALLS:
            if getattr(callbacks, kind) is not None and not calls_back(node, kind):
                message = f"'callbacks.{kind}' has no effect on {node.kind} node '{node_id}': it {why}"
                case.findings.error((*path, kind), message, f"Remove `{kind}`.")
        for phase in ("before", "after", "error"):
            if callbacks.of(phase) and not calls_back(node):
                message = f"'callbacks.{phase}' has no effect on {node.kind} node '{node_id}'"
                hint = "Its calls have callbacks: `callbacks: {tool: {before: hooks.py:f}}`."
                case.findings.error((*path, phase), message, hint)
        if callbacks.agent_event and not isinstance(node, AgentNode):
            message = f"'callbacks.agent_event' has no effect on {node.kind} node '{node_id}': it starts no agent"
            case.findings.error((*path, "agent_event"), message, "Remove `agent_event`.")


def no_graph_of_a_node_has_callbacks_of_its_runs(case: Case) -> None:
    """The run of one of the `graphs` returns its state to the graph above; a callback has no output to give."""
    for name, graph in case.graph.graphs.items():
        if graph.callbacks is not None and graph.callbacks.agent is not None:
            message = "'callbacks.agent' has no effect on one of the `graphs`"
            hint = "Its graph nodes stand for it. Give `agent` to the top-level `callbacks`."
            case.findings.error(("graphs", name, "callbacks", "agent"), message, hint)


RULES: Sequence[Rule] = (every_callback_has_something_to_run_around, no_graph_of_a_node_has_callbacks_of_its_runs)
