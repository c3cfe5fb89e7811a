"""A run as HTML for a notebook: its picture, and a table of its status and its state.

Rules. What is shown was written by others: every text is escaped, nothing in it runs or is loaded. The size is bounded,
whatever the run holds. What cannot be read is reported in its place: showing a run raises no SleipnirError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sleipnir.client.pinned_graph import pinned_graph
from sleipnir.errors import SleipnirError
from sleipnir.graph.draw.embedded import embedded, html_text
from sleipnir.runs.plain_text import duration, one_line, printable
from sleipnir.runs.reasons import end_in_words, fork_in_words, places, usage_in_words
from sleipnir.runs.run_progress import progress_of
from sleipnir.store.store import Store

if TYPE_CHECKING:
    from sleipnir.runs.views import RunInfo
    from sleipnir.settings import Settings

MOST_STEPS = 2_000  # the last ones: their nodes are marked as done in the picture
MOST_KEYS, MOST_NAME, MOST_CHARS = 50, 60, 1_000
MOST_PLACES, MOST_QUESTIONS = 8, 8

_CELL, _WRAP = "text-align:left;vertical-align:top", "white-space:pre-wrap;overflow-wrap:anywhere"
_NO_FORMULAS = "tex2jax_ignore mathjax_ignore"  # `$...$` in a value is text for MathJax too


def page_of(store: Store, run_id: str) -> str:
    """The run as it is now."""
    return _page(run_id, _reported(store, lambda: _content(store, run_id)))


def page_from(settings: Settings, run_id: str) -> str:
    """The same, by a connection that is open meanwhile."""
    try:
        with Store.open(settings, client_name="sleipnir-client") as store:
            return page_of(store, run_id)
    except SleipnirError as error:
        return _page(run_id, _error(error))


def _page(run_id: str, content: str) -> str:
    return f'<div class="sleipnir-run {_NO_FORMULAS}"><div><b>run {_text(run_id)}</b></div>{content}</div>'


def _content(store: Store, run_id: str) -> str:
    [info] = store.explained([store.runs.info(run_id)])
    now_ms = store.now_ms()
    picture = _reported(store, lambda: _picture(store, info, now_ms))
    rows = "".join(_row(name, text) for name, text in _about(store, info, now_ms))
    return f"{picture}<table>{rows}{_state(store, run_id)}</table>"


def _picture(store: Store, info: RunInfo, now_ms: int) -> str:
    skipped = max(0, info.step - MOST_STEPS)
    steps = store.runs.history(info.id, skipped or None, 2 * MOST_STEPS)
    graph = pinned_graph(store, store.runs.spec(info.id))
    note = f"<div>The picture leaves out the first {skipped:,} steps.</div>" if skipped else ""
    past = store.runs.past_steps(info.id) if info.forked_from and (info.forked_at or 0) <= MOST_STEPS else []
    return f"<div>{embedded(graph, progress_of(info, steps, now_ms, past))}</div>{note}"


def _about(store: Store, info: RunInfo, now_ms: int) -> Iterator[tuple[str, str]]:
    yield "agent", info.agent
    yield "status", end_in_words(info)
    if info.started_ms is not None:
        yield "took", duration(max(0, (info.ended_ms or now_ms) - info.started_ms))
    if info.parked is not None:
        yield "parked", info.parked.reason
    if info.unreadable is not None:
        yield "unreadable", f"this release cannot read its records: {info.unreadable}"
    if info.forked_from is not None:
        yield "forked", f"from {info.forked_from} {fork_in_words(info)}"
    for place in [] if info.is_final else places(info, now_ms, MOST_PLACES):
        yield "at", place
    for gate in [] if info.is_final else store.runs.gates_below(info.id)[:MOST_QUESTIONS]:
        yield "question", f"{gate.place}: {gate.question}"
    if info.error:
        yield "error", info.error
    if info.usage.calls:
        yield "cost", usage_in_words(info.usage)
    if info.status == "completed" and (output := store.runs.output(info.id)):
        yield "output", output


def _state(store: Store, run_id: str) -> str:
    try:
        with store.errors():
            state = store.runs.state(run_id)
    except SleipnirError as error:
        return _row("state", _failure(error))
    rows = [_row(key, json_text(value, MOST_CHARS), is_key=True) for key, value in _first(state)]
    if left := len(state) - len(rows):
        rows.append(_row("…", f"and {left:,} more keys: run.state() has them all"))
    return _row("state", "empty" if not state else f"{len(state):,} keys") + "".join(rows)


def _first(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for _, (key, value) in zip(range(MOST_KEYS), state.items(), strict=False):
        yield key, value


def json_text(value: Any, most: int) -> str:
    """The value as JSON, of which no more is made than is shown: `most` characters, then `…`."""
    text = ""
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        text += piece
        if len(text) > most:
            return text[:most] + "…"
    return text


def _row(name: str, text: str, *, is_key: bool = False) -> str:
    shown = text if len(text) <= MOST_CHARS + 1 else text[:MOST_CHARS] + "…"
    weight = "normal" if is_key else "bold"
    cells = (f"{_CELL};white-space:nowrap;font-weight:{weight}", one_line(name, MOST_NAME)), (f"{_CELL};{_WRAP}", shown)
    return "<tr>" + "".join(f'<td style="{style}">{_text(content)}</td>' for style, content in cells) + "</tr>"


def _reported(store: Store, make: Callable[[], str]) -> str:
    """What `make` returns, or why it cannot."""
    try:
        with store.errors():
            return make()
    except SleipnirError as error:
        return _error(error)


def _error(error: SleipnirError) -> str:
    return f"<div>{_text(_failure(error)[:MOST_CHARS])}</div>"


def _failure(error: SleipnirError) -> str:
    return f"{type(error).__name__}: {error}"


def _text(text: str) -> str:
    return html_text(printable(text))
