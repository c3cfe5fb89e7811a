"""What people and programs see of runs that do not move, and of results that came too late."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir.client.client import Client, Run
from sleipnir.runs.views import Reason, ReasonCode
from tests.processes import RedisServer, Stack, wait_until, write_agent

GRAPH = """
name: still
start: a
nodes:
  a: {type: function, call: "f.py:f", queue: work, next: done, timeout: 600}
  done: {type: end, output: "{{who}}"}
"""
ASK = """
name: asking
start: a
nodes:
  a: {type: approval, question: "Well?", options: ["y", "n"], routes: {"y": done, "n": done}, on_other: done}
  done: {type: end, output: done}
"""
# The first attempt waits for the file `go`.
WAITING_F = """
import pathlib, threading
here = pathlib.Path({folder!r})
def f(state):
    first = not (here / "mark").exists()
    (here / "mark").touch()
    while first and not (here / "go").exists():
        threading.Event().wait(0.01)
    return {{"who": "first" if first else "second"}}
"""


@pytest.fixture
def stack(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    with Stack(
        redis_server, tmp_path / "home", key_prefix=f"still-{tmp_path.name}", redispatch_after_s=300.0
    ) as running:
        running.start_scheduler()
        yield running


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as opened:
        yield opened


def waiting_agent(folder: Path) -> Path:
    return write_agent(folder / "still", GRAPH, f_py=WAITING_F.format(folder=str(folder)))


def command(stack: Stack, *arguments: str) -> str:
    done = stack.sleipnir(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def reason_once(run: Run, code: ReasonCode) -> Reason:
    """The reason of the run's only visit, as soon as it has this code."""

    def found() -> Reason | None:
        reasons = [visit.reason for visit in run.info().visits]
        return reasons[0] if reasons and reasons[0].code == code else None

    return wait_until(found, f"the visit is {code}") or Reason(code)


def test_queued_visits_have_their_queue_their_place_and_its_workers(
    stack: Stack, client: Client, tmp_path: Path
) -> None:
    agent = waiting_agent(tmp_path)
    runs = []
    for _ in range(3):
        runs.append(client.submit(agent))
        reason_once(runs[-1], "queued")
        wait_until(lambda: runs[-1].info().visits[0].reason.position, "its message is in the queue")
    assert [run.info().visits[0].reason for run in runs] == [
        Reason("queued", queue="work", position=place, consumers=0) for place in (1, 2, 3)
    ]
    assert "a (queued on 'work': no worker serves it)" in command(stack, "show", runs[2].id)
    stack.start_worker("w", "work", concurrency=1)
    wait_until((tmp_path / "mark").exists, "the first visit runs")
    wait_until(lambda: runs[1].info().visits[0].reason.position == 1, "the others have moved up")
    assert "a (queued on 'work', 2nd in line, 1 consumer)" in command(stack, "show", runs[2].id)
    assert "a (queued on 'work', 1st in line, 1 consumer)" in command(stack, "ps")
    listed = {run["id"]: run for run in json.loads(command(stack, "ps", "--json"))}
    assert listed[runs[2].id]["visits"][0]["reason"] == {
        "code": "queued", "queue": "work", "position": 2, "consumers": 1,
        "worker": None, "until_ms": None, "by": None, "error": None,
        "progress": None, "failed": None, "under_way": None, "turn": None,
        "run": None, "agent": None, "spawned": None, "event": None, "stream": None, "writer": None,
    }  # fmt: skip
    (tmp_path / "go").touch()
    assert all(run.wait(60).status == "completed" for run in runs)


def test_a_running_visit_reports_whose_lease_it_has_and_until_when(
    stack: Stack, client: Client, tmp_path: Path
) -> None:
    stack.start_worker("w", "work")
    run = client.submit(waiting_agent(tmp_path))
    wait_until((tmp_path / "mark").exists, "the visit runs")
    reason = reason_once(run, "lease")
    assert str(reason.worker).startswith("w@")
    assert reason.until_ms is not None
    assert abs(reason.until_ms - client.now_ms()) <= stack.settings.lease_s * 1000
    assert f"a (runs on {reason.worker}, lease expires in " in command(stack, "show", run.id)
    (tmp_path / "go").touch()
    assert run.wait(60).status == "completed"


def test_a_visit_that_waits_for_a_person_reports_it(stack: Stack, client: Client, tmp_path: Path) -> None:
    run = client.submit(write_agent(tmp_path / "asking", ASK))
    assert reason_once(run, "person") == Reason("person")
    assert "a (waits for a person's answer)" in command(stack, "show", run.id)
    run.cancel()
    assert run.wait(60).status == "cancelled"


def test_a_held_visit_reports_who_holds_it(stack: Stack, client: Client, tmp_path: Path) -> None:
    run = client.submit(waiting_agent(tmp_path))
    reason_once(run, "queued")
    run.pause("ann@desk")
    assert reason_once(run, "paused") == Reason("paused", queue="work", by="ann@desk")
    run.resume()
    reason_once(run, "queued")
    client.pause_all("bob@desk")
    assert reason_once(run, "paused") == Reason("paused", queue="work", by="bob@desk")
    assert "a (paused by bob@desk)" in command(stack, "show", run.id)
    client.resume_all()
    run.cancel()
    assert run.wait(60).status == "cancelled"


def test_a_visit_that_is_tried_again_reports_when_and_why(stack: Stack, client: Client, tmp_path: Path) -> None:
    graph = GRAPH.replace("timeout: 600", "retry: {max_attempts: 3, initial_interval: 5m, max_interval: 5m}")
    run = client.submit(write_agent(tmp_path / "still", graph, f_py="def f(state):\n    raise OSError('away')\n"))
    stack.start_worker("w", "work")
    reason = reason_once(run, "retry")
    assert "away" in str(reason.error)
    assert reason.until_ms is not None and reason.until_ms > client.now_ms()
    assert "a (tries again in " in command(stack, "show", run.id)
    run.cancel()
    assert run.wait(60).status == "cancelled"


def test_a_late_result_is_shown_between_the_steps_where_it_came(stack: Stack, client: Client, tmp_path: Path) -> None:
    """SIGSTOP, another worker takes over, SIGCONT: the result of the first attempt is refused, and seen."""
    # A heartbeat that is slower than this test: the thawed worker must not learn of its loss before it delivers.
    stack.settings = stack.settings.replaced(heartbeat_s=60.0)
    stack.start_worker("frozen", "work", pool="solo")
    run = client.submit(waiting_agent(tmp_path))
    wait_until((tmp_path / "mark").exists, "the function runs")
    stack.signal("frozen", signal.SIGSTOP)
    stack.start_worker("other", "work", pool="solo")
    assert run.wait(60).status == "completed"
    (tmp_path / "go").touch()
    stack.signal("frozen", signal.SIGCONT)
    (late,) = wait_until(run.late_results, "the late result is refused")
    assert (late.node, late.attempt, late.worker.split("@")[0]) == ("a", 1, "frozen")
    assert f"late result refused: a, attempt 1, from {late.worker}" in command(stack, "show", run.id)
    lines = command(stack, "history", run.id).splitlines()
    assert [" ".join(line.split()) for line in lines if "late result refused" in line] == [
        f"- a late result refused - - - - 1 {late.worker}"
    ]
    entries: list[dict[str, Any]] = json.loads(command(stack, "history", run.id, "--json"))
    assert [entry["kind"] for entry in entries] == ["submitted", "function", "end", "late_result"]
    assert entries[-1]["text"] == "late result refused"
    assert json.loads(command(stack, "show", run.id, "--json"))["late_results"] == [entries[-1]]
