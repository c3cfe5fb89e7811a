"""Skips: a person gives the output of a visit, which ends as if its node had returned that.

The value is what a node of that type returns, before its `state_updates`:

    script, function, graph              an object of state keys; `_next` in it chooses the way on
    router, join, wait                   the same, without `_next`
    llm, agent                           a text; with `output_schema` a value that matches it; with `map_out` an object
                                         of the state keys to write
    approval, input, tool                a text
    rag                                  an object with `context`, `sources` and `hits`
    map                                  the list of its results

The client refuses a value that does not fit before it sends it, and the planner checks again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sleipnir.errors import UsageError
from sleipnir.graph.length_rule import LengthRuleError, parse_length_rule
from sleipnir.graph.model import (
    AgentNode,
    ApprovalNode,
    EndNode,
    FunctionNode,
    Graph,
    InputNode,
    JoinNode,
    Json,
    LlmNode,
    MapNode,
    Node,
    RagNode,
    RouterNode,
    ScriptNode,
    ToolNode,
    ToolsNode,
    WaitNode,
)
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.graph.schema import MOST_STEPS_OF_SCHEDULER, NotChecked, at_most, violation
from sleipnir.graph.state import update_problem
from sleipnir.messages import MOST_KEYS

NEXT: Final = "_next"


class SkipRefused(Exception):
    """The value or the way on does not fit the node. The message says why, and what would fit."""


@dataclass(frozen=True)
class SkippedOutput:
    """The output of a skipped visit: the state keys `written` before `state_updates`, which see it as `value`. `next`
    is the chosen way on; empty: that of the edges."""

    value: Json = None
    written: Mapping[str, Json] = field(default_factory=dict)
    next: tuple[str, ...] = ()


def skipped_output(graph: Graph, node: Node, value: Json, to: tuple[str, ...] = ()) -> SkippedOutput:
    """The output that `value` is for a node; `to` are the nodes that the person chose. Raises SkipRefused."""
    if problem := first_not_json({"value": value}):
        raise SkipRefused(f"the value is not JSON: {problem}")
    written = _written(graph, node, value)
    chosen = to or _chosen(node, written.pop(NEXT, None))
    for name in chosen:
        if name not in node.ends and name not in graph.nodes and not graph.ends_branch(name):
            raise SkipRefused(f"the graph has no node {name!r} to go on at; it has: {', '.join(graph.nodes)}")
    if not chosen and isinstance(node, FunctionNode) and node.routers:
        raise SkipRefused(
            f"node '{node.id}' chooses its way on by functions that run with it: name the node to go on at, with --to"
        )
    _refuse_values(graph, written)
    return SkippedOutput(value, written, chosen)


def refuse_output(run_id: str, graph: Graph, seq: int, node: str, value: Json, to: tuple[str, ...]) -> None:
    """Raises UsageError for a value, or a way on, that does not fit the visit `seq` of `node`."""
    if (definition := graph.nodes.get(node)) is None:
        raise UsageError(f"run {run_id!r} has no node {node!r} in its graph; it cannot be skipped")
    try:
        skipped_output(graph, definition, value, to)
    except SkipRefused as refused:
        raise UsageError(f"visit {seq} of run {run_id!r} cannot be skipped so: {refused}") from None


def digest_of(value: Json, to: tuple[str, ...]) -> str:
    """What tells two skips of a visit apart; a journal keeps it, as values may be large."""
    text = json.dumps([value, to], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _written(graph: Graph, node: Node, value: Json) -> dict[str, Json]:
    match node:
        case ScriptNode() | FunctionNode() | RouterNode() | JoinNode() | WaitNode() | ToolsNode():
            written = _object(node, {} if value is None else value, "an object of state keys")
            if graph.is_state_graph and (unknown := [key for key in written if key != NEXT and key not in graph.state]):
                raise SkipRefused(f"the graph has no state key {unknown[0]!r}; it has: {', '.join(graph.state)}")
            return written
        case AgentNode(map_out=mapping) if mapping is not None:
            return _object(node, {} if value is None else value, "an object of the state keys that `map_out` writes")
        case LlmNode(output_schema=schema) | AgentNode(output_schema=schema) if schema is not None:
            _refuse_unlike(node, schema, value)
            return dict(value) if isinstance(value, dict) else {}
        case LlmNode() | AgentNode() | ApprovalNode():
            _text(node, value)
            return {}
        case InputNode():
            _refuse_input(node, _text(node, value))
            return {}
        case ToolNode():
            return {node.output_key: _text(node, value)}
        case RagNode():
            _object(node, value, "an object with `context`, `sources` and `hits`")
            return {}
        case MapNode():
            if not isinstance(value, list):
                raise SkipRefused(f"map node '{node.id}' needs the list of its results, not {_shown(value)}")
            return {node.collect_into: value}
        case EndNode():
            raise SkipRefused(f"end node '{node.id}' ends the run and has no output of its own; cancel the run instead")
    raise SkipRefused(f"a visit of {node.kind} node '{node.id}' cannot be skipped")


def _chosen(node: Node, chosen: Json) -> tuple[str, ...]:
    """The way on in the output itself."""
    if chosen is None:
        return ()
    names = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(node, ScriptNode | FunctionNode):
        raise SkipRefused(f"a {node.kind} node writes no `{NEXT}`: choose the node to go on at with --to")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise SkipRefused(f"`{NEXT}` must be the name of a node, or a list of names; a skip gives no commands")
    return tuple(names)


def _object(node: Node, value: Json, needs: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise SkipRefused(f"{node.kind} node '{node.id}' needs {needs}, not {_shown(value)}")
    return dict(value)


def _text(node: Node, value: Json) -> str:
    if not isinstance(value, str):
        raise SkipRefused(f"{node.kind} node '{node.id}' needs a text as its output, not {_shown(value)}")
    return value


def _refuse_input(node: InputNode, text: str) -> None:
    """An empty text is the default of the node, as for an answer."""
    if node.validation is None or text == "":
        return
    try:
        rule = parse_length_rule(node.validation)
    except LengthRuleError as error:
        raise SkipRefused(str(error)) from None
    if rule is not None and not rule.accepts(text):
        raise SkipRefused(rule.refusal(text))


def _refuse_unlike(node: Node, schema: Json, value: Json) -> None:
    try:
        with at_most(MOST_STEPS_OF_SCHEDULER):
            problem = violation(schema, value)
    except NotChecked as error:
        problem = f"it cannot be checked: {error}"
    if problem is not None:
        raise SkipRefused(f"{node.kind} node '{node.id}' needs a value that matches its `output_schema`: {problem}")


def _refuse_values(graph: Graph, written: Mapping[str, Json]) -> None:
    if NEXT in written:
        raise SkipRefused(f"`{NEXT}` is no state key")
    if len(written) > MOST_KEYS:
        raise SkipRefused(f"it writes {len(written):,} state keys, at most {MOST_KEYS:,} are possible; nest them")
    problems = [
        f"state key '{key}' {problem}"
        for key, value in written.items()
        if key in graph.state and (problem := update_problem(graph.state[key], value))
    ]
    if problems:
        raise SkipRefused(f"the graph's `state:` does not allow it: {'; '.join(problems)}")


def _shown(value: Json) -> str:
    text = compact_json(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
