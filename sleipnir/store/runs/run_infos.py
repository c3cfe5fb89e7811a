"""What people see of a run: stored texts to RunInfo."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sleipnir.decoding import decoded, decoded_object, read, read_text
from sleipnir.errors import RecordUnreadable, RunNotFound
from sleipnir.messages import FINAL, STATUSES, Usage
from sleipnir.runs.actor import changes_of
from sleipnir.runs.budgets import Budget
from sleipnir.runs.deployment_holds import (
    DEPLOYMENT,
    MARK_OF_DEPLOYMENT,
    MARK_OF_NAMESPACE,
    DeploymentHolds,
    HeldRun,
    holds_in,
)
from sleipnir.runs.run import NO_FAILED_VISITS, FailedVisits, Parked, RunSpec, Slot
from sleipnir.runs.views import ChildInfo, HoldInfo, RunInfo, RunTree, SlotInfo, hold_info
from sleipnir.runs.visits import Failure
from sleipnir.store.connect import is_lasting
from sleipnir.store.fast_client import execute_all
from sleipnir.store.holds import holds_of
from sleipnir.store.keys import member
from sleipnir.store.runs.connection import RunConnection
from sleipnir.store.runs.visit_infos import has_commands_left, kept_visit, reason_now, visit_infos, whole_number
from sleipnir.store.scripts import checked
from sleipnir.store.visit_records import read_visit

_SUMMARY = (
    "status", "created_ms", "started_ms", "ended_ms", "error", "step", "paused", "holds", "retrying", "retries",
    "batch", "slot", "budget", "stopped_by", "failed_visits", "failure",
    "cached", "queued",
)  # fmt: skip
_CHANGES = (
    "by:paused", "by:resumed", "by:retried", "by:cancelled", "by:answered", "by:commented", "by:skipped", "by:stopped",
)  # fmt: skip
_USAGE = ("tokens_in", "tokens_out", "model_calls", "cost_usd", "unpriced_calls")
_FIELDS = (*_SUMMARY, *_CHANGES, *_USAGE)


class RunInfos(RunConnection):
    """Read what a run is and what it waits for."""

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

    def find(self, run_ids: Collection[str]) -> list[RunInfo | None]:
        """Several runs in one round trip; None for a missing run."""
        commands: list[tuple[str, ...]] = []
        for run_id in run_ids:
            run = self._keys.of_run(run_id)
            commands += [
                ("GET", run.spec),
                ("HMGET", run.run, *_FIELDS),
                ("HGETALL", run.frontier),
                ("HGETALL", run.claims),
                ("HKEYS", run.gates),
                ("HGET", self._keys.of_partition(self._keys.partition_of(run_id)).parked, run_id),
            ]
        replies = iter(execute_all(self._client, commands) if commands else ())
        return [
            _info_or_why_not(run_id, spec, fields, _hash(frontier), _hash(claims), gates, parked)
            for run_id, spec, fields, frontier, claims, gates, parked in zip(run_ids, *[replies] * 6, strict=True)
        ]

    def ended_among(self, run_ids: Sequence[str]) -> list[RunInfo]:
        """The finished ones of these runs. Raises RunNotFound for the first missing one."""
        statuses = execute_all(self._client, [("HGET", self._keys.of_run(run_id).run, "status") for run_id in run_ids])
        over = [
            run_id
            for run_id, status in zip(run_ids, map(checked, statuses), strict=True)
            if status is None or status in FINAL
        ]
        return [info for info in self.infos(over) if info.is_final] if over else []

    def with_leases(self, infos: Sequence[RunInfo]) -> list[RunInfo]:
        """The runs with the lease end of each started visit, and the holds of the deployment and of their namespaces.
        One round trip; two while something is held."""
        partitions = sorted({self._keys.partition_of(info.id) for info in infos})
        pipe = self._client.pipeline(transaction=False)
        for info in infos:
            leases = self._keys.of_partition(self._keys.partition_of(info.id)).leases
            pipe.hgetall(self._keys.of_run(info.id).stream_waits)
            for visit in info.visits:
                pipe.zscore(leases, member(info.id, visit.seq, visit.attempt))
        for partition in map(self._keys.of_partition, partitions):
            pipe.get(partition.paused)
            pipe.hgetall(partition.holds)
        replies = pipe.execute()
        held = replies[len(replies) - 2 * len(partitions) :]
        holds = {
            number: holds_in(paused, fields)
            for number, paused, fields in zip(partitions, held[::2], held[1::2], strict=True)
        }
        holding = self._holding(infos, holds) if any(each.scopes for each in holds.values()) else {}
        answers = iter(replies)
        explained_infos = []
        for info in infos:
            streams = next(answers)
            until_ms = {visit.seq: whole_number(next(answers)) for visit in info.visits}
            added = holding.get(info.id, ())
            by = added[0].in_words if added else None
            explained = info.with_reasons(partial(reason_now, by=by, until_ms=until_ms, streams=streams))
            if added and not info.is_final:
                explained = replace(explained, holds=(*info.holds, *added))
            explained_infos.append(explained)
        return explained_infos

    def _holding(
        self, infos: Sequence[RunInfo], holds: Mapping[int, DeploymentHolds]
    ) -> dict[str, tuple[HoldInfo, ...]]:
        """The holds of the deployment and of namespaces that keep each of these runs from going on."""
        pipe = self._client.pipeline(transaction=False)
        for info in infos:
            pipe.hmget(self._keys.of_run(info.id).run, MARK_OF_DEPLOYMENT, MARK_OF_NAMESPACE)
        holding = {}
        for info, marks in zip(infos, pipe.execute(), strict=True):
            about = HeldRun(info.namespace, info.agent, info.created_ms, info.parent is not None, (marks[0], marks[1]))
            over = holds[self._keys.partition_of(info.id)].over(about)
            holding[info.id] = tuple(
                HoldInfo(
                    "deployment" if held.scope == DEPLOYMENT else "namespace",
                    held.hold.by,
                    held.hold.at_ms,
                    held.hold.reason,
                )
                for held in over
            )
        return holding

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

    def active(self, run_id: str) -> list[RunInfo]:
        """A run, and the child runs that it waits for, at any depth. Raises RunNotFound."""
        found = level = [self.info(run_id)]
        while awaited := list(dict.fromkeys(child for info in level for child in info.awaits)):
            level = [info for info in self.find(awaited) if info is not None]
            found = [*found, *level]
        return found

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


def _hash(reply: Any) -> Any:
    """The reply of HGETALL as a dict: by the older protocol it is a list of fields and values. An error stays as it
    is."""
    return dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else reply


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
    record_fields = dict(zip(_FIELDS, fields, strict=True)) if isinstance(fields, list) else {}
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
    record_ = dict(zip(_FIELDS, fields, strict=True))
    if spec is None:
        return None
    visits = sorted(map(read_visit, frontier.values()), key=lambda visit: visit.seq)
    status = status_of(record_["status"], record_["retrying"])
    slot = _slot(record_["slot"])
    waits = slot is not None and not slot.granted
    is_live = record_["status"] not in FINAL and not waits
    submitted = read_text(RunSpec, spec, "spec", run_id)
    budget = (
        read_text(Budget, record_["budget"], "budget", run_id) if record_["budget"] else submitted.budget or Budget()
    )
    holds = _holds(run_id, record_, budget) if is_live or waits else ()
    failed, failure = record_["failed_visits"], record_["failure"] if status == "failed" else None
    return RunInfo(
        id=run_id,
        agent=submitted.agent,
        status=status,  # type: ignore[arg-type]
        created_ms=int(record_["created_ms"] or 0),
        started_ms=whole_number(record_["started_ms"]),
        ended_ms=whole_number(record_["ended_ms"]),
        error=record_["error"],
        failure=None if failure is None else read_text(Failure, failure, "failure", run_id),
        step=int(record_["step"] or 0),
        visits=tuple(visit_infos(visits, claims, gates, holds)) if is_live else (),
        usage=usage_total(record_),
        kept=() if is_live else tuple(kept_visit(visit) for visit in visits if not has_commands_left(visit)),
        parent=submitted.parent,
        session=submitted.session,
        event_scope=submitted.event_scope,
        schedule=submitted.schedule,
        root=submitted.root,
        retries=int(record_["retries"] or 0),
        batch=record_["batch"],
        slot=slot,
        max_cost_usd=budget.max_cost_usd,
        max_tokens=budget.max_tokens,
        holds=holds,
        changes=changes_of(record_),
        thread=submitted.thread,
        turn=submitted.turn,
        previous=submitted.previous,
        is_queued=record_["queued"] is not None and status not in FINAL,
        forked_from=None if submitted.fork is None else submitted.fork.run,
        forked_at=None if submitted.fork is None else submitted.fork.checkpoint.step,
        fork_keys=() if submitted.fork is None else submitted.fork.keys,
        fork_agent=None if submitted.fork is None else submitted.fork.agent,
        fork_model=None if submitted.fork is None else submitted.fork.model,
        as_node=None if submitted.fork is None else submitted.fork.as_node,
        overrides=submitted.of_nodes,
        namespace=submitted.namespace,
        tags=submitted.tags or {},
        version=submitted.bundle,
        stopped_by=record_["stopped_by"] if status == "completed" else None,
        failed_visits=NO_FAILED_VISITS if failed is None else read_text(FailedVisits, failed, "failed visits", run_id),
        cached_visits=whole_number(record_["cached"]) or 0,
    )


def _slot(text: str | None) -> SlotInfo | None:
    if text is None:
        return None
    slot = read_text(Slot, text, "slot")
    return SlotInfo(slot.key, slot.limit, slot.granted)


def _holds(run_id: str, record_: Mapping[str, str | None], budget: Budget) -> tuple[HoldInfo, ...]:
    """The holds of a run, oldest first."""
    holds = [hold_info(hold) for hold in holds_of(record_["paused"], record_["holds"], run_id)]
    if budget.asked is not None:
        holds.append(HoldInfo("budget", "its budget", budget.asked_ms))
    return tuple(sorted(holds, key=lambda hold: hold.at_ms))


def _child(run_id: str, text: str) -> ChildInfo:
    try:
        data = decoded_object(text, "child", run_id)
        return read(ChildInfo, {**data, "id": run_id}, "child", run_id)
    except RecordUnreadable:
        return ChildInfo(run_id, "?", 0)


def status_of(status: str | None, retrying: str | None) -> str | None:
    """The status, with a requested retry taken into account before a scheduler has processed it."""
    return "running" if retrying and status in ("failed", "cancelled") else status


def usage_total(record_: Mapping[str, str | None]) -> Usage:
    """The total usage of a run; the cost is None if the price of any call is unknown."""
    calls = int(float(record_["model_calls"] or 0))
    priced = not float(record_["unpriced_calls"] or 0) and calls > 0
    return Usage(
        input_tokens=int(float(record_["tokens_in"] or 0)),
        output_tokens=int(float(record_["tokens_out"] or 0)),
        calls=calls,
        cost_usd=round(float(record_["cost_usd"] or 0), 8) if priced else None,
    )
