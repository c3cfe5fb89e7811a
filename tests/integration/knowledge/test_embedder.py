"""The vectors of many texts: batches, retries, limits, the cache, and models that are not what they were."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from sleipnir.errors import NodeFailed
from sleipnir.knowledge.views import EmbeddingUsage
from sleipnir.models.limits import Limit
from sleipnir.settings import Settings
from sleipnir.store.store import Store
from sleipnir.testing import ModelServer, Reply
from sleipnir.testing.meaning import vector_of
from sleipnir_workers.execution.put_off import PutOff
from sleipnir_workers.knowledge.embedder import (
    Embedder,
    Estimate,
    attempts_in,
    batch_size_of,
    open_embedder,
)
from sleipnir_workers.knowledge.embedding_cache import EmbeddingCache
from sleipnir_workers.llm.clients import ModelTraits, Prices
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.permits import Permits
from sleipnir_workers.llm.resolved_model import ResolvedModel
from sleipnir_workers.machine.host import Host

TEXTS = [f"text number {number} of the bells" for number in range(10)]


class Pauses(list[float]):
    """Waits for nothing, and remembers for how long it was to be."""

    def __call__(self, stop: threading.Event, seconds: float) -> bool:
        self.append(seconds)
        return stop.is_set()


def embedder(
    server: ModelServer, *, traits: Mapping[str, Any] = MappingProxyType({}), model: str = "embed-test", **options: Any
) -> Embedder:
    endpoint = Endpoint(
        f"openai/{model}", server.url, "sk-the-secret-key", traits=ModelTraits(model, type="embedding", **traits)
    )
    given = {"chunk_size": 1000, "batch_size": 3, "pause": Pauses(), **options}
    return Embedder(ResolvedModel(f"mine:{model}", endpoint), **given)


def expected(texts: list[str], dimensions: int = 64) -> Any:
    return pytest.approx(np.array([vector_of(text, dimensions) for text in texts], np.float32), abs=1e-6)


# Batches


def test_texts_go_in_batches_and_come_back_in_their_order() -> None:
    told: list[tuple[int, int, int, float | None]] = []
    with ModelServer() as server:
        rows, spent = embedder(server).embed(TEXTS, progress=lambda *progress: told.append(progress))
    assert (rows.dtype, rows.shape, rows) == (np.float32, (10, 64), expected(TEXTS))
    assert sorted(len(request.inputs) for request in server.requests) == [1, 3, 3, 3]
    assert (spent.embedded, spent.reused, spent.tokens, spent.cost_usd) == (10, 0, 70, None)
    assert told[0] == (0, 10, 0, 0.0)
    assert [done for done, *_ in told] == sorted(done for done, *_ in told)
    assert told[-1] == (10, 10, 70, None)


def test_the_number_of_concurrent_batches_is_bounded() -> None:
    with ModelServer(embeddings=[Reply(hang=True)] * 4) as server:
        watch = threading.Thread(target=lambda: (server.wait_for_requests(4), server.release()))
        watch.start()
        embedder(server, batch_size=1).embed(TEXTS)
        watch.join()
    assert server.most_at_once == 4


def test_a_text_that_occurs_twice_is_embedded_once() -> None:
    texts = ["a bell", "a rope", "a bell"]
    with ModelServer() as server:
        rows, spent = embedder(server).embed(texts)
    assert rows == expected(texts)
    assert [request.inputs for request in server.requests] == [["a bell", "a rope"]]
    assert (spent.embedded, spent.reused) == (2, 1)


def test_no_texts_have_no_vectors_and_cause_no_call() -> None:
    with ModelServer() as server:
        rows, spent = embedder(server).embed([], dimensions=7)
    assert (rows.shape, spent.embedded, spent.cost_usd, server.requests) == ((0, 7), 0, 0.0, [])


@pytest.mark.parametrize(
    ("model", "traits", "wanted", "size"),
    [
        ("openai/e", {}, None, 1),
        ("openai/e", {}, 7, 7),
        ("openai/e", {"max_batch_size": 5}, None, 5),
        ("openai/e", {"max_batch_size": 5}, 7, 7),
        ("openai/e", {"max_input_tokens": 8_000}, None, 8),
        ("openai/e", {"max_input_tokens": 8_000}, 100, 8),
        ("openai/e", {"max_input_tokens": 8_000, "max_batch_size": 3}, None, 3),
        ("openai/e", {"max_input_tokens": 500}, 100, 1),
        ("openai/e", {}, 10_000, 2048),
        ("cohere/e", {}, 1_000, 96),
        ("openai/text-embedding-3-small", {}, 100, 8),
    ],
)
def test_the_batch_size_is_what_the_model_takes(
    model: str, traits: dict[str, Any], wanted: int | None, size: int
) -> None:
    endpoint = Endpoint(model, traits=ModelTraits("e", type="embedding", **traits))
    assert batch_size_of(endpoint, 1000, wanted) == size


def test_a_batch_never_holds_more_than_any_model_takes() -> None:
    texts = [f"{number} {'x' * 140_000}" for number in range(3)]
    with ModelServer() as server:
        embedder(server, batch_size=100, in_flight=1).embed(texts)
    assert [len(request.inputs) for request in server.requests] == [2, 1]


# Failures


def test_transient_failures_are_tried_again_after_longer_and_longer_pauses() -> None:
    failures = [Reply(status=503), Reply(status=500), Reply(close="before")]
    with ModelServer(embeddings=failures) as server:
        rows, spent = embedder(server, attempts=4, pause=(pauses := Pauses())).embed(TEXTS[:1])
    assert (rows, pauses) == (expected(TEXTS[:1]), [1.0, 2.0, 4.0])
    assert (len(server.requests), spent.embedded, spent.tokens) == (4, 1, 7)


def test_a_provider_is_left_alone_for_as_long_as_it_asks() -> None:
    with ModelServer(embeddings=[Reply(status=429, retry_after=17)]) as server:
        embedder(server, pause=(pauses := Pauses())).embed(TEXTS[:1])
    assert pauses == [17.0]


def test_the_error_of_the_last_attempt_has_their_number_and_the_reason() -> None:
    with (
        ModelServer(embeddings=[Reply(status=429, error="slow down")] * 2) as server,
        pytest.raises(NodeFailed) as caught,
    ):
        embedder(server).embed(TEXTS[:1])
    assert str(caught.value) == (
        "Failed to create embedding after 2 attempts: the provider answered 429 Too Many Requests: slow down"
    )
    assert (caught.value.kind, caught.value.transient, len(server.requests)) == ("rate_limit", True, 2)


def test_a_failure_that_would_come_again_is_not_tried_again_and_stops_the_rest() -> None:
    with ModelServer(embeddings=[Reply(status=401)] * 99) as server, pytest.raises(NodeFailed) as caught:
        embedder(server, in_flight=1).embed(TEXTS)
    assert "Failed to create embedding after 1 attempts: the provider answered 401" in str(caught.value)
    assert len(server.requests) == 1


def test_what_other_batches_brought_is_kept_when_one_fails(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    with ModelServer(embeddings=[Reply(), Reply(status=401)]) as server:
        asking = embedder(server, cache=cache, in_flight=1)
        with pytest.raises(NodeFailed):
            asking.embed(TEXTS)
        _, spent = asking.embed(TEXTS)
    assert (spent.embedded, spent.reused) == (7, 3)


def test_a_caller_that_stops_does_not_wait_for_open_calls() -> None:
    class Gone(Exception):
        pass

    with ModelServer(embeddings=[Reply(hang=True)]) as server:

        def tick() -> None:
            if server.requests:
                raise Gone

        with pytest.raises(Gone):
            embedder(server).embed(TEXTS, tick=tick)


def test_a_caller_that_goes_ends_the_pause_before_another_attempt() -> None:
    class Gone(Exception):
        pass

    paused, ended = threading.Event(), threading.Event()

    def pause(stop: threading.Event, seconds: float) -> bool:
        paused.set()
        stopped = stop.wait(60)
        ended.set()
        return stopped

    def tick() -> None:
        if paused.is_set():
            raise Gone

    with ModelServer(embeddings=[Reply(status=503)]) as server:
        with pytest.raises(Gone):
            embedder(server, pause=pause).embed(TEXTS[:1], tick=tick)
        assert ended.wait(20)
    assert len(server.requests) == 1


# The cache


def test_texts_with_stored_vectors_are_not_embedded_again(tmp_path: Path) -> None:
    with ModelServer() as server:
        first, _ = embedder(server, cache=EmbeddingCache(tmp_path)).embed(TEXTS)
        again, spent = embedder(server, cache=EmbeddingCache(tmp_path)).embed([*TEXTS, "a new one"])
    assert np.array_equal(again[:10], first)
    assert server.requests[-1].inputs == ["a new one"]
    assert (spent.embedded, spent.reused, spent.tokens) == (1, 10, 3)


def test_another_model_does_not_use_the_same_entries(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    with ModelServer() as server:
        embedder(server, cache=cache).embed(TEXTS)
        _, other = embedder(server, cache=cache, model="other").embed(TEXTS)
        _, shorter = embedder(server, cache=cache, traits={"patch_body": {"dimensions": 8}}).embed(TEXTS)
    assert (other.embedded, shorter.embedded) == (10, 10)


def test_an_estimate_calls_no_model(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    with ModelServer() as server:
        asking = embedder(server, cache=cache, traits={"prices": Prices(1.0, 0.0)})
        assert asking.estimate([*TEXTS, TEXTS[0]]) == Estimate(10, 70, pytest.approx(70 / 1e6))
        _, spent = asking.embed(TEXTS[:9])
        assert (spent.tokens, spent.cost_usd) == (63, pytest.approx(63 / 1e6))
        asked = len(server.requests)
        assert asking.estimate(TEXTS) == Estimate(1, 7, pytest.approx(7 / 1e6))
        assert asking.estimate(TEXTS[:9]) == Estimate(0, 0, 0.0)
        assert embedder(server, cache=cache).estimate(["new"]) == Estimate(1, 1, None)
        assert len(server.requests) == asked


_BUILDER = """
import sys
from pathlib import Path
from sleipnir_workers.knowledge.embedder import Embedder
from sleipnir_workers.knowledge.embedding_cache import EmbeddingCache
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.resolved_model import ResolvedModel
model = ResolvedModel("mine:embed-test", Endpoint("openai/embed-test", sys.argv[1], "k"))
cache = EmbeddingCache(Path(sys.argv[2]))
Embedder(model, chunk_size=1000, batch_size=3, cache=cache).embed([f"text {number}" for number in range(300)])
"""


@pytest.mark.parametrize("calls", [1, 40])
def test_a_builder_that_is_killed_has_lost_no_more_than_what_was_under_way(tmp_path: Path, calls: int) -> None:
    with ModelServer() as server:
        with subprocess.Popen([sys.executable, "-c", _BUILDER, server.url, str(tmp_path)]) as builder:
            server.wait_for_requests(calls)
            builder.kill()
        asked = sum(len(request.inputs) for request in server.requests)
        _, spent = embedder(server, cache=EmbeddingCache(tmp_path)).embed([f"text {number}" for number in range(300)])
    assert spent.embedded + spent.reused == 300
    assert spent.reused >= asked - 4 * 3


def test_two_builders_at_once_share_what_they_pay_for(tmp_path: Path) -> None:
    with ModelServer() as server:
        command = [sys.executable, "-c", _BUILDER, server.url, str(tmp_path)]
        builders = [subprocess.Popen(command) for _ in range(2)]
        assert [builder.wait(60) for builder in builders] == [0, 0]
        _, spent = embedder(server, cache=EmbeddingCache(tmp_path)).embed([f"text {number}" for number in range(300)])
    assert spent.embedded == 0


# A model that is not what it was


def test_a_model_that_changes_its_dimensions_is_named_with_both_numbers() -> None:
    with ModelServer(embeddings=[Reply(), Reply(dimensions=32)]) as server, pytest.raises(NodeFailed) as caught:
        embedder(server, in_flight=1).embed(TEXTS)
    assert "embedding model 'mine:embed-test' gave a vector of 32 dimensions, but those before have 64" in str(
        caught.value
    )
    assert caught.value.kind == "model"


def test_vectors_of_an_earlier_model_are_removed_so_that_the_next_build_succeeds(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    with ModelServer() as before:
        embedder(before, cache=cache).embed(TEXTS[:5])
    with ModelServer(dimensions=32) as now:
        with pytest.raises(NodeFailed, match="32 dimensions, but those before have 64"):
            embedder(now, cache=cache).embed(TEXTS)
        rows, _ = embedder(now, cache=cache).embed(TEXTS)
    assert rows == expected(TEXTS, 32)


def test_a_question_to_a_base_of_other_dimensions_is_refused() -> None:
    with ModelServer() as server, pytest.raises(NodeFailed, match="of 64 dimensions, but those before have 1536"):
        embedder(server).embed(["why"], "query", dimensions=1536)


def test_a_cached_vector_of_other_dimensions_is_asked_for_again(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    with ModelServer() as before:
        embedder(before, cache=cache).embed(["why"], "query")
    with ModelServer(dimensions=32) as now:
        rows, _ = embedder(now, cache=cache).embed(["why"], "query", dimensions=32)
    assert rows == expected(["why"], 32)


@pytest.mark.parametrize(
    ("number", "flaw"), [(0.0, "a vector of zeros"), (float("nan"), "NaN"), (float("inf"), "infinite")]
)
def test_a_vector_that_points_nowhere_is_refused_and_not_kept(tmp_path: Path, number: float, flaw: str) -> None:
    cache = EmbeddingCache(tmp_path)
    packed = struct.pack("<2f", number, number if number != number else 0.0)
    body = json.dumps({"data": [{"index": 0, "embedding": base64.b64encode(packed).decode()}]})
    with ModelServer(embeddings=[Reply(body=body)]) as server, pytest.raises(NodeFailed) as caught:
        embedder(server, cache=cache).embed(TEXTS[:1])
    assert flaw in str(caught.value) and "for the text 'text number 0 of the bells'" in str(caught.value)
    with ModelServer() as server:
        assert embedder(server, cache=cache).embed(TEXTS[:1])[1].reused == 0


# Limits


def limited(store: Store, tmp_path: Path, **bounds: int) -> Permits:
    pattern = Limit("mine:*", **bounds).pattern
    file = tmp_path / "limits.yaml"
    file.write_text(json.dumps({"models": {pattern: bounds}}))
    return Permits(store, Settings(home=tmp_path, limits=file))


def test_calls_take_permits_and_give_them_back_with_their_tokens(store: Store, tmp_path: Path) -> None:
    permits = limited(store, tmp_path, requests_per_minute=100, max_parallel=9)
    with ModelServer() as server:
        embedder(server, permits=permits, caller="kb/docs").embed(TEXTS)
    [limit] = permits.limits.limits
    used = store.limiter.in_use(limit)
    assert (used.requests, used.tokens, used.slots) == (4, 70, ())


def test_a_builder_that_meets_a_limit_waits_for_its_turn(store: Store, tmp_path: Path) -> None:
    permits = limited(store, tmp_path, max_parallel=1)
    [limit] = permits.limits.limits
    granted = store.limiter.take([limit], "somebody/else")

    class Waits(Pauses):
        def __call__(self, stop: threading.Event, seconds: float) -> bool:
            store.limiter.release(granted)  # type: ignore[arg-type]
            super().__call__(stop, seconds)
            return stop.wait(0.01)

    with ModelServer() as server:
        rows, _ = embedder(server, permits=permits, caller="kb/docs", pause=(waits := Waits())).embed(TEXTS)
    assert (rows, server.most_at_once) == (expected(TEXTS), 1)
    assert waits, "the first call met the limit"


def test_a_visit_that_meets_a_limit_is_put_off(store: Store, tmp_path: Path) -> None:
    permits = limited(store, tmp_path, max_parallel=1)
    [limit] = permits.limits.limits
    store.limiter.take([limit], "somebody/else")
    with ModelServer() as server, pytest.raises(PutOff, match="held by somebody/else"):
        embedder(server, permits=permits, caller="r1/3", waits=False).embed(["why"], "query")
    assert server.requests == []


# As configured


def test_an_embedder_is_opened_by_the_models_id(tmp_path: Path) -> None:
    with ModelServer() as server:
        env = {"LOKI_CONFIG_DIR": str(tmp_path), **server.env("openai"), "LOKI_EMBEDDINGS_RETRY_LIMIT": "3"}
        host = Host(env, Settings(home=tmp_path))
        asking = open_embedder(host, "openai:text-embedding-3-small", chunk_size=1000, cache=EmbeddingCache(tmp_path))
        rows, spent = asking.embed(TEXTS)
    assert (asking.batch_size, rows) == (8, expected(TEXTS))
    assert spent == EmbeddingUsage(10, 0, 70, pytest.approx(70 * 2e-8), spent.took_s)


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_number_of_attempts_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(NodeFailed, match="LOKI_EMBEDDINGS_RETRY_LIMIT"):
        attempts_in({"LOKI_EMBEDDINGS_RETRY_LIMIT": text})
    assert (attempts_in({}), attempts_in({"LOKI_EMBEDDINGS_RETRY_LIMIT": "5"})) == (2, 5)
