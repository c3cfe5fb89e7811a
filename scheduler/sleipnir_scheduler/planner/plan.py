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
from sleipnir.messages import QUEUE_OF, ResultHeader
from sleipnir.runs import (
    FAIL,
    RUN_AGAIN,
    RUN_DEADLINE,
    Answered,
    Cancelled,
    Event,
    Gate,
    LeaseLost,
    Notice,
    Paused,
    Resulted,
    Resumed,
    Retried,
    RunView,
    Submitted,
    TimerFired,
    Transition,
    Visit,
    read_effect_answer,
)
from sleipnir_scheduler.planner import retries
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
            case Paused():
                return self._pause(event)
            case Resumed():
                return self._resume()
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
        if self.run.seq:
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
        notes = header.notes
        if not header.ok:
            verdict = self._retry_or_not(visit, header)
            if isinstance(verdict, retries.Again):
                self.draft.try_again(visit, header, verdict.at_ms, verdict.most)
                return self.draft.transition()
            notes = (*notes, verdict.why) if verdict.why else notes
        target = self._route(visit, header.ok, header.next)
        self.draft.finish(visit, header, target, notes)
        if target is None:
            raise _RunFailed(header.error or _no_route(visit), visit.node)
        self._enter(target)
        return self.draft.transition()

    def _retry_or_not(self, visit: Visit, failure: ResultHeader) -> retries.Again | retries.GiveUp:
        node = self.graph.nodes[visit.node]
        policies = self.graph.retries_of(node)
        return retries.decide(
            policies, visit, failure, run=self.run.id, now_ms=self.now_ms, deadline_ms=self._deadline_ms()
        )

    def _answer(self, event: Answered) -> Transition | Ignore:
        visit = self.run.frontier.get(event.seq)
        if visit is None or visit.queue is not None:
            return Ignore("the question is closed")
        node = self.graph.nodes[visit.node]
        if isinstance(node, ScriptNode | FunctionNode):
            return self._effect_answered(visit, node, event.text)
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
        if visit is None or visit.attempt != event.attempt or visit.queue is None:
            return Ignore("the visit is over, or another attempt owns it")
        what = "visit_handed_back" if event.handed_back else "worker_lost"
        self.draft.notice(what, seq=visit.seq, node=visit.node, attempt=visit.attempt, worker=event.worker)
        if self._deadline_passed():
            raise _RunFailed(self._timed_out(visit.node), entering=visit.node)
        node = self.graph.nodes[visit.node]
        if isinstance(node, ScriptNode | FunctionNode) and node.effect == "once":
            self._ask_about_effect(visit, event)
        elif event.handed_back or visit.losses < self.max_redeliveries:
            self.draft.redeliver(visit, losses=0 if event.handed_back else 1)
        else:
            error = f"WorkerLost: {visit.losses + 1} workers died while running this visit, last {event.worker}"
            return self._give_up(visit, error)
        return self.draft.transition()

    def _ask_about_effect(self, visit: Visit, event: LeaseLost) -> None:
        """Nobody knows whether the work was done, and it must not be done twice: a person decides."""
        how = "stopped" if event.handed_back else "died"
        question = (
            f"{event.worker} {how} while it ran node '{visit.node}', whose effect must happen once, and left nothing. "
            f"Find out whether it happened. Then answer '{RUN_AGAIN}', '{FAIL}', or with the result that it would "
            "have printed, as a JSON object ({} for none), to go on as if it had ended well."
        )
        gate = Gate(visit.seq, visit.node, "effect", question, (RUN_AGAIN, FAIL), None, self.now_ms)
        self.draft.ask_instead(visit, gate)

    def _effect_answered(self, visit: Visit, node: ScriptNode | FunctionNode, text: str) -> Transition:
        self.draft.notice("gate_answered", seq=visit.seq, node=visit.node, answer=text)
        try:
            verdict = read_effect_answer(text)
        except ValueError as error:
            question = f"{error}. What became of node '{visit.node}'?"
            gate = Gate(visit.seq, visit.node, "effect", question, (RUN_AGAIN, FAIL), None, self.now_ms)
            self.draft.ask_instead(visit, gate)
            return self.draft.transition()
        if verdict == RUN_AGAIN:
            self.draft.redeliver(visit, queue=_queue_of(node))
            return self.draft.transition()
        if verdict == FAIL:
            return self._give_up(visit, "WorkerLost: its worker died, and it was decided not to run it again")
        return self._settle(visit, node, verdict)

    def _settle(self, visit: Visit, node: ScriptNode | FunctionNode, output: Mapping[str, Json]) -> Transition:
        """End a visit with the output that a person has given for it."""
        merged = {key: value for key, value in output.items() if key != "_next"}
        chosen = output.get("_next")
        target = self._route(visit, ok=True, chosen=chosen if isinstance(chosen, str) else None)
        state = {**self._state(updates_read(node) - merged.keys()), **merged}
        self.draft.close(visit, target, {**merged, **apply_updates(node.state_updates, state)})
        if target is None:
            raise _RunFailed(_no_route(visit), visit.node)
        self._enter(target)
        return self.draft.transition()

    def _give_up(self, visit: Visit, error: str) -> Transition:
        """A visit without a result fails, as if its node had."""
        node = self.graph.nodes[visit.node]
        target = self._route(visit, ok=False, chosen=None)
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

    def _pause(self, event: Paused) -> Transition | Ignore:
        if self.run.paused is not None:
            return Ignore("the run is paused already")
        self.draft.pause(event.by, event.reason)
        return self.draft.transition()

    def _resume(self) -> Transition | Ignore:
        if self.run.paused is None:
            return Ignore("the run is not paused")
        self.draft.resume()
        if (deadline_ms := self._deadline_ms()) is not None and self.run.seq:
            self.draft.arm_deadline(deadline_ms)
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
        if event.name == RUN_DEADLINE:
            return self._deadline()
        visit = next((visit for visit in self.run.frontier.values() if visit.timer == event.name), None)
        if visit is None or visit.wake_ms is None:
            return Ignore("the visit is over, or another attempt of it is on its way")
        if visit.queue is not None:
            self.draft.wake(visit)
            return self.draft.transition()
        return self._unanswered(visit)

    def _deadline(self) -> Transition | Ignore:
        """The run's deadline. A visit that a worker has may finish, and _enter looks again then (spec 2.4), unless the
        graph says `interrupt_on_timeout`."""
        if self.run.paused is not None:
            return Ignore("the run is paused, and its deadline with it")
        live = sorted(self.run.frontier.values(), key=lambda visit: visit.seq)
        if not self.graph.settings.interrupt_on_timeout:
            self.draft.unless_claimed()
        raise _RunFailed(self._timed_out(live[0].node if live else self.graph.start))

    def _unanswered(self, visit: Visit) -> Transition:
        """Nobody has answered in time: `on_timeout`, else an input's default, else the run fails."""
        node = self.graph.nodes[visit.node]
        assert isinstance(node, ApprovalNode | InputNode)
        self.draft.notice("gate_expired", seq=visit.seq, node=visit.node)
        error, target = None, node.on_timeout
        writes: dict[str, Json] = {}
        if target is None and isinstance(node, InputNode) and node.default is not None:
            value, target = self._input_value(node, ""), _single(node.next)
            state = self._state(updates_read(node))
            writes |= apply_updates(node.state_updates, state, scoped=node.scoped, value=value)
        elif target is None:
            error = f"{node.kind} node '{node.id}' was not answered within {node.timeout}s"
        self.draft.close(visit, target, writes, error=error)
        if target is None:
            raise _RunFailed(error or "Input node has no `next` set", visit.node)
        self._enter(target)
        return self.draft.transition()

    # Moving on

    def _route(self, visit: Visit, ok: bool, chosen: str | None) -> str | None:
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
                self.draft.dispatch(node, _queue_of(node))
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
        expires_ms = self.now_ms + node.timeout * 1000 if node.timeout is not None else None
        self.draft.ask(node, Gate(0, node.id, node.kind, question, options, default, self.now_ms), expires_ms)

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

    def _deadline_ms(self) -> int | None:
        """When the run's time is up; a pause stops the clock."""
        timeout, paused = self.graph.settings.timeout, self.draft.paused
        if timeout is None:
            return None
        idle_ms = self.draft.idle_ms + (self.now_ms - paused.at_ms if paused else 0)
        return self.draft.started_ms + timeout * 1000 + idle_ms

    def _deadline_passed(self) -> bool:
        deadline_ms = self._deadline_ms()
        return deadline_ms is not None and self.now_ms > deadline_ms

    def _timed_out(self, node: str) -> str:
        return f"Graph '{self.graph.name}' timed out after {self.graph.settings.timeout}s at '{node}'"


def _single(target: str | list[str] | None) -> str | None:
    """The one declared edge. The loader refuses longer lists in this version."""
    if isinstance(target, list):
        return target[0] if target else None
    return target


def _queue_of(node: ScriptNode | FunctionNode | LlmNode) -> str:
    return node.queue or QUEUE_OF[node.kind]


def _no_route(visit: Visit) -> str:
    if visit.kind in ("script", "function"):
        return f"{visit.kind} node '{visit.node}' did not emit `_next` and has no static `next`"
    return f"{visit.kind} node '{visit.node}' has no `next` and is not an end node"
