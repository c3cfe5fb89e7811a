"""One run: wait for it, follow it, answer its questions, fork it, look back."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sleipnir.client.texts import refuse_text
from sleipnir.errors import GateError, UsageError
from sleipnir.graph.plain import compact_json
from sleipnir.messages import RunStatus
from sleipnir.runs.budgets import BUDGET, read_budget_answer
from sleipnir.runs.failure_text import recursion_limit_text
from sleipnir.runs.interrupts import answer_of, text_of
from sleipnir.runs.run import read_effect_answer
from sleipnir.runs.views import (
    DEFAULT_MODES,
    GateInfo,
    LateResult,
    MissingProcesses,
    RunEvent,
    RunInfo,
    RunTree,
    StepInfo,
    StreamEvent,
    StreamMode,
)
from sleipnir.runs.visits import Failure
from sleipnir.settings import Settings
from sleipnir.store.store import Store

if TYPE_CHECKING:
    from sleipnir.graph.model import Graph, Json
    from sleipnir.runs.journal import StateDifference

_BLOCK_MS = 2_000
_LEVELS, _FEW = 5, 20  # of runs below, and of runs on one level, that are looked at for what they lack


class Run:
    """A handle on one run. Nothing is cached: every call asks Redis."""

    def __init__(self, store: Store, run_id: str, settings: Settings) -> None:
        self._store, self.id, self.settings = store, run_id, settings

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def _repr_html_(self) -> str:
        """The run in a notebook: its picture, and a table of its status and its state. It takes a few round trips, and
        shows what failed if Redis does not answer."""
        from sleipnir.client import run_page

        return run_page.page_of(self._store, self.id)

    def info(self) -> RunInfo:
        """Status, live visits with their reasons, usage. Raises RunNotFound."""
        with self._store.errors():
            return self._store.explained([self._store.runs.info(self.id)])[0]

    def missing(self) -> MissingProcesses:
        """Missing processes that the run, or a descendant, needs. A process that ended without signing off counts as
        present for 30 s. It takes a few round trips."""
        return missing_for(self._store, [self.id])

    def tree(self) -> RunTree:
        """The run and all runs that it and its children have started. Raises RunNotFound."""
        with self._store.errors():
            return self._store.runs.tree(self.id)

    @property
    def status(self) -> RunStatus:
        return self._record().status

    @property
    def output(self) -> str | None:
        """The result text; None before the end, and for a failed run."""
        with self._store.errors():
            return self._store.runs.output(self.id)

    @property
    def error(self) -> str | None:
        return self._record().error

    def result(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The final state, in its JSON form; blocks until the run ends. Raises RunFailure for a run that did not
        complete, which is also of the class of the cause (python_graph.errors.run_failure), and TimeoutError after
        `timeout_s`."""
        from sleipnir.python_graph.errors import run_failure

        info = self.wait(timeout_s)
        if info.status != "completed":
            message = f"run {self.id} {info.status}" + (f": {info.error}" if info.error else "")
            if (text := recursion_limit_text(info.error or "")) is not None:  # its own, or of a run below
                raise run_failure(text, Failure("steps"))
            raise run_failure(message, info.failure)
        return self.state()

    def wait(self, timeout_s: float | None = None) -> RunInfo:
        """Block until the run ends. Raises TimeoutError after `timeout_s`; a run that waits for an answer has not
        ended."""
        return next(iter(wait_all(self._store, [self.id], timeout_s)))

    def events(self, after: str = "0", follow: bool = True) -> Iterator[RunEvent]:
        """The events after event id `after` ("0": all stored ones); with `follow` until the run ends."""
        while True:
            with self._store.errors():
                batch = self._store.runs.events(self.id, after, block_ms=_BLOCK_MS if follow else None)
            for event in batch:
                after = event.id
                yield event
            at_end = not batch or batch[-1].type == "run_ended"
            if not follow or (at_end and self._record().is_final):
                return

    def stream(
        self, modes: Collection[StreamMode] | None = DEFAULT_MODES, cursor: str | None = None
    ) -> Iterator[StreamEvent]:
        """Events and streamed text of models, until the run ends: see views.StreamEvent for the modes.

        `modes` None means all of them. Failed visits, a `gap` and the run's end are always included, so an empty list
        selects only these. `cursor` is the `id` of the last event read; None: from the oldest stored one.

        Data that was trimmed before it was read is reported by an event of type `gap`, whose `lost` is the number of
        pieces (mode `messages`), or None for events, where the number is unknown and may be 0 (mode `events`). It waits
        up to 30 s for a Redis that is away. A slow reader blocks no other process.

        Raises RunNotFound, StoreUnavailable, and UsageError for a mode or a cursor that is none.
        """
        from sleipnir.client import streaming

        return streaming.stream(self._store, self.id, modes, cursor)

    def history(self, *, after: int | None = None, limit: int | None = None) -> list[StepInfo]:
        """The journal: one entry per visit that ended, oldest first. A run may have millions: `limit` entries after the
        step `after` are a page, and the next one begins after its last step. For visits that ended before their
        super-step, `next` is known if the page has the last step of that super-step."""
        with self._store.errors():
            return self._store.runs.history(self.id, after, limit)

    def export(self, *, children: bool = False) -> Iterator[str]:
        """The run as lines of JSON (sleipnir/upkeep/export.py has the format), with `children` also all descendants;
        read lazily. Raises RunNotFound, and StoreUnavailable."""
        from sleipnir.upkeep.export import lines_of

        with self._store.errors():
            yield from lines_of(self._store.records, self.id, children=children)

    def graph(self) -> Graph:
        """The definition of the run, independent of its agent's current folder. Raises BundleError if it is no longer
        in Redis."""
        from sleipnir.client.pinned_graph import pinned_graph

        with self._store.errors():
            return pinned_graph(self._store, self._store.runs.spec(self.id))

    def late_results(self) -> list[LateResult]:
        """Refused results, which arrived when their visit had ended or belonged to another attempt; oldest first."""
        with self._store.errors():
            return self._store.runs.late_results(self.id)

    def state(self) -> dict[str, Any]:
        """The committed state."""
        with self._store.errors():
            return self._store.runs.state(self.id)

    def state_at(self, step: int) -> dict[str, Any]:
        """The state after the journal step `step` (0: as submitted), computed from the journal. Writes of parallel
        visits count from the step on that closes their super-step, so at an earlier one the state is that of the last
        `checkpoint`. Values that were written anew up to `step` are read, but not parsed.

        Raises UsageError for a step that the run does not have, RunNotFound.
        """
        with self._store.errors():
            self._check_steps(step)
            return self._store.runs.fold(self.id, step)

    def state_difference(self, first: int, second: int) -> StateDifference:
        """What distinguishes the state after the step `second` from that after `first`: `changed` by key with the two
        values, `added` and `removed` with the only one. Raises as `state_at`."""
        with self._store.errors():
            self._check_steps(first, second)
            return self._store.runs.difference(self.id, first, second)

    def checkpoint(self, step: int) -> int:
        """The last checkpoint up to a step: `step` itself, or that before parallel visits which had not all ended.
        Raises as `state_at`."""
        with self._store.errors():
            self._check_steps(step)
            return self._store.runs.checkpoint(self.id, step)

    def _check_steps(self, *steps: int) -> None:
        last = self._store.runs.last_step(self.id)
        for step in steps:
            if isinstance(step, bool) or not isinstance(step, int):
                raise UsageError(f"a step is a whole number, not {step!r:.60}")
            if not 0 <= step <= last:
                has = f"the steps 0 to {last:,}" if last else "only step 0, its submission"
                raise UsageError(f"run {self.id!r} has no step {step:,}; it has {has}: `sleipnir history {self.id}`")

    def fork(
        self,
        *,
        at: int | None = None,
        before: str | None = None,
        state: Mapping[str, Any] | None = None,
        agent: str | Path | None = None,
    ) -> Run:
        """Submit a run that goes on from a checkpoint of this one, which stays as it is; it may be running or over.

        It goes on after the step `at`, or after the last checkpoint that leads to the node `before`; default: the last
        checkpoint that leads anywhere. Nothing before that runs again, and all later visits are new. `state` has values
        that replace those of the past; `agent` (a name or a folder) is run with its current definition; None: with the
        definition of this run. Variables, directories and limits are those of this run; its cost begins at zero.

        Only runs of the engine `bsp` that are in no session. Raises UsageError if there is no such checkpoint, if it
        leads to commands, if the definition lacks the node to go on at, or for values of the wrong type; RunNotFound,
        also if the state at an earlier step needs the journal of a source that has expired; and like Client.submit for
        `agent`.
        """
        from sleipnir.client import forks
        from sleipnir.client.preparation import Preparation

        preparation = Preparation(self.settings, self._store)
        given = state or {}
        run_id = forks.fork(self._store, preparation, self.id, at=at, before=before, state=given, agent=agent)
        return Run(self._store, run_id, self.settings)

    def gates(self) -> list[GateInfo]:
        """The open questions, in the order in which they were asked, including those of child runs."""
        with self._store.errors():
            return self._store.runs.gates_below(self.id)

    def answer(self, value: Json, gate: GateInfo | int | str | None = None) -> None:
        """Answer an open question of this run or of a descendant; `gate` (the Gate, its visit's number, the key of an
        interrupt, its node, or the path to it, `review/approve`) may be omitted if only one is open. With a Gate no
        other question can be answered by mistake, even if the answer arrives late.

        The answer to an interrupt is any JSON, that to another question a text. The same answer to an interrupt counts
        once, however often it is given. Raises GateError when there is no such question, several fit, or it was
        answered before. Raises UsageError if the answer does not match the schema of an interrupt, is no text for
        another question, or is not `run again`, `fail` or a JSON object for the question about a lost `effect: once`,
        or not `yes`, `no` or a number for a budget question.
        """
        with self._store.errors():
            self._send_answers([(gate, value)])

    def answer_all(self, values: Mapping[str, Json]) -> None:
        """Answer several open questions, by their keys, nodes or visit numbers. Raises as `answer` does, and then has
        sent none if a key is unknown or a value is refused."""
        with self._store.errors():
            self._send_answers(list(values.items()))

    def _send_answers(self, answers: Sequence[tuple[GateInfo | int | str | None, Json]]) -> None:
        """Check all answers, then send them."""
        are_known = all(isinstance(gate, GateInfo) for gate, _ in answers)
        still_open = [] if are_known else self._store.runs.gates_below(self.id)
        meant = []
        for gate, value in answers:
            found = gate if isinstance(gate, GateInfo) else self._gate(gate, still_open, value)
            if isinstance(found, GateInfo):
                meant.append((found, value, self._text(found, value)))
        for found, value, text in meant:
            try:
                self._store.runs.answer(found.run, found.seq, text, found.attempt)
            except GateError:
                if not self._has_answer(found.run, found.seq, value):
                    raise

    def _text(self, gate: GateInfo, value: Json) -> str:
        """An answer as it is sent. Raises UsageError for one that the run could not use."""
        try:
            text = text_of(gate, value)
        except ValueError as error:
            raise UsageError(f"question {gate.key or gate.seq} of run {gate.run!r}: {error}") from None
        refuse_text("the answer", text, self.settings.max_prompt_bytes)
        _refuse_unreadable(gate, text)
        return text

    def _has_answer(self, run: str, name: int | str, value: Json) -> bool:
        """Whether the last answer to an interrupt, by the number of its visit or its key, is this value. Raises
        GateError if it is another one."""
        for step in reversed(self._store.runs.history(run)):
            if step.kind == "answered" and step.key is not None and name in (step.key, step.gate):
                if step.answer is None or answer_of(step.answer) != value:
                    raise GateError(f"question {step.key!r} of run {run!r} was already answered with {step.answer}")
                return True
        return False

    def cancel(self) -> None:
        """Cancel the run; running scripts and model calls stop within one heartbeat. Raises UsageError if the run has
        already ended."""
        with self._store.errors():
            self._store.runs.cancel(self.id)

    def retry(self, *, fresh_children: bool = False) -> None:
        """Continue a failed run from the failed visit, with the current state; its deadline restarts. If that visit
        waited for a child run, the child also continues; with `fresh_children` a new one is started.

        Raises UsageError when the run did not fail.
        """
        with self._store.errors():
            self._store.runs.retry(self.id, fresh_children=fresh_children)

    def pause(self, by: str | None = None, reason: str | None = None) -> None:
        """Pause the run: active visits finish and are committed, answers are accepted, and no visit starts. Its timeout
        is suspended. `by` is shown to others (None: the client's actor). Raises UsageError if the run has ended."""
        with self._store.errors():
            self._store.runs.pause(self.id, by, reason)

    def resume(self) -> None:
        """End the holds of persons on the run. It continues unless its parent, its budget or the deployment also holds
        it. Raises UsageError if it has ended."""
        with self._store.errors():
            self._store.runs.resume(self.id)

    def _record(self) -> RunInfo:
        """Like `info`, in one round trip: without leases and positions in queues."""
        with self._store.errors():
            return self._store.runs.info(self.id)

    def _gate(self, gate: int | str | None, still_open: list[GateInfo], value: Json) -> GateInfo | None:
        """The open question that `gate` refers to. None: it is an interrupt that has this answer already. Raises
        GateError."""
        if isinstance(gate, int) or (isinstance(gate, str) and gate.isdigit()):
            found = [each for each in still_open if each.seq == int(gate)]
            own = [each for each in found if each.run == self.id]
            if own or len(found) == 1:
                return (own or found)[0]
            if self._has_answer(self.id, int(gate), value):
                return None
            self._store.runs.answer(self.id, int(gate), value if isinstance(value, str) else compact_json(value))
            return None
        fitting = [found for found in still_open if gate in (None, found.key, found.node, found.place)]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting and gate is not None and self._has_answer(self.id, gate, value):
            return None
        raise GateError(self._no_single_gate(None if gate is None else str(gate), fitting or still_open))

    def _no_single_gate(self, gate: str | None, still_open: list[GateInfo]) -> str:
        which = f" of node {gate!r}" if gate else ""
        if still_open:
            listed = ", ".join(f"{found.seq} ({found.key or found.place})" for found in still_open)
            names = [(None, found.key, found.node, found.place) for found in still_open]
            several = len(still_open) > 1 and all(gate in each for each in names)
            fitting = f"several open questions{which}" if several else f"no open question{which}"
            name_by = "its number" if several and gate else "its number, its key or its node"
            return f"run {self.id!r} has {fitting}; open: {listed}. Name one by {name_by}"
        answered = [step for step in self.history() if step.kind in ("approval", "input") and gate in (None, step.node)]
        if answered:
            return f"the question{which} of run {self.id!r} was already answered; `sleipnir history {self.id}` shows it"
        return f"run {self.id!r} ({self.status}) has no open question{which}"


def _refuse_unreadable(gate: GateInfo, text: str) -> None:
    """Raises UsageError for an answer that the run could not use and would ask for again."""
    try:
        if gate.kind == "effect":
            read_effect_answer(text)
        elif gate.kind == BUDGET:
            read_budget_answer(text)
    except ValueError as error:
        raise UsageError(f"question {gate.seq} ({gate.node}) of run {gate.run!r}: {error}") from None


def missing_for(store: Store, run_ids: Sequence[str]) -> MissingProcesses:
    """See Run.missing, for several runs and the runs that they wait for. A run that no longer exists is left out."""
    top, level, queues = set(run_ids), list(run_ids), dict[str, str]()
    with store.errors():
        for _ in range(_LEVELS):
            found = [info for info in store.runs.find(level) if info is not None and not info.is_final]
            level = []
            for info in store.explained(found):
                for visit in info.visits:
                    if visit.reason.code == "queued" and visit.reason.consumers == 0:
                        place = visit.node if info.id in top else f"{visit.node} of run {info.id}"
                        queues.setdefault(str(visit.reason.queue), place)
                    if visit.reason.run is not None and len(level) < _FEW:
                        level.append(visit.reason.run)
            if not level:
                break
        return MissingProcesses(not store.fleet.has_scheduler(), queues)


def wait_all(store: Store, run_ids: Iterable[str], timeout_s: float | None = None) -> Iterator[RunInfo]:
    """Yield each run's info when it ends; thousands of runs need one blocking read.

    Raises RunNotFound immediately for an unknown run, TimeoutError after `timeout_s`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    left_over = dict.fromkeys(run_ids)
    with store.errors():
        position = store.runs.ended_position()  # before the look, so that no end falls between the two
    look_at = list(left_over)
    while True:
        with store.errors():
            infos = store.runs.ended_among(look_at)
        for info in infos:
            left_over.pop(info.id, None)
            yield info
        if not left_over:
            return
        left_s = _BLOCK_MS / 1000 if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"not over after {timeout_s:g} s: {', '.join(left_over)}")
        with store.errors():
            ended = store.runs.ended_since(position, max(1, min(_BLOCK_MS, int(left_s * 1000))))
        # Without new entries check all runs: the streams of ended runs are capped.
        look_at = [run_id for run_id in ended if run_id in left_over] if ended else list(left_over)
