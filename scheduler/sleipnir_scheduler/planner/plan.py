"""One event of one run: which visits close and open, what is written, whether the run ends.

    plan(graph, run, event, now_ms, state) -> Transition | NeedState | Ignore

`state` holds the state values known so far. A control node (approval, input, end) renders templates; when it needs a
value that is not in `state`, the answer is NeedState with the keys: fetch them and plan again. Planning is pure, so
planning again is safe. See scheduler/README.md for the picture.
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
from sleipnir.runs import (
    RUN_DEADLINE,
    Answered,
    Cancelled,
    Event,
    Gate,
    LeaseLost,
    Notice,
    Resulted,
    Retried,
    RunView,
    Submitted,
    TimerFired,
    Transition,
    Visit,
)
from sleipnir_scheduler.planner.draft import Draft


@dataclass(frozen=True)
class NeedState:
    """Plan again with these state keys known (absent ones may stay absent)."""

    keys: frozenset[str]


@dataclass(frozen=True)
class Ignore:
    """The event changes nothing; `notice` is for watchers (a late result)."""

    reason: str
    notice: Notice | None = None


@dataclass(frozen=True)
class Known:
    """State values for planning: `values` of `keys`; a key that is in `keys` only is absent from the state."""

    keys: frozenset[str] = frozenset()
    values: Mapping[str, Json] | None = None


class _StateMissing(Exception):
    def __init__(self, keys: frozenset[str]) -> None:
        self.keys = keys


class _RunFailed(Exception):
    """The run cannot go on. `node` is the node at fault, if one is; `entering` the one that could not be entered."""

    def __init__(self, message: str, node: str | None = None, *, entering: str | None = None) -> None:
        super().__init__(message)
        self.node, self.entering = node, entering


def plan(
    graph: Graph,
    run: RunView,
    event: Event,
    now_ms: int,
    known: Known = Known(),
    *,
    max_redeliveries: int = 3,
) -> Transition | NeedState | Ignore:
    """What `event`, which happened at `now_ms`, changes in `run`."""
    if run.is_final and not (run.status == "failed" and isinstance(event, Retried)):
        return Ignore(f"run is {run.status}", _late(event))
    planner = _Planner(graph, run, now_ms, known, max_redeliveries)
    try:
        return planner.decide(event)
    except _StateMissing as missing:
        return NeedState(missing.keys)
    except _RunFailed as failure:
        return planner.fail(str(failure), failure.node, failure.entering)


def fail(graph_name: str, run: RunView, message: str, now_ms: int) -> Transition:
    """End a run for a reason outside its graph (its bundle cannot be read, a bug of ours)."""
    draft = Draft(run, now_ms)
    draft.end("failed", error=f"Graph execution failed for agent '{run.spec.agent}' ({graph_name}): {message}")
    return draft.transition()


def _late(event: Event) -> Notice | None:
    if not isinstance(event, Resulted):
        return None
    detail = {"seq": event.seq, "attempt": event.attempt, "worker": event.header.worker}
    return Notice("late_result", detail)


class _Planner:
    """One call of plan(): the inputs, and the draft of what changes."""

    def __init__(self, graph: Graph, run: RunView, now_ms: int, known: Known, max_redeliveries: int) -> None:
        self.graph, self.run, self.now_ms, self.known = graph, run, now_ms, known
        self.max_redeliveries = max_redeliveries
        self.draft = Draft(run, now_ms)

    def decide(self, event: Event) -> Transition | Ignore:
        match event:
            case Submitted():
                return self._start()
            case Resulted():
                return self._result(event)
            case Answered():
                return self._answer(event)
            case LeaseLost():
                return self._lease_lost(event)
            case Cancelled():
                return self._cancel()
            case Retried():
                return self._retry()
            case TimerFired():
                return self._timer(event)
            case _:
                return Ignore(f"unknown event {event!r}")

    def fail(self, message: str, node: str | None = None, entering: str | None = None) -> Transition:
        """End the run as failed, with Loki's wrapping (spec 2.8)."""
        where = f"at node '{node}': " if node else ""
        error = f"Graph execution failed for agent '{self.run.spec.agent}': {where}{message}"
        self.draft.end("failed", error=error, failed_at=entering or node or self._somewhere())
        return self.draft.transition()

    def _somewhere(self) -> str:
        """The oldest live visit's node, else the start: where to go on when no node is at fault."""
        oldest = min(self.run.frontier.values(), key=lambda visit: visit.seq, default=None)
        return oldest.node if oldest else self.graph.start

    # Events

    def _start(self) -> Transition | Ignore:
        if self.run.status != "submitted":
            return Ignore("already started")
        deadline_ms = self.graph.settings.timeout and self.now_ms + self.graph.settings.timeout * 1000
        self.draft.start(self.graph.name, self.graph.start, deadline_ms)
        self._enter(self.graph.start)
        return self.draft.transition()

    def _result(self, event: Resulted) -> Transition | Ignore:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.attempt != event.attempt:
            return Ignore("the visit is over, or another attempt owns it", _late(event))
        header = event.header
        target = self._route(visit, header.ok, header.next, header.error)
        self.draft.finish(visit, header, target)
        if target is None:
            raise _RunFailed(header.error or _no_route(visit), visit.node)
        self._enter(target)
        return self.draft.transition()

    def _answer(self, event: Answered) -> Transition | Ignore:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.queue is not None:
            return Ignore("the question is closed")
        node = self.graph.nodes[visit.node]
        value: str
        target: str | None
        if isinstance(node, ApprovalNode):
            value, target = event.text, node.routes.get(event.text, node.on_other)
        elif isinstance(node, InputNode):
            value, target = self._input_value(node, event.text), _single(node.next)
        else:
            return Ignore(f"a {node.kind} node asks no question")
        self.draft.notice("gate_answered", seq=visit.seq, node=visit.node, answer=event.text)
        writes = apply_updates(node.state_updates, self._state(updates_read(node)), scoped=node.scoped, value=value)
        self.draft.close(visit, target, writes)
        if target is None:
            raise _RunFailed("Input node has no `next` set", visit.node)
        self._enter(target)
        return self.draft.transition()

    def _input_value(self, node: InputNode, text: str) -> str:
        """The answer, or the rendered default for an empty one; only a real answer is validated (spec 2.7.4)."""
        if text == "":
            return render_lenient(node.default, self._state(keys_read(node.default))) if node.default else ""
        try:
            rule = parse_length_rule(node.validation) if node.validation is not None else None
        except LengthRuleError as error:
            raise _RunFailed(str(error), node.id) from None
        if rule is not None and not rule.accepts(text):
            raise _RunFailed(rule.refusal(text), node.id)
        return text

    def _lease_lost(self, event: LeaseLost) -> Transition | Ignore:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.attempt != event.attempt:
            return Ignore("the visit is over, or another attempt owns it")
        self.draft.notice("worker_lost", seq=visit.seq, node=visit.node, attempt=visit.attempt, worker=event.worker)
        if visit.attempt <= self.max_redeliveries:
            self.draft.redeliver(visit)
            return self.draft.transition()
        return self._give_up(visit, event.worker)

    def _give_up(self, visit: Visit, worker: str) -> Transition:
        """Too many workers died on this visit: it fails, as if its node had (WorkerLost)."""
        node = self.graph.nodes[visit.node]
        error = f"WorkerLost: {visit.attempt} workers died while running this visit, last {worker}"
        target = self._route(visit, ok=False, chosen=None, error=error)
        if isinstance(node, LlmNode):
            state = self._state(updates_read(node))
            writes: dict[str, Json] = dict(
                apply_updates(node.state_updates, state, scoped=node.scoped, value=f"LLM node failed: {error}")
            )
        else:
            writes = {"_error": {"node": visit.node, "message": error}, "last_error": error}
        self.draft.close(visit, target, writes, error=error)
        if target is None:
            raise _RunFailed(error, visit.node)
        self._enter(target)
        return self.draft.transition()

    def _cancel(self) -> Transition:
        self.draft.end("cancelled", error=f"Graph '{self.graph.name}' aborted at '{self._somewhere()}'")
        return self.draft.transition()

    def _retry(self) -> Transition | Ignore:
        if self.run.status != "failed":
            return Ignore("only a failed run can be retried")
        node = self.run.failed_at or self.graph.start
        self.draft.revive(node)
        if self.graph.settings.timeout:
            self.draft.arm_deadline(self.now_ms + self.graph.settings.timeout * 1000)
        self._enter(node)
        return self.draft.transition()

    def _timer(self, event: TimerFired) -> Transition | Ignore:
        """The run's deadline. A visit that a worker may run is allowed to finish; _enter looks again (spec 2.4)."""
        live = sorted(self.run.frontier.values(), key=lambda visit: visit.seq)
        if event.name != RUN_DEADLINE or any(visit.queue for visit in live):
            return Ignore("visits are running; the deadline is checked when they end")
        raise _RunFailed(self._timed_out(live[0].node if live else self.graph.start))

    # Moving on

    def _route(self, visit: Visit, ok: bool, chosen: str | None, error: str | None) -> str | None:
        """Where a visit's outcome leads: `_next`, else `next`; on failure `fallback`, else `next` (spec 2.8)."""
        node = self.graph.nodes[visit.node]
        if ok:
            return chosen if chosen is not None else _single(node.next)
        if isinstance(node, ScriptNode | FunctionNode | LlmNode):
            return node.fallback if node.fallback is not None else _single(node.next)
        return None

    def _enter(self, target: str) -> None:
        """One entry into one node, with the executor's checks in Loki's order (spec 2.10)."""
        if self._deadline_passed():
            raise _RunFailed(self._timed_out(target), entering=target)
        count, cap = self.draft.count(target), self.graph.settings.max_loop_iterations
        if count > cap:
            raise _RunFailed(
                f"Node '{target}' visited {count} times (max_loop_iterations={cap}). Possible infinite loop.", target
            )
        node = self.graph.nodes.get(target)
        if node is None:
            raise _RunFailed(f"Node '{target}' not found in graph '{self.graph.name}'", entering=target)
        match node:
            case ScriptNode() | FunctionNode() | LlmNode():
                self.draft.dispatch(node, node.queue or QUEUE_OF[node.kind])
            case ApprovalNode() | InputNode():
                self._ask(node)
            case EndNode():
                self._finish(node)
            case AgentNode() | RagNode():
                raise _RunFailed(
                    f"{node.kind} nodes cannot run in this version of Sleipnir; "
                    "it loads and validates them. Replace the node by a script, function or llm node",
                    node.id,
                )

    def _ask(self, node: ApprovalNode | InputNode) -> None:
        what = "approval" if isinstance(node, ApprovalNode) else "input"
        try:
            question = render(node.question, self._state(keys_read(node.question)))
        except TemplateError as error:
            raise _RunFailed(f"Failed to interpolate {what} question: {error}", node.id) from None
        default = None
        if isinstance(node, InputNode) and node.default:
            default = render_lenient(node.default, self._state(keys_read(node.default))) or None
        if default is not None:
            question = f"{question} [default: {default}]"
        options = tuple(node.options) if isinstance(node, ApprovalNode) else ()
        self.draft.ask(node, Gate(0, node.id, node.kind, question, options, default, self.now_ms))

    def _finish(self, node: EndNode) -> None:
        state = self._state(updates_read(node) | (keys_read(node.output) - set(node.state_updates or {})))
        writes = apply_updates(node.state_updates, state)
        self.draft.pass_through(node, writes)
        self.draft.end("completed", output=render_lenient(node.output, {**state, **writes}))

    def _state(self, keys: frozenset[str]) -> dict[str, Json]:
        """Values of these keys as they are after what this draft writes. Raises _StateMissing for unknown ones."""
        written = self.draft.written
        unknown = keys - self.known.keys - written.keys()
        if unknown:
            raise _StateMissing(frozenset(unknown | self.known.keys))
        values = self.known.values or {}
        return {key: written[key] if key in written else values[key] for key in keys if key in written or key in values}

    def _deadline_passed(self) -> bool:
        timeout = self.graph.settings.timeout
        return timeout is not None and self.now_ms - self.draft.started_ms > timeout * 1000

    def _timed_out(self, node: str) -> str:
        return f"Graph '{self.graph.name}' timed out after {self.graph.settings.timeout}s at '{node}'"


def _single(target: str | list[str] | None) -> str | None:
    """The one declared edge. The loader refuses longer lists in this version."""
    if isinstance(target, list):
        return target[0] if target else None
    return target


def _no_route(visit: Visit) -> str:
    if visit.kind in ("script", "function"):
        return f"{visit.kind} node '{visit.node}' did not emit `_next` and has no static `next`"
    return f"{visit.kind} node '{visit.node}' has no `next` and is not an end node"
