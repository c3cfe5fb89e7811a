"""Applies inbox entries: reads them, commits transitions, and publishes visits. Without it no run advances.

One round reads a batch, then repeats: plan the next entries of every run, commit those of some runs in one round trip,
and publish the new visits in another. Rows of batches come after all other runs, and a few at a time while such runs go
on. Entries of one run are planned in order, each on the view after the previous one, as long as no values are needed to
plan them: the results of a map's items arrive by the hundred. A refused commit means that the view of the run was old,
and later commits of the run are refused too: the view is dropped, and the entries are still in the inbox. A crash loses
nothing: the commit that applies an entry deletes it, and an unpublished visit is in the outbox.

No run blocks the others: each has SHARE_S per round, and entries of one run beyond AT_ONCE are skipped when the inbox
is read. The planning of an entry that takes seconds is interrupted (watchdog.py), and its run is parked.

A run whose record, entry or graph cannot be read is parked (parking.py): its entries wait in order, other runs
continue. Only its cancel does not wait, if its record can be read.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import cast

import structlog

from sleipnir.errors import BundleError, GraphError, RecordUnreadable, StoreUnavailable
from sleipnir.logs import handling
from sleipnir.messages import VisitCall
from sleipnir.runs.events import (
    Answered,
    Cancelled,
    ChildEnded,
    Commented,
    LeaseLost,
    Resulted,
    Retried,
    Skipped,
    Told,
    Unreadable,
)
from sleipnir.runs.run import RunView
from sleipnir.runs.transitions import Transition
from sleipnir.runs.values import NOTHING, KnownValues, WantedValues
from sleipnir.store.partitions import Partitions
from sleipnir.store.partitions.commits import APPLIED, CLAIMED, NOT_OWNER, REFUSED, Commit, IgnoredEntry
from sleipnir.store.partitions.entries import NO_RUN, Entry
from sleipnir.store.partitions.outbox import call_of
from sleipnir.store.partitions.parked_runs import OFFERED_MS
from sleipnir.store.pending_replies import PendingReplies
from sleipnir_scheduler.counters.tally import Tally
from sleipnir_scheduler.dispatch import Dispatcher
from sleipnir_scheduler.graphs import Graphs
from sleipnir_scheduler.narration import is_logged, log_transition
from sleipnir_scheduler.planner.plan import IgnoredEvent, NeedValues, cancel, fail, plan
from sleipnir_scheduler.services.ownership import Ownership
from sleipnir_scheduler.services.parking import Parking
from sleipnir_scheduler.services.views import RunViews
from sleipnir_scheduler.services.watchdog import PlanningTooLong, PlanningWatchdog
from sleipnir_scheduler.traces import trace_commit

TOGETHER = 64  # runs whose commits share a round trip, unless a single commit is large
BATCH = 200  # entries per partition and read
AT_ONCE = 100  # entries of one run that are planned on each other; if one is refused, the later ones were useless
PUBLISH_AGAIN_S = (0.5, 2.0, 10.0, 30.0)  # pauses after failures: each try may take seconds of the planner's time
SHARE_S = 0.02  # planning time of one run per round, without its first entry
OWN_S, FEW_ROWS = 0.05, 4  # for so long after an event of a run of its own, only so many rows share a round
ROUNDS_S = 0.03  # after this the inbox is read again: another run may have an entry by then
TOO_LONG_AGAIN_S = 60.0  # until an entry that was planned for too long is planned again; doubles each time


@dataclass(frozen=True)
class _Planned:
    """What was decided for some runs. Redis applies the commits meanwhile."""

    commits: list[Commit]
    drops: list[IgnoredEntry]
    replies: PendingReplies[list[int]]


class Advance:
    """The one writer of the runs in the partitions that this instance owns."""

    def __init__(
        self,
        store: Partitions,
        ownership: Ownership,
        graphs: Graphs,
        dispatcher: Dispatcher,
        *,
        max_redeliveries: int,
        max_steps: int | None = None,
        tally: Tally | None = None,
        instance: str = "",
        generation: Callable[[int], str] = lambda partition: "",
        pulse: Callable[[int], object] = lambda partition: None,
        timer_set: Callable[[int, int], object] = lambda partition, due_ms: None,
    ) -> None:
        """`generation` is the stamp of a partition's visits that must run once; `pulse` makes it current. `timer_set`
        is told a partition and when a new timer in it is due."""
        self._parking = Parking(store, instance)
        self._store, self._ownership, self._graphs, self._dispatcher = store, ownership, graphs, dispatcher
        self._tally = tally or Tally()
        self._max_redeliveries, self._generation, self._max_steps = max_redeliveries, generation, max_steps
        self._pulse, self._timer_set = pulse, timer_set
        self._views = RunViews()
        self._watchdog = PlanningWatchdog()
        self._too_long: dict[tuple[str, str], tuple[float, float]] = {}
        """Entries that were planned for too long, by run and entry: the time of the next try, and the pause after
        it."""
        self._unreadable: dict[str, RecordUnreadable] = {}
        """The errors of unreadable records, for the runs of this round without a view."""
        self._epochs: Mapping[int, int] = {}
        """The epochs under which the views were read."""
        self._own_until_s = 0.0
        """Until then, events of runs of their own are expected."""
        self._silent_until_s, self._publish_failures = 0.0, 0
        self.backlog = 0
        """The least number of visits that were queued before those of the last round."""
        self._log = structlog.get_logger().bind(service="advance")

    def run_once(self, block_ms: int | None = None) -> int:
        """Apply the entries of the inboxes; waits up to `block_ms` for the first entry.

        Returns how many entries were completed; -1 if there were some and none could be: wait before the next call.
        """
        epochs = self._ownership.epochs
        if epochs is not self._epochs:
            self._drop_views(epochs)
        try:
            after = self._parking.cursors(epochs)
            entries = self._store.read(epochs, limit=BATCH, block_ms=block_ms, after=after, share=AT_ONCE)
            with self._ownership.working:
                if (still := self._ownership.epochs) is not epochs:
                    entries = [entry for entry in entries if still.get(entry.partition) == epochs[entry.partition]]
                done = self._apply(entries, epochs)
                moved = self._parking.passed(entries, BATCH)
                self._parking.flush()
        except BaseException:
            # If the connection broke, a commit may have been applied without a reply, so no view is certain.
            self._views.clear()
            self._parking.forget()
            raise
        return done if done or moved or not entries else -1

    def _apply(self, entries: Iterable[Entry], epochs: Mapping[int, int]) -> int:
        """Plan and commit entries of partitions that are owned under these epochs. Returns how many are completed."""
        by_run: dict[str, deque[Entry]] = defaultdict(deque)
        for entry in entries:
            if entry.run == NO_RUN and isinstance(entry.event, Unreadable):
                self._parking.park(entry, entry.event.why)
            elif not self._parking.holds(entry) or isinstance(entry.event, Cancelled):
                by_run[entry.run].append(entry)
        done, began_s = 0, time.monotonic()
        while by_run:
            self._load_views(set(by_run))
            own, rows = self._rows_apart(by_run)
            if own:
                done += self._round(own, epochs)
                self._own_until_s = time.monotonic() + OWN_S
            is_own_next = time.monotonic() < self._own_until_s
            # A part of those that wait, as all others are read again, which takes a tenth of the time of planning them.
            few = max(FEW_ROWS, len(own), len(rows) // 16)
            some = dict(islice(rows.items(), few)) if is_own_next else rows
            if some:
                applied = self._round(some, epochs)
                self._tally.row_events += applied
                done += applied
            if done and len(some) < len(rows):
                break  # runs of their own may have new entries
            by_run = {run_id: queue for run_id, queue in by_run.items() if queue}
            if done and time.monotonic() - began_s > ROUNDS_S:
                break  # the rest is read again, with new entries
        self._withdraw_offers(entries, epochs)
        return done

    def _withdraw_offers(self, entries: Iterable[Entry], epochs: Mapping[int, int]) -> None:
        """Let others have the signals that were offered to parked runs a while ago."""
        told = [entry for entry in entries if isinstance(entry.event, Told) and self._parking.holds(entry)]
        last_ms = self._tally.clock.now_ms() - OFFERED_MS if told else 0
        if offers := [entry for entry in told if entry.at_ms <= last_ms]:
            self._store.withdraw(offers, epochs)

    def _drop_views(self, epochs: Mapping[int, int]) -> None:
        """Drop views of earlier epochs: another scheduler may have committed, or Redis may have been restored."""
        before, self._epochs = self._epochs, epochs
        kept = {partition for partition, epoch in epochs.items() if before.get(partition) == epoch}
        for run_id in [run_id for run_id in self._views if self._store.partition_of(run_id) not in kept]:
            self._views.drop(run_id)

    def _rows_apart(
        self, by_run: Mapping[str, deque[Entry]]
    ) -> tuple[Mapping[str, deque[Entry]], Mapping[str, deque[Entry]]]:
        """Runs of their own, and the rows of batches. As in the queues, rows come after runs that were submitted one by
        one."""
        rows = {id_: queue for id_, queue in by_run.items() if id_ in self._views and self._views[id_].batch}
        return ({id_: queue for id_, queue in by_run.items() if id_ not in rows} if rows else by_run), rows

    def _round(self, by_run: Mapping[str, deque[Entry]], epochs: Mapping[int, int]) -> int:
        """Plan, commit and publish the next entries of every run. Returns how many entries are completed.

        While Redis applies what was decided for some runs, the next ones are planned.
        """
        parts = -(-len(by_run) // TOGETHER)
        size = -(-len(by_run) // parts)
        runs, sent = iter(by_run.items()), deque[_Planned]()
        done, published = 0, list[tuple[VisitCall, str]]()
        try:
            while part := dict(islice(runs, size)):
                with self._watchdog.awake():
                    commits, drops = self._plan_all(part)
                sent.append(_Planned(commits, drops, self._store.send(commits, epochs)))
                if len(sent) > 1:
                    done += self._finish(sent.popleft(), by_run, epochs, published)
            done += self._finish(sent.popleft(), by_run, epochs, published)
        finally:
            for planned in sent:
                planned.replies.close()
        self.backlog = self._publish(published)
        return done

    def _finish(
        self,
        planned: _Planned,
        by_run: Mapping[str, deque[Entry]],
        epochs: Mapping[int, int],
        published: list[tuple[VisitCall, str]],
    ) -> int:
        """Note the outcomes, and drop what changes nothing. Adds the visits to publish. Returns how many entries are
        completed."""
        done, commits, drops = 0, planned.commits, planned.drops
        for commit, outcome in zip(commits, planned.replies.result(), strict=True):
            if outcome == REFUSED:
                commit, outcome = self._end_instead(commit, epochs)
                if outcome == REFUSED:
                    self._park(commit.entry, "Redis refuses its commit; see the log", by_run[commit.entry.run])
            if outcome == APPLIED:
                done += 1
                self._parking.went_on(commit.entry)
                published += self._applied(commit)
            elif outcome == CLAIMED:
                drops.append(IgnoredEntry(commit.entry, commit.run))
            else:
                self._mistaken(commit.entry, by_run, outcome)
        for drop, outcome in zip(drops, self._store.discard(drops, epochs), strict=True):
            if outcome == APPLIED:
                done += 1
                self._parking.went_on(drop.entry)
                self._tally.dropped(drop.entry)
            else:
                self._mistaken(drop.entry, by_run, outcome)
        return done

    def _publish(self, visits: list[tuple[VisitCall, str]]) -> int:
        """Publish committed visits. Returns how many visits are ahead of these. A message is a hint: if the broker does
        not answer, planning continues, tries again after a pause, and the outbox publishes the rest."""
        if not visits or time.monotonic() < self._silent_until_s:
            return 0
        try:
            ahead = self._dispatcher.publish(visits).ahead
        except Exception as error:
            pause_s = PUBLISH_AGAIN_S[min(self._publish_failures, len(PUBLISH_AGAIN_S) - 1)]
            self._silent_until_s, self._publish_failures = time.monotonic() + pause_s, self._publish_failures + 1
            self._log.warning("visits cannot be published; the outbox repeats it", visits=len(visits), error=str(error))
            return 0
        self._publish_failures = 0
        return ahead

    def _mistaken(self, entry: Entry, by_run: Mapping[str, deque[Entry]], outcome: int) -> None:
        """Drop an old view, and a partition that another scheduler owns. The entry stays in the inbox."""
        self._views.drop(entry.run)
        by_run[entry.run].clear()  # later entries of this run would be planned on the same view
        if outcome == NOT_OWNER:
            self._ownership.lost(entry.partition)

    def _park(self, entry: Entry, reason: str, queue: deque[Entry]) -> None:
        """Park the run of an entry, from this entry on. Only a cancel among its other entries in `queue` is still
        processed."""
        self._views.drop(entry.run)
        cancels = [each for each in queue if each is not entry and isinstance(each.event, Cancelled)]
        queue.clear()
        queue.extend(cancels)
        self._parking.park(entry, reason)

    def _end_instead(self, commit: Commit, epochs: Mapping[int, int]) -> tuple[Commit, int]:
        """Fail the run of a transition that Redis could not apply, so that no other run waits for it."""
        self._log.error("a transition cannot be applied; failing its run", run=commit.run.id)
        why = "its next step could not be committed: Redis refused it, or closed the connection over it twice"
        ended = fail("engine", commit.run, f"internal error: {why}", commit.entry.at_ms)
        commit = Commit(commit.entry, commit.run, ended)
        return commit, self._store.commit([commit], epochs)[0]

    def _applied(self, commit: Commit) -> Iterable[tuple[VisitCall, str]]:
        run, transition, after = commit.run, commit.transition, commit.after
        if is_logged(transition):
            with _about(commit.entry, run):
                log_transition(run, after, transition)
        self._tally.applied(commit)
        if transition.timers:
            self._timer_set(commit.entry.partition, min(transition.timers.values()))
        trace_commit(commit, self._tally.clock.now_ms)
        if after.is_final:
            self._views.drop(run.id)
        else:
            self._views.put(after)
        holds = self._ownership.holds.get(commit.entry.partition)
        if holds is None or not holds.holds_back(run.spec.namespace, run.spec.agent):
            for visit in transition.dispatches:
                yield call_of(run.id, run.spec, visit, run.batch), str(visit.queue)

    def _load_views(self, run_ids: set[str]) -> None:
        missing = [run_id for run_id in run_ids if run_id not in self._views]
        self._views.use(run_ids - set(missing))
        self._unreadable.clear()
        if missing:
            for view in self._store.load(missing, self._unreadable).values():
                self._views.put(view)
        self._views.shrink(len(run_ids))

    def _plan_all(self, by_run: Mapping[str, deque[Entry]]) -> tuple[list[Commit], list[IgnoredEntry]]:
        """Plan the entries; missing values are read for all runs in one round trip, then their entries are planned."""
        commits: list[Commit] = []
        drops: list[IgnoredEntry] = []
        known: dict[tuple[str, str], KnownValues] = {}  # entries of two partitions may have the same id
        todo: Iterable[str] = by_run
        while todo:
            needs: dict[str, tuple[Entry, WantedValues]] = {}
            for run_id in todo:
                wanted = self._plan_run(by_run[run_id], known, commits, drops)
                if wanted is not None:
                    needs[run_id] = (by_run[run_id][0], wanted)
            replies = self._store.read_values(list(needs.values())) if needs else []
            for (entry, _), values in zip(list(needs.values()), replies, strict=True):
                if isinstance(values, RecordUnreadable):
                    self._park(entry, str(values), by_run[entry.run])
                    del needs[entry.run]
                else:
                    known[entry.run, entry.id] = values
            todo = list(needs)
        return commits, drops

    def _plan_run(
        self,
        queue: deque[Entry],
        known: Mapping[tuple[str, str], KnownValues],
        commits: list[Commit],
        drops: list[IgnoredEntry],
    ) -> WantedValues | None:
        """Plan entries of one run and remove them from `queue`. Returns the values that the first one needs, if it
        cannot be planned without.

        Later entries that need values wait until the earlier ones are committed, which may write these values.
        """
        run, began_s = self._views.get(queue[0].run), time.monotonic()
        for planned in range(min(len(queue), AT_ONCE)):
            if planned and time.monotonic() - began_s > SHARE_S:
                return None
            entry = queue[0]
            with _about(entry, run):
                outcome = self._plan(entry, run, known.get((entry.run, entry.id), NOTHING))
            if isinstance(outcome, NeedValues):
                return None if planned else outcome.wanted
            if isinstance(outcome, str):
                self._park(entry, outcome, queue)
                return None
            queue.popleft()
            if not isinstance(outcome, Transition):
                drops.append(IgnoredEntry(entry, run, outcome.notice))
                return None
            assert run is not None
            commits.append(Commit(entry, run, outcome))
            run = commits[-1].after
            if run.is_final or outcome.unless_claimed or outcome.unless_answered:
                return None
        return None

    def _plan(
        self, entry: Entry, run: RunView | None, known: KnownValues
    ) -> Transition | NeedValues | IgnoredEvent | str:
        """The outcome of planning an entry; a text: why its run must be parked."""
        if run is None:
            unreadable = self._unreadable.get(entry.run)
            return str(unreadable) if unreadable is not None else IgnoredEvent("the run has expired")
        try:
            if isinstance(entry.event, Unreadable):
                return _unreadable(run, entry.event)
            if self._parking.holds(entry):  # a cancel does not wait for a parked run's problem
                return cancel(run, cast(Cancelled, entry.event), entry.at_ms)
            spec = run.spec
            graph = self._graphs.get(spec.bundle, spec.agent, spec.overrides.get(spec.agent))
            if not spec.by_version:
                graph = graph.of_earlier_release
            if self._max_steps is not None and run.step >= self._max_steps and not isinstance(entry.event, Cancelled):
                return _failed(run, entry, _journal_is_full(self._max_steps))
            if self._too_long and self._waits_after_too_long(entry):
                return self._took_too_long
            if isinstance(entry.event, LeaseLost) and entry.event.restored:
                self._pulse(entry.partition)  # before a person answers, so that the repeated visit is not refused again
            most, generation = self._max_redeliveries, self._generation(entry.partition)
            self._watchdog.begin()
            try:
                return plan(graph, run, entry.event, entry.at_ms, known, max_redeliveries=most, generation=generation)
            finally:
                self._watchdog.end()
        except PlanningTooLong:
            self._plan_later(entry)
            return self._took_too_long
        except StoreUnavailable:
            raise  # not an error of the run
        except RecordUnreadable as error:
            return str(error)
        except (BundleError, GraphError) as error:
            # Another release may read it, or the bundle may be restored: the accepted run must not fail.
            if run.is_final and not isinstance(entry.event, Retried | Skipped):
                return IgnoredEvent("the run is over")
            if isinstance(entry.event, Cancelled):
                return cancel(run, entry.event, entry.at_ms)
            return f"its graph cannot be used: {error}"
        except Exception as error:
            # A bug in Sleipnir must fail this run, not make the scheduler repeat one entry forever.
            self._log.exception("planning failed", entry=repr(entry.event))
            return _failed(run, entry, f"internal error: {type(error).__name__}: {error}")

    @property
    def _took_too_long(self) -> str:
        return f"planning its next entry took more than {self._watchdog.most_s:g} s; the entry is left in the inbox"

    def _plan_later(self, entry: Entry) -> None:
        _, pause_s = self._too_long.pop((entry.run, entry.id), (0.0, TOO_LONG_AGAIN_S))
        if len(self._too_long) >= 1_000:
            self._too_long.clear()
        self._too_long[entry.run, entry.id] = (time.monotonic() + pause_s, 2 * pause_s)

    def _waits_after_too_long(self, entry: Entry) -> bool:
        again_s, _ = self._too_long.get((entry.run, entry.id), (0.0, 0.0))
        return time.monotonic() < again_s


def _journal_is_full(steps: int) -> str:
    return (
        f"its journal has {steps:,} steps, the maximum (SLEIPNIR_MAX_JOURNAL_STEPS). Give the loop an exit, "
        "or raise the limit and retry the run"
    )


def _unreadable(run: RunView, event: Unreadable) -> IgnoredEvent | str:
    if run.is_final and not event.newer:
        return IgnoredEvent("the run is over")
    return f"inbox entry {event.type!r} cannot be read: {event.why}"


def _about(entry: Entry, run: RunView | None) -> handling:
    """The log context of an entry: its run, and the visit of its event, if it has one."""
    event = entry.event
    if run is None or not isinstance(event, Resulted | Answered | Commented | LeaseLost | ChildEnded):
        return handling(entry.run)
    visit = run.frontier.get(event.seq)
    return handling(entry.run, None if visit is None else visit.node, event.seq, event.attempt)


def _failed(run: RunView, entry: Entry, message: str) -> Transition | IgnoredEvent:
    if run.is_final and not isinstance(entry.event, Retried | Skipped):
        return IgnoredEvent("the run is over")
    return fail("graph", run, message, entry.at_ms)
