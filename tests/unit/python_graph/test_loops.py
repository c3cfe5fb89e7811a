"""Loops of a graph in this process: which calls of it stop at their limit, and go on."""

from __future__ import annotations

import operator
from typing import Annotated, TypedDict

import pytest

from sleipnir import END, START, InMemorySaver, StateGraph
from sleipnir.python_graph.errors import GraphBuildError, GraphRecursionError


class Steps(TypedDict, total=False):
    did: Annotated[list[str], operator.add]


@pytest.mark.conformance("LP-02")
def test_a_loop_that_reached_its_limit_goes_on_where_it_was() -> None:
    """Upstream counts the steps of both calls against the second limit. Here each call has its own, and that of one
    which goes on allows two steps more, as in LangGraph."""
    calls: list[str] = []

    def a(state: Steps) -> Steps:
        calls.append("a")
        return {"did": ["a"]}

    def b(state: Steps) -> Steps:
        calls.append("b")
        return {"did": ["b"]}

    builder = StateGraph(Steps).add_node("a", a).add_node("b", b).add_edge(START, "a").add_edge("a", "b")
    builder.add_conditional_edges("b", lambda state: "a", ["a", END])
    graph = builder.compile(checkpointer=InMemorySaver())

    def config(limit: int) -> dict[str, object]:
        return {"configurable": {"thread_id": "1"}, "recursion_limit": limit}

    with pytest.raises(GraphRecursionError):
        graph.invoke({}, config(2))
    assert calls == ["a", "b"]
    with pytest.raises(GraphRecursionError):
        graph.invoke(None, config(1))
    assert calls == ["a", "b", "a", "b", "a"], "nothing is repeated or left out"
    assert graph.get_state(config(1)).values == {"did": calls}


@pytest.mark.conformance("BD-06")
def test_a_condition_after_a_node_that_does_not_exist_is_refused() -> None:
    builder = StateGraph(Steps).add_node("a", lambda state: {}).add_edge(START, "a")
    builder.add_conditional_edges("missing", lambda state: END, ["a", END])
    with pytest.raises(GraphBuildError, match="missing"):
        builder.compile()
