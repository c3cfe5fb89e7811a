"""What is done before a run, with a builder that writes down its orders and makes an empty base."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sleipnir.agents.finding import describe
from sleipnir.errors import ConfigError, KnowledgeError, UsageError
from sleipnir.graph.load import load_agent, read_agent
from sleipnir.knowledge.application import Application
from sleipnir.knowledge.files import digest_of
from sleipnir.knowledge.order import BuildDone, BuildMessage, BuildNotice, Order
from sleipnir.knowledge.preparing import bases_of, existing_bases
from sleipnir.knowledge.recipe import Recipe
from sleipnir.knowledge.rules import BaseOptions, completed

FULL = "embedding_model: 'a:b', chunk_size: 500, chunk_overlap: 10"


@dataclass
class Builders:
    """`failing`: what the first build says is wrong with the documents."""

    failing: str = ""
    orders: list[Order] = field(default_factory=list)

    def __call__(self, order: Order, on_message: Callable[[BuildMessage], None]) -> Mapping[str, Any]:
        self.orders.append(order)
        if order.task == "index":
            return {"digest": "of what is there by now"}
        if self.failing and not order.go_on:
            raise KnowledgeError(self.failing, "sources")
        (Path(order.folder) / f"{order.node}.yaml").write_text(f"made for {order.node}\n")
        return {"node": order.node}


@dataclass
class Person:
    answers: list[bool]
    model: str | None = "none"
    asked: list[str] = field(default_factory=list)

    def confirm(self, question: str, *, default: bool) -> bool:
        self.asked.append(question)
        return self.answers.pop(0)

    def complete(self, wanted: BaseOptions, said: Application) -> BaseOptions | None:
        if self.model is None or wanted.missing is None:
            return None if self.model is None else wanted
        return completed(wanted, embedding_model=self.model)


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    monkeypatch.delenv("LOKI_CONFIG_FILE", raising=False)
    (tmp_path / "loki").mkdir()
    return tmp_path / "loki" / "config.yaml"


def graph_agent(tmp_path: Path, **nodes: str) -> Path:
    folder = tmp_path / "helper"
    folder.mkdir(exist_ok=True)
    written = "".join(f"  {name}: {{type: rag, documents: [d], next: end, {said}}}\n" for name, said in nodes.items())
    (folder / "graph.yaml").write_text(f"name: g\nstart: {next(iter(nodes))}\nnodes:\n{written}  end: {{type: end}}\n")
    return folder


def config_agent(tmp_path: Path, documents: str = "[d]") -> Path:
    folder = tmp_path / "helper"
    folder.mkdir()
    (folder / "config.yaml").write_text(f"name: g\ndocuments: {documents}\n")
    return folder


def prepared(
    folder: Path, builders: Builders, person: Person | None = None, *, shelved: bool = True
) -> tuple[dict[str, str], list[tuple[str, BuildMessage]]]:
    agent = read_agent(folder)
    graph = load_agent(agent).graph
    assert graph is not None
    told: list[tuple[str, BuildMessage]] = []
    found = bases_of(
        agent, graph, builders, lambda digest: shelved, person, lambda node, each: told.append((node, each))
    )
    return found, told


@pytest.mark.conformance("K05")
def test_a_base_that_exists_is_used_and_never_rebuilt(tmp_path: Path) -> None:
    folder, builders = graph_agent(tmp_path, look=FULL), Builders()
    (folder / "look.yaml").write_text("anything")
    (folder / "d").write_text("newer")
    before = (folder / "look.yaml").stat()
    assert prepared(folder, builders) == ({"look": digest_of(folder / "look.yaml")}, [])
    assert builders.orders == []
    assert (folder / "look.yaml").stat() == before

    (folder / "look.yaml").unlink()  # the way to have it built again
    found, told = prepared(folder, builders)
    assert [order.task for order in builders.orders] == ["build"]
    assert found == {"look": digest_of(folder / "look.yaml")}
    assert told == [("helper/look", BuildDone({"node": "look"}))]


@pytest.mark.conformance("K06")
def test_a_fully_specified_node_is_built_without_a_confirmation(tmp_path: Path, config: Path) -> None:
    config.write_text("document_loaders: {md: cat $1}\nrag_top_k: 3\n")
    builders, person = Builders(), Person([])
    folder = graph_agent(tmp_path, look=FULL, words="embedding_model: none")
    assert set(prepared(folder, builders, person)[0]) == {"look", "words"}
    assert person.asked == []
    loaders = {"md": "cat $1"}
    assert builders.orders == [
        Order("build", "helper", "look", str(folder), Recipe(("d",), "a:b", 500, 10, None, 3), loaders=loaders),
        Order("build", "helper", "words", str(folder), Recipe(("d",), None, 1000, 50, None, 3), loaders=loaders),
    ]


@pytest.mark.conformance("K07", "K09")
def test_a_refusal_comes_before_the_first_build(tmp_path: Path, config: Path) -> None:
    config.write_text("rag_embedding_model: a:b\nrag_chunk_size: 9\nrag_chunk_overlap: 1\n")
    folder, builders = graph_agent(tmp_path, look=FULL, vague="top_k: 3"), Builders()
    with pytest.raises(UsageError) as refused:
        prepared(folder, builders)
    assert str(refused.value).startswith("Agent 'helper' requires RAG for rag node 'vague', but its knowledge base is ")
    assert builders.orders == []

    prepared(folder, builders, Person([True], model="never:asked"))
    assert [order.recipe for order in builders.orders][1] == Recipe(("d",), "a:b", 9, 1, None, 3)


def test_after_a_refusal_the_error_names_the_required_base(tmp_path: Path) -> None:
    folder, builders = graph_agent(tmp_path, vague="top_k: 3"), Builders()
    for person in (Person([False]), Person([True], model=None)):
        with pytest.raises(UsageError, match="RAG initialization is required for this agent"):
            prepared(folder, builders, person)
        assert person.asked == ["Initialize RAG knowledge base for rag node 'vague'?"]
    assert builders.orders == []


def test_a_base_that_workers_do_not_find_is_indexed(tmp_path: Path) -> None:
    folder, builders = graph_agent(tmp_path, look="top_k: 3"), Builders()
    (folder / "look.yaml").write_text("from Loki")
    assert prepared(folder, builders, shelved=False)[0] == {"look": "of what is there by now"}
    assert builders.orders == [Order("index", "helper", "look", str(folder))]


def test_a_person_may_continue_without_documents_that_fail(tmp_path: Path) -> None:
    folder, builders, person = graph_agent(tmp_path, look=FULL), Builders(failing="d: is encrypted"), Person([True])
    _, told = prepared(folder, builders, person)
    assert told == [("helper/look", BuildDone({"node": "look"}))]
    assert person.asked == ["Some documents failed to load. Continue?"]
    assert [order.go_on for order in builders.orders] == [False, True]


@pytest.mark.parametrize(
    ("failing", "person", "message"),
    [
        ("d: is encrypted", None, "d: is encrypted"),
        ("d: is encrypted", Person([False]), "Aborted"),
        ("No RAG files", Person([]), "No RAG files"),  # there is nothing to go on with
    ],
)
def test_otherwise_documents_that_fail_stop_it(
    tmp_path: Path, failing: str, person: Person | None, message: str
) -> None:
    builders = Builders(failing=failing)
    with pytest.raises(KnowledgeError, match=f"^{message}$"):
        prepared(graph_agent(tmp_path, look=FULL), builders, person)
    assert len(builders.orders) == 1


def test_documents_of_a_config_agent_are_a_help_and_no_need(tmp_path: Path, config: Path) -> None:
    folder, builders = config_agent(tmp_path), Builders()
    found, ((node, notice),) = prepared(folder, builders)
    assert (found, node, builders.orders) == ({}, "helper/rag", [])
    assert isinstance(notice, BuildNotice)
    assert "runs without its documents" in notice.text

    declining = Person([False])
    assert prepared(folder, builders, declining) == ({}, [])
    assert declining.asked == ["The agent has documents attached, init RAG?"]

    config.write_text("rag_embedding_model: none\n")
    assert prepared(folder, builders)[0] == {"rag": digest_of(folder / "rag.yaml")}


@pytest.mark.conformance("K08")
def test_looking_at_an_agent_builds_nothing(tmp_path: Path) -> None:
    folder = graph_agent(tmp_path, look=FULL)
    agent = read_agent(folder)
    graph = load_agent(agent).graph
    assert graph is not None
    assert existing_bases(agent, graph) == {}
    assert describe(folder).kind == "graph"
    assert [path.name for path in folder.iterdir()] == ["graph.yaml"]


def test_a_configuration_that_is_wrong_stops_only_who_needs_it(tmp_path: Path, config: Path) -> None:
    config.write_text("rag_top_k: none\n")
    folder = graph_agent(tmp_path, look=FULL)
    with pytest.raises(ConfigError, match=r"config.yaml:1:1: rag_top_k"):
        prepared(folder, Builders())
    (folder / "look.yaml").write_text("there")
    assert prepared(folder, Builders())[0].keys() == {"look"}
