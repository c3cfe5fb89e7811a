"""One call of an embedding model, over real HTTP."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import certifi
import pytest

from sleipnir.errors import NodeFailed
from sleipnir.settings import Settings
from sleipnir.testing import ModelServer, Reply
from sleipnir.testing.meaning import vector_of
from sleipnir_workers.llm import embedding, litellm_compat
from sleipnir_workers.llm.clients import Clients, ConfiguredClient, ModelTraits, Prices
from sleipnir_workers.llm.embedding import EmbeddedTexts, embed
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.json_http import trusted
from sleipnir_workers.llm.models import Endpoint, resolve
from sleipnir_workers.llm.resolved_model import resolve_model
from sleipnir_workers.machine.host import Host

TEXTS = ["bells of bronze", "ferries", "a third text"]


def of(server: ModelServer, name: str = "embed-test", **traits: Any) -> Endpoint:
    endpoint_traits = ModelTraits(name, type="embedding", **traits)
    return Endpoint(f"openai/{name}", server.url, "sk-the-secret-key", traits=endpoint_traits)


def numbers(embedded: EmbeddedTexts) -> list[tuple[float, ...]]:
    return [struct.unpack(f"<{len(vector) // 4}f", vector) for vector in embedded.vectors]


def failure(reply: Reply, **options: Any) -> CallFailed:
    with ModelServer(embeddings=[reply]) as server, pytest.raises(CallFailed) as caught:
        embed(of(server), TEXTS, "document", **options)
    return caught.value


def test_texts_become_vectors_in_their_order() -> None:
    with ModelServer(dimensions=8) as server:
        embedded = embed(of(server), TEXTS, "document")
    assert numbers(embedded) == [pytest.approx(vector_of(text, 8), abs=1e-6) for text in TEXTS]
    assert (embedded.tokens, embedded.cost_usd) == (9, None)
    [request] = server.requests
    assert (request.path, request.model, request.authorization) == (
        "/v1/embeddings",
        "embed-test",
        "Bearer sk-the-secret-key",
    )
    assert request.body == {"model": "embed-test", "input": TEXTS, "encoding_format": "base64"}


def test_vectors_are_put_in_order_by_their_numbers() -> None:
    data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1]}]
    with ModelServer(embeddings=[Reply(body=json.dumps({"data": data}))]) as server:
        assert embed(of(server), TEXTS[:2], "document") == EmbeddedTexts(
            [struct.pack("<f", 1.0), struct.pack("<f", 2.0)], 0, None
        )


def test_a_server_without_encoding_support_gets_none_from_then_on() -> None:
    refusal = Reply(status=422, error="extra field encoding_format is not permitted")
    with ModelServer(embeddings=[refusal], dimensions=8) as server:
        first = embed(of(server), TEXTS, "document")
        assert embed(of(server), TEXTS, "document") == first
    assert ["encoding_format" in request.body for request in server.requests] == [True, False, False]
    assert numbers(first) == [pytest.approx(vector_of(text, 8), abs=1e-6) for text in TEXTS]


def test_a_patch_goes_along_and_is_part_of_the_settings() -> None:
    with ModelServer() as server:
        endpoint = of(server, patch_body={"dimensions": 256, "user": None}, patch_headers={"X-Team": "blue"})
        embed(endpoint, TEXTS, "document")
    assert server.requests[0].body["dimensions"] == 256
    assert embedding.settings(endpoint, "document") == {"model": "openai/embed-test", "dimensions": 256}


@pytest.mark.parametrize(
    ("endpoint", "told"),
    [
        (Endpoint("openai/e", "https://api.openai.com/v1"), {}),
        (Endpoint("openai/voyage-3", "https://api.voyageai.com/v1"), {"input_type": "query"}),
        (Endpoint("openai/jina-embeddings-v3", "https://api.jina.ai/v1"), {"task": "retrieval.query"}),
        (Endpoint("cohere/embed-v4.0"), {"input_type": "search_query"}),
        (Endpoint("bedrock/cohere.embed-v4:0"), {"input_type": "search_query"}),
        (Endpoint("gemini/gemini-embedding-001"), {"task_type": "RETRIEVAL_QUERY"}),
        (Endpoint("mistral/mistral-embed"), {}),
    ],
)
def test_models_with_input_types_get_the_type_of_each_text(endpoint: Endpoint, told: dict[str, str]) -> None:
    asked = embedding.settings(endpoint, "query")
    assert {name: value for name, value in asked.items() if name != "model"} == told
    assert (embedding.settings(endpoint, "document") == asked) == (not told)


# Cost


def test_a_configured_price_wins_over_the_list() -> None:
    prices = Prices(2.0, 0.0)
    with ModelServer() as server:
        listed = embed(of(server, "text-embedding-3-small"), TEXTS, "document")
        configured = embed(of(server, "text-embedding-3-small", prices=prices), TEXTS, "document")
    assert listed.cost_usd == pytest.approx(9 * 0.02 / 1_000_000)
    assert configured.cost_usd == pytest.approx(9 * 2.0 / 1_000_000)


def test_the_maximum_length_of_texts_is_from_the_list_unless_configured() -> None:
    assert embedding.max_input_tokens(Endpoint("openai/text-embedding-3-small")) == 8191
    assert embedding.max_input_tokens(Endpoint("openai/nobody-knows")) is None
    assert embedding.max_input_tokens(Endpoint("openai/x", traits=ModelTraits("x", max_input_tokens=512))) == 512


# Failures


def test_the_waiting_time_that_a_provider_asks_for_is_used() -> None:
    error = failure(Reply(status=429, retry_after=7))
    assert (error.transient, error.kind, error.status, error.retry_after_s) == (True, "rate_limit", 429, 7.0)


def test_a_failure_has_the_message_of_the_provider_and_no_key() -> None:
    error = failure(
        Reply(status=401, error="wrong key sk-the-secret-key"),
        clean=lambda text: text.replace("sk-the-secret-key", "*"),
    )
    assert str(error) == "the provider answered 401 Unauthorized: wrong key *"
    assert (error.transient, error.status) == (False, 401)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(body="<html>"), "the provider's answer is not JSON"),
        (Reply(body="[]"), "the answer is no object"),
        (Reply(body="{}"), "the model's answer holds no vectors for 3 texts"),
        (Reply(body='{"data": [{"embedding": [1]}]}'), "the model's answer holds 1 vectors for 3 texts"),
        (Reply(body=json.dumps({"data": [{"index": 0, "embedding": [1]}] * 3})), "numbers its 3 vectors wrongly"),
        (Reply(body=json.dumps({"data": [{"embedding": "?"}] * 3})), "holds what is no vector: '?'"),
        (Reply(body=json.dumps({"data": [{"embedding": {}}] * 3})), "holds a vector of 0 bytes"),
        (Reply(body=json.dumps({"data": [{"embedding": "AAAAAAA="}] * 3})), "a vector of 5 bytes"),
        (Reply(close="before"), "the server closed the connection without an answer"),
        (Reply(close="within"), "the server closed the connection in the middle of its answer"),
    ],
)
def test_an_answer_that_is_none_is_a_failure(reply: Reply, message: str) -> None:
    assert message in str(failure(reply))


def test_a_server_without_an_answer_fails_after_the_timeout() -> None:
    with ModelServer(embeddings=[Reply(hang=True)]) as server:
        with pytest.raises(CallFailed, match="timed out") as caught:
            embed(of(server), TEXTS, "document", timeout_s=0.1)
        server.release()
    assert caught.value.transient


# Without litellm, and with it

_FRESH = """
import json, sys
from sleipnir.settings import Settings
from sleipnir_workers.machine.host import Host
from sleipnir_workers.llm.embedding import embed
from sleipnir_workers.llm.resolved_model import resolve_model
from sleipnir_workers.llm.reranking import rerank
env = json.loads(sys.argv[1])
host = Host(env, Settings(home=sys.argv[2]))
model = resolve_model("openai:text-embedding-3-small", host, "embedding")
embedded = embed(model.endpoint, ["a", "b"], "document", clean=model.clean)
ranked = rerank(resolve_model("cohere:rerank-v3.5", host, "reranker").endpoint, "bells", ["ferries", "bells"], top_n=1)
heavy = sorted({"litellm", "numpy", "openai", "httpx"} & set(sys.modules))
print(json.dumps([len(embedded.vectors), embedded.cost_usd, ranked.order, ranked.cost_usd, heavy]))
"""


def test_openais_protocol_and_coheres_reranker_need_no_litellm(tmp_path: Any) -> None:
    with ModelServer() as server:
        env = {"LOKI_CONFIG_DIR": str(tmp_path), **server.env("openai"), **server.env("cohere")}
        command = [sys.executable, "-c", _FRESH, json.dumps(env), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [2, pytest.approx(2 * 0.02 / 1e6), [1], 0.002, []]


def test_certificates_are_configured_as_for_litellm(tmp_path: Any) -> None:
    bundle = tmp_path / "own.pem"
    first, rest, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    bundle.write_text(first + rest)
    assert trusted({"SSL_VERIFY": "False"}) is None
    for env in ({"SSL_CERT_FILE": str(bundle)}, {"SSL_VERIFY": str(bundle), "SSL_CERT_FILE": certifi.where()}):
        context = trusted(env)
        assert context is not None and context.cert_store_stats()["x509"] == 1
    everybody = trusted({"SSL_CERT_FILE": str(tmp_path / "missing.pem")})
    assert everybody is not None and everybody.cert_store_stats()["x509"] > 50


def test_any_other_protocol_goes_through_litellm() -> None:
    with ModelServer(dimensions=8, embeddings=[Reply(), Reply(status=500)]) as server:
        endpoint = Endpoint("hosted_vllm/e", server.url, "sk-x", traits=ModelTraits("e", prices=Prices(1.0, 0)))
        embedded = embed(endpoint, TEXTS, "document")
        with pytest.raises(CallFailed) as caught:
            embed(endpoint, TEXTS, "document")
    assert numbers(embedded) == [pytest.approx(vector_of(text, 8), abs=1e-6) for text in TEXTS]
    assert (embedded.tokens, embedded.cost_usd) == (9, pytest.approx(9 / 1e6))
    assert (len(server.requests), caught.value.status) == (2, 500)


def test_without_litellm_the_built_in_providers_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(litellm_compat, "_folder", lambda: None)
    litellm_compat.listed_providers.cache_clear()
    host = Host({"LOKI_CONFIG_DIR": "/nowhere", "GEMINI_API_KEY": "k"}, Settings())
    try:
        assert litellm_compat.listed_providers() == {"openai", "cohere"}
        with pytest.raises(NodeFailed, match=r"no provider is called 'gemini'.*install '\.\[llm\]'"):
            resolve_model("gemini:gemini-embedding-001", host, "embedding")
    finally:
        litellm_compat.listed_providers.cache_clear()


# Ids

MINE = ConfiguredClient(
    "mine",
    "openai-compatible",
    (
        ModelTraits("chatty"),
        ModelTraits("e-1", type="embedding", real_name="org/e"),
        ModelTraits("r-1", type="reranker"),
    ),
    {"api_base": "http://b/v1"},
)
BARE = ConfiguredClient("bare", "openai-compatible", (), {"api_base": "http://c/v1"})
OPENAI = ConfiguredClient("openai", "openai", (ModelTraits("gpt-x"),), {"api_key": "k"})
CLIENTS = Clients((MINE, BARE, OPENAI))


@pytest.mark.parametrize(
    ("model_id", "model"),
    [
        ("mine:e-1", "openai/org/e"),
        ("mine", "openai/org/e"),
        ("mine:", "openai/org/e"),
        ("bare:whatever", "openai/whatever"),
        ("openai:text-embedding-3-small", "openai/text-embedding-3-small"),
        ("cohere:embed-v4.0", "cohere/embed-v4.0"),
        ("ollama:nomic-embed-text", "ollama/nomic-embed-text"),
    ],
)
def test_an_embedding_model_is_found_by_its_id(model_id: str, model: str) -> None:
    found = resolve(model_id, {"COHERE_API_KEY": "k"}, litellm_compat.listed_providers(), CLIENTS, "embedding")
    assert (found.model, found.traits.type) == (model, "embedding")


@pytest.mark.parametrize(
    ("model_id", "message"),
    [
        ("mine:chatty", "Model 'mine:chatty' is not a embedding model"),
        (
            "mine:e-2",
            "Unknown embedding model 'mine:e-2': list it as `type: embedding`",
        ),
        ("openai:text-embedding-9", "Unknown embedding model 'openai:text-embedding-9'"),
        ("bare", "Unknown embedding model 'bare'; write it as client:model, like 'openai:text-embedding-3-small'"),
        ("nobody:m", "Unknown embedding model 'nobody:m': no provider is called 'nobody'"),
        (
            "mistral:mistral-embed",
            "No API key for model 'mistral:mistral-embed': set MISTRAL_API_KEY in the environment ",
        ),
    ],
)
def test_an_embedding_model_that_is_not_known_is_refused(model_id: str, message: str) -> None:
    with pytest.raises(NodeFailed) as caught:
        resolve(model_id, {}, litellm_compat.listed_providers(), CLIENTS, "embedding")
    assert str(caught.value).startswith(message) or message in str(caught.value)
    assert caught.value.kind == "model"


def test_an_unknown_reranker_of_a_known_client_is_asked_all_the_same() -> None:
    assert resolve("mine:r-9", {}, litellm_compat.listed_providers(), CLIENTS, "reranker").model == "openai/r-9"
    with pytest.raises(NodeFailed, match="is not a reranker model"):
        resolve("mine:e-1", {}, litellm_compat.listed_providers(), CLIENTS, "reranker")
