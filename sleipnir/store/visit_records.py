"""A visit as JSON: flat, with an optional field for each thing that some kind of visit has.

The shape is older than the types of runs/visits.py. It stays, so that schedulers and workers of two releases can work
on one run; Lua scripts and workers read a few of these fields too. A field at its default is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sleipnir.decoding import read_text
from sleipnir.messages import VERSION, WAITS, InterruptQuestion, Role
from sleipnir.runs.budgets import BUDGET
from sleipnir.runs.visits import (
    BRANCH,
    READY,
    WHOLE_RUN,
    AgentFunction,
    Backoff,
    Body,
    Branch,
    Call,
    Child,
    ChildWait,
    Commands,
    Delay,
    Doubt,
    Ended,
    Ending,
    Failed,
    Failure,
    Fan,
    Item,
    Loop,
    Part,
    Place,
    Question,
    Ready,
    Receipt,
    RunFunction,
    SignalWait,
    Spawned,
    Turn,
    Visit,
    Work,
)
from sleipnir.store.record_text import fields_set, text


@dataclass(frozen=True)
class _StoredLoop:
    """Loop without its deadline, which is the visit's `wake_ms`."""

    id: int
    turn: int = 0
    calls: int = 0
    open: int = 0
    agents: tuple[Spawned, ...] = ()
    has_tasks: bool = False
    escalations: tuple[dict[str, Any], ...] = ()
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True)
class _StoredSignalWait:
    """SignalWait without its deadline, which is the visit's `wake_ms`."""

    name: str
    since_ms: int
    one: bool = False


INTERRUPT = "interrupt"
"""The kind of a stored visit whose node's code asks. A scheduler of an older release, which would take the answer for a
decision about lost work, knows no such kind and fails the run."""


@dataclass(frozen=True)
class _StoredInterrupt:
    """The type of the node that asks, what it asks, and the work that goes on with the answer."""

    kind: str
    asked: InterruptQuestion
    work: Work


@dataclass(frozen=True)
class _StoredVisit:
    """The fields of all kinds of visits. `wake_ms` is when the visit's timer is due; `ready`, of one that `failed`,
    that it had not begun."""

    seq: int
    node: str
    kind: str
    attempt: int
    opened_ms: int
    queue: str | None = None
    failures: int = 0
    losses: int = 0
    wake_ms: int | None = None
    error: str | None = None
    role: Role = "node"
    group: int = 0
    depth: int = 0
    lineage: str = ""
    index: int = 0
    overlay: str | None = None
    batch: int | None = None
    ready: bool = False
    failed: bool = False
    counted: bool = True
    ended: Ended | None = None
    fan: Fan | None = None
    item: Item | None = None
    loop: _StoredLoop | None = None
    part: Part | None = None
    limited: bool = False
    child: Child | None = None
    former: Child | None = None
    given: str | None = None
    addressee: str | None = None
    spread: Commands | None = None
    generation: str | None = None
    failure: Failure | None = None
    interrupt: _StoredInterrupt | None = None
    sees: int | None = None
    signal: _StoredSignalWait | None = None
    maps: Child | None = None
    input_changed: bool = False
    ending: Ending | None = None
    v: int = VERSION


def visit_text(visit: Visit) -> str:
    """The JSON of a visit."""
    fields: dict[str, Any] = {
        "seq": visit.seq,
        "node": visit.node,
        "kind": visit.kind,
        "attempt": visit.attempt,
        "opened_ms": visit.opened_ms,
        "v": VERSION,
    }
    if visit.group:
        fields["group"] = visit.group
    if visit.depth:
        fields["depth"] = visit.depth
    if visit.lineage:
        fields["lineage"] = visit.lineage
    if visit.index:
        fields["index"] = visit.index
    if visit.overlay is not None:
        fields["overlay"] = visit.overlay
    if visit.place is not BRANCH:
        _put_place(fields, visit.place)
    if visit.body is READY:
        fields["ready"] = True
    else:
        _put_body(fields, visit.body)
    return text(fields)


def _put_place(fields: dict[str, Any], place: Place) -> None:
    match place:
        case Branch(batch):
            if batch is not None:
                fields["batch"] = batch
        case Item():
            fields["item"] = fields_set(place)
        case Turn(item=item):
            fields |= {"role": "turn", "part": fields_set(place.part)}
            if item is not None:
                fields["item"] = fields_set(item)
        case Call():
            fields |= {"role": place.role, "part": fields_set(place.part)}
        case AgentFunction(role, visit):
            fields |= {"role": role, "batch": visit}
        case RunFunction(role, ending):
            fields["role"] = role
            if ending is not None:
                fields["ending"] = fields_set(ending)


def _put_body(fields: dict[str, Any], body: Body) -> None:
    match body:
        case Work():
            _put_work(fields, body)
        case Ended():
            fields["ended"] = fields_set(body)
        case Backoff(work, due_ms, limited):
            _put_work(fields, work)
            fields["wake_ms"] = due_ms
            if limited:
                fields["limited"] = True
        case Ready(resumes):
            fields["ready"] = True
            _put_earlier(fields, resumes)
        case Failed(error, was, begun, failure, counted):
            _put_earlier(fields, was)
            fields["failed"] = True
            if error is not None:
                fields["error"] = error
            if not begun:
                fields["ready"] = True
            if failure is not None:
                fields["failure"] = fields_set(failure)
            if not counted:
                fields["counted"] = False
        case Fan():
            fields["fan"] = fields_set(body)
        case Loop(due_ms=due_ms):
            fields["loop"] = _stored_loop(body)
            _put_due(fields, due_ms)
        case ChildWait(child, due_ms):
            fields["child"] = _stored_child(child)
            _put_due(fields, due_ms)
        case Receipt(addressee, due_ms):
            fields["addressee"] = addressee
            _put_due(fields, due_ms)
        case Commands():
            fields["spread"] = fields_set(body)
        case Question(due_ms, work, asked) if work is not None and asked is not None:
            _put_asked(fields, work, asked)
            _put_due(fields, due_ms)
        case Delay(due_ms, work, asked) if work is not None and asked is not None:
            _put_asked(fields, work, asked)
            fields["v"] = WAITS
            _put_due(fields, due_ms)
        case SignalWait(name, since_ms, due_ms, one, work, asked):
            fields["signal"] = fields_set(_StoredSignalWait(name, since_ms, one))
            fields["v"] = WAITS
            if work is not None and asked is not None:
                _put_asked(fields, work, asked)
            _put_due(fields, due_ms)
        case Question(due_ms) | Delay(due_ms):
            _put_due(fields, due_ms)
        case Doubt(work):
            _put_tries(fields, work)


def _put_asked(fields: dict[str, Any], work: Work, asked: InterruptQuestion) -> None:
    fields["interrupt"] = {"kind": fields["kind"], "asked": fields_set(asked), "work": fields_set(work)}
    fields["kind"] = INTERRUPT


def _put_due(fields: dict[str, Any], due_ms: int | None) -> None:
    if due_ms is not None:
        fields["wake_ms"] = due_ms


def _put_work(fields: dict[str, Any], work: Work) -> None:
    fields["queue"] = work.queue
    if work.error is not None:
        fields["error"] = work.error
    _put_tries(fields, work)


def _put_tries(fields: dict[str, Any], work: Work) -> None:
    if work.given is not None:
        fields["given"] = work.given
    if work.failures:
        fields["failures"] = work.failures
    if work.losses:
        fields["losses"] = work.losses
    if work.generation is not None:
        fields["generation"] = work.generation
    if work.sees is not None:
        fields["sees"] = work.sees
    if work.child is not None:
        fields["maps"] = _stored_child(work.child)
    if work.input_changed:
        fields["input_changed"] = True


def _stored_child(child: Child) -> dict[str, Any]:
    return {name: value for name, value in vars(child).items() if name != "callbacks" or value}


def _put_earlier(fields: dict[str, Any], earlier: Work | Doubt | Fan | Loop | Child | Commands | None) -> None:
    match earlier:
        case Work():
            _put_work(fields, earlier)
        case Doubt(work):
            _put_tries(fields, work)
        case Fan():
            fields["fan"] = fields_set(earlier)
        case Loop():
            fields["loop"] = _stored_loop(earlier)
        case Child():
            fields["former"] = _stored_child(earlier)
        case Commands():
            fields["spread"] = fields_set(earlier)


def _stored_loop(loop: Loop) -> dict[str, Any]:
    fields = fields_set(loop)
    fields.pop("due_ms", None)
    return fields


def read_visit(json_text: str, key: str = "") -> Visit:
    """The visit that a text describes; `key` names it in the error. Raises RecordUnreadable."""
    stored = read_text(_StoredVisit, json_text, "visit", key)
    return Visit(
        stored.seq,
        stored.node,
        stored.kind if stored.interrupt is None else stored.interrupt.kind,
        stored.attempt,
        stored.opened_ms,
        _place(stored),
        _body(stored),
        stored.group,
        stored.depth,
        stored.lineage,
        stored.index,
        stored.overlay,
    )


def _place(stored: _StoredVisit) -> Place:
    part = stored.part
    if part is not None and part.call is not None:
        return Call(part.loop, part.turn, part.call, part.tool, part.id, summary=stored.role == "summary")
    if part is not None:
        return Turn(part.loop, part.turn, stored.item)
    if stored.item is not None:
        return stored.item
    if stored.kind == BUDGET:
        return WHOLE_RUN
    if stored.role == "branch" or stored.role == "reduce":
        return AgentFunction(stored.role, stored.batch or 0)
    if stored.role == "before_run" or stored.role == "after_run":
        return RunFunction(stored.role, stored.ending)
    return BRANCH if stored.batch is None else Branch(stored.batch)


def _body(stored: _StoredVisit) -> Body:
    work, asked = (None, None) if stored.interrupt is None else (stored.interrupt.work, stored.interrupt.asked)
    if stored.signal is not None:
        return SignalWait(**vars(stored.signal), due_ms=stored.wake_ms, work=work, asked=asked)
    if asked is not None and asked.wait is not None and stored.wake_ms is not None:
        return Delay(stored.wake_ms, work, asked)
    if asked is not None:
        return Question(stored.wake_ms, work, asked)
    if stored.failed:
        begun, counted = not stored.ready, stored.counted
        return Failed(stored.error, _was(stored), begun=begun, failure=stored.failure, counted=counted)
    if stored.ended is not None:
        return stored.ended
    if stored.ready:
        resumes = stored.fan or stored.former or (_work(stored) if stored.queue else None)
        return READY if resumes is None else Ready(resumes)
    if stored.queue and stored.wake_ms is None:
        return _work(stored)
    if stored.queue and stored.wake_ms is not None:
        return Backoff(_work(stored), stored.wake_ms, stored.limited)
    if stored.spread is not None:
        return stored.spread
    if stored.fan is not None:
        return stored.fan
    if stored.loop is not None:
        return Loop(**vars(stored.loop), due_ms=stored.wake_ms)
    if stored.child is not None:
        return ChildWait(stored.child, stored.wake_ms)
    if stored.addressee is not None:
        return Receipt(stored.addressee, stored.wake_ms)
    if stored.part is None and stored.kind in _RUN_CODE:
        return Doubt(_work(stored))
    if stored.kind == "wait" and stored.wake_ms is not None:
        return Delay(stored.wake_ms)
    return Question(stored.wake_ms)


_RUN_CODE = ("script", "function")
"""Node types that ask no question of their own: one of these that waits for a person has lost its worker."""


def _was(stored: _StoredVisit) -> Work | Doubt | Fan | Loop | Child | Commands | None:
    if stored.loop is not None:
        return Loop(**vars(stored.loop))
    earlier = stored.fan or stored.spread or stored.former
    if earlier is not None:
        return earlier
    if stored.queue:
        return _work(stored)
    is_unanswered = stored.error is None and not stored.ready and stored.kind in _RUN_CODE
    return Doubt(_work(stored)) if is_unanswered else None


def _work(stored: _StoredVisit) -> Work:
    return Work(
        stored.queue or "",
        failures=stored.failures,
        losses=stored.losses,
        error=None if stored.failed else stored.error,
        given=stored.given,
        generation=stored.generation,
        sees=stored.sees,
        child=stored.maps,
        input_changed=stored.input_changed,
    )
