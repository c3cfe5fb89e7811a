"""Converts a Transition to the arguments of commit.lua: control data as one small JSON, stored values as opaque
strings. partitions/commits.py sends them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sleipnir.access.audit import audit_text
from sleipnir.messages import overlay_text
from sleipnir.runs.actor import Change, change_text, is_actor
from sleipnir.runs.budgets import Budget
from sleipnir.runs.cards import card_of, is_moved
from sleipnir.runs.run import Gate, RunView
from sleipnir.runs.sessions import SessionName, instructions_of
from sleipnir.runs.transitions import (
    DropValue,
    ForgetConversation,
    GatherResults,
    ItemOp,
    PutValues,
    RetryChild,
    SetValue,
    SplitCommands,
    StartChild,
    Step,
    TakeResult,
    Transition,
    Write,
    effect_fields,
    piece_field,
    usage_fields,
)
from sleipnir.runs.visits import Backoff, Visit, Work
from sleipnir.store.holds import FIELDS as HOLD_FIELDS
from sleipnir.store.holds import hold_fields
from sleipnir.store.keys import PartitionKeys, RunKeys, SessionKeys, member, session_keys
from sleipnir.store.record_text import dumps, record, text
from sleipnir.store.scripts import Arg
from sleipnir.store.visit_records import visit_text

_KEPT = ("arrived", "deferred", "tops")
"""Fields of a run that are stored as JSON, unless they are empty."""


def control(
    run: RunView,
    after: RunView,
    transition: Transition,
    *,
    event_id: str,
    epoch: int,
    now_ms: int,
    publish_after_ms: int,
    retention_ms: int,
    session_messages: int = 10_000,
    audit_ms: int = 0,
) -> tuple[str, list[Arg]]:
    """The control JSON of one commit and the texts that go with it. `after` is the run after the transition.

    `publish_after_ms`: the time after this commit until an unclaimed visit is published again. The control has the
    numbers of texts of each kind; the texts are in the order in which commit.lua reads them. Empty parts are left out,
    and JSON is not nested in JSON: this halves the bytes for two encoders and a decoder.
    """
    texts: list[Arg] = []  # the order of the entries below is the order of their texts
    closed, gone = _closed_visits(run, transition)
    drops, items = _drops_apart(transition.items) if transition.items else ([], [])
    body = {
        "run": run.id,
        "event": event_id,
        "epoch": epoch,
        "version": run.version,
        "last": run.last_event,
        "publish_after_ms": publish_after_ms,
        "close": closed,
        "open": _opened_visits(run, transition, texts),
        "items": [_item_op(op, texts) for op in items],
        "steps": [_written(write, texts) for write in transition.writes],
        "set": _fields(run, after, transition),
    }
    if not items:
        del body["items"]
    seldom = {
        "scopes": list(run.spec.scopes),
        "gone": gone,
        "drops": [*drops, *transition.drops],
        "unless_claimed": transition.unless_claimed,
        "unless_answered": transition.unless_answered,
        "delivered": transition.delivered is not None,
        "unset": _unset(run, after),
        **_held_writes(transition, texts),
        **_costs(transition, texts),
        **_clock(run.id, transition),
        "continues": transition.continues,
        "stops": transition.stops,
        "revives": transition.revives,
        "session": _session(run, after, now_ms, session_messages, revives=transition.revives),
        **_reports(transition, texts),
        **_audited(run, after, transition, audit_ms, texts),
        "reached": after.budget is not run.budget and _is_reached(run.budget, after.budget),
        "lists": (transition.revives or is_moved(run, after)) and _listed(after, transition, now_ms, texts),
    }
    body |= {name: value for name, value in seldom.items() if value}
    if after.is_final and (transition.revives or not run.is_final):
        body |= {
            "expire_ms": retention_ms,
            "expires_at_ms": now_ms + retention_ms,
            "keeps": transition.keeps or after.status == "failed",
        }
    return text(body), texts


def _closed_visits(run: RunView, transition: Transition) -> tuple[list[dict[str, Any]], list[int]]:
    """The visits to close; those without claims and gates by their number only, unless a condition concerns them."""
    closed = [_closed(run, visit, visit.seq == transition.delivered) for visit in transition.close]
    gone = [seq for seqs in transition.gone.values() for seq in seqs]
    if not transition.unless_claimed:
        gone += [each["seq"] for each in closed if len(each) == 2]
        closed = [each for each in closed if len(each) > 2]
    return closed, gone


def _opened_visits(run: RunView, transition: Transition, texts: list[Arg]) -> list[dict[str, Any]]:
    gates = {gate.seq: gate for gate in transition.gates}
    return [_opened(run, visit, gates.get(visit.seq), texts) for visit in transition.open]


def _held_writes(transition: Transition, texts: list[Arg]) -> dict[str, Any]:
    """The writes of earlier steps that count from now on, and the values that reducers made of them."""
    counted = [number for write in transition.writes for number in write.step.applies]
    if not (counted or transition.folded or transition.windows):
        return {}
    if counted and transition.copies is not None:
        counted = list(transition.copies)
    return {
        "applies": counted,
        "apart": sorted(transition.apart) if counted else [],
        "folded": _pairs(transition.folded, texts),
        "windows": _windows(transition.windows, texts),
    }


def _costs(transition: Transition, texts: list[Arg]) -> dict[str, Any]:
    """What was used: by the run itself, or in all by a child run."""
    if not transition.usage and transition.usage_of is None:
        return {}
    if transition.usage_of is None:
        return {"add": [{"field": name, "by": by} for name, by in usage_fields(transition).items()]}
    texts.append(dumps(usage_fields(transition)))
    return {"cost_of": transition.usage_of}


def _clock(run_id: str, transition: Transition) -> dict[str, Any]:
    if not (transition.timers or transition.untimers or transition.wakes):
        return {}
    return {
        "timers": [{"name": f"{run_id}/{name}", "due_ms": due_ms} for name, due_ms in transition.timers.items()],
        "untimers": [f"{run_id}/{name}" for name in transition.untimers],
        "wakes": [member(run_id, visit.seq, visit.attempt) for visit in transition.wakes],
    }


def _reports(transition: Transition, texts: list[Arg]) -> dict[str, Any]:
    """What others get: the output of the run, the events for watchers, and effects on other runs."""
    if transition.output is not None:
        texts.append(transition.output)
    if transition.notices:
        texts.append(text([[notice.type, notice.data] for notice in transition.notices]))
    for effect in transition.effects:
        started = effect if isinstance(effect, StartChild | RetryChild) else None
        texts += (dumps(effect_fields(effect)), started.child if started else "")
        texts.append(text({"agent": started.agent, "seq": started.seq}) if started else "")
    return {
        "output": transition.output is not None,
        "events": bool(transition.notices),
        "effects": len(transition.effects),
    }


def _is_reached(before: Budget | None, after: Budget | None) -> bool:
    """Whether a budget is used up that was not before."""
    return after is not None and after.asked is not None and (before is None or before.asked is None)


def _audited(run: RunView, after: RunView, transition: Transition, audit_ms: int, texts: list[Arg]) -> dict[str, Any]:
    """The entries of the audit: what people have asked for. What follows from it in other runs is not repeated."""
    asked = [write.step for write in transition.writes if write.step.by and is_actor(write.step.by)]
    for step in asked:
        texts.append(_audit_entry(run, after, step))
    return {"audit": len(asked), "audit_ms": audit_ms} if asked else {}


def _audit_entry(run: RunView, after: RunView, step: Step) -> str:
    what = step.kind if step.seq is None else "answered" if step.skipped is None else "skipped"
    visit = {"node": step.node, "visit": step.seq, "question": step.gate, "answer": step.answer, "gave": step.skipped}
    return audit_text(
        f"run {what}", f"run {run.id}", step.by,
        before={"status": run.status},
        after={"status": after.status, **{name: value for name, value in visit.items() if value is not None}},
        reason=step.reason,
    )  # fmt: skip


def _listed(after: RunView, transition: Transition, now_ms: int, texts: list[Arg]) -> bool:
    """The card of the run, if the lists of runs change."""
    node = None if transition.failure is None else transition.failure.node
    ended_ms = (transition.ended_ms or now_ms) if after.is_final else None
    texts.append(card_of(after, ended_ms=ended_ms, error=transition.error, node=node))
    return True


def _unset(run: RunView, after: RunView) -> list[str]:
    """Fields of the run's hash that the transition empties."""
    gone = [name for name in ("slot", *_KEPT) if getattr(run, name) and not getattr(after, name)]
    return [*gone, *HOLD_FIELDS] if run.holds and not after.holds else gone


def _session(run: RunView, after: RunView, now_ms: int, most: int, *, revives: bool) -> dict[str, Any] | None:
    """The session part of a run in a session: with the commit that completes it, the run adds its messages and its
    dynamic instructions to the session, which keeps about `most` messages. Of a run in a thread, the part of the
    commits that end and revive it."""
    if run.spec.thread is not None:
        return {"at_ms": now_ms, "thread": 1} if revives or after.is_final != run.is_final else None
    if (name := SessionName.of(run.spec)) is None:
        return None
    session: dict[str, Any] = {"completed": after.status == "completed", "at_ms": now_ms}
    if name.expire_ms is not None:
        session["expire_ms"] = name.expire_ms
    if after.status == "completed":
        session["instructions_of"] = instructions_of(run.spec.bundle, run.spec.variables)
        session["most"] = most
    return session


def _closed(run: RunView, visit: Visit, delivered: bool) -> dict[str, Any]:
    closed: dict[str, Any] = {"seq": visit.seq, "attempt": visit.attempt}
    if not delivered and isinstance(visit.body, (Work, Backoff)):
        closed["member"] = member(run.id, visit.seq, visit.attempt)
    if visit.is_asking:
        closed |= {"gate": f"{run.id}/{visit.seq}", "namespace": run.spec.namespace}
    return closed


def _opened(run: RunView, visit: Visit, gate: Gate | None, texts: list[Arg]) -> dict[str, Any]:
    opened: dict[str, Any] = {"seq": visit.seq}
    texts.append(visit_text(visit))
    if visit.state == "queued":
        opened["member"] = member(run.id, visit.seq, visit.attempt)
    if gate is not None:
        opened |= {
            "gate": f"{run.id}/{visit.seq}", "opened_ms": gate.opened_ms, "namespace": run.spec.namespace
        }  # fmt: skip
        texts.append(record(gate))
    return opened


def _written(write: Write, texts: list[Arg]) -> dict[str, Any]:
    texts.append(record(write.step))
    for key, value in write.values.items():
        texts += (key, dumps(value))
    written: dict[str, Any] = {"step": write.step.step, "delta": write.delta, "writes": len(write.values)}
    if write.step.held:
        written["held"] = True
    if write.keeps_commands:
        written["keeps_commands"] = write.step.seq
    if write.collect:
        collect = write.collect
        pieces = [piece_field(collect.id, piece) for piece in range(collect.pieces)]
        written["collect"] = {"id": collect.id, "total": collect.total, "key": collect.key}
        if pieces:
            written["collect"]["pieces"] = pieces
    return written


def _drops_apart(ops: tuple[ItemOp, ...]) -> tuple[list[str], list[ItemOp]]:
    """The fields that are dropped at the end, and the other operations in order: thousands may be dropped at once."""
    drops: list[str] = []
    others: list[ItemOp] = []
    filled: set[str] = set()
    for op in reversed(ops):
        if isinstance(op, DropValue) and op.field not in filled:
            drops.append(op.field)
            continue
        others.append(op)
        if isinstance(op, SetValue | TakeResult):
            filled.add(op.field)
    others.reverse()
    return drops, others


def _item_op(op: ItemOp, texts: list[Arg]) -> dict[str, Any]:
    match op:
        case PutValues(of, overlays, first):
            texts += (overlay_text({key: dumps(value) for key, value in overlay.items()}) for overlay in overlays)
            return {"op": "put", "of": of, "first": first, "count": len(overlays)}
        case GatherResults(of, first, count, piece):
            return {"op": "gather", "of": of, "first": first, "count": count, "field": piece_field(of, piece)}
        case SplitCommands(of):
            return {"op": "split", "of": of}
        case TakeResult(field, key, _):
            return {"op": "take", "field": field, "key": key} if key is not None else {"op": "take", "field": field}
        case SetValue(field, text):
            texts.append(text)
            return {"op": "fill", "field": field}
        case DropValue(field):
            return {"op": "drop", "field": field}
        case ForgetConversation(id, turn, calls):
            return {"op": "forget", "id": id, "turn": turn, "calls": calls}


def _pairs(values: Mapping[str, Any], texts: list[Arg]) -> int:
    for key, value in values.items():
        texts += (key, dumps(value))
    return len(values)


def _windows(windows: Mapping[str, Any], texts: list[Arg]) -> int:
    for key, window in windows.items():
        texts += (key, "" if window is None else dumps(window))
    return len(windows)


def _fields(run: RunView, after: RunView, transition: Transition) -> list[str]:
    fields: dict[str, Any] = {"status": after.status, "seq": after.seq, "step": after.step}
    if after.steps != run.steps:
        fields["steps"] = after.steps
    if after.limited_from != run.limited_from:
        fields["limited_from"] = after.limited_from
    for name in _KEPT:
        if (value := getattr(after, name)) and value != getattr(run, name):
            fields[name] = dumps(value)
    if after.idle_ms != run.idle_ms:
        fields["idle_ms"] = after.idle_ms
    if after.holds and after.holds != run.holds:
        fields |= hold_fields(after.holds)
    if after.slot and after.slot != run.slot:
        fields["slot"] = record(after.slot)
    if after.budget and after.budget != run.budget:
        fields["budget"] = record(after.budget)
    if after.failed_visits is not run.failed_visits:
        fields["failed_visits"] = record(after.failed_visits)
    fields |= {f"n:{node}": count for node, count in transition.counts.items()}
    for node, timing in transition.timings.items():
        cached = f" {timing.cached}" if timing.cached else ""
        fields[f"t:{node}"] = f"{timing.visits} {timing.total_ms} {timing.max_ms}{cached}"
    if any(write.step.cached for write in transition.writes):
        fields["cached"] = after.cached_visits
    for write in transition.writes:
        if (step := write.step).by or step.answer is not None:
            what = step.kind if step.seq is None else "answered" if step.skipped is None else "skipped"
            of = None if step.skipped is None else step.node
            fields[f"by:{what}"] = change_text(Change(what, step.by, step.at_ms, step.reason, step.answer, of))
    if transition.ended_ms is not None:
        fields["end_version"] = after.version
    if transition.failure is not None:
        fields["failure"] = record(transition.failure)
    for name in ("started_ms", "ended_ms", "error", "stopped_by"):
        if (value := getattr(transition, name)) is not None:
            fields[name] = value
    return [str(part) for pair in fields.items() for part in pair]


@lru_cache(maxsize=1024)
def shared_keys(partition: PartitionKeys) -> Mapping[str, str]:
    """The partition's part of commit.lua's keys; cached, because making the names is 2 % of a visit's scheduler
    time."""
    return {
        "owner": partition.owner,
        "inbox": partition.inbox,
        "outbox": partition.outbox,
        "leases": partition.leases,
        "timers": partition.timers,
        "open_gates": partition.gates,
        "effects": partition.effects,
        "expiring": partition.expiring,
        "ended": partition.ended,
        "audit": partition.audit,
        "cards": partition.cards,
    }


def commit_keys(keys: RunKeys, delta: str, session: SessionKeys | None) -> dict[str, str]:
    """The run's part of commit.lua's keys. `delta` may name a key that does not exist."""
    return {
        "run": keys.run,
        "state": keys.state,
        "frontier": keys.frontier,
        "claims": keys.claims,
        "journal": keys.journal,
        "events": keys.events,
        "gates": keys.gates,
        "output": keys.output,
        "delta": delta,
        "spec": keys.spec,
        "items": keys.items,
        "windows": keys.windows,
        "children": keys.children,
        **session_keys(keys, session),
    }
