"""The runs that events are for: stored texts to run views."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

import redis

from sleipnir.decoding import decoded, number, read_text, whole
from sleipnir.errors import RecordUnreadable
from sleipnir.messages import FINAL, STATUSES
from sleipnir.runs.budgets import NOTHING_SPENT, Budget, BudgetUse
from sleipnir.runs.run import NO_FAILED_VISITS, FailedVisits, PastState, QueuedTurn, RunSpec, RunView, Slot, Timing
from sleipnir.runs.visits import Rank
from sleipnir.store.connect import is_passing
from sleipnir.store.holds import holds_of
from sleipnir.store.partitions.connection import PartitionConnection
from sleipnir.store.scripts import checked
from sleipnir.store.visit_records import read_visit

P = TypeVar("P")


class RunRecords(PartitionConnection):
    """Read runs for the planner."""

    def load(
        self, run_ids: Collection[str], unreadable: dict[str, RecordUnreadable] | None = None
    ) -> dict[str, RunView]:
        """Run views by id; missing (expired) runs are left out. The errors of unreadable records are put into
        `unreadable`, or raised without it."""
        ids = list(run_ids)
        if not ids:
            return {}
        pipe = self._client.pipeline(transaction=False)
        for run_id in ids:
            run = self._keys.of_run(run_id)
            pipe.get(run.spec)
            pipe.hgetall(run.run)
            pipe.hgetall(run.frontier)
        replies = pipe.execute(raise_on_error=False)
        views: dict[str, RunView] = {}
        for run_id, *stored in zip(ids, replies[::3], replies[1::3], replies[2::3], strict=True):
            try:
                view = _view_if_any(run_id, *stored)
            except RecordUnreadable as error:
                if unreadable is None:
                    raise
                unreadable[run_id] = error
            else:
                if view is not None:
                    views[run_id] = view
        return views


def _view_if_any(run_id: str, spec: Any, record: Any, frontier: Any) -> RunView | None:
    """A run view from the replies of Redis; None: the run does not exist (any more). Raises RecordUnreadable."""
    for reply in (spec, record, frontier):
        check_reply(reply, "record", run_id)
    if not record or (not spec and record.get("status") in FINAL):  # keys with the same expiry may disappear one by one
        return None
    if not spec:
        raise RecordUnreadable("record", run_id, "damaged: its spec is missing")
    return view_of(run_id, spec, record, frontier)


def check_reply(reply: Any, what: str, run_id: str) -> None:
    """Raise RecordUnreadable for a key of an unexpected type, and other errors of Redis unchanged."""
    if isinstance(reply, redis.exceptions.ResponseError) and not is_passing(reply):
        raise RecordUnreadable(what, run_id, f"damaged: {ascii(str(reply))[1:200]}")
    checked(reply)


def check_text(texts: Iterable[str]) -> None:
    """Raise RecordUnreadable for bytes that are not UTF-8: they could not be sent back to Redis."""
    whole_text = "".join(texts)
    if not whole_text.isascii():
        try:
            whole_text.encode()
        except UnicodeError:
            raise RecordUnreadable("record", "", "damaged: it is not UTF-8") from None


def view_of(run_id: str, spec: str, record: Mapping[str, str], frontier: Mapping[str, str]) -> RunView:
    """A run view from the stored texts. Raises RecordUnreadable."""
    try:
        check_text((*record, *record.values()))
        return _view_of(run_id, spec, record, frontier)
    except KeyError as missing:
        raise RecordUnreadable("record", run_id, f"damaged: it lacks {missing.args[0]}") from None


def _view_of(run_id: str, spec: str, record: Mapping[str, str], frontier: Mapping[str, str]) -> RunView:
    visits = [read_visit(text, f"{run_id}/{seq}") for seq, text in frontier.items()]
    submitted = read_text(RunSpec, spec, "spec", run_id)
    if (status := record["status"]) not in STATUSES:
        raise RecordUnreadable("record", run_id, f"its status {ascii(status)[:40]} is not known here", newer=True)

    def count(name: str, text: str | None = None) -> int:
        return whole(record[name] if text is None else text, f"{name} of the record", run_id)

    def part(kind: type[P], name: str) -> P | None:
        return read_text(kind, record[name], name, run_id) if name in record else None

    return RunView(
        id=run_id,
        spec=submitted,
        status=status,  # type: ignore[arg-type]
        version=count("version"),
        last_event=record.get("last_event", ""),
        seq=count("seq"),
        step=count("step"),
        started_ms=count("started_ms") if "started_ms" in record else 0,
        failed_at=record.get("failed_at"),
        holds=holds_of(record.get("paused"), record.get("holds"), run_id),
        idle_ms=count("idle_ms") if "idle_ms" in record else 0,
        counts=_counts_of_past(submitted, record)
        or {name[2:]: count(name) for name in record if name.startswith("n:")},
        timings={name[2:]: _timing(run_id, text) for name, text in record.items() if name.startswith("t:")},
        frontier={visit.seq: visit for visit in visits},
        steps=count("steps") if "steps" in record else 0,
        arrived=_table("arrived", record, run_id, dict),
        deferred=_table("deferred", record, run_id, int),
        tops={key: _rank(rank, run_id) for key, rank in _table("tops", record, run_id, list).items()},
        batch=record.get("batch"),
        slot=part(Slot, "slot"),
        budget=part(Budget, "budget"),
        spent=_spent(run_id, record) if submitted.budget else NOTHING_SPENT,
        failed_visits=part(FailedVisits, "failed_visits") or NO_FAILED_VISITS,
        limited_from=count("limited_from") if "limited_from" in record else 0,
        past=part(PastState, "past"),
        queued=part(QueuedTurn, "queued"),
    )


def _counts_of_past(spec: RunSpec, record: Mapping[str, str]) -> dict[str, int]:
    """The counts that a fork without a state of its own begins with: its record gets them with the state."""
    return dict(spec.fork.checkpoint.counts) if "past" in record and spec.fork is not None else {}


def _timing(run_id: str, text: str) -> Timing:
    parts = text.split()
    if len(parts) < 3:
        raise RecordUnreadable("record", run_id, f"damaged: a timing is {ascii(text)[:40]}")
    return Timing(*(whole(part, "timing", run_id) for part in parts[:4]))


def _table(name: str, record: Mapping[str, str], run_id: str, kind: type) -> dict[str, Any]:
    """A JSON object of the run's hash whose values are all of a kind; empty if it has none."""
    if name not in record:
        return {}
    table = decoded(record[name], name, run_id)
    if type(table) is not dict or any(type(value) is not kind for value in table.values()):
        raise RecordUnreadable(name, run_id, f"damaged: it must be an object of values of type {kind.__name__}")
    return table


def _rank(parts: list[Any], run_id: str) -> Rank:
    if [type(part) for part in parts] != [int, str, str, int]:
        raise RecordUnreadable("tops", run_id, f"damaged: {ascii(parts)[:60]} is not a place in the visit order")
    return parts[0], parts[1], parts[2], parts[3]


def _spent(run_id: str, record: Mapping[str, str]) -> BudgetUse:
    tokens = sum(int(number(record.get(name, "0"), name, run_id)) for name in ("tokens_in", "tokens_out"))
    return BudgetUse(tokens, number(record.get("cost_usd", "0"), "cost", run_id))
