"""Effects of commits on other runs (start a child; notify a child, a parent or a batch), of batches (start a run for a
row) and of schedules (start the run of a fire). The owner of the partition delivers them.

Entries of a partition are delivered in order, each at least once; every delivery may be repeated. Many are delivered in
few round trips: read their inputs, check that they are still owed, deliver, and delete.

The nodes of a cluster fail over one by one, and lose what they have written last. So the effects that were delivered to
another partition are kept for a while, and are delivered again when that begins a new generation
(services/redeliveries.py). They have the same numbers as before, so that its runs take only what they have lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from sleipnir.batches.records import BatchFork, parse_place, place_of, row_run_id
from sleipnir.decoding import decoded, read_text
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import FINAL
from sleipnir.runs.child_run import MOST_RETURNED, child_text, wanted_keys
from sleipnir.runs.events import SIGNALLED
from sleipnir.runs.run import RunSpec
from sleipnir.runs.sessions import SessionName
from sleipnir.runs.shared_values import names_of
from sleipnir.runs.signals import Signalled
from sleipnir.runs.transitions import (
    CancelBatch,
    Effect,
    ForkRow,
    RetryChild,
    RetryRow,
    ShareValues,
    StartBatch,
    StartChild,
    StartRow,
    TellRun,
    effect_fields,
    effect_of,
    kind_of,
)
from sleipnir.runs.views import RunInfo
from sleipnir.store.batches import Batches
from sleipnir.store.connect import Client, is_lasting
from sleipnir.store.dead_letters import DeadLetters
from sleipnir.store.keys import Keys, session_keys
from sleipnir.store.record_text import dumps, record
from sleipnir.store.runs import Runs
from sleipnir.store.runs.requests import NO_FENCE, Fence
from sleipnir.store.scheduled_batches import ScheduledBatches
from sleipnir.store.schedules import Schedules
from sleipnir.store.scripts import Arg, LuaScript, RedisCommand, run_in_order
from sleipnir.store.shared_values import SharedValues
from sleipnir.store.signals import Signals
from sleipnir.store.slots import Slots
from sleipnir.store.stream_watch import StreamWatch
from sleipnir.store.streams import entries

_CHILD_ENDED = LuaScript("child_ended")
_RETRY_CHILD = LuaScript("retry_child")
_TELL_ROOT = LuaScript("tell_root")

KEPT_MS = 20_000
"""How long delivered effects are kept: longer than the last writes that a replica may lack (`min-replicas-max-lag`)."""
MOST_KEPT = 100_000
KEPT_PAGE = 100

RowBeginning: TypeAlias = tuple[BatchFork, dict[str, Any]]
"""Where the rows of a batch of forks begin, and with which values."""

_EXISTS, _BUSY = 0, -1  # the replies of create_run.lua if the run is there already, or another run has the session
_GONE = 0  # the reply of retry_child.lua if a child cannot continue


@dataclass(frozen=True)
class OwedEffect:
    """An effect of a commit of `run`. `effect` is None for an effect of a newer release, and for one that no release
    can read, with the reason in `damage`."""

    id: str
    partition: int
    run: str
    effect: Effect | None
    damage: str | None = None

    @property
    def fence(self) -> Fence:
        """The fence with which its target recognises it and earlier effects of the same kind and partition."""
        return Fence(f"{kind_of(self.effect)}:{self.partition}" if self.effect else "", self.id)

    @property
    def slot_fence(self) -> Fence:
        """The fence with which a set of slots recognises it and earlier effects of the partition, of any kind."""
        return Fence(str(self.partition), self.id)


@dataclass(frozen=True)
class EndedRun:
    """The end of a run, and the visit of its parent that waits for it, if it is not the visit in its spec. `state` are
    the JSON texts of the state keys that it returns."""

    info: RunInfo
    output: str | None
    seq: int | None = None
    attempt: int | None = None
    state: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Delivery:
    """The command that delivers an effect; None: nothing to do."""

    owed: OwedEffect
    command: RedisCommand | None


class Effects:
    """`runs` is how runs are created and told, `batches` how batches are, `slots` how slots are asked for, `signals`
    how signals are awaited, `shared` how shared values are written; `schedules` has what their runs are submitted
    with, `scheduled_batches` how their batches are made."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        runs: Runs,
        batches: Batches,
        slots: Slots,
        signals: Signals,
        shared: SharedValues,
        schedules: Schedules,
        scheduled_batches: ScheduledBatches,
    ) -> None:
        self._client, self._keys, self.runs, self._batches = client, keys, runs, batches
        self.schedules, self.scheduled_batches = schedules, scheduled_batches
        self.slots, self.signals, self.dead_letters = slots, signals, DeadLetters(client, keys)
        self._shared, self._watch = shared, StreamWatch(client)
        self._after: Mapping[int, str] = {}
        self._streams: tuple[Mapping[str, int], Mapping[str, str]] = ({}, {})
        """The streams that were read last, and after which entries: mostly the same ones again."""

    def read(self, after: Mapping[int, str], *, limit: int, block_ms: int | None) -> list[OwedEffect]:
        """The oldest undelivered effects of partitions after an entry ("0-0": all), up to `limit` each; waits up to
        `block_ms` (None: not) for the first."""
        if not after:
            return []
        if after != self._after:
            names = {self._of(partition): partition for partition in after}
            self._after = dict(after)
            self._streams = names, {name: after[partition] for name, partition in names.items()}
        streams, start = self._streams
        owed = []
        for name, batches in self._watch.read(start, count=limit, block_ms=block_ms).items():
            for id_, fields in entries({name: batches}):
                owed.append(_owed(id_, streams[name], fields))
        return owed

    def specs(self, run_ids: Collection[str]) -> dict[str, RunSpec]:
        """The specs of runs; expired runs are left out."""
        if not run_ids:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.get(self._keys.of_run(run_id).spec)
        texts = zip(run_ids, pipe.execute(), strict=True)
        return {run_id: read_text(RunSpec, text, "spec", run_id) for run_id, text in texts if text}

    def batches_of(self, run_ids: Collection[str]) -> dict[str, str]:
        """RunView.batch of the runs that have one."""
        if not run_ids:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hget(self._keys.of_run(run_id).run, "batch")
        return {run_id: place for run_id, place in zip(run_ids, pipe.execute(), strict=True) if place}

    def specs_of_rows(self, batches: Collection[str]) -> dict[str, RunSpec]:
        """The specs of the rows of batches; expired batches are left out."""
        specs = {batch: self._batches.spec(batch) for batch in batches}
        return {batch: spec for batch, spec in specs.items() if spec is not None}

    def written(self, owed: Sequence[OwedEffect]) -> dict[tuple[int, str], dict[str, str]]:
        """The JSON texts of the state keys that effects write back, by partition and id of the effect; an expired run
        has none."""
        sharing = [(each, each.effect) for each in owed if isinstance(each.effect, ShareValues)]
        if not sharing:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for each, effect in sharing:
            pipe.hmget(self._keys.of_run(each.run).state, effect.keys)
        return {
            (each.partition, each.id): {
                key: text for key, text in zip(effect.keys, texts, strict=True) if text is not None
            }
            for (each, effect), texts in zip(sharing, pipe.execute(), strict=True)
        }

    def shared_by(self, spec: RunSpec) -> dict[str, Any]:
        """The shared values that a run with this spec begins with, by state key."""
        return self._shared.for_state(names_of(spec))

    def share(self, owed: OwedEffect, spec: RunSpec, scope: str, texts: Mapping[str, str]) -> RedisCommand | None:
        """Write values of a run back, by state key; None: the run has no such values."""
        name = next((name for name in names_of(spec) if name.scope == scope), None)
        if name is None or not texts:
            return None
        return self._shared.share(owed.slot_fence, name, {key[len(scope) :]: text for key, text in texts.items()})

    def forks_of_rows(self, batches: Collection[str]) -> dict[str, RowBeginning]:
        """Where the rows of batches of forks begin, and with which values; expired batches are left out."""
        forks = {batch: self._batches.fork_of(batch) for batch in batches}
        return {batch: fork for batch, fork in forks.items() if fork is not None}

    def with_states(self, ends: Mapping[str, EndedRun], specs: Mapping[str, RunSpec]) -> dict[str, EndedRun]:
        """The same ends, with the states that the runs return. One that goes on meanwhile is left out: it notifies its
        parent at its next end."""
        ends = dict(ends)
        for run_id, spec in specs.items():
            if run_id not in ends or spec.returns is None:
                continue
            run, keys = self._keys.of_run(run_id), wanted_keys(spec.returns)
            pipe = self._client.pipeline(transaction=True)
            pipe.hmget(run.run, ["status", "retrying"])
            if keys != []:
                pipe.hgetall(run.state) if keys is None else pipe.hmget(run.state, keys)
            (status, retrying), *read_ = pipe.execute()
            if status not in FINAL or retrying:
                del ends[run_id]
            elif read_:
                values = read_[0] if keys is None else dict(zip(keys, read_[0], strict=True))
                state = {key: text for key, text in values.items() if text is not None}
                ends[run_id] = replace(ends[run_id], state=state)
        return ends

    def ends(self, run_ids: Sequence[str]) -> dict[str, EndedRun]:
        """The ends of runs; unfinished and expired runs are left out."""
        if not run_ids:
            return {}
        # The waiting visit is read first: a run that is retried in between has another one, and notifies it at its end.
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hmget(self._keys.of_run(run_id).run, ["parent_seq", "parent_attempt"])
        waiting = pipe.execute()
        ends = zip(run_ids, self.runs.find(run_ids), self.runs.outputs(run_ids), waiting, strict=True)
        return {
            run_id: EndedRun(info, output, _number(visit[0]), _number(visit[1]))
            for run_id, info, output, visit in ends
            if info is not None and info.is_final
        }

    def deliver(
        self,
        deliveries: Sequence[Delivery],
        max_state_bytes: int = MOST_RETURNED,
        generations: Mapping[int, str] | None = None,
    ) -> list[tuple[OwedEffect, str]]:
        """Deliver the effects that are still owed; those to other partitions with one of the `generations` are kept
        for a while. Effects of one partition for one target are delivered in order: none
        overtakes a refused one. Returns the effects that Redis always refuses, and why: they must become dead letters,
        or they and their successors are read again. Raises redis-py's errors for problems of server or connection."""
        return self._send(self._still_owed(deliveries), max_state_bytes, generations or {})

    def deliver_again(
        self, deliveries: Sequence[Delivery], max_state_bytes: int = MOST_RETURNED
    ) -> list[tuple[OwedEffect, str]]:
        """Deliver effects that were delivered before, as `deliver` does."""
        return self._send(deliveries, max_state_bytes, None)

    def _send(
        self, owed: Sequence[Delivery], max_state_bytes: int, generations: Mapping[int, str] | None
    ) -> list[tuple[OwedEffect, str]]:
        """`generations` None: they were delivered before."""
        refused: dict[tuple[int, Arg], tuple[OwedEffect, Exception]] = {}
        while owed:
            wave, owed = _next_wave(owed, refused.keys())
            sent = [(each.owed, each.command) for each in wave if each.command is not None]
            replies = run_in_order(self._client, [command for _, command in sent])
            refused |= {
                _way(each, command): (each, reply)
                for (each, command), reply in zip(sent, replies, strict=True)
                if isinstance(reply, Exception)
            }
            answers = [(each, reply) for (each, _), reply in zip(sent, replies, strict=True)]
            self._follow_up([answer for answer in answers if not isinstance(answer[1], Exception)], max_state_bytes)
            if generations is not None:
                done = [each for each in wave if each.command is None or _way(each.owed, each.command) not in refused]
                self._done(done, generations)
        for _, error in refused.values():
            if not is_lasting(error):
                raise error
        return [(each, f"Redis refuses it: {error}") for each, error in refused.values()]

    def _still_owed(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """The deliveries that no other scheduler has made since they were read. This only saves work: if two schedulers
        deliver at once, the target refuses the second delivery (sleipnir/store/lua/README.md)."""
        pipe = self._client.pipeline(transaction=False)
        for each in deliveries:
            pipe.xrange(self._of(each.owed.partition), each.owed.id, each.owed.id)
        return [each for each, entry in zip(deliveries, pipe.execute(), strict=True) if entry]

    def _done(self, done: Sequence[Delivery], generations: Mapping[int, str]) -> None:
        """Delete delivered effects, and keep those of which others may lose what they have received."""
        by_partition: dict[int, list[str]] = {}
        pipe = self._client.pipeline(transaction=False)
        for each in done:
            owed, to = each.owed, self.target(each) if generations else None
            by_partition.setdefault(owed.partition, []).append(owed.id)
            if to is not None and to != owed.partition and owed.effect is not None and to in generations:
                kept: dict[Any, Any] = {"run": owed.run, "e": dumps(effect_fields(owed.effect)), "was": owed.id}
                key = self._keys.of_partition(owed.partition).delivered
                pipe.xadd(key, kept | {"to": to, "generation": generations[to]}, maxlen=MOST_KEPT)
        for partition, ids in by_partition.items():
            pipe.xdel(self._of(partition), *ids)
        pipe.execute()

    def target(self, delivery: Delivery) -> int | None:
        """The partition that an effect changes; None: none."""
        match delivery.owed.effect:
            case ForkRow(batch, row):
                return self._keys.partition_of(row_run_id(batch, row))
            case StartBatch(batch=batch) | CancelBatch(batch=batch):
                return self._keys.partition_of_batch(batch)
        return None if delivery.command is None else self._keys.partition_of_key(str(delivery.command.vector[0]))

    def kept(self, partitions: Collection[int], generations: Mapping[int, str]) -> Iterator[list[OwedEffect]]:
        """The effects of partitions that were delivered to others before these began their generations, in the order of
        their delivery, some at a time."""
        after = dict.fromkeys(partitions, "-")
        while after:
            pipe = self._client.pipeline(transaction=False)
            for partition, id_ in after.items():
                pipe.xrange(self._keys.of_partition(partition).delivered, id_, "+", count=KEPT_PAGE)
            pages = dict(zip(after, pipe.execute(), strict=True))
            for partition, page in pages.items():
                if before := [
                    _owed(fields["was"], partition, fields)
                    for _, fields in page
                    if generations.get(int(fields["to"]), fields["generation"]) != fields["generation"]
                ]:
                    yield before
            after = {partition: f"({page[-1][0]}" for partition, page in pages.items() if len(page) == KEPT_PAGE}

    def forget_kept(self, partitions: Collection[int], before_ms: int) -> None:
        """Forget effects that were delivered before a time: others have not lost them."""
        pipe = self._client.pipeline(transaction=False)
        for partition in partitions:
            pipe.xtrim(self._keys.of_partition(partition).delivered, minid=max(0, before_ms), approximate=False)
        pipe.execute(raise_on_error=False)

    def _follow_up(self, answers: Sequence[tuple[OwedEffect, Any]], max_state_bytes: int) -> None:
        """Notify parents of children that cannot start or continue, or that need not. A run that is there already may
        have ended, and the run or batch that waits for it may have lost its end."""
        commands, over, rows = [], [], []
        for owed, reply in answers:
            match owed.effect:
                case StartChild(child, seq=seq, attempt=attempt) if isinstance(reply, list) and reply[0] == _BUSY:
                    why = f"its session is busy with run {reply[1]}, and takes one at a time"
                    commands.append(self.refuse(owed.run, seq, attempt, child, why))
                case StartChild(child) if isinstance(reply, list) and reply[0] == _EXISTS:
                    over.append(child)
                case StartRow(batch, row) if isinstance(reply, list) and reply[0] == _EXISTS:
                    rows.append(place_of(batch, row))
                case RetryChild(child, _, seq, attempt) if reply == _GONE:
                    fields = ("seq", str(seq), "attempt", str(attempt), "child", child)
                    commands.append(self.runs.notification(owed.run, "child_gone", *fields))
                case RetryChild(child):
                    over.append(child)
                case TellRun(run, what, data) if what == SIGNALLED and (reply is None or reply in FINAL):
                    signal = Signalled.of(data)
                    commands.append(self.signals.gone(signal.name, run, signal.seq, signal.attempt))
                case RetryRow(batch, row) if reply is None:
                    why = "it cannot be retried: its run has expired"
                    commands.append(self._batches.refused(place_of(batch, row), why))
        specs = self.specs(over)
        ends = self.with_states(self.ends(over), specs)
        commands += [
            self.notify_parent(specs[child], end, max_state_bytes)
            for child, end in ends.items()
            if child in specs and specs[child].parent is not None
        ]
        commands += self.ends_of_rows(rows)
        for answer in run_in_order(self._client, commands):
            if isinstance(answer, Exception):
                raise answer

    def ends_of_rows(self, places: Sequence[str]) -> list[RedisCommand]:
        """What tells batches of those rows (batches.place_of) whose runs are over."""
        runs = {row_run_id(*parse_place(place)): place for place in places}
        ends = self.ends(list(runs))
        pipe = self._client.pipeline(transaction=False)
        for run_id in ends:
            pipe.hget(self._keys.of_run(run_id).run, "end_version")
        versions = zip(ends.items(), pipe.execute() if ends else (), strict=True)
        return [self.notify_batch(runs[run_id], int(version or 0), end) for (run_id, end), version in versions]

    # The commands that deliver effects

    def start(self, child: str, spec: RunSpec, state: Mapping[str, Any], batch: str = "") -> RedisCommand:
        """Accept a child run, or the run of a row; an existing run is unchanged. `batch` is RunView.batch."""
        return self.runs.creation(child, spec, state, batch)

    def retry_row(self, batch: str, row: int, version: int | None) -> RedisCommand:
        """Continue the failed run of a row. No effect on a run that did not fail, or that ended with another version,
        because it has continued since."""
        return self.runs.notification_once(
            row_run_id(batch, row), "retried", NO_FENCE, "by", f"batch {batch}", version=version
        )

    def notify_batch(self, place: str, version: int, ended: EndedRun) -> RedisCommand:
        """Let a batch know how one of its rows has ended."""
        return self._batches.ended(place, ended.info.status, version, ended.info.usage, ended.info.failed_visits.count)

    def refuse_row(self, place: str, error: str, text: str) -> RedisCommand:
        """Let a batch know that one of its rows cannot become a run."""
        return self._batches.refused(place, error, text)

    def retry(self, parent: str, child: str, seq: int, attempt: int, session: SessionName | None) -> RedisCommand:
        """Let a child run, which may be in a session, continue for this attempt of a visit of its parent, which it
        notifies from now on. For the replies see retry_child.lua."""
        run, partition = self._keys.of_run(child), self._keys.of_partition(self._keys.partition_of(child))
        in_session = None if session is None else self._keys.of_session(session)
        keys = {"run": run.run, "frontier": run.frontier, "inbox": partition.inbox}
        keys["session"] = session_keys(run, in_session)["session"]
        args: dict[str, Arg] = {"run_id": child, "seq": seq, "attempt": attempt, "by": f"run {parent}"}
        return RedisCommand(_RETRY_CHILD, _RETRY_CHILD.vector(keys, args))

    def notify_child(
        self, fence: Fence, child: str, what: str, by: str, *, keeps: bool = False, due_ms: int | None = None
    ) -> RedisCommand:
        """Pass on to a child what became of its parent; one that is over, or gone, is left alone."""
        match what:
            case "paused":
                fields: tuple[str, ...] = ("by", by, "reason", "", "owner", "parent")
                if due_ms is not None:
                    what, fields = "paused_until", (*fields, "due_ms", str(due_ms))
            case "resumed":
                fields = ("owner", "parent", "by", by)
            case _:
                fields = ("by", by, *(("keeps", "1") if keeps else ()))
        return self.runs.notification_once(child, what, fence, *fields)

    def notify_run(self, fence: Fence, run_id: str, what: str, data: Mapping[str, Any]) -> RedisCommand:
        """Let a run know something; one that is over, or gone, is left alone."""
        return self.runs.notification_once(run_id, "told", fence, "what", what, "data", dumps(data))

    def notify_parent(self, spec: RunSpec, ended: EndedRun, max_state_bytes: int) -> RedisCommand:
        """Let the visit that waits for a child know how that has ended. The state that the child returns may have so
        many bytes."""
        assert spec.parent is not None
        info = ended.info
        usage = dumps(asdict(info.usage)) if info.usage.calls else ""
        output = "" if ended.output is None else dumps(ended.output)
        visit = (spec.parent, ended.seq or spec.parent_seq, ended.attempt or spec.parent_attempt)
        failed = info.failed_visits.without_ending()
        failed_text = record(failed) if failed.count else ""
        cause = "" if info.failure is None else record(info.failure)
        if spec.returns is None:
            return self._child_ended(*visit, info.id, info.status, info.error or "", usage, output, failed_text, cause)
        end = child_text(
            run=info.id,
            agent=spec.agent,
            status=info.status,
            output=ended.output,
            error=info.error,
            failure=info.failure,
            state=ended.state,
            most_bytes=max_state_bytes,
        )
        return self._child_ended(*visit, info.id, info.status, info.error or "", usage, "", failed_text, cause, end)

    def notify_watchers(self, fence: Fence, run_id: str, type_: str, data: Mapping[str, Any]) -> RedisCommand:
        """Publish an event to the watchers of a run, if the run exists."""
        run = self._keys.of_run(run_id)
        keys = {"run": run.run, "events": run.events}
        args: dict[str, Arg] = {"source": fence.source, "number": fence.number, "notices": dumps([[type_, data]])}
        return RedisCommand(_TELL_ROOT, _TELL_ROOT.vector(keys, args))

    def refuse(self, run_id: str, seq: int, attempt: int, child: str, error: str) -> RedisCommand:
        """Let a visit know that its child cannot be started."""
        return self._child_ended(run_id, seq, attempt, child, "refused", error)

    def _child_ended(
        self,
        run_id: str,
        seq: int,
        attempt: int,
        child: str,
        status: str,
        error: str,
        usage: str = "",
        output: str = "",
        failed: str = "",
        failure: str = "",
        end: str = "",
    ) -> RedisCommand:
        run, partition = self._keys.of_run(run_id), self._keys.of_partition(self._keys.partition_of(run_id))
        keys = {"run": run.run, "inbox": partition.inbox, "delta": run.delta(seq, attempt)}
        args: dict[str, Arg] = {
            "run_id": run_id,
            "seq": seq,
            "attempt": attempt,
            "child": child,
            "status": status,
            "error": error,
            "usage": usage,
            "output": output,
            "failed": failed,
            "failure": failure,
            "end": end,
        }
        return RedisCommand(_CHILD_ENDED, _CHILD_ENDED.vector(keys, args))

    def _of(self, partition: int) -> str:
        return self._keys.of_partition(partition).effects


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _owed(id_: str, partition: int, fields: Mapping[str, str]) -> OwedEffect:
    """An entry of the stream."""
    run_id = fields.get("run", "")
    try:
        run_id.encode()
        if not run_id:
            raise RecordUnreadable("effect", "", "damaged: it lacks run")
        data = decoded(fields.get("e", ""), "effect")
        if type(data) is not dict:
            raise RecordUnreadable("effect", "", "damaged: it is not a JSON object")
        return OwedEffect(id_, partition, run_id, effect_of(data))
    except RecordUnreadable as error:
        return OwedEffect(id_, partition, run_id, None, error.why)
    except UnicodeError:
        return OwedEffect(id_, partition, "", None, "damaged: its run's id is not UTF-8")


def _way(owed: OwedEffect, command: RedisCommand) -> tuple[int, Arg]:
    """The source partition and the target of a command: the first key of a script is its target."""
    return owed.partition, command.vector[0]


def _next_wave(owed: Sequence[Delivery], blocked: Collection[tuple[int, Arg]]) -> tuple[list[Delivery], list[Delivery]]:
    """The first delivery of each way, and the rest; deliveries of blocked ways are left out of both."""
    wave, rest, taken = [], [], set(blocked)
    for each in owed:
        if each.command is None:
            wave.append(each)
            continue
        way = _way(each.owed, each.command)
        if way not in taken:
            taken.add(way)
            wave.append(each)
        elif way not in blocked:
            rest.append(each)
    return wave, rest
