"""The limit of super-steps of a run on the fleet, which the planner checks, is that of a call in this process."""

from __future__ import annotations

import json
import operator
from itertools import pairwise
from typing import Annotated, TypedDict

import pytest

from sleipnir import END, START, GraphRecursionError, StateGraph
from sleipnir.memory.store import MemoryRun, MemoryStore
from sleipnir.memory.values import json_text
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.initial_state import first_state
from sleipnir.python_graph.runtime import Runtime
from sleipnir.runs.run import RunSpec
from sleipnir_inprocess.execution import Executor
from sleipnir_inprocess.runner import Runner
from sleipnir_inprocess.streams import Form, Stream


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def add(state: State) -> dict[str, list[str]]:
    return {"log": ["x"]}


def left_or_right(state: State) -> list[str]:
    return ["left", "right"]


def is_long(state: State) -> bool:
    return len(state["log"]) >= 4


def built(*names: str) -> StateGraph[State]:
    builder = StateGraph(State)
    for name in names:
        builder.add_node(name, add)
    return builder


GRAPHS = {
    "chain": built("a", "b", "c").add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", END),
    "parallel": built("left", "right", "both")
    .add_edge(START, "left")
    .add_edge(START, "right")
    .add_edge(["left", "right"], "both"),
    "routed start": built("left", "right").add_conditional_edges(START, left_or_right, ["left", "right"]),
    "loop": built("again")
    .add_edge(START, "again")
    .add_conditional_edges("again", is_long, {True: END, False: "again"}),
    "deferred": built("a", "b")
    .add_node("last", add, defer=True)
    .add_edge(START, "a")
    .add_edge("a", "b")
    .add_edge("a", "last")
    .add_edge("b", "last"),
}


def here(graph: CompiledGraph, limit: int) -> str | list[str]:
    try:
        return list(graph.invoke({"log": []}, {"recursion_limit": limit})["log"])
    except GraphRecursionError as error:
        return str(error)


class Planned:
    """A run with the limit in its spec, as on the fleet."""

    def __init__(self, graph: CompiledGraph, limit: int) -> None:
        self.store, self.graph = MemoryStore(), graph
        spec = RunSpec(graph.name, "bundle", by_version=True, config={"recursion_limit": limit})
        state = first_state(graph.parts, graph.objects, {"log": []})
        self.store.create("run", spec, {name: json_text(value) for name, value in state.items()})

    def drive(self) -> MemoryRun:
        executor = Executor(self.graph, {}, Runtime(), Stream(Form(())))
        Runner(self.store, "run", lambda spec: self.graph.model, executor).drive()
        return self.store.runs["run"]


def planned(graph: CompiledGraph, limit: int) -> str | list[str]:
    run = Planned(graph, limit).drive()
    if run.status == "completed":
        return ["x"] * run.values.state["log"].count("x")
    assert run.status == "failed"
    return str(run.error).partition(": ")[2]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_planner_and_a_call_in_this_process_stop_at_the_same_super_step(name: str) -> None:
    graph = GRAPHS[name].compile()
    found = {limit: planned(graph, limit) for limit in range(1, 7)}
    assert found == {limit: here(graph, limit) for limit in range(1, 7)}
    assert isinstance(found[1], str) and isinstance(found[6], list)


@pytest.mark.parametrize("name", ["chain", "loop", "routed start"])
def test_each_retry_of_a_run_that_reached_the_limit_gives_it_the_limit_again(name: str) -> None:
    builder = built("again").add_conditional_edges(
        "again", lambda state: len(state["log"]) >= 10, {True: END, False: "again"}
    )
    if name == "chain":
        builder = built(*"abcdefghij").add_edge(START, "a").add_edge("j", END)
        for first, second in pairwise("abcdefghij"):
            builder.add_edge(first, second)
    elif name == "loop":
        builder.add_edge(START, "again")
    else:
        builder.add_conditional_edges(START, lambda state: "again", ["again"])
    run, done = Planned(builder.compile(), 3), []
    while (ended := run.drive()).status == "failed":
        done.append(len(json.loads(ended.values.state["log"])))
        run.store.retry("run")
    assert ended.status == "completed"
    assert done == [3, 8], "as in LangGraph, where a call that goes on does not count its input"
    assert len(json.loads(ended.values.state["log"])) == 10
