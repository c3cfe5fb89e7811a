"""What happened to a run: each event is one entry of a partition's inbox, and one call of the planner.

Values that the store reads and the planner decides by; nothing here knows Redis or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sleipnir.messages import ResultHeader, RunStatus
from sleipnir.runs.run import NO_FAILED_VISITS, FailedVisits, HoldOwner


@dataclass(frozen=True)
class Submitted:
    """The run was accepted."""


@dataclass(frozen=True)
class Resulted:
    """A worker delivered the result of a visit's attempt."""

    seq: int
    attempt: int
    header: ResultHeader


@dataclass(frozen=True)
class Answered:
    """A person answered the question that a visit's attempt asks. `by` says who and from where (by.By, as text); of
    entries of older releases it is empty, here and below."""

    seq: int
    text: str
    attempt: int = 1
    by: str = ""


@dataclass(frozen=True)
class Cancelled:
    """Somebody wants the run to end. It `keeps` what it has done: its parent failed, and may be retried."""

    keeps: bool = False
    by: str = ""


@dataclass(frozen=True)
class Retried:
    """Somebody wants a failed run to go on from where it failed; with `fresh_children`, but child runs from their
    start. Or a parent wants a child run to go on, whatever that is doing."""

    fresh_children: bool = False
    by: str = ""


@dataclass(frozen=True)
class Paused:
    """A person holds the run, or its parent does."""

    by: str
    reason: str | None = None
    owner: HoldOwner = ""


@dataclass(frozen=True)
class Resumed:
    """A person, or its parent, lets a held run go on."""

    owner: HoldOwner = ""
    by: str = ""


@dataclass(frozen=True)
class LeaseLost:
    """The worker of a visit's attempt fell silent, or (`handed_back`) stopped and gave it back unfinished. `begun`: the
    node's own work may have run. `restored`: no worker has it, but it must happen once, and was queued before Redis may
    have gone back in time. `lacks_directory`: handed back by a worker without the run's working directory."""

    seq: int
    attempt: int
    worker: str
    handed_back: bool = False
    begun: bool = True
    restored: bool = False
    lacks_directory: bool = False


@dataclass(frozen=True)
class TimerFired:
    """A timer of the run came due."""

    name: str


@dataclass(frozen=True)
class ChildEnded:
    """The run that a visit's attempt waits for is over. Its output, if it has one, comes as a result does, under the
    key RESULT. `usage` is what it and its own children have cost in all; it says so again when that becomes more.
    `failed_visits` are those after which it went on. `refused`: it could not be started."""

    seq: int
    attempt: int
    child: str
    status: RunStatus | Literal["refused"]
    error: str | None = None
    usage: Mapping[str, Any] | None = None
    failed_visits: FailedVisits = NO_FAILED_VISITS


@dataclass(frozen=True)
class ChildGone:
    """The run that a visit's attempt wants to go on cannot: it has expired, or has kept nothing."""

    seq: int
    attempt: int
    child: str


@dataclass(frozen=True)
class Told:
    """Another run lets this one know something (transitions.TellRun)."""

    what: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Continued:
    """The run has more to do by itself than one event may: this is the next part of it."""


@dataclass(frozen=True)
class Unreadable:
    """An entry that this release cannot read. Its run is parked: a scheduler of a newer release may read it, or (not
    `newer`) somebody mends it. `why` says what is wrong."""

    type: str
    why: str = ""
    newer: bool = True


Event: TypeAlias = (
    Submitted
    | Resulted
    | Answered
    | Cancelled
    | Retried
    | Paused
    | Resumed
    | LeaseLost
    | TimerFired
    | ChildEnded
    | ChildGone
    | Told
    | Continued
    | Unreadable
)

RUN_DEADLINE = "deadline"

SLOT_GRANTED = "slot_granted"
"""What a run is told by the slots of its agent: it has the one with this `ticket`."""
