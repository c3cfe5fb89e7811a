"""A run's events as lines of narration, in Loki's style.

    ▸ graph: triage (start: parse)
    ▸ parse (script)
    ▸   running script 'scripts/parse.py'
    ▸   merged: level, hits
    ▸ parse -> report
    ▸ graph done in 0.42s

If branches run in parallel, lines of a visit begin with its node:

    ▸ parse -> count, sum
    ▸ count (script)
    ▸ sum (map)
    ▸   count: merged: lines
    ▸   sum: map 50/500

Rules. The same events always give the same lines. A line starts with `▸ `, lines of a visit are indented by two more,
continuation lines by six. Of more than twelve continuation lines the first are kept, for a failure the last. An unknown
event type has no lines: a newer scheduler may send it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sleipnir.cli.terminal.terminal import MARK, first_line
from sleipnir.runs.plain_text import printable
from sleipnir.runs.reasons import slot_in_words
from sleipnir.runs.run import Breakpoint

if TYPE_CHECKING:
    from sleipnir.runs.views import RunEvent

MAX_CONTINUED = 12

Data = Mapping[str, Any]


class Narrator:
    """Makes lines of the events of one run, in their order. It may start in the middle.

    `every_tenth`: the progress of a map, or that a node emits, is reported about ten times, else only a map's end.
    `brief`: for an agent that is a single loop, events of the surrounding nodes are omitted, unless they fail.
    """

    def __init__(self, *, every_tenth: bool = True, brief: bool = False) -> None:
        self._every_tenth, self._brief = every_tenth, brief
        self._live: dict[int, str] = {}
        self._parallel = False  # visits are, or since some time was last none live were, live at once
        self._reported: dict[int, int] = {}
        self._emitted: dict[int, tuple[int, int]] = {}  # by visit: the attempt, and its reported tenths

    def lines(self, event: RunEvent) -> list[str]:
        """The lines to print for the next event, without line ends; none for events that are not narrated."""
        write, data = _LINES.get(event.type), event.data
        if event.type == "visit_opened":
            self._open(data)
        if write is None or (event.type == "map_progress" and not self._is_due(data)):
            return []
        if event.type == "custom" and not self._is_progress(data):
            return []
        if event.type in ("turn_ended", "tool_called", "tool_ended") and "item" in data:
            return []  # of an item, as of all that items do, the map tells
        shown = _without_frame(event.type, data) if self._brief else data
        lines = [] if shown is None else [printable(line) for line in write(self._named(event.type, shown))]
        if event.type == "visit_closed":
            self._close(data)
        if event.type == "run_ended":
            self._live, self._parallel = {}, False
        return lines

    def _open(self, data: Data) -> None:
        name = data["node"]
        self._live[data["seq"]] = f"{name}#{data['seq']}" if name in self._live.values() else name
        self._parallel = self._parallel or len(self._live) > 1

    def _close(self, data: Data) -> None:
        self._live.pop(data["seq"], None)
        if not self._live:
            self._parallel = False

    def _named(self, type_: str, data: Data) -> Data:
        """Adds the visit's name as `of`, if a line has to identify its visit."""
        if "path" in data:  # of a run below
            return {**data, "of": "/".join((*data["path"], *([data["node"]] if "node" in data else [])))}
        seq, name = data.get("seq"), data.get("node")
        own = self._live.get(seq) if isinstance(seq, int) else None
        if own and type_ in ("visit_opened", "visit_closed"):
            data = {**data, "node": own}
        if not name or not (self._parallel or (self._live and own is None)):
            return data
        return {**data, "of": own or name}

    def _is_due(self, data: Data) -> bool:
        """Whether a map has advanced enough for a line."""
        done, total, reported = data["done"], data["total"], self._reported.get(data["seq"], 0)
        tenths = done * 10 // total
        self._reported[data["seq"]] = tenths
        return done == total or (self._every_tenth and tenths > reported)

    def _is_progress(self, data: Data) -> bool:
        """Whether an emission is progress that is enough for a line; an attempt begins anew."""
        if data.get("category") != "progress" or not self._every_tenth:
            return False
        tenths, before = int(data["progress"] // 10), self._emitted.get(data["seq"])
        reported = before[1] if before is not None and before[0] == data["attempt"] else -1
        self._emitted[data["seq"]] = data["attempt"], max(tenths, reported)
        return tenths > reported


def _run_started(data: Data) -> list[str]:
    return [f"{MARK}graph: {data['graph']} (start: {data['start']})"]


def _slot_asked(data: Data) -> list[str]:
    return [f"{MARK}{slot_in_words(data['agent'], data['key'], data['limit'])}"]


def _run_retried(data: Data) -> list[str]:
    return [f"{MARK}retried at {data['node']}" if data["node"] else f"{MARK}retried"]


def _run_paused(data: Data) -> list[str]:
    reason = f": {data['reason']}" if data.get("reason") else ""
    in_ms = data.get("stops_in_ms")
    stops = "" if in_ms is None else f", what runs is stopped {f'after {in_ms / 1000:g}s' if in_ms else 'now'}"
    return [f"{MARK}paused by {data['by']}{reason}{stops}"]


def _run_stopped(data: Data) -> list[str]:
    stop = f"stopped {Breakpoint(data['phase'], tuple(data['nodes']), tuple(data['planned'])).in_words}"
    return _detail(data, stop) if "path" in data else [f"{MARK}{stop}"]


def _run_resumed(data: Data) -> list[str]:
    return [f"{MARK}resumed"]


def _visit_opened(data: Data) -> list[str]:
    return [f"{MARK}{data['node']} ({data['kind']})"]


def _visit_started(data: Data) -> list[str]:
    """Only a second or later attempt has a line."""
    if data["attempt"] <= 1:
        return []
    return _detail(data, f"attempt {data['attempt']} started by {data['worker']}")


def _visit_closed(data: Data) -> list[str]:
    lines = [line for text in data.get("notes") or () for line in _detail(data, text)]
    if not data["ok"]:
        lines += _failure(data, f"failed: {data.get('error') or 'no reason given'}")
    return lines + _routed(data)


def _routed(data: Data) -> list[str]:
    """The successors of a visit. For parallel visits they are known when all have ended."""
    ways = data.get("next")
    targets = [ways] if isinstance(ways, str) else ways or []
    return [f"{MARK}{data['node']} -> {', '.join(targets)}"] if targets else []


def _map_progress(data: Data) -> list[str]:
    failed = f", {data['failed']} failed" if data.get("failed") else ""
    return _detail(data, f"map {data['done']}/{data['total']}{failed}")


def _emitted_progress(data: Data) -> list[str]:
    message = f": {first_line(data['message'])}" if data["message"] else ""
    return _detail(data, f"{data['progress']:.0f} %{message}")


def _visit_put_off(data: Data) -> list[str]:
    return _detail(data, f"put off: {data['reason']}")


def _max_steps(data: Data) -> list[str]:
    return [f"{MARK}stopped after {data['limit']} {data['what']} (limits.max_steps)"]


def _join_starved(data: Data) -> list[str]:
    return [f"{MARK}{data['message']}"]


def _visit_retrying(data: Data) -> list[str]:
    failed = _failure(
        data, f"attempt {data['attempt']} of {data['max_attempts']} failed: {data.get('error') or 'no reason'}"
    )
    return [*failed, *_detail(data, f"trying again in {data['delay_ms'] / 1000:.2f}s")]


def _gate_opened(data: Data) -> list[str]:
    """Only the first line of the question, to identify it; the prompt and `sleipnir show` have the full text."""
    lines = _detail(data, f"waiting for an answer: {first_line(data['question'])}")
    if data.get("options"):
        lines += _detail(data, f"options: {', '.join(data['options'])}")
    return lines


def _gate_answered(data: Data) -> list[str]:
    return _detail(data, f"answered: {data['answer']}")


def _gate_expired(data: Data) -> list[str]:
    return _detail(data, "there was no answer in time")


def _signal_awaited(data: Data) -> list[str]:
    return _detail(data, f"waiting for event {data['name']}")


def _signal_declined(data: Data) -> list[str]:
    why = f": {data['error']}" if data.get("error") else ""
    return _detail(data, f"event {data['id']} does not match the filter{why}")


def _remote_cancelling(data: Data) -> list[str]:
    return _detail(data, "the task of the remote agent is being cancelled")


def _signal_missed(data: Data) -> list[str]:
    return _detail(data, "there was no event in time")


def _skip_refused(data: Data) -> list[str]:
    return [f"{MARK}a skip was refused: {data['error']}"]


def _child_started(data: Data) -> list[str]:
    return _detail(data, f"agent {data['agent']} runs as {data['child']}")


def _child_retried(data: Data) -> list[str]:
    return _detail(data, f"run {data['child']} of agent {data['agent']} continues")


def _child_ended(data: Data) -> list[str]:
    """Only failures: a success is reported when its parent continues."""
    failed = data.get("failed_visits", 0)
    if data["status"] == "completed" and not failed:
        return []
    visits = f", {failed:,} failed visit{'' if failed == 1 else 's'}" if failed else ""
    return _detail(data, f"run {data['child']} {data['status']}{visits}")


def _late_result(data: Data) -> list[str]:
    return _detail(data, f"late result refused: attempt {data['attempt']} from {data['worker']}")


def _worker_lost(data: Data) -> list[str]:
    return _detail(data, f"attempt {data['attempt']} was lost with its worker {data.get('worker') or '(unknown)'}")


def _visit_handed_back(data: Data) -> list[str]:
    return _detail(
        data, f"attempt {data['attempt']} was handed back by {data.get('worker') or '(unknown)'}, which stops"
    )


def _visit_stopped(data: Data) -> list[str]:
    return _detail(data, f"attempt {data['attempt']} was stopped by the pause; it runs again later")


def _turn_ended(data: Data) -> list[str]:
    """Only the worker's note for a turn that continues without calls; otherwise the calls are reported."""
    return [line for text in data.get("notes") or () for line in _detail(data, text)]


def _tool_called(data: Data) -> list[str]:
    return _detail(data, f"calling {data['name']}")


def _tool_ended(data: Data) -> list[str]:
    """Only a failure has a line."""
    return [] if data["ok"] else _detail(data, f"{data['name']} failed after {data['took_ms'] / 1000:.2f}s")


def _gap(data: Data) -> list[str]:
    """Missing text has no line, because the visit's result is narrated."""
    return [] if data["lost"] else [f"{MARK}(earlier events are no longer kept)"]


def _run_ended(data: Data) -> list[str]:
    took_s = data["took_ms"] / 1000
    match data["status"]:
        case "completed":
            return [f"{MARK}graph done in {took_s:.2f}s"]
        case "cancelled":
            return [f"{MARK}graph cancelled after {took_s:.2f}s"]
        case status:
            return [f"{MARK}graph {status} after {took_s:.2f}s"]


def _detail(data: Data, text: str) -> list[str]:
    """A line that belongs to a visit, and up to MAX_CONTINUED lines that continue it."""
    text = f"{data['of']}: {text}" if "of" in data else text
    first, *rest = text.splitlines() or [""]
    lines = [f"{MARK}  {first}", *(f"      {line}".rstrip() for line in rest[:MAX_CONTINUED])]
    if len(rest) > MAX_CONTINUED:
        lines.append(f"      ... ({len(rest) - MAX_CONTINUED} more lines)")
    return lines


def _failure(data: Data, text: str) -> list[str]:
    """As _detail, but keeps the end of a long output, which has the cause."""
    first, *rest = text.splitlines()
    if len(rest) <= MAX_CONTINUED:
        return _detail(data, text)
    last = rest[-MAX_CONTINUED + 1 :]
    return _detail(data, "\n".join([first, f"... ({len(rest) - len(last)} more lines)", *last]))


_FRAME = frozenset({"run_started", "visit_opened", "routed", "run_ended"})
_USUAL = "llm call: "  # how the note of each visit of a model begins


def _without_frame(type_: str, data: Data) -> Data | None:
    """For an agent that is a single loop, the lines that differ from run to run; None: no lines."""
    if type_ == "visit_closed":
        notes = [note for note in data.get("notes") or () if not note.startswith(_USUAL)]
        return {**data, "notes": notes, "next": None}
    return None if type_ in _FRAME else data


_LINES: Mapping[str, Callable[[Data], list[str]]] = {
    "run_started": _run_started,
    "slot_asked": _slot_asked,
    "run_retried": _run_retried,
    "run_paused": _run_paused,
    "run_stopped": _run_stopped,
    "run_resumed": _run_resumed,
    "visit_opened": _visit_opened,
    "visit_started": _visit_started,
    "visit_closed": _visit_closed,
    "routed": _routed,
    "map_progress": _map_progress,
    "custom": _emitted_progress,
    "visit_put_off": _visit_put_off,
    "max_steps": _max_steps,
    "join_starved": _join_starved,
    "gate_opened": _gate_opened,
    "visit_retrying": _visit_retrying,
    "visit_handed_back": _visit_handed_back,
    "visit_stopped": _visit_stopped,
    "gate_answered": _gate_answered,
    "gate_expired": _gate_expired,
    "signal_awaited": _signal_awaited,
    "signal_declined": _signal_declined,
    "signal_missed": _signal_missed,
    "remote_cancelling": _remote_cancelling,
    "skip_refused": _skip_refused,
    "child_started": _child_started,
    "child_retried": _child_retried,
    "child_ended": _child_ended,
    "late_result": _late_result,
    "worker_lost": _worker_lost,
    "turn_ended": _turn_ended,
    "tool_called": _tool_called,
    "tool_ended": _tool_ended,
    "gap": _gap,
    "run_ended": _run_ended,
}
