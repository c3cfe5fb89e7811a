"""What happened to a run: each event is one entry of a partition's inbox, and one call of the planner.

Events are values that the store reads and the planner decides on. This module does not use Redis or a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sleipnir.messages import ResultHeader, RunStatus
from sleipnir.runs.run import NO_FAILED_VISITS, FailedVisits, HoldOwner
from sleipnir.runs.visits import Failure


@dataclass(frozen=True)
class Submitted:
    """The run was accepted."""


@dataclass(frozen=True)
class TurnReached:
    """The runs before a queued turn of a thread are over."""


@dataclass(frozen=True)
class Resulted:
    """A worker delivered the result of a visit's attempt."""

    seq: int
    attempt: int
    header: ResultHeader


@dataclass(frozen=True)
class Answered:
    """A person answered the question that a visit's attempt asks. `by` is the actor (by.By, as text), as in the events
    below; it is empty in entries of older releases. `reason` is its comment, `voices` are all answers to a question
    with a quorum (handling.Voice). `checked`: the rules of the question allow it; an older release checks none."""

    seq: int
    text: str
    attempt: int = 1
    by: str = ""
    reason: str | None = None
    voices: tuple[dict[str, Any], ...] = ()
    checked: bool = False


@dataclass(frozen=True)
class Commented:
    """A person has said something about the question that a visit's attempt asks, and has not answered it."""

    seq: int
    attempt: int
    text: str
    by: str


@dataclass(frozen=True)
class Cancelled:
    """A request to end the run. With `keeps`, the run keeps its results: its parent failed and may be retried. `reason`
    is for people."""

    keeps: bool = False
    by: str = ""
    reason: str | None = None


@dataclass(frozen=True)
class Retried:
    """A request to continue a failed run where it failed; with `fresh_children`, its child runs start anew. Also the
    request of a parent to continue a child run, in any status."""

    fresh_children: bool = False
    by: str = ""


@dataclass(frozen=True)
class Paused:
    """A person or the parent run holds the run. Visits that run `timeout_ms` after that, or at `due_ms`, are stopped
    and run again later; both None: they end."""

    by: str
    reason: str | None = None
    owner: HoldOwner = ""
    timeout_ms: int | None = None
    due_ms: int | None = None


@dataclass(frozen=True)
class Resumed:
    """A person or the parent run ends its hold of the run. A person goes past the breakpoints at which the run had
    stopped by `seen_ms`, when it was asked for (None: past all, in entries of older releases)."""

    owner: HoldOwner = ""
    by: str = ""
    seen_ms: int | None = None


@dataclass(frozen=True)
class Skipped:
    """A person gives the output of the visit `seq`, which ends with it (runs/skips.py): a live visit, or one that
    failed the run, which goes on then. `to` are the nodes to go on at; empty: the edges say."""

    seq: int
    value: Any
    to: tuple[str, ...] = ()
    by: str = ""
    reason: str | None = None


@dataclass(frozen=True)
class LeaseLost:
    """The worker of a visit's attempt sends no heartbeats, or (`handed_back`) stopped and returned the visit
    unfinished. `begun`: the node's own work may have run. `restored`: no worker has the visit, but it must happen once,
    and it was queued before Redis may have lost writes. `lacks_directory`: the worker that returned it lacks the run's
    working directory. `stopped`: the deadline of a pause has come; when the attempt began, the journal had reached the
    step `seen`."""

    seq: int
    attempt: int
    worker: str
    handed_back: bool = False
    begun: bool = True
    restored: bool = False
    lacks_directory: bool = False
    stopped: bool = False
    seen: int | None = None


@dataclass(frozen=True)
class TimerFired:
    """A timer of the run came due."""

    name: str


@dataclass(frozen=True)
class ChildEnded:
    """The run that a visit's attempt waits for is over. Its output, if it has one, is delivered as a result, under the
    key RESULT. `usage` is the total cost of the run and its children; the event comes again when the total grows.
    `failed_visits` are those after which it went on, `failure` is why it failed. `refused`: it could not start. For a
    node with `map_out` the end is delivered under the key CHILD, as a text of `end_bytes`."""

    seq: int
    attempt: int
    child: str
    status: RunStatus | Literal["refused"]
    error: str | None = None
    usage: Mapping[str, Any] | None = None
    failed_visits: FailedVisits = NO_FAILED_VISITS
    failure: Failure | None = None
    end_bytes: int = 0


@dataclass(frozen=True)
class ChildGone:
    """The run that a visit's attempt wants to continue cannot go on: it has expired, or kept no results."""

    seq: int
    attempt: int
    child: str


@dataclass(frozen=True)
class Told:
    """A message from another run (transitions.TellRun)."""

    what: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class AwaitedAgain:
    """A visit may wait for the signals `name` again: one that was offered to it was withdrawn while its run was
    parked."""

    seq: int
    attempt: int
    name: str


@dataclass(frozen=True)
class Continued:
    """The next part of work that is too large for one event."""


@dataclass(frozen=True)
class Unreadable:
    """An entry that this release cannot read. Its run is parked until a scheduler of a newer release reads it, or (not
    `newer`) a person repairs it. `why` is the reason."""

    type: str
    why: str = ""
    newer: bool = True


Event: TypeAlias = (
    Submitted
    | TurnReached
    | Resulted
    | Answered
    | Commented
    | Cancelled
    | Retried
    | Paused
    | Resumed
    | Skipped
    | LeaseLost
    | TimerFired
    | ChildEnded
    | ChildGone
    | Told
    | AwaitedAgain
    | Continued
    | Unreadable
)

RUN_DEADLINE = "deadline"

PAST_DUE = "past"
"""The timer of a fork that has no state of its own: it takes that of its source before the source expires."""

PAUSE_DEADLINE = "pause"
"""The name of the timer at which a pause stops the visits that still run."""

SIGNALLED = "signalled"
"""The message that a signal has come for which a visit waits (runs/signals.py)."""

SLOT_GRANTED = "slot_granted"
"""The message that grants a run the slot with a `ticket`."""
