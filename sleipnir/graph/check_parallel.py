"""Rules about graphs that branch: parallel edges, conditional edges, joins and maps.

Checks 10 to 14 are Loki's (spec/graph-agents.md 2.12), the rest are Sleipnir's. Only parallel branches that the file
shows are checked: the immediate targets of a list as `next`. What Loki refuses there is a warning in sleipnir/1,
because there the last write in visit order wins, and a branch sees the state at the start of its super-step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from sleipnir.graph.check_case import Case, Rule, cases_path, edge_path
from sleipnir.graph.findings import KeyPath, suggestion
from sleipnir.graph.model import (
    AgentNode,
    ApprovalNode,
    EndNode,
    FunctionNode,
    InputNode,
    JoinNode,
    Json,
    LlmNode,
    MapNode,
    Node,
    RouterNode,
    ScriptNode,
)
from sleipnir.graph.template import PLACEHOLDER, keys_read, primary_templates, updates_read

ITEM_BODIES: Final = ("agent", "script", "llm", "rag", "function")
"""Node types that can run once per item of a map."""

_IN_CODE: Final = (ScriptNode, FunctionNode)


def every_concurrency_lets_nodes_run(case: Case) -> None:
    """Loki's check 10."""
    hint = "Write 1 to run one after the other."
    if case.graph.settings.max_concurrency < 1:
        message = "settings.max_concurrency must be >= 1 (got 0); with 0 no node could ever run"
        case.findings.graph_error(("settings", "max_concurrency"), message, hint)
    for node, path in case.nodes(MapNode):
        if node.max_concurrency is not None and node.max_concurrency < 1:
            key = "max_parallel" if case.findings.has((*path, "max_parallel")) else "max_concurrency"
            message = f"map node's `{key}` must be >= 1 (got 0); with 0 no item could ever run"
            case.findings.error((*path, key), message, hint)


def every_body_of_a_map_can_run_per_item(case: Case) -> None:
    """Loki's check 11. In a chain, only the last body can write the result."""
    for node, path in case.nodes(MapNode):
        key = "node" if case.findings.has((*path, "node")) else "branch"
        bodies = [case.graph.nodes[body] for body in node.body if body in case.graph.nodes]
        for body in dict.fromkeys(body.id for body in bodies):
            _check_body(case, case.graph.nodes[body], (*path, key))
        if bodies:
            _check_result(case, node, bodies[-1], (*path, key))


def no_item_is_collected_over_itself(case: Case) -> None:
    """The item and the result of a map need different keys."""
    for node, path in case.nodes(MapNode):
        key = "collect" if case.findings.has((*path, "collect")) else "collect_into"
        if node.item == node.collect_into:
            message = f"'as' and '{key}' both name '{node.item}'"
            case.findings.error((*path, key), message, "Collect the results under another key.")
        if node.item == node.output_key:
            message = f"'as' and 'output_key' both name '{node.item}': an item without a result is collected itself"
            case.findings.warning((*path, "as"), message, "Give the results another key by `output_key`.")


def no_person_is_asked_in_a_parallel_branch(case: Case) -> None:
    """Loki's check 12. In sleipnir/1 several questions may be open at once."""
    for target, path in _branches(case):
        if case.is_loki and isinstance(target, ApprovalNode | InputNode):
            message = f"'next' fans out to {target.kind} node '{target.id}'; a parallel branch cannot wait for a person"
            case.findings.error(path, message, f"Let '{target.id}' come after the node where the branches meet.")


def every_parallel_script_declares_what_it_writes(case: Case) -> None:
    """Loki's check 13, first half."""
    for target, path in _branches(case):
        if case.is_loki and isinstance(target, ScriptNode) and not target.state_updates:
            message = f"'next' fans out to script node '{target.id}', which has no 'state_updates': "
            message += "its writes cannot be compared with those of its siblings"
            case.findings.error(path, message, "Declare the keys that it writes under `state_updates`.")


def no_key_is_written_by_two_branches(case: Case) -> None:
    """Loki's check 13, second half."""
    for node in _fans(case):
        writers: dict[str, list[str]] = {}
        for target in _siblings(case, node):
            for key in keys_written(target):
                writers.setdefault(key, []).append(target.id)
        for key, names in writers.items():
            if len(names) < 2 or case.graph.reducer_of(key) is not None:
                continue
            path: KeyPath = ("nodes", node.id, "next")
            if case.graph.takes_one_write(key):
                message = f"key '{key}' takes one write per super-step, and parallel branches write it"
                case.findings.error(path, f"{message} ({', '.join(names)})", _reducer_hint(case, key))
                continue
            if case.is_loki:
                message = f"Key '{key}' is written by {len(names)} parallel branches but has no reducer declared"
                case.findings.error(path, f"{message} ({', '.join(names)})", _reducer_hint(case, key))
            else:
                message = f"key '{key}' is written by parallel branches ({', '.join(names)}): the last write wins"
                case.findings.warning(path, message, _reducer_hint(case, key))


def no_branch_reads_what_its_sibling_writes(case: Case) -> None:
    """Loki's check 14."""
    for node in _fans(case):
        siblings = _siblings(case, node)
        for target in siblings:
            for key in sorted(keys_read(*primary_templates(target)) | updates_read(target)):
                writers = [other.id for other in siblings if other is not target and key in keys_written(other)]
                if writers:
                    message = f"reads '{key}', which its parallel sibling '{writers[0]}' writes in the same super-step"
                    report = case.findings.error if case.is_loki else case.findings.warning
                    report(("nodes", target.id), message, "It sees the earlier value; run one after the other.")


def every_join_can_fire(case: Case) -> None:
    """A warning where a script's `_next` or a computed label may lead to the source."""
    is_uncertain = any(_may_go_anywhere(case.graph.nodes[node_id]) for node_id in case.entered)
    for node_id, node in case.graph.nodes.items():
        path: KeyPath = ("nodes", node_id, "wait_for")
        for join in node.wait_for:
            for source in (source for source in join.sources if source not in case.graph.nodes):
                message = f"References non-existent node '{source}' in 'wait_for'"
                case.findings.error(path, message, suggestion(source, case.graph.nodes, "nodes"))
            if join.sources == (node_id,):
                case.findings.error(path, "the join waits for itself alone", "Name other nodes.")
                continue
            ended = [source for source in join.sources if isinstance(case.graph.nodes.get(source), EndNode)]
            never = [name for name in join.sources if name in case.graph.nodes and name not in case.entered]
            if len(join.sources) - len(never) < join.needed:
                message = f"the join can never fire: no declared edge leads to {_listed(never)}"
                report = case.findings.warning if is_uncertain else case.findings.error
                report(path, message, "Add an edge to it, remove it here, or wait for fewer by `min`.")
            elif ended:
                message = f"it waits for {_listed(ended)}: an end node ends its branch"
                case.findings.warning(path, message, "Wait for the node before.")


def every_edge_into_a_join_is_waited_for(case: Case) -> None:
    """Such an edge would start the node without its join, and the join would start it again."""
    for source, edges in case.edges.items():
        for edge in edges:
            joins = case.graph.nodes[edge.target].wait_for if edge.target in case.graph.nodes else []
            if not joins or edge.kind in ("body", "wait_for") or case.graph.waits_for(edge.target, source):
                continue
            names = _listed(list(dict.fromkeys(name for join in joins for name in join.sources)))
            message = (
                f"the edge to '{edge.target}' bypasses its join: '{edge.target}' waits for {names}, not '{source}'"
            )
            hint = f"Add '{source}' to the `wait_for` of '{edge.target}', or use another target for this edge."
            report = case.findings.warning if case.graph.is_state_graph else case.findings.error
            report(edge_path(case, edge), message, hint)


def every_join_node_waits(case: Case) -> None:
    for node, path in case.nodes(JoinNode):
        if not node.wait_for:
            message = "join node has no `wait_for`: it waits for nothing"
            case.findings.warning(path, message, "List the nodes that it waits for: `wait_for: [a, b]`.")


def every_router_leads_somewhere(case: Case) -> None:
    """In version 1.0 a separate rule covers all node types (every_node_has_a_next)."""
    for node, path in case.nodes(RouterNode):
        if not case.is_loki and not node.targets and node.branch is None and node.id not in case.graph.joins:
            case.findings.warning(path, "router node has neither `next` nor `branch`: its branch ends here")


def every_branch_has_an_effect(case: Case) -> None:
    """A branch has no effect on an approval or an end node; `ends` has none without a label."""
    for node_id, node in case.graph.nodes.items():
        path: KeyPath = ("nodes", node_id)
        if node.branch is not None and isinstance(node, ApprovalNode | EndNode):
            why = "its `routes` are its edges" if isinstance(node, ApprovalNode) else "nothing comes after it"
            case.findings.warning((*path, "branch"), f"'branch' has no effect on an {node.kind} node: {why}")
        if node.ends and node.branch is None and not isinstance(node, _IN_CODE):
            message = f"'ends' has no effect: a node of type {node.kind} chooses no label"
            case.findings.warning((*path, "ends"), message, "Choose one by `branch`.")


def every_condition_can_be_read(case: Case) -> None:
    for node_id, node in case.graph.nodes.items():
        for index, choice in enumerate(node.branch.cases if node.branch else ()):
            problem = _expression_problem(choice.when)
            if problem is not None:
                path = (*cases_path(case, ("nodes", node_id)), index, "when")
                case.findings.error(path, problem, "Conditions are CEL over `state`, such as `state.score > 0.5`.")


def every_choice_reads_the_state(case: Case) -> None:
    """A `by` without a placeholder always chooses the same label; with `many` it must give a list."""
    for node_id, node in case.graph.nodes.items():
        if node.branch is None or node.branch.by is None or PLACEHOLDER.search(node.branch.by):
            continue
        path: KeyPath = ("nodes", node_id, "branch", "by")
        if node.branch.many and not _is_list(node.branch.by):
            message = f"'{node.branch.by}' is not a list of labels"
            case.findings.error(path, message, 'Name one key that holds a list: `by: "{{labels}}"`.')
        else:
            hint = 'Write `by: "{{key}}"`, with a key of the state.'
            case.findings.warning(
                path, f"'{node.branch.by}' holds no placeholder: it always chooses the same label", hint
            )


def every_label_is_produced(case: Case) -> None:
    """Checked if the conditions, or the schema of the key that the template names, define all labels."""
    for node_id, node in case.graph.nodes.items():
        known = _labels(case, node)
        if node.branch is None or known is None:
            continue
        path: KeyPath = ("nodes", node_id, "branch")
        for label in (label for label in node.branch.to if label not in known):
            message = f"nothing produces the label '{label}'"
            case.findings.warning((*path, "to", label), message, suggestion(label, known, "labels"))
        unknown = [label for label in known if label and case.graph.target_of_choice(node, label) is None]
        if unknown and not node.branch.cases:
            message = f"these labels have no target: {_listed(unknown)}"
            case.findings.error(path, message, "Add them to `to`, or add a `default`.")


def every_deferred_node_can_wait(case: Case) -> None:
    """Super-steps end together, so that something may come after all others; visits of a `dag` do not."""
    for node_id in sorted(case.graph.deferred):
        path: KeyPath = ("nodes", node_id, "defer")
        if case.is_loki:
            case.findings.error(path, "`defer` needs version sleipnir/1", "Write `version: sleipnir/1`.")
        elif case.graph.engine != "bsp":
            message = f"`defer` needs the engine bsp; this graph has the engine {case.graph.engine}"
            case.findings.error(path, message, "Remove `engine`, or wait for nodes by `wait_for`.")


def some_step_is_allowed(case: Case) -> None:
    if case.graph.limits.max_steps == 0:
        message = "limits.max_steps must be >= 1 (got 0); with 0 no node could ever run"
        case.findings.graph_error(("limits", "max_steps"), message)


RULES: Sequence[Rule] = (
    every_concurrency_lets_nodes_run,
    every_body_of_a_map_can_run_per_item,
    no_person_is_asked_in_a_parallel_branch,
    every_parallel_script_declares_what_it_writes,
    no_key_is_written_by_two_branches,
    no_branch_reads_what_its_sibling_writes,
    no_item_is_collected_over_itself,
    every_join_can_fire,
    every_edge_into_a_join_is_waited_for,
    every_join_node_waits,
    every_router_leads_somewhere,
    every_deferred_node_can_wait,
    every_branch_has_an_effect,
    every_condition_can_be_read,
    every_choice_reads_the_state,
    every_label_is_produced,
    some_step_is_allowed,
)

NEED_ALL_EDGES: Final = (every_join_can_fire, every_join_node_waits, every_router_leads_somewhere)
"""Rules that would report an unreadable edge as a missing one."""


def _check_body(case: Case, body: Node, path: KeyPath) -> None:
    if body.kind not in ITEM_BODIES:
        why = {
            "approval": "no person can be asked per item",
            "input": "no person can be asked per item",
            "end": "an item cannot end the run",
            "map": "maps do not nest; let the body be an agent with a map of its own",
        }.get(body.kind, "it does nothing per item")
        message = f"map '{path[-1]}' node '{body.id}' is of type {body.kind}: {why}"
        case.findings.error(path, message, f"What can run per item: {', '.join(ITEM_BODIES)}.")
    for key in ("next", "branch", "wait_for", "defer", "on_error"):
        if getattr(body, key):
            message = f"map '{path[-1]}' node '{body.id}' has `{key}`, but the map decides where an item goes"
            hint = "Remove it; for several nodes per item, list them: `node: [a, b]`."
            case.findings.error(("nodes", body.id, key), message, hint)


def _check_result(case: Case, node: MapNode, body: Node, path: KeyPath) -> None:
    for key in (*(body.state_updates or ()), *body.value_updates):
        if key != node.output_key:
            message = f"map '{path[-1]}' node '{body.id}' writes '{key}', but only '{node.output_key}' is collected"
            hint = f"Write `{node.output_key}`, or set `output_key: {key}`."
            case.findings.error(("nodes", body.id, "state_updates", key), message, hint)
    if case.is_loki and isinstance(body, LlmNode | AgentNode) and _properties(body.output_schema):
        message = f"map '{path[-1]}' node '{body.id}' has an `output_schema` with properties; no item can write them"
        hint = "Describe them in the prompt; the whole output of an item is collected."
        case.findings.error(("nodes", body.id, "output_schema"), message, hint)


def _fans(case: Case) -> Iterator[Node]:
    """The nodes with parallel edges."""
    return (node for node in case.graph.nodes.values() if len(node.targets) > 1)


def _siblings(case: Case, node: Node) -> list[Node]:
    return [case.graph.nodes[target] for target in node.targets if target in case.graph.nodes]


def _branches(case: Case) -> Iterator[tuple[Node, KeyPath]]:
    """Every parallel edge: its target and its path."""
    for node in _fans(case):
        for index, target in enumerate(node.targets):
            if target in case.graph.nodes:
                yield case.graph.nodes[target], ("nodes", node.id, "next", index)


def keys_written(node: Node) -> list[str]:
    """The keys that a node is known to write."""
    keys = [*(node.state_updates or ()), *node.value_updates]
    if isinstance(node, LlmNode | AgentNode):
        keys += _properties(node.output_schema)
    if isinstance(node, AgentNode) and isinstance(node.map_out, dict):
        keys += node.map_out
    if isinstance(node, MapNode):
        keys.append(node.collect_into)
    return list(dict.fromkeys(keys))


def _may_go_anywhere(node: Node) -> bool:
    return isinstance(node, _IN_CODE) or (node.branch is not None and not node.branch.cases)


def _properties(schema: Json) -> list[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return list(properties) if isinstance(properties, dict) else []


def _reducer_hint(case: Case, key: str) -> str:
    if case.is_loki:
        return f"Add a reducer for '{key}' to the graph's `reducers:` block, or rename one writer."
    return f"Give it a reducer: `state: {{{key}: {{reducer: append}}}}`, or rename one writer."


def _labels(case: Case, node: Node) -> list[str] | None:
    """All labels that a node's branch can choose; None if the file does not define them."""
    branch = node.branch
    if branch is None:
        return None
    if branch.cases:
        return [choice.to for choice in branch.cases]
    whole = PLACEHOLDER.fullmatch(branch.by or "")
    if whole is None or branch.many:
        return None
    declared = case.graph.state.get(whole[1])
    if isinstance(node, LlmNode | AgentNode) and whole[1] in _properties(node.output_schema):
        schema = (node.output_schema or {})["properties"][whole[1]]
    elif declared is not None:
        schema = {"type": "boolean"} if declared.type == "bool" else declared.schema
    else:
        return None
    if not isinstance(schema, dict):
        return None
    choices = [True, False] if schema.get("type") == "boolean" else schema.get("enum")
    if not isinstance(choices, list) or not choices:
        return None
    return [choice if isinstance(choice, str) else json.dumps(choice) for choice in choices]


def _is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


def _expression_problem(text: str) -> str | None:
    # Imported here: the engine takes a third of a second to load, and few graphs have a condition.
    from sleipnir.graph.expression import ExpressionError, parse

    try:
        parse(text)
    except ExpressionError as error:
        return str(error)
    return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
