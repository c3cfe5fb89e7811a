"""One call of plan(): its inputs, the draft of the changes, and functions that all decisions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from sleipnir.graph.answer_rules import AnswerRules
from sleipnir.graph.model import Graph, Json, LlmNode, Node
from sleipnir.graph.schema import MOST_STEPS_OF_SCHEDULER, at_most
from sleipnir.graph.state import checked_of_text, update_problem
from sleipnir.graph.template import TemplateError, updated_by, updates_read
from sleipnir.messages import RunStatus
from sleipnir.redaction import REDACTED, is_secret_name
from sleipnir.runs.run import Checkpoint, Gate, RunView, changed, child_id, limited_from
from sleipnir.runs.sessions import SessionName
from sleipnir.runs.transitions import CollectResults, Notice
from sleipnir.runs.values import KnownValues, WantedValues
from sleipnir.runs.visits import Body, Branch, Commands, Ending, Failure, Visit
from sleipnir_scheduler.planner.draft.draft import Draft
from sleipnir_scheduler.planner.ending import call_after_run, end_run
from sleipnir_scheduler.planner.folding import FoldResult, Writer
from sleipnir_scheduler.planner.known import require
from sleipnir_scheduler.planner.values import Values

OUTPUT_OF_RUN = "run.output"
"""The field of a run's items that holds its output, if the agent has functions after its runs: the event that reaches
the end node of a `dag` may come long before the last one."""

STEP_TIMER = "step/"
"""The prefix of the name of a super-step's timer; the number of the step follows."""


class RunFailed(Exception):
    """The run cannot go on, even if other visits are live. `node` is the node that caused it, if there is one; `kind`
    is that of the Failure, if programs are told of it."""

    def __init__(self, message: str, node: str | None = None, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.node = node
        self.failure = None if kind is None else Failure(kind)


class VisitFailed(Exception):
    """A visit cannot be started. The others of its step may end."""


@dataclass(frozen=True)
class VisitOutcome:
    """How a visit ended: `keys` were delivered by its worker, a map's results are to be collected, `values` are the
    planner's own. `next` and `sends` are the choices of the node itself. `how` are fields of the journal step.
    `error_type` is the exception of the node's own code, `failure` why the run failed that the visit waited for;
    `error_kind`, `error_code` and `recoverable` are as in ResultHeader."""

    ok: bool = True
    error: str | None = None
    keys: tuple[str, ...] = ()
    collect: CollectResults | None = None
    values: Mapping[str, Json] = field(default_factory=dict)
    next: str | tuple[str, ...] | None = None
    sends: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)
    error_type: str | None = None
    failure: Failure | None = None
    error_kind: str | None = None
    error_code: str | None = None
    recoverable: bool = False

    @property
    def written(self) -> tuple[str, ...]:
        """The state keys it writes."""
        if not self.values and self.collect is None:
            return self.keys
        collected = (self.collect.key,) if self.collect else ()
        return (*dict.fromkeys((*self.keys, *collected, *self.values)),)


class NextVisit(NamedTuple):
    """One visit to be made. `command` is the number of the command that asks for it, the first of as many `commands`
    with this target; `join` the join that does."""

    target: str
    command: int | None = None
    join: str | None = None
    depth: int = 0
    commands: int = 1


class Engine(Protocol):
    """The interface of bsp.py and dag.py: how steps open, and how writes count."""

    def goes_straight_on(self, context: Context, visit: Visit, outcome: VisitOutcome) -> bool:
        """A branch has ended well. True: only the next step had to open, and it is open."""

    def open_step(
        self, context: Context, ways: Sequence[NextVisit], sources: Sequence[Visit], wide: Mapping[int, list[str]]
    ) -> None:
        """Make the visits that ended visits lead to. `sources` are those of the first ways; `wide` are the targets of
        commands that become visits later, by source."""

    def go_on_at(
        self,
        context: Context,
        point: Checkpoint,
        ways: Sequence[NextVisit],
        sources: Sequence[Visit],
        wide: Mapping[int, list[str]],
    ) -> None:
        """Make the first visits of a fork: those of its checkpoint, and those of commands, as in `open_step`."""

    def open_commands(self, context: Context, visit: Visit, commands: Commands, most: int) -> None:
        """Make visits of the next commands, at most `most`."""

    def fold(self, context: Context, first: Visit, writers: Sequence[Writer]) -> FoldResult:
        """Fold the writes of a step into the state; `writers` in visit order. Raises FoldError and MissingValues."""

    def keep_windows(self, context: Context, folded: FoldResult) -> None:
        """These writes count now: keep the windows that folding later writes needs."""

    def journal_fields(self, context: Context, visit: Visit, folds: Mapping[str, str] | None) -> dict[str, Any]:
        """Fields of the step of a visit that has ended."""

    def next_to_reduce(self, context: Context) -> int | None:
        """A step that has ended and waits until another one's reducers are done, if they are."""

    def owns_output(self, context: Context, visit: Visit) -> bool:
        """Whether the run's output is that of this end node, and of no later one."""

    def forget_tops(self, context: Context) -> None:
        """Drop the tops that all live visits come after."""

    def may_start(self, context: Context, visit: Visit | None = None) -> bool:
        """Whether this visit, or (None) any, may start though others have failed or run."""

    def is_awaited(self, visit: Visit) -> bool:
        """Whether a run that fails lets this visit end first. It does not wait for a person's answer."""


class Kinds(Protocol):
    """The behaviour by kind of visit (kinds.py has the table)."""

    def ended(self, context: Context, visit: Visit, outcome: VisitOutcome) -> None:
        """A visit has ended, well or not: what it is part of learns of that."""

    def start(self, context: Context, visit: Visit) -> None:
        """A visit that is ready has a slot."""


@dataclass
class Context:
    """What every decision is made with. `engine` is the module of the graph's engine: bsp.py or dag.py. `defers`: the
    run is held, and chooses no routes before it goes on."""

    graph: Graph
    run: RunView
    now_ms: int
    known: KnownValues
    max_redeliveries: int
    generation: str
    engine: Engine
    kinds: Kinds
    draft: Draft
    values: Values
    defers: bool = False

    def updates(self, node: Node, state: Mapping[str, Json], value: Json = None) -> dict[str, Json]:
        """The values that a node's `state_updates` write, given the state and its own result, in the types that the
        graph declares. Raises VisitFailed for values that do not fit.
        """
        values: dict[str, Json] = {}
        try:
            rendered = updated_by(node, state, value)
        except TemplateError as error:
            raise VisitFailed(str(error)) from None
        with at_most(MOST_STEPS_OF_SCHEDULER):
            for key, content in rendered.items():
                field = self.graph.state.get(key)
                if field is None:
                    values[key], problem = content, None
                elif isinstance(content, str):
                    values[key], problem = checked_of_text(field, content)
                else:
                    values[key], problem = content, update_problem(field, content)
                if problem is not None:
                    raise VisitFailed(
                        f"state_updates write what the graph's `state:` does not allow: '{key}' {problem}"
                    )
        return values

    def given_up(self, visit: Visit, error: str) -> VisitOutcome:
        """The outcome of a visit that ended without a result: a failure of its node."""
        node = self.graph.nodes[visit.node]
        values: dict[str, Json] = {}
        if isinstance(visit.place, Branch):
            values = {"_error": {"node": visit.node, "message": error}, "last_error": error}
            if isinstance(node, LlmNode):
                state, text = self.values.state(updates_read(node), visit), f"LLM node failed: {error}"
                with suppress(TemplateError):
                    values = updated_by(node, state, text)
        return VisitOutcome(ok=False, error=error, values=values)

    def begin(self, visit: Visit, body: Body) -> Visit:
        """A visit leaves the state `ready`."""
        self._note_opened(visit)
        return self.draft.visits.begin(visit, body)

    def pass_by(self, visit: Visit) -> Visit:
        """A visit starts, and ends at once."""
        self._note_opened(visit)
        return self.draft.visits.begin(visit, visit.body)

    def _note_opened(self, visit: Visit) -> None:
        if visit.attempt == 1 and isinstance(visit.place, Branch):
            opened = Notice("visit_opened", {"seq": visit.seq, "node": visit.node, "kind": visit.kind})
            self.draft.record.notices.append(opened)

    def answered(self, visit: Visit, text: str, by: str, key: str | None = None) -> None:
        """Note the answer to a question of a visit, redacted if the name of the node, of a key that it writes or of the
        question (`key`) marks a secret."""
        record = self.draft.record
        if is_secret := self.has_secret_answer(visit.node, key):
            record.voices = tuple({**voice, "answer": REDACTED} for voice in record.voices)
        record.answered(visit, REDACTED if is_secret else text, by, key)

    def has_secret_answer(self, node_id: str, key: str | None = None) -> bool:
        """Whether the name of a node, of a key that it writes or of its question marks its answers as secret."""
        updates = getattr(self.graph.nodes.get(node_id), "state_updates", None)
        return any(map(is_secret_name, (node_id, key or "", *(updates or ()))))

    def restricted(self, gate: Gate, rules: AnswerRules | None) -> Gate:
        """A gate with the rules for its answers."""
        if rules is None:
            return gate
        author = self.run.spec.author if rules.not_author else None
        secret = self.has_secret_answer(gate.node, gate.key)
        return changed(gate, rules=rules, author=author, secret=secret)

    def child_id(self, seq: int, agent: str, *, in_session: bool = True) -> str:
        """The id of the run of `agent` that the visit `seq` starts."""
        session = SessionName.of_child(self.run.spec, agent) if in_session else None
        return child_id(self.run.id, seq, None if session is None else str(session))

    def lost_past(self) -> str | None:
        """A fork that has no state of its own takes that of its source. Why there is none to take, if it is gone."""
        if self.run.past is None:
            return None
        require(self.known, WantedValues(past=self.run.past))
        return self.known.lost

    def renew_limit(self) -> None:
        """A person lets a run of a graph that is written in Python go on: its limit of super-steps counts from here, as
        that of a call that goes on with it in process."""
        if self.graph.is_state_graph and "recursion_limit" in self.run.spec.config:
            self.draft.limited_from = limited_from(self.draft.steps)

    # Time and ends

    @property
    def times_steps(self) -> bool:
        """Whether a super-step has a time limit of its own; in a `dag` there are none."""
        return self.graph.engine == "bsp" and bool(self.graph.limits.step_timeout)

    def arm_step(self, number: int | None = None) -> None:
        """Restart the time limit of a super-step (None: the last)."""
        if self.times_steps:
            due_ms = self.now_ms + (self.graph.limits.step_timeout or 0)
            self.draft.clock.arm(f"{STEP_TIMER}{self.draft.steps if number is None else number}", due_ms)

    def step_deadline_ms(self, visit: Visit) -> int | None:
        """When the time limit of a visit's super-step passes, at the latest. It has begun when the visit was opened,
        and again if the run was held since, or only waited for people until it passed."""
        if not self.times_steps:
            return None
        limit_ms = self.graph.limits.step_timeout or 0
        first_ms = visit.opened_ms + limit_ms
        has_begun_again = bool(self.draft.clock.idle_ms) or self.draft.clock.is_held or first_ms < self.now_ms
        return self.now_ms + limit_ms if has_begun_again else first_ms

    def deadline_ms(self) -> int | None:
        """The deadline of the run; its clock stops while it is held."""
        timeout = self.graph.settings.timeout
        if timeout is None:
            return None
        clock = self.draft.clock
        since_ms = clock.held_since_ms
        idle_ms = clock.idle_ms + (0 if since_ms is None else self.now_ms - since_ms)
        return clock.started_ms + timeout * 1000 + idle_ms

    def restart_clocks(self) -> None:
        """A hold has ended. Unless another one remains, arm the timers again: those that fired meanwhile had no
        effect."""
        if self.draft.clock.is_held:
            return
        if (deadline_ms := self.deadline_ms()) is not None and self.run.seq:
            self.draft.clock.arm_deadline(deadline_ms)
        if self.run.frontier:
            self.arm_step()

    def deadline_passed(self) -> bool:
        """Whether the run's deadline has passed. A held run keeps what an event brings, and fails when it goes on."""
        deadline_ms = self.deadline_ms()
        return deadline_ms is not None and self.now_ms > deadline_ms and not self.defers

    def timed_out(self, where: str) -> str:
        return f"Graph '{self.graph.name}' timed out after {self.graph.settings.timeout}s {where}"

    def fail(self, message: str, failure: Failure | None = None, *, calls_after: bool = True) -> None:
        """End the run as failed."""
        self.end("failed", error=self.failed_for(message), failure=failure, calls_after=calls_after)

    def failed_for(self, message: str) -> str:
        """The error of a run that fails for this, with Loki's wrapping (spec 2.8)."""
        return f"Graph execution failed for agent '{self.run.spec.agent}': {message}"

    def _given_output(self, output: str | None) -> str | None:
        """The output of a run that is to end, which an earlier event may have made. Raises MissingValues."""
        if output is not None or self.draft.output is not None:
            return self.draft.output if output is None else output
        require(self.known, WantedValues(items=frozenset([OUTPUT_OF_RUN])))
        return self.known.items.get(OUTPUT_OF_RUN)

    def end(
        self,
        status: RunStatus,
        *,
        error: str | None = None,
        failure: Failure | None = None,
        output: str | None = None,
        keeps: bool = False,
        calls_after: bool = True,
    ) -> None:
        """The run is over, unless functions of the agent after its runs are to be called; they were not, if those
        before it decided on its end. A run that is cancelled, or has not begun, calls none."""
        if self.times_steps:
            self.draft.clock.disarm(f"{STEP_TIMER}{self.draft.steps}")
        visits = self.draft.visits
        if (
            calls_after
            and (status == "completed" or status == "failed")
            and self.graph.calls_around_run("after")
            and visits.last_seq
            and not visits.frontier.run_functions
        ):
            output = self._given_output(output) if status == "completed" else None
            call_after_run(self.draft, self.graph.start, Ending(status, error, failure), output)
            return
        end_run(self.draft, status, error=error, failure=failure, output=output, keeps=keeps)


def at_node(node: str | None, message: str) -> str:
    return f"at node '{node}': {message}" if node is not None else message
