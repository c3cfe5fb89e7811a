"""The rag node: what it finds, and how it fails. With real indexes in an index store, and a real HTTP server that
embeds."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sleipnir import tracing
from sleipnir.errors import MachineFailed
from sleipnir.graph.model import MapNode, RagNode
from sleipnir.knowledge.recipe import Recipe
from sleipnir.messages import VisitResult
from sleipnir.runs.visits import Item
from sleipnir.testing import ModelServer, Reply
from sleipnir.testing.meaning import vector_of
from sleipnir_workers.execution.execution import VisitLost
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.knowledge import artefact
from sleipnir_workers.knowledge.base import Base, Chunk, Source
from sleipnir_workers.knowledge.index_store import FolderIndexStore, OpenIndex
from sleipnir_workers.llm.permit import Permit
from sleipnir_workers.nodes import rag
from sleipnir_workers.nodes.rag import run_rag
from tests.unit.workers.visits import host, visit

TEXTS = {
    "/docs/granite.md": ["Granite is a coarse rock.", "Granite holds quartz and feldspar."],
    "/docs/basalt.md": ["Basalt flows out of volcanoes."],
}
ASKED = "What holds quartz?"
FULL = {"context": "{{output.context}}", "sources": "{{output.sources}}", "hits": "{{output.hits}}"}


@dataclass
class Bases:
    home: Path
    words: str = "a" * 64
    vectors: str = "b" * 64
    ranked: str = "c" * 64
    both: str = "d" * 64


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    bases = Bases(tmp_path_factory.mktemp("home"))
    sources = [
        Source(path, "0" * 64, [Chunk(text, (number, number)) for number, text in enumerate(texts, 1)])
        for path, texts in TEXTS.items()
    ]
    vectors = np.array([vector_of(text, 64) for texts in TEXTS.values() for text in texts], dtype=np.float32)
    for digest, model, reranker, rows in (
        (bases.words, None, None, None),
        (bases.vectors, "openai:embed", None, vectors),
        (bases.ranked, None, "jina:rank", None),
        (bases.both, "openai:embed", "jina:rank", vectors),
    ):
        recipe = Recipe(["/docs"], model, reranker_model=reranker, top_k=2)
        artefact.write(Base(recipe, sources, rows), bases.home / "knowledge" / digest, digest)
    return bases


@pytest.fixture
def embeddings() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


NODE_FIELDS = ("top_k", "sources", "per_source", "timeout", "state_updates")


def look(bases: Bases, digest: str | None, query: str = "{{initial_prompt}}", **more: Any) -> VisitResult:
    fields = {"state_updates": FULL, **{key: more.pop(key) for key in NODE_FIELDS if key in more}}
    node = RagNode(id="look", documents=["d"], query=query, next="done", **fields)
    here = host(more.pop("env", {}), home=bases.home)
    return run_rag(node, visit(node, bases.home, state={"initial_prompt": ASKED}, knowledge=digest, **more), here)


def failure(*args: Any, **more: Any) -> str:
    result = look(*args, **more)
    assert (result.ok, result.later_ms) == (False, None)
    assert result.error is not None
    return result.error


@pytest.mark.conformance("K02", "K04")
def test_it_finds_what_is_nearest_to_its_query_with_where_that_is(bases: Bases) -> None:
    result = look(bases, bases.words, top_k=1)
    assert result.ok
    assert result.delta["context"] == "[Source: /docs/granite.md]\nGranite holds quartz and feldspar."
    assert result.delta["sources"] == '["/docs/granite.md"]'
    assert '"lines":[2,2]' in str(result.delta["hits"]).replace(" ", "")
    assert (result.usage, result.notes) == (None, ("rag lookup: node=look top_k=1",))


@pytest.mark.conformance("K03")
def test_the_number_of_hits_is_that_of_the_base_unless_the_node_sets_it(bases: Bases) -> None:
    assert look(bases, bases.words, "granite basalt").delta["context"].count("[Source:") == 2
    assert look(bases, bases.words, "granite basalt", top_k=3).delta["context"].count("[Source:") == 3
    assert look(bases, bases.words, "granite basalt", top_k=3, per_source=1).delta["context"].count("[Source:") == 2
    assert look(bases, bases.words, "granite basalt", sources=["*basalt*"]).delta["sources"] == '["/docs/basalt.md"]'


@pytest.mark.conformance("K04")
def test_nothing_found_is_empty(bases: Bases) -> None:
    assert look(bases, bases.words, "zebra").delta == {"context": "", "sources": "[]", "hits": "[]"}


def test_the_question_is_embedded_once_and_counted(bases: Bases, embeddings: ModelServer) -> None:
    result = look(bases, bases.vectors, "a rock of quartz and feldspar", env=embeddings.env(), top_k=1)
    assert result.delta["context"].endswith("Granite holds quartz and feldspar.")
    assert [request.inputs for request in embeddings.requests] == [["a rock of quartz and feldspar"]]
    assert result.usage is not None
    assert (result.usage.calls, result.usage.model, result.usage.input_tokens > 0) == (1, "openai:embed", True)


def test_an_item_of_a_map_leaves_what_it_found(bases: Bases) -> None:
    each = MapNode(id="each", over="{{x}}", item="one", body=["look"], collect_into="all", output_key="found")
    place = {"item": Item(1, 0, of="each"), "others": [each]}
    result = look(bases, bases.words, state_updates=None, **place)
    assert result.delta["found"]["sources"] == ["/docs/granite.md"]


def test_a_node_without_a_base_is_reported(bases: Bases) -> None:
    assert failure(bases, None) == "rag node 'look' has no initialized knowledge base"


def test_a_query_that_cannot_be_rendered_is_reported(bases: Bases) -> None:
    assert failure(bases, bases.words, "{{nowhere}}").startswith("Failed to interpolate rag node query: ")


def test_a_machine_without_file_descriptors_fails_and_not_the_node_or_the_index(bases: Bases) -> None:
    """A gap after finding C18 of the second review."""
    assert look(bases, bases.words).ok, "all modules are imported"
    rag._open_indexes.cache_clear()  # another test may have opened the index
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(MachineFailed, match=r"descriptors: cannot read .*Too many open files") as raised:
            look(bases, bases.ranked)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not raised.value.begun
    assert artefact.Artefact.open(bases.home / "knowledge" / bases.ranked).info.chunks == 3


def test_a_base_that_is_not_in_the_index_store_is_named(bases: Bases) -> None:
    error = failure(bases, "e" * 64)
    assert error.startswith("rag node 'look' retrieval failed: ")
    assert str(bases.home / "knowledge") in error


REFUSALS: list[tuple[Iterable[Reply], str]] = [
    ([Reply(status=401, error="no such key")], "Failed to create embedding after 1 attempts"),
    ([Reply(dimensions=32)], "32 dimensions, those of the knowledge base have 64"),
]


@pytest.mark.parametrize(("replies", "message"), REFUSALS)
def test_a_model_that_does_not_help_fails_the_node(bases: Bases, replies: Iterable[Reply], message: str) -> None:
    with ModelServer(embeddings=replies) as server:
        error = failure(bases, bases.vectors, env=server.env())
    assert error.startswith("rag node 'look' retrieval failed: ")
    assert message in error


@pytest.mark.conformance("K10")
def test_a_model_that_takes_too_long_fails_the_node(bases: Bases) -> None:
    with ModelServer(embeddings=[Reply(hang=True)]) as server:
        result = look(bases, bases.vectors, env=server.env(), timeout=1)
        server.release()
    assert (result.error, result.error_kind) == ("rag node 'look' timed out after 1s", "timeout")
    assert result.usage is not None, "what it cost nobody knows"
    assert (result.usage.calls, result.usage.cost_usd) == (1, None)
    assert RagNode(id="a", documents=["d"]).timeout == 120


def test_a_lost_visit_waits_no_longer(bases: Bases) -> None:
    lost = threading.Event()
    lost.set()
    with ModelServer(embeddings=[Reply(hang=True)]) as server, pytest.raises(VisitLost):
        try:
            look(bases, bases.vectors, env=server.env(), lost=lost)
        finally:
            server.release()


@dataclass
class _Full:
    """Limits that let no call of some models pass before a time."""

    models: tuple[str, ...]

    def call(self, _caller: str, _attempt: int | str, names: Sequence[str], _tokens: int) -> Any:
        if limited := set(self.models).intersection(names):
            raise PutOff(12_345, f"the limit of {limited.pop()} is met")
        return nullcontext(Permit())


def both(server: ModelServer) -> dict[str, str]:
    """The variables that send an embedding model and a reranker there."""
    return {**server.env(), "JINA_API_KEY": "k", "JINA_API_BASE": server.env()["OPENAI_API_BASE"]}


def test_a_visit_that_meets_a_limit_is_put_off(bases: Bases, embeddings: ModelServer) -> None:
    result = look(bases, bases.vectors, env=embeddings.env(), permits=_Full(("openai:embed",)))
    assert (result.ok, result.later_ms, result.error) == (False, 12_345, "the limit of openai:embed is met")
    assert (embeddings.requests, result.usage) == ([], None)


def test_a_visit_that_its_reranker_puts_off_has_its_question_embedded_and_counted_once(
    bases: Bases, embeddings: ModelServer
) -> None:
    first, second, again = (
        look(bases, bases.both, env=both(embeddings), permits=_Full(full)) for full in (("jina:rank",), (), ())
    )
    assert (first.later_ms, first.error) == (12_345, "the limit of jina:rank is met")
    asked = [bool(request.inputs) for request in embeddings.requests]
    assert asked == [True, False, True, False], "what a visit knows is not another's"
    used = [(usage.calls, usage.model) for each in (first, second, again) if (usage := each.usage)]
    assert used == [(1, "openai:embed"), (1, "jina:rank"), (2, "openai:embed")]


def test_the_usage_of_a_failed_visit_is_counted(bases: Bases) -> None:
    with ModelServer(reranks=[Reply(status=503, error="busy", retry_after=1)]) as server:
        result = look(bases, bases.both, env=both(server))
    assert (result.ok, result.transient, result.error_kind) == (False, True, "model_call")
    assert "Failed to rerank" in (result.error or "")
    assert result.usage is not None
    assert (result.usage.calls, result.usage.model, result.usage.input_tokens > 0) == (2, "openai:embed", True)


def test_a_reranker_orders_what_was_found(bases: Bases) -> None:
    with ModelServer() as server:
        result = look(bases, bases.ranked, "granite quartz", env=both(server), top_k=1)
        assert [request.query for request in server.requests] == ["granite quartz"]
    assert result.delta["context"].count("[Source:") == 1
    assert result.usage is not None and result.usage.model == "jina:rank"


def test_a_visit_waits_for_a_base_that_is_fetched_no_longer_than_it_may(
    bases: Bases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrives, opened, at_once = threading.Event(), [], FolderIndexStore.open

    def slowly(self: FolderIndexStore, digest: str) -> OpenIndex:
        opened.append(digest)
        arrives.wait(60)
        return at_once(self, digest)

    monkeypatch.setattr(FolderIndexStore, "open", slowly)
    (tmp_path / "knowledge").symlink_to(bases.home / "knowledge")
    far = Bases(tmp_path)
    lost = threading.Event()
    lost.set()
    with pytest.raises(VisitLost):
        look(far, far.words, lost=lost)
    result = look(far, far.words, timeout=1)
    arrives.set()
    meanwhile = f"knowledge base {far.words[:12]} was still being fetched from {tmp_path / 'knowledge'}"
    assert result.error == f"rag node 'look' timed out after 1s: {meanwhile}"
    assert (result.error_kind, result.transient, result.usage) == ("timeout", False, None)
    assert look(far, far.words).ok
    assert opened == [far.words], "the fetch had gone on"


def test_its_calls_of_models_are_spans_of_the_visit(bases: Bases, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("test"))
    with (
        ModelServer(reranks=[Reply(status=401, error="no such key")]) as server,
        tracing.executing("triage.look", ("r1", 7, 1)),
    ):
        look(bases, bases.both, env=both(server))
    embedding, rerank, visit = kept.get_finished_spans()
    assert (embedding.name, rerank.name) == ("embeddings openai:embed", "rerank jina:rank")
    assert [span.parent and span.parent.span_id for span in (embedding, rerank)] == [visit.context.span_id] * 2
    assert embedding.attributes is not None
    assert int(str(embedding.attributes["gen_ai.usage.input_tokens"])) > 0
    assert [span.status.is_ok or span.status.is_unset for span in (embedding, rerank)] == [True, False]
    assert rerank.attributes is not None
    assert rerank.attributes["error.type"] == "model_call"
    assert ASKED not in "".join(span.to_json() for span in (embedding, rerank))
