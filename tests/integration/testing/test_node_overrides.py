"""Overrides and patches of nodes in this process: of agents, and of graphs in Python with graphs as nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

from sleipnir import START, StateGraph
from sleipnir.errors import UsageError
from sleipnir.python_graph.compiled import CompiledGraph
from sleipnir.settings import Settings
from sleipnir.testing import ModelServer, Reply, run
from sleipnir_inprocess.agent_run import AgentRun


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(lambda request: Reply("yes")) as server:
        yield server


class Words(TypedDict, total=False):
    word: str


def asks(name: str) -> StateGraph[Any, Any, Any, Any]:
    return StateGraph(Words).add_llm_node(name, prompt=name, model="openai:one", state_updates={"word": "{{output}}"})


def temperatures(model: ModelServer) -> dict[str, Any]:
    found = {request.prompt: request.body.get("temperature") for request in model.requests}
    model.requests.clear()
    return found


def nested() -> CompiledGraph:
    inner = asks("inner").add_edge(START, "inner").compile()
    outer = asks("outer").add_edge(START, "outer").add_node("expert", inner).add_edge("outer", "expert")
    return outer.compile()


def test_the_configuration_of_a_graph_in_python_overrides_its_llm_nodes_and_those_below(
    model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in model.env().items():
        monkeypatch.setenv(name, value)
    graph = nested()
    config = {"overrides": {"*": {"temperature": 0.1}, "expert/inner": {"temperature": 0.2}}}
    result = run(graph, {"word": "x"}, config=config, model=model)
    assert result.status == "completed", result.error
    assert temperatures(model) == {"outer": 0.1, "inner": 0.2}
    assert (
        run(graph.with_config({"overrides": {"expert": {"temperature": 0.3}}}), {}, model=model).status == "completed"
    )
    assert temperatures(model) == {"outer": None, "inner": 0.3}
    assert run(graph, {"word": "x"}, model=model).status == "completed"
    assert temperatures(model) == {"outer": None, "inner": None}, "the graph is as it was"
    with pytest.raises(UsageError, match="has no node 'inr'"):
        graph.invoke({"word": "x"}, {"overrides": {"expert/inr": {"temperature": 0}}})


def test_an_agent_in_this_process_has_them_too(model: ModelServer, tmp_path: Path) -> None:
    for name, next_ in (("child", "done"), ("parent", "call")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "graph.yaml").write_text(f"""
version: sleipnir/1
name: {name}
start: ask
nodes:
  ask: {{type: llm, model: "openai:one", prompt: "{name}", next: {next_}}}
  {"call: {type: agent, agent: child, prompt: go, next: done}" if name == "parent" else ""}
  done: {{type: end, output: over}}
""")
    options: Any = {"overrides": {"*": {"temperature": 1}}, "patches": {"call/ask#instruction": "Be brief."}}
    driven = AgentRun("parent", settings=Settings(agents_dir=tmp_path), env=model.env(), **options)
    for _ in driven.steps():
        pass
    assert driven.status == "completed", driven.error
    assert [request.system for request in model.requests] == [None, "Be brief."]
    assert temperatures(model) == {"parent": 1, "child": 1}
    assert driven.info().overrides == {"*": {"temperature": 1}, "call/ask": {"instruction": "Be brief."}}
