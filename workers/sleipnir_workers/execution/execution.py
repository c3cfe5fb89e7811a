"""One claimed attempt of a visit, as an executor sees it, and what ends it early."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sleipnir.errors import NodeFailed
from sleipnir.graph.model import FunctionNode, Graph, MapNode, Node, ScriptNode
from sleipnir.messages import Role
from sleipnir.python_graph.node_streams import NextItem, StreamItem
from sleipnir.python_graph.objects import GraphObjects
from sleipnir.runs.child_events import ReadVisits
from sleipnir.runs.conversation import SILENCE, StoredConversation
from sleipnir.runs.visits import Item, Part
from sleipnir_workers.execution.lazy_state import StoredState
from sleipnir_workers.execution.visit_callbacks import VisitCallbacks


class VisitLost(BaseException):
    """This worker no longer owns the visit (cancelled, or another attempt took over). Stop; deliver nothing.

    A BaseException so that `except Exception` in a node's own code cannot swallow it.
    """


class ProcessLost(BaseException):
    """A process of this worker that executed the visit died; how much of the work is done is unknown.

    For this visit it is the same as the death of the worker: it is handed back, and another attempt starts.
    """


class DirectoryMissing(BaseException):
    """This machine does not have the directory that the visit's run asked for. Nothing has begun; the visit is handed
    back, because another worker may have the directory."""


class TextSink(Protocol):
    """Takes the text of a model while it is generated, for people who watch. Its methods neither block nor raise."""

    def write(self, text: str) -> None:
        """Append text."""

    def restart(self) -> None:
        """Discard the text so far: the model is asked again."""


class Emissions(Protocol):
    """Takes what a node emits (python_graph/emitters.py), for people who watch. Nothing of it blocks or raises."""

    def write(self, text: str) -> None:
        """An emission, as JSON. It may be dropped."""

    def skip(self, count: int) -> None:
        """So many emissions could not be taken."""

    @property
    def has_room(self) -> bool:
        """Whether the next emission is taken."""


class OutputStream(Protocol):
    """Takes the text of a model for another node of the run (node_streams.py). It raises nothing."""

    def begin(self, earlier: str = "") -> None:
        """The text begins, after that of earlier turns of the conversation."""

    def write(self, text: str) -> None:
        """Append text."""

    def restart(self) -> None:
        """Discard the text so far: the model is asked again."""

    def settle(self, text: str) -> None:
        """The answer of the model, some or all of which was written."""


class InputSource(Protocol):
    """A node stream from its beginning."""

    def items(self) -> Generator[StreamItem]:
        """Pieces of its text, and RESET. Raises StreamError and StreamNotBegun."""


class InputStreams(Protocol):
    """Opens the node stream that a node reads."""

    def open(self, name: str, timeout: float | None) -> NextItem:
        """For the code of a function. Raises ValueError for a stream that the node does not read."""

    def source(self, timeout: float | None = None) -> InputSource:
        """To be read in the caller's thread."""

    def stop(self) -> None:
        """Nothing is read any more."""


EMITTING = FunctionNode, ScriptNode
"""The types of nodes whose code can emit."""


class CallTokens(Protocol):
    """The tokens that one call of a model used; None: unknown."""

    tokens: int | None


class ModelPermits(Protocol):
    """Permits for calls of models, under the limits of the deployment (llm/permits.py)."""

    def call(
        self, caller: str, attempt: int | str, names: Sequence[str], tokens: int
    ) -> AbstractContextManager[CallTokens]:
        """Holds a permit during one call of a model with these names, which takes about `tokens`."""

    def tool(self, caller: str, attempt: int | str, name: str) -> AbstractContextManager[None]:
        """Holds a permit during one call of the tool of this name. Raises PutOff, ConfigError and ProcessLost."""


class Observer(Protocol):
    """Sees what a function of a graph written in Python returned or raised, where it runs in the caller's process."""

    def returned(self, updates: Sequence[Mapping[str, Any] | None]) -> None:
        """The updates that it returned, as objects."""

    def failed(self, error: NodeFailed) -> None:
        """Its failure; the cause is the exception of its own code, or an interrupt by the user."""


@dataclass(frozen=True)
class Execution:
    """One claimed visit, as an executor sees it.

    `role` names the part of the node to execute, `item` the item of a map. `state` holds the keys that the node
    reads (everything for scripts and functions). `folder` is the agent's folder, materialised from the run's bundle:
    read-only. `cwd` is the directory that commands work in, `scratch` the same if it is the run's scratch folder.
    `variables` are the agent variables of the run, `knowledge` the digest of the node's knowledge base, if it has one.
    `lost` is set when the visit was cancelled or taken over. `part` is its place in a loop, `talk` the messages of that
    loop, `session` the name of the run's session, if it is in one, `depth` the number of runs above. `text_sink` takes
    the text of a model (None: it is not streamed); `permits` limits calls of models (None: no limits).
    `emissions` takes what the node emits (None: it is dropped), `stream_writer` the text of a model for another node;
    `streams` opens the node stream that the node reads (None: it reads none).
    `config` and `context` are those of the run (RunSpec), `step` and `limited_from` are those of the claim.
    `failures` of the visit were retried before, and callbacks have changed what it sees (`input_changed`); only known
    where callbacks ask for it.
    `objects` are the Python objects of the graph, where they need no import; `observer` sees what functions return.
    `callbacks` are those that run around it and around its calls (None: there are none); `child_visits` reads what the
    child of an agent node has done, for them.
    """

    run: str
    node: Node
    seq: int
    attempt: int
    agent: str
    graph: Graph
    folder: Path
    state: StoredState
    variables: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    caller_dir: Path | None = None
    scratch: Path | None = None
    lost: threading.Event = field(default_factory=threading.Event)
    role: Role = "node"
    item: Item | None = None
    part: Part | None = None
    talk: StoredConversation = SILENCE
    session: str | None = None
    depth: int = 0
    knowledge: str | None = None
    text_sink: TextSink | None = None
    emissions: Emissions | None = None
    stream_writer: OutputStream | None = None
    streams: InputStreams | None = None
    permits: ModelPermits | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    context: Mapping[str, Any] | None = None
    step: int = 0
    limited_from: int = 0
    failures: int = 0
    input_changed: bool = False
    objects: GraphObjects | None = None
    observer: Observer | None = None
    callbacks: VisitCallbacks | None = None
    child_visits: ReadVisits | None = None

    @property
    def directory(self) -> Path:
        """Where its commands work. Raises DirectoryMissing."""
        assert self.cwd is not None, "a visit that starts programs is given a directory (folders/directories.py)"
        if not can_be_entered(self.cwd):
            raise DirectoryMissing(
                f"the working directory {str(self.cwd)!r} is not on this machine, or cannot be entered"
            )
        return self.cwd

    @property
    def result_key(self) -> str | None:
        """The state key that gets the result of this visit's item; None: it is not the last visit of an item."""
        if self.item is None:
            return None
        owner = self.graph.nodes.get(self.item.of)
        if not isinstance(owner, MapNode):
            raise NodeFailed(f"'{self.item.of}' is not a map node of this graph, so it has no items", "item")
        return owner.output_key if self.item.position == len(owner.body) - 1 else None

    def check(self) -> None:
        """Raise VisitLost if the visit was lost."""
        if self.lost.is_set():
            raise VisitLost(f"this worker no longer owns visit {self.run}/{self.seq}")


def can_be_entered(folder: Path) -> bool:
    return os.path.isdir(folder) and os.access(folder, os.X_OK)  # noqa: PTH112  (Path.is_dir raises without access)
