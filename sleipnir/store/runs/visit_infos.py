"""What people see of the live visits of a run: visits to VisitInfo."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sleipnir.runs.views import HoldInfo, KeptVisit, Reason, ReasonCode, VisitInfo
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
    SignalWait,
    Visit,
    Work,
)


def visit_infos(
    visits: Sequence[Visit], claims: Mapping[str, str], gates: Collection[str], holds: Sequence[HoldInfo]
) -> Iterator[VisitInfo]:
    """The state of each live visit and the reason why it is in it. `claims` and `gates` are hashes of the run in Redis:
    claims by number, fields of gates; `holds` are those of the run, oldest first."""
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
        case SignalWait(name):
            return replace(info, reason=Reason("event", until_ms=due_ms, event=name))
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


def kept_visit(visit: Visit) -> KeptVisit:
    """What `retry` would do with a visit that a failed run keeps."""
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


def has_commands_left(visit: Visit) -> bool:
    return isinstance(visit.body, Failed) and isinstance(visit.body.was, Commands)


def reason_now(
    visit: VisitInfo, by: str | None, until_ms: Mapping[int, int | None], streams: Mapping[str, str]
) -> Reason:
    """The reason of a visit, with the end of its lease (by number), who holds the deployment (None: nobody), and the
    node stream that it waits for (RunKeys.stream_waits)."""
    if visit.reason.code == "lease":
        waits = json.loads(streams.get(str(visit.seq), "{}"))
        code: ReasonCode = "stream" if waits else "lease"
        stream, writer = waits.get("stream"), waits.get("node")
        return replace(visit.reason, code=code, until_ms=until_ms[visit.seq], stream=stream, writer=writer)
    if visit.reason.code == "queued" and by is not None:
        return replace(visit.reason, code="paused", by=by)
    return visit.reason


def _code_of_claim(claim: Mapping[str, Any]) -> ReasonCode:
    if claim.get("lost"):
        return "lost"
    return "result" if claim.get("delivered") else "lease"


def whole_number(text: str | float | None) -> int | None:
    return None if text is None else int(float(text))
