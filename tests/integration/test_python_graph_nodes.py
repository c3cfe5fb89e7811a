"""Nodes that are no functions, in a graph that runs in this process: a model over HTTP, a script as a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, TypedDict

import pytest

from sleipnir import END, START, HumanMessage, MessagesState, NodeInfo, NodeMiddleware, StateGraph
from sleipnir.python_graph.sources import unreachable
from sleipnir.testing import Call, ModelServer, Reply
from sleipnir_workers.processes import descendants


class State(TypedDict, total=False):
    topic: str
    text: str
    count: int


def choose(state: State) -> State:
    return {"topic": "bells"}


def test_an_llm_node_asks_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StateGraph(State).add_node(choose)
    builder.add_llm_node("ask", prompt="about {{topic}}", model="openai:gpt-test", state_updates={"text": "{{output}}"})
    graph = builder.add_edge(START, "choose").add_edge("choose", "ask").compile()
    with ModelServer(["ding"]) as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        assert graph.invoke({}) == {"topic": "bells", "text": "ding"}
        assert server.requests[0].prompt == "about bells"


def test_a_script_node_starts_the_script_beside_the_file_of_the_graph() -> None:
    script = Path(__file__).parent / "python_graph_nodes" / "count.py"
    assert script.is_file()
    builder = StateGraph(State).add_node(choose)
    builder.add_script_node("count", script="python_graph_nodes/count.py")
    graph = builder.add_edge(START, "choose").add_edge("choose", "count").compile()
    descendants.resign()  # if commands of other tests have run in this process
    was_subreaper = descendants.is_subreaper()
    assert graph.invoke({}) == {"topic": "bells", "count": 5}
    assert descendants.is_subreaper() == was_subreaper, "the orphans of other processes are left to the system"


class Noted(NodeMiddleware):
    """Notes what it runs around. Its functions are static: nothing of an object would be found on a worker."""

    seen: ClassVar[list[str]] = []

    @staticmethod
    def before(state: State, info: NodeInfo) -> None:
        Noted.seen.append(f"before {info.node}")

    @staticmethod
    def after(state: State, info: NodeInfo, result: Any, error: str | None) -> None:
        Noted.seen.append(f"after {info.node}")

    @staticmethod
    def on_error(state: State, info: NodeInfo, error: str) -> None:
        Noted.seen.append(f"error {info.node}")

    @staticmethod
    def before_model(state: State, info: NodeInfo, request: dict[str, Any]) -> None:
        request["messages"][-1]["content"] += "?"

    @staticmethod
    def after_tool(state: State, info: NodeInfo, call: Any, result: Any, error: str | None) -> Any:
        return None if error is None else "mended"


def doubled(n: int) -> int:
    raise ValueError("no luck")


class Chat(MessagesState, total=False):
    topic: str


def chat() -> StateGraph:
    builder = StateGraph(Chat).add_llm_node("ask", model="openai:gpt-test", middleware=Noted)
    builder.add_tools_node("work", [doubled], middleware=[Noted])
    builder.add_edge(START, "ask").add_tools_conditional_edges("ask", "work", END)
    return builder.add_edge("work", "ask")


def test_a_middleware_runs_around_nodes_models_and_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    Noted.seen.clear()
    graph = chat().compile()
    with ModelServer([Reply(calls=[Call("doubled", {"n": 2})]), "the end"]) as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        messages = graph.invoke({"messages": [HumanMessage("well")]})["messages"]
        assert server.requests[0].prompt == "well?"
        assert messages[0].content == "well", "what is stored stays"
        [result] = server.requests[1].tool_results
        assert result.text == '"mended"?', "before_model sees it too"
    assert messages[-1].content == "the end"
    assert Noted.seen == ["before ask", "after ask"] * 2


def test_a_middleware_of_the_graph_runs_around_all_nodes_and_its_after_in_the_reverse_order() -> None:
    seen: list[str] = []

    def named(name: str) -> type[NodeMiddleware]:
        class Named(NodeMiddleware):
            before = staticmethod(lambda state, info: seen.append(f"before {name}"))
            after = staticmethod(lambda state, info, result, error: seen.append(f"after {name}"))

        return Named

    builder = StateGraph(State).add_node(choose, middleware=[named("c"), named("d")])
    graph = builder.add_edge(START, "choose").compile(middleware=[named("a"), named("b")])
    assert graph.invoke({}) == {"topic": "bells"}
    assert seen == [*(f"before {name}" for name in "abcd"), *(f"after {name}" for name in "dcba")]


def test_what_is_no_middleware_is_refused_where_it_is_given() -> None:
    with pytest.raises(TypeError, match="middleware is a subclass of NodeMiddleware, not <function choose"):
        StateGraph(State).add_node(choose, middleware=choose)  # type: ignore[arg-type]


def test_a_callback_that_no_worker_finds_is_named_before_a_submission() -> None:
    graph = StateGraph(State).add_node(choose, middleware=Noted()).add_edge(START, "choose").compile()
    found = [problem.message for problem in unreachable(graph.parts, graph.references)]
    assert found == []
    graph = StateGraph(State).add_node(choose, before=lambda state, info: None).add_edge(START, "choose").compile()
    [message] = [problem.message for problem in unreachable(graph.parts, graph.references)]
    assert message == "the callback under `before` of node 'choose' cannot be found by a worker: it is a lambda"


@pytest.mark.parametrize("what", ["call", "context", "result"])
def test_what_a_callback_of_this_process_leaves_must_be_json(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def before(state: Chat, info: NodeInfo, call: dict[str, Any]) -> Any:
        if what == "call":
            call["arguments"]["n"] = object()
        elif what == "context":
            info.context["object"] = object()
        else:
            return object()
        return None

    class Odd(NodeMiddleware):
        before_tool = staticmethod(before)

    graph = chat().compile(middleware=Odd)
    with ModelServer([Reply(calls=[Call("doubled", {"n": 2})])]) as server:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Exception, match="not JSON"):
            graph.invoke({"messages": [HumanMessage("well")]})
