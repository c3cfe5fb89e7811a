"""When a base is built, asked for, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.graph.model import RagNode
from sleipnir.knowledge.application import Application
from sleipnir.knowledge.recipe import Recipe
from sleipnir.knowledge.rules import (
    AskToBuild,
    BaseOptions,
    BuildBase,
    Decision,
    RefuseRun,
    RunWithout,
    UseBase,
    completed,
    decide_documents,
    decide_node,
    options_of,
)

COMPLETE = Application(embedding_model="a:b", chunk_size=800, chunk_overlap=80, top_k=9, reranker_model="r:r")
FULL: dict[str, Any] = {"embedding_model": "c:d", "chunk_size": 500, "chunk_overlap": 0}


def node(**said: Any) -> RagNode:
    return RagNode(**{"id": "look", "documents": ["docs/"], **said})


def decided(said: RagNode, application: Application = Application(), *, can_ask: bool = False) -> Decision:  # noqa: B008
    return decide_node("helper", said, application, exists=False, can_ask=can_ask)


@pytest.mark.conformance("K05")
@pytest.mark.parametrize("said", [node(), node(**FULL), node(documents=[])])
def test_an_existing_base_is_used_regardless_of_the_keys_of_the_node(said: RagNode) -> None:
    assert decide_node("helper", said, COMPLETE, exists=True, can_ask=True) == UseBase()


@pytest.mark.conformance("K06")
@pytest.mark.parametrize("can_ask", [True, False])
def test_a_fully_specified_node_is_built_without_a_question(can_ask: bool) -> None:
    said = node(**FULL, batch_size=3)
    assert decided(said, can_ask=can_ask) == BuildBase(Recipe(("docs/",), "c:d", 500, 0, None, 5, 3))
    assert decided(said, COMPLETE, can_ask=can_ask) == BuildBase(Recipe(("docs/",), "c:d", 500, 0, "r:r", 9, 3))


def test_no_model_is_fully_specified_and_takes_no_sizes_from_the_application() -> None:
    assert decided(node(embedding_model="none"), COMPLETE) == BuildBase(Recipe(("docs/",), None, 1000, 50, "r:r", 9))
    assert decided(node(embedding_model="none", chunk_size=400)) == BuildBase(Recipe(("docs/",), None, 400, 20))


@pytest.mark.conformance("K07")
@pytest.mark.parametrize("missing", ["embedding_model", "chunk_size", "chunk_overlap"])
def test_an_incomplete_node_is_refused_if_no_person_can_be_asked(missing: str) -> None:
    refused = decided(node(**{name: value for name, value in FULL.items() if name != missing}), COMPLETE)
    assert isinstance(refused, RefuseRun)
    assert refused.message == (
        "Agent 'helper' requires RAG for rag node 'look', but its knowledge base is not built and the node does not "
        "fully specify how to build it. Set `embedding_model`, `chunk_size`, and `chunk_overlap` on the node, or run "
        "the agent once interactively."
    )
    assert "embedding_model: none" in refused.hint


@pytest.mark.conformance("K09")
def test_a_person_is_asked_and_missing_keys_of_the_node_are_from_the_application() -> None:
    asked = decided(node(chunk_size=300), COMPLETE, can_ask=True)
    assert asked == AskToBuild(
        "Initialize RAG knowledge base for rag node 'look'?",
        BaseOptions(("docs/",), "a:b", 300, 80, "r:r", 9),
        RefuseRun(
            "Agent 'helper' has rag node 'look' but its RAG was not initialized. "
            "RAG initialization is required for this agent."
        ),
    )
    assert isinstance(asked, AskToBuild)
    assert asked.options.missing is None


@pytest.mark.parametrize("can_ask", [True, False])
def test_no_documents_are_refused(can_ask: bool) -> None:
    refused = RefuseRun("Cannot build RAG knowledge base 'look' with no documents")
    assert decided(node(**FULL, documents=[]), can_ask=can_ask) == refused


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({}, "an embedding model. Set `embedding_model` on the rag node, or run the agent interactively once."),
        ({"embedding_model": "a:b"}, "a chunk_size. Set `chunk_size` on the rag node, or run the agent interactively"),
        ({"embedding_model": "a:b", "chunk_size": 9}, "a chunk_overlap. Set `chunk_overlap` on the rag node"),
    ],
)
def test_the_first_missing_value_is_named(said: dict[str, Any], what: str) -> None:
    missing = options_of(node(**said), ["docs/"], Application()).missing
    assert missing is not None
    assert missing.startswith(f"RAG knowledge base needs {what}")


def test_the_answers_of_a_person_complete_it() -> None:
    wanted = completed(BaseOptions(("d",)), embedding_model="none", chunk_overlap=0)
    assert wanted.missing is None
    assert wanted.recipe() == Recipe(("d",), None, 1000, 0)


def documents(application: Application, *, can_ask: bool, listed: tuple[str, ...] = ("d",)) -> Decision:
    return decide_documents("helper", listed, application, exists=False, can_ask=can_ask)


def test_documents_of_a_config_agent_are_built_if_the_application_has_all_values() -> None:
    expected = BuildBase(Recipe(("d",), "a:b", 800, 80, "r:r", 9))
    assert documents(COMPLETE, can_ask=True) == documents(COMPLETE, can_ask=False) == expected
    assert documents(Application(embedding_model="none"), can_ask=False) == BuildBase(Recipe(("d",), None))


def test_documents_of_a_config_agent_are_asked_for_and_never_a_must() -> None:
    asked = documents(Application(), can_ask=True)
    assert asked == AskToBuild("The agent has documents attached, init RAG?", BaseOptions(("d",)), RunWithout())
    alone = documents(Application(), can_ask=False)
    assert isinstance(alone, RunWithout)
    assert "kb build helper" in alone.notice
    assert documents(Application(), can_ask=True, listed=()) == RunWithout()
    assert decide_documents("helper", (), Application(), exists=True, can_ask=False) == UseBase()
