"""What a node of a graph written in Python says about failures and caches, with LangGraph's names and defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from sleipnir.runs.memory_cache import MemoryCache

RetryOn: TypeAlias = type[Exception] | Sequence[type[Exception]] | Callable[[Exception], bool]

_FINAL: Final = (
    ValueError, TypeError, ArithmeticError, ImportError, LookupError, NameError, SyntaxError, RuntimeError,
    ReferenceError, StopIteration, StopAsyncIteration, OSError,
)  # fmt: skip


def default_retry_on(error: Exception) -> bool:
    """Whether another try may succeed: not after mistakes of a program (spec/langgraph-api.md 9)."""
    if isinstance(error, ConnectionError):
        return True
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return 500 <= status < 600
    return not isinstance(error, _FINAL)


class RetryPolicy(NamedTuple):
    """How often a node is tried again. Intervals are in seconds; `max_attempts` counts the first try. The pause before
    try n+1 is initial_interval * backoff_factor**(n-1), at most max_interval, and up to a second more with `jitter`."""

    initial_interval: float = 0.5
    backoff_factor: float = 2.0
    max_interval: float = 128.0
    max_attempts: int = 3
    jitter: bool = True
    retry_on: RetryOn = default_retry_on

    def retries(self, error: Exception) -> bool:
        """Whether this policy applies to an error."""
        if isinstance(self.retry_on, type):
            return isinstance(error, self.retry_on)
        if callable(self.retry_on):
            return bool(self.retry_on(error))
        return isinstance(error, tuple(self.retry_on))


@dataclass(frozen=True, kw_only=True)
class CachePolicy:
    """How the results of a node are kept for equal inputs, `ttl` seconds long (None: until they are cleared). The input
    is what the node sees, or what `key_func` makes of that: JSON or bytes. In force in a graph that is compiled with a
    cache."""

    key_func: Callable[..., Any] | None = None
    ttl: float | None = None


class InMemorySaver:
    """Accepted as `compile(checkpointer=)`: the runs of a graph then remember their thread. It stores nothing."""


MemorySaver = InMemorySaver


class InMemoryCache(MemoryCache):
    """The results of nodes with a CachePolicy, for graphs that run in this process: `compile(cache=InMemoryCache())`.
    On the fleet, results are in its Redis, whatever the cache is."""

    def __init__(self) -> None:
        super().__init__()
