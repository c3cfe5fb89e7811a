"""How a run moves on: from an outcome along an edge into the next node, to its end or to its failure.

plan.py decides what an event means; this is what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sleipnir.graph.length_rule import LengthRuleError, parse_length_rule
from sleipnir.graph.model import (
    AgentNode,
    ApprovalNode,
    EndNode,
    FunctionNode,
    Graph,
    InputNode,
    Json,
    LlmNode,
    RagNode,
    ScriptNode,
)
from sleipnir.graph.template import TemplateError, apply_updates, keys_read, render, render_lenient, updates_read
from sleipnir.messages import QUEUE_OF
from sleipnir.runs import Gate, RunView, Transition, Visit
from sleipnir_scheduler.planner.draft import Draft

NO_NEXT = "Input node has no `next` set"


@dataclass(frozen=True)
class Known:
    """State values for planning: `values` of `keys`; a key that is in `keys` only is absent from the state."""

    keys: frozenset[str] = frozenset()
    values: Mapping[str, Json] | None = None


NOTHING = Known()


class StateMissing(Exception):
    """Planning needs these keys of the state, and does not know them yet."""

    def __init__(self, keys: frozenset[str]) -> None:
        self.keys = keys


class RunFailed(Exception):
    """The run cannot go on. `node` is the node at fault, if one is; `entering` the one that could not be entered."""

    def __init__(self, message: str, node: str | None = None, *, entering: str | None = None) -> None:
        super().__init__(message)
        self.node, self.entering = node, entering


class Moves:
    """One call of plan(): the inputs, the draft of what changes, and the ways on."""

    def __init__(self, graph: Graph, run: RunView, now_ms: int, known: Known, max_redeliveries: int) -> None:
        self.graph, self.run, self.now_ms, self.known = graph, run, now_ms, known
        self.max_redeliveries = max_redeliveries
        self.draft = Draft(run, now_ms)

    def fail(self, message: str, node: str | None = None, entering: str | None = None) -> Transition:
        """End the run as failed, with Loki's wrapping (spec 2.8)."""
        where = f"at node '{node}': " if node else ""
        error = f"Graph execution failed for agent '{self.run.spec.agent}': {where}{message}"
        self.draft.end("failed", error=error, failed_at=entering or node or self.somewhere())
        return self.draft.transition()

    def somewhere(self) -> str:
        """The oldest live visit's node, else the start: where to go on when no node is at fault."""
        oldest = min(self.run.frontier.values(), key=lambda visit: visit.seq, default=None)
        return oldest.node if oldest else self.graph.start

    def route(self, visit: Visit, ok: bool, chosen: str | None) -> str | None:
        """Where a visit's outcome leads: `_next`, else `next`; on failure `fallback`, else `next` (spec 2.8)."""
        node = self.graph.nodes[visit.node]
        if ok:
            return chosen if chosen is not None else single(node.next)
        if isinstance(node, ScriptNode | FunctionNode | LlmNode):
            return node.fallback if node.fallback is not None else single(node.next)
        return None

    def give_up(self, visit: Visit, error: str) -> Transition:
        """A visit without a result fails, as if its node had."""
        node = self.graph.nodes[visit.node]
        target = self.route(visit, ok=False, chosen=None)
        if isinstance(node, LlmNode):
            state = self.state(updates_read(node))
            writes: dict[str, Json] = dict(
                apply_updates(node.state_updates, state, scoped=node.scoped, value=f"LLM node failed: {error}")
            )
        else:
            writes = {"_error": {"node": visit.node, "message": error}, "last_error": error}
        self.draft.close(visit, target, writes, error=error)
        return self.follow(visit, target, error)

    def follow(self, visit: Visit, target: str | None, otherwise: str) -> Transition:
        """Go on from a closed visit to `target`; without one the run fails with the text `otherwise`."""
        if target is None:
            raise RunFailed(otherwise, visit.node)
        self.enter(target)
        return self.draft.transition()

    def enter(self, target: str) -> None:
        """One entry into one node, with the executor's checks in Loki's order (spec 2.10)."""
        if self.deadline_passed():
            raise RunFailed(self.timed_out(target), entering=target)
        count, cap = self.draft.count(target), self.graph.settings.max_loop_iterations
        if count > cap:
            raise RunFailed(
                f"Node '{target}' visited {count} times (max_loop_iterations={cap}). Possible infinite loop.", target
            )
        node = self.graph.nodes.get(target)
        if node is None:
            raise RunFailed(f"Node '{target}' not found in graph '{self.graph.name}'", entering=target)
        match node:
            case ScriptNode() | FunctionNode() | LlmNode():
                self.draft.dispatch(node, queue_of(node))
            case ApprovalNode() | InputNode():
                self._ask(node)
            case EndNode():
                self._finish(node)
            case AgentNode() | RagNode():
                raise RunFailed(
                    f"{node.kind} nodes cannot run in this version of Sleipnir; "
                    "it loads and validates them. Replace the node by a script, function or llm node",
                    node.id,
                )

    def _ask(self, node: ApprovalNode | InputNode) -> None:
        what = "approval" if isinstance(node, ApprovalNode) else "input"
        try:
            question = render(node.question, self.state(keys_read(node.question)))
        except TemplateError as error:
            raise RunFailed(f"Failed to interpolate {what} question: {error}", node.id) from None
        default = None
        if isinstance(node, InputNode) and node.default:
            default = render_lenient(node.default, self.state(keys_read(node.default))) or None
        if default is not None:
            question = f"{question} [default: {default}]"
        options = tuple(node.options) if isinstance(node, ApprovalNode) else ()
        expires_ms = self.now_ms + node.timeout * 1000 if node.timeout is not None else None
        self.draft.ask(node, Gate(0, node.id, node.kind, question, options, default, self.now_ms), expires_ms)

    def input_value(self, node: InputNode, text: str) -> str:
        """The answer, or the rendered default for an empty one; only a real answer is validated (spec 2.7.4)."""
        if text == "":
            return render_lenient(node.default, self.state(keys_read(node.default))) if node.default else ""
        try:
            rule = parse_length_rule(node.validation) if node.validation is not None else None
        except LengthRuleError as error:
            raise RunFailed(str(error), node.id) from None
        if rule is not None and not rule.accepts(text):
            raise RunFailed(rule.refusal(text), node.id)
        return text

    def _finish(self, node: EndNode) -> None:
        state = self.state(updates_read(node) | (keys_read(node.output) - set(node.state_updates or {})))
        writes = apply_updates(node.state_updates, state)
        self.draft.pass_through(node, writes)
        self.draft.end("completed", output=render_lenient(node.output, {**state, **writes}))

    def state(self, keys: frozenset[str]) -> dict[str, Json]:
        """Values of these keys as they are after what this draft writes. Raises StateMissing for unknown ones."""
        written = self.draft.written
        unknown = keys - self.known.keys - written.keys()
        if unknown:
            raise StateMissing(frozenset(unknown | self.known.keys))
        values = self.known.values or {}
        return {key: written[key] if key in written else values[key] for key in keys if key in written or key in values}

    def deadline_ms(self) -> int | None:
        """When the run's time is up; a pause stops the clock."""
        timeout, paused = self.graph.settings.timeout, self.draft.paused
        if timeout is None:
            return None
        idle_ms = self.draft.idle_ms + (self.now_ms - paused.at_ms if paused else 0)
        return self.draft.started_ms + timeout * 1000 + idle_ms

    def deadline_passed(self) -> bool:
        deadline_ms = self.deadline_ms()
        return deadline_ms is not None and self.now_ms > deadline_ms

    def timed_out(self, node: str) -> str:
        return f"Graph '{self.graph.name}' timed out after {self.graph.settings.timeout}s at '{node}'"


def single(target: str | list[str] | None) -> str | None:
    """The one declared edge. The loader refuses longer lists in this version."""
    if isinstance(target, list):
        return target[0] if target else None
    return target


def queue_of(node: ScriptNode | FunctionNode | LlmNode) -> str:
    return node.queue or QUEUE_OF[node.kind]


def no_route(visit: Visit) -> str:
    if visit.kind in ("script", "function"):
        return f"{visit.kind} node '{visit.node}' did not emit `_next` and has no static `next`"
    return f"{visit.kind} node '{visit.node}' has no `next` and is not an end node"
