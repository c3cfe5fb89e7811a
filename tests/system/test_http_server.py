"""The server of the HTTP API: probes, errors, limits, its log, outages of Redis, and its end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import starter
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack
from tests.secured import free_port
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def console(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    home = tmp_path_factory.mktemp("http")
    with (
        Stack(redis_server, home, key_prefix="http", log_level="info", log_format="json") as stack,
        console_of(stack, SLEIPNIR_CONSOLE_BODY_BYTES="4096") as running,
    ):
        yield running


def test_probes_answer_and_the_health_of_the_deployment_is_that_of_doctor(console: Console) -> None:
    assert console.get("/health/live").data["status"] == "ok"
    assert console.get("/health/ready").status == 200
    health = console.get("/health").data
    with console.stack.client() as client:
        assert health["version"] == client.health().version
    assert health["workers"] == []


def test_the_document_of_the_interface_is_the_one_that_is_checked_in(console: Console) -> None:
    written = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text())
    assert console.get("/openapi.json").data == written


def test_what_does_not_exist_is_a_problem_document(console: Console) -> None:
    answer = console.get("/nothing")
    assert (answer.status, answer.problem) == (404, "not-found")
    assert answer.data["instance"] == f"urn:sleipnir:request:{answer.headers['X-Request-ID']}"
    answer = console.request("DELETE", "/health")
    assert (answer.status, answer.problem, answer.headers["Allow"]) == (405, "method-not-allowed", "GET")


def test_a_request_has_the_id_of_its_caller_if_that_is_a_plain_word(console: Console) -> None:
    assert console.get("/health/live", **{"X-Request-ID": "mine-1"}).headers["X-Request-ID"] == "mine-1"
    assert console.get("/health/live", **{"X-Request-ID": 'a"b'}).headers["X-Request-ID"] not in ('a"b', "")


def test_the_log_has_a_line_for_each_request_without_query_and_headers(console: Console) -> None:
    headers = {"X-Request-ID": "logged-1", "Authorization": "Bearer s3cret-token", "Cookie": "session=s3cret-cookie"}
    console.get("/health?token=s3cret-query", **headers)
    line = wait_until(
        lambda: next((x for x in console.stack.log("console").splitlines() if '"logged-1"' in x), None), "it is logged"
    )
    logged = json.loads(line)
    assert (logged["path"], logged["status"], logged["method"]) == ("/api/v1/health", 200, "GET")
    assert logged["by"] == "anonymous@127.0.0.1 (api)"
    assert "s3cret" not in console.stack.log("console")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1"])
def test_a_name_that_another_site_points_here_is_refused(console: Console, host: str) -> None:
    answer = console.get("/health", Host=host)
    assert (answer.status, answer.problem) == (403, "cross-origin")


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_the_page_of_another_site_changes_nothing(console: Console, headers: dict[str, str]) -> None:
    answer = console.post("/health/live", **headers)
    assert (answer.status, answer.problem) == (403, "cross-origin")
    own = console.post("/health/live", Origin=f"http://127.0.0.1:{console.port}")
    assert own.status == 405


def test_a_large_body_is_refused_before_it_is_read(console: Console) -> None:
    with socket.create_connection(("127.0.0.1", console.port), timeout=60) as client:
        client.sendall(b"POST /api/v1/health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
        response = http.client.HTTPResponse(client)
        response.begin()
        assert (response.status, json.loads(response.read())["limit_bytes"]) == (413, 4096)


def test_the_server_answers_503_while_redis_is_away_and_recovers_by_itself(tmp_path: Path) -> None:
    server = RedisServer()
    try:
        with Stack(server, tmp_path, log_format="json") as stack, console_of(stack) as console:
            assert console.get("/health/ready").status == 200
            server.kill()
            answer = console.get("/health")
            assert (answer.status, answer.problem) == (503, "store-unavailable")
            assert int(answer.headers["Retry-After"]) > 0
            assert server.socket not in answer.body.decode(), "addresses of the deployment are for its log"
            assert console.get("/health/ready").status == 503
            assert console.get("/health/live").status == 200
            server.start()
            wait_until(lambda: console.get("/health").status == 200, "it has recovered")
    finally:
        server.stop()


def test_a_server_starts_while_redis_is_away(tmp_path: Path) -> None:
    server = RedisServer()
    try:
        with Stack(server, tmp_path, log_format="json") as stack:
            server.kill()
            with console_of(stack) as console:
                assert console.get("/health/ready").problem == "store-unavailable"
                server.start()
                wait_until(lambda: console.get("/health/ready").status == 200, "it has connected")
    finally:
        server.stop()


def test_a_stop_signal_ends_it_with_success(console: Console) -> None:
    with console_of(console.stack, "other") as other:
        idle = other.connection()
        idle.request("GET", "/api/v1/health/live")
        idle.getresponse().read()
        assert other.stop() == 0
        idle.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.com"])
def test_an_address_that_others_can_reach_is_refused(console: Console, host: str) -> None:
    found = console.stack.sleipnir("console", "--host", host)
    assert found.returncode == 1
    assert "is not an address of this machine alone" in str(found.stderr)
    assert "Traceback" not in str(found.stderr)


def test_an_address_that_is_taken_is_named(console: Console) -> None:
    found = console.stack.sleipnir("console", "--port", str(console.port))
    assert found.returncode == 1
    assert f"cannot listen on 127.0.0.1:{console.port}: Address already in use" in str(found.stderr)


def test_up_serves_the_api_beside_a_private_stack(tmp_path: Path) -> None:
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLEIPNIR_")}
    env |= {"SLEIPNIR_HOME": str(tmp_path / "home"), "SLEIPNIR_CONSOLE_PORT": str(port)}
    with (tmp_path / "up.log").open("wb") as log, Path(os.devnull).open("rb") as nothing:
        command = [sys.executable, "-m", "sleipnir", "up", "--console", "--llm", "0"]
        running = starter.start(command, env, nothing, log, log)

    def is_ready() -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/health/ready", timeout=60) as answer,
        ):
            return bool(answer.status == 200)
        return False

    try:
        wait_until(is_ready, "the HTTP API of the stack answers")
        running.terminate()
        assert running.wait(60) == 0
        assert not is_ready()
        assert f"sleipnir: console at http://127.0.0.1:{port}\n" in (tmp_path / "up.log").read_text()
    finally:
        running.kill()
        running.wait()


def test_the_command_says_what_to_install_without_the_extra(console: Console) -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None; from sleipnir.cli import main; sys.argv[1:] = ['console'];"
        "sys.exit(main())"
    )
    found = starter.run([sys.executable, "-c", code], console.stack.environment())
    assert found.returncode == 2
    assert "pip install '.[console]'" in str(found.stderr)
