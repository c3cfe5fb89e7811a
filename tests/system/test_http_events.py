"""The events of runs as server-sent events: from the beginning, resumed, shared by listeners, and cut off."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sleipnir.testing import ModelServer
from tests.console import TIMEOUT_S, Console, console_of
from tests.processes import CALM, RedisServer, Stack, write_agent
from tests.waiting import wait_until

TALKING = """
name: talking
version: sleipnir/1
start: say
nodes:
  say: {type: llm, model: "openai:gpt-4o-mini", prompt: "hi", next: sure}
  sure: {type: approval, question: "sure?", options: [yes], routes: {yes: done}, on_other: done}
  done: {type: end, output: "{{output}}"}
"""
ANSWER = "one two three four five six seven eight"


class Event(NamedTuple):
    """`id` is None for an event `problem`."""

    id: str | None
    type: str
    data: Any


@pytest.fixture(scope="module")
def console(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    folder = tmp_path_factory.mktemp("events")
    write_agent(folder / "agents" / "talking", TALKING)
    write_agent(folder / "agents" / "asking", TALKING.replace("start: say", "start: sure"))
    settings = {"key_prefix": "events", "agents_dir": folder / "agents", "log_format": "json", **CALM}
    with ModelServer([ANSWER] * 100) as server, Stack(redis_server, folder / "home", **settings) as stack:
        stack.start_scheduler()
        stack.start_worker("worker", "scripts,functions,llm", env=server.env(), ready=False)
        with console_of(stack) as running:
            stack.wait_for_worker("worker", 240)
            yield running


def submitted(console: Console) -> str:
    return str(console.post("/runs", {"agent": "talking"}).data["id"])


def answered(console: Console, run: str) -> None:
    gates = wait_until(lambda: console.get(f"/runs/{run}/gates").data, "the person is asked")
    assert console.post(f"/gates/{run}/{gates[0]['seq']}/answer", {"answer": "yes"}).status == 200


@contextlib.contextmanager
def listening(console: Console, run: str, query: str = "", **headers: str) -> Iterator[Iterator[Event]]:
    connection = console.connection()
    try:
        connection.request("GET", f"/api/v1/runs/{run}/events{query}", headers=headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield read(response)
    finally:
        connection.close()


def read(response: Any) -> Iterator[Event]:
    fields: dict[str, str] = {}
    for raw in response:
        line = raw.decode().removesuffix("\n")
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            yield Event(fields.get("id"), fields["event"], json.loads(fields["data"]))
            fields = {}


def test_events_and_texts_come_as_they_happen_and_the_stream_ends_with_the_run(console: Console) -> None:
    run = submitted(console)
    with listening(console, run) as events:
        seen = []
        for event in events:
            seen.append(event)
            if event.type == "visit_closed" and event.data["data"]["node"] == "say":
                answered(console, run)
    assert "".join(event.data["data"]["text"] for event in seen if event.type == "text") == ANSWER
    assert seen[0].type == "run_started"
    assert seen[-1].type == "run_ended"
    assert {event.data["mode"] for event in seen} == {"messages", "updates"}


def test_a_listener_resumes_after_the_last_event_that_it_has_and_misses_nothing(console: Console) -> None:
    run = submitted(console)
    with listening(console, run) as events:
        first = [next(events) for _ in range(3)]
    answered(console, run)
    wait_until(lambda: console.get(f"/runs/{run}").data["run"]["status"] == "completed", "it has ended")
    with listening(console, run) as events:
        whole = list(events)
    for known in range(1, len(whole)):
        with listening(console, run, **{"Last-Event-ID": str(whole[known - 1].id)}) as events:
            assert list(events) == whole[known:]
    assert [event.id for event in whole[:3]] == [event.id for event in first]
    over = console.get(f"/runs/{run}/events", **{"Last-Event-ID": str(whole[-1].id)})
    assert (over.status, over.body) == (204, b""), "a browser does not connect again"


def test_modes_are_chosen_and_what_is_wrong_is_refused_before_the_stream_begins(console: Console) -> None:
    run = submitted(console)
    answered(console, run)
    with listening(console, run, "?mode=updates&children=true") as events:
        seen = list(events)
    assert {event.type for event in seen} >= {"run_started", "visit_closed", "run_ended"}
    assert "text" not in {event.type for event in seen}
    assert all(event.data["run"] == run for event in seen)
    assert console.get(f"/runs/{run}/events", **{"Last-Event-ID": "x"}).problem == "refused"
    assert console.get(f"/runs/{run}/events?mode=all").problem == "invalid-request"
    assert console.get(f"/runs/{'z' * 12}/events").problem == "not-found"


def test_one_listener_that_reads_nothing_holds_no_other(console: Console) -> None:
    run = submitted(console)
    deaf = socket.create_connection(("127.0.0.1", console.port), timeout=TIMEOUT_S)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    deaf.sendall(f"GET /api/v1/runs/{run}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    with contextlib.closing(deaf), listening(console, run) as first, listening(console, run) as second:
        assert next(first).type == next(second).type == "run_started"
        answered(console, run)
        ends = [list(first), list(second)]
    assert ends[0] == ends[1]
    assert ends[0][-1].type == "run_ended"


def test_more_runs_are_followed_than_a_pool_of_redis_has_connections(console: Console) -> None:
    with contextlib.ExitStack() as stack, console.stack.client() as client:
        for _ in range(130):
            run = client.submit("asking").id
            assert next(stack.enter_context(listening(console, run))).type == "run_started"
        assert console.get("/health").status == 200


def test_streams_end_when_the_server_stops_and_go_on_at_another(console: Console) -> None:
    run = submitted(console)
    with console_of(console.stack, "second") as second, listening(second, run) as events:
        begun = [next(events)]
        assert second.stop() == 0
        begun += list(events)
    assert begun[0].type == "run_started"
    answered(console, run)
    with listening(console, run, **{"Last-Event-ID": str(begun[-1].id)}) as events:
        rest = list(events)
    assert rest[-1].type == "run_ended"
    with listening(console, run) as events:
        assert [event.data for event in events] == [event.data for event in [*begun, *rest]]


def test_a_stream_survives_a_restart_of_redis(tmp_path: Path) -> None:
    server = RedisServer()
    agents = tmp_path / "agents"
    write_agent(agents / "asking", TALKING.replace("start: say", "start: sure"))
    try:
        with (
            Stack(server, tmp_path / "home", agents_dir=agents, log_format="json") as stack,
            console_of(stack) as console,
        ):
            stack.start_scheduler()
            run = str(console.post("/runs", {"agent": "asking"}).data["id"])
            with listening(console, run) as events:
                assert next(events).type == "run_started"
                server.kill()
                assert console.get(f"/runs/{run}").problem == "store-unavailable"
                server.start()
                wait_until(lambda: console.get(f"/runs/{run}").status == 200, "it has recovered")
                answered(console, run)
                assert [event.type for event in events][-1] == "run_ended"
    finally:
        server.stop()
