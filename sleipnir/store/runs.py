"""The clients' operations: create runs, read them, answer and cancel. The scheduler plans and commits."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sleipnir.decoding import decoded, decoded_object, read, read_text
from sleipnir.errors import GateError, RecordUnreadable, RunNotFound, SessionBusy, UsageError
from sleipnir.messages import FINAL, STATUSES, Usage
from sleipnir.runs.actor import Change, changes_of
from sleipnir.runs.budgets import Budget
from sleipnir.runs.run import (
    ID_ALPHABET,
    ID_LENGTH,
    NO_FAILED_VISITS,
    FailedVisits,
    Gate,
    Hold,
    Parked,
    RunSpec,
    Slot,
)
from sleipnir.runs.sessions import SessionName, instructions_of
from sleipnir.runs.views import (
    ChildInfo,
    GateInfo,
    HoldInfo,
    KeptVisit,
    LateResult,
    Reason,
    ReasonCode,
    RunEvent,
    RunInfo,
    RunTree,
    SlotInfo,
    StepInfo,
    VisitInfo,
)
from sleipnir.runs.visits import (
    Backoff,
    ChildWait,
    Commands,
    Delay,
    Doubt,
    Ended,
    Failed,
    Fan,
    Item,
    Loop,
    Question,
    Ready,
    Receipt,
    Visit,
    Work,
)
from sleipnir.store.connect import Client, is_lasting
from sleipnir.store.holds import holds_of
from sleipnir.store.keys import Keys, SessionKeys, member, session_keys
from sleipnir.store.record_text import dumps, record
from sleipnir.store.scripts import Arg, LuaScript, RedisCommand, run_batch, run_in_order
from sleipnir.store.streams import before, entries, ms_of
from sleipnir.store.visit_records import read_visit

if TYPE_CHECKING:
    from sleipnir.runs.transitions import Step

_ANSWER = LuaScript("answer")
_CREATE_RUN = LuaScript("create_run")
_RESUME_ALL = LuaScript("resume_all")
_TELL = LuaScript("tell")

_SUMMARY = (
    "status", "created_ms", "started_ms", "ended_ms", "error", "step", "paused", "holds", "retrying", "retries",
    "batch", "slot", "budget", "stopped_by", "failed_visits",
)  # fmt: skip
_CHANGES = ("by:paused", "by:resumed", "by:retried", "by:cancelled", "by:answered")
_USAGE = ("tokens_in", "tokens_out", "model_calls", "cost_usd", "unpriced_calls")


TOLD_BEFORE = "known"  # what tell.lua says of a wish that it has passed on already: the reply was lost


@dataclass(frozen=True)
class RunEnd:
    """The status of a run, and when it ended; None: it has not ended, or an earlier release did not record it."""

    status: str
    ended_ms: int | None


@dataclass(frozen=True)
class Fence:
    """Identifies a request at its run, so that repetitions are detected. For an effect, `source` is its kind and
    partition, and `number` its increasing stream id; for a client's request, `number` is a token."""

    source: str
    number: str


NO_FENCE = Fence("", "")

PAGE = 200  # runs that are read in one round trip
FIRST_PAGE = 50  # the number of runs that are shown to people
PAGE_LEAST, PAGE_MOST, PAGE_BYTES = 100, 500, 2**20  # journal entries per command; fewer if they are large


class Runs:
    """The store, for clients."""

    def __init__(self, client: Client, keys: Keys, by: str = "") -> None:
        """`by` is who acts through this client (by.By, as text)."""
        self._client, self._keys, self._by = client, keys, by

    def create(self, run_id: str, spec: RunSpec, state: Mapping[str, Any]) -> bool:
        """Accept a run: it will reach a terminal status. False: it existed already. Safe to repeat.

        A run in a session must have an id of the session's partition. Raises SessionBusy if the session has an
        unfinished run.
        """
        code, busy = _CREATE_RUN(self._client, *self._creation(run_id, spec, state))
        if code == -1:
            raise SessionBusy.by(str(spec.session), spec.agent, busy)
        return bool(code)

    def creation(self, run_id: str, spec: RunSpec, state: Mapping[str, Any], batch: str = "") -> RedisCommand:
        """The command of `create`; create_run.lua has the replies. `batch` is the row of the run, or of its root run
        (batches.place_of)."""
        return RedisCommand(_CREATE_RUN, _CREATE_RUN.vector(*self._creation(run_id, spec, state, batch)))

    def _creation(
        self, run_id: str, spec: RunSpec, state: Mapping[str, Any], batch: str = ""
    ) -> tuple[dict[str, str], dict[str, Arg], list[Arg]]:
        """Keys, arguments and values of create_run.lua."""
        run, partition = self._keys.of_run(run_id), self._keys.of_partition(self._keys.partition_of(run_id))
        keys = {
            "run": run.run,
            "state": run.state,
            "journal": run.journal,
            "inbox": partition.inbox,
            "runs": partition.runs,
            "specs": run.spec,
            "items": run.items,
            "sessions": partition.sessions,
            **session_keys(run, self._keys.of_session_of(spec)),
        }
        from sleipnir.runs.transitions import Step

        step = record(Step(step=0, kind="submitted", at_ms=0))
        values: list[Arg] = [part for key, value in state.items() for part in (key, dumps(value))]
        name = SessionName(spec.agent, spec.session) if spec.session is not None else None
        args: dict[str, Arg] = {"run_id": run_id, "spec": record(spec), "step": step}
        args |= {"in_session": str(name or ""), "listed": int(name is not None and name.expire_ms is None)}
        args["instructions_of"] = instructions_of(spec.bundle, spec.variables) if name is not None else ""
        args["batch"] = batch
        return keys, args, values

    def info(self, run_id: str) -> RunInfo:
        """Raises RunNotFound."""
        return self.infos([run_id])[0]

    def infos(self, run_ids: Collection[str]) -> list[RunInfo]:
        """Several runs in one round trip. Raises RunNotFound for the first missing one."""
        infos = self.find(run_ids)
        for run_id, info in zip(run_ids, infos, strict=True):
            if info is None:
                raise RunNotFound(f"no run {run_id!r}: never submitted here, or finished longer ago than the retention")
        return [info for info in infos if info is not None]

    def spec(self, run_id: str) -> RunSpec:
        """The spec of a run: its agent, its bundle, and more. Raises RunNotFound."""
        text = self._client.get(self._keys.of_run(run_id).spec)
        if text is None:
            raise RunNotFound(f"no run {run_id!r}")
        return read_text(RunSpec, text, "spec", run_id)

    def children(self, run_ids: Collection[str]) -> dict[str, list[ChildInfo]]:
        """The child runs of each of these runs, in the order of their visits."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hgetall(self._keys.of_run(run_id).children)
        children_of = {}
        for run_id, records in zip(run_ids, pipe.execute(), strict=True):
            children = [_child(id_, text) for id_, text in records.items() if ":" not in id_]
            children_of[run_id] = sorted(children, key=lambda child: child.seq)
        return children_of

    def tree(self, run_id: str) -> RunTree:
        """A run and all its descendants. Raises RunNotFound."""
        top = self.info(run_id)
        below: dict[str, list[ChildInfo]] = {}
        infos: dict[str, RunInfo | None] = {run_id: top}
        level = [run_id]
        while level:
            below |= self.children(level)
            level = [child.id for run in level for child in below[run]]
            infos |= dict(zip(level, self.find(level), strict=True)) if level else {}

        def of(run: str, agent: str) -> RunTree:
            return RunTree(run, agent, infos[run], tuple(of(child.id, child.agent) for child in below[run]))

        return of(run_id, top.agent)

    def ended_among(self, run_ids: Sequence[str]) -> list[RunInfo]:
        """The finished ones of these runs. Raises RunNotFound for the first missing one."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hget(self._keys.of_run(run_id).run, "status")
        statuses = zip(run_ids, pipe.execute(), strict=True)
        over = [run_id for run_id, status in statuses if status is None or status in FINAL]
        return [info for info in self.infos(over) if info.is_final] if over else []

    def recent(self, limit: int, statuses: Collection[str] | None = None) -> Iterator[RunInfo]:
        """The runs with these statuses among the `limit` newest runs, newest first; read lazily, a page at a time. Only
        the status of the other runs is read.

        If only unfinished statuses are requested, a finished run that is being retried is left out until a scheduler
        has processed the retry: finished runs are excluded by the index, regardless of their number.
        """
        listed = self._newest(limit)
        if statuses is not None and FINAL.isdisjoint(statuses):
            listed = self._without_ended(listed)
        for at in (0, *range(FIRST_PAGE, len(listed), PAGE)):
            page = listed[at : at + (PAGE if at else FIRST_PAGE)]
            if statuses is not None:
                page = [run_id for run_id, status in self._statuses(page) if status in statuses]
            yield from (info for info in self.find(page) if info is not None)

    def count(self) -> int:
        """The number of runs, finished or not."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.zcard(self._keys.of_partition(partition).runs)
        return sum(pipe.execute())

    def _newest(self, limit: int) -> list[str]:
        """The ids of the newest runs, newest first. Runs are spread evenly over the partitions, so slightly more than a
        partition's share is read of each; more is read if that does not prove to be enough."""
        most = 2 * limit // self._keys.partitions + 10
        while True:
            pipe = self._client.pipeline(transaction=False)
            for partition in range(self._keys.partitions):
                pipe.zrevrange(self._keys.of_partition(partition).runs, 0, most - 1, withscores=True)
            replies = pipe.execute()
            # In a partition that may have more runs, all runs newer than the last one read are known.
            since = max((reply[-1][1] for reply in replies if len(reply) == most), default=-math.inf)
            listed = sorted(((at_ms, run_id) for reply in replies for run_id, at_ms in reply), reverse=True)[:limit]
            if most >= limit or not listed or listed[-1][0] > since:
                return [run_id for _, run_id in listed]
            most *= 4

    def _without_ended(self, run_ids: Sequence[str]) -> list[str]:
        """The runs that the index does not list as finished; archived runs are not in this index."""
        by_partition = defaultdict(list)
        for run_id in run_ids:
            by_partition[self._keys.partition_of(run_id)].append(run_id)
        pipe = self._client.pipeline(transaction=False)
        for partition, members in by_partition.items():
            pipe.zmscore(self._keys.of_partition(partition).expiring, members)
        read = zip(by_partition.values(), pipe.execute(), strict=True)
        over = {
            run_id
            for members, scores in read
            for run_id, score in zip(members, scores, strict=True)
            if score is not None
        }
        return [run_id for run_id in run_ids if run_id not in over]

    def ends(self, run_ids: Sequence[str]) -> dict[str, RunEnd | None]:
        """The statuses of runs, and when they ended; None: no such run."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hmget(self._keys.of_run(run_id).run, "status", "retrying", "ended_ms")
        return {
            run_id: None if status is None else RunEnd(str(_status(status, retrying)), _number(ended_ms))
            for run_id, (status, retrying, ended_ms) in zip(run_ids, pipe.execute(), strict=True)
        }

    def _statuses(self, run_ids: Sequence[str]) -> Iterator[tuple[str, str | None]]:
        """The status of each run; None: no such run."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            pipe.hmget(self._keys.of_run(run_id).run, "status", "retrying")
        for run_id, (status, retrying) in zip(run_ids, pipe.execute(), strict=True):
            yield run_id, _status(status, retrying)

    def ids_starting_with(self, prefix: str, limit: int = 20) -> list[str]:
        """Ids of listed runs by prefix, to complete and resolve user input."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.zrevrange(self._keys.of_partition(partition).runs, 0, 9_999)
        return sorted(run_id for reply in pipe.execute() for run_id in reply if run_id.startswith(prefix))[:limit]

    def find(self, run_ids: Collection[str]) -> list[RunInfo | None]:
        """Several runs in one round trip; None for a missing run."""
        pipe = self._client.pipeline(transaction=False)
        for run_id in run_ids:
            run = self._keys.of_run(run_id)
            pipe.get(run.spec)
            pipe.hmget(run.run, [*_SUMMARY, *_CHANGES, *_USAGE])
            pipe.hgetall(run.frontier)
            pipe.hgetall(run.claims)
            pipe.hkeys(run.gates)
            pipe.hget(self._keys.of_partition(self._keys.partition_of(run_id)).parked, run_id)
        replies = pipe.execute(raise_on_error=False)
        return [
            _info_or_why_not(run_id, *replies[at : at + 6])
            for run_id, at in zip(run_ids, range(0, len(replies), 6), strict=True)
        ]

    def with_leases(self, infos: Sequence[RunInfo]) -> list[RunInfo]:
        """The runs with the lease end of each started visit, and the hold of the deployment. One round trip."""
        pipe = self._client.pipeline(transaction=False)
        for info in infos:
            partition = self._keys.of_partition(self._keys.partition_of(info.id))
            pipe.get(partition.paused)
            for visit in info.visits:
                pipe.zscore(partition.leases, member(info.id, visit.seq, visit.attempt))
        replies = iter(pipe.execute())
        explained_infos = []
        for info in infos:
            pause = _deployment_hold(next(replies))
            until_ms = {visit.seq: _number(next(replies)) for visit in info.visits}
            by = None if pause is None else pause.in_words
            explained = info.with_reasons(partial(_held, by=by, until_ms=until_ms))
            if pause is not None and not info.is_final:
                explained = replace(explained, holds=(*info.holds, pause))
            explained_infos.append(explained)
        return explained_infos

    def output(self, run_id: str) -> str | None:
        """The result text of a completed run; None for other runs, even if they have passed an end node."""
        return self.outputs([run_id])[0]

    def outputs(self, run_ids: Sequence[str]) -> list[str | None]:
        """The result texts of several runs, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        for run in map(self._keys.of_run, run_ids):
            pipe.hget(run.run, "status")
            pipe.get(run.output)
        replies = pipe.execute()
        return [
            text if status == "completed" else None for status, text in zip(replies[::2], replies[1::2], strict=True)
        ]

    def state(self, run_id: str) -> dict[str, Any]:
        """The committed state."""
        return {key: json.loads(text) for key, text in self._client.hgetall(self._keys.of_run(run_id).state).items()}

    def history(self, run_id: str, after: int | None = None, limit: int | None = None) -> list[StepInfo]:
        """The journal, oldest first; `limit` steps after the step `after`. Visits that ended before their super-step
        have the targets that it gave them, if its last step is included."""
        from sleipnir.runs.transitions import Step

        steps: list[StepInfo] = []
        place_of: dict[str, int] = {}
        first = 0 if after is None else max(0, after + 1)
        for element in self._journal(run_id, first, None if limit is None else first + limit - 1):
            header, *written = element.split("\n")
            step = Step.from_json(header)
            for seq, ways in (step.routes or {}).items():
                if (place := place_of.get(seq)) is not None:
                    steps[place] = replace(steps[place], next=ways[0] if len(ways) == 1 else tuple(ways))
            place_of[str(step.seq)] = len(steps)
            steps.append(_step(step, written))
        return steps

    def late_results(self, run_id: str) -> list[LateResult]:
        """The refused results, oldest first, among the newest 1,000 or so events of the run."""
        late: list[tuple[int, dict[str, Any]]] = []
        for id_, fields in self._client.xrange(self._keys.of_run(run_id).events):
            if "late_result" in fields["e"]:
                late += [(ms_of(id_), data) for type_, data in json.loads(fields["e"]) if type_ == "late_result"]
        # A scheduler that drops a result of a finished visit knows only its number.
        node_of = {step.seq: step.node for step in self.history(run_id)} if late else {}
        return [
            LateResult(
                at_ms, data["seq"], data.get("node") or node_of.get(data["seq"]), data["attempt"], data["worker"]
            )
            for at_ms, data in late
        ]

    def fold(self, run_id: str, step: int | None = None) -> dict[str, Any]:
        """The state as of a journal step (None: the last), computed from the journal alone (journal.py)."""
        from sleipnir.runs.journal import state_after  # imports the reducers of the graph language

        return state_after(self._journal(run_id, 0, step))

    def _journal(self, run_id: str, first: int, last: int | None) -> Iterator[str]:
        """The journal's entries from `first` to `last` (None: the last one), read in pages: there may be millions."""
        journal, count = self._keys.of_run(run_id).journal, PAGE_LEAST
        while last is None or first <= last:
            end = first + count - 1 if last is None else min(first + count - 1, last)
            page = self._client.lrange(journal, first, end)
            yield from page
            if len(page) < end - first + 1:
                return
            first += len(page)
            count = PAGE_LEAST if sum(map(len, page)) > PAGE_BYTES else min(PAGE_MOST, count * 2)

    def events(self, run_id: str, after: str, block_ms: int | None = None) -> list[RunEvent]:
        """Events of a run after an event id ("0": all stored ones), oldest first; waits up to `block_ms` for some.

        The events of one commit are returned together. All but the last have an id from which a new read repeats all of
        them: a reader that stops in the middle misses none.
        """
        reply: Any = self._client.xread({self._keys.of_run(run_id).events: after}, block=block_ms)
        run_events: list[RunEvent] = []
        for id_, fields in entries(reply):
            batch = json.loads(fields["e"])
            ids = [before(id_)] * (len(batch) - 1) + [id_]
            run_events += [RunEvent(i, ms_of(id_), type_, data) for i, (type_, data) in zip(ids, batch, strict=True)]
        return run_events

    def ended_position(self) -> dict[str, str]:
        """The current ends of the streams of ended runs, for `ended_since`."""
        streams = [self._keys.of_partition(partition).ended for partition in range(self._keys.partitions)]
        pipe = self._client.pipeline(transaction=False)
        for stream in streams:
            pipe.xrevrange(stream, count=1)
        return {name: reply[0][0] if reply else "0" for name, reply in zip(streams, pipe.execute(), strict=True)}

    def ended_since(self, position: dict[str, str], block_ms: int) -> set[str]:
        """The runs that ended after `position`, which is advanced; waits up to `block_ms` for the first."""
        after: dict[Any, Any] = dict(position)
        reply: Any = self._client.xread(after, block=block_ms)
        ended = set()
        for name, batches in dict(reply or {}).items():
            for id_, fields in entries({name: batches}):
                position[name] = id_
                ended.add(fields["run"])
        return ended

    def gates(self, run_id: str) -> list[GateInfo]:
        """The unanswered questions of a run, in the order they were asked."""
        return self._gates([run_id])

    def _gates(self, run_ids: Sequence[str]) -> list[GateInfo]:
        """The unanswered questions of several runs, run by run, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        for keys in map(self._keys.of_run, run_ids):
            pipe.hgetall(keys.gates)
            pipe.get(keys.spec)
        replies = pipe.execute()
        read = zip(run_ids, replies[::2], replies[1::2], strict=True)
        return [gate for run_id, fields, spec in read for gate in _open_gates(run_id, fields, spec)]

    def gates_below(self, run_id: str) -> list[GateInfo]:
        """The open questions of a run and of all child runs that it waits for, in the order they were asked."""
        gates, level = self.gates(run_id), [run_id]
        while level := [child for info in self.find(level) if info is not None for child in info.awaits]:
            gates += (gate for child in level for gate in self.gates(child))
        return sorted(gates, key=lambda gate: gate.opened_ms)

    def open_gates(self) -> list[GateInfo]:
        """The open questions of all runs, oldest first."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.zrange(self._keys.of_partition(partition).gates, 0, -1)
        runs = list({name.rsplit("/", 1)[0] for reply in pipe.execute() for name in reply})
        pages = (self._gates(runs[at : at + PAGE]) for at in range(0, len(runs), PAGE))
        return sorted((gate for page in pages for gate in page), key=lambda gate: gate.opened_ms)

    def answer(self, run_id: str, seq: int, text: str, attempt: int = 1) -> None:
        """Answer the gate that this attempt of a visit has opened. Safe to repeat. Raises GateError if there is none,
        or if it was answered with another text."""
        run, partition = self._keys.of_run(run_id), self._keys.of_partition(self._keys.partition_of(run_id))
        keys = {"gates": run.gates, "inbox": partition.inbox, "run": run.run}
        args: dict[str, Arg] = {"run_id": run_id, "seq": seq, "text": dumps(text), "attempt": attempt}
        reply = _ANSWER(self._client, keys, {**args, "by": self._by, "token": _token()})
        if reply[0] == -1:
            status = self._client.hget(run.run, "status")
            if status in FINAL:
                raise GateError(f"run {run_id!r} is {status}; its question {seq} needs no answer any more")
            raise GateError(
                f"run {run_id!r} has no open question {seq}: it was answered, has expired, or was of a run below that "
                f"is over; `sleipnir show {run_id}` lists what it waits for"
            )
        if reply[0] == 0 and json.loads(reply[1]) != text:
            raise GateError(f"question {seq} of run {run_id!r} was already answered with {json.loads(reply[1])!r}")

    def cancel(self, run_id: str) -> None:
        """Request the cancellation of a run. Raises RunNotFound, or UsageError if it is over."""
        self._tell_unfinished(run_id, "cancelled", "cancel", "by", self._by)

    def pause(self, run_id: str, by: str | None = None, reason: str | None = None) -> None:
        """Request a hold of a run. Raises RunNotFound, or UsageError if it is over."""
        self._tell_unfinished(
            run_id, "paused", "pause", "by", by or self._by, "reason", reason or "", "owner", "person"
        )

    def resume(self, run_id: str) -> None:
        """Request the end of persons' holds of a run; other holds stay. Raises RunNotFound, or UsageError if it is
        over."""
        self._tell_unfinished(run_id, "resumed", "resume", "owner", "person", "by", self._by)

    def retry(self, run_id: str, *, fresh_children: bool = False) -> None:
        """Request that a failed run continues from its failure; with `fresh_children` its child runs start again.
        Raises RunNotFound, or UsageError if it did not fail, or if its session has continued without it."""
        text = self._client.get(self._keys.of_run(run_id).spec)
        if text is None:
            raise RunNotFound(f"no run {run_id!r}")
        spec = read_text(RunSpec, text, "spec", run_id)
        fields = ("by", self._by, *(("fresh_children", "1") if fresh_children else ()))
        status = self._tell(run_id, "retried", *fields, session=self._keys.of_session_of(spec))
        if status == "left":
            raise UsageError(
                f"run {run_id!r} cannot be retried: its session {spec.session!r} has continued without it. "
                "Send its message to the session again"
            )
        if status == "retrying":
            raise UsageError(f"run {run_id!r} is already being retried")
        if status not in ("failed", TOLD_BEFORE):
            raise UsageError(f"run {run_id!r} is {status}; only a failed run can be retried")

    def _tell_unfinished(self, run_id: str, type_: str, verb: str, *fields: str) -> None:
        status = self._tell(run_id, type_, *fields)
        if status in FINAL:
            raise UsageError(f"run {run_id!r} is already {status}; nothing to {verb}")

    def _tell(self, run_id: str, type_: str, *fields: str, session: SessionKeys | None = None) -> str:
        token = Fence("", _token())
        status = _TELL(self._client, *self._telling(run_id, type_, session, token), fields)
        if status is None:
            raise RunNotFound(f"no run {run_id!r}")
        return str(status)

    def cancel_all(self, run_ids: Sequence[str], by: str = "") -> None:
        """Request the cancellation of runs for `by`, in one round trip; finished and missing runs are ignored."""
        for reply in run_in_order(
            self._client, [self.notification(run_id, "cancelled", "by", by) for run_id in run_ids]
        ):
            if isinstance(reply, Exception):
                raise reply

    def notification(self, run_id: str, type_: str, *fields: str) -> RedisCommand:
        """The command that adds an entry to the inbox of a run; nothing happens when it is finished or gone."""
        return self.notification_once(run_id, type_, NO_FENCE, *fields)

    def notification_once(
        self, run_id: str, type_: str, fence: Fence, *fields: str, version: int | None = None
    ) -> RedisCommand:
        """The same for an effect: nothing changes when this one, or a later one of its source, was sent before.
        `version`: the one with which the run ended that is to continue; None: any."""
        return RedisCommand(_TELL, _TELL.vector(*self._telling(run_id, type_, None, fence, version), fields))

    def _telling(
        self, run_id: str, type_: str, session: SessionKeys | None, fence: Fence, version: int | None = None
    ) -> tuple[dict[str, str], dict[str, Arg]]:
        """Keys and arguments of tell.lua."""
        partition, run = self._keys.of_partition(self._keys.partition_of(run_id)), self._keys.of_run(run_id)
        keys = {"run": run.run, "inbox": partition.inbox, "session": session_keys(run, session)["session"]}
        args: dict[str, Arg] = {"run_id": run_id, "type": type_, "source": fence.source, "number": fence.number}
        return keys, {**args, "version": "" if version is None else version}

    def pause_all(self, pause: Hold) -> None:
        """Hold the deployment: no visit is claimed until `resume_all`. An existing hold is kept unchanged."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.set(self._keys.of_partition(partition).paused, record(pause), nx=True)
        pipe.execute()

    def resume_all(self) -> bool:
        """Resume a held deployment; queued visits are published at once. False: it was not held."""
        was_held = self.held() is not None
        pending = []
        for partition in map(self._keys.of_partition, range(self._keys.partitions)):
            keys = {"paused": partition.paused, "outbox": partition.outbox, "resumed": partition.resumed}
            pending.append(_RESUME_ALL.vector(keys, {"by": self._by}))
        while pending:
            replies = run_batch(self._client, _RESUME_ALL, pending)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            pending = [vector for vector, reply in zip(pending, replies, strict=True) if reply == 1]
        return was_held

    def resumed(self) -> Change | None:
        """Who resumed the deployment last, and when; None: not recorded."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.hmget(self._keys.of_partition(partition).resumed, ["by", "at_ms"])
        changes = [Change("resumed", by, int(at_ms)) for by, at_ms in pipe.execute() if by is not None and at_ms]
        return max(changes, key=lambda change: change.at_ms, default=None)

    def held(self) -> Hold | None:
        """The hold of the deployment, if there is one."""
        pipe = self._client.pipeline(transaction=False)
        for partition in range(self._keys.partitions):
            pipe.get(self._keys.of_partition(partition).paused)
        holds = [read_text(Hold, text, "hold of the deployment") for text in pipe.execute() if text]
        return min(holds, key=lambda hold: hold.at_ms, default=None)


def _token() -> str:
    """A unique token for a request."""
    return "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_LENGTH))


def _info_or_why_not(
    run_id: str, spec: Any, fields: Any, frontier: Any, claims: Any, gates: Any, parked: Any
) -> RunInfo | None:
    """A run from the replies of Redis; None: there is no such run. A run with unreadable records has little more than
    its id and the reason, so that it does not hide the others."""
    for reply in (spec, fields, frontier, claims, gates, parked):
        if isinstance(reply, Exception) and not is_lasting(reply):
            raise reply
    try:
        for reply in (spec, fields, frontier, claims, gates, parked):
            if isinstance(reply, Exception):
                raise RecordUnreadable("record", run_id, f"damaged: {reply}")
        mark = _parked(parked)
        if spec is None and fields[0] is not None and fields[0] not in FINAL:
            raise RecordUnreadable("record", run_id, "damaged: its spec is missing")
        info = _info(run_id, spec, fields, frontier, claims, gates)
        return info if info is None or mark is None or info.is_final else replace(info, parked=mark)
    except RecordUnreadable as error:
        why = error.why
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        why = f"damaged: {type(error).__name__}: {error}"
    return _unreadable(run_id, spec, fields, parked, why)


def _unreadable(run_id: str, spec: Any, fields: Any, parked: Any, why: str) -> RunInfo:
    """The known facts of an unreadable run."""
    record_fields = dict(zip([*_SUMMARY, *_CHANGES, *_USAGE], fields, strict=True)) if isinstance(fields, list) else {}
    status = record_fields.get("status")
    created_ms, agent = record_fields.get("created_ms") or "", "?"
    try:
        agent_name = decoded(spec, "spec").get("agent") if isinstance(spec, str) else None
        agent = agent_name if isinstance(agent_name, str) else agent
    except (RecordUnreadable, AttributeError):
        pass
    return RunInfo(
        id=run_id,
        agent=agent,
        status=status if status in STATUSES else "submitted",
        created_ms=int(created_ms) if created_ms.isdecimal() else 0,
        parked=_parked(parked) if isinstance(parked, str) and status not in FINAL else None,
        unreadable=why,
    )


def _parked(text: str | None) -> Parked | None:
    """Why a scheduler has parked a run; for an unreadable mark, why it is unreadable."""
    try:
        return None if text is None else read_text(Parked, text, "mark")
    except RecordUnreadable as error:
        return Parked(error.why, 0)


def _info(
    run_id: str,
    spec: str | None,
    fields: list[str | None],
    frontier: Mapping[str, str],
    claims: Mapping[str, str],
    gates: Collection[str],
) -> RunInfo | None:
    record_ = dict(zip([*_SUMMARY, *_CHANGES, *_USAGE], fields, strict=True))
    if spec is None:
        return None
    visits = sorted(map(read_visit, frontier.values()), key=lambda visit: visit.seq)
    status = _status(record_["status"], record_["retrying"])
    slot = _slot(record_["slot"])
    waits = slot is not None and not slot.granted
    is_live = record_["status"] not in FINAL and not waits
    submitted = read_text(RunSpec, spec, "spec", run_id)
    budget = (
        read_text(Budget, record_["budget"], "budget", run_id) if record_["budget"] else submitted.budget or Budget()
    )
    holds = _holds(run_id, record_, budget) if is_live or waits else ()
    failed = record_["failed_visits"]
    return RunInfo(
        id=run_id,
        agent=submitted.agent,
        status=status,  # type: ignore[arg-type]
        created_ms=int(record_["created_ms"] or 0),
        started_ms=_number(record_["started_ms"]),
        ended_ms=_number(record_["ended_ms"]),
        error=record_["error"],
        step=int(record_["step"] or 0),
        visits=tuple(_visits(visits, claims, gates, holds)) if is_live else (),
        usage=_usage_total(record_),
        kept=() if is_live else tuple(_kept(visit) for visit in visits if not _has_commands_left(visit)),
        parent=submitted.parent,
        session=submitted.session,
        root=submitted.root,
        retries=int(record_["retries"] or 0),
        batch=record_["batch"],
        slot=slot,
        max_cost_usd=budget.max_cost_usd,
        max_tokens=budget.max_tokens,
        holds=holds,
        changes=changes_of(record_),
        stopped_by=record_["stopped_by"] if status == "completed" else None,
        failed_visits=NO_FAILED_VISITS if failed is None else read_text(FailedVisits, failed, "failed visits", run_id),
    )


def _slot(text: str | None) -> SlotInfo | None:
    if text is None:
        return None
    slot = read_text(Slot, text, "slot")
    return SlotInfo(slot.key, slot.limit, slot.granted)


def _holds(run_id: str, record_: Mapping[str, str | None], budget: Budget) -> tuple[HoldInfo, ...]:
    """The holds of a run, oldest first."""
    holds = [
        HoldInfo(hold.owner or "person", hold.by, hold.at_ms, hold.reason)
        for hold in holds_of(record_["paused"], record_["holds"], run_id)
    ]
    if budget.asked is not None:
        holds.append(HoldInfo("budget", "its budget", budget.asked_ms))
    return tuple(sorted(holds, key=lambda hold: hold.at_ms))


def _open_gates(run_id: str, fields: Mapping[str, str], spec: str | None) -> Iterator[GateInfo]:
    path: tuple[str, ...] = ()
    gates = [_gate(name, text) for name, text in fields.items() if name.isdigit() and f"{name}:answer" not in fields]
    if spec and gates:
        with contextlib.suppress(RecordUnreadable):  # `show` says so
            path = tuple(read_text(RunSpec, spec, "spec", run_id).path)
    for g in sorted(gates, key=lambda gate: gate.seq):
        yield GateInfo(
            run_id, g.seq, g.node, g.kind, g.question, tuple(g.options), g.default, g.opened_ms, g.attempt, path
        )


def _gate(name: str, text: str) -> Gate:
    """A question; for an unreadable one, a placeholder with the reason, so that it does not hide the others."""
    try:
        return read_text(Gate, text, "question", name)
    except RecordUnreadable as error:
        return Gate(int(name), "?", "unreadable", str(error))


def _child(run_id: str, text: str) -> ChildInfo:
    try:
        data = decoded_object(text, "child", run_id)
        return read(ChildInfo, {**data, "id": run_id}, "child", run_id)
    except RecordUnreadable:
        return ChildInfo(run_id, "?", 0)


def _status(status: str | None, retrying: str | None) -> str | None:
    """The status, with a requested retry taken into account before a scheduler has processed it."""
    return "running" if retrying and status in ("failed", "cancelled") else status


def _visits(
    visits: Sequence[Visit], claims: Mapping[str, str], gates: Collection[str], holds: Sequence[HoldInfo]
) -> Iterator[VisitInfo]:
    by = holds[0].in_words if holds else None
    busy = Counter(_line_of(visit) for visit in visits if _has_slot(visit))
    item_of_loop = {visit.body.id: visit.item for visit in visits if isinstance(visit.body, Loop)}
    for visit in visits:
        item = item_of_loop.get(visit.part.loop) if visit.part else visit.item  # a call is of its loop's item
        line = visit.body.id if isinstance(visit.body, Fan) else item.map if item else 0
        under_way = busy[line] if isinstance(visit.body, Fan) else busy[line] or busy.total()
        claim = json.loads(claims.get(str(visit.seq), "{}"))
        yield _visit(visit, item, claim, f"{visit.seq}:answer" in gates, by, under_way)


def _has_slot(visit: Visit) -> bool:
    """An item that is tried again keeps its slot, and a loop has one for all of its parts."""
    waits = visit.state == "waiting" and (isinstance(visit.place, Item) or isinstance(visit.body, Loop))
    return visit.part is None and (visit.state == "queued" or waits)


def _line_of(visit: Visit) -> int:
    """Whose slots it takes: its map's, or (0) its run's."""
    return visit.item.map if visit.item else 0


def _visit(
    visit: Visit, item: Item | None, claim: Mapping[str, Any], answered: bool, by: str | None, under_way: int
) -> VisitInfo:
    """`claim` is what is known of a worker that has it, `by` who holds the run; `under_way` as in Reason."""
    info = VisitInfo(
        seq=visit.seq,
        node=visit.node,
        kind=visit.kind,
        attempt=visit.attempt,
        state="waiting",
        since_ms=visit.opened_ms,
        reason=Reason("answered"),
        role=visit.role,
        item=(item.map, item.index) if item else None,
        part=visit.part,
    )
    due_ms = visit.due_ms
    match visit.body:
        case Ended():
            return replace(info, state="ended", reason=Reason("siblings"))
        case Failed(error):
            return replace(info, state="ended", reason=Reason("siblings", error=error))
        case Ready():
            reason = Reason("slot", under_way=under_way) if by is None else Reason("paused", by=by)
            return replace(info, state="ready", reason=reason)
        case Commands(targets=targets, left=left):
            total = sum(map(bool, targets))
            return replace(info, reason=Reason("commands", progress=(total - sum(left.values()), total)))
        case Fan() as fan:
            reason = Reason("items", progress=(fan.done, fan.total), failed=fan.failed, under_way=under_way)
            return replace(info, reason=reason)
        case Loop() as loop:
            progress, spawned = (loop.calls - loop.open, loop.calls), visit.children or None
            reason = Reason("turns", progress=progress, turn=loop.turn, until_ms=due_ms, spawned=spawned)
            return replace(info, reason=reason)
        case ChildWait(child):
            return replace(info, reason=Reason("child", run=child.run, agent=child.agent, until_ms=due_ms))
        case Delay():
            return replace(info, reason=Reason("timer", until_ms=due_ms))
        case Receipt():
            return replace(info, reason=Reason("message", until_ms=due_ms))
        case Question() | Doubt():
            return info if answered else replace(info, reason=Reason("person", until_ms=due_ms))
        case Backoff(work, _, limited):
            code: ReasonCode = "limit" if limited else "retry"
            return replace(info, reason=Reason(code, queue=work.queue, until_ms=due_ms, error=work.error))
        case Work(queue) if claim.get("attempt") == visit.attempt:
            worker = claim["worker"]
            reason = Reason(_code_of_claim(claim), worker=worker)
            return replace(info, state="started", since_ms=claim["started_ms"], worker=worker, reason=reason)
        case Work(queue):
            return replace(info, state="queued", reason=Reason("paused" if by else "queued", queue=queue, by=by))


def _kept(visit: Visit) -> KeptVisit:
    failed = visit.body if isinstance(visit.body, Failed) else None
    fan = failed.was if failed and isinstance(failed.was, Fan) else None
    return KeptVisit(
        seq=visit.seq,
        node=visit.node,
        again=failed is not None,
        error=failed.error if failed else None,
        role=visit.role,
        item=(visit.item.map, visit.item.index) if visit.item else None,
        child=visit.former.run if visit.former else None,
        left=(fan.total - fan.done + fan.failed, fan.total) if fan else None,
    )


def _has_commands_left(visit: Visit) -> bool:
    return isinstance(visit.body, Failed) and isinstance(visit.body.was, Commands)


def _deployment_hold(text: str | None) -> HoldInfo | None:
    if not text:
        return None
    pause = read_text(Hold, text, "hold of the deployment")
    return HoldInfo("deployment", pause.by, pause.at_ms, pause.reason)


def _held(visit: VisitInfo, by: str | None, until_ms: Mapping[int, int | None]) -> Reason:
    if visit.reason.code == "lease":
        return replace(visit.reason, until_ms=until_ms[visit.seq])
    if visit.reason.code == "queued" and by is not None:
        return replace(visit.reason, code="paused", by=by)
    return visit.reason


def _code_of_claim(claim: Mapping[str, Any]) -> ReasonCode:
    if claim.get("lost"):
        return "lost"
    return "result" if claim.get("delivered") else "lease"


def _step(step: Step, written: list[str]) -> StepInfo:
    return StepInfo(
        step=step.step,
        kind=step.kind,
        at_ms=step.at_ms,
        seq=step.seq,
        node=step.node,
        attempt=step.attempt,
        ok=step.ok,
        next=step.next,
        error=step.error,
        took_ms=step.took_ms,
        worker=step.worker,
        keys=tuple(map(json.loads, written[::2])),
        usage=Usage(**step.usage) if step.usage else None,
        role=step.role,
        item=step.item,
        part=step.part,
        calls=step.calls,
        goes_on=step.goes_on,
        by=step.by,
        reason=step.reason,
        gate=step.gate,
        answer=step.answer,
    )


def _usage_total(record_: Mapping[str, str | None]) -> Usage:
    """The total usage of a run; the cost is None if the price of any call is unknown."""
    calls = int(float(record_["model_calls"] or 0))
    priced = not float(record_["unpriced_calls"] or 0) and calls > 0
    return Usage(
        input_tokens=int(float(record_["tokens_in"] or 0)),
        output_tokens=int(float(record_["tokens_out"] or 0)),
        calls=calls,
        cost_usd=round(float(record_["cost_usd"] or 0), 8) if priced else None,
    )


def _number(text: str | float | None) -> int | None:
    return None if text is None else int(float(text))
