"""The HTTP API beside the engine's load, which takes all of the machine: how long a submission waits for its answer,
and how late the events are that many listeners of one server hear.

One scheduler and two solo workers work on a batch of graphs of ten no-op nodes for as long as anything is measured.
Submissions come at fixed times, whether or not the ones before are answered, and each is measured from the time at
which it was due. The lateness of an event is measured from its commit, by the clock of the machine, to its line at the
listener. All clients are tasks of this process, and on the same cores.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ops.bench.cpu_time import tree_s
from ops.bench.engine import NODES, Stack, finish, no_op_agent, stack, write_agent
from ops.bench.figures import BenchFailed, Values
from ops.bench.processes import PYTHON, processes
from sleipnir.client.client import Run
from tests.waiting import wait_until

PER_S, SUBMITTED_S = 200, 15
CONNECTIONS = 100
"""Kept open; a submission that finds none free waits for one."""
LISTENERS, ANSWERED, ANSWERS_PER_S = 1_000, 600, 40
"""Each listener follows a run of its own. So many of the runs are answered, and go on to their end."""
BACKLOG = 20_000
FILES = 8_192
TIMEOUT_S = 120.0
ASKING = """
name: asking
start: sure
nodes:
  sure: {type: approval, question: 'sure?', options: ['yes'], routes: {'yes': done}, on_other: done}
  done: {type: end}
"""

T = TypeVar("T")


def measure() -> Values:
    """Percentiles of both, the engine's visits meanwhile, and CPU of the server."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, most), most))
    with stack(workers=2) as engine:
        agents = {"noop": no_op_agent(engine.home), "asking": write_agent(engine.home / "asking", ASKING)}
        finish([engine.client.submit(agents["noop"]) for _ in range(20)], engine.client)
        with console(engine) as (port, pid):
            return {**submitting(engine, agents["noop"], port, pid), **listening(engine, agents, port)}


@contextmanager
def console(engine: Stack) -> Iterator[tuple[int, int]]:
    """Port and pid of a server of the API for this engine, which answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    folder = engine.home / "console"
    folder.mkdir()
    env = {
        **engine.client.settings.to_env(), "SLEIPNIR_AGENTS_DIR": str(engine.home), "SLEIPNIR_CONSOLE_PORT": str(port),
    }  # fmt: skip
    with processes({"console": [[PYTHON, "-m", "sleipnir_console"]]}, env, folder) as pids:
        wait_until(lambda: _accepts(port), "the server listens", TIMEOUT_S)
        yield port, pids["console"][0]


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


# Submissions


def submitting(engine: Stack, agent: Path, port: int, pid: int) -> Values:
    """PER_S submissions a second over HTTP, each of a run of one node that ends at once."""
    count = PER_S * SUBMITTED_S
    before_s = 0.0

    def call() -> list[float]:
        nonlocal before_s
        asyncio.run(_submit(port, CONNECTIONS))  # connects, imports, and makes the bundle of the agent
        before_s = tree_s([pid])
        return asyncio.run(_submit(port, count))

    times_ms, visits_per_s = beside_load(engine, agent, call)
    percentiles = statistics.quantiles(times_ms, n=100)
    return {
        "http_submit_p99_ms": percentiles[98],
        "http_submit_p50_ms": percentiles[49],
        "http_submit_us": (tree_s([pid]) - before_s) / count * 1e6,
        "http_submit_visits_per_s": visits_per_s,
    }


async def _submit(port: int, count: int) -> list[float]:
    """Milliseconds from when each was due to its answer."""
    free: asyncio.Queue[_Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await _Connection.to(port))
    began_s, times_ms = time.monotonic(), []

    async def submit(number: int) -> None:
        due_s = began_s + number / PER_S
        await asyncio.sleep(due_s - time.monotonic())
        connection = await free.get()
        status, body = await connection.post("/api/v1/runs", {"agent": "asking", "prompt": str(number)})
        times_ms.append((time.monotonic() - due_s) * 1000)
        if status != 201:
            raise BenchFailed(f"a submission was answered with {status}: {body[:200]!r}")
        free.put_nowait(connection)

    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(submit(number) for number in range(count)))
    while not free.empty():
        free.get_nowait().close()
    return times_ms


class _Connection:
    """A connection that is kept open: one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> _Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def post(self, path: str, data: object) -> tuple[int, bytes]:
        """Status and body of the answer."""
        body = json.dumps(data).encode()
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        return _status(head), await self.reader.readexactly(int(sizes[0].partition(b":")[2]))

    async def follow(self, run: str) -> None:
        """Ask for the events of a run. Raises BenchFailed unless they come."""
        self._writer.write(f"GET /api/v1/runs/{run}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        status = _status(await self.reader.readuntil(b"\r\n\r\n"))
        if status != 200:
            raise BenchFailed(f"a listener was answered with {status}")

    def close(self) -> None:
        self._writer.close()


def _status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


# Listeners


def listening(engine: Stack, agents: dict[str, Path], port: int) -> Values:
    """The events of runs that are answered, at LISTENERS listeners."""
    runs = [engine.client.submit(agents["asking"]) for _ in range(LISTENERS)]
    wait_until(lambda: all(run.gates() for run in runs[-10:]), "all ask", TIMEOUT_S)
    late_ms, visits_per_s = beside_load(engine, agents["noop"], lambda: asyncio.run(_listen(port, runs)))
    if len(late_ms) < 2 * ANSWERED:
        raise BenchFailed(f"only {len(late_ms)} events were heard of {ANSWERED} runs")
    percentiles = statistics.quantiles(late_ms, n=100)
    return {
        "sse_late_p99_ms": percentiles[98],
        "sse_late_p50_ms": percentiles[49],
        "sse_late_most_ms": max(late_ms),
        "sse_visits_per_s": visits_per_s,
    }


async def _listen(port: int, runs: list[Run]) -> list[float]:
    """Milliseconds that events after the answers came late."""
    late_ms: list[float] = []
    connections = []
    for run in runs:
        connections.append(await _Connection.to(port))
        await connections[-1].follow(run.id)
    began_ms = time.time() * 1000  # earlier events are history, which a listener gets first
    readers = [asyncio.create_task(_hear(each, began_ms, late_ms)) for each in connections]
    async with asyncio.timeout(TIMEOUT_S):
        began_s = time.monotonic()
        for number, run in enumerate(runs[:ANSWERED]):
            await asyncio.sleep(began_s + number / ANSWERS_PER_S - time.monotonic())
            await asyncio.to_thread(run.answer, "yes")
        await asyncio.gather(*readers[:ANSWERED])  # their streams end with the runs
    for reader, connection in zip(readers, connections, strict=True):
        reader.cancel()
        connection.close()
    return late_ms


async def _hear(connection: _Connection, began_ms: float, late_ms: list[float]) -> None:
    while line := await connection.reader.readline():
        now_ms = time.time() * 1000
        if line.startswith(b"data: "):
            at_ms = json.loads(line[6:])["at_ms"]
            if at_ms > began_ms:
                late_ms.append(now_ms - at_ms)
        elif line == b"0\r\n":  # the last chunk
            return


# The load


def beside_load(engine: Stack, agent: Path, call: Callable[[], T]) -> tuple[T, float]:
    """What a call returns, and the visits per second of the load meanwhile. Raises BenchFailed if there was none left
    before the call was over."""
    batch = engine.client.batch(agent, ({"prompt": str(number)} for number in range(BACKLOG)))
    wait_until(lambda: batch.info().completed, "rows end", TIMEOUT_S)
    before, began_s = batch.info().completed, time.monotonic()
    result = call()
    info, took_s = batch.info(), time.monotonic() - began_s
    if not info.waiting:
        raise BenchFailed("the engine's load was over before the measurement was")
    batch.cancel()
    wait_until(lambda: batch.info().is_over, "the load is cancelled", TIMEOUT_S)
    return result, (info.completed - before) * NODES / took_s
