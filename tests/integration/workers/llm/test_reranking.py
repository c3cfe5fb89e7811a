"""One call of a reranker, over real HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.testing import ModelServer, Reply
from sleipnir_workers.llm.clients import ModelTraits, Prices
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.reranking import RerankedTexts, rerank

TEXTS = ["ferries and taxes", "casting a bell", "bells of bronze are cast here"]


def of(server: ModelServer, model: str = "openai/rerank-test", **traits: Any) -> Endpoint:
    return Endpoint(model, server.url, "sk-the-secret-key", traits=ModelTraits("r", type="reranker", **traits))


@pytest.mark.parametrize("model", ["openai/rerank-test", "cohere/rerank-test", "hosted_vllm/rerank-test"])
def test_the_best_texts_come_first(model: str) -> None:
    with ModelServer() as server:
        found = rerank(of(server, model), "casting bells", TEXTS, top_n=2)
    assert sorted(found.order) == [1, 2]
    [request] = server.requests
    assert (request.model, request.query, request.documents, request.body["top_n"]) == (
        "rerank-test",
        "casting bells",
        TEXTS,
        2,
    )
    assert request.authorization == "Bearer sk-the-secret-key"


def test_no_more_hits_than_exist_are_requested_and_without_hits_no_model_is_called() -> None:
    with ModelServer() as server:
        assert sorted(rerank(of(server), "bells", TEXTS, top_n=9).order) == [0, 1, 2]
        assert rerank(of(server), "bells", [], top_n=9) == RerankedTexts(())
    assert [request.body["top_n"] for request in server.requests] == [3]


def test_a_server_that_ignores_top_n_is_cut() -> None:
    results = {"data": [{"index": 2}, {"index": 0}, {"index": 1}]}
    with ModelServer(reranks=[Reply(body=json.dumps(results))]) as server:
        assert rerank(of(server), "bells", TEXTS, top_n=2).order == (2, 0)


def test_the_cost_is_by_token_or_by_search() -> None:
    with ModelServer() as server:
        configured = rerank(of(server, prices=Prices(1.0, 0.0)), "bells", TEXTS, top_n=1)
        by_search = rerank(of(server, "cohere/rerank-v3.5"), "bells", TEXTS, top_n=1)
        by_token = rerank(of(server, "openai/jina-reranker-v2-base-multilingual"), "bells", TEXTS, top_n=1)
        unknown = rerank(of(server), "bells", TEXTS, top_n=1)
    assert configured.cost_usd == pytest.approx(configured.tokens / 1e6)
    assert by_search.cost_usd == pytest.approx(0.002)
    assert by_token.cost_usd == pytest.approx(by_token.tokens * 5e-8)
    assert unknown.cost_usd is None


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(status=503, error="busy: sk-the-secret-key"), "the provider answered 503 Service Unavailable: busy: *"),
        (Reply(body="{}"), "the reranker's answer holds no results"),
        (Reply(body='{"results": [{"index": 3}]}'), "the reranker's answer does not number 3 texts: [3]"),
        (Reply(body='{"results": [{"index": 1}, {"index": 1}]}'), "does not number 3 texts: [1, 1]"),
        (Reply(body="no json"), "the provider's answer is not JSON"),
        (Reply(close="reset"), "reset"),
    ],
)
def test_a_failure_is_reported_with_its_cause(reply: Reply, message: str) -> None:
    with ModelServer(reranks=[reply]) as server, pytest.raises(CallFailed) as caught:
        rerank(of(server), "bells", TEXTS, top_n=2, clean=lambda text: text.replace("sk-the-secret-key", "*"))
    assert str(caught.value).startswith("Failed to rerank: ")
    assert message in str(caught.value)


def test_openai_has_no_reranker() -> None:
    with pytest.raises(CallFailed, match="Failed to rerank: OpenAI has no reranker"):
        rerank(Endpoint("openai/gpt-x", None, "k"), "bells", TEXTS, top_n=2)
