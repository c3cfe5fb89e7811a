"""The client for event loops, on a real scheduler, a real worker and a real Redis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sleipnir import AsyncClient
from sleipnir.errors import RunNotFound, StoreUnavailable
from sleipnir.settings import Settings
from tests.processes import RedisServer, Stack, write_agent
from tests.secured import SecuredRedis

GREETING = """
name: greeting
version: sleipnir/1
start: greet
nodes:
  greet: {type: function, call: "steps.py:greet", next: ask}
  ask: {type: input, question: "And you?", state_updates: {answer: "{{input}}"}, next: done}
  done: {type: end, output: "{{greeting}} {{answer}}"}
"""
ROWS = """
name: rows
version: sleipnir/1
start: greet
nodes:
  greet: {type: function, call: "steps.py:greet", next: done}
  done: {type: end, output: "{{greeting}}"}
"""
STEPS = 'def greet(state):\n    return {"greeting": f"hello {state[\'initial_prompt\']}"}\n'


class NamedThreads(ThreadPoolExecutor):
    """The threads of an event loop, which keep the names of what they were called for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.calls: list[str] = []

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(call.__name__)
        return super().submit(call, *args, **kwargs)


async def rows(count: int) -> AsyncIterator[dict[str, Any]]:
    for number in range(count):
        await asyncio.sleep(0)
        yield {"prompt": str(number)}


def test_a_run_is_submitted_answered_and_followed_while_other_tasks_go_on(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "greeting", GREETING, steps_py=STEPS)
    older_threads = set(threading.enumerate())
    threads = NamedThreads(thread_name_prefix="executor")

    async def use() -> list[str]:
        asyncio.get_running_loop().set_default_executor(threads)
        async with AsyncClient(stack.settings) as client:
            run = await client.submit(agent, "you")
            events = run.events()
            seen: list[str] = []
            while "gate_opened" not in seen:
                seen.append((await anext(events)).type)

            next_event = asyncio.ensure_future(anext(events))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not next_event.done(), "this task had its turns while the client waits for an event"
            await run.answer("fine")
            seen.append((await next_event).type)
            seen += [event.type async for event in events]

            assert (await run.state())["answer"] == "fine"
            assert await run.output() == "hello you fine"
            new = {thread.name for thread in set(threading.enumerate()) - older_threads}
            assert all(name.startswith("executor") for name in new), new
            return seen

    seen = asyncio.run(use())
    assert seen.count("gate_opened") == 1
    assert seen[-1] == "run_ended"
    assert set(threads.calls) == {"_connect"}, "connections are made in threads of the loop, and nothing else is"


def test_a_batch_takes_rows_of_an_asynchronous_iterable(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "rows", ROWS, steps_py=STEPS)

    async def use() -> list[str | None]:
        async with AsyncClient(stack.settings) as client:
            batch = await client.batch(agent, rows(20))
            await batch.wait(60)
            return [result.output async for result in batch.results()]

    assert asyncio.run(use()) == [f"hello {number}" for number in range(20)]


def test_many_calls_at_once_share_the_client(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "rows", ROWS, steps_py=STEPS)

    async def one(client: AsyncClient, number: int) -> str | None:
        run = await client.submit(agent, str(number))
        await run.wait(60)
        return await run.output()

    async def use() -> list[str | None]:
        async with AsyncClient(stack.settings) as client:
            return list(await asyncio.gather(*(one(client, number) for number in range(12))))

    assert asyncio.run(use()) == [f"hello {number}" for number in range(12)]


def test_a_cancelled_call_leaves_the_client_usable(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "greeting", GREETING, steps_py=STEPS)

    async def use() -> str:
        async with AsyncClient(stack.settings) as client:
            run = await client.submit(agent, "you")
            waits = asyncio.create_task(run.wait())
            while (info := await run.info()).status != "waiting":
                assert not info.is_final, info.error
                await asyncio.sleep(0.01)
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            await run.cancel()
            return (await run.wait(60)).status

    assert asyncio.run(use()) == "cancelled"


@pytest.mark.one_redis
def test_errors_are_those_of_the_client(redis_server: RedisServer, tmp_path: Path) -> None:
    async def use(url: str) -> None:
        async with AsyncClient(Settings(redis_url=url, home=tmp_path, key_prefix="async-errors")) as client:
            await client.run("000000000000")

    with pytest.raises(RunNotFound):
        asyncio.run(use(redis_server.url))
    with pytest.raises(StoreUnavailable, match="does not answer"):
        asyncio.run(use("redis://127.0.0.1:1/0"))


def test_tls_is_spoken_without_blocking(tmp_path: Path) -> None:
    server = SecuredRedis(tmp_path)
    try:

        async def use() -> tuple[int, int]:
            async with AsyncClient(Settings(redis_url=server.tls_url, home=tmp_path)) as client:
                counts = await asyncio.gather(*(client.run_count() for _ in range(20)))
                return len(counts), sum(counts)

        assert asyncio.run(use()) == (20, 0)
    finally:
        server.stop()
