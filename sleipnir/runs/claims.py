"""Claims and deliveries: what a worker, or the process itself, asks of the store when it executes a visit, and the
answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sleipnir.messages import ResultHeader, VisitCall
from sleipnir.runs.conversation import SILENCE, StoredConversation
from sleipnir.runs.run import RunSpec
from sleipnir.runs.visits import Item, Part


@dataclass(frozen=True)
class Claim:
    """A visit that this worker has claimed. `state` holds JSON text by key: the requested keys, and all of the visit's
    overlay. `item` is its item of a map, `part` its part of a loop, and `talk` the conversation of that loop. `step` is
    the number of its super-step; in a `dag`, of the visits on its longest way from the start, itself included.
    `limited_from` is that of the run (RunView). `failures` of the visit were retried, and `input_changed`
    is as in Work, as far as the store says it."""

    spec: RunSpec
    started_ms: int
    state: Mapping[str, str]
    item: Item | None = None
    part: Part | None = None
    talk: StoredConversation = SILENCE
    step: int = 0
    limited_from: int = 0
    failures: int = 0
    input_changed: bool = False


@dataclass(frozen=True)
class ClaimRefused:
    """Not claimed, a normal outcome: `gone` (visit or run is over), `stale` (a newer attempt exists), `taken`,
    `paused`; for a visit that must run once, `restored` (a person is asked) or `unsettled` (it is published again);
    `forged`: the message names another bundle, agent, node or role than the run's records; `unreadable`: these records
    cannot be read."""

    reason: str


@dataclass(frozen=True)
class WantedVisit:
    """What a worker asks for when it claims a visit. `wanted` are the state keys to read, None: all."""

    call: VisitCall
    token: str
    wanted: Collection[str] | None


@dataclass(frozen=True)
class VisitDelivery:
    """A result to deliver; `values` is JSON text by state key. `token` is that of the claim."""

    call: VisitCall
    header: ResultHeader
    values: Mapping[str, str]
    token: str
