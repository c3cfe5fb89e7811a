"""The model server as an embedding model and as a reranker."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import pytest

from sleipnir.testing import ModelServer, Reply, Script
from sleipnir.testing.meaning import vector_of
from sleipnir.testing.script import parse
from tests.unit.testing.asking import Answer, ask, post

TEXTS = ["How a bell is cast in bronze", "Taxes of ferries", "The caster's bells ring"]


def vectors(server: ModelServer, texts: Any, **fields: Any) -> Answer:
    return post(server, json.dumps({"model": "m", "input": texts, **fields}), "/v1/embeddings")


def rerank(server: ModelServer, path: str = "/v1/rerank", **fields: Any) -> Answer:
    return post(server, json.dumps({"model": "m", "documents": TEXTS, "query": "casting bells", **fields}), path)


def alike(a: str, b: str) -> float:
    return sum(x * y for x, y in zip(vector_of(a), vector_of(b), strict=True))


def test_texts_that_share_words_or_parts_of_them_are_near_each_other() -> None:
    assert alike("bells of bronze", "bronze bells") == pytest.approx(1.0)
    assert alike("casting bells", TEXTS[0]) > alike("casting bells", TEXTS[1])
    assert alike("casting", "caster") > alike("casting", "ferry")


@pytest.mark.parametrize("text", ["", "the", "a bell", "\ud800", "鐘"])
def test_every_text_has_a_vector_of_length_one(text: str) -> None:
    assert math.hypot(*vector_of(text, 7)) == pytest.approx(1.0)


def test_vectors_come_as_numbers_or_as_base64_and_cost_a_token_per_four_characters() -> None:
    with ModelServer(dimensions=8) as server:
        plain, packed = vectors(server, TEXTS).data, vectors(server, TEXTS, encoding_format="base64").data
        assert vectors(server, "one text").data["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
        assert server.requests[0].inputs == TEXTS
    assert [entry["embedding"] for entry in plain["data"]] == [vector_of(text, 8) for text in TEXTS]
    decoded = [struct.unpack("<8f", base64.b64decode(entry["embedding"])) for entry in packed["data"]]
    assert decoded == [pytest.approx(vector_of(text, 8)) for text in TEXTS]
    assert [entry["index"] for entry in packed["data"]] == [0, 1, 2]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_a_reranker_puts_the_texts_in_order_the_best_first(path: str) -> None:
    with ModelServer() as server:
        results = rerank(server, path, top_n=2).data["results"]
        assert (server.requests[0].query, server.requests[0].documents) == ("casting bells", TEXTS)
    assert sorted(result["index"] for result in results) == [0, 2]
    assert results[0]["relevance_score"] >= results[1]["relevance_score"]


def test_failures_come_first_and_then_all_calls_are_answered() -> None:
    failures = [Reply(status=429, retry_after=3), Reply(dimensions=5), Reply(body="no json")]
    with ModelServer(["hi"], embeddings=failures, reranks=[Reply(status=503)]) as server:
        refused = vectors(server, TEXTS)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "3")
        assert len(vectors(server, TEXTS).data["data"][0]["embedding"]) == 5
        assert vectors(server, TEXTS).text == "no json"
        assert len(vectors(server, TEXTS).data["data"][0]["embedding"]) == 64
        assert [rerank(server).status, rerank(server).status] == [503, 200]
        assert ask(server).message["content"] == "hi"
        assert server.counts() == {None: {1: 1}}, "vectors are no turn of a conversation"


def test_a_script_can_define_it_too() -> None:
    script = parse({"embeddings": [{"status": 500}], "reranks": [{"status": 501}], "dimensions": 3})
    assert script == Script(embeddings=[Reply(status=500)], reranks=[Reply(status=501)], dimensions=3)
    with ModelServer(script) as server:
        assert [vectors(server, TEXTS).status, rerank(server).status] == [500, 501]
        assert len(vectors(server, TEXTS).data["data"][0]["embedding"]) == 3
