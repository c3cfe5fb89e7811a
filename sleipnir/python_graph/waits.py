"""Waits: Python code of a node waits for a time or an event, as a node of type wait does.

Rules. As `interrupt`, `wait` ends the execution, and the node runs again from its beginning when the wait is over: it
holds no worker, and survives every process. Waits and questions without a key are told apart by their order.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from sleipnir.graph import waits
from sleipnir.graph.duration import milliseconds
from sleipnir.graph.model import LONGEST_LOOK_BACK_MS, LONGEST_WAIT_MS
from sleipnir.graph.signal_names import name_problem
from sleipnir.messages import WaitRequest
from sleipnir.python_graph.interrupts import answering
from sleipnir.runs.interrupts import TIMED_OUT

_ONE_OF: Final = "wait() takes exactly one of for_, until and event"


def wait(
    for_: float | str | timedelta | None = None,
    *,
    until: datetime | str | float | None = None,
    event: str | None = None,
    timeout: float | str | timedelta | None = None,
    filter: str | None = None,  # as the key of a wait node
    look_back: float | str | timedelta = 0,
    consume: Literal["all", "one"] = "all",
    key: str | None = None,
) -> dict[str, Any] | None:
    """Wait, from within a node: end this execution, and go on in the next one when it is over.

    `for_` is a duration (seconds, or a text such as "2h"), `until` a time with a zone (a datetime, ISO 8601, Unix
    seconds): returns None. `event` is the name of an event: returns it, as a dict with `id`, `name`, `time` and `data`;
    raises TimeoutError if none has come within `timeout`. `filter`, `look_back` and `consume` are those of a wait node.
    `key` names the wait (None: its position does).

    In the process of a graph that was invoked there, time passes; a wait for an event stops the run as an interrupt
    does, and the `resume` of a Command is the data of the event.

    Raises RuntimeError outside of a node, and ValueError for what cannot be waited for.
    """
    answers = answering.get()
    if answers is None:
        raise RuntimeError("wait() was called outside of a node")
    request, shown = _request(for_, until, event, filter, look_back, consume)
    if event is None and timeout is not None:
        raise ValueError("the timeout of a wait belongs to an event")
    if key is not None and (not isinstance(key, str) or not key.strip()):
        raise ValueError(f"the key of a wait must be a text, not {key!r}")
    timeout_ms = None if timeout is None else _duration_ms("timeout", timeout, LONGEST_WAIT_MS)
    answer: dict[str, Any] | None = answers.take(shown, key, None, timeout_ms, request)
    if answer == TIMED_OUT:
        raise TimeoutError(f"no event {event!r} within {(timeout_ms or 0) / 1000:g}s")
    return answer


def _request(
    for_: Any, until: Any, event: Any, filter_: Any, look_back: Any, consume: Any
) -> tuple[WaitRequest, dict[str, Any]]:
    """What is waited for, for the scheduler and as callers see it. Raises ValueError."""
    if [for_, until, event].count(None) != 2:
        raise ValueError(_ONE_OF)
    if event is None and (filter_ is not None or look_back or consume != "all"):
        raise ValueError("filter, look_back and consume of a wait belong to an event")
    if for_ is not None:
        for_ms = _duration_ms("for_", for_, LONGEST_WAIT_MS)
        return WaitRequest(for_ms=for_ms), {"wait_for_ms": for_ms}
    if until is not None:
        until_ms = _time_ms(until)
        return WaitRequest(until_ms=until_ms), {"wait_until": waits.iso(until_ms)}
    if problem := name_problem(event) if isinstance(event, str) else f"{event!r} is no name of an event":
        raise ValueError(problem)
    if filter_ is not None and (problem := waits.filter_problem(filter_)):
        raise ValueError(problem)
    if consume not in ("all", "one"):
        raise ValueError(f"consume must be 'all' or 'one', not {consume!r}")
    look_back_ms = _duration_ms("look_back", look_back, LONGEST_LOOK_BACK_MS, least=0)
    request = WaitRequest(event=event, filter=filter_, look_back_ms=look_back_ms, one=consume == "one")
    return request, {"wait_for_event": event}


def _time_ms(until: Any) -> int:
    text = until.isoformat() if isinstance(until, datetime) else f"{until}" if not isinstance(until, bool) else "a bool"
    return waits.time_ms(text, int(time.time() * 1000))


def _duration_ms(name: str, value: Any, most: int, *, least: int = 1) -> int:
    ms = round(value.total_seconds() * 1000) if isinstance(value, timedelta) else milliseconds(value)
    if not least <= ms <= most:
        raise ValueError(f"{name} of a wait must be {'positive and ' if least else ''}at most {most // 3_600_000}h")
    return ms
