"""One run: wait for it, follow it, answer its questions, fork and rewind it, look back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sleipnir.client import replicas
from sleipnir.client.answering import Answering
from sleipnir.client.gate_person import role_of
from sleipnir.client.missing_processes import missing_among
from sleipnir.errors import BundleError, RunNotFound, UsageError
from sleipnir.messages import RunStatus
from sleipnir.runs.handling import VoiceCount
from sleipnir.runs.views import (
    DEFAULT_MODES,
    DefinitionText,
    GateInfo,
    LateResult,
    Lineage,
    MissingProcesses,
    RunEvent,
    RunInfo,
    RunTree,
    StepInfo,
    StreamEvent,
    StreamMode,
    fatal_errors,
)
from sleipnir.settings import Settings
from sleipnir.store import live
from sleipnir.store.store import Store
from sleipnir.store.streams import before

if TYPE_CHECKING:
    from sleipnir.client.options import ForkChanges
    from sleipnir.graph.model import Graph, Json
    from sleipnir.python_graph.snapshots import StateSnapshot, UpdateMode
    from sleipnir.runs.execution_trace import Trace
    from sleipnir.runs.state_differences import StateDifference

MOST_TIMEOUT_S = 366 * 86_400
"""The longest time after which a pause stops what runs."""

_BLOCK_MS = 2_000


class Run(Answering):
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

    def active(self) -> list[RunInfo]:
        """The run, and the child runs that it waits for, at any depth: of each the `holds` say where it has stopped.
        Raises RunNotFound."""
        with self._store.errors():
            return self._store.runs.active(self.id)

    def lineage(self, *, limit: int = 20) -> Lineage:
        """The runs that it was forked from, from the first one on, and the forks of all of them: of each run the first
        `limit`, at most 1,000 in all, and this one in any case. Raises RunNotFound."""
        with self._store.errors():
            return self._store.runs.lineage(self.id, limit)

    def forks(self, *, first: int = 0, limit: int = 100) -> Lineage:
        """The run with `limit` of its forks from the number `first` on, the first one first; some may have expired.
        Raises RunNotFound."""
        with self._store.errors():
            return self._store.runs.forks(self.id, first, limit)

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
            raise run_failure(message, info.failure)
        return self.state()

    def wait(self, timeout_s: float | None = None) -> RunInfo:
        """Block until the run ends. Raises TimeoutError after `timeout_s`; a run that waits for an answer has not
        ended."""
        return next(iter(wait_all(self._store, [self.id], timeout_s)))

    def events(self, after: str = "0", follow: bool = True) -> Iterator[RunEvent]:
        """The events after event id `after` ("0": all stored ones), which may be the id of an event of `stream`; with
        `follow` until the run ends. About the newest 1,000 are stored: where earlier ones are missing there is an event
        `gap`, and `stream` has the ends of visits from the journal."""
        is_first = True
        if "/" in after:
            from sleipnir.client.streaming import Position

            place = Position.parse(after)
            after = place.event if place.seen is None else before(place.event)
        while True:
            with self._store.errors():
                batch = self._store.runs.events(self.id, after, block_ms=_BLOCK_MS if follow else None)
                if is_first and len(batch) >= live.MOST_READ and self._misses_events(after, batch[0]):
                    yield RunEvent(after, batch[0].at_ms, "gap", {"lost": None})
            is_first = False
            for event in batch:
                after = event.id
                yield event
            at_end = not batch or batch[-1].type == "run_ended"
            if not follow or (at_end and self._record().is_final):
                return

    def _misses_events(self, after: str, first: RunEvent) -> bool:
        """Whether events between this id and the first that is stored were dropped."""
        if after in ("0", "0-0"):
            return first.type not in ("run_started", "slot_asked")
        return after not in (first.id, before(first.id)) and not self._store.live.has_event_up_to(self.id, after)

    def stream(
        self,
        modes: Collection[StreamMode] | None = DEFAULT_MODES,
        cursor: str | None = None,
        *,
        terminal_only: bool = False,
        lifecycle: bool = True,
        final_messages: bool = False,
        subgraphs: bool = False,
        event_scope: str | None = None,
    ) -> Iterator[StreamEvent]:
        """Events and streamed text of models, until the run ends: see views.StreamEvent for the modes.

        `modes` None means all of them. Failed visits, a `gap` and the run's end are always included, so an empty list
        selects only these. `cursor` is the `id` of the last event read; None: from the oldest stored one.

        With `terminal_only`, only the texts of nodes that lead nowhere, or to end nodes alone, are passed. Without
        `lifecycle`, of the modes `updates`, `tools` and `events` only what is always included is. With
        `final_messages`, the last piece of each text is followed by an event of type `message` with the whole text,
        whose id it has. All three change only what this caller sees.

        Data that was trimmed before it was read is reported by an event of type `gap`, whose `lost` is the number of
        pieces (mode `messages`), or None for events, where the number is unknown and may be 0 (mode `events`). It waits
        up to 30 s for a Redis that is away. A slow reader blocks no other process.

        With `subgraphs`, the streams of all runs below are part of it, and each event is a views.TreeEvent, which has
        its `run` and the `path` of nodes to that; it ends when all of them have ended. A cursor is then one of such a
        stream. At most 64 runs are read at once; others are read when one of these has ended. Of more than 1,000 that
        have not completed, the others are not read: each is a `gap`, and so is a run that has expired. With
        `event_scope`, the runs below are only those with this scope, or with one below it (`desk` has `desk/leaf`).

        Raises RunNotFound, StoreUnavailable, and UsageError for a mode or a cursor that is none.
        """
        from sleipnir.client import streaming

        visible = streaming.VisibleEvents(terminal_only, lifecycle, final_messages)
        if subgraphs:
            from sleipnir.client import tree_streaming

            return tree_streaming.stream(self._store, self.id, modes, cursor, visible, event_scope)
        if event_scope is not None:
            raise UsageError("`event_scope` selects runs below this one, so it needs `subgraphs`")
        return streaming.stream(self._store, self.id, modes, cursor, visible)

    def history(self, *, after: int | None = None, limit: int | None = None) -> list[StepInfo]:
        """The journal: one entry per visit that ended, oldest first. A run may have millions: `limit` entries after the
        step `after` are a page, and the next one begins after its last step. For visits that ended before their
        super-step, `next` is known if the page has the last step of that super-step."""
        with self._store.errors():
            return self._store.runs.history(self.id, after, limit)

    def past_steps(self) -> list[StepInfo]:
        """The steps of its sources that a fork goes on from, the oldest first, as far as the sources have not expired;
        none of a run that is no fork."""
        with self._store.errors():
            return self._store.runs.past_steps(self.id)

    def export(self, *, children: bool = False) -> Iterator[str]:
        """The run as lines of JSON (sleipnir/upkeep/export.py has the format), with `children` also all descendants;
        read lazily. Raises RunNotFound, and StoreUnavailable."""
        from sleipnir.upkeep.export import lines_of

        with self._store.errors():
            yield from lines_of(self._store.records, self.id, children=children)

    def trace(self, *, depth: int = 16, limit: int = 10_000, after: int | None = None) -> Trace:
        """What its visits did, what opened each of them, and the same of `depth` levels of runs below it: one step for
        each visit, at most `limit` in all (`is_cut` then). With `after` only visits that ended after this step of its
        journal, and live ones: what opened the first of them is then not known. Raises RunNotFound."""
        from sleipnir.client.traces import StoredRuns
        from sleipnir.runs.execution_trace import trace_of

        with self._store.errors():
            source = StoredRuns(self._store, None if after is None else {self.id: after})
            return trace_of(source, self.id, depth=depth, limit=limit)

    def trace_lines(self, *, depth: int = 3, limit: int = 100) -> Iterator[str]:
        """The trace as lines that draw a tree, as `sleipnir trace` prints it: of each run `limit` steps. Read lazily.
        Raises RunNotFound."""
        from sleipnir.client.traces import StoredRuns
        from sleipnir.runs.trace_tree import lines_of

        with self._store.errors():
            yield from lines_of(StoredRuns(self._store), self.id, depth=depth, limit=limit)

    def graph(self) -> Graph:
        """The definition of the run, independent of its agent's current folder. Raises BundleError if it is no longer
        in Redis."""
        from sleipnir.client.pinned_graph import pinned_graph

        with self._store.errors():
            return pinned_graph(self._store, self._store.runs.spec(self.id))

    def source(self) -> DefinitionText:
        """The text of the definition of the run, independent of its agent's current folder. Raises BundleError if it is
        no longer in Redis."""
        from sleipnir.agents.bundle import definition_in

        with self._store.errors():
            spec = self._store.runs.spec(self.id)
            packed = self._store.bundles.get(spec.bundle)
            if packed is None:
                raise BundleError(f"bundle {spec.bundle[:12]} of agent {spec.agent!r} is not in Redis any more")
            return DefinitionText(*definition_in(packed, spec.agent))

    def late_results(self) -> list[LateResult]:
        """Refused results, which arrived when their visit had ended or belonged to another attempt; oldest first."""
        with self._store.errors():
            return self._store.runs.late_results(self.id)

    def execution_errors(self) -> list[dict[str, Any]]:
        """The failures that a run with `errors: {collect: true}` has recorded: those that it recovered from or handled,
        and the one that failed it, last."""
        with self._store.errors():
            return [*self._store.runs.errors_of(self.id), *fatal_errors(self.info())]

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

    def get_state(self, at: int | None = None) -> StateSnapshot:
        """The last checkpoint of the run, or the one that is its step `at`, as LangGraph's snapshot; see
        Client.get_state for its form and errors."""
        from sleipnir.client.state_snapshots import RunSnapshots

        with self._store.errors():
            return RunSnapshots(self._store, self.id).one(at)

    def get_state_history(
        self, *, filter: Mapping[str, Any] | None = None, before: int | None = None, limit: int | None = None
    ) -> Iterator[StateSnapshot]:
        """The checkpoints of the run, newest first: those before the step `before` whose metadata has the values of
        `filter`, at most `limit`. The `parent_config` of the first one names that of its source, or of the turn
        before. Raises as `get_state`."""
        from sleipnir.client.state_snapshots import RunSnapshots, chosen

        with self._store.errors():
            yield from chosen(RunSnapshots(self._store, self.id).newest_first(before), filter, limit)

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
        model: str | None = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        patches: Mapping[str, Any] | None = None,
        thread: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Run:
        """Submit a run that goes on from a checkpoint of this one, which stays as it is; it may be running or over.

        It goes on after the step `at`, or after the last checkpoint that leads to the node `before`; default: the last
        checkpoint that leads anywhere. Nothing before that runs again, and all later visits are new. `state` has values
        that replace those of the past; `agent` (a name or a folder) is run with its current definition; None: with the
        definition of this run. With a `model`, all its llm nodes and those of the runs that it starts use that one.
        `overrides`, `patches` and `tags` are as in RunOptions, on top of those of this run (overrides and patches of
        another definition: alone). It is in the namespace of this run.
        Variables, directories and limits are those of this run; its cost begins at zero. It is in no thread; with
        `thread` it is the next turn of that one of its agent, which may be new, and begins with the state of the
        checkpoint all the same.

        Only runs that are in no session. Raises UsageError if there is no such checkpoint, if it leads to commands that
        an earlier release has not kept, if the definition lacks the node to go on at, or for values of the wrong type;
        an update, for a run of the engine `dag`; RunNotFound,
        also if the state at an earlier step needs the journal of a source that has expired; ThreadBusy; and like
        Client.submit for `agent`.
        """
        from sleipnir.client.options import ForkChanges

        changes = ForkChanges(state or {}, agent, model, overrides, patches, tags=tags)
        return self._fork(at, before, changes, thread)

    def rewind(
        self,
        *,
        at: int | None = None,
        before: str | None = None,
        state: Mapping[str, Any] | None = None,
        agent: str | Path | None = None,
        model: str | None = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        patches: Mapping[str, Any] | None = None,
        thread: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Run:
        """Go on again after the step `at`, or before the node `before`: submit a fork, and in the same step request the
        cancellation of this run, if it is not over; its reason names the fork. Parameters and errors are those of
        `fork`; also UsageError for a run that another one waits for."""
        from sleipnir.client.options import ForkChanges

        changes = ForkChanges(state or {}, agent, model, overrides, patches, tags=tags)
        return self._fork(at, before, changes, thread, rewinds=True)

    def update_state(
        self,
        values: Mapping[str, Any],
        as_node: str | None = None,
        *,
        mode: UpdateMode = "reduce",
        at: int | None = None,
        thread: str | None = None,
    ) -> Run:
        """Submit a fork that begins as if the node `as_node` had written `values`: they go through the reducers, and
        the edges of the node lead on. The node is not called; the routers of a graph that is written in Python are,
        by a worker. Then the fork stops, as at a breakpoint, so that nothing else runs before `resume`; one that has
        nothing left to do is over. This run stays as it is, and goes on if it was to.

        Default: as the node that wrote last. END as the node ends what would come next. With the mode `set` values
        replace those of keys with reducers. The fork begins after the last checkpoint, or after the step `at`; with
        `thread` it is the next turn of that thread of its agent.

        Raises UsageError, and has stored nothing, for keys and types that do not fit, an unknown node, several nodes
        that wrote last, and visits whose super-step is open; and as `fork` does.
        """
        from sleipnir.client.options import ForkChanges
        from sleipnir.client.updates import WantedUpdate

        update = WantedUpdate(values, as_node, mode, self.settings.max_prompt_bytes)
        return self._fork(at, None, ForkChanges(update=update), thread)

    def _fork(
        self, at: int | None, before: str | None, changes: ForkChanges, thread: str | None, *, rewinds: bool = False
    ) -> Run:
        from sleipnir.client import forks
        from sleipnir.client.preparation import Preparation

        preparation = Preparation(self.settings, self._store)
        run_id = forks.fork(
            self._store, preparation, self.id, at=at, before=before, changes=changes, thread=thread, rewinds=rewinds
        )
        return Run(self._store, run_id, self.settings)

    def gates(self) -> list[GateInfo]:
        """The open questions, in the order in which they were asked, including those of child runs."""
        with self._store.errors():
            return self._store.runs.gates_below(self.id)

    def _newest_steps(self, run: str) -> Iterator[StepInfo]:
        with self._store.errors():
            yield from self._store.runs.newest_steps(run)

    def _question(self, seq: int, text_of: Callable[[GateInfo], str]) -> GateInfo | None:
        with self._store.errors():
            return self._store.runs.question(self.id, seq, text_of)

    def _give(self, gate: GateInfo, value: Json, text: str, comment: str | None) -> VoiceCount | None:
        with self._store.errors():
            role = role_of(self._store, gate)
            voices = self._store.runs.answer(gate.run, gate.seq, text, gate.attempt, comment=comment, role=role)
        replicas.confirm(self._store, self.settings, gate.run, "answered")
        return voices

    def _last_event(self) -> str:
        with self._store.errors():
            return self._store.runs.last_event(self.id)

    def _event_after(self, event: str, within_s: float) -> str:
        with self._store.errors():
            events = self._store.runs.events(self.id, event, block_ms=max(1, int(min(_BLOCK_MS, within_s * 1000))))
        return events[-1].id if events else event

    def answered(self, seq: int, *, among: int = 1_000) -> StepInfo | None:
        """The step of the journal with the last answer of a person to the question of the visit `seq`, among the newest
        `among`; None: there is none. An answer is there once a scheduler has taken it, within milliseconds."""
        with self._store.errors():
            for step in islice(self._store.runs.newest_steps(self.id), among):
                if step.answers(seq):
                    return step
        return None

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

    def skip(
        self,
        node: str | int,
        value: Any = None,
        *,
        to: str | Sequence[str] = (),
        by: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Finish a visit that waits, is on a worker, or has failed the run, as if its node had returned `value`, and
        return its number. `node` is the node, or the number of the visit if the node has several.

        A script or a function needs an object of state keys, an llm node a text, a map the list of its results
        (docs/operations.md has all). `to` is the node to go on at, or several; by default the edges say. `by` is shown
        to others (None: the client's actor), with the `reason`. The child run is cancelled, and a late result
        of its worker is refused. A failed run goes on, as after `retry`: its other failed visits run again. The same
        skip counts once, however often it is requested.

        Raises UsageError, and has changed nothing, if there is no such visit, if the value does not fit, if the visit
        was skipped with another value, or if the run is over; RunNotFound.
        """
        from sleipnir.client import skipping

        targets = (to,) if isinstance(to, str) else tuple(to)
        most_bytes = self.settings.max_output_bytes
        with self._store.errors():
            return skipping.skip(
                self._store, self.id, node, value, targets, by=by, reason=reason, most_bytes=most_bytes
            )

    def pause(self, by: str | None = None, reason: str | None = None, *, timeout: float | None = None) -> None:
        """Pause the run: active visits finish and are committed, answers are accepted, and no visit starts. Its timeout
        is suspended. `by` is shown to others (None: the client's actor).

        With a `timeout`, visits that have not finished after so many seconds are stopped, also those of runs below (0:
        at once). When the run is resumed, they run again with the same input; that is no failure. A stopped node with
        `effect: once` asks what became of its effect. A second request counts only if its deadline is earlier.

        Raises UsageError if the run has ended, or for a timeout that is no number of seconds.
        """
        timeout_ms = pause_ms(timeout)
        with self._store.errors():
            self._store.runs.pause(self.id, by, reason, timeout_ms=timeout_ms)

    def resume(self) -> None:
        """End the holds of persons on the run, and let it, and child runs that it waits for, go past their breakpoints.
        It continues unless its parent, its budget or the deployment also holds it. Raises UsageError if it has ended.
        """
        with self._store.errors():
            own, *below = self._store.runs.active(self.id)
            # Not the breakpoints that it comes to before this is read: nobody has seen them.
            self._store.runs.resume(self.id, None if own.unreadable is not None else own.stopped_ms)
            for info in below:
                if info.stopped_ms:
                    with contextlib.suppress(RunNotFound, UsageError):  # it is over
                        self._store.runs.resume(info.id, info.stopped_ms)

    def _record(self) -> RunInfo:
        """Like `info`, in one round trip: without leases and positions in queues."""
        with self._store.errors():
            return self._store.runs.info(self.id)


def pause_ms(timeout: float | None) -> int | None:
    """The deadline of a pause in milliseconds. Raises UsageError."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= MOST_TIMEOUT_S:
        raise UsageError(f"the timeout of a pause is a number of seconds, 0 to {MOST_TIMEOUT_S:,}, not {timeout!r:.60}")
    return round(timeout * 1000)


def missing_for(store: Store, run_ids: Sequence[str]) -> MissingProcesses:
    """See Run.missing, for several runs and the runs that they wait for. A run that no longer exists is left out."""

    def look(level: Sequence[str]) -> list[RunInfo]:
        return store.explained([info for info in store.runs.find(level) if info is not None and not info.is_final])

    with store.errors():
        return missing_among(run_ids, look, store.fleet.has_scheduler)


def wait_all(store: Store, run_ids: Iterable[str], timeout_s: float | None = None) -> Iterator[RunInfo]:
    """Yield each run's info when it ends; thousands of runs need one blocking read.

    Raises RunNotFound immediately for an unknown run, TimeoutError after `timeout_s`.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    left_over = dict.fromkeys(run_ids)
    if not left_over:
        return
    with store.errors():
        position = store.runs.ended_position(left_over)  # before the look, so that no end falls between the two
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
