"""The wire contract between client, scheduler and workers: names, and the format of a visit's call and result.

Everything here is JSON on the wire and carries `v`, so that a rolling upgrade can read messages of the previous
release. Names are constants, never module paths: files may move while messages are in flight.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, NewType, TypeAlias, get_args

from sleipnir.decoding import read
from sleipnir.graph.answer_rules import AnswerRules

VERSION = 1

RunId = NewType("RunId", str)
Seq = NewType("Seq", int)

TASK_NAME = "sleipnir.visit"

QUEUE_OF: Mapping[str, str] = {
    "script": "scripts", "llm": "llm", "rag": "rag", "function": "functions", "graph": "functions", "agent": "llm",
    "tool": "scripts", "tools": "scripts", "remote": "llm",
}  # fmt: skip
"""Default queue by node type. Node types that are missing here run in the planner, without a worker."""

QUEUES: tuple[str, ...] = ("scripts", "functions", "llm", "rag")

MOST_KEYS = 2_000
"""Maximum number of state keys that one step may write: Lua's stack has room for a few thousand values; use a nested
object for more."""

RunStatus: TypeAlias = Literal["submitted", "running", "waiting", "paused", "completed", "failed", "cancelled"]
STATUSES: frozenset[str] = frozenset(get_args(RunStatus))
FINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


Role: TypeAlias = Literal["node", "branch", "reduce", "turn", "tool", "summary", "before_run", "after_run"]
"""The part of a node that a visit executes: its body; the choice of its conditional edge (`branch.call`, and conditions
that are too expensive for the scheduler); the agent's own reducers, for the writes of its step; for an llm node with
tools, one turn of the model, one tool call, or the summary of the output of an agent that a call collects; of the start
node, in the place of the run: the agent's functions around the whole run."""


CACHE_HIT: Final = "hit"
CACHE_MISS: Final = "miss"

INPUT_CHANGED: Final = "input changed:"
"""How the decision of a callback begins that has changed what its node sees (VisitResult.callbacks)."""

CACHE_WAIT: Final = "cache"
"""`error_kind` of a result that postpones a visit until another one has the result that both need."""


DEFINITION = "bundle"
"""`error_kind` of a result if the definition cannot be used: the run fails without using a fallback."""


@dataclass(frozen=True)
class VisitCall:
    """The contents of a Celery message: ids only, never state. One visit, one attempt.

    `batch` is the batch of the run or of its root; it lowers the priority and is displayed, but is not part of the
    message for workers.
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
        """`run:node:visit:attempt`, the Celery task id, also in Flower."""
        return f"{self.run}:{self.node}:{self.seq}:{self.attempt}"

    @property
    def shown_name(self) -> str:
        """`agent.node`: the name in Flower. Low cardinality on purpose, it becomes a metric label."""
        return f"{self.agent}.{self.node}" if self.role == "node" else f"{self.agent}.{self.node}:{self.role}"

    @property
    def shown_args(self) -> str:
        """The arguments in Flower, for its search: `args:run=<id>`, `args:batch=<id>`."""
        shown = f"run={self.run} node={self.node} visit={self.seq} attempt={self.attempt} agent={self.agent}"
        return f"{shown} batch={self.batch}" if self.batch else shown

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _CALL_FIELDS}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VisitCall:
        """Raises RecordUnreadable; `batch` is not part of a message."""
        return read(VisitCall, data, "message")


_CALL_FIELDS = ("run", "node", "seq", "attempt", "agent", "bundle", "role", "v")


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens and cost of model calls. `cost_usd` is None if the price of the model is unknown (never 0 for
    unknown)."""

    input_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    model: str | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """One visit that a node requests (spec/graph-package.md F14): of node `to` (a node or a named end; empty: the same
    node again), with `update` on top of the state only for that visit."""

    to: str
    update: Mapping[str, Any] = field(default_factory=dict)


BATCH_PRIORITY: Final = 9
"""The priority of visits of batches, if the broker is Redis: Celery takes priority 0 first there."""

MOST_SENDS = 10_000
"""Maximum number of visits of a list of commands; a map node allows more."""

OVERLAYS: Final = "_next"
"""The field of a delivered delta that holds the updates of its sends, as overlay_text: `_next` is never a state key."""

OVERLAY_END: Final = "\x1e"  # JSON text has no control character


def overlay_text(values: Mapping[str, str]) -> str:
    """Values private to one visit, JSON text by key, as stored: lines of a key as a JSON string, then its value."""
    return "\n".join(part for key, value in values.items() for part in (json.dumps(key), value))


def overlay_of(text: str) -> dict[str, str]:
    """JSON text by key. Of a repeated key the last value counts."""
    lines = text.split("\n") if text else []
    return {json.loads(key): value for key, value in zip(lines[::2], lines[1::2], strict=True)}


PERSON: Final = "person"
AGENTS: Final = "agents"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that a model requested in a turn. `id` is the model's own id; `where` the queue of the workers that
    run it, PERSON if a person answers, AGENTS if the scheduler answers, or empty if the turn's worker has already
    answered it."""

    id: str
    name: str
    where: str = ""


MESSAGES: Final = "_messages"
ANSWER: Final = "_answer"
RESULT: Final = "_result"
FOLLOW_UP: Final = "_follow_up"
"""Fields of the delivery of a turn or a tool, none of them a state key: the first messages for the model, its reply,
and the result of a call; for calls that the turn's worker answers, `_result.<number>`. The follow-up is the user
message for the model after a reply without calls."""


CHILD: Final = "_child"
"""The field of the delivery of a child's end that holds it as an agent node with `map_out` reads it
(runs/child_run.py)."""


SAID: Final = "_said"
"""The field of a delivered delta with the messages that a run adds to its session: lines, first INSTEAD if the old
messages are dropped, then one message as JSON text per line. Never a state key of a run in a session."""

INSTEAD: Final = "instead"


@dataclass(frozen=True, slots=True)
class SessionAddition:
    """The messages that a run adds to its session if it completes; `instead`: they replace all others."""

    messages: tuple[Mapping[str, Any], ...]
    instead: bool = False


MOST_QUESTION_BYTES: Final = 256 * 1024
"""Maximum size of what an interrupt shows, as JSON text."""

MOST_ANSWER_SCHEMA_BYTES: Final = 32 * 1024
"""Maximum size of the JSON Schema of an answer: it is part of the record of the visit."""


WAITS: Final = 3
"""The version of what tells of a wait of a node's code: an older scheduler parks the run."""


@dataclass(frozen=True)
class WaitRequest:
    """What the code of a node waits for (`wait()`): a time, in so many ms or at `until_ms`, or the signal `event`, with
    the keys of a wait node."""

    for_ms: int | None = None
    until_ms: int | None = None
    event: str | None = None
    filter: str | None = None
    look_back_ms: int = 0
    one: bool = False


@dataclass(frozen=True)
class InterruptQuestion:
    """What the code of a node asks (spec/graph-package.md F27). Its answer belongs to the visit and to `key`, or,
    without one, to the position of the question. `name` is the key under which a person answers.

    `value` is any JSON; `schema` the JSON Schema of the answer; `at` the number of interrupts that this execution has
    met before, `timeout_ms` the time to answer, `rules` who may answer. With `wait` it asks no person: a time or a
    signal is the answer.
    """

    name: str
    value: Any = None
    key: str | None = None
    at: int = 0
    schema: Any = None
    timeout_ms: int | None = None
    wait: WaitRequest | None = None
    rules: AnswerRules | None = None


@dataclass(frozen=True, slots=True)
class VisitResult:
    """The result of an executor: the state delta and the next edge.

    `delta` maps state keys to JSON-ready Python values. `next` is the routing the node itself chose (a script's
    `_next`): a node or named end, or several; None for the declared edges. `sends`, where it is not None, is a list of
    commands: one visit each, and no other edge. A visit with role `branch` returns its labels as `next`. On failure
    `ok` is False, `error` is the message, and the planner decides between fallback, next and failing the run; `delta`
    is still applied (an llm node's state_updates hold the error text; a script's failure writes `_error`). `calls` are
    the model's tool calls in a turn: the node continues, and `delta` has fields of the conversation. `goes_on` means
    the same for a turn without calls: the next turn begins with the FOLLOW_UP, and `notes` give the reason. `later_ms`
    postpones the visit until then, as if it had not started (`ok` is False without further meaning): `error` names the
    limit. With an `interrupt` the visit waits for the answer, and is then executed again from its beginning; `ok` is
    False, and the error is for schedulers of older releases. `returns`: the run, one of a graph that is a node, is
    over, and the RESULT in `delta` is its output. `said` is for the run's session. `notes` are narration lines of the
    body, without the leading marker (`merged: a, b`). `error_kind` is one word, `error_type` the exception behind it
    (`package.module:Name`), `error_code` its code. A failure is `recoverable` if the node's own code says so: once no
    policy tries again, the visit has ended well in a graph with `errors:`, with this `delta` and way on. For retry
    policies, `transient` means that another try may succeed, and `retried_as` is
    the entry of their `on` that applies. `cache`: the result was found in the cache (CACHE_HIT), or looked for in vain
    (CACHE_MISS); None: the node has none. `callbacks` are those that decided on the result, as `recovered by after
    NAME`; `is_final`: no retry policy applies to the failure.
    """

    ok: bool
    delta: Mapping[str, Any] = field(default_factory=dict)
    next: str | tuple[str, ...] | None = None
    sends: tuple[Send, ...] | None = None
    error: str | None = None
    error_kind: str | None = None
    error_type: str | None = None
    error_code: str | None = None
    recoverable: bool = False
    retried_as: str | None = None
    transient: bool = False
    usage: Usage | None = None
    notes: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    goes_on: bool = False
    later_ms: int | None = None
    returns: bool = False
    said: SessionAddition | None = None
    interrupt: InterruptQuestion | None = None
    cache: str | None = None
    callbacks: tuple[str, ...] = ()
    is_final: bool = False

    @classmethod
    def asking(cls, question: InterruptQuestion) -> VisitResult:
        """The result of an execution that asks. A scheduler that does not know interrupts fails the run with this
        error, and `retry` goes on once it is upgraded."""
        error = (
            f"the node asks with an interrupt ({question.name!r}), which this release of the scheduler does not know: "
            "upgrade the schedulers, then retry the run"
        )
        return cls(ok=False, error=error, error_kind=DEFINITION, interrupt=question)


@dataclass(frozen=True)
class ResultHeader:
    """A delivered result as the scheduler reads it: everything except the values, which stay in Redis.

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
    error_code: str | None = None
    recoverable: bool = False
    retried_as: str | None = None
    transient: bool = False
    usage: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    goes_on: bool = False
    later_ms: int | None = None
    interrupt: InterruptQuestion | None = None
    returns: bool = False
    cache: str | None = None
    callbacks: tuple[str, ...] = ()
    is_final: bool = False
    worker: str = ""
    started_ms: int = 0
    took_ms: int = 0
    v: int = VERSION

    @classmethod
    def of(cls, result: VisitResult, *, worker: str, started_ms: int, took_ms: int) -> ResultHeader:
        """The header of a result, for the scheduler: its values are sent separately, only their keys are in it."""
        return cls(
            ok=result.ok,
            keys=tuple(result.delta),
            next=result.next,
            sends=None if result.sends is None else tuple(send.to for send in result.sends),
            error=result.error,
            error_kind=result.error_kind,
            error_type=result.error_type,
            error_code=result.error_code,
            recoverable=result.recoverable,
            retried_as=result.retried_as,
            transient=result.transient,
            usage=asdict(result.usage) if result.usage else None,
            notes=result.notes,
            calls=result.calls,
            goes_on=result.goes_on,
            later_ms=result.later_ms,
            interrupt=result.interrupt,
            returns=result.returns,
            cache=result.cache,
            callbacks=result.callbacks,
            is_final=result.is_final,
            worker=worker,
            started_ms=started_ms,
            took_ms=took_ms,
            v=VERSION if result.interrupt is None or result.interrupt.wait is None else WAITS,
        )

    def to_json(self) -> dict[str, Any]:
        """The wire fields; those with their default are left out."""
        fields = {name: value for name, value in vars(self).items() if value not in (None, ())}
        for flag in ("transient", "recoverable", "goes_on", "returns", "is_final"):
            if not fields[flag]:
                del fields[flag]
        if self.sends == ():
            fields["sends"] = ()  # an empty list of commands, which differs from no list
        if self.interrupt is not None:
            shown = {name: value for name, value in vars(self.interrupt).items() if value is not None}
            if self.interrupt.wait is not None:
                shown["wait"] = vars(self.interrupt.wait)
            if self.interrupt.rules is not None:
                shown["rules"] = vars(self.interrupt.rules)
            fields["interrupt"] = shown
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
    """A tool call is sent as a list of its fields; a newer worker may add fields."""
    return dict(zip(("id", "name", "where"), call, strict=False)) if type(call) is list else call
