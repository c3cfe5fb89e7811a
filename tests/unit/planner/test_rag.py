"""Rag nodes, of graphs and of agents with documents (spec 2.7.6, 8.7)."""

from __future__ import annotations

from dataclasses import replace

from sleipnir.graph.config_agent import load_config_agent
from sleipnir.runs.events import Submitted
from sleipnir.runs.run import RunSpec
from tests.model_store import Driver, bad, ok

GRAPH = """
name: g
start: look
nodes:
  look: {type: rag, documents: [d], state_updates: {found: "{{output.context}}"}, next: e}
  e: {type: end, output: "{{found}}"}
"""


def test_a_rag_node_is_work_for_the_queue_rag() -> None:
    driver = Driver(GRAPH)
    assert [visit.queue for visit in driver.send(Submitted()).dispatches] == ["rag"]
    assert driver.send(ok(1)).status == "completed"


def test_a_search_that_fails_fails_the_run() -> None:
    driver = Driver(GRAPH).start()
    failed = driver.send(bad(1, "rag node 'look' has no initialized knowledge base"))
    assert failed.status == "failed"
    assert failed.error is not None and "rag node 'look' has no initialized knowledge base" in failed.error


def agent(knowledge: dict[str, str], text: str = "name: a\ndocuments: [d.md]") -> Driver:
    graph = load_config_agent(text, "config.yaml", "a").graph
    assert graph is not None
    driver = Driver(graph, {"initial_prompt": "Who?"})
    driver.run = replace(driver.run, spec=RunSpec("agent", "digest", knowledge=knowledge))
    return driver


def test_an_agent_looks_in_its_documents_before_it_is_asked() -> None:
    driver = agent({"agent/rag": "d1"})
    assert [(each.node, each.queue) for each in driver.send(Submitted()).dispatches] == [("rag", "rag")]
    assert [each.node for each in driver.send(ok(1)).dispatches] == ["agent"]


def test_an_agent_without_a_knowledge_base_is_asked_immediately() -> None:
    assert [each.node for each in agent({}).send(Submitted()).dispatches] == ["agent"]
    assert [each.node for each in agent({"other/rag": "d1"}).send(Submitted()).dispatches] == ["agent"]


def test_instructions_are_made_first() -> None:
    driver = agent({"agent/rag": "d1"}, "name: a\ndynamic_instructions: true\ndocuments: [d.md]")
    assert [each.node for each in driver.send(Submitted()).dispatches] == ["instructions"]
    assert [each.node for each in driver.send(ok(1)).dispatches] == ["rag"]
