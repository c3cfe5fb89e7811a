"""What code of a node tells those who watch its run: `emit`, `emit_progress`, `emit_text`, and the stream writer.

Rules (spec/graph-package.md F46). An emission is a view, not a record: it may be dropped, and is then counted. It never
fails the node, nor does it wait. Outside of a node it does nothing. It is a mapping: `chunk` is what a stream writer
got; else `category` is `custom`, `progress` or `text`, and the other keys are those of `form_of`'s results.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from sleipnir.python_graph.runtime import StreamWriter, current

Emission: TypeAlias = Mapping[str, Any]
EmissionSink: TypeAlias = Callable[[Emission], None]

emission_sink: Final[contextvars.ContextVar[EmissionSink | None]] = contextvars.ContextVar(
    "sleipnir_emissions", default=None
)
"""Takes what the running node emits, where its visit is executed for a deployment or an agent."""


def emit(type: str, payload: Any = None) -> None:
    """Tell those who watch the run that something has happened; `payload` is any JSON."""
    _send({"category": "custom", "type": str(type), "payload": payload})


def emit_progress(percent: float, message: str = "") -> None:
    """Tell how much of the node's work is done, from 0 to 100; other numbers count as the nearer of these."""
    if (progress := progress_of(percent, message)) is not None:
        _send(progress)


def emit_text(text: str) -> None:
    """Tell text as a model does: pieces of one visit are one text."""
    if text := str(text):
        _send({"category": "text", "text": text})


def get_stream_writer() -> StreamWriter:
    """Writes to the stream mode `custom`. Raises RuntimeError outside of a node."""
    call = current.get()
    if call is not None:
        return call.runtime.stream_writer
    sink = emission_sink.get()
    if sink is None:
        raise RuntimeError("Called get_config outside of a runnable context")
    return lambda value: sink({"chunk": value})


def progress_of(percent: Any, message: Any = "") -> Emission | None:
    """The emission; None: this is no number."""
    try:
        number = float(percent)
    except (TypeError, ValueError, OverflowError):
        return None
    clamped = min(100.0, max(0.0, number)) if number == number else 0.0
    return {"category": "progress", "progress": clamped, "message": str(message)}


def form_of(value: Any) -> Emission:
    """The emission that a line of a script means: an object with no other keys than those of one of the functions
    above, `{"progress": 40, "message": "half"}`, `{"text": "..."}` or `{"type": "found", "payload": 3}`; else a
    chunk."""
    if isinstance(value, dict):
        keys = value.keys()
        if "progress" in keys and keys <= _PROGRESS and isinstance(value["progress"], int | float):
            return progress_of(value["progress"], value.get("message", "")) or {"chunk": value}
        if keys == _TEXT and isinstance(value["text"], str):
            return {"category": "text", **value}
        if "type" in keys and keys <= _CUSTOM and isinstance(value["type"], str):
            return {"category": "custom", "type": value["type"], "payload": value.get("payload")}
    return {"chunk": value}


_PROGRESS, _TEXT, _CUSTOM = frozenset(("progress", "message")), frozenset(("text",)), frozenset(("type", "payload"))


def _send(emission: Emission) -> None:
    sink = emission_sink.get()
    if sink is None:
        call = current.get()
        if call is None:
            return
        sink = call.runtime.stream_writer
    try:
        sink(emission)
    except Exception:  # of a caller's own sink: what watches a node does not fail it
        return
