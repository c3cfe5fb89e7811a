"""What a node of a graph written in Python may ask about its run: configuration, context, stream, attempt."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypedDict, TypeVar

ContextT = TypeVar("ContextT")

StreamWriter: TypeAlias = Callable[[Any], None]


class RunnableConfig(TypedDict, total=False):
    """The configuration of a call. Unknown keys are ignored."""

    configurable: dict[str, Any]
    recursion_limit: int
    max_concurrency: int
    tags: list[str]
    metadata: dict[str, Any]
    run_name: str
    callbacks: Any


@dataclass(frozen=True)
class ExecutionInfo:
    """The visit that is being executed. `node_attempt` counts from 1."""

    run_id: str = ""
    thread_id: str | None = None
    task_id: str = ""
    node_attempt: int = 1


def no_writer(_: Any) -> None:
    """Drops the value: no caller takes it."""


@dataclass(frozen=True)
class Runtime(Generic[ContextT]):
    """What a node gets as `runtime`. `context` is that of the call; `previous` the last result of an entrypoint."""

    context: ContextT = None  # type: ignore[assignment]
    store: Any = None
    stream_writer: StreamWriter = no_writer
    previous: Any = None
    execution_info: ExecutionInfo = field(default_factory=ExecutionInfo)
    server_info: Any = None


class ChunkSink(Protocol):
    """Takes the chunks of a graph that is called by a node."""

    @property
    def modes(self) -> frozenset[str]:
        """The modes that it wants."""

    def __call__(self, chunk: Any) -> None:
        """Take a chunk, whose namespace begins below the node."""


@dataclass(frozen=True)
class Call:
    """The call that this thread or task belongs to, and the stream of its caller. `called` are the runs of the graphs
    that the running node calls (sleipnir_inprocess.execution.CalledRuns). `remaining_steps` is what RemainingSteps
    holds, `of_nodes` are the overrides of nodes of graphs that the running node calls."""

    config: Mapping[str, Any]
    runtime: Runtime[Any]
    stream: ChunkSink | None = None
    called: Any = None
    remaining_steps: int = 0
    of_nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphOutput:
    """What `invoke(version="v2")` returns: the last state, as an instance of its class, and the open questions."""

    value: Any
    interrupts: tuple[Any, ...] = ()

    def __getitem__(self, key: str) -> Any:
        return self.value[key] if isinstance(self.value, Mapping) else getattr(self.value, key)


NO_CALL: Final = Call({}, Runtime())

current: Final[contextvars.ContextVar[Call | None]] = contextvars.ContextVar("sleipnir_call", default=None)


def merged_config(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """One configuration of several: later ones replace values, and add to mappings."""
    config: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            merges = isinstance(value, Mapping) and isinstance(config.get(key), Mapping)
            config[key] = {**config[key], **value} if merges else value
    return config


def _current() -> Call:
    call = current.get()
    if call is None:
        raise RuntimeError("Called get_config outside of a runnable context")
    return call


def get_config() -> dict[str, Any]:
    """The configuration of the running node. Raises RuntimeError outside of a node."""
    return dict(_current().config)


def get_runtime(context_schema: type[ContextT] | None = None) -> Runtime[ContextT]:
    """The Runtime of the running node. Raises RuntimeError outside of a node."""
    return _current().runtime
