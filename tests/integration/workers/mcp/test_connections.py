"""Connections to MCP servers: real servers, as child processes and over HTTP, that work, die, hang and grow."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from sleipnir.tools.mcp_config import McpServer, RemoteServer, StdioServer
from sleipnir_workers.execution.execution import VisitLost
from sleipnir_workers.mcp import Connections, McpFailed, connection, server_process
from tests.integration.workers.mcp.servers import HERE, lab_on_http, lab_on_stdio, plain
from tests.waiting import is_running, wait_until

KEY = "sk-of-this-worker"


@pytest.fixture(scope="module")
def lab() -> Iterator[tuple[Connections, StdioServer]]:
    """The SDK's server on stdio, which takes long to start, for the tests that leave it as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        connections = Connections()
        yield connections, lab_on_stdio()
        connections.close()


@pytest.fixture
def connections() -> Iterator[Connections]:
    opened = Connections()
    yield opened
    opened.close()


def text_of(result: dict[str, Any]) -> str:
    (content,) = result["content"]
    return str(content["text"])


def pid_of(connections: Connections, server: StdioServer) -> int:
    return int(text_of(connections.invoke(server, "pid", {})))


# The three functions


@pytest.mark.conformance("X17")
def test_search_finds_the_tool_by_what_it_does(lab: tuple[Connections, StdioServer]) -> None:
    connections, server = lab
    assert connections.search(server, "sum of two numbers", 1) == [
        {"name": "add", "server": "lab", "description": "Add two numbers and give their sum."}
    ]


@pytest.mark.conformance("X17")
def test_describe_gives_the_schema_of_the_arguments(lab: tuple[Connections, StdioServer]) -> None:
    connections, server = lab
    described = connections.describe(server, "add")
    assert described["properties"]["tool"] == {"type": "string"}
    arguments = described["properties"]["arguments"]
    assert {name: schema["type"] for name, schema in arguments["properties"].items()} == {
        "a": "integer",
        "b": "integer",
    }
    assert arguments["required"] == ["a", "b"]


@pytest.mark.conformance("X17")
def test_invoke_gives_the_result_of_the_call(lab: tuple[Connections, StdioServer]) -> None:
    connections, server = lab
    assert connections.invoke(server, "add", {"a": 2, "b": 3}) == {
        "content": [{"type": "text", "text": "5"}],
        "structuredContent": {"result": 5},
        "isError": False,
    }


def test_a_tool_that_fails_is_a_result_and_not_a_failure(lab: tuple[Connections, StdioServer]) -> None:
    connections, server = lab
    assert connections.invoke(server, "broken", {})["isError"] is True
    assert "validation error" in text_of(connections.invoke(server, "add", {"a": "x"}))


def test_binary_content_stays_base64(lab: tuple[Connections, StdioServer]) -> None:
    connections, server = lab
    (content,) = connections.invoke(server, "picture", {})["content"]
    assert content["type"] == "image" and content["mimeType"] == "image/png"
    assert base64.b64decode(content["data"]) == b"\x89PNG and so on"


def test_a_tool_that_is_not_there_is_not_found(lab: tuple[Connections, StdioServer]) -> None:
    connections, server = lab
    for ask in (connections.describe, lambda *where: connections.invoke(*where, {})):
        with pytest.raises(McpFailed) as raised:
            ask(server, "ad")
        assert str(raised.value) == "ad not found in lab MCP server catalog"


def test_a_server_gets_the_variables_of_mcp_json_and_no_key_of_the_worker(lab: tuple[Connections, StdioServer]) -> None:
    connections, server = lab
    seen = connections.invoke(server, "environment", {})["structuredContent"]
    assert seen["GIVEN"] == "yes" and seen["PATH"] == os.environ["PATH"]
    assert KEY not in seen.values()
    assert set(seen) <= {"GIVEN", "PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL"} | {
        name for name in seen if name.startswith("LC_")
    }


def test_sixteen_threads_share_one_process(lab: tuple[Connections, StdioServer]) -> None:
    connections, server = lab

    def work(number: int) -> tuple[str, str]:
        added = connections.invoke(server, "add", {"a": number, "b": 1})
        return text_of(added), text_of(connections.invoke(server, "pid", {}))

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(work, range(64)))
    assert [added for added, _ in results] == [str(number + 1) for number in range(64)]
    assert len({pid for _, pid in results}) == 1


def test_tools_that_the_server_adds_are_found(lab: tuple[Connections, StdioServer]) -> None:
    connections, server = lab
    connections.invoke(server, "grow", {})
    assert text_of(connections.invoke(server, "sprout", {})) == "new"
    wait_until(lambda: connections.search(server, "grew later", 1)[0]["name"] == "sprout", "the catalogue is a new one")


def test_an_older_protocol_is_spoken_too(connections: Connections) -> None:
    assert connections.count_tools(plain()) == 7  # on four pages
    assert json.loads(text_of(connections.invoke(plain(), "echo", {"value": "ö\n"}))) == {"value": "ö\n"}
    connections.invoke(plain(), "grow", {})
    wait_until(lambda: connections.search(plain(), "late", 1), "the catalogue is a new one")


def test_what_a_server_prints_besides_messages_is_passed_over(connections: Connections) -> None:
    assert connections.count_tools(plain("prints")) == 7


def test_a_megabyte_on_stderr_does_not_block_a_server(connections: Connections) -> None:
    pids = {text_of(connections.invoke(plain(), "stderr", {})) for _ in range(3)}
    assert len(pids) == 1


# Servers that die, hang or are missing


def test_a_server_that_dies_at_the_third_call_is_reported_and_started_again(
    lab: tuple[Connections, StdioServer],
) -> None:
    connections, server = lab
    pid = pid_of(connections, server)
    assert [text_of(connections.invoke(server, "third_time", {})) for _ in range(2)] == ["1", "2"]
    with pytest.raises(McpFailed) as raised:
        connections.invoke(server, "third_time", {})
    assert str(raised.value).startswith(
        "MCP server 'lab' died during the call, and whether it did what it was asked is not known: "
        "it exited with code 7; its last lines:\n"
    )
    assert str(raised.value).endswith("\ncannot count to three")
    assert text_of(connections.invoke(server, "third_time", {})) == "1"
    assert pid_of(connections, server) != pid


def test_an_idempotent_call_is_sent_again_once(connections: Connections) -> None:
    with pytest.raises(McpFailed) as raised:
        connections.invoke(plain(), "read_and_die", {"value": "thirst"})
    assert str(raised.value) == (
        "MCP server 'plain' died twice: it exited with code 3; its last lines:\nabout to die of thirst"
    )


def test_a_server_that_was_killed_between_two_calls_is_started_again(connections: Connections) -> None:
    first = int(text_of(connections.invoke(plain(), "stderr", {})))
    os.kill(first, 9)
    wait_until(lambda: not Path(f"/proc/{first}").exists(), "the end was noticed and the process reaped")
    assert int(text_of(connections.invoke(plain(), "stderr", {}))) != first


def test_a_server_that_dies_at_its_start_is_reported_with_the_reason_and_without_secrets(
    connections: Connections,
) -> None:
    server = replace(plain("dies at start"), secrets=frozenset({"hunter2-hunter2"}))
    with pytest.raises(McpFailed) as raised:
        connections.search(server, "x")
    assert str(raised.value) == (
        "MCP server 'plain' could not be started: it exited with code 1; its last lines:\n"
        "no database at db.example:5432, password is [redacted]"
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"command": "no-such-command"}, "its command 'no-such-command' was not found on the PATH of this worker"),
        ({"command": "./no"}, "its command './no' does not exist on this worker, or cannot be executed"),
        ({"cwd": HERE / "no"}, f"its directory '{HERE / 'no'}' does not exist on this worker"),
        ({"args": ("-c", "\0")}, "its command cannot be started: embedded null byte"),
    ],
)
def test_a_server_that_cannot_be_started_is_reported_with_the_reason(
    connections: Connections, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(McpFailed) as raised:
        connections.invoke(replace(plain(), **change), "echo", {})
    assert str(raised.value) == f"MCP server 'plain' could not be started: {reason}"


def test_a_server_that_never_answers_is_given_up_and_ended() -> None:
    connections = Connections(start_s=0.3)
    with pytest.raises(McpFailed) as raised:
        connections.search(plain("silent"), "x")
    assert str(raised.value) == "MCP server 'plain' could not be started: it did not answer within 0.3 s"
    connections.close()


@pytest.mark.timeout(60)
def test_a_result_is_checked_against_its_tool_s_own_schema_in_bounded_time(connections: Connections) -> None:
    """Finding S1, elsewhere: a server brings the schema as well as the result."""
    server = plain("backtracks")
    assert connections.invoke(server, "echo", {"value": "aaa"})["structuredContent"] == {"value": "aaa"}
    with pytest.raises(McpFailed, match=r"Invalid structured content returned by tool echo: \$.value: 'aaa"):
        connections.invoke(server, "echo", {"value": "a" * 100 + "!"})


def test_a_list_of_tools_without_an_end_is_given_up(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_TOOLS", 200)
    with pytest.raises(McpFailed) as raised:
        connections.search(plain("endless"), "x")
    assert str(raised.value) == "MCP server 'plain' could not be started: it lists more than 200 tools"


def test_a_call_that_takes_too_long_fails_and_a_server_that_answers_else_is_kept(
    lab: tuple[Connections, StdioServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PROBE_S", 30.0)  # however busy this machine is
    connections, server = lab
    pid = pid_of(connections, server)
    with pytest.raises(McpFailed) as raised:
        connections.invoke(server, "hang", {}, timeout_s=0.2)
    assert str(raised.value) == "MCP server 'lab' did not answer a call of 'hang' within 0.2 s"
    assert pid_of(connections, server) == pid


def test_a_server_that_answers_nothing_any_more_is_replaced(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PROBE_S", 0.2)
    monkeypatch.setattr(server_process, "GRACE_S", 0.1)
    first = int(text_of(connections.invoke(plain(), "stderr", {})))
    os.kill(first, 19)  # SIGSTOP
    with pytest.raises(McpFailed, match=r"did not answer a call of 'echo' within 0\.2 s"):
        connections.invoke(plain(), "echo", {}, timeout_s=0.2)
    assert int(text_of(connections.invoke(plain(), "stderr", {}))) != first
    wait_until(lambda: not is_running(first), "the one that hung is gone")


def test_a_lost_visit_stops_waiting(connections: Connections) -> None:
    connections.search(plain(), "x")
    lost = threading.Event()
    timer = threading.Timer(0.05, lost.set)
    timer.start()
    with pytest.raises(VisitLost):
        connections.invoke(plain(), "sleep", {}, lost=lost)
    timer.join()
    assert text_of(connections.invoke(plain(), "echo", {})) == "{}"


# What is left over: nothing


def test_an_idle_server_is_ended_and_started_again_when_it_is_asked() -> None:
    connections = Connections(idle_s=0.05)
    first = int(text_of(connections.invoke(plain(), "stderr", {})))
    wait_until(lambda: not is_running(first), "the idle server has ended")
    assert int(text_of(connections.invoke(plain(), "stderr", {}))) != first
    connections.close()


@pytest.mark.parametrize("fault", ["none", "stays"])
def test_closing_ends_servers_and_all_they_started(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "GRACE_S", 0.2)
    connections = Connections()
    server = int(text_of(connections.invoke(plain(fault), "stderr", {})))
    grandchild = int(text_of(connections.invoke(plain(fault), "spawn", {})))
    connections.close()
    connections.close()
    assert not is_running(server)
    wait_until(lambda: not is_running(grandchild), "the grandchild is dead")
    with pytest.raises(McpFailed, match="this worker is stopping"):
        connections.invoke(plain(fault), "echo", {})


def test_closing_lets_go_of_those_who_wait() -> None:
    connections = Connections()
    connections.search(plain(), "x")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(connections.invoke, server, "sleep", {}) for server in (plain(), plain("silent"))]
        wait_until(lambda: sum(s.users for s in list(connections._all)) == 2, "both wait")
        connections.close()
        for each in waiting:
            assert isinstance(each.exception(10), McpFailed)


WORKER = """
import sys
from pathlib import Path
from sleipnir.tools.mcp_config import StdioServer
from sleipnir_workers import mcp
server = StdioServer("s", command=sys.executable, cwd=Path(sys.argv[1]), args=("-I", "-S", "plain_server.py", "stays"))
for tool in ("stderr", "spawn"):
    print(mcp.process_connections().invoke(server, tool, {})["content"][0]["text"], flush=True)
sys.stdin.read()
"""


def test_servers_die_with_a_worker_that_is_killed() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(HERE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin and worker.stdout
    pids = [int(worker.stdout.readline()) for _ in range(2)]
    assert all(is_running(pid) for pid in pids)
    worker.kill()
    worker.wait()
    worker.stdin.close()
    worker.stdout.close()
    wait_until(lambda: not any(is_running(pid) for pid in pids), "server and grandchild died with the worker")


# Over HTTP


@pytest.mark.conformance("X17")
@pytest.mark.parametrize("sse", [False, True], ids=["streamable", "sse"])
def test_the_three_functions_over_http(connections: Connections, sse: bool) -> None:
    with lab_on_http(sse=sse) as server:
        assert [found["name"] for found in connections.search(server, "sum of two numbers", 1)] == ["add"]
        assert connections.describe(server, "add")["properties"]["arguments"]["required"] == ["a", "b"]
        assert connections.invoke(server, "add", {"a": 2, "b": 3})["structuredContent"] == {"result": 5}
        connections.close()


def test_five_hundred_tools_are_searched_and_never_all_shown(connections: Connections) -> None:
    with lab_on_http(many=500) as server:
        assert connections.count_tools(server) > 500
        assert [found["name"] for found in connections.search(server, "item 321", 1)] == ["item_321"]
        assert len(connections.search(server, "items")) == 8
        assert len(connections.search(server, "items", 1000)) == 20
        connections.close()


def test_an_http_server_that_comes_back_is_found_again(connections: Connections) -> None:
    with lab_on_http() as server:
        assert text_of(connections.invoke(server, "add", {"a": 1, "b": 1})) == "2"
        port = urlsplit(server.url).port or 0
    with pytest.raises(McpFailed) as raised:
        connections.invoke(server, "add", {"a": 1, "b": 1})
    assert str(raised.value) == (
        f"MCP server 'web' could not be reached at 127.0.0.1:{port}: All connection attempts failed"
    )
    with lab_on_http(port):
        assert text_of(connections.invoke(server, "add", {"a": 2, "b": 2})) == "4"
        connections.close()


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with a status, and remembers one header."""

    status = 401
    seen: str | None = None

    def do_POST(self) -> None:
        type(self).seen = self.headers["X-Key"]
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_refusing_server_is_reported_by_its_status_and_gets_the_headers(
    connections: Connections, status: int
) -> None:
    handler = type("Handler", (Refusing,), {"status": status})
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        place = f"127.0.0.1:{http.server_port}"
        server: McpServer = RemoteServer("web", url=f"http://{place}/mcp?k=secret", headers={"X-Key": "abc"})
        with pytest.raises(McpFailed) as raised:
            connections.invoke(server, "add", {})
        http.shutdown()
        thread.join()
    assert str(raised.value) == f"MCP server 'web' could not be reached at {place}: HTTP status {status}"
    assert handler.seen == "abc"
