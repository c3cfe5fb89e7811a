"""The store, for schedulers: everything is about one partition, and one scheduler owns it.

Each module holds what one service of a scheduler calls. The first five lead from an event to its consequences.

inbox         the events that are not applied yet            services/advance.py
run_records   the runs that they are for                     services/advance.py
run_values    the values that the planner asks for           services/advance.py
fork_states   the states that forks take from their sources  services/advance.py
commits       the transitions that it makes                  services/advance.py
ownership     who may commit in which partition              services/ownership.py
parked_runs   runs whose records are unreadable              services/parking.py
due_times     when a service has something to do             services/due_times.py
leases        leases that have lapsed                         services/reaper.py
timers        deadlines, delays and backoffs                 services/timers.py
outbox        queued visits that are to be published         services/outbox.py, services/unindexed.py
held_runs     runs that wait because all of them are held   services/resuming.py
ended_runs    ended runs until they expire                   services/archiver.py, services/janitor.py
listed_runs   runs whose cards are missing or old            services/listing.py
listed_names  questions and batches by namespace             services/listing.py

Effects are in store/effects.py, rows of batches in store/batches, slots in store/slots.py.
"""

from __future__ import annotations

from sleipnir.store.partitions.commits import Commits
from sleipnir.store.partitions.due_times import PartitionDueTimes
from sleipnir.store.partitions.ended_runs import EndedRuns
from sleipnir.store.partitions.held_runs import HeldRuns
from sleipnir.store.partitions.inbox import Inbox
from sleipnir.store.partitions.leases import Leases
from sleipnir.store.partitions.listed_names import ListedNames
from sleipnir.store.partitions.listed_runs import ListedRuns
from sleipnir.store.partitions.ownership import PartitionOwnership
from sleipnir.store.partitions.parked_runs import ParkedRuns
from sleipnir.store.partitions.run_values import RunValues
from sleipnir.store.partitions.timers import Timers


class Partitions(
    Inbox,
    ListedRuns,
    ListedNames,
    RunValues,
    Commits,
    PartitionOwnership,
    ParkedRuns,
    Leases,
    Timers,
    PartitionDueTimes,
    HeldRuns,
    EndedRuns,
):
    """The operations of schedulers, on one connection."""
