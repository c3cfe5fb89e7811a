"""Delivers effects of commits on other runs (start and retry child runs; notify children, parents and batches; ask for
and free slots of agents), on shared values (write them back), of batches (start runs for rows) and of schedules (start
the runs and batches of fires). Without it no child would start.

An effect stays in its partition's stream until it is delivered, so a crash loses none. A repeated delivery, however
late, changes nothing: a child's id is derived from its parent's visit, a child is retried once per visit, and a run
records the last effect of each kind and partition (sleipnir/store/lua/README.md). An effect that this release does not
understand is skipped and stays for a newer release. An effect that is damaged, or that Redis always refuses, becomes a
dead letter: other effects continue, and a person decides (`sleipnir dead-letters`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from sleipnir.batches.records import place_of, row_of, row_run_id, source_of
from sleipnir.client import forks
from sleipnir.errors import RecordUnreadable, RunNotFound, SleipnirError, StoreUnavailable
from sleipnir.graph.model import Graph
from sleipnir.graph.shared_keys import with_shared
from sleipnir.runs.initial_state import state_at_start
from sleipnir.runs.run import RunSpec
from sleipnir.runs.sessions import SessionName
from sleipnir.runs.transitions import (
    AskSlot,
    AwaitSignal,
    CancelBatch,
    DeclineSignal,
    ForkRow,
    FreeSlot,
    LeaveSignal,
    PassSignal,
    RetryChild,
    RetryRow,
    ShareValues,
    SpreadSignals,
    StartBatch,
    StartChild,
    StartRow,
    StartScheduled,
    TellBatch,
    TellChild,
    TellParent,
    TellRoot,
    TellRun,
)
from sleipnir.store.connect import is_lasting
from sleipnir.store.effects import Delivery, Effects, EndedRun, OwedEffect, RowBeginning
from sleipnir.store.schedules import ScheduledSpec
from sleipnir.store.scripts import RedisCommand
from sleipnir_scheduler.child_run import child_run
from sleipnir_scheduler.counters.loads import PartitionLoads
from sleipnir_scheduler.graphs import Graphs
from sleipnir_scheduler.services.redeliveries import Redeliveries

AT_ONCE = 100  # effects that share their round trips; whether they are still owed is checked once for all of them

FORKS_AT_ONCE = 20  # rows of a partition that become forks in a round: each reads the journal of its source

AGAIN_S = 60.0  # between checks of skipped effects
MOST_REASON = 2_000  # stored characters of a reason
MOST_LOGGED = 10_000

_FIRST = "0-0"


@dataclass(frozen=True)
class Found:
    """What was read for some effects: specs and ends by run, the row of each parent (RunView.batch), where the rows of
    batches of forks begin, the shared values that the rows of a batch begin with, what runs write back, and what the
    runs of schedules are submitted with."""

    specs: Mapping[str, RunSpec]
    ends: Mapping[str, EndedRun]
    batches: Mapping[str, str]
    begins: Mapping[str, RowBeginning]
    shared: Mapping[str, Mapping[str, Any]]
    written: Mapping[tuple[int, str], Mapping[str, str]]
    fires: Mapping[str, ScheduledSpec]


class Deliveries:
    """`max_state_bytes` bounds a child's first state, and the state that it returns. `redeliveries`: each partition may
    lose what it has received."""

    def __init__(
        self,
        store: Effects,
        graphs: Graphs,
        *,
        max_state_bytes: int,
        redeliveries: Redeliveries | None = None,
        loads: PartitionLoads | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._graphs, self._max_state_bytes = store, graphs, max_state_bytes
        self._redeliveries, self._loads, self._clock = redeliveries, loads or PartitionLoads(), clock
        self._owned: Collection[int] = ()
        self._passed: dict[int, str] = {}
        """By partition the last skipped effect; earlier ones are skipped too, or done."""
        self._again_s = 0.0
        self._logged: set[tuple[int, str]] = set()
        self._log = structlog.get_logger().bind(service="effects")

    def forget(self) -> None:
        """Begin at the first effect of each partition again, because the epochs have changed."""
        self._passed.clear()
        if self._redeliveries is not None:
            self._redeliveries.forget()

    def run_once(self, partitions: Collection[int], block_ms: int | None = None) -> int:
        """Deliver effects; waits up to `block_ms` (None: not) for the first. Returns how many."""
        if self._clock() >= self._again_s:
            self._passed, self._again_s = {}, self._clock() + AGAIN_S
        self._passed = {partition: self._passed.get(partition, _FIRST) for partition in partitions}
        self._owned = partitions
        try:
            if self._redeliveries is not None:
                self._redeliveries.look(partitions, self._deliver_again)
            owed = _without_many_forks(self._store.read(self._passed, limit=AT_ONCE, block_ms=block_ms))
            for at in range(0, len(owed), AT_ONCE):
                self._deliver(owed[at : at + AT_ONCE])
        except BaseException:
            self._passed.clear()  # a Redis that has lost effects may give their ids to new ones
            raise
        known = [each.partition for each in owed if each.effect is not None]
        self._loads.count(known)
        return len(known)

    def _deliver(self, owed: Sequence[OwedEffect]) -> None:
        """Deliver some effects in order, so that a run receives another run's messages in order."""
        passed: list[OwedEffect] = []
        is_settled = self._deliver_known(
            [owed_effect for owed_effect in owed if owed_effect.effect is not None], passed
        )
        for owed_effect in owed:
            if owed_effect.damage is not None:
                self._bury(owed_effect, owed_effect.damage, passed)
            elif owed_effect.effect is None:
                self._pass(owed_effect, "it was written by a newer release", passed)
        if is_settled:  # else effects after a dead letter to the same target are still undelivered and read again first
            for owed_effect in sorted(passed, key=owed.index):
                self._passed[owed_effect.partition] = owed_effect.id

    def _deliver_known(self, known: Sequence[OwedEffect], passed: list[OwedEffect]) -> bool:
        """Deliver effects that this release knows. If one always fails, each is delivered by itself, and that one
        becomes a dead letter. False: some were not delivered, because an earlier one to the same target became a dead
        letter."""
        try:
            deliveries = self._deliveries(known)
            refused = self._store.deliver(deliveries, self._max_state_bytes, self._generations_of(deliveries))
        except Exception as error:
            if not is_lasting(error):
                raise
            if len(known) > 1:
                return all([self._deliver_known([each], passed) for each in known])
            if isinstance(error, RecordUnreadable) and error.newer:
                self._pass(known[0], str(error), passed)
                return True
            if not isinstance(error, SleipnirError):
                self._log.exception("an effect cannot be delivered", run=known[0].run)
            self._bury(known[0], _why(error), passed)
            return True
        buried = [self._bury(each, why, passed) for each, why in refused]
        return len(known) == 1 or not any(buried)

    def _generations_of(self, deliveries: Sequence[Delivery]) -> Mapping[int, str]:
        """The generations of the partitions that get something; the targets of effects have all earlier ones then."""
        if self._redeliveries is None:
            return {}
        targets = {self._store.target(each) for each in deliveries if each.owed.effect is not None} - {None}
        return self._redeliveries.before(
            [target for target in targets if target is not None], self._owned, self._deliver_again
        )

    def _deliver_again(self, owed: Sequence[OwedEffect]) -> int:
        """Deliver effects again that their targets may have lost. A child whose parent is over is not started again.
        Returns how many."""
        over = self._store.ends([each.run for each in owed if isinstance(each.effect, StartChild)])
        known = [
            each
            for each in owed
            if each.effect is not None and not (isinstance(each.effect, StartChild) and each.run in over)
        ]
        try:
            refused = self._store.deliver_again(self._deliveries(known), self._max_state_bytes)
        except Exception as error:
            if not is_lasting(error):
                raise
            if len(known) > 1:
                return sum(self._deliver_again([each]) for each in known)
            refused = [(known[0], _why(error))]
        for each, why in refused:
            self._log.warning("an effect cannot be delivered again", entry=each.id, run=each.run, reason=why)
        return len(known) - len(refused)

    def _deliveries(self, known: Sequence[OwedEffect]) -> list[Delivery]:
        parents = [each.run for each in known if isinstance(each.effect, StartChild)]
        ended = [each.run for each in known if isinstance(each.effect, TellParent | TellBatch)]
        notifying = [
            each.run for each in known if isinstance(each.effect, TellParent | TellRoot | RetryChild | ShareValues)
        ]
        specs = self._store.specs({*parents, *notifying})
        specs |= self._store.specs_of_rows({each.run for each in known if isinstance(each.effect, StartRow | ForkRow)})
        ends, batches = self._store.with_states(self._store.ends(ended), specs), self._store.batches_of(parents)
        begins = self._store.forks_of_rows({each.run for each in known if isinstance(each.effect, ForkRow)})
        rows = {each.run for each in known if isinstance(each.effect, StartRow)}
        shared = {run: self._store.shared_by(specs[run]) for run in rows if run in specs}
        fired = {each.effect.schedule for each in known if isinstance(each.effect, StartScheduled)}
        fires = self._store.schedules.definitions(fired)
        found = Found(specs, ends, batches, begins, shared, self._store.written(known), fires)
        return [Delivery(each, self._command(each, found)) for each in known]

    def _bury(self, owed: OwedEffect, why: str, passed: list[OwedEffect]) -> bool:
        if self._store.dead_letters.bury(owed.partition, owed.id, why[:MOST_REASON]):
            self._log.error("an effect became a dead letter", entry=owed.id, run=owed.run, reason=why)
            return True
        self._pass(owed, f"its partition has too many dead letters; {why}", passed)
        return False

    def _pass(self, owed: OwedEffect, why: str, passed: list[OwedEffect]) -> None:
        """Skip an effect, which stays for a scheduler of a newer release."""
        passed.append(owed)
        if (owed.partition, owed.id) not in self._logged:
            if len(self._logged) > MOST_LOGGED:
                self._logged.clear()
            self._logged.add((owed.partition, owed.id))
            self._log.warning("an effect is skipped", entry=owed.id, run=owed.run, reason=why)

    def _command(self, owed: OwedEffect, found: Found) -> RedisCommand | None:
        """The command that delivers an effect; None: nothing to do, because its run has expired or continues."""
        spec, ends = found.specs.get(owed.run), found.ends
        match owed.effect:
            case StartChild() if spec is not None:
                return self._start(owed.run, spec, owed.effect, found.batches.get(owed.run, ""))
            case StartRow() if spec is not None:
                return self._start_row(spec, owed.effect, found.shared[owed.run])
            case ForkRow() if spec is not None and owed.run in found.begins:
                return self._fork_row(spec, owed.effect, found.begins[owed.run])
            case StartScheduled(schedule, token, run, at_ms):
                definition = found.fires.get(schedule)
                if definition is not None and definition.token == token:
                    return self._store.start(run, *self._store.schedules.run_of(schedule, definition, at_ms))
            case StartBatch(schedule, token, batch, at_ms):
                self._store.scheduled_batches.start(schedule, token, batch, at_ms)
            case CancelBatch(schedule, batch):
                self._store.scheduled_batches.cancel(schedule, batch)
            case RetryRow(batch, row, version):
                return self._store.retry_row(batch, row, version)
            case TellBatch(place, version) if owed.run in ends:
                return self._store.notify_batch(place, version, ends[owed.run])
            case RetryChild(child, agent, seq, attempt, isolated):
                name = None if spec is None or isolated else SessionName.of_child(spec, agent)
                return self._store.retry(owed.run, child, seq, attempt, name)
            case TellChild(child, what, by, keeps, due_ms):
                by = by or f"run {owed.run}"
                return self._store.notify_child(owed.fence, child, what, by, keeps=keeps, due_ms=due_ms)
            case AskSlot(agent, key, limit, ticket):
                return self._store.slots.ask(owed.slot_fence, owed.run, agent, key, ticket, limit)
            case FreeSlot(agent, key, ticket):
                return self._store.slots.free(owed.slot_fence, owed.run, agent, key, ticket)
            case AwaitSignal() | LeaveSignal() | DeclineSignal() | PassSignal() | SpreadSignals():
                return self._store.signals.deliver(owed.slot_fence, owed.run, owed.effect)
            case ShareValues(scope) if spec is not None:
                return self._store.share(owed, spec, scope, found.written[owed.partition, owed.id])
            case TellRun(run, what, data):
                return self._store.notify_run(owed.fence, run, what, data)
            case TellRoot(type_, data) if spec is not None and spec.root is not None:
                return self._store.notify_watchers(owed.fence, spec.root, type_, data)
            case TellParent() if spec is not None and owed.run in ends:
                return self._store.notify_parent(spec, ends[owed.run], self._max_state_bytes)
        return None

    def _start(self, parent: str, above: RunSpec, effect: StartChild, batch: str) -> RedisCommand:
        try:
            spec, state = child_run(parent, above, effect, self._graphs.get, max_state_bytes=self._max_state_bytes)
            return self._store.start(effect.child, spec, state, batch)
        except StoreUnavailable:
            raise  # not an error of the child
        except Exception as error:
            # A bug in Sleipnir must fail the parent, not block the stream for all runs.
            if not isinstance(error, SleipnirError):
                self._log.exception("a child cannot be started", run=parent, agent=effect.agent)
            return self._store.refuse(parent, effect.seq, effect.attempt, effect.child, _why(error))

    def _start_row(self, spec: RunSpec, effect: StartRow, shared: Mapping[str, Any]) -> RedisCommand:
        place = place_of(effect.batch, effect.row)
        try:
            prompt, given = row_of(effect.text)
            graph = with_shared(self._graph_of(spec), shared)
            # Schemas were applied when the row was added, and by `validate` to the graph's values: not again here.
            state = state_at_start(graph, prompt, given, self._max_state_bytes, unchecked=graph.state)
            return self._store.start(row_run_id(effect.batch, effect.row), spec, state, place)
        except StoreUnavailable:
            raise  # not an error of the row
        except Exception as error:
            if not isinstance(error, SleipnirError):
                self._log.exception("a row cannot be started", batch=effect.batch, row=effect.row)
            return self._store.refuse_row(place, _why(error), effect.text)

    def _graph_of(self, spec: RunSpec) -> Graph:
        return self._graphs.get(spec.bundle, spec.agent, spec.overrides.get(spec.agent))

    def _fork_row(self, spec: RunSpec, effect: ForkRow, beginning: RowBeginning) -> RedisCommand | None:
        """Make the fork that a row is, whose beginning depends on its source, which is read now. Returns what is left
        to do: tell the batch that it is over, if it was there before."""
        place = place_of(effect.batch, effect.row)
        try:
            source = source_of(effect.text)
            graph = self._graph_of(spec)
            fork, values = beginning
            wanted = forks.WantedFork(source, fork.at, fork.before, values, fork.agent, fork.model)
            run_id = row_run_id(effect.batch, effect.row)
            of_source = self._store.runs.spec(source)
            forks.submit(self._store.runs, wanted, of_source, spec, graph, run_id, graph_of=self._graph_of, place=place)
            return next(iter(self._store.ends_of_rows([place])), None)
        except RunNotFound as error:
            return self._store.refuse_row(place, f"the run to go on from has expired: {error}", effect.text)
        except StoreUnavailable:
            raise  # not an error of the row
        except Exception as error:
            if not is_lasting(error) or (isinstance(error, RecordUnreadable) and error.newer):
                raise
            if not isinstance(error, SleipnirError):
                self._log.exception("a row cannot be forked", batch=effect.batch, row=effect.row)
            return self._store.refuse_row(place, _why(error), effect.text)


def _without_many_forks(owed: Sequence[OwedEffect]) -> list[OwedEffect]:
    """The effects before the first fork of a partition that is one too many; the others are read again next time."""
    forks_of, kept = Counter[int](), []
    for each in owed:
        forks_of[each.partition] += isinstance(each.effect, ForkRow)
        if forks_of[each.partition] <= FORKS_AT_ONCE:
            kept.append(each)
    return kept


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, SleipnirError) else f"internal error: {type(error).__name__}: {error}"
