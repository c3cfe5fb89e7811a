"""The node stream that the code of a function reads, and that a script gets on its stdin."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from typing import Any

from sleipnir.python_graph.node_streams import StreamError, StreamNotBegun, StreamReset, stream_opener
from sleipnir_workers.execution.execution import Execution, InputStreams

CLOSING_S = 5.0  # for the thread that writes to a script, once nobody reads it


def reading(execution: Execution) -> AbstractContextManager[None]:
    """The code in the block can open the stream that its node reads."""
    return nullcontext() if execution.streams is None else _opening(execution.streams)


@contextmanager
def _opening(streams: InputStreams) -> Iterator[None]:
    token = stream_opener.set(streams.open)
    try:
        yield
    finally:
        stream_opener.reset(token)


@contextmanager
def on_stdin(execution: Execution) -> Iterator[int | None]:
    """A descriptor to read lines of JSON from: `{"text": ...}` and `{"reset": true}`, at the end `{"end": true}` or
    `{"error": ...}`. None: the node reads no stream."""
    if execution.streams is None:
        yield None
        return
    read_end, write_end = os.pipe()
    thread = threading.Thread(target=_feed, args=(execution.streams, write_end), name="node-stream", daemon=True)
    thread.start()
    try:
        yield read_end
    finally:
        os.close(read_end)  # no process of the script has it any more: a write to it fails
        execution.streams.stop()
        thread.join(CLOSING_S)


def _feed(streams: InputStreams, write_end: int) -> None:
    try:
        with (
            suppress(BrokenPipeError),
            os.fdopen(write_end, "w", encoding="utf-8", buffering=1) as pipe,
            closing(streams.source().items()) as items,
        ):
            try:
                for item in items:
                    _write(pipe, {"reset": True} if isinstance(item, StreamReset) else {"text": item})
                _write(pipe, {"end": True})
            except (StreamError, StreamNotBegun) as error:
                _write(pipe, {"error": str(error)})
    except Exception:  # the script reads no end, and fails
        import structlog

        structlog.get_logger().exception("a node stream cannot be read")


def _write(pipe: Any, line: dict[str, Any]) -> None:
    pipe.write(json.dumps(line, ensure_ascii=False) + "\n")
