"""The workers' operations: claim a visit, renew its lease, deliver its result or hand it back. Never write run
state."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from sleipnir import decoding
from sleipnir.decoding import read_text
from sleipnir.messages import ResultHeader, VisitCall, overlay_of
from sleipnir.runs.claims import Claim, ClaimRefused, VisitDelivery, WantedVisit
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.run import RunSpec
from sleipnir.runs.visits import Item, Part, Work
from sleipnir.store.connect import Client, clock_ms, close
from sleipnir.store.fast_client import FastLine, fast_client
from sleipnir.store.keys import Keys, member, member_of, parse_member
from sleipnir.store.record_text import dumps
from sleipnir.store.runs.journal import RunJournal
from sleipnir.store.scripts import Arg, LuaScript, RedisCommand, checked, run_batch, run_in_order
from sleipnir.store.visit_records import read_visit

_CLAIM = LuaScript("claim")
_DELIVER = LuaScript("deliver")
_HAND_BACK = LuaScript("hand_back")
_HEARTBEAT = LuaScript("heartbeat")

_Script: TypeAlias = tuple[dict[str, str], dict[str, Arg], Sequence[Arg]]
"""The keys, the arguments and the rest of a call of a script."""


@lru_cache(maxsize=1024)
def _spec(text: str) -> RunSpec:
    """The spec, cached by its text: equally submitted runs of one agent share it. Specs are never changed."""
    return read_text(RunSpec, text, "spec")


@lru_cache(maxsize=1024)
def _spec_head(agent: str, bundle: str) -> str:
    """The first part of the stored spec of a run of this agent and bundle (record_text.record)."""
    return dumps({"agent": agent, "bundle": bundle})[:-1]


def _talk(said: list[Any]) -> StoredConversation:
    """The conversation in the reply of claim.lua: texts between turns are follow-ups or announced, a text before all
    turns is the session's history."""
    first, history = said[0] if said and isinstance(said[0], str) else "", ""
    turns: list[tuple[str, tuple[str, ...]]] = []
    follow_ups: dict[int, str] = {}
    announced: dict[int, str] = {}
    for each in said[1:] if said and isinstance(said[0], str) else said:
        if not isinstance(each, str):
            reply, *results = each
            turns.append((reply, tuple(results)))
        elif turns:
            (announced if turns[-1][1] else follow_ups)[len(turns) - 1] = each
        else:
            history = each
    return StoredConversation(first, tuple(turns), follow_ups, announced, history)


class Visits:
    """The store, for workers. `connect` makes a client; every working thread gets its own connection."""

    def __init__(self, connect: Callable[[], Client], keys: Keys) -> None:
        self._connect, self._keys, self._local = connect, keys, threading.local()
        self._lines: weakref.WeakSet[FastLine] = weakref.WeakSet()
        """Those of all living threads: when a thread ends, its connection is released."""
        self._opening = threading.Lock()

    @property
    def _line(self) -> FastLine:
        line: FastLine | None = getattr(self._local, "line", None)
        if line is None:
            line = self._local.line = fast_client(self._connect())
            with self._opening:
                self._lines.add(line)
        return line

    def close(self) -> None:
        """Close the connections of all threads. A thread that goes on connects again."""
        with self._opening:
            lines = list(self._lines)
        for line in lines:
            close(line.client)

    def claim(
        self, call: VisitCall, *, worker: str, token: str, lease_ms: int, wanted: Collection[str] | None
    ) -> Claim | ClaimRefused:
        """Take a lease on a visit and read its state (`wanted` None: all keys), in one round trip.

        Safe to repeat with the same token.
        """
        request = WantedVisit(call, token, wanted)
        return self._claimed(request, _CLAIM(self._line, *self._claim_of(request, worker, lease_ms)))

    def exchange(
        self, deliveries: Sequence[VisitDelivery], requests: Sequence[WantedVisit], *, worker: str, lease_ms: int
    ) -> tuple[list[bool | Exception], list[Claim | ClaimRefused | Exception]]:
        """Deliver results and claim other visits, all in one round trip: the replies of `deliver` and `claim`.

        Not a transaction: each is atomic by itself, and may be refused by Redis alone. Safe to repeat.
        """
        commands = [RedisCommand(_DELIVER, _DELIVER.vector(*self._delivery_of(each, worker))) for each in deliveries]
        commands += [RedisCommand(_CLAIM, _CLAIM.vector(*self._claim_of(each, worker, lease_ms))) for each in requests]
        replies = run_in_order(self._line.client, commands)
        delivered = [reply if isinstance(reply, Exception) else bool(reply) for reply in replies[: len(deliveries)]]
        claims: list[Claim | ClaimRefused | Exception] = []
        for request, reply in zip(requests, replies[len(deliveries) :], strict=True):
            try:
                claims.append(self._claimed(request, checked(reply)))
            except Exception as error:  # of this visit alone
                claims.append(error)
        return delivered, claims

    def _claim_of(self, request: WantedVisit, worker: str, lease_ms: int) -> _Script:
        call, wanted = request.call, request.wanted
        number = self._keys.partition_of(call.run)
        run, partition = self._keys.of_run(call.run), self._keys.of_partition(number)
        keys = {
            "run": run.run,
            "state": run.state,
            "frontier": run.frontier,
            "claims": run.claims,
            "events": run.events,
            "leases": partition.leases,
            "outbox": partition.outbox,
            "paused": partition.paused,
            "spec": run.spec,
            "items": run.items,
            "inbox": partition.inbox,
            "generation": self._keys.generation_of(number),
            "holds": partition.holds,
        }
        args: dict[str, Arg] = {
            "member": member(call.run, call.seq, call.attempt),
            "seq": call.seq,
            "attempt": call.attempt,
            "worker": worker,
            "token": request.token,
            "lease_ms": lease_ms,
            "all": int(wanted is None),
            "node": call.node,
            "role": call.role,
            "spec_head": _spec_head(call.agent, call.bundle),
            "reads": decoding.READS,
        }
        return keys, args, sorted(wanted or ())

    def _claimed(self, request: WantedVisit, reply: Any) -> Claim | ClaimRefused:
        call, wanted = request.call, request.wanted
        if not reply[0]:
            return ClaimRefused(str(reply[1]))
        _, spec, started_ms, item, overlay, part, talk, step, limited_from, *pairs = reply
        state = dict(zip(pairs[::2], pairs[1::2], strict=True))
        if isinstance(step, str) and "@" in step:
            step, _, sees = step.partition("@")
            state = self._state_after(call.run, int(sees), wanted)
        if overlay:
            state |= overlay_of(overlay)
        return Claim(
            _spec(spec),
            int(started_ms),
            state,
            read_text(Item, item, "item", call.task_id) if item else None,
            read_text(Part, part, "part", call.task_id) if part else None,
            _talk(talk),
            int(step),
            int(limited_from),
        )

    def _state_after(self, run_id: str, step: int, wanted: Collection[str] | None) -> dict[str, str]:
        """The state after a journal step, for a visit that runs again with its earlier input."""
        state = RunJournal(self._line.client, self._keys).fold(run_id, step)
        return {key: dumps(value) for key, value in state.items() if wanted is None or key in wanted}

    def tries(self, call: VisitCall) -> tuple[int, bool]:
        """How many failures of a visit were retried, and whether callbacks have changed what it sees. (0, False) also
        if it is over."""
        text = self._line.execute_command("HGET", self._keys.of_run(call.run).frontier, call.seq)
        body = None if text is None else read_visit(text, call.task_id).body
        return (body.failures, body.input_changed) if isinstance(body, Work) else (0, False)

    def deliver(
        self, call: VisitCall, header: ResultHeader, values: Mapping[str, str], *, worker: str, token: str
    ) -> bool:
        """Deliver a result; `values` is JSON text by state key. False: refused, the visit is no longer claimed with
        this token.

        Safe to repeat with the same token.
        """
        return bool(_DELIVER(self._line, *self._delivery_of(VisitDelivery(call, header, values, token), worker)))

    def _delivery_of(self, delivery: VisitDelivery, worker: str) -> _Script:
        call = delivery.call
        run, partition = self._keys.of_run(call.run), self._keys.of_partition(self._keys.partition_of(call.run))
        keys = {
            "run": run.run,
            "frontier": run.frontier,
            "claims": run.claims,
            "events": run.events,
            "delta": run.delta(call.seq, call.attempt),
            "leases": partition.leases,
            "inbox": partition.inbox,
            "late": partition.late,
        }
        header = dumps(delivery.header.to_json())
        args: dict[str, Arg] = {
            "run_id": call.run,
            "member": member(call.run, call.seq, call.attempt),
            "seq": call.seq,
            "attempt": call.attempt,
            "token": delivery.token,
            "worker": worker,
            "node": call.node,
            "header": header.encode(errors="replace"),  # an error may quote half a surrogate pair
        }
        return keys, args, [part for pair in delivery.values.items() for part in pair]

    def hand_back(self, call: VisitCall, *, token: str, reason: str) -> bool:
        """Return a visit whose executor has stopped, so that another worker starts it before the lease ends.

        False: it is no longer claimed, or an earlier call with this token returned it. Safe to repeat.
        """
        partition = self._keys.of_partition(self._keys.partition_of(call.run))
        keys = {
            "claims": self._keys.of_run(call.run).claims,
            "leases": partition.leases,
            "inbox": partition.inbox,
        }
        args: dict[str, Arg] = {
            "run_id": call.run,
            "member": member(call.run, call.seq, call.attempt),
            "seq": call.seq,
            "attempt": call.attempt,
            "token": token,
            "reason": reason,
        }
        return bool(_HAND_BACK(self._line, keys, args))

    def publish_soon(self, run_id: str, seq: int, attempt: int, *, within_ms: int) -> None:
        """Bring the next publication of a queued visit forward. No effect if it is claimed, over or due sooner. Safe to
        repeat."""
        outbox = self._keys.of_partition(self._keys.partition_of(run_id)).outbox
        at_ms = clock_ms(self._line.client, outbox) + within_ms
        self._line.client.zadd(outbox, {member(run_id, seq, attempt): at_ms}, xx=True, lt=True)

    def heartbeat(self, calls: Sequence[VisitCall], lease_ms: int) -> set[str]:
        """Renew the leases of these visits, one round trip for all. Returns the task ids of lost visits."""
        names = {member(call.run, call.seq, call.attempt): call.task_id for call in calls}
        by_partition: dict[int, list[str]] = defaultdict(list)
        for name in names:
            by_partition[self._keys.partition_of(parse_member(name)[0])].append(name)
        vectors = [
            _HEARTBEAT.vector({"leases": self._keys.of_partition(partition).leases}, {"lease_ms": lease_ms}, members)
            for partition, members in by_partition.items()
        ]
        replies = list(map(checked, run_batch(self._line.client, _HEARTBEAT, vectors)))
        return {names[name] for reply in replies for name in reply}

    def is_replicated(self, call: VisitCall, *, lease_ms: int, replicas: int, timeout_ms: int) -> bool:
        """Whether so many replicas have the claim of this visit; waits up to `timeout_ms` (below the socket timeout).

        Renews the lease first, so that WAIT applies to a write of this connection.
        """
        partition = self._keys.of_partition(self._keys.partition_of(call.run))
        renewal = _HEARTBEAT.vector(
            {"leases": partition.leases}, {"lease_ms": lease_ms}, [member(call.run, call.seq, call.attempt)]
        )
        commands = [RedisCommand(_HEARTBEAT, renewal), RedisCommand(None, ["WAIT", replicas, timeout_ms])]
        replies = list(map(checked, run_in_order(self._line.client, commands)))
        return int(replies[1]) >= replicas

    def count_leased(self, task_ids: Sequence[str]) -> int:
        """The number of these Celery tasks whose visit is under a lease."""
        pipe = self._line.client.pipeline(transaction=False)
        for name in map(member_of, task_ids):
            pipe.zscore(self._keys.of_partition(self._keys.partition_of(parse_member(name)[0])).leases, name)
        return sum(until_ms is not None for until_ms in pipe.execute())
