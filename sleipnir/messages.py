"""The wire contract between client, scheduler and workers: names, and what a visit's call and result look like.

Everything here is JSON on the wire and carries `v`, so that a rolling upgrade can read what the previous
release wrote. Names are constants, never module paths: files may move while messages are in flight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NewType, TypeAlias, get_args

from sleipnir.decoding import read

VERSION = 1

RunId = NewType("RunId", str)
Seq = NewType("Seq", int)

TASK_NAME = "sleipnir.visit"

QUEUE_OF: Mapping[str, str] = {
    "script": "scripts", "llm": "llm", "rag": "rag", "function": "functions", "agent": "llm", "tool": "scripts",
}  # fmt: skip
"""Default queue by node type. Node types that are missing here run in the planner, without a worker."""

QUEUES: tuple[str, ...] = ("scripts", "functions", "llm", "rag")

MOST_KEYS = 2_000
"""State keys that one step may write: Lua's stack holds a few thousand values, and more keys want a nested object."""

RunStatus: TypeAlias = Literal["submitted", "running", "waiting", "paused", "completed", "failed", "cancelled"]
STATUSES: frozenset[str] = frozenset(get_args(RunStatus))
FINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


Role: TypeAlias = Literal["node", "branch", "reduce", "turn", "tool", "summary"]
"""What of a node a visit executes: its body; what chooses its conditional edge (`branch.call`, and conditions that cost
too much for the scheduler); the agent's own reducers, for what its step has written; of an llm node with tools, one
turn of the model, one call of a tool, or the summary of what an agent has said that a call collects."""


DEFINITION = "bundle"
"""`error_kind` of a result that says that the definition cannot be used: the run fails, no fallback hides it."""


@dataclass(frozen=True, slots=True)
class VisitCall:
    """What a Celery message carries: ids only, never state. One visit, one attempt.

    `batch` is the batch that the run is of, or the one at its top; it stands in line behind runs without one, and is
    shown, but is no part of what workers are told.
    """

    run: str
    node: str
    seq: int
    attempt: int
    agent: str
    bundle: str
    role: Role = "node"
    v: int = VERSION
    batch: str = ""

    @property
    def task_id(self) -> str:
        """`run:node:visit:attempt`, the Celery task id and what Flower shows."""
        return f"{self.run}:{self.node}:{self.seq}:{self.attempt}"

    @property
    def shown_name(self) -> str:
        """`agent.node`: the name in Flower. Low cardinality on purpose, it becomes a metric label."""
        return f"{self.agent}.{self.node}" if self.role == "node" else f"{self.agent}.{self.node}:{self.role}"

    @property
    def shown_args(self) -> str:
        """The arguments in Flower, whose search finds what stands here: `args:run=<id>`, `args:batch=<id>`."""
        shown = f"run={self.run} node={self.node} visit={self.seq} attempt={self.attempt} agent={self.agent}"
        return f"{shown} batch={self.batch}" if self.batch else shown

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _CALL_FIELDS}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VisitCall:
        """Raises RecordUnreadable; `batch` is no part of a message."""
        return read(VisitCall, data, "message")


_CALL_FIELDS = ("run", "node", "seq", "attempt", "agent", "bundle", "role", "v")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a model call cost. `cost_usd` is None where the price of the model is unknown (never 0 for unknown)."""

    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    model: str | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """One visit that a node asks for (spec/graph-package.md F14): of node `to` (a node or a named end; empty: the same
    node again), with `update` laid over the state for that visit alone."""

    to: str
    update: Mapping[str, Any] = field(default_factory=dict)


BATCH_PRIORITY: Final = 9
"""Of visits of batches, for brokers that are a Redis: Celery takes those of priority 0 first there."""

MOST_SENDS = 10_000
"""Visits that one node may ask for by a list of commands; a map node takes more."""

OVERLAYS: Final = "_next"
"""The field of a delivered delta that holds the updates of its sends, as overlay_text: `_next` is never a state key."""

OVERLAY_END: Final = "\x1e"  # JSON text holds no control character


def overlay_text(values: Mapping[str, str]) -> str:
    """Values private to one visit, JSON text by key, as stored: lines of a key as a JSON string, then its value."""
    return "\n".join(part for key, value in values.items() for part in (json.dumps(key), value))


def overlay_of(text: str) -> dict[str, str]:
    """JSON text by key. A key that comes twice counts as it comes last."""
    lines = text.split("\n") if text else []
    return {json.loads(key): value for key, value in zip(lines[::2], lines[1::2], strict=True)}


PERSON: Final = "person"
AGENTS: Final = "agents"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model has asked for in a turn. `id` is the model's own name of it; `where` the queue of the workers
    that run it, PERSON where a person answers, AGENTS where the scheduler does, which knows of the run's agents, or
    empty where the turn's worker has answered it already."""

    id: str
    name: str
    where: str = ""


MESSAGES: Final = "_messages"
ANSWER: Final = "_answer"
RESULT: Final = "_result"
FOLLOW_UP: Final = "_follow_up"
"""Fields of what a turn or a tool delivers, none of them a state key: what the model was told first, the message it
replied with, and the result of a call; of calls that the turn's worker answers, `_result.<number>`. The follow-up is
what the model is told next after a reply without calls, a message of the user's."""


SAID: Final = "_said"
"""The field of a delivered delta that holds what a run adds to its session: lines, INSTEAD first if what was there is
dropped, then a message as JSON text each. Never a state key of a run in a session."""

INSTEAD: Final = "instead"


@dataclass(frozen=True, slots=True)
class SessionAddition:
    """What a run adds to its session, should it complete; `instead` of all that is there."""

    messages: tuple[Mapping[str, Any], ...]
    instead: bool = False


@dataclass(frozen=True, slots=True)
class VisitResult:
    """What an executor returns: the state delta and the next edge.

    `delta` maps state keys to JSON-ready Python values. `next` is the routing the node itself chose
    (a script's `_next`): a node or named end, or several; None for the declared edges. `sends`, where it is not None,
    is a list of commands: one visit each, and no other edge. A visit with role `branch` returns its labels as `next`.
    On failure `ok` is False, `error` is the message,
    and the planner decides between fallback, next and failing the run; `delta` is still applied
    (an llm node's state_updates hold the error text; a script's failure writes `_error`).
    `calls` are what the model asks for in a turn: the node goes on, and `delta` holds fields of the conversation.
    `goes_on` says the same of a turn without calls: the next turn begins with the FOLLOW_UP, and `notes` say why.
    `later_ms` puts the visit off until then, as if it had not begun (`ok` is False, and says nothing more): `error`
    says which limit it met.
    `said` is for the run's session.
    `notes` are narration lines of the body, without the leading marker (`merged: a, b`). `error_kind` is one word,
    `error_type` the exception behind it (`package.module:Name`), and `transient` says that another try may succeed:
    what retry policies ask for.
    """

    ok: bool
    delta: Mapping[str, Any] = field(default_factory=dict)
    next: str | tuple[str, ...] | None = None
    sends: tuple[Send, ...] | None = None
    error: str | None = None
    error_kind: str | None = None
    error_type: str | None = None
    transient: bool = False
    usage: Usage | None = None
    notes: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    goes_on: bool = False
    later_ms: int | None = None
    said: SessionAddition | None = None


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """A delivered result as the scheduler reads it: everything but the values, which stay in Redis.

    `sends` are the targets of a list of commands; their updates are in the delta's field OVERLAYS, one text each,
    separated by OVERLAY_END.
    """

    ok: bool
    keys: tuple[str, ...] = ()
    next: str | tuple[str, ...] | None = None
    sends: tuple[str, ...] | None = None
    error: str | None = None
    error_kind: str | None = None
    error_type: str | None = None
    transient: bool = False
    usage: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    goes_on: bool = False
    later_ms: int | None = None
    worker: str = ""
    started_ms: int = 0
    took_ms: int = 0
    v: int = VERSION

    @classmethod
    def of(cls, result: VisitResult, *, worker: str, started_ms: int, took_ms: int) -> ResultHeader:
        return cls(
            ok=result.ok,
            keys=tuple(result.delta),
            next=result.next,
            sends=None if result.sends is None else tuple(send.to for send in result.sends),
            error=result.error,
            error_kind=result.error_kind,
            error_type=result.error_type,
            transient=result.transient,
            usage=asdict(result.usage) if result.usage else None,
            notes=result.notes,
            calls=result.calls,
            goes_on=result.goes_on,
            later_ms=result.later_ms,
            worker=worker,
            started_ms=started_ms,
            took_ms=took_ms,
        )

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in _HEADER_FIELDS if getattr(self, name) not in (None, ())}
        for flag in ("transient", "goes_on"):
            if not fields[flag]:
                del fields[flag]
        if self.sends == ():
            fields["sends"] = ()  # commanded to go nowhere, which is not the same as no command
        if self.calls:
            fields["calls"] = [(call.id, call.name, call.where) for call in self.calls]
        return fields

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ResultHeader:
        """Raises RecordUnreadable."""
        if type(data) is dict and (calls := data.get("calls")) and type(calls) is list:
            data = {**data, "calls": [_call_fields(call) for call in calls]}
        header = read(ResultHeader, data, "result")
        if header.usage is not None:
            read(Usage, header.usage, "usage of a result")
        return header


def _call_fields(call: Any) -> Any:
    """A tool call is sent as a list of its fields; a newer worker may say more of it."""
    return dict(zip(("id", "name", "where"), call, strict=False)) if type(call) is list else call


_HEADER_FIELDS = (
    "ok", "keys", "next", "sends", "error", "error_kind", "error_type", "transient", "usage", "notes", "calls",
    "goes_on", "later_ms", "worker", "started_ms", "took_ms", "v",
)  # fmt: skip
