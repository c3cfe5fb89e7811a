"""Fires schedules. Without it no schedule would start a run.

What fires is decided by sleipnir/schedules/firing.py, from the schedule's record and Redis' time, and applied in one
script, which refuses a decision on an old record: two instances that dispute a partition, or one that was frozen, fire
nothing twice, and one that dies before or after the script loses nothing. The runs are started by effects
(deliveries.py).

While the deployment is paused nothing fires; afterwards the times that came are late or missed, as after an outage. A
schedule that cannot be read or decided here is looked at again after a minute, so that it does not delay the others. In
each new epoch of a partition, a schedule that is ahead of Redis' time, because the clock was set back, counts its times
from now on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import structlog

from sleipnir.errors import RecordUnreadable, SleipnirError
from sleipnir.schedules.firing import DueFires, begun, decide, look_ms, set_back
from sleipnir.schedules.records import due_ms
from sleipnir.store.connect import is_lasting
from sleipnir.store.schedules import PAGE, Schedules, StoredSchedule
from sleipnir_scheduler.counters.tally import Tally


class ScheduleFires:
    """Knows the epochs under which it has looked for schedules that are ahead of the time."""

    def __init__(self, store: Schedules, *, tally: Tally) -> None:
        self._store, self._tally = store, tally
        self._epochs: dict[int, int] = {}
        self._log = structlog.get_logger().bind(service="schedules")

    def run_once(self, epochs: Mapping[int, int], held: Collection[int]) -> int:
        """Fire what is due. Returns the number of changed schedules; several instances may run at once."""
        for partition, epoch in epochs.items():
            if self._epochs.get(partition) != epoch:
                self._catch_clock(partition)
        self._epochs = dict(epochs)
        names = self._store.due(epochs.keys() - set(held))
        return sum(self._fire(page) for page in _pages(names))

    def _fire(self, names: Sequence[str]) -> int:
        found, now_ms = self._store.read(names)
        return sum(self._fire_one(name, schedule, now_ms) for name, schedule in found.items())

    def _fire_one(self, name: str, schedule: StoredSchedule | RecordUnreadable, now_ms: int) -> bool:
        try:
            if isinstance(schedule, RecordUnreadable):
                raise schedule
            decision = _decision(schedule, now_ms)
            if not self._store.apply(schedule, decision):
                return False
        except Exception as error:
            if not is_lasting(error):
                raise  # not an error of the schedule
            self._say(name, error)
            self._store.defer(name, now_ms)
            return False
        self._count(schedule, decision, now_ms)
        return True

    def _say(self, name: str, error: Exception) -> None:
        if isinstance(error, SleipnirError):
            self._log.warning("a schedule cannot be fired", schedule=name, reason=str(error))
        else:
            self._log.error("a schedule cannot be fired", schedule=name, exc_info=error)

    def _count(self, schedule: StoredSchedule, decision: DueFires, now_ms: int) -> None:
        for fire in decision.log:
            self._tally.fires.add(fire.outcome)
            if fire.outcome == "started":
                late_ms = now_ms - due_ms(schedule.name, schedule.plan, fire.at_ms)
                self._tally.fires_late.observe(max(0, late_ms))
                self._log.info("a schedule fired", schedule=schedule.name, run=fire.run, late_ms=late_ms)
            elif fire.outcome != "queued":
                self._log.warning(f"a fire was {fire.outcome}", schedule=schedule.name, reason=fire.why)

    def _catch_clock(self, partition: int) -> None:
        """Let schedules that are ahead of Redis' time count from now on."""
        for page in _pages(self._store.in_partition(partition)):
            found, now_ms = self._store.read(page)
            for schedule in found.values():
                if isinstance(schedule, StoredSchedule) and set_back(schedule.progress, now_ms):
                    self._count_from_now(schedule, now_ms)

    def _count_from_now(self, schedule: StoredSchedule, now_ms: int) -> None:
        try:
            progress = begun(schedule.plan, schedule.progress, now_ms)
            again_ms = look_ms(schedule.name, schedule.plan, progress, now_ms)
            self._store.apply(schedule, DueFires(progress, again_ms))
        except Exception as error:
            if not is_lasting(error):
                raise
            self._say(schedule.name, error)
            return
        self._log.warning("the clock was set back, and a schedule counts from now on", schedule=schedule.name)


def _decision(schedule: StoredSchedule, now_ms: int) -> DueFires:
    """What is due; if nothing is, when to look again."""
    name, plan, progress = schedule.name, schedule.plan, schedule.progress
    decision = decide(name, schedule.origin.token, plan, progress, now_ms, active=schedule.active)
    return decision or DueFires(progress, look_ms(name, plan, progress, now_ms))


def _pages(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[at : at + PAGE] for at in range(0, len(names), PAGE))
