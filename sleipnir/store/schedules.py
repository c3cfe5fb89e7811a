"""Schedules in Redis: added and changed by clients, fired by schedulers.

1. Every change is one script, and names the revision that it is based on. So of a scheduler that fires, another one
   that disputes its partition and a person who edits, one changes the schedule, and the others read it again. A
   revision is a random token: after Redis was restored, a decision that is based on lost changes is refused.
2. The fires that a change makes are effects of it: the run of a fire, whose id follows from the schedule and the time,
   is started at least once, and exists once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from sleipnir.access.audit import KEEP_MS
from sleipnir.decoding import decoded, read_text
from sleipnir.errors import RecordUnreadable, ScheduleNotFound, UsageError
from sleipnir.messages import FINAL, RunStatus
from sleipnir.runs.run import RunSpec
from sleipnir.runs.shared_values import names_of
from sleipnir.runs.transitions import CancelBatch, StartBatch, StartScheduled, TellChild, effect_fields
from sleipnir.schedules import firing
from sleipnir.schedules.firing import DueFires, StartedRun
from sleipnir.schedules.records import (
    MOST_FIRES,
    Fire,
    ScheduleInfo,
    ScheduleInputs,
    ScheduleOrigin,
    SchedulePlan,
    ScheduleProgress,
)
from sleipnir.store.connect import Client, clock_ms
from sleipnir.store.keys import Keys, ScheduleKeys
from sleipnir.store.record_text import dumps, record, text
from sleipnir.store.records import PinnedDigests
from sleipnir.store.runs.run_infos import status_of
from sleipnir.store.scripts import Arg, LuaScript
from sleipnir.store.shared_values import SharedValues

_WRITE = LuaScript("schedule_write")

PAGE: Final = 200
"""Schedules that are read at once."""

AGAIN_MS: Final = 60_000
"""When a schedule is looked at again that this release cannot fire."""

SHOWN_TIMES: Final = 5

_RECORDS: Final = ("rev", "plan", "batch_plan", "progress", "origin")
_NEW: Final = "inf"


@dataclass(frozen=True)
class StoredSchedule:
    """A schedule, as it is decided about. `active`: the run, or the batch, that it has started last is not over."""

    name: str
    rev: str
    plan: SchedulePlan
    progress: ScheduleProgress
    origin: ScheduleOrigin
    active: bool = False


@dataclass(frozen=True)
class ScheduledSpec:
    """What the runs of a schedule are submitted with: the spec, and the state that they begin with, as it was computed
    from `inputs`. `token` is that of the schedule."""

    token: str
    spec: RunSpec
    begin: Mapping[str, Any]
    inputs: ScheduleInputs


class Schedules:
    """The operations of clients and schedulers on schedules. `entry` is the text of an entry of the audit
    (access/audit.py), which is written with the change and kept for `audit_ms`; empty for what no person has asked."""

    def __init__(self, client: Client, keys: Keys, shared: SharedValues, *, audit_ms: int = KEEP_MS) -> None:
        self._client, self._keys, self._shared, self._audit_ms = client, keys, shared, audit_ms

    def now_ms(self) -> int:
        return clock_ms(self._client)

    # Clients

    def add(
        self,
        name: str,
        plan: SchedulePlan,
        origin: ScheduleOrigin,
        definition: ScheduledSpec,
        now_ms: int,
        *,
        entry: str = "",
    ) -> None:
        """Raises UsageError if there is a schedule of this name."""
        progress = firing.begun(plan, None, now_ms)
        fields = {_plan_field(plan): record(plan), "progress": record(progress), "origin": record(origin)}
        look_ms = firing.look_ms(name, plan, progress, now_ms)
        fields |= _definition_fields(definition)
        if not self._write(name, "", new_token(), look_ms, fields, token=origin.token, entry=entry):
            raise _taken(name)

    def refuse_taken(self, name: str) -> None:
        """Raises UsageError if there is a schedule of this name."""
        if self._client.exists(self._keys.of_schedule(name).schedule):
            raise _taken(name)

    def change(
        self,
        of: StoredSchedule,
        plan: SchedulePlan,
        progress: ScheduleProgress,
        origin: ScheduleOrigin,
        definition: ScheduledSpec | None = None,
        *,
        entry: str = "",
    ) -> bool:
        """False: it has changed since it was read."""
        fields = {_plan_field(plan): record(plan), "progress": record(progress), "origin": record(origin)}
        if definition is not None:
            fields |= _definition_fields(definition)
        look_ms = firing.look_ms(of.name, plan, progress, self.now_ms())
        return self._write(of.name, of.rev, new_token(), look_ms, fields, entry=entry)

    def remove(self, name: str, *, entry: str = "") -> bool:
        """False: there is no such schedule. One that no release can read can be removed too."""
        while rev := self._client.hget(self._keys.of_schedule(name).schedule, "rev"):
            if self._write(name, rev, "", None, {}, entry=entry):
                return True
        return False

    def get(self, name: str) -> StoredSchedule:
        """Raises ScheduleNotFound and RecordUnreadable."""
        reply = self._client.hmget(self._keys.of_schedule(name).schedule, _RECORDS)
        if reply[0] is None:
            raise _not_found(name)
        return _stored(name, reply)

    def definition(self, name: str) -> ScheduledSpec:
        """Raises ScheduleNotFound and RecordUnreadable."""
        found = self.definitions([name])
        if name not in found:
            raise _not_found(name)
        return found[name]

    def definitions(self, names: Collection[str]) -> dict[str, ScheduledSpec]:
        """What the runs of schedules are submitted with; removed ones are left out. One round trip. Raises
        RecordUnreadable."""
        if not names:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.hmget(self._keys.of_schedule(name).schedule, ["origin", "spec", "begin", "inputs"])
        replies = zip(names, pipe.execute(), strict=True)
        return {name: _definition(name, reply) for name, reply in replies if reply[0] is not None}

    def run_of(self, name: str, definition: ScheduledSpec, at_ms: int) -> tuple[RunSpec, dict[str, Any]]:
        """What the run of a fire is submitted with: with the shared values of now, where it was given none."""
        spec = replace(definition.spec, schedule=name, fired_ms=at_ms)
        shared = self._shared.for_state(names_of(spec)) if spec.scopes else {}
        given = definition.inputs.given
        return spec, {**definition.begin, **{key: value for key, value in shared.items() if key not in given}}

    def infos(self, names: Sequence[str]) -> list[ScheduleInfo | None]:
        """Several schedules in one round trip; None for a missing one."""
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.hmget(self._keys.of_schedule(name).schedule, [*_RECORDS, "spec"])
        return [_info(name, reply) for name, reply in zip(names, pipe.execute(), strict=True)]

    def names(self) -> list[str]:
        """All schedules, by name."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.zrange(self._keys.of_partition(partition).schedules, 0, -1)
        return sorted(name for names in pipe.execute() for name in names)

    def log(self, name: str, limit: int) -> list[Fire]:
        """The newest entries of the log. One that cannot be read is left out."""
        found = []
        for entry in self._client.lrange(self._keys.of_schedule(name).log, 0, limit - 1):
            try:
                found.append(read_text(Fire, entry, "fire", name))
            except RecordUnreadable:
                continue
        return found

    def statuses(self, run_ids: Sequence[str]) -> list[RunStatus | None]:
        """The statuses of runs; None: one has not begun, or has expired."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hmget(self._keys.of_run(run_id).run, ["status", "retrying"])
        return [status_of(*reply) for reply in pipe.execute()]  # type: ignore[misc]

    def pinned(self) -> PinnedDigests:
        """The digests that the runs of all schedules will need."""
        bundles: set[str] = set()
        bases: set[str] = set()
        names = iter(self.names())
        while page := list(islice(names, PAGE)):
            pipe = self._client.pipeline(transaction=False)
            for name in page:
                pipe.hget(self._keys.of_schedule(name).schedule, "spec")
            for spec in filter(None, pipe.execute()):
                pinned = PinnedDigests.of_spec(spec)
                bundles |= pinned.bundles
                bases |= pinned.bases
        return PinnedDigests(frozenset(bundles), frozenset(bases))

    # Schedulers

    def due(self, partitions: Collection[int]) -> list[str]:
        """The schedules of partitions that are to be looked at, up to PAGE of each. One round trip if there are
        none."""
        if not partitions:
            return []
        numbers = list(partitions)
        pipe = self._client.pipeline(transaction=False)
        for number in numbers:
            pipe.zrange(self._keys.of_partition(number).schedules, 0, 0, withscores=True)
        pipe.time()
        *firsts, time = pipe.execute()
        now_ms = time[0] * 1000 + time[1] // 1000
        waiting = [number for number, first in zip(numbers, firsts, strict=True) if first and first[0][1] <= now_ms]
        return [name for number in waiting for name in self._due_in(number, now_ms)]

    def _due_in(self, partition: int, now_ms: int) -> list[str]:
        index = self._keys.of_partition(partition).schedules
        names: list[str] = self._client.zrangebyscore(index, "-inf", now_ms, start=0, num=PAGE)
        return names

    def in_partition(self, partition: int) -> list[str]:
        """All schedules of a partition."""
        names: list[str] = self._client.zrange(self._keys.of_partition(partition).schedules, 0, -1)
        return names

    def read(self, names: Sequence[str]) -> tuple[dict[str, StoredSchedule | RecordUnreadable], int]:
        """These schedules, as far as they are there, and the time. Two round trips."""
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.hmget(self._keys.of_schedule(name).schedule, [*_RECORDS, "effect"])
        pipe.time()
        *replies, time = pipe.execute()
        found: dict[str, StoredSchedule | RecordUnreadable] = {}
        last: dict[str, tuple[StoredSchedule, str]] = {}
        for name, (*texts, effect) in zip(names, replies, strict=True):
            if texts[0] is None:
                continue
            try:
                found[name] = stored = _stored(name, texts)
            except RecordUnreadable as error:
                found[name] = error
                continue
            if stored.progress.last_run is not None:
                last[name] = (stored, effect or "")
        for name in self._active(last):
            schedule = found[name]
            assert isinstance(schedule, StoredSchedule)
            found[name] = replace(schedule, active=True)
        return found, time[0] * 1000 + time[1] // 1000

    def _active(self, last: Mapping[str, tuple[StoredSchedule, str]]) -> list[str]:
        """The schedules whose last run or batch is not over; also if it has not begun, because its effect is not
        delivered."""
        if not last:
            return []
        pipe = self._client.pipeline(transaction=False)
        for name, (stored, effect) in last.items():  # the effect first: once it is delivered, the run is there
            effects = self._keys.of_partition(self._keys.of_schedule(name).partition).effects
            pipe.xrange(effects, effect or "0-1", effect or "0-1")
            if stored.plan.batch is None:
                pipe.hmget(self._keys.of_run(str(stored.progress.last_run)).run, ["status", "retrying"])
            else:
                pipe.hmget(self._keys.of_batch(str(stored.progress.last_run)).batch, ["created_ms", "ended_ms"])
        replies = pipe.execute()
        return [
            name
            for (name, (stored, _)), owed, reply in zip(last.items(), replies[::2], replies[1::2], strict=True)
            if (_goes_on(stored.plan, reply) if reply[0] is not None else owed)
        ]

    def apply(self, of: StoredSchedule, decision: DueFires, *, entry: str = "") -> bool:
        """Make the fires of a decision. False: the schedule has changed since it was read, and nothing is done."""
        effects = [_effect(of, effect) for effect in decision.effects]
        fields = {"progress": record(decision.progress)}
        return self._write(of.name, of.rev, new_token(), decision.look_ms, fields, decision.log, effects, entry=entry)

    def defer(self, name: str, now_ms: int) -> None:
        """Look at a schedule later, which cannot be fired here."""
        index = self._keys.of_partition(self._keys.of_schedule(name).partition).schedules
        self._client.zadd(index, {name: now_ms + AGAIN_MS}, xx=True)

    def _write(
        self,
        name: str,
        rev: str,
        next_rev: str,
        look_ms: int | None,
        fields: Mapping[str, str],
        log: Sequence[Fire] = (),
        effects: Sequence[str] = (),
        *,
        token: str = "",
        entry: str = "",
    ) -> bool:
        keys = self._keys.of_schedule(name)
        args: dict[str, Arg] = {
            "name": name, "rev": rev, "next_rev": next_rev, "look_ms": _NEW if look_ms is None else look_ms,
            "most": MOST_FIRES, "fields": len(fields), "entries": len(log), "entry": entry, "keep_ms": self._audit_ms,
        }  # fmt: skip
        rest: list[Arg] = [part for pair in fields.items() for part in pair]
        return bool(_WRITE(self._client, self._script_keys(keys, token), args, [*rest, *map(record, log), *effects]))

    def _script_keys(self, keys: ScheduleKeys, token: str) -> dict[str, str]:
        part = self._keys.of_partition(keys.partition)
        return {
            "schedule": keys.schedule, "log": keys.log, "index": part.schedules, "effects": part.effects,
            "audit": part.audit, "rows": keys.rows, "staged": keys.staged_rows(token),
        }  # fmt: skip


def new_token() -> str:
    """A random name of a schedule among those with its name, or of a change."""
    return secrets.token_hex(8)


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule {name!r}; `sleipnir schedule ls` lists them")


def _taken(name: str) -> UsageError:
    return UsageError(f"there is a schedule {name!r}: change it with `edit`, or remove it first")


def _definition_fields(definition: ScheduledSpec) -> dict[str, str]:
    inputs = definition.inputs
    return {
        "spec": record(definition.spec),
        "begin": dumps(dict(definition.begin)),
        "inputs": json.dumps({**vars(inputs), "given": list(inputs.given)}),
    }


def _definition(name: str, reply: Sequence[str | None]) -> ScheduledSpec:
    """Raises RecordUnreadable."""
    origin, spec, begin, inputs = (part or "" for part in reply)
    where = f"schedule {name!r}"
    values = decoded(begin, "state", where)  # whose keys are the user's: a `v` is no version
    if type(values) is not dict:
        raise RecordUnreadable("state", where, "damaged: a JSON object is needed")
    return ScheduledSpec(
        read_text(ScheduleOrigin, origin, "origin", where).token,
        read_text(RunSpec, spec, "spec", where),
        values,
        read_text(ScheduleInputs, inputs, "inputs", where),
    )


def _plan_field(plan: SchedulePlan) -> str:
    return "plan" if plan.batch is None else "batch_plan"


def _goes_on(plan: SchedulePlan, reply: Sequence[str | None]) -> bool:
    """Whether a run (status, retrying) or a batch (created_ms, ended_ms) that is there is not over."""
    if plan.batch is not None:
        return reply[1] is None
    return status_of(*reply) not in FINAL


def _effect(of: StoredSchedule, effect: StartedRun | str) -> str:
    if of.plan.batch is not None:
        if isinstance(effect, StartedRun):
            return text(effect_fields(StartBatch(of.name, of.origin.token, effect.run, effect.at_ms)))
        return text(effect_fields(CancelBatch(of.name, effect)))
    if isinstance(effect, StartedRun):
        return text(effect_fields(StartScheduled(of.name, of.origin.token, effect.run, effect.at_ms)))
    return text(effect_fields(TellChild(effect, "cancelled", f"schedule {of.name}")))


def _stored(name: str, texts: Sequence[str | None]) -> StoredSchedule:
    """Raises RecordUnreadable."""
    rev, plan, batch_plan, progress, origin = texts
    where = f"schedule {name!r}"
    return StoredSchedule(
        name,
        rev or "",
        read_text(SchedulePlan, batch_plan or plan or "", "plan", where),
        read_text(ScheduleProgress, progress or "", "progress", where),
        read_text(ScheduleOrigin, origin or "", "origin", where),
    )


def _info(name: str, reply: Sequence[str | None]) -> ScheduleInfo | None:
    *texts, spec = reply
    if texts[0] is None:
        return None
    try:
        stored = _stored(name, texts)
        runs = read_text(RunSpec, spec or "", "spec", f"schedule {name!r}")
        times = _next_times(stored)
    except (RecordUnreadable, UsageError) as error:  # a time zone that this machine does not know
        return ScheduleInfo(name, "unreadable", unreadable=str(error))
    progress = stored.progress
    over = progress.next_ms is None and progress.waiting_ms is None
    state = "over" if over else "paused" if progress.paused is not None else "active"
    return ScheduleInfo(
        name, state, runs.agent, stored.plan, progress, stored.origin, times,  # type: ignore[arg-type]
        namespace=runs.namespace,
    )  # fmt: skip


def _next_times(stored: StoredSchedule) -> tuple[int, ...]:
    next_ms = stored.progress.next_ms
    if next_ms is None:
        return ()
    return (next_ms, *islice(stored.plan.timing.times_after(next_ms), SHOWN_TIMES - 1))
