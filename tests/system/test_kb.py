"""`sleipnir kb`, and what a submission does about bases, with a real Redis and a scripted model server."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sleipnir.cli import main
from sleipnir.client.client import Client
from sleipnir.errors import KnowledgeError, SleipnirError, UsageError
from sleipnir.knowledge.builder import Builder
from sleipnir.knowledge.order import BuildDone, BuildMessage, Order, message_line, message_of, order_of
from sleipnir.settings import Settings
from sleipnir.testing.server import ModelServer
from sleipnir_workers.knowledge.__main__ import kind_of
from sleipnir_workers.knowledge.build import run
from sleipnir_workers.machine.host import Host
from tests.processes import RedisServer

GRAPH = """\
name: helper
start: look
nodes:
  look: {{type: rag, documents: [docs/, gone.md], {said}, state_updates: {{c: "{{{{output.context}}}}"}}, next: done}}
  done: {{type: end}}
"""
WORDS = "embedding_model: none"
VECTORS = "embedding_model: 'fake:embedder', chunk_size: 200, chunk_overlap: 0"


@pytest.fixture(scope="module")
def model_server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def agent(
    tmp_path: Path, redis_server: RedisServer, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of the agent `helper`, whose documents are two; its graph is still to be written."""
    folder = tmp_path / "agents" / "helper"
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "storms.md").write_text("# Storms\n\nA gale tears the sails of a ship.\n")
    (folder / "docs" / "bread.md").write_text("# Bread\n\nYeast makes the dough rise.\n")
    for name, value in {
        **model_server.env("fake"),
        "SLEIPNIR_AGENTS_DIR": str(tmp_path / "agents"),
        "SLEIPNIR_HOME": str(tmp_path / "home"),
        **{f"SLEIPNIR_{name.upper()}": url for name, url in redis_server.addresses.items()},
        "SLEIPNIR_KEY_PREFIX": f"kb{os.getpid()}",
        "LOKI_CONFIG_DIR": str(tmp_path / "loki"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builders carry out their orders in this process, by the same lines: starting one costs a second. Whatever needs
    one of its own is in test_knowledge_builds.py."""

    def carry_out(self: Builder, order: Order, on_message: Callable[[BuildMessage], None]) -> Mapping[str, Any]:
        host = Host(dict(os.environ), Settings.from_env())
        try:
            done = run(order_of(order.line()), host, lambda told: on_message(message_of(message_line(told))))
        except SleipnirError as error:
            raise KnowledgeError(str(error), kind_of(error)) from error
        told = message_of(message_line(done))
        assert isinstance(told, BuildDone)
        return told.value

    monkeypatch.setattr(Builder, "carry_out", carry_out)


def says(folder: Path, said: str) -> None:
    (folder / "graph.yaml").write_text(GRAPH.format(said=said))


def kb(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["kb", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.conformance("K05")
@pytest.mark.usefixtures("at_hand")
def test_a_base_of_keywords_is_built_once_shown_and_searched(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says(agent, WORDS)
    (built,) = kb(capsys, "build", "helper")
    assert (built["embedding_model"], built["chunks"], built["top_k"]) == (None, 2, 5)
    assert set(built["sources"]) == {str(agent / "docs" / name) for name in ("storms.md", "bread.md")}
    assert ["gone.md" in notice for notice in built["notices"]] == [True]

    before = (agent / "look.yaml").stat().st_mtime_ns
    (agent / "docs" / "ships.md").write_text("A new ship.\n")
    index_store = agent.parents[1] / "home" / "knowledge"
    shutil.rmtree(index_store / built["digest"])
    assert kb(capsys, "build", "helper") == [{**built, "notices": []}]
    assert (agent / "look.yaml").stat().st_mtime_ns == before
    assert (index_store / built["digest"]).is_dir()
    assert main(["kb", "build", "helper", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert (told.out, "look: is built already" in told.err) == ("", True)

    (shown,) = kb(capsys, "show", "helper", "look")
    assert {**shown, "notices": built["notices"]} == built
    found = kb(capsys, "search", "helper", "sails in a gale")
    assert found["sources"] == [str(agent / "docs" / "storms.md")]
    assert found["hits"][0]["lines"] == [1, 3]
    assert main(["kb", "search", "helper", "look", "yeast"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("1. docs/bread.md:1-3  ")
    assert told.err == "searched by keywords only, no embedding model\n"
    assert main(["kb", "search", "helper", "nowhere"]) == 0
    assert capsys.readouterr() == ("", "nothing found; searched by keywords only, no embedding model\n")
    assert kb(capsys, "search", "helper", "dough gale", "--source", "bread.md")["sources"] == [
        str(agent / "docs" / "bread.md")
    ]

    (again,) = kb(capsys, "rebuild", "helper")
    assert (again["chunks"], again["digest"] != built["digest"]) == (3, True)
    (agent / "look.yaml").write_text("half a")
    assert main(["kb", "show", "helper"]) == 2
    assert "Failed to load rag" in capsys.readouterr().err
    assert kb(capsys, "rebuild", "helper")[0]["digest"] == again["digest"]


@pytest.mark.usefixtures("at_hand")
def test_a_forecast_costs_nothing_and_a_rebuild_embeds_what_is_new(
    agent: Path, capsys: pytest.CaptureFixture[str], model_server: ModelServer
) -> None:
    says(agent, VECTORS)
    asked = len(model_server.requests)
    (forecast,) = kb(capsys, "build", "helper", "--dry-run")
    assert (forecast["chunks"], forecast["to_embed"], len(model_server.requests)) == (2, 2, asked)
    assert forecast["tokens"] > 0
    assert not (agent / "look.yaml").exists()

    (built,) = kb(capsys, "build", "helper", "--chunk-size", "300", "--chunk-overlap", "10")
    assert (built["dimensions"], built["chunk_size"], built["spent"]["embedded"]) == (64, 300, 2)
    (agent / "docs" / "ships.md").write_text("A new ship.\n")
    (again,) = kb(capsys, "rebuild", "helper")
    spent = again["spent"]
    assert (again["chunk_size"], spent["embedded"], spent["reused"]) == (200, 1, 2)  # what the node says goes first
    assert kb(capsys, "search", "helper", "sail of the ship")["hits"]


@pytest.mark.usefixtures("at_hand")
def test_missing_keys_of_a_node_keep_their_values_at_a_rebuild(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says(agent, "top_k: 2")
    assert main(["kb", "build", "helper"]) == 2
    assert "RAG knowledge base needs an embedding model." in capsys.readouterr().err
    chosen = ("--embedding-model", "fake:embedder", "--chunk-size", "300", "--chunk-overlap", "10")
    kb(capsys, "build", "helper", *chosen)
    (again,) = kb(capsys, "rebuild", "helper")
    assert (again["embedding_model"], again["chunk_size"], again["chunk_overlap"]) == ("fake:embedder", 300, 10)


@pytest.mark.usefixtures("at_hand")
def test_failed_documents_stop_a_build_without_the_option_to_continue(
    agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says(agent, WORDS)
    (agent / "docs" / "noise.md").write_bytes(b"noise \xff and more")
    assert main(["kb", "build", "helper"]) == 2
    assert "noise.md: is not valid UTF-8" in capsys.readouterr().err
    assert not (agent / "look.yaml").exists()
    (built,) = kb(capsys, "build", "helper", "--continue")
    assert len(built["sources"]) == 2


@pytest.mark.conformance("K06", "K07")
def test_a_submission_builds_what_is_fully_specified_and_refuses_the_rest(agent: Path) -> None:
    with Client(Settings.from_env()) as client:
        says(agent, "top_k: 3, embedding_model: 'fake:embedder'")
        with pytest.raises(UsageError, match="does not fully specify how to build it"):
            client.submit("helper", "hello")
        assert client.runs() == []
        assert not (agent / "look.yaml").exists()

        says(agent, VECTORS)
        client.submit("helper", "hello").cancel()
        before = (agent / "look.yaml").stat()
        client.submit("helper", "hello").cancel()
        assert (agent / "look.yaml").stat() == before
