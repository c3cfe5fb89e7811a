"""The same scenarios with a client of Redis and with one of the HTTP API of a real server, and what the latter must
survive: restarts of the server, lost answers, a Redis that is away."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sleipnir import AsyncClient, Client
from sleipnir.batches.rows import read
from sleipnir.client.http.connections import ApiRequest
from sleipnir.client.scheduled_rows import ScheduleRows
from sleipnir.errors import (
    AgentNotFound,
    BatchNotFound,
    GateAnswered,
    GateClaimed,
    GateError,
    GraphError,
    RunNotFound,
    ScheduleNotFound,
    ServerFailed,
    StoreUnavailable,
    UsageError,
)
from sleipnir.runs.actor import Actor
from tests.console import Console, console_of
from tests.processes import CALM, RedisServer, Stack, write_agent
from tests.system.test_http_api import ASKING, FAILING, HOSTILE, STEPS, WORK
from tests.waiting import wait_until

WAIT_S = 60.0
INTERRUPTING = """
name: interrupting
version: sleipnir/1
start: ask
nodes:
  ask: {type: function, call: "steps.py:ask", next: done}
  done: {type: end, output: "{{said}}"}
"""
ASK = """
from sleipnir import interrupt


def ask(state):
    answer = interrupt({"question": "how many?"})
    return {"said": f"{answer['count']} of {answer['what']}"}
"""


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("clients")
    agents = folder / "agents"
    write_agent(agents / "asking", ASKING, steps_py=STEPS)
    write_agent(agents / "failing", FAILING, steps_py=STEPS)
    write_agent(agents / "interrupting", INTERRUPTING, steps_py=ASK)
    write_agent(agents / "work", WORK, work_sh='printf \'{"where": "here"}\'\n')
    write_agent(agents / "broken", HOSTILE)
    with Stack(redis_server, folder / "home", key_prefix="clients", agents_dir=agents, **CALM) as running:
        running.start_scheduler()
        running.start_worker()
        yield running


@pytest.fixture(scope="module")
def console(stack: Stack) -> Iterator[Console]:
    with console_of(stack) as running:
        yield running


def url(console: Console) -> str:
    return f"http://127.0.0.1:{console.port}"


@pytest.fixture(params=["redis", "http"])
def client(request: pytest.FixtureRequest, stack: Stack, console: Console) -> Iterator[Client]:
    with Client(stack.settings) if request.param == "redis" else Client(url(console)) as opened:
        yield opened


def asked(run: Any) -> Any:
    (gate,) = wait_until(run.gates, "the person is asked", WAIT_S)
    return gate


def test_a_run_is_submitted_found_answered_and_looked_back_at(client: Client) -> None:
    run = client.submit("asking", "Ann", tags={"who": "ann"})
    assert client.run(run.id[:8]).id == run.id
    gate = asked(run)
    assert (gate.question, gate.options, gate.address) == ("sure?", ("yes", "no"), "sure")
    assert gate in client.gates() and client.gate_count() >= 1
    assert [info.id for info in run.active()] == [run.id]
    assert run.answer("yes") is None
    info = run.wait(WAIT_S)
    assert (info.status, run.output, run.error) == ("completed", "hello Ann", None)
    assert info.tags == {"who": "ann"} and info.visits == ()
    found = client.runs(10, {"completed"}, agents=["asking"], tags={"who": "ann"})
    assert run.id in [each.id for each in found]
    assert client.run_count({"completed"}) >= 1
    assert client.run_counts().counts["completed"] >= 1
    history = run.history()
    assert [step.node for step in history if step.ok] == [None, "greet", "sure", "done"]
    assert run.history(limit=2) == history[:2] and run.history(after=history[1].step) == history[2:]
    assert run.result(WAIT_S)["greeting"] == "hello Ann"
    assert "greeting" not in run.state_at(0) and run.state_at(1)["greeting"] == "hello Ann"
    assert run.state_difference(0, 1).added["greeting"] == "hello Ann"
    assert [step.node for step in run.trace().steps] == ["greet", "sure", "done"]
    assert run.tree().info == run.info() and run.lineage().id == run.id
    assert run.late_results() == [] and run.execution_errors() == []
    answered = run.answered(gate.seq)
    assert answered is not None and answered.answer == "yes"
    assert not run.missing().scheduler
    events = list(run.stream(["updates", "events"]))
    assert events[-1].type == "run_ended" and {event.type for event in events} >= {"run_started", "gate_opened"}
    at = next(number for number, event in enumerate(events) if event.type == "gate_opened")
    assert list(run.stream(["updates", "events"], events[at].id)) == events[at + 1 :]
    assert [event.type for event in client.stream(run.id, [])] == ["run_ended"]


@pytest.mark.conformance("IN-18")
def test_an_interrupt_takes_a_plain_map_of_json_as_its_answer(client: Client) -> None:
    run = client.submit("interrupting", "")
    gate = asked(run)
    assert gate.payload == {"question": "how many?"}
    run.answer({"count": 3, "what": "apples"}, gate)
    run.answer({"count": 3, "what": "apples"}, gate)
    assert run.wait(WAIT_S).status == "completed"
    assert run.output == "3 of apples"
    with pytest.raises(GateError):
        run.answer({"count": 4, "what": "pears"}, gate)
    with pytest.raises(GateError):
        run.answer("x", "nowhere")


def test_answers_by_name_and_ahead_of_their_questions(client: Client) -> None:
    run = client.submit("asking", "Bo")
    run.answer_all({"sure": "no"}, ahead=True, timeout_s=WAIT_S)
    assert run.wait(WAIT_S).status == "completed"
    with pytest.raises(GateError, match="already answered"):
        run.answer("yes", "sure")


def test_two_people_answer_and_one_of_them_wins(client: Client) -> None:
    run = client.submit("asking", "Cy")
    gate = asked(run)
    run.answer("yes", gate)
    with pytest.raises(GateError) as lost:
        run.answer("no", gate)
    assert isinstance(lost.value, GateAnswered | GateError)
    run.wait(WAIT_S)


def test_people_share_the_work_on_questions(client: Client, stack: Stack) -> None:
    with stack.client() as direct:
        eve = direct.acting_as(Actor("eve", "desk", "api", "approver"))
        run = client.submit("asking", "Ann")
        gate = asked(run)
        eve.gate_inbox.claim(gate)
        inbox = client.gate_inbox
        with pytest.raises(GateClaimed, match="eve has claimed question") as held:
            inbox.claim(gate)
        assert held.value.person == "eve" and held.value.until_ms > held.value.at_ms
        with pytest.raises(GateClaimed):
            inbox.release(gate)
        with pytest.raises(GateClaimed):
            run.answer("yes", gate)
        until_ms = inbox.claim(gate, for_s=60, take_over=True)
        assert [each.run for each in inbox.page(view="mine")] == [run.id]
        inbox.assign(gate, "eve")
        inbox.comment(gate, "I look into it")
        inbox.comment(gate, "I look into it")
        (now,) = run.gates()
        assert now.handling.claim is not None and now.handling.claim.until_ms == until_ms
        assert now.handling.assigned is not None and now.handling.assigned.person == "eve"
        assert [each.text for each in now.handling.comments] == ["I look into it"]
        inbox.snooze(gate, until_ms)
        assert [each.run for each in inbox.walk(view="snoozed", agent="asking")] == [run.id]
        assert (inbox.counts().snoozed, inbox.counts().is_exact) == (1, True)
        inbox.snooze(gate, None)
        inbox.release(gate)
        inbox.assign(gate, None)
        for refused in (
            lambda: inbox.claim(gate, for_s=10**6), lambda: inbox.comment(gate, " "), lambda: inbox.snooze(gate, 1),
            lambda: inbox.page(after="x"),
        ):  # fmt: skip
            with pytest.raises(UsageError):
                refused()
        ways = inbox.ways_on(gate)
        assert [way.answer for way in ways] == ["yes", "no", None]
        assert run.answer("yes", gate) is None
        run.wait(WAIT_S)
        with pytest.raises(GateError):
            inbox.claim(gate)
        with pytest.raises(GateError):
            inbox.comment(gate, "late")


def test_a_run_is_steered(client: Client) -> None:
    run = client.submit("asking", "Di")
    asked(run)
    run.pause(reason="lunch")
    assert [hold.reason for hold in wait_until(lambda: run.info().holds, "it is held", WAIT_S)] == ["lunch"]
    run.resume()
    wait_until(lambda: not run.info().holds, "it goes on", WAIT_S)
    fork = run.fork(before="greet", state={"initial_prompt": "Ed"})
    assert asked(fork).question == "sure?"
    assert fork.info().forked_from == run.id
    assert [each.id for each in run.forks().forks] == [fork.id]
    fork.answer("yes")
    assert fork.wait(WAIT_S).status == "completed"
    compared = client.compare(run, fork)
    assert compared.a.status and compared.b.status == "completed"
    run.cancel()
    assert run.wait(WAIT_S).status == "cancelled"
    with pytest.raises(UsageError):
        run.cancel()


def test_a_failed_run_is_retried_and_its_failure_is_counted(client: Client) -> None:
    run = client.submit("failing", "")
    assert run.wait(WAIT_S).status == "failed"
    assert "nobody to greet" in (run.error or "")
    assert any(group.agent == "failing" for group in client.failures())
    run.skip("fail", {"greeting": "hi"})
    assert run.wait(WAIT_S).status == "completed"
    with pytest.raises(UsageError, match="fail"):
        run.retry()


def test_the_same_request_id_is_the_same_run(client: Client) -> None:
    first = client.submit("work", "one", request_id=f"r-{type(client).__name__}")
    assert client.submit("work", "one", request_id=f"r-{type(client).__name__}").id == first.id
    with pytest.raises(UsageError, match="request id"):
        client.submit("work", "two", request_id=f"r-{type(client).__name__}")


def test_a_batch_is_submitted_watched_and_read(client: Client) -> None:
    bad: list[Any] = []
    rows = [{"prompt": "a", "name": "x"}, {"prompt": 7, "name": "y"}, {"prompt": "c", "name": "z"}]
    name = f"b-{type(client).__name__}"
    batch = client.batch("work", rows, key="name", id=name, on_bad=bad.append)
    assert batch.submitted is not None
    assert (batch.submitted.added, batch.submitted.known, batch.submitted.bad, len(bad)) == (2, 0, 1, 1)
    again = client.batch("work", rows, key="name", id=name).submitted
    assert again is not None and (again.added, again.known) == (0, 2)
    info = batch.wait(WAIT_S)
    assert (info.total, info.completed) == (2, 2)
    results = list(batch.results())
    assert [(result.key, result.output) for result in results] == [("x", "here a"), ("z", "here c")]
    assert list(batch.results(start=results[0].position)) == results[1:]
    assert batch.errors() == [] and batch.retry_failed() == 0 and batch.cancel() is False
    assert client.open_batch(name).id == batch.id
    assert batch.id in [each.id for each in client.batches()]
    assert batch.run_id(0) == results[0].run
    page = batch.rows("completed", start=1)
    assert [(row.row, row.key, row.info and row.info.status) for row in page.rows] == [(1, "z", "completed")]
    assert (page.looked, page.after) == (1, None)
    assert batch.grid().cells == ("completed", "completed")
    assert batch.ended_rows()[-1].ended == 2
    forks = client.fork_batch(batch, id=f"f-{type(client).__name__}", before="done", on_bad=bad.append)
    assert forks.submitted is not None and forks.submitted.added == 2
    assert forks.wait(WAIT_S).completed == 2
    compared = batch.comparisons(forks, limit=1)
    assert [(each.key, each.outcome) for each in compared.comparisons] == [("x", "same")]
    assert compared.after == 1
    assert [each.is_over for each in batch.watch()] == [True]


def test_a_schedule_is_added_changed_and_removed(client: Client) -> None:
    name = f"s-{type(client).__name__}"
    schedule = client.schedule(name, "work", "x", cron="0 7 * * *", tz="Europe/Berlin")
    assert schedule.info().plan.cron == "0 7 * * *"
    schedule.pause("holidays")
    assert client.open_schedule(name).info().state == "paused"
    schedule.resume()
    schedule.edit(every=3600, jitter="5s")
    assert schedule.info().plan.every_ms == 3_600_000
    run = schedule.run_now()
    assert run.wait(WAIT_S).status == "completed"
    assert name in [each.name for each in client.schedules()]
    schedule.remove()
    with pytest.raises(ScheduleNotFound):
        client.open_schedule(name)


def test_a_schedule_submits_batches(client: Client, tmp_path: Path) -> None:
    name = f"sb-{type(client).__name__}"
    file = tmp_path / "rows.csv"
    file.write_text("prompt\nx\ny\n")
    schedule = client.schedule(name, "work", every="1h", rows=ScheduleRows(read(file), priority=4, canary=5))
    plan = schedule.info().plan.batch
    assert plan is not None and (plan.rows, plan.name, plan.priority, plan.canary) == (2, name, 4, 5)
    batch = schedule.batch_now()
    assert batch.wait(WAIT_S).completed == 2
    assert [(run.id, run.batch) for run in schedule.runs()] == [(batch.id, "done")]
    with pytest.raises(UsageError, match="starts batches"):
        schedule.run_now()
    with pytest.raises(UsageError, match="prompt"):
        client.schedule(f"{name}-bad", "work", every="1h", rows=ScheduleRows([{"prompt": 7}]))
    schedule.remove()


def test_threads_signals_and_the_fleet(client: Client) -> None:
    name = f"t-{type(client).__name__}"
    run = client.submit("work", "x", thread=name)
    run.wait(WAIT_S)
    thread = client.thread("work", name)
    assert thread is not None and (thread.turns, thread.run) == (1, run.id)
    assert thread.name in [each.name for each in client.threads("work")]
    assert [each.id for each in client.thread_runs("work", name)] == [run.id]
    assert client.remove_thread("work", name) is True and client.remove_thread("work", name) is False
    assert client.thread("work", name) is None and client.thread_runs("work", name) == []
    assert client.sessions("work") == [] and client.session("work", "none") is None and client.said("work", "n") == []
    receipt = client.signal(f"paid/{name}", {"sum": 1})
    assert receipt.reached == 0
    assert f"paid/{name}" in [each.name for each in client.signals()]
    health = client.health()
    assert health.schedulers and health.workers
    assert abs(client.now_ms() - health.now_ms) < 600_000
    assert client.limits() == [] and client.cached_results() == [] and client.clear_cache() == 0
    assert "asking" in [agent.name for agent in client.agents()]
    client.pause_all(reason="incident")
    held = client.held()
    assert held is not None and held.reason == "incident"
    assert client.resume_part(agents=["work"], rate=2).resumption is not None
    [held_as_whole] = client.holds()
    assert (held_as_whole.scope, held_as_whole.hold.reason) == ("*", "incident")
    assert held_as_whole.resumption is not None and held_as_whole.resumption.agents == ("work",)
    assert client.resume_all() is True and client.resume_all() is False and client.held() is None
    client.pause_all(reason="prices", namespace="default")
    assert [(each.scope, each.hold.reason) for each in client.holds()] == [("default", "prices")]
    assert client.resume_all(namespace="default") is True
    wait_until(lambda: client.holds() == [], "the hold has ended")
    with pytest.raises(UsageError, match="namespace 'default' is not paused"):
        client.resume_part(rate=1, namespace="default")


def test_errors_are_those_of_redis(client: Client) -> None:
    for wrong, error in (
        (lambda: client.run("0123456789ab"), RunNotFound),
        (lambda: client.submit("nowhere"), AgentNotFound),
        (lambda: client.open_batch("nowhere"), BatchNotFound),
        (lambda: client.submit("broken"), GraphError),
        (lambda: client.runs(after="no cursor"), UsageError),
        (lambda: client.submit("work", session="x"), UsageError),
    ):
        with pytest.raises(error) as raised:
            wrong()
        assert str(raised.value)


def test_many_runs_are_waited_for(client: Client) -> None:
    runs = [client.submit("work", str(number)) for number in range(3)]
    ended = list(client.as_they_end([run.id for run in runs], WAIT_S))
    assert {info.id for info in ended} == {run.id for run in runs}
    waiting = client.submit("asking", "x")
    with pytest.raises(TimeoutError):
        waiting.wait(0.5)
    with pytest.raises(TimeoutError):
        list(client.as_they_end([waiting.id], 0.5))
    waiting.cancel()


def test_the_async_client_has_the_same_over_http(console: Console) -> None:
    async def scenario() -> None:
        async with AsyncClient(url(console)) as client:
            runs = await asyncio.gather(*(client.submit("asking", str(number)) for number in range(12)))
            waits = [asyncio.create_task(run.wait(WAIT_S)) for run in runs]
            for run in runs:
                while not await run.gates():
                    await asyncio.sleep(0.05)
                await run.answer("yes")
            assert {info.status for info in await asyncio.gather(*waits)} == {"completed"}
            assert [event.type async for event in runs[0].stream([])] == ["run_ended"]

            async def rows() -> Any:
                for number in range(3):
                    yield {"prompt": str(number)}

            batch = await client.batch("work", rows())
            assert (await batch.wait(WAIT_S)).completed == 3
            with pytest.raises(RunNotFound):
                await client.run("0123456789ab")

    asyncio.run(asyncio.wait_for(scenario(), 180))


def test_a_wait_and_a_stream_go_on_over_a_kill_of_the_server(stack: Stack) -> None:
    with console_of(stack, "doomed") as doomed:
        port = doomed.port
        with Client(url(doomed)) as client, Client(stack.settings) as direct:
            run = client.submit("asking", "Kim")
            gate = asked(run)
            ended: list[Any] = []
            seen: list[Any] = []
            waiter = threading.Thread(target=lambda: ended.append(run.wait(WAIT_S)))
            reader = threading.Thread(target=lambda: seen.extend(run.stream(["updates", "events"])))
            waiter.start()
            reader.start()
            wait_until(
                lambda: any(event.type == "gate_opened" for event in seen) or _opened(seen), "it is read", WAIT_S
            )
            process = stack.processes.pop("doomed")
            os.kill(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
            direct.run(run.id).answer("yes", gate)
            with console_of(stack, "reborn", SLEIPNIR_CONSOLE_PORT=str(port)):
                waiter.join(WAIT_S)
                reader.join(WAIT_S)
            assert [info.status for info in ended] == ["completed"]
            assert [event.id for event in seen] == [
                event.id for event in direct.run(run.id).stream(["updates", "events"])
            ]


def _opened(seen: list[Any]) -> bool:
    return any(event.type == "gate_opened" for event in seen)


def test_a_redis_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """The server answers 503 for 20 s. What may be repeated is, with one run as the outcome."""
    write_agent(tmp_path / "agents" / "work", WORK, work_sh="printf '{}'\n")
    own = RedisServer()
    try:
        with (
            Stack(own, tmp_path / "home", key_prefix="away", agents_dir=tmp_path / "agents", **CALM) as stack,
            console_of(stack) as console,
            Client(url(console)) as client,
        ):
            assert client.runs() == []
            own.kill()
            starter = threading.Timer(20.0, own.launch)
            starter.start()
            began_s = time.monotonic()
            run = client.submit("work", "x")
            assert time.monotonic() - began_s >= 15
            starter.join()
            assert [info.id for info in client.runs()] == [run.id]
    finally:
        own.stop()


def test_a_server_that_was_never_there_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with Client(address) as client, pytest.raises(StoreUnavailable, match=f"{re.escape(address)} does not answer"):
        client.runs()

    async def asked_of() -> None:
        async with AsyncClient(address) as other:
            await other.runs()

    with pytest.raises(StoreUnavailable, match="does not answer"):
        asyncio.run(asked_of())


class _Odd(socketserver.StreamRequestHandler):
    """A server that redirects, and one that takes a submission and dies before it answers."""

    seen: ClassVar[list[tuple[str, dict[str, str]]]] = []

    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (line := self.rfile.readline()):
                return
            head += line
        first, *rest = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest if line)}
        self.rfile.read(int(headers.get("content-length", "0")))
        self.seen.append((first, headers))
        submissions = [line for line, _ in self.seen if line.startswith("POST /api/v1/runs ")]
        if first.startswith("GET"):
            self.wfile.write(b"HTTP/1.1 307 T\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        elif first.startswith("POST /api/v1/runs ") and len(submissions) > 1:
            self.wfile.write(b'HTTP/1.1 201 C\r\nContent-Length: 15\r\n\r\n{"id": "abcdef"}'[:-1])


def test_lost_answers_are_asked_for_again_if_that_is_safe_and_redirects_are_not_followed() -> None:
    _Odd.seen.clear()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Odd) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            with Client(f"http://127.0.0.1:{server.server_address[1]}", token="slp_x") as client:
                with pytest.raises(ServerFailed, match=r"redirects to 'http://127\.0\.0\.1:1/'"):
                    client.runs()
                with pytest.raises(ServerFailed):  # what the second answer is cut off to is no JSON
                    client.submit("work", "x")
                with pytest.raises(StoreUnavailable):
                    client.server.call(ApiRequest("POST", "/runs/x/retry"))  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()
    lines = [line for line, _ in _Odd.seen]
    assert [line.split()[0] for line in lines] == ["GET", "POST", "POST", "POST"]
    first, second = (headers for line, headers in _Odd.seen if line.startswith("POST /api/v1/runs "))
    assert first["idempotency-key"] == second["idempotency-key"]
    assert {headers["authorization"] for _, headers in _Odd.seen} == {"Bearer slp_x"}
