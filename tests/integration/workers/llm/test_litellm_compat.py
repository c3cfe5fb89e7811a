"""What litellm_compat.py needs of litellm. A new release that fails here changed something that the module relies on.

Where an attribute is missing, calls still work, but slower or with litellm's logging; where a behaviour differs, read
the function that the test names before the release is allowed.
"""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import version
from typing import Any

import httpx
import pytest

from sleipnir_workers.llm import json_http, litellm_compat
from sleipnir_workers.llm.transport import OPENAI_BASE

# pytest puts its own filters over those that litellm_compat.py sets.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]

MESSAGES = [{"role": "user", "content": "hello"}]
RELEASE = f"litellm {version('litellm')}"

ATTRIBUTES = {
    "litellm": (
        "ModelResponse Usage api_base client_session completion completion_cost disable_streaming_logging embedding "
        "exceptions.UnsupportedParamsError force_ipv4 get_supported_openai_params provider_list rerank ssl_certificate "
        "suppress_debug_info telemetry token_counter LlmProviders.OPENAI"
    ),
    "litellm._internal_context": "is_internal_call.set",
    "litellm.litellm_core_utils.litellm_logging": (
        "Logging.success_handler Logging.failure_handler Logging.response_cost_calculator "
        "Logging.update_environment_variables"
    ),
    "litellm.llms.custom_httpx.http_handler": (
        "HTTPHandler._create_sync_transport HTTPHandler._create_sync_proxy_mounts _environment_proxy_mounts "
        "get_ssl_configuration http2_enabled"
    ),
    "litellm.main": "responses_api_bridge_check",
    "litellm.utils": "ProviderConfigManager.get_provider_chat_config get_optional_params",
}
"""By module: what is read, called, replaced or set."""

PARAMETERS = {
    "litellm.litellm_core_utils.litellm_logging:Logging": (
        "model messages stream call_type start_time litellm_call_id function_id"
    ),
    "litellm.litellm_core_utils.litellm_logging:Logging.update_environment_variables": (
        "model user optional_params litellm_params"
    ),
    "litellm.main:responses_api_bridge_check": "model custom_llm_provider tools api_base",
    "litellm.utils:get_optional_params": (
        "model custom_llm_provider temperature top_p reasoning_effort max_tokens tools additional_drop_params "
        "allowed_openai_params"
    ),
    "litellm:get_supported_openai_params": "model custom_llm_provider",
    "litellm:token_counter": "model messages text count_response_tokens",
    "litellm:completion_cost": "completion_response model",
}
"""By function: the parameters that are passed by name."""


@pytest.fixture(autouse=True, scope="module")
def litellm() -> Any:
    litellm_compat.warm_up()
    return litellm_compat.library()


def value_at(module: str, path: str) -> Any:
    value: Any = importlib.import_module(module)
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("module", "path"), [(module, path) for module in ATTRIBUTES for path in ATTRIBUTES[module].split()]
)
def test_litellm_has_what_we_use(module: str, path: str) -> None:
    try:
        value_at(module, path)
    except (ImportError, AttributeError):
        pytest.fail(f"{RELEASE} has no {module}.{path}, which litellm_compat.py uses")


@pytest.mark.parametrize("function", PARAMETERS)
def test_litellms_functions_take_the_parameters_that_we_pass(function: str) -> None:
    module, _, path = function.partition(":")
    taken = inspect.signature(value_at(module, path)).parameters
    missing = sorted(set(PARAMETERS[function].split()) - set(taken))
    assert not missing, f"{RELEASE}: {module}.{path} takes no parameter {missing}, which litellm_compat.py passes"


def test_litellms_files_are_where_we_read_them() -> None:
    folder = litellm_compat._folder()
    assert folder is not None
    for name in (litellm_compat._PRICES, litellm_compat._TYPES):
        assert (folder / name).is_file(), f"{RELEASE} has no file {name}: prices or providers cannot be read"
    types = (folder / litellm_compat._TYPES).read_text(encoding="utf-8")
    assert litellm_compat._PROVIDERS.search(types), f"{RELEASE} writes the class LlmProviders in another way"
    assert litellm_compat.listed_providers() == litellm_compat.providers()


@pytest.mark.parametrize(
    ("model", "mode", "price"),
    [
        ("openai/text-embedding-3-small", "embedding", "input_cost_per_token"),
        ("cohere/rerank-v3.5", "rerank", "input_cost_per_query"),
        ("openai/voyage-3", "embedding", "input_cost_per_token"),  # as `voyage/voyage-3`
    ],
)
def test_the_price_list_has_prices_by_the_names_that_we_read(model: str, mode: str, price: str) -> None:
    entry = litellm_compat.listed(model, mode)
    assert entry is not None and entry.get(price), f"{RELEASE} lists no {price} for {model}"


def test_a_chat_has_a_price_and_an_unknown_model_none() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    cost_usd = litellm_compat.completion_cost_usd("openai/gpt-4o-mini", "gpt-4o-mini", usage)
    assert cost_usd is not None and 0 < cost_usd < 0.0001
    assert litellm_compat.completion_cost_usd("openai/nobodys-model", "nobodys-model", usage) is None


def test_litellm_logs_nothing() -> None:
    logged = litellm_compat._without_logging({"model": "openai/gpt-test", "messages": MESSAGES})
    assert set(logged) == {"litellm_logging_obj"}, f"{RELEASE} creates its logging object in another way"
    assert logged["litellm_logging_obj"].response_cost_calculator(result=None) is None


def test_a_request_of_openais_protocol_is_plain_data() -> None:
    body = litellm_compat.openai_body("gpt-4o", OPENAI_BASE, MESSAGES, {"temperature": 0.5})
    assert body == {"model": "gpt-4o", "messages": MESSAGES, "temperature": 0.5}


def test_a_model_that_needs_the_responses_protocol_is_left_to_litellm() -> None:
    assert litellm_compat.openai_body("gpt-5-codex", OPENAI_BASE, MESSAGES, {}) is None
    assert litellm_compat.openai_body("gpt-4o", OPENAI_BASE, MESSAGES, {}) is not None


def test_a_parameter_that_a_model_refuses_is_left_out(litellm: Any) -> None:
    with pytest.raises(litellm.exceptions.UnsupportedParamsError):
        value_at("litellm.utils", "get_optional_params")(
            model="gpt-5-mini", custom_llm_provider="openai", temperature=0.1
        )
    body = litellm_compat.openai_body("gpt-5-mini", OPENAI_BASE, MESSAGES, {"temperature": 0.1})
    assert body == {"model": "gpt-5-mini", "messages": MESSAGES}


def test_an_error_is_reported_without_the_text_that_litellm_adds() -> None:
    error = Exception(
        "litellm.RateLimitError: litellm.RateLimitError: slow down\nTraceback (most recent call last):\n x"
    )
    assert litellm_compat.message_of(error) == "litellm.RateLimitError: slow down"
    assert litellm_compat.message_of(ValueError()) == "ValueError"


def connections(client: httpx.Client) -> list[tuple[int, int]]:
    transports = [client._transport, *filter(None, client._mounts.values())]
    pools = [transport._pool for transport in transports]  # type: ignore[attr-defined]
    return [(pool._max_connections, pool._max_keepalive_connections) for pool in pools]


def test_litellms_clients_keep_more_connections_than_a_process_has_calls(
    litellm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    handler = value_at("litellm.llms.custom_httpx.http_handler", "HTTPHandler")()
    wide = (json_http.CONNECTIONS, json_http.CONNECTIONS)
    assert connections(handler.client) == [wide, wide], f"{RELEASE} builds its HTTP clients in another way"
    assert connections(litellm.client_session)[0] == wide


def test_other_http_clients_keep_their_defaults() -> None:
    with httpx.Client() as client:
        assert connections(client)[0] == (100, 20)
