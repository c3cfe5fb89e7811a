#!/usr/bin/env python3
"""A drill of the HTTP API: one body that is far too large, and very many connections that send nothing.

    python ops/idle_clients.py [--connections 10000] [--body-mb 1024]

A server first gets a body in chunks, as much of it as it takes, while others ask for its health. Then connections are
opened that send nothing, and connections that send half a request; with all of them open, others submit runs. The
memory of the server must not grow by more than `MOST_GROWTH_MB`, and each request of the others must be answered
within `MOST_WAIT_S`.

Prints a line for each part; exit code 1 if one does not hold. tests/system/test_http_slow_clients.py does the same with
smaller numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.console import Console, console_of  # noqa: E402
from tests.processes import CALM, RedisServer, Stack, write_agent  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

MOST_GROWTH_MB: Final = 60.0
MOST_WAIT_S: Final = 5.0
LEAST_REQUESTS: Final = 20
PER_S: Final = 1_000
"""Connections that are opened in a second: what is drilled is how many are open, not how fast a server accepts."""
CHUNK: Final = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
HALF: Final = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
HEAD: Final = (
    b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: application/json\r\n\r\n"
)
AGENT: Final = "name: asking\nstart: done\nnodes:\n  done: {type: end, output: x}\n"


def memory_mb(console: Console) -> float:
    """Memory of the server that is its own."""
    status = Path(f"/proc/{console.stack.processes['console'].pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) / 1024


class Others:
    """Requests of other clients, one after the other, for as long as the drill goes on. `most_mb` is the memory of the
    server that was seen between them."""

    def __init__(self, console: Console) -> None:
        self._console, self._stop = console, threading.Event()
        self.waits_s: list[float] = []
        self.wrong: list[str] = []
        self.most_mb = 0.0
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        while not self._stop.wait(0.05):
            began_s = time.monotonic()
            try:
                status = self._console.post("/runs", {"agent": "asking"}).status
            except OSError as error:
                self.wrong.append(repr(error))
            else:
                if status != 201:
                    self.wrong.append(f"status {status}")
            self.waits_s.append(time.monotonic() - began_s)
            self.most_mb = max(self.most_mb, memory_mb(self._console))

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


def drilled(console: Console, what: str, part: Callable[[], str]) -> bool:
    """Whether the server stayed small and served others during one part, which says what it has done."""
    before_mb, others = memory_mb(console), Others(console)
    with others.asking():
        done = part()
        wait_until(lambda: len(others.waits_s) >= LEAST_REQUESTS, "others are answered", 60)
    growth_mb = others.most_mb - before_mb
    longest_s = max(others.waits_s, default=0.0)
    holds = bool(others.waits_s) and not others.wrong and growth_mb <= MOST_GROWTH_MB and longest_s <= MOST_WAIT_S
    print(f"{what}: {done}")
    print(
        f"    memory {before_mb:.0f} MB, {growth_mb:+.0f} MB; {len(others.waits_s)} requests of others, the longest "
        f"{longest_s:.2f} s, {len(others.wrong)} wrong {others.wrong[:3] or ''}: {'held' if holds else 'FAILED'}",
        flush=True,
    )
    return holds


def large_body(console: Console, size_mb: int) -> str:
    """Send a body in chunks until the server closes the connection: it reads on for some time, and keeps nothing."""
    sent = 0
    with socket.create_connection(("127.0.0.1", console.port), timeout=60) as client:
        client.sendall(HEAD)
        with contextlib.suppress(OSError):
            for _ in range(size_mb * 16):
                client.sendall(CHUNK)
                sent += len(CHUNK)
    return f"{sent / 2**20:.1f} of {size_mb} MB were sent"


def declared_body(console: Console, size_mb: int) -> str:
    """Say the size of the body first."""
    head = HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % (size_mb * 2**20))
    with socket.create_connection(("127.0.0.1", console.port), timeout=60) as client:
        client.sendall(head)
        status = client.recv(100).split(b"\r\n", 1)[0].decode()
    return f"{size_mb} MB were announced and answered with {status!r}"


def idle(console: Console, count: int, sends: bytes) -> str:
    """Open connections and leave them open, until the server has said ten times that it is ready."""
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        for number in range(count):
            time.sleep(max(0.0, began_s + number / PER_S - time.monotonic()))
            client = stack.enter_context(socket.create_connection(("127.0.0.1", console.port), timeout=60))
            with contextlib.suppress(ConnectionError):  # it may be closed at once: so many are open
                client.sendall(sends)
        for _ in range(10):
            if (status := console.get("/health/ready").status) != 200:
                raise AssertionError(f"the server is not ready: {status}")
    return f"{count:,} connections were opened in {time.monotonic() - began_s:.0f} s"


def main() -> int:
    """All parts, on a stack of their own."""
    parser = argparse.ArgumentParser(description="Clients of the HTTP API that send too much or nothing.")
    parser.add_argument("--connections", type=int, default=10_000, help="of each kind (default: 10,000)")
    parser.add_argument("--body-mb", type=int, default=1_024, help="size of the large body (default: 1,024)")
    options = parser.parse_args()
    needed, (_, most) = options.connections + 200, resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < needed:
        parser.error(f"{needed:,} open files are needed, and {most:,} are allowed")
    redis = RedisServer()
    try:
        with tempfile.TemporaryDirectory(prefix="idle-") as name:
            agents = Path(name) / "agents"
            write_agent(agents / "asking", AGENT)
            with (
                Stack(redis, Path(name) / "home", **{**CALM, "agents_dir": agents, "log_level": "info"}) as stack,
                console_of(stack) as console,
            ):
                resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
                console.post("/runs", {"agent": "asking"})
                size, count = options.body_mb, options.connections
                held = [
                    drilled(console, "a body in chunks", lambda: large_body(console, size)),
                    drilled(console, "a body with its size", lambda: declared_body(console, size)),
                    drilled(console, "connections that send nothing", lambda: idle(console, count, b"")),
                    drilled(console, "connections with half a request", lambda: idle(console, count, HALF)),
                ]
    finally:
        redis.stop()
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
