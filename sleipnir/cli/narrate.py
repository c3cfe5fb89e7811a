"""A run's events as lines of narration, in Loki's style.

    ▸ graph: triage (start: parse)
    ▸ parse (script)
    ▸   running script 'scripts/parse.py'
    ▸   merged: level, hits
    ▸ parse -> report
    ▸ graph done in 0.42s

Rules. `narrate` is pure: the same event is the same lines, whoever watches and whenever. A line starts with
`▸ `, what belongs to a visit is indented by two more, what continues a line by six and is cut after twelve
lines. An event type that this release does not know has no lines: a newer scheduler may send it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sleipnir.cli.terminal import first_line, printable

if TYPE_CHECKING:
    from sleipnir.views import RunEvent

MARK = "▸ "
MAX_CONTINUED = 12

Data = Mapping[str, Any]


def narrate(event: RunEvent) -> list[str]:
    """The lines to print for one event, without line ends; none for events that are not narrated."""
    write = _LINES.get(event.type)
    return [] if write is None else [printable(line) for line in write(event.data)]


def _run_started(data: Data) -> list[str]:
    return [f"{MARK}graph: {data['graph']} (start: {data['start']})"]


def _run_retried(data: Data) -> list[str]:
    return [f"{MARK}retried at {data['node']}"]


def _run_paused(data: Data) -> list[str]:
    reason = f": {data['reason']}" if data.get("reason") else ""
    return [f"{MARK}paused by {data['by']}{reason}"]


def _run_resumed(data: Data) -> list[str]:
    return [f"{MARK}resumed"]


def _visit_opened(data: Data) -> list[str]:
    return [f"{MARK}{data['node']} ({data['kind']})"]


def _visit_started(data: Data) -> list[str]:
    """Only a second attempt is worth a line: the first one is what everybody expects."""
    if data["attempt"] <= 1:
        return []
    return _detail(f"attempt {data['attempt']} started by {data['worker']}")


def _visit_closed(data: Data) -> list[str]:
    lines = [line for text in data.get("notes") or () for line in _detail(text)]
    if not data["ok"]:
        lines += _detail(f"failed: {data.get('error') or 'no reason given'}")
    if data.get("next"):
        lines.append(f"{MARK}{data['node']} -> {data['next']}")
    return lines


def _visit_retrying(data: Data) -> list[str]:
    failed = _detail(f"attempt {data['attempt']} of {data['max_attempts']} failed: {data.get('error') or 'no reason'}")
    return [*failed, *_detail(f"trying again in {data['delay_ms'] / 1000:.2f}s")]


def _gate_opened(data: Data) -> list[str]:
    """The first line tells which question it is; the whole of it is shown where it is asked and by `sleipnir show`."""
    lines = _detail(f"waiting for an answer: {first_line(data['question'])}")
    if data.get("options"):
        lines += _detail(f"options: {', '.join(data['options'])}")
    return lines


def _gate_answered(data: Data) -> list[str]:
    return _detail(f"answered: {data['answer']}")


def _gate_expired(data: Data) -> list[str]:
    return _detail("nobody answered in time")


def _late_result(data: Data) -> list[str]:
    return _detail(f"late result refused: attempt {data['attempt']} from {data['worker']}")


def _worker_lost(data: Data) -> list[str]:
    return _detail(f"attempt {data['attempt']} was lost with its worker {data.get('worker') or '(unknown)'}")


def _visit_handed_back(data: Data) -> list[str]:
    return _detail(f"attempt {data['attempt']} was handed back by {data.get('worker') or '(unknown)'}, which stops")


def _run_ended(data: Data) -> list[str]:
    took_s = data["took_ms"] / 1000
    match data["status"]:
        case "completed":
            return [f"{MARK}graph done in {took_s:.2f}s"]
        case "cancelled":
            return [f"{MARK}graph cancelled after {took_s:.2f}s"]
        case status:
            return [f"{MARK}graph {status} after {took_s:.2f}s"]


def _detail(text: str) -> list[str]:
    """A line that belongs to a visit, and up to MAX_CONTINUED lines that continue it."""
    first, *rest = text.splitlines() or [""]
    lines = [f"{MARK}  {first}", *(f"      {line}".rstrip() for line in rest[:MAX_CONTINUED])]
    if len(rest) > MAX_CONTINUED:
        lines.append(f"      ... ({len(rest) - MAX_CONTINUED} more lines)")
    return lines


_LINES: Mapping[str, Callable[[Data], list[str]]] = {
    "run_started": _run_started,
    "run_retried": _run_retried,
    "run_paused": _run_paused,
    "run_resumed": _run_resumed,
    "visit_opened": _visit_opened,
    "visit_started": _visit_started,
    "visit_closed": _visit_closed,
    "gate_opened": _gate_opened,
    "visit_retrying": _visit_retrying,
    "visit_handed_back": _visit_handed_back,
    "gate_answered": _gate_answered,
    "gate_expired": _gate_expired,
    "late_result": _late_result,
    "worker_lost": _worker_lost,
    "run_ended": _run_ended,
}
