"""The model server as the libraries see it that ask real providers: litellm, and openai's client below it."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from sleipnir.testing import Call, ModelServer, Reply, Rule, Script

# pytest puts its own filters over those of the libraries.
pytestmark = pytest.mark.filterwarnings("ignore")

TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
SCRIPT = Script(
    rules=[
        Rule(Reply("Let me look.", calls=[Call("search", {"q": "bells"}), Call("search", {"q": "ropes"})]), turn=1),
        Rule("Two found.", tool_results=True),
    ]
)


@pytest.fixture(scope="module")
def litellm() -> Any:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import litellm

    litellm.suppress_debug_info = True
    return litellm


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """litellm asks for this thread's event loop, is given a new one where there is none, and never closes it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


def arguments(server: ModelServer, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    where = {"model": "openai/gpt-test", "api_base": server.url, "api_key": "k", "max_retries": 0, "num_retries": 0}
    return {**where, "messages": [{"role": "user", "content": "go"}, *messages], "tools": [TOOL], **fields}


def result(key: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": key, "content": text}


@pytest.mark.parametrize("stream", [True, False])
def test_a_conversation_with_parallel_calls(litellm: Any, stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}

    def complete(*messages: dict[str, Any]) -> Any:
        answer = litellm.completion(**arguments(server, *messages, **options))
        return litellm.stream_chunk_builder(list(answer)) if stream else answer

    with ModelServer(SCRIPT) as server:
        first = complete()
        message = first.choices[0].message
        assert (message.content, first.choices[0].finish_reason) == ("Let me look.", "tool_calls")
        assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == [
            ("call_1_1", "search", '{"q": "bells"}'),
            ("call_1_2", "search", '{"q": "ropes"}'),
        ]
        assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (10, 5)
        results = [result(call.id, "1") for call in message.tool_calls]
        second = complete(message.model_dump(exclude_none=True), *results)
        assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("Two found.", "stop")
        assert [found.id for found in server.requests[1].tool_results] == ["call_1_1", "call_1_2"]
        assert server.counts() == {None: {1: 1, 2: 1}}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Reply(status=429, retry_after=7), "RateLimitError"),
        (Reply(status=401), "AuthenticationError"),
        (Reply(status=503), "ServiceUnavailableError"),
        (Reply(body="no json"), "InternalServerError"),
        (Reply(close="before"), "InternalServerError"),
        (Reply(close="reset"), "InternalServerError"),
    ],
)
def test_failures_are_errors_of_the_library(litellm: Any, bad: Reply, error: str) -> None:
    with ModelServer([bad]) as server, pytest.raises(Exception) as raised:
        litellm.completion(**arguments(server))
    assert type(raised.value).__name__ == error
    if bad.retry_after is not None:
        assert raised.value.litellm_response_headers["retry-after"] == "7"


@pytest.mark.parametrize(
    "bad",
    [
        Reply("a text that is cut", close="within"),
        Reply("a text that is cut", garbage='data: {"half'),
        Reply("a text that is cut", garbage='data: {"error": {"message": "overloaded", "code": 529}}'),
    ],
)
def test_a_stream_that_breaks_is_an_error_after_its_first_pieces(litellm: Any, bad: Reply) -> None:
    with ModelServer([bad]) as server:
        stream = litellm.completion(**arguments(server, stream=True))
        pieces = []
        with pytest.raises(Exception):  # noqa: B017 (the libraries raise several types)
            for chunk in stream:
                pieces.append(chunk.choices[0].delta.content)
    assert "".join(map(str, pieces)) == "a text t"


def test_openais_client_lists_the_models_and_streams() -> None:
    import openai

    with (
        ModelServer(["hello there"], models=["a"]) as server,
        openai.OpenAI(base_url=server.url, api_key="k", max_retries=0) as client,
    ):
        assert [model.id for model in client.models.list()] == ["a"]
        messages: Any = [{"role": "user", "content": "go"}]
        stream = client.chat.completions.create(model="a", messages=messages, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "hello there"
