"""Rules about size: definitions that would occupy a scheduler or Redis so long that other runs wait.

The bounds are far above what people write and below what fails: Redis' Lua accepts a few thousand values at once, and
rendering a template produces one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sleipnir.graph.check_case import Case, Rule
from sleipnir.graph.template import state_read_by

MOST_NODES: Final = 10_000
MOST_KEYS_READ: Final = 3_000
MOST_STATE_KEYS: Final = 2_000


def no_graph_has_too_many_nodes(case: Case) -> None:
    """More than MOST_NODES nodes are an error."""
    count = len(case.graph.nodes)
    if count > MOST_NODES:
        case.findings.graph_error(
            ("nodes",),
            f"the graph has {count:,} nodes, at most {MOST_NODES:,} are possible",
            "Use a `map` node to run one node for many items, or an `agent` node to run a part as a separate graph.",
        )


def no_node_reads_too_many_keys(case: Case) -> None:
    """More than MOST_KEYS_READ keys in the texts of one node are an error."""
    for node_id, node in case.graph.nodes.items():
        read = state_read_by(node)
        if read is not None and len(read) > MOST_KEYS_READ:
            case.findings.error(
                ("nodes", node_id),
                f"the texts of the node name {len(read):,} state keys, at most {MOST_KEYS_READ:,} are possible",
                "Keep the values in one key that holds an object: `{{all.name}}` reads the key `all`.",
            )


def no_state_has_too_many_keys(case: Case) -> None:
    """More than MOST_STATE_KEYS declared or initial keys are an error."""
    for name, declared in (("state", case.graph.state), ("initial_state", case.graph.initial_state)):
        if len(declared) > MOST_STATE_KEYS:
            case.findings.graph_error(
                (name,),
                f"`{name}` has {len(declared):,} keys, at most {MOST_STATE_KEYS:,} are possible",
                "Keep the values in one key that holds an object.",
            )


RULES: Sequence[Rule] = (no_graph_has_too_many_nodes, no_node_reads_too_many_keys, no_state_has_too_many_keys)
