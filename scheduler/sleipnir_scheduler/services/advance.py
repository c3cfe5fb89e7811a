"""Apply what happened: inbox entries in, commits out, visits published. Without it no run moves.

One round reads a batch, then repeats: plan the next entries of every run, commit all of them in one round trip, publish
the new visits in another. Entries of one run are planned one after the other, each on the view that the one before it
will leave, as long as names are enough to plan them: the results of a map's items come by the hundred. A refused commit
means that our view of the run was old, and refuses those after it: drop the view; the entries are still in the inbox. A
death anywhere loses nothing: an entry is deleted by the commit that applies it, and an unpublished visit is in the
outbox.

No run holds up the others: in a round each has SHARE_S, and entries of one run beyond AT_ONCE are passed over when the
inbox is read. An entry that is planned for seconds is given up (watchdog.py), and its run is parked.

A run whose record, entry or graph cannot be read is parked (parking.py): its entries wait in order, others go on. Only
its cancel does not wait, if its record can be read.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import cast

import structlog

from sleipnir.errors import BundleError, GraphError, RecordUnreadable, StoreUnavailable
from sleipnir.logs import handling
from sleipnir.messages import VisitCall
from sleipnir.runs.events import Answered, Cancelled, ChildEnded, LeaseLost, Resulted, Retried, Unreadable
from sleipnir.runs.run import RunView
from sleipnir.runs.transitions import Transition
from sleipnir.runs.values import NOTHING, Known, Wanted
from sleipnir.store.partitions import (
    APPLIED,
    CLAIMED,
    NO_RUN,
    NOT_OWNER,
    REFUSED,
    Commit,
    Entry,
    IgnoredEntry,
    Partitions,
    call_of,
)
from sleipnir_scheduler.counters.tally import Tally
from sleipnir_scheduler.dispatch import Dispatcher
from sleipnir_scheduler.graphs import Graphs
from sleipnir_scheduler.narration import log_transition
from sleipnir_scheduler.planner.plan import Ignore, NeedValues, cancel, fail, plan
from sleipnir_scheduler.services.ownership import Ownership
from sleipnir_scheduler.services.parking import Parking
from sleipnir_scheduler.services.views import RunViews
from sleipnir_scheduler.services.watchdog import PlanningTooLong, PlanningWatchdog
from sleipnir_scheduler.traces import trace_commit

BATCH = 200  # entries per partition and read
AT_ONCE = 100  # entries of one run that are planned on each other; when one is refused, those after it are in vain
PUBLISH_AGAIN_S = (0.5, 2.0, 10.0, 30.0)  # pauses after failures: each try may take seconds of the planner's time
SHARE_S = 0.02  # what one run may be planned for in a round, its first entry apart
ROUNDS_S = 0.03  # after this the inbox is read again: another run may have an entry by then
TOO_LONG_AGAIN_S = 60.0  # doubles each time: an entry that was planned for too long is planned again after this


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
        generation: Callable[[], str] = lambda: "",
        pulse: Callable[[], object] = lambda: None,
    ) -> None:
        """`generation` is what visits that must happen once are stamped with; `pulse` makes sure that it is of now."""
        self._parking = Parking(store, instance)
        self._store, self._ownership, self._graphs, self._dispatcher = store, ownership, graphs, dispatcher
        self._tally = tally or Tally()
        self._max_redeliveries, self._generation, self._max_steps = max_redeliveries, generation, max_steps
        self._pulse = pulse
        self._views = RunViews()
        self._watchdog = PlanningWatchdog()
        self._too_long: dict[tuple[str, str], tuple[float, float]] = {}
        """By run and entry that was planned for too long: when it may be planned again, and the pause after that."""
        self._unreadable: dict[str, RecordUnreadable] = {}
        """Of the runs of this round that have no view, why their records cannot be read."""
        self._epochs: Mapping[int, int] = {}
        """Under which the views were read."""
        self._silent_until_s, self._publish_failures = 0.0, 0
        self.backlog = 0
        """How many visits the workers had before them, at the least, when the last round gave them more."""
        self._log = structlog.get_logger().bind(service="advance")

    def run_once(self, block_ms: int | None = None) -> int:
        """Apply what is in the inboxes; waits up to `block_ms` for the first entry.

        Returns how many entries were done with; -1 when there were some and none could be: wait before the next call.
        """
        epochs = self._ownership.epochs
        if epochs != self._epochs:
            self._drop_views(epochs)
        try:
            after = self._parking.cursors(epochs)
            entries = self._store.read(epochs.keys(), limit=BATCH, block_ms=block_ms, after=after, share=AT_ONCE)
            by_run: dict[str, deque[Entry]] = defaultdict(deque)
            for entry in entries:
                if entry.run == NO_RUN and isinstance(entry.event, Unreadable):
                    self._parking.park(entry, entry.event.why)
                elif not self._parking.holds(entry) or isinstance(entry.event, Cancelled):
                    by_run[entry.run].append(entry)
            done, began_s = 0, time.monotonic()
            while by_run:
                done += self._round(by_run, epochs)
                by_run = {run_id: queue for run_id, queue in by_run.items() if queue}
                if done and time.monotonic() - began_s > ROUNDS_S:
                    break  # what is left is read again, with what has come since
            moved = self._parking.passed(entries, BATCH)
            self._parking.flush()
        except BaseException:
            # The connection broke in the middle: a commit may be applied that we do not know of, so no view is certain.
            self._views.clear()
            self._parking.forget()
            raise
        return done if done or moved or not entries else -1

    def _drop_views(self, epochs: Mapping[int, int]) -> None:
        """No view outlives the epoch of its partition: another scheduler may have committed, or Redis been restored."""
        before, self._epochs = self._epochs, epochs
        kept = {partition for partition, epoch in epochs.items() if before.get(partition) == epoch}
        for run_id in [run_id for run_id in self._views if self._store.partition_of(run_id) not in kept]:
            self._views.drop(run_id)

    def _round(self, by_run: Mapping[str, deque[Entry]], epochs: Mapping[int, int]) -> int:
        """The next entries of every run: plan, commit, publish. Returns how many entries are done with."""
        self._load_views(set(by_run))
        with self._watchdog.awake():
            commits, drops = self._plan_all(by_run)
        done = 0
        published: list[tuple[VisitCall, str]] = []
        for commit, outcome in zip(commits, self._store.commit(commits, epochs), strict=True):
            if outcome == REFUSED:
                commit, outcome = self._end_instead(commit, epochs)
                if outcome == REFUSED:
                    self._park(commit.entry, "Redis refuses its commit; the log says why", by_run[commit.entry.run])
            if outcome == APPLIED:
                done += 1
                self._parking.went_on(commit.entry)
                published += self._applied(commit)
            elif outcome == CLAIMED:
                drops.append(IgnoredEntry(commit.entry, commit.run))
            else:
                self._mistaken(commit.entry, by_run, outcome)
        self.backlog = self._publish(published)
        for drop, outcome in zip(drops, self._store.discard(drops, epochs), strict=True):
            if outcome == APPLIED:
                done += 1
                self._parking.went_on(drop.entry)
                self._tally.dropped(drop.entry)
            else:
                self._mistaken(drop.entry, by_run, outcome)
        return done

    def _publish(self, visits: list[tuple[VisitCall, str]]) -> int:
        """Publish what was committed. A message is a hint: where the broker does not answer, planning goes on without,
        asks again after a pause, and the outbox publishes what was left. How many visits are ahead of these."""
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
        """Our view was old, or the partition is another's: forget both. The entry stays in the inbox."""
        self._views.drop(entry.run)
        by_run[entry.run].clear()  # later entries of this run would be planned on the same view
        if outcome == NOT_OWNER:
            self._ownership.lost(entry.partition)

    def _park(self, entry: Entry, reason: str, queue: deque[Entry]) -> None:
        """Set the run of an entry aside, from this entry on. Of its other entries in `queue` only a cancel is looked
        at. No other run waits."""
        self._views.drop(entry.run)
        cancels = [each for each in queue if each is not entry and isinstance(each.event, Cancelled)]
        queue.clear()
        queue.extend(cancels)
        self._parking.park(entry, reason)

    def _end_instead(self, commit: Commit, epochs: Mapping[int, int]) -> tuple[Commit, int]:
        """Redis could not apply a transition: fail that run visibly, and let no other run wait for it."""
        self._log.error("a transition cannot be applied; failing its run", run=commit.run.id)
        why = "its next step could not be committed: Redis refused it, or closed the connection over it twice"
        ended = fail("engine", commit.run, f"internal error: {why}", commit.entry.at_ms)
        commit = Commit(commit.entry, commit.run, ended)
        return commit, self._store.commit([commit], epochs)[0]

    def _applied(self, commit: Commit) -> Iterable[tuple[VisitCall, str]]:
        run, transition, after = commit.run, commit.transition, commit.after
        with _about(commit.entry, run):
            log_transition(run, after, transition)
        self._tally.applied(commit)
        trace_commit(commit, self._tally.clock.now_ms())
        if after.is_final:
            self._views.drop(run.id)
        else:
            self._views.put(after)
        if commit.entry.partition not in self._ownership.held:
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
        """Plan what can be; values are fetched for all runs that need some, in one round trip, and they are planned."""
        commits: list[Commit] = []
        drops: list[IgnoredEntry] = []
        known: dict[tuple[str, str], Known] = {}  # entries of two partitions may have the same id
        todo: Iterable[str] = by_run
        while todo:
            needs: dict[str, tuple[Entry, Wanted]] = {}
            for run_id in todo:
                wanted = self._plan_run(by_run[run_id], known, commits, drops)
                if wanted is not None:
                    needs[run_id] = (by_run[run_id][0], wanted)
            found = self._store.read_values(list(needs.values())) if needs else []
            for (entry, _), values in zip(list(needs.values()), found, strict=True):
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
        known: Mapping[tuple[str, str], Known],
        commits: list[Commit],
        drops: list[IgnoredEntry],
    ) -> Wanted | None:
        """Plan entries of one run and take them from `queue`; what the first one needs to know, if it cannot be
        planned.

        Those that need values wait until the ones before them are committed: the values may be theirs.
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

    def _plan(self, entry: Entry, run: RunView | None, known: Known) -> Transition | NeedValues | Ignore | str:
        """What the entry changes; a text: why its run must be parked."""
        if run is None:
            unreadable = self._unreadable.get(entry.run)
            return str(unreadable) if unreadable is not None else Ignore("the run has expired")
        try:
            if isinstance(entry.event, Unreadable):
                return _unreadable(run, entry.event)
            if self._parking.holds(entry):  # a cancel, which need not wait for what the run was parked for
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
                self._pulse()  # before anybody answers: what runs again then must not be refused again
            most, generation = self._max_redeliveries, self._generation()
            self._watchdog.begin()
            try:
                return plan(graph, run, entry.event, entry.at_ms, known, max_redeliveries=most, generation=generation)
            finally:
                self._watchdog.end()
        except PlanningTooLong:
            self._plan_later(entry)
            return self._took_too_long
        except StoreUnavailable:
            raise  # nothing is wrong with the run
        except RecordUnreadable as error:
            return str(error)
        except (BundleError, GraphError) as error:
            # Another release may read it, or the bundle may come again: no reason to fail a run that was accepted.
            if run.is_final and not isinstance(entry.event, Retried):
                return Ignore("the run is over")
            if isinstance(entry.event, Cancelled):
                return cancel(run, entry.event, entry.at_ms)
            return f"its graph cannot be used: {error}"
        except Exception as error:
            # A bug in Sleipnir must end in a visible failure of this run, not in a scheduler that spins on one entry.
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
        f"its journal has {steps:,} steps, the most that are kept (SLEIPNIR_MAX_JOURNAL_STEPS). Give the loop an exit, "
        "or raise the limit and retry the run"
    )


def _unreadable(run: RunView, event: Unreadable) -> Ignore | str:
    if run.is_final and not event.newer:
        return Ignore("the run is over")
    return f"inbox entry {event.type!r} cannot be read: {event.why}"


def _about(entry: Entry, run: RunView | None) -> handling:
    """What is logged says of which run it is, and of which visit if the event is of one."""
    event = entry.event
    if run is None or not isinstance(event, Resulted | Answered | LeaseLost | ChildEnded):
        return handling(entry.run)
    visit = run.frontier.get(event.seq)
    return handling(entry.run, None if visit is None else visit.node, event.seq, event.attempt)


def _failed(run: RunView, entry: Entry, message: str) -> Transition | Ignore:
    if run.is_final and not isinstance(entry.event, Retried):
        return Ignore("the run is over")
    return fail("graph", run, message, entry.at_ms)
