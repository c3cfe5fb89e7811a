"""compile(cache=) and CachePolicy in process."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, CachePolicy, Command, InMemoryCache, Send, StateGraph
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.python_graph.errors import GraphBuildError


class State(TypedDict, total=False):
    n: int
    noise: str
    out: int
    seen: Annotated[list[Any], operator.add]


RAN: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


def double(state: State) -> dict[str, Any]:
    RAN.append("double")
    return {"out": state["n"] * 2, "seen": [state["n"]]}


def by_n(state: State) -> int:
    return state["n"]


def graph(policy: CachePolicy | None = None, cache: Any = None, action: Any = double) -> CompiledGraph:
    builder = StateGraph(State).add_node("double", action, cache_policy=policy or CachePolicy(key_func=by_n))
    return builder.add_edge(START, "double").compile(cache=InMemoryCache() if cache is None else cache)


@pytest.mark.conformance("CA-01", "CA-03", "CA-06")
def test_the_second_call_has_the_first_one_s_result() -> None:
    compiled = graph()
    first, second = compiled.invoke({"n": 21}), compiled.invoke({"n": 21, "noise": "x"})
    assert (first, second) == ({"n": 21, "out": 42, "seen": [21]}, {"n": 21, "noise": "x", "out": 42, "seen": [21]})
    first["seen"].append("changed")
    assert compiled.invoke({"n": 21})["seen"] == [21]
    assert RAN == ["double"]
    chunks = list(compiled.stream({"n": 21}))
    assert chunks == [{"double": {"out": 42, "seen": [21]}, "__metadata__": {"cached": True}}]


def test_without_a_cache_a_policy_has_no_effect() -> None:
    compiled = graph(cache=False)
    for _ in range(2):
        compiled.invoke({"n": 1})
    assert RAN == ["double"] * 2
    with pytest.raises(ValueError, match="No cache is set"):
        compiled.clear_cache()


def test_without_a_policy_a_cache_has_no_effect() -> None:
    builder = StateGraph(State).add_node("double", double).add_edge(START, "double")
    compiled = builder.compile(cache=InMemoryCache())
    for _ in range(2):
        compiled.invoke({"n": 1})
    assert RAN == ["double"] * 2


@pytest.mark.conformance("CA-05")
def test_a_cleared_node_is_executed_again_and_others_are_not() -> None:
    builder = StateGraph(State)
    for name in ("a", "b"):
        builder.add_node(name, lambda state, name=name: RAN.append(name), cache_policy=CachePolicy(key_func=by_n))
    compiled = builder.add_edge(START, "a").add_edge("a", "b").add_edge("b", END).compile(cache=InMemoryCache())
    compiled.invoke({"n": 1})
    compiled.clear_cache(["a"])
    compiled.invoke({"n": 1})
    assert RAN == ["a", "b", "a"]
    asyncio.run(compiled.aclear_cache())
    compiled.invoke({"n": 1})
    assert RAN == ["a", "b", "a", "a", "b"]


@pytest.mark.conformance("CA-12")
def test_a_cached_command_and_a_cached_send_lead_on_again() -> None:
    def choose(state: State) -> Command[Any]:
        RAN.append("choose")
        sends = [Send("count", {"n": number}) for number in range(2)]
        return Command(update={"out": 7}, goto=["count", *sends])

    def count(state: State) -> dict[str, Any]:
        return {"seen": [state["n"]]}

    builder = StateGraph(State).add_node("choose", choose, cache_policy=CachePolicy()).add_node("count", count)
    compiled = builder.add_edge(START, "choose").compile(cache=InMemoryCache())
    results = [compiled.invoke({"n": 9}) for _ in range(2)]
    assert RAN == ["choose"]
    assert results[0] == results[1] == {"n": 9, "out": 7, "seen": [9, 0, 1]}


@pytest.mark.conformance("CA-11")
def test_a_node_that_raises_is_executed_again() -> None:
    def fails(state: State) -> dict[str, Any]:
        RAN.append("fails")
        if len(RAN) == 1:
            raise ValueError("on purpose")
        return {"out": 1}

    compiled = graph(action=fails)
    with pytest.raises(ValueError, match="on purpose"):
        compiled.invoke({"n": 1})
    for _ in range(2):
        assert compiled.invoke({"n": 1})["out"] == 1
    assert RAN == ["fails"] * 2


def test_graphs_with_one_cache_share_the_results_of_one_function_only() -> None:
    shared = InMemoryCache()
    same = [graph(cache=shared) for _ in range(2)]
    for compiled in same:
        compiled.invoke({"n": 1})
    assert RAN == ["double"]
    closures = [graph(cache=shared, action=lambda state, by=by: {"out": by}) for by in (1, 2)]
    assert [compiled.invoke({"n": 1})["out"] for compiled in closures] == [1, 2]


def test_a_policy_of_the_builder_applies_to_its_functions() -> None:
    below = graph(cache=False)
    builder = StateGraph(State).set_node_defaults(cache_policy=CachePolicy(ttl=60, key_func=by_n))
    builder.add_node("double", double).add_node("below", below)
    compiled = builder.add_edge(START, "double").add_edge("double", "below").compile(cache=InMemoryCache())
    for _ in range(2):
        compiled.invoke({"n": 1})
    assert RAN == ["double"] * 3, "the graph below has a cache of its own, or none"
    assert "ttl: 60000ms" in compiled.to_yaml()


def test_a_graph_as_a_node_has_no_policy() -> None:
    builder = StateGraph(State).add_node("below", graph(), cache_policy=CachePolicy()).add_edge(START, "below")
    with pytest.raises(GraphBuildError, match="Node `below` is a graph, which has no cache_policy"):
        builder.compile(cache=InMemoryCache())


def test_calls_at_once_with_one_input_execute_once() -> None:
    compiled = graph()
    results = asyncio.run(compiled.abatch([{"n": 4}] * 20))
    assert [result["out"] for result in results] == [8] * 20
    assert RAN == ["double"]
