"""Rules about callbacks: which kinds of nodes they can run around."""

from __future__ import annotations

from collections.abc import Sequence

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.model import CallbackKind, NodeCallbacks, calls_back

_CALLS: Sequence[tuple[CallbackKind, str]] = (("model", "calls no model"), ("tool", "calls no tools"))


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


RULES: Sequence[Rule] = (every_callback_has_something_to_run_around,)
