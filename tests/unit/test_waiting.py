"""One implementation for threads and for event loops (sleipnir/waiting.py, client/async_client.py)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sleipnir import waiting
from sleipnir.client.access import Access
from sleipnir.client.async_client import AsyncAccess, AsyncBatch, AsyncClient, AsyncRun
from sleipnir.client.batch import Batch
from sleipnir.client.client import Client, Run


def test_a_function_that_waits_suspends_its_task_and_no_other() -> None:
    order: list[str] = []

    def waits(name: str, seconds: float) -> str:
        order.append(f"{name} begins")
        waiting.sleep(seconds)
        order.append(f"{name} ends")
        return name

    async def both() -> list[str]:
        return await asyncio.gather(waiting.in_loop(waits, "long", 0.05), waiting.in_loop(waits, "short", 0.0))

    older_threads = set(threading.enumerate())
    assert asyncio.run(both()) == ["long", "short"]
    assert order == ["long begins", "short begins", "short ends", "long ends"]
    assert set(threading.enumerate()) <= older_threads


def test_an_error_of_the_function_and_one_of_what_it_waits_for_arrive() -> None:
    async def fails() -> None:
        raise KeyError("in the loop")

    def catches() -> str:
        with pytest.raises(KeyError, match="in the loop"):
            waiting.awaited(fails())
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        asyncio.run(waiting.in_loop(catches))


def test_a_cancelled_task_runs_the_cleanup_of_its_function() -> None:
    cleaned: list[bool] = []

    def waits() -> None:
        try:
            waiting.sleep(60)
        finally:
            cleaned.append(waiting.is_in_loop())

    async def cancel() -> None:
        task = asyncio.create_task(waiting.in_loop(waits))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert cleaned == [True]


def test_outside_of_an_event_loop_a_function_blocks_its_thread() -> None:
    assert not waiting.is_in_loop()
    with pytest.raises(RuntimeError, match="nothing can be awaited here"):
        waiting.awaited(asyncio.Event)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("blocking", "other"), [(Client, AsyncClient), (Run, AsyncRun), (Batch, AsyncBatch), (Access, AsyncAccess)]
)
def test_the_asynchronous_classes_have_every_public_method(blocking: type[Any], other: type[Any]) -> None:
    def methods(kind: type[Any]) -> dict[str, Callable[..., Any]]:
        return {name: value for name, value in vars(kind).items() if not name.startswith("_")}

    assert methods(blocking).keys() <= methods(other).keys()
    for name, method in methods(blocking).items():
        if callable(method) and name not in ("acting_as", "batch", "close"):
            assert methods(other)[name].__doc__ == method.__doc__, name
