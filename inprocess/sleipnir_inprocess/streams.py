"""The chunks of a run in this process: which a caller wants, and their form (spec/langgraph-api.md 5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

MODES: Final = ("values", "updates", "custom", "messages", "tasks", "checkpoints", "debug")

INTERRUPT: Final = "__interrupt__"
"""The key under which a result, or a chunk, holds the questions that its run waits for."""

Namespace = tuple[str, ...]


class Chunk(NamedTuple):
    """A part of a stream: of the graph `ns` (empty: the one that was called), in a mode."""

    ns: Namespace
    mode: str
    data: Any


@dataclass(frozen=True)
class Form:
    """What a caller of `stream` wants. `is_list`: chunks come with their mode; `subgraphs`: with their namespace, also
    those of graphs that are nodes; `version` v2: all of it in one dict."""

    modes: tuple[str, ...]
    is_list: bool = False
    subgraphs: bool = False
    version: str = "v1"

    @classmethod
    def of(cls, stream_mode: str | Sequence[str] | None, *, subgraphs: bool, version: str) -> Form:
        """Raises ValueError for a mode that does not exist."""
        mode = "updates" if stream_mode is None else stream_mode
        modes = (mode,) if isinstance(mode, str) else tuple(mode)
        for name in modes:
            if name not in MODES:
                raise ValueError(f"unknown stream_mode {name!r}; there are {', '.join(MODES)}")
        return cls(modes, not isinstance(mode, str), subgraphs, version)

    def written(self, chunk: Chunk) -> Any:
        """A chunk as the caller gets it."""
        if self.version == "v2":
            data = chunk.data
            if chunk.mode != "values":
                return {"type": chunk.mode, "ns": chunk.ns, "data": data}
            interrupts = ()
            if isinstance(data, dict) and INTERRUPT in data:
                interrupts = data[INTERRUPT]
                data = {name: value for name, value in data.items() if name != INTERRUPT}
            return {"type": chunk.mode, "ns": chunk.ns, "data": data, "interrupts": interrupts}
        parts = (*((chunk.ns,) if self.subgraphs else ()), *((chunk.mode,) if self.is_list else ()), chunk.data)
        return parts if len(parts) > 1 else chunk.data


@dataclass
class Stream:
    """The chunks of one call that the caller has not taken yet. For a graph that a node calls, `parent` also takes
    them; `wanted` are the modes that it asks for. `notify` is called after each chunk, in the thread that made it."""

    form: Form
    parent: Callable[[Chunk], None] | None = None
    wanted: frozenset[str] = frozenset()
    chunks: deque[Chunk] = field(default_factory=deque)
    notify: Callable[[], None] | None = None

    def wants(self, mode: str) -> bool:
        return mode in self.form.modes or mode in self.wanted

    def add(self, mode: str, data: Any) -> None:
        """A chunk of this graph."""
        self.take(Chunk((), mode, data))

    def take(self, chunk: Chunk) -> None:
        """A chunk of this graph or of one below."""
        if chunk.mode in self.form.modes and (not chunk.ns or self.form.subgraphs):
            self.chunks.append(chunk)
            if self.notify is not None:
                self.notify()
        if self.parent is not None:
            self.parent(chunk)


@dataclass(frozen=True)
class Output:
    """Which keys of the state a caller gets: `keys`, one of them bare; None: those of `default`, None: all."""

    keys: str | Sequence[str] | None
    default: Sequence[str] | None = None

    def of(self, state: Mapping[str, Any]) -> Any:
        """The part of a state; None if none of the keys was set."""
        if isinstance(self.keys, str):
            return state.get(self.keys)
        names = self.default if self.keys is None else self.keys
        if names is None:
            return dict(state) or None
        return {name: state[name] for name in names if name in state} or None

    def part(self, update: Mapping[str, Any] | None) -> Any:
        """The part of an update."""
        if update is None or self.keys is None:
            return update
        names = (self.keys,) if isinstance(self.keys, str) else self.keys
        return {name: update[name] for name in names if name in update} or None
