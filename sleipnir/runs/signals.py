"""Signals: named events from outside, with JSON data, that visits wait for."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sleipnir.decoding import read
from sleipnir.errors import UsageError
from sleipnir.graph.plain import compact_json, first_not_json
from sleipnir.graph.signal_names import name_problem
from sleipnir.messages import VERSION

if TYPE_CHECKING:
    from sleipnir.graph.model import Json

MOST_DATA_BYTES: Final = 64 * 1024
"""Maximum size of the data of a signal, as JSON text: it is copied for each visit that waits for it."""


MOST_ID: Final = 200


def new_id() -> str:
    """An id for a signal that has none."""
    return secrets.token_hex(10)


def refuse(name: str, id_: str | None) -> None:
    """Raises UsageError for what is no name of a signal, and no id."""
    if problem := name_problem(name):
        raise UsageError(problem)
    if id_ is not None and not (isinstance(id_, str) and 0 < len(id_) <= MOST_ID and id_.isprintable()):
        raise UsageError(f"the id of an event is a text of 1 to {MOST_ID} printable characters, not {id_!r:.80}")


def data_text(data: Json) -> str:
    """The data of a signal as JSON text. Raises UsageError."""
    if problem := first_not_json({"data": data}):
        raise UsageError(f"the data of an event must be JSON: {problem}")
    text = compact_json(data)
    if (size := len(text.encode())) > MOST_DATA_BYTES:
        raise UsageError(
            f"the data of an event has {size:,} bytes, at most {MOST_DATA_BYTES:,} fit: store it elsewhere, and send "
            "a reference to it"
        )
    return text


@dataclass(frozen=True)
class Signalled:
    """A signal as a waiting visit is told of it: visit and attempt; the `number` of the signal, in microseconds since
    the epoch, which orders the signals of a name; `id` and `data` (JSON text) as they were sent. `one`: it is offered
    to this visit only, until that declines it or leaves."""

    seq: int
    attempt: int
    name: str
    number: str
    id: str
    data: str = "null"
    one: bool = False
    v: int = VERSION

    @classmethod
    def of(cls, news: Mapping[str, Any]) -> Signalled:
        """Raises RecordUnreadable."""
        return read(Signalled, news, "signal")

    @property
    def event(self) -> dict[str, Json]:
        """What nodes and filters see of it."""
        from sleipnir.graph.waits import iso  # imports the graph language

        at_ms = int(self.number) // 1000
        return {"id": self.id, "name": self.name, "time": iso(at_ms), "data": json.loads(self.data)}


@dataclass(frozen=True)
class SignalReceipt:
    """What became of a signal that was sent: it has reached `reached` waiting visits so far. Not `is_new`: one with
    this id was there, and nothing was changed."""

    id: str
    name: str
    at_ms: int
    reached: int
    is_new: bool = True


@dataclass(frozen=True)
class SignalInfo:
    """A signal that was sent. `data` is JSON text; None: it is not kept any more."""

    id: str
    name: str
    at_ms: int
    data: str | None = None
