"""Clients of the HTTP API that send slowly, nothing, or too much: the server stays small, and serves others."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir_console.connections import MOST_WAITING, WAIT_S
from tests.console import PROBLEM, Console, console_of
from tests.processes import RedisServer, Stack
from tests.waiting import wait_until

CONNECTIONS = 3 * MOST_WAITING
HALF = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
MOST_GROWTH_MB = 60
PIECE = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


@pytest.fixture(scope="module")
def console(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    home = tmp_path_factory.mktemp("slow")
    with Stack(redis_server, home, key_prefix="slow", log_format="json") as stack, console_of(stack) as running:
        yield running


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Files enough for the connections of a test."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2 * CONNECTIONS, limits[1]), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def memory_mb(console: Console) -> float:
    status = Path(f"/proc/{console.stack.processes['console'].pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) / 1024


def connected(console: Console, sends: bytes, stack: contextlib.ExitStack) -> socket.socket:
    client = stack.enter_context(socket.create_connection(("127.0.0.1", console.port), timeout=60))
    if sends:
        client.sendall(sends)
    return client


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("sends", [b"", HALF], ids=["nothing", "half a request"])
def test_connections_without_a_request_cost_a_bounded_number_of_them(console: Console, sends: bytes) -> None:
    assert console.get("/health/ready").status == 200
    before = memory_mb(console)
    with contextlib.ExitStack() as stack:
        clients = [connected(console, sends, stack) for _ in range(CONNECTIONS)]
        assert console.get("/health/ready").status == 200
        assert memory_mb(console) - before < MOST_GROWTH_MB
        wait_until(lambda: sum(map(is_closed, clients)) >= CONNECTIONS - MOST_WAITING, "the oldest ones are closed")
        wait_until(lambda: all(map(is_closed, clients)), "none stays without a request", WAIT_S + 60)
    assert console.get("/health/ready").status == 200


def test_headers_that_come_slowly_do_not_hold_a_connection(console: Console) -> None:
    with contextlib.ExitStack() as stack:
        client = connected(console, HALF, stack)

        def is_given_up() -> bool:
            with contextlib.suppress(OSError):
                client.setblocking(True)
                client.sendall(b"x")
            return is_closed(client)

        wait_until(is_given_up, "it had its time", WAIT_S + 60)


def test_a_body_without_end_is_refused_and_costs_no_memory(console: Console) -> None:
    before = memory_mb(console)
    with contextlib.ExitStack() as stack:
        head = b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        client = connected(console, head + b"Content-Type: application/json\r\n\r\n", stack)
        with contextlib.suppress(OSError):
            for _ in range(4_000):
                client.sendall(PIECE)
        assert memory_mb(console) - before < MOST_GROWTH_MB
    assert console.get("/health/ready").status == 200


@pytest.mark.parametrize("sends", [b"what is this\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nA: " + b"x" * 300_000])
def test_what_is_no_http_is_a_problem_document(console: Console, sends: bytes) -> None:
    with contextlib.ExitStack() as stack:
        client = connected(console, b"", stack)
        with contextlib.suppress(ConnectionError):
            client.sendall(sends)
        response = http.client.HTTPResponse(client)
        try:
            response.begin()
            body = json.loads(response.read())
        except ConnectionError:  # the rest of what it was sending was refused by a reset, which overtakes the answer
            assert len(sends) > 200_000
        else:
            assert (response.status, body["type"]) == (400, f"{PROBLEM}bad-request")
    assert console.get("/health/live").status == 200


def test_a_cursor_of_a_thousand_runs_is_a_header_that_fits(console: Console) -> None:
    answer = console.get(f"/runs/{'z' * 12}/events", **{"Last-Event-ID": "x" * 90_000})
    assert (answer.status, answer.problem) == (404, "not-found")
