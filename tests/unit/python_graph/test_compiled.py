"""A compiled graph: its drawings, its configuration, batches, and the async forms of its calls."""

from __future__ import annotations

import asyncio
import gc
import operator
import threading
from typing import Annotated, Any, TypedDict

import pytest

from sleipnir import END, START, Command, GraphRecursionError, InMemorySaver, RetryPolicy, StateGraph, interrupt
from sleipnir.graph import draw
from sleipnir.memory.store import MemoryRun
from sleipnir.python_graph.compiled import CompiledGraph

pytestmark = pytest.mark.filterwarnings("ignore:Node .* is unreachable")  # some graphs here have parts only


class State(TypedDict):
    n: int
    seen: Annotated[list[Any], operator.add]


def note(state: State, config: Any) -> dict[str, Any]:
    return {"seen": [config["configurable"].get("who"), config["tags"]]}


def counting() -> StateGraph:
    graph = StateGraph(State).add_node("up", lambda state: {"n": state["n"] + 1}).add_edge(START, "up")
    return graph.add_conditional_edges("up", lambda state: END if state["n"] > 3 else "up", ["up", END])


def test_a_graph_is_drawn_in_the_forms_of_the_command_line() -> None:
    graph = counting().compile()
    forms = {"mermaid": draw.mermaid, "dot": draw.dot, "svg": draw.svg, "text": draw.outline}
    for form, writer in forms.items():
        assert graph.draw(form) == writer(graph.model)  # type: ignore[arg-type]
    assert graph.draw() == graph.get_graph(xray=True).draw_mermaid(with_styles=False) == draw.mermaid(graph.model)
    assert graph.get_graph().draw_ascii() == draw.outline(graph.model)
    assert "up" in graph.draw()
    with pytest.raises(ValueError, match="unknown form 'png': there are mermaid, dot, svg and text"):
        graph.draw("png")  # type: ignore[arg-type]


def test_a_bound_configuration_is_below_that_of_a_call() -> None:
    graph = StateGraph(State).add_node("note", note).add_edge(START, "note").compile()
    bound = graph.with_config({"configurable": {"who": "ann"}}, tags=["t"])
    assert graph.invoke({})["seen"] == [None, None]
    assert bound.invoke({})["seen"] == ["ann", ["t"]]
    assert bound.with_config(tags=["u"]).invoke({})["seen"] == ["ann", ["u"]]
    assert bound.invoke({}, {"configurable": {"who": "bob"}})["seen"] == ["bob", ["t"]]
    assert bound.invoke({}, {"configurable": {"other": 1}})["seen"] == ["ann", ["t"]]


def test_a_bound_limit_of_steps_is_in_force() -> None:
    with pytest.raises(GraphRecursionError):
        counting().compile().with_config(recursion_limit=2).invoke({"n": 0})


def test_a_bound_thread_is_a_thread_of_the_graph() -> None:
    graph = StateGraph(State).add_node("note", note).add_edge(START, "note").compile(checkpointer=InMemorySaver())
    bound = graph.with_config(configurable={"thread_id": "1", "who": "ann"})
    bound.invoke({})
    assert graph.invoke({}, {"configurable": {"thread_id": "1"}})["seen"] == ["ann", None, None, None]


def test_a_batch_gives_the_results_in_the_order_of_the_inputs() -> None:
    graph = StateGraph(State).add_node("note", note).add_edge(START, "note").compile()
    inputs = [{"n": number} for number in range(5)]
    assert [each["n"] for each in graph.batch(inputs)] == [0, 1, 2, 3, 4]
    configs = [{"configurable": {"who": str(number)}} for number in range(5)]
    assert [each["seen"][0] for each in graph.batch(inputs, configs)] == ["0", "1", "2", "3", "4"]
    assert asyncio.run(graph.abatch(inputs, configs)) == graph.batch(inputs, configs)


def test_async_calls_give_what_the_others_give() -> None:
    async def up(state: State) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"n": state["n"] + 1}

    async def route(state: State) -> str:
        return END if state["n"] > 2 else "up"

    graph = StateGraph(State).add_node("up", up).add_edge(START, "up").add_conditional_edges("up", route).compile()

    async def chunks() -> list[Any]:
        return [chunk async for chunk in graph.astream({"n": 0})]

    assert graph.invoke({"n": 0})["n"] == asyncio.run(graph.ainvoke({"n": 0}))["n"] == 3
    assert asyncio.run(chunks()) == list(graph.stream({"n": 0})) == [{"up": {"n": number}} for number in (1, 2, 3)]


def test_async_nodes_run_where_an_event_loop_runs() -> None:
    async def up(state: State) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"n": 7}

    graph = StateGraph(State).add_node("up", up).add_edge(START, "up").compile()

    async def main() -> Any:
        return graph.invoke({"n": 0})["n"]

    assert asyncio.run(main()) == 7


def test_the_name_of_a_graph_has_a_default() -> None:
    assert counting().compile().name == "LangGraph"
    assert counting().compile(name="mine").model.name == "mine"


def test_what_is_added_after_the_compilation_is_logged_and_not_in_the_compiled_graph(caplog: Any) -> None:
    graph = counting()
    compiled = graph.compile()
    before = compiled.to_yaml()
    graph.add_node("late", note).add_edge("up", "late")
    assert "node 'late' is added to a graph that is compiled already" in caplog.text
    assert compiled.translated(compiled.references).graph == compiled.model
    assert compiled.to_yaml() == before
    assert "late" in graph.compile().model.nodes


def test_defaults_apply_to_functions_without_a_policy_of_their_own() -> None:
    graph = StateGraph(State).add_node("one", note).add_node("two", note, retry_policy=RetryPolicy(max_attempts=9))
    graph.add_llm_node("ask", prompt="x").add_edge(START, "one")
    nodes = graph.set_node_defaults(retry_policy=RetryPolicy(max_attempts=5), timeout=7).compile().model.nodes
    assert [[policy.max_attempts for policy in nodes[name].retry] for name in ("one", "two")] == [[5], [9]]
    assert (nodes["one"].timeout, nodes["two"].timeout, nodes["ask"].retry) == (7, 7, None)


def test_an_unknown_breakpoint_is_an_error() -> None:
    for way in ("interrupt_before", "interrupt_after"):
        with pytest.raises(ValueError, match="Interrupt node `z` not found"):
            counting().compile(**{way: ["z"]})


class Meetings(TypedDict):
    met: Annotated[list[bool], operator.add]


def test_max_concurrency_limits_the_nodes_that_run_at_once() -> None:
    def wait_at(barrier: threading.Barrier, timeout_s: float) -> CompiledGraph:
        def meet(state: Meetings) -> dict[str, list[bool]]:
            try:
                barrier.wait(timeout_s)
            except threading.BrokenBarrierError:
                return {"met": [False]}
            return {"met": [True]}

        both = StateGraph(Meetings).add_node("left", meet).add_node("right", meet)
        return both.add_edge(START, "left").add_edge(START, "right").compile()

    assert wait_at(threading.Barrier(2), 60).invoke({})["met"] == [True, True]
    alone = wait_at(threading.Barrier(2), 0.05)
    assert alone.invoke({}, {"max_concurrency": 1})["met"] == [False, False]
    with pytest.raises(ValueError, match="max_concurrency must be at least 1"):
        alone.invoke({}, {"max_concurrency": 0})


def test_of_a_thread_whose_run_has_completed_only_its_history_is_kept() -> None:
    graph = counting().compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "a"}}
    assert graph.invoke({"n": 0}, config)["n"] == 4
    gc.collect()
    (run,) = graph.threads["a"].runs
    assert run.store is None
    assert [len(entry) for entry in run.entries] == [len(run.entries[1]) + 2, *[len(run.entries[1])] * 4]
    assert graph.invoke(Command(resume="nobody asked"), config)["n"] == 4
    assert graph.invoke({"seen": ["more"]}, config) == {"n": 5, "seen": ["more"]}
    graph.delete_thread("a")
    assert graph.threads == {}


def test_of_a_thread_whose_run_waits_everything_is_kept() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"seen": [interrupt("how many?")]}

    graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "a"}}
    assert "__interrupt__" in graph.invoke({"n": 0}, config)
    assert graph.invoke(Command(resume=2), config) == {"n": 0, "seen": [2]}


def test_a_run_that_is_over_waits_for_no_garbage_collection() -> None:
    graph = counting().compile()
    gc.collect()
    gc.disable()
    try:
        runs = sum(isinstance(each, MemoryRun) for each in gc.get_objects())
        graph.invoke({"n": 0})
        assert sum(isinstance(each, MemoryRun) for each in gc.get_objects()) == runs
    finally:
        gc.enable()
