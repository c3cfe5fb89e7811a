"""The limit of super-steps of a run on the fleet, which the planner checks, is that of a call in this process."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

import pytest

from sleipnir import END, START, GraphRecursionError, StateGraph
from sleipnir.memory.store import MemoryStore
from sleipnir.memory.values import json_text
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.initial_state import first_state
from sleipnir.python_graph.runtime import Runtime
from sleipnir.runs.failure_text import recursion_limit_text
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


def planned(graph: CompiledGraph, limit: int) -> str | list[str]:
    """The same with the limit in the spec of the run, as on the fleet."""
    store = MemoryStore()
    spec = RunSpec(graph.name, "bundle", by_version=True, config={"recursion_limit": limit})
    state = first_state(graph.parts, graph.objects, {"log": []})
    store.create("run", spec, {name: json_text(value) for name, value in state.items()})
    executor = Executor(graph, {}, Runtime(), Stream(Form(())))
    Runner(store, "run", lambda spec: graph.model, executor).drive()
    run = store.runs["run"]
    if run.status == "completed":
        return ["x"] * run.values.state["log"].count("x")
    assert run.status == "failed"
    return recursion_limit_text(run.error or "") or ""


@pytest.mark.parametrize("name", GRAPHS)
def test_the_planner_and_a_call_in_this_process_stop_at_the_same_super_step(name: str) -> None:
    graph = GRAPHS[name].compile()
    found = {limit: planned(graph, limit) for limit in range(1, 7)}
    assert found == {limit: here(graph, limit) for limit in range(1, 7)}
    assert isinstance(found[1], str) and isinstance(found[6], list)
