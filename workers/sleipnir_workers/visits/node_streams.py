"""The node streams of one visit: what it writes, or what opens those that it reads. Other visits pay nothing."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from typing import Final

from sleipnir.graph.model import FunctionNode, LlmNode, Node, ScriptNode, writer_of_stream
from sleipnir.graph.terminals import terminals
from sleipnir.messages import VisitResult
from sleipnir.python_graph.node_streams import NextItem, StreamItem
from sleipnir.runs.node_streams import NodeStreams, StreamName, TextPlace
from sleipnir.runs.run import RunSpec, changed
from sleipnir_workers.execution.execution import Execution
from sleipnir_workers.execution.node_streams import StreamSource, StreamWriter

WAIT_S: Final = 60.0
"""For the node that writes a stream to begin."""

SHARE_OF_TIMEOUT: Final = 0.9
"""The wait ends before the time limit of the node: its message says more."""

MOST_WAITING: Final = 256  # pieces that the code of a node has not taken yet
_TICK_S: Final = 0.2


def connected(
    execution: Execution, spec: RunSpec, board: Callable[[], NodeStreams]
) -> AbstractContextManager[Execution]:
    """The execution, with the end of the stream that its node writes or reads. What it has opened is closed after the
    block."""
    node = execution.node
    if isinstance(node, LlmNode):
        if (node.stream_output is None and spec.stream is None) or execution.role not in ("node", "turn"):
            return nullcontext(execution)
        writer = _writer(execution, spec, node, board)
        if writer is not None and execution.role == "node":
            writer.begin()
        return nullcontext(execution if writer is None else changed(execution, stream_writer=writer))
    if isinstance(node, ScriptNode | FunctionNode) and node.stream_input is not None and execution.role == "node":
        return _reading(execution, node, board)
    return nullcontext(execution)


@contextmanager
def _reading(
    execution: Execution, node: ScriptNode | FunctionNode, board: Callable[[], NodeStreams]
) -> Iterator[Execution]:
    is_over = threading.Event()
    streams = OpenedStreams(execution, node, board(), is_over)
    try:
        yield changed(execution, streams=streams)
    finally:
        is_over.set()


def close(execution: Execution, result: VisitResult | None) -> None:
    """Store the rest of the text that the visit has written, before its result is delivered. None: it was lost."""
    if isinstance(execution.stream_writer, StreamWriter) and result is not None:
        execution.stream_writer.close(result)


def _writer(
    execution: Execution, spec: RunSpec, node: LlmNode, board: Callable[[], NodeStreams]
) -> StreamWriter | None:
    """What the text of a model goes to: the stream of its node; or, in the run of an agent whose node above has one,
    that stream, if the node is the only llm node that ends the run. Else the reader gets the output of the run."""
    seq, attempt, lost = execution.seq, execution.attempt, execution.lost
    if node.stream_output is not None:
        owner = execution.part.loop if execution.part is not None else seq
        stream = StreamName(execution.run, node.stream_output)
        return StreamWriter(board(), stream, TextPlace(owner, 0, seq, attempt), lost)
    if spec.stream is None or spec.parent is None or _last_model(execution) != node.id:
        return None
    place = TextPlace(spec.parent_seq, spec.parent_attempt, seq, attempt)
    return StreamWriter(board(), StreamName(spec.parent, spec.stream), place, lost)


def _last_model(execution: Execution) -> str | None:
    nodes = execution.graph.nodes
    models = [name for name in terminals(execution.graph) if isinstance(nodes[name], LlmNode)]
    return models[0] if len(models) == 1 else None


class OpenedStreams:
    """Opens the stream that a node reads, as often as it likes. See execution.InputStreams."""

    def __init__(
        self, execution: Execution, node: ScriptNode | FunctionNode, board: NodeStreams, is_over: threading.Event
    ) -> None:
        self._execution, self._board, self._is_over = execution, board, is_over
        self._name, self._timeout_s = node.stream_input or "", node.timeout

    def source(self, timeout: float | None = None) -> StreamSource:
        """The stream, to be read in the caller's thread."""
        execution = self._execution
        writer: Node = execution.graph.nodes[writer_of_stream(execution.graph, self._name) or ""]
        wait_s = min(WAIT_S, SHARE_OF_TIMEOUT * self._timeout_s) if timeout is None else timeout
        name = StreamName(execution.run, self._name)
        return StreamSource(self._board, name, writer, execution.seq, self._is_stopped, wait_s)

    def open(self, name: str, timeout: float | None) -> NextItem:
        """The stream for the code of a function. Raises ValueError for another stream than that of the node."""
        if name != self._name:
            node = self._execution.node.id
            raise ValueError(f"node '{node}' reads the stream {self._name!r} (`stream_input`), not {name!r}")
        pump = _Pump(self.source(timeout), self._is_stopped)
        return lambda: pump.next_item(self._execution)

    def stop(self) -> None:
        self._is_over.set()

    def _is_stopped(self) -> bool:
        return self._is_over.is_set() or self._execution.lost.is_set()


class _Pump:
    """Reads a source in a thread: the thread of a function may be interrupted anywhere (functions/deadline.py), which
    no connection to Redis survives."""

    def __init__(self, source: StreamSource, stopped: Callable[[], bool]) -> None:
        self._source, self._stopped = source, stopped
        self._items: queue.Queue[StreamItem | Exception | None] = queue.Queue(MOST_WAITING)
        self._end: Exception | bool | None = False
        """What follows the last item, once it was taken; False: it was not."""
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._pump,), name="node-stream", daemon=True).start()

    def next_item(self, execution: Execution) -> StreamItem | None:
        """Raises what the source raises, and VisitLost."""
        while self._end is False:
            execution.check()
            try:
                item = self._items.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            if item is not None and not isinstance(item, Exception):
                return item
            self._end = item
        if isinstance(self._end, Exception):
            raise self._end
        return None

    def _pump(self) -> None:
        try:
            with closing(self._source.items()) as items:
                for item in items:
                    if not self._put(item):
                        return
            self._put(None)
        except Exception as error:
            self._put(error)

    def _put(self, item: StreamItem | Exception | None) -> bool:
        """False: nobody takes it any more."""
        while not self._stopped():
            with suppress(queue.Full):
                self._items.put(item, timeout=_TICK_S)
                return True
        return False
