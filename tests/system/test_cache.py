"""Cached results of nodes on the fleet: one execution for many visits, and what people see of that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir.client.client import Client, Run
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

ONE = """
name: one
version: sleipnir/1
start: work
initial_state: {n: 1, noise: 0}
nodes:
  work: {type: function, call: "f.py:work", cache: CACHE, next: done}
  done: {type: end, output: "{{out}}"}
"""
WORK = """
import os, time
from pathlib import Path

def work(state):
    with open("PLACE/ran", "a") as file:
        file.write(f"{state['n']}\\n")
    while Path("PLACE/block").exists():
        time.sleep(0.01)
    if state.get("fails"):
        raise RuntimeError("on purpose")
    return {"out": state["n"] * 2}
"""


@pytest.fixture(scope="module")
def fleet(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A scheduler and two workers."""
    with Stack(redis_server, tmp_path_factory.mktemp("fleet"), key_prefix="cached") as running:
        running.start_scheduler()
        for name in ("one", "two"):
            running.start_worker(name, concurrency=4)
        yield running


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    prefix = f"own-{tmp_path.name}"
    with Stack(
        redis_server, tmp_path / "home", key_prefix=prefix, owner_ttl_s=0.5, lease_s=2.0, heartbeat_s=0.3
    ) as stack:
        yield stack


def agent(folder: Path, cache: str = "{key: [n]}", graph: str = ONE, code: str = WORK) -> Path:
    return write_agent(folder / "one", graph.replace("CACHE", cache), f_py=code.replace("PLACE", str(folder)))


def ran(folder: Path) -> list[str]:
    file = folder / "ran"
    return file.read_text().split() if file.exists() else []


def ended(client: Client, folder: Path, **state: object) -> Run:
    run = client.submit(folder / "one", state=state)
    assert run.wait(60).status == "completed", run.info().error
    return run


def has_been_put_off(run: Run) -> bool:
    return any(visit.attempt > 1 for visit in run.info().visits)


@pytest.mark.conformance("CA-01", "CA-03")
def test_a_second_run_has_the_cached_result_and_everything_that_shows_runs_says_so(
    fleet: Stack, tmp_path: Path
) -> None:
    agent(tmp_path, "{ttl: 60s, key: [n]}")
    with fleet.client() as client:
        client.clear_cache("one")
        first, second = ended(client, tmp_path, n=21), ended(client, tmp_path, n=21, noise=5)
        assert (first.output, second.output, ran(tmp_path)) == ("42", "42", ["21"])
        steps = {run.id: {step.node: step.cached for step in run.history() if step.node} for run in (first, second)}
        assert steps == {first.id: {"work": False, "done": False}, second.id: {"work": True, "done": False}}
        assert [first.info().cached_visits, second.info().cached_visits] == [0, 1]
        closed = [event for event in second.events() if event.type == "visit_closed" and event.data["node"] == "work"]
        assert (closed[0].data["cached"], closed[0].data["notes"]) == (True, ["result from the cache"])
    assert "work  function, cached" in fleet.sleipnir("history", second.id).stdout
    assert "cached" in fleet.sleipnir("show", second.id).stdout
    listed = json.loads(fleet.sleipnir("cache", "ls", "one", "--json").stdout)
    assert [(use["agent"], use["node"], use["entries"]) for use in listed] == [("one", "work", 1)]
    cleared = json.loads(fleet.sleipnir("cache", "clear", "one", "work", "--json").stdout)
    assert cleared == {"agent": "one", "node": "work", "removed": 1}
    with fleet.client() as client:
        ended(client, tmp_path, n=21)
        assert ran(tmp_path) == ["21", "21"]


def test_clearing_says_if_nothing_knows_the_agent_or_the_node(fleet: Stack, tmp_path: Path) -> None:
    path = str(agent(tmp_path))
    for words, code, said in (
        (("nine",), 1, "agent 'nine' has no cached results, and this machine has no such agent: "),
        ((path, "werk"), 1, "node 'werk' of agent 'one' has no cached results, and there is no such node; it has: "),
        ((path, "work"), 0, "0 cached results removed"),
        ((path,), 0, "0 cached results removed"),
        ((), 0, "0 cached results removed"),
    ):
        with fleet.client() as client:
            client.clear_cache()
        done = fleet.sleipnir("cache", "clear", *words)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    done = fleet.sleipnir("cache", "clear", "nine", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (1, {"agent": "nine", "node": None, "removed": 0})
    with fleet.client() as client:
        ended(client, tmp_path, n=1)
        done = fleet.sleipnir("cache", "clear", "one", "werk")
        assert (done.returncode, "has cached results of other nodes" in done.stderr) == (1, True), done.stderr
        assert fleet.sleipnir("cache", "clear", "one").returncode == 0, "an agent of another machine"


@pytest.mark.conformance("CA-13")
def test_visits_with_one_key_at_once_are_executed_once(fleet: Stack, tmp_path: Path) -> None:
    agent(tmp_path)
    (tmp_path / "block").touch()
    with fleet.client() as client:
        client.clear_cache("one")
        runs = [client.submit(tmp_path / "one", state={"n": 3}) for _ in range(20)]
        wait_until(lambda: len(ran(tmp_path)) == 1, "one of them is executed")
        wait_until(lambda: any(has_been_put_off(run) for run in runs), "others have given their slots back")
        (tmp_path / "block").unlink()
        assert [run.wait(60).status for run in runs] == ["completed"] * 20
        assert ran(tmp_path) == ["3"]
        assert sum(run.info().cached_visits for run in runs) == 19


@pytest.mark.conformance("CA-11")
def test_a_failure_is_not_cached(fleet: Stack, tmp_path: Path) -> None:
    agent(tmp_path)
    with fleet.client() as client:
        client.clear_cache("one")
        for _ in range(2):
            assert client.submit(tmp_path / "one", state={"n": 9, "fails": True}).wait(60).status == "failed"
        ended(client, tmp_path, n=9)
        assert ran(tmp_path) == ["9"] * 3


@pytest.mark.conformance("CA-07")
def test_changed_code_and_another_version_find_nothing(fleet: Stack, tmp_path: Path) -> None:
    agent(tmp_path)
    with fleet.client() as client:
        client.clear_cache("one")
        ended(client, tmp_path, n=4)
        agent(tmp_path, "{key: [n], version: two}")
        ended(client, tmp_path, n=4)
        agent(tmp_path, "{key: [n], version: two}", code=WORK.replace("* 2", "* 3"))
        assert ended(client, tmp_path, n=4).output == "12"
        agent(tmp_path, "{key: [n], version: two, ttl: 1h}", code=WORK.replace("* 2", "* 3"))
        ended(client, tmp_path, n=4)
        assert ran(tmp_path) == ["4"] * 3, "another time to live is no other result"


ROUTES = """
name: one
version: sleipnir/1
start: work
nodes:
  work: {type: function, call: "f.py:work", cache: {key: [n]}, ends: {left: left, right: right}}
  left: {type: end, output: "left {{out}}"}
  right: {type: end, output: "right {{out}}"}
"""


@pytest.mark.conformance("CA-12")
def test_a_cached_command_routes_again(fleet: Stack, tmp_path: Path) -> None:
    code = "from sleipnir.commands import Command\n" + WORK.replace(
        'return {"out": state["n"] * 2}', 'return Command(update={"out": 1}, goto="right")'
    )
    agent(tmp_path, graph=ROUTES, code=code)
    with fleet.client() as client:
        client.clear_cache("one")
        assert [ended(client, tmp_path, n=5).output for _ in range(2)] == ["right 1", "right 1"]
        assert ran(tmp_path) == ["5"]


ASKS = """
name: one
version: sleipnir/1
start: work
cache: {key: [n]}
nodes:
  work: {type: function, call: "f.py:work", next: done}
  done: {type: end, output: "{{out}}"}
"""


def test_what_a_node_asks_is_asked_each_time(fleet: Stack, tmp_path: Path) -> None:
    code = "from sleipnir import interrupt\ndef work(state):\n    return {'out': interrupt('who?')}\n"
    agent(tmp_path, graph=ASKS, code=code)
    with fleet.client() as client:
        for answer in ("ann", "bob"):
            run = client.submit(tmp_path / "one", state={"n": 1})
            wait_until(lambda run=run: run.gates(), "it asks")  # type: ignore[misc]
            run.answer(answer)
            assert (run.wait(60).status, run.output) == ("completed", answer)


def test_a_loss_of_all_results_is_an_execution_more(fleet: Stack, tmp_path: Path) -> None:
    agent(tmp_path)
    with fleet.client() as client:
        client.clear_cache("one")
        ended(client, tmp_path, n=8)
        store = client.store
        store._client.delete(*store._client.scan_iter(f"{store.keys.prefix}:*cache*"))
        assert ended(client, tmp_path, n=8).info().cached_visits == 0
        assert ran(tmp_path) == ["8", "8"]


def test_a_cache_that_cannot_be_used_fails_no_visit(fleet: Stack, tmp_path: Path) -> None:
    agent(tmp_path)
    with fleet.client() as client:
        client.clear_cache("one")
        ended(client, tmp_path, n=6)
        keys = client.store.keys.of_cache("one", "work")
        [digest] = client.store._client.zrange(keys.index, 0, -1)
        client.store._client.set(keys.entry(digest), '{"v": 99, "delta": 5}')
        assert ended(client, tmp_path, n=6).info().cached_visits == 0
        assert ended(client, tmp_path, n=6).info().cached_visits == 1, "what could not be read was made again"
        client.store._client.delete(keys.entry(digest))
        client.store._client.lpush(keys.entry(digest), "a list")
        assert ended(client, tmp_path, n=6).output == "12"
        client.clear_cache("one")


@pytest.mark.conformance("CA-08")
def test_a_visit_without_a_key_is_executed(fleet: Stack, tmp_path: Path) -> None:
    agent(tmp_path, '{key: "{{gone.deep}}"}')
    with fleet.client() as client:
        runs = [ended(client, tmp_path, n=2) for _ in range(2)]
        notes = next(event.data["notes"] for event in runs[1].events() if event.type == "visit_closed")
        assert any(note.startswith("not cached: ") and "gone.deep" in note for note in notes)
        assert ran(tmp_path) == ["2", "2"]


def test_when_the_worker_dies_that_executes_exactly_one_other_visit_goes_on(own: Stack, tmp_path: Path) -> None:
    agent(tmp_path)
    (tmp_path / "block").touch()
    own.start_scheduler()
    own.start_worker("doomed", concurrency=1)
    with own.client() as client:
        runs = [client.submit(tmp_path / "one", state={"n": 7})]
        wait_until(lambda: len(ran(tmp_path)) == 1, "the first one is executed")
        own.start_worker("other", concurrency=4)
        runs += [client.submit(tmp_path / "one", state={"n": 7}) for _ in range(6)]
        own.kill("doomed")
        wait_until(lambda: len(ran(tmp_path)) == 2, "another one goes on")
        (tmp_path / "block").unlink()
        assert [run.wait(60).status for run in runs] == ["completed"] * 7
        assert ran(tmp_path) == ["7", "7"]
        assert sum(run.info().cached_visits for run in runs) == 6


def test_a_node_without_a_cache_stores_nothing(fleet: Stack, tmp_path: Path) -> None:
    agent(tmp_path, "false")
    with fleet.client() as client:
        client.clear_cache("one")
        run = ended(client, tmp_path, n=1)
        assert "cached" not in client.store._client.hgetall(client.store.keys.of_run(run.id).run)
        journal = client.store._client.lrange(client.store.keys.of_run(run.id).journal, 0, -1)
        assert not any("cache" in step for step in journal)
        assert client.cached_results("one") == []
