"""get_state, get_state_history and update_state of runs and threads, on a real scheduler and real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sleipnir import END, Client, Overwrite
from sleipnir.client.async_client import AsyncClient
from sleipnir.client.client import Run
from sleipnir.errors import RunNotFound, ThreadBusy, UsageError
from sleipnir.python_graph.agent_modules import load
from tests.chain import chain_agent, ended, visited
from tests.processes import RedisServer, Stack, wait_until, write_agent

ASKS = """\
version: sleipnir/1
name: asks
state: {log: {type: list, reducer: append}}
start: first
nodes:
  first: {type: function, call: "work.py:first", next: [ask, other]}
  other: {type: function, call: "work.py:other"}
  ask: {type: input, question: "Sure?", next: last}
  last: {type: function, call: "work.py:last"}
"""
ASKED = """
def first(state): return {"log": ["first"]}
def other(state): return {"log": ["other"]}
def last(state): return {"log": ["last"]}
"""
PYTHON = """
import operator
from typing import Annotated, TypedDict

from sleipnir import END, START, InMemorySaver, StateGraph, interrupt


def longest(old: str, new: str) -> str:
    return max(old or "", new, key=len)


class State(TypedDict, total=False):
    n: int
    seen: Annotated[set[str], operator.or_]
    best: Annotated[str, longest]
    way: str


def choose(state: State) -> dict:
    return {"n": state["n"] + 1, "seen": {"choose"}, "best": "b"}


def route(state: State) -> str:
    return "big" if state["n"] > 10 else "small"


def big(state: State) -> dict:
    return {"way": "big", "seen": {"big"}}


def small(state: State) -> dict:
    if state["n"] == 7:
        return {"way": interrupt("which way?", key="way")}
    return {"way": "small", "seen": {"small"}}


graph = (
    StateGraph(State)
    .add_node(choose)
    .add_node(big)
    .add_node(small)
    .add_edge(START, "choose")
    .add_conditional_edges("choose", route, ["big", "small"])
    .add_edge("big", END)
    .add_edge("small", END)
    .compile(checkpointer=InMemorySaver())
)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("updates")


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, home: Path) -> Iterator[Stack]:
    chain_agent(home / "agents")
    write_agent(home / "agents" / "asks", ASKS, work_py=ASKED)
    write_agent(home / "agents" / "routes", None, graph_py=PYTHON)
    with Stack(redis_server, home / "home", key_prefix="updates", agents_dir=home / "agents") as stack:
        stack.start_scheduler("scheduler")
        stack.start_worker("worker")
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with stack.client() as client:
        yield client


def stopped(run: Run) -> list[str]:
    """The nodes that come next, where a run has stopped."""
    wait_until(lambda: run.status in ("paused", "failed", "completed"), "it stops")
    assert run.status == "paused", (run.error, run.history())
    [hold] = run.info().holds
    assert hold.breakpoint is not None
    return list(hold.breakpoint.planned)


def test_a_fork_begins_as_if_a_node_had_written_the_values_and_stops_after_it(client: Client, home: Path) -> None:
    source = ended(client.submit("chain", "hi"))
    before, calls = (source.state(), source.history()), visited(home / "agents")
    edited = source.update_state({"log": ["by hand"], "fee": 5.0}, "first", at=1)
    assert stopped(edited) == ["left", "right"]
    assert edited.state() == {**source.state_at(1), "log": ["first", "by hand"], "fee": 5}
    assert visited(home / "agents") == calls, "no node has been called"
    assert "with an update as node 'first'" in str(edited.history()[0].reason)
    edited.resume()
    assert ended(edited).output == '["first","by hand","left","right","third"] 7'
    assert sorted(visited(home / "agents")[len(calls) :]) == ["left", "right", "third"]
    replaced = source.update_state({"log": ["only"]}, "third", mode="set")
    assert stopped(replaced) == ["done"]
    replaced.resume()
    assert ended(replaced).output == '["only"] 7'
    assert edited.state_at(edited.history()[-1].step) == edited.state(), "the journal has the same state"
    assert replaced.state_at(replaced.history()[-1].step) == replaced.state()
    assert (source.state(), source.history()) == before, "what it has committed stays as it is"


def test_the_routers_of_a_python_graph_run_on_a_worker_and_see_the_update(client: Client) -> None:
    source = ended(client.submit("routes", state={"n": 1, "seen": ["begin"]}))
    assert (source.state()["way"], source.state()["n"]) == ("small", 2)
    edited = source.update_state({"n": 50, "seen": ["me"], "best": "longer"}, "choose", at=source.history()[-1].step)
    assert stopped(edited) == ["big"]
    assert (edited.state()["n"], edited.state()["best"]) == (50, "longer")
    assert sorted(edited.state()["seen"]) == ["begin", "choose", "me", "small"]
    assert edited.history()[1].worker
    edited.resume()
    assert ended(edited).state()["way"] == "big"
    replaced = source.update_state({"seen": Overwrite(["new"]), "best": "x"}, "choose", mode="set")
    assert stopped(replaced) == ["small"]
    assert (replaced.state()["seen"], replaced.state()["best"]) == (["new"], "x")
    replaced.cancel()


def test_an_update_without_a_node_is_one_of_the_node_that_wrote_last(client: Client) -> None:
    source = client.submit("routes", state={"n": 6})
    wait_until(source.gates, "it asks")
    edited = source.update_state({"n": 20})
    assert stopped(edited) == ["big"], "as `choose`, whose router chooses again"
    assert [gate.key for gate in source.gates()] == ["way"], "the source still waits"
    source.answer("mine")
    assert ended(source).state()["way"] == "mine"
    again = edited.update_state({"n": 3})
    assert stopped(again) == ["small"], "the one that an update of a fork stands for"
    for run in (edited, again):
        run.resume()
        ended(run)
    assert (edited.state()["way"], again.state()["way"]) == ("big", "small")


def test_what_does_not_fit_is_refused_before_anything_is_stored(client: Client) -> None:
    chain, routes = ended(client.submit("chain", "hi")), ended(client.submit("routes", state={"n": 1}))
    count = client.run_count()
    for run, values, node, says in (
        (chain, {"fee": "many"}, "first", r"state key 'fee' must be int"),
        (chain, {"feee": 1}, "first", r'no state key \'feee\'. Did you mean "fee"'),
        (chain, {"_next": "third", "fee": {1}}, "first", r"(?s)'_next' is written by the runtime.*'fee' is not JSON"),
        (chain, {"fee": 1}, "frist", r'no node \'frist\'. Did you mean "first"'),
        (chain, {"fee": 1}, "done", "end node"),
        (chain, {"fee": 1}, END, "takes no values"),
        (routes, {"x": 1}, "choose", "no state key 'x'"),
        (routes, {"n": 1}, "__start__", "submit the next turn"),
    ):
        with pytest.raises(UsageError, match=says):
            run.update_state(values, node)
    with pytest.raises(UsageError, match=r"Ambiguous update, specify as_node: '.*', '.*' wrote last"):
        chain.update_state({"fee": 2}, at=3)
    with pytest.raises(UsageError, match="'reduce' or 'set'"):
        chain.update_state({"fee": 2}, "first", mode="merge")  # type: ignore[arg-type]
    assert client.run_count() == count


def test_as_end_an_update_ends_what_was_to_come_next(client: Client) -> None:
    source = client.submit("routes", state={"n": 6})
    wait_until(source.gates, "it asks")
    edited = ended(source.update_state({}, END))
    assert edited.state() == source.state()
    source.cancel()


@pytest.mark.conformance("CK-02", "TT-05", "SV-02")
def test_the_history_of_a_thread_has_every_checkpoint_of_its_runs_newest_first(client: Client) -> None:
    runs = [ended(client.submit("chain", "hi", thread="told", state={"log": []})) for _ in range(2)]
    config = {"configurable": {"thread_id": "told"}}
    history = list(client.get_state_history("chain", config))
    assert [each.next for each in history[:5]] == [(), ("done",), ("third",), ("left", "right"), ("first",)]
    assert [each.next for each in history[5:]] == [each.next for each in history[:5]]
    assert [(each.metadata or {})["source"] for each in history[:5]] == [*["loop"] * 4, "input"]
    assert [(each.metadata or {})["step"] for each in history[:5]] == [4, 3, 2, 1, 0]
    for number, each in enumerate(history[:-1]):
        assert each.parent_config == history[number + 1].config, "the chain of parents is unbroken"
    assert history[-1].parent_config is None
    for each in history:
        assert each.config["configurable"]["thread_id"] == "told"
        run, step = each.config["configurable"]["checkpoint_id"].split(":")
        assert each.values == client.run(run).state_at(int(step))
        assert client.get_state("chain", each.config) == each
    assert [task.name for task in history[3].tasks] == ["left", "right"]
    assert [task.result for task in history[3].tasks] == [{"log": ["left"], "fee": 7}, {"log": ["right"]}]
    assert client.get_state("chain", "told") == history[0]
    assert runs[1].get_state() == history[0] and list(runs[1].get_state_history()) == history[:5]
    only = {"source": "input"}
    assert list(client.get_state_history("chain", config, filter=only)) == [history[4], history[9]]
    assert list(client.get_state_history("chain", config, filter=only, limit=1)) == [history[4]]
    assert list(client.get_state_history("chain", config, before=history[2].config, limit=3)) == history[3:6]
    assert list(client.get_state_history("chain", config, filter={"source": "none"})) == []


@pytest.mark.conformance("CK-08")
def test_where_a_run_waits_its_snapshot_has_the_question_and_what_others_have_written(client: Client) -> None:
    run = client.submit("asks", "hi")
    wait_until(lambda: {visit.state for visit in run.info().visits} == {"ended", "waiting"}, "one waits, one has ended")
    snapshot = run.get_state()
    assert (snapshot.next, snapshot.values["log"]) == (("ask",), ["first"])
    assert [(task.name, task.result) for task in snapshot.tasks] == [("other", {"log": ["other"]}), ("ask", None)]
    [question] = snapshot.interrupts
    assert question.value["question"] == "Sure?" and question.id == "ask"
    with pytest.raises(UsageError, match=r"super-step that is open: 'other' ended.*at=1"):
        run.update_state({"log": ["x"]}, "first")
    edited = run.update_state({"log": ["x"]}, at=1)
    assert stopped(edited) == ["ask", "other"]
    assert edited.get_state().next == ("other", "ask")
    assert [each.metadata["source"] for each in edited.get_state_history() if each.metadata] == ["update", "fork"]
    edited.resume()
    wait_until(edited.gates, "it asks again")
    for each in (run, edited):
        each.answer("yes")
        ended(each)
    assert run.get_state().next == () and run.state()["log"] == ["first", "other", "last"]
    assert edited.state()["log"] == ["first", "x", "other", "last"]


def test_a_failed_run_has_the_error_and_what_it_would_go_on_with(client: Client) -> None:
    run = ended(client.submit("routes", state={"n": 10}))
    failed = client.submit("routes", state={"seen": []})
    ended(failed, "failed")
    [task] = failed.get_state().tasks
    assert (task.name, failed.get_state().next) == ("choose", ("choose",)) and "KeyError" in str(task.error)
    assert run.get_state(0).next == ("choose",)
    with pytest.raises(UsageError, match="is no checkpoint"):
        run.get_state(77)


@pytest.mark.conformance("TT-02", "TT-04", "TT-06")
def test_a_thread_is_edited_by_a_turn_that_continues_it(client: Client, home: Path) -> None:
    with pytest.raises(UsageError, match="has no thread 'ann': submit its first turn"):
        client.update_state("chain", "ann", {"fee": 2})
    assert client.get_state("chain", "ann").values == {} and list(client.get_state_history("chain", "ann")) == []
    first = ended(client.submit("chain", "hi", thread="ann"))
    base = client.get_state("chain", "ann")
    edited = client.update_state("chain", "ann", {"fee": 2.0}, "first")
    assert stopped(edited) == ["left", "right"]
    newest = client.get_state("chain", "ann")
    assert newest.values["fee"] == 2 and type(newest.values["fee"]) is int
    assert newest.next == ("left", "right") and (newest.metadata or {})["source"] == "update"
    begin = next(iter(client.get_state_history("chain", "ann", before=newest.config, limit=1)))
    assert begin.parent_config == base.config
    with pytest.raises(ThreadBusy, match=edited.id):
        client.update_state("chain", "ann", {"fee": 3}, "first")
    with pytest.raises(ThreadBusy, match="sleipnir resume"):
        client.submit("chain", "more", thread="ann")
    edited.resume()
    assert ended(edited).info().turn == 2
    again = client.update_state("chain", next(iter(first.get_state_history(before=4))).config, {"log": ["z"]}, "third")
    assert (stopped(again), again.info().turn) == (["done"], 3), "another line, from an earlier checkpoint"
    again.resume()
    ended(again)
    with pytest.raises(UsageError, match="no run of the thread"):
        other = ended(client.submit("chain", "hi", thread="bob")).get_state().config["configurable"]
        client.get_state("chain", {"configurable": {**other, "thread_id": "ann"}})
    with pytest.raises(UsageError, match="names no thread"):
        client.get_state("chain", {"configurable": {}})
    with pytest.raises(UsageError, match="RUN:STEP"):
        client.get_state("chain", {"configurable": {"thread_id": "ann", "checkpoint_id": "1"}})
    with pytest.raises(RunNotFound):
        client.get_state("chain", {"configurable": {"thread_id": "ann", "checkpoint_id": "0000000000zz:1"}})


def test_a_compiled_graph_has_its_objects_in_snapshots_and_updates(client: Client, home: Path) -> None:
    graph = load(home / "agents" / "routes" / "graph.py").graph
    name = client.submit(graph, {"n": 1, "seen": {"a"}}, thread="objects")
    ended(name)
    snapshot = client.get_state(graph, "objects")
    assert snapshot.values["seen"] == {"a", "choose", "small"}
    edited = client.update_state(graph, "objects", {"n": 90, "seen": {"new"}}, "choose")
    assert stopped(edited) == ["big"]
    snapshot = client.get_state(graph, {"configurable": {"thread_id": "objects"}})
    assert snapshot.values["seen"] == {"a", "choose", "small", "new"}
    [task] = next(iter(edited.get_state_history(before=1))).tasks
    assert (task.name, task.result) == ("choose", {"n": 90, "seen": ["new"]})
    edited.resume()
    assert ended(edited).state()["way"] == "big"


def test_the_asynchronous_client_has_the_same(stack: Stack) -> None:
    async def edit() -> list[object]:
        async with AsyncClient(stack.settings) as client:
            run = await client.submit("chain", "hi", thread="async")
            await run.wait(60)
            edited = await client.update_state("chain", "async", {"fee": 9}, "third")
            assert (await client.get_state("chain", "async")).metadata is not None
            again = await run.update_state({"fee": 9}, "third")
            await again.cancel()
            history = [each.next async for each in client.get_state_history("chain", "async", limit=2)]
            assert (await run.get_state()).next == () and [each async for each in run.get_state_history(limit=1)]
            await edited.cancel()
            return [*history]

    assert len(asyncio.run(edit())) == 2
