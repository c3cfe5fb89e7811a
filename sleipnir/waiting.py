"""How code that blocks also runs in an event loop: one implementation for programs with threads and with asyncio.

`in_loop(function, ...)` calls a function in a greenlet of the event loop's thread. Where the function has to wait, it
calls `awaited`, which suspends the greenlet until the loop has what it waits for. Other tasks go on meanwhile. Only
`in_thread` uses a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from greenlet import greenlet

P = ParamSpec("P")
T = TypeVar("T")

_waiting: contextvars.ContextVar[greenlet | None] = contextvars.ContextVar("sleipnir_waiting", default=None)
"""The greenlet of the event loop that takes what this code waits for. None: this code may block its thread."""


def is_in_loop() -> bool:
    """Whether this code was called by `in_loop`: it must not block."""
    return _waiting.get() is not None


def awaited(awaitable: Awaitable[T]) -> T:
    """The result of an awaitable, for code that `in_loop` called. Raises RuntimeError elsewhere."""
    loop = _waiting.get()
    if loop is None:
        raise RuntimeError("nothing can be awaited here: this code was not called by in_loop")
    result: T = loop.switch(awaitable)
    return result


def sleep(seconds: float) -> None:
    """Wait, in this thread or in the event loop."""
    if is_in_loop():
        awaited(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that blocks and cannot be awaited: here, or, in an event loop, in a thread. Raises what it
    raises."""
    return awaited(asyncio.to_thread(function, *args, **kwargs)) if is_in_loop() else function(*args, **kwargs)


async def in_loop(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that may wait, and await its result. Raises what it raises."""
    import greenlet  # imported late: programs without an event loop do not need it

    def call() -> T:
        _waiting.set(here)
        return function(*args, **kwargs)

    here = greenlet.getcurrent()
    worker = greenlet.greenlet(call)
    worker.gr_context = contextvars.copy_context()
    result: Any = worker.switch()
    while not worker.dead:
        try:
            value = await result
        except BaseException:
            result = worker.throw(*sys.exc_info())
        else:
            result = worker.switch(value)
    return result  # type: ignore[no-any-return]
