"""config.yaml's clients, models and prices, and how they become endpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sleipnir.errors import ConfigError, NodeFailed
from sleipnir_workers.llm.clients import NO_CLIENTS, Clients, Prices, clients_of
from sleipnir_workers.llm.models import Endpoint, resolve
from tests.unit.workers.visits import host

PROVIDERS = frozenset(
    ["openai", "anthropic", "gemini", "cohere_chat", "cohere", "azure", "vertex_ai", "bedrock", "groq"]
)

CONFIG = """\
model: mine:small
stream: true            # Loki's own business
clients:
  # {{COMMENTED}}
  - type: openai-compatible
    name: mine
    api_base: http://{{HOST}}/v1
    api_key: {{MINE_KEY}}
    extra: {proxy: none}
    models:
      - {name: vectors, type: embedding, default_chunk_size: 1500, max_batch_size: 32, input_price: 0.1}
      - name: small
        real_name: org/small-1
        max_input_tokens: 1000
        max_output_tokens: 50
        supports_function_calling: true
        no_stream: true
        input_price: 1.5
        output_price: 3
      - name: big
    patch:
      chat_completions:
        '^b': {body: {seed: 1}, headers: {X-A: b}}
      embeddings:
        '.*': {body: {seed: 2}}
  - type: claude
    api_key: literal
    models:
      - {name: c, max_output_tokens: 4096}
  - type: groq
  - {type: vertexai, project_id: p, location: europe-west1}
prices:
  "mine:big": {input: 1, output: 2}
  "groq:*": {input: 0, output: 0}
"""
ENV = {"HOST": "box:1", "MINE_KEY": "k: 'odd' #1"}


@pytest.fixture
def configured(tmp_path: Path) -> Clients:
    return read(tmp_path, CONFIG)


def read(folder: Path, text: str) -> Clients:
    (folder / "config.yaml").write_text(text)
    return clients_of(host({"LOKI_CONFIG_DIR": str(folder)}))


def endpoint(clients: Clients, model_id: str, env: dict[str, str] | None = None) -> Endpoint:
    return resolve(model_id, ENV if env is None else env, PROVIDERS, clients)


def test_without_a_file_nothing_is_configured(tmp_path: Path) -> None:
    assert clients_of(host({"LOKI_CONFIG_DIR": str(tmp_path)})) == NO_CLIENTS


def test_a_clients_model_has_address_key_and_traits(configured: Clients) -> None:
    found = endpoint(configured, "mine:small")
    assert (found.model, found.api_base, found.api_key) == ("openai/org/small-1", "http://box:1/v1", "k: 'odd' #1")
    traits = found.traits
    assert (traits.max_input_tokens, traits.max_output_tokens, traits.require_max_tokens) == (1000, 50, False)
    assert (traits.supports_function_calling, traits.no_stream, traits.prices) == (True, True, Prices(1.5, 3.0))
    assert configured.model == "mine:small"


def test_a_client_alone_means_its_first_chat_model(configured: Clients) -> None:
    assert endpoint(configured, "mine") == endpoint(configured, "mine:") == endpoint(configured, "mine:small")


def test_a_model_that_is_not_listed_is_taken_as_it_is_named(configured: Clients) -> None:
    found = endpoint(configured, "mine:b/other:free")
    assert (found.model, found.traits.supports_function_calling) == ("openai/b/other:free", True)
    assert found.traits.patch_body == {"seed": 1}


def test_an_embedding_model_has_its_traits_price_and_patches(configured: Clients) -> None:
    found = resolve("mine", ENV, PROVIDERS, configured, "embedding")
    assert (found.model, found.api_base) == ("openai/vectors", "http://box:1/v1")
    assert (found.traits.default_chunk_size, found.traits.max_batch_size) == (1500, 32)
    assert (found.traits.prices, found.traits.patch_body) == (Prices(0.1, 0.0), {"seed": 2})


def test_patches_apply_to_the_chats_of_models_that_match(configured: Clients) -> None:
    big, small = endpoint(configured, "mine:big").traits, endpoint(configured, "mine:small").traits
    assert (big.patch_body, big.patch_headers, big.supports_function_calling) == ({"seed": 1}, {"X-A": "b"}, False)
    assert (small.patch_body, small.patch_headers) == ({}, {})


@pytest.mark.parametrize("model_id", ["claude:c", "anthropic:c"])
def test_the_names_of_a_provider_mean_its_configured_client(configured: Clients, model_id: str) -> None:
    found = endpoint(configured, model_id)
    assert (found.model, found.api_key) == ("anthropic/c", "literal")
    assert (found.traits.require_max_tokens, found.traits.max_output_tokens) == (True, 4096)


def test_a_key_that_the_client_does_not_configure_is_from_the_environment(configured: Clients) -> None:
    assert endpoint(configured, "groq:m", {"GROQ_API_KEY": "from-env"}).api_key == "from-env"
    with pytest.raises(NodeFailed, match="set GROQ_API_KEY"):
        endpoint(configured, "groq:m", {})


def test_other_settings_of_a_client_get_litellms_names(configured: Clients) -> None:
    found = endpoint(configured, "vertex:g")
    assert found.model == "vertex_ai/g"
    assert found.options == {"vertex_project": "p", "vertex_location": "europe-west1"}


def test_prices_of_the_list_win_and_may_be_for_a_whole_client(configured: Clients) -> None:
    assert endpoint(configured, "mine:big").traits.prices == Prices(1.0, 2.0)
    assert endpoint(configured, "groq:any", {"GROQ_API_KEY": "k"}).traits.prices == Prices(0.0, 0.0)
    assert endpoint(configured, "claude:c").traits.prices is None


def test_a_price_of_zero_is_known() -> None:
    assert Prices(0.0, 0.0).cost_usd(1_000, 1_000) == 0.0


def test_a_model_of_another_type_is_refused(configured: Clients) -> None:
    with pytest.raises(NodeFailed, match=r"Model 'mine:vectors' is not a chat model"):
        endpoint(configured, "mine:vectors")


def test_a_missing_secret_names_its_client_and_its_line_and_stops_no_other(configured: Clients) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml:5: client 'mine' needs the secret HOST, MINE_KEY") as caught:
        endpoint(configured, "mine:small", {})
    assert "secrets file" in str(caught.value)
    assert endpoint(configured, "claude:c", {}).api_key == "literal"


def test_nothing_that_may_be_secret_is_shown(configured: Clients) -> None:
    shown = repr((configured, endpoint(configured, "mine:small"), endpoint(configured, "claude:c")))
    assert "literal" not in shown
    assert "odd" not in shown
    assert configured.literal_keys == {"{{MINE_KEY}}", "literal"}


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    first = read(tmp_path, "model: a:b")
    assert read(tmp_path, "model: a:b") is not None
    os.utime(tmp_path / "config.yaml", ns=(1, 1))
    (tmp_path / "config.yaml").write_text("model: c:d")
    os.utime(tmp_path / "config.yaml", ns=(2, 2))
    second = clients_of(host({"LOKI_CONFIG_DIR": str(tmp_path)}))
    assert (first.model, second.model) == ("a:b", "c:d")


def test_another_file_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("model: c:d")
    assert clients_of(host({"LOKI_CONFIG_FILE": str(tmp_path / "other.yaml")})).model == "c:d"


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("clients: [", [":1:"]),
        ("- a\n", ["config.yaml:1:"]),
        ("clients:\n  - name: x\n", ["config.yaml:2:", "clients[0].type: Field required"]),
        (
            "clients:\n  - type: openai\n    models:\n      - name: m\n        input_price: -1\n",
            ["config.yaml:5:", "input_price"],
        ),
        ("clients:\n  - type: openai\n    api_key: [sk-planted]\n", ["config.yaml:3:", "api_key"]),
        (
            "clients:\n  - type: x\n    models:\n      - {name: m, max_batch_size: 0}\n",
            ["config.yaml:4:", "max_batch_size"],
        ),
        ("clients:\n  - type: x\n    models:\n      - {name: m, type: vectors}\n", ["config.yaml:4:", "'embedding'"]),
        ("prices:\n  a:b: {input: 1}\n", ["config.yaml:2:", "output: Field required"]),
        (
            "clients:\n  - type: x\n    models: [{name: m, patch: {url: http://a}}]\n",
            ["patch of the url is not supported"],
        ),
        ("clients:\n  - type: x\n    patch: {chat_completions: {'(': {body: {a: 1}}}}\n", ["no regular expression"]),
    ],
)
def test_a_file_that_is_wrong_reports_where_and_what_and_shows_no_value(
    tmp_path: Path, text: str, messages: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert all(message in str(caught.value) for message in messages), str(caught.value)
    assert "sk-planted" not in str(caught.value)


@pytest.mark.parametrize("nothing", ["", "clients:\n", "clients: null\nprices: null\n", "clients: []\n"])
def test_a_file_without_models_is_accepted(tmp_path: Path, nothing: str) -> None:
    assert read(tmp_path, nothing) == NO_CLIENTS


def test_endpoints_of_unlisted_clients_are_as_without_a_file(configured: Clients) -> None:
    env: dict[str, Any] = {"OPENAI_API_KEY": "k"}
    assert endpoint(configured, "openai:m", env) == resolve("openai:m", env, PROVIDERS)
