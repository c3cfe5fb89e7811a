"""Calls of a model over HTTP, with servers that do and do not keep to the protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import pytest
import urllib3

from sleipnir_workers.llm import chat_request, litellm_compat
from sleipnir_workers.llm.chat_call import ask
from sleipnir_workers.llm.clients import ModelTraits, Prices
from sleipnir_workers.llm.failures import CallFailed
from sleipnir_workers.llm.models import Endpoint
from sleipnir_workers.llm.reply import Answer, RequestedCall
from tests.integration.workers.llm.raw_server import Raw, RawServer, call, delta, used, whole
from tests.processes import wait_until

# pytest puts its own filters over those that litellm_compat.py sets.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
    # litellm reads streams through an attribute that pydantic deprecates.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

KEY = "sk-a-key-nobody-may-see"
ASKED = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def asked(raw: Raw, *, traits: ModelTraits | None = None, options: dict[str, str] | None = None, **how: Any) -> Answer:
    return sent(raw, traits=traits, options=options, **how)[0]


def sent(
    raw: Raw, *, traits: ModelTraits | None = None, options: dict[str, str] | None = None, **how: Any
) -> tuple[Answer, dict[str, Any]]:
    """The answer, and the body of the request."""
    with RawServer(raw) as server:
        endpoint = Endpoint("openai/gpt-test", server.url, KEY, options or {}, traits or ModelTraits())
        answer = ask(endpoint, ASKED, **how)
        assert server.authorizations == [f"Bearer {KEY}"]
        return answer, server.bodies[0]


def streamed(pieces: Sequence[Any], **raw: Any) -> tuple[Answer, list[str]]:
    heard: list[str] = []
    return asked(Raw(pieces=pieces, **raw), on_text=heard.append), heard


def failed(raw: Raw, **how: Any) -> CallFailed:
    with pytest.raises(CallFailed) as caught:
        asked(raw, **how)
    assert "Traceback" not in str(caught.value)
    return caught.value


# What is sent


@pytest.mark.conformance("M02", "M13")
def test_parameters_that_are_not_set_are_not_sent() -> None:
    _, body = sent(Raw(whole({"content": "hi"})))
    assert body == {"model": "gpt-test", "messages": ASKED}
    _, body = sent(Raw(whole({"content": "hi"})), temperature=0.0, top_p=0.5, tools=[TOOL])
    assert body == {"model": "gpt-test", "messages": ASKED, "temperature": 0.0, "top_p": 0.5, "tools": [TOOL]}


def test_the_configured_parameters_of_a_model_are_sent() -> None:
    traits = ModelTraits(
        max_output_tokens=77,
        require_max_tokens=True,
        system_prompt_prefix="first",
        patch_body={"seed": 5, "temperature": None},
    )
    _, body = sent(Raw(whole({"content": "hi"})), traits=traits, temperature=0.5)
    prefixed = [{"role": "system", "content": "first"}, *ASKED]
    assert body == {"model": "gpt-test", "messages": prefixed, "max_tokens": 77, "seed": 5}


def test_parameters_are_sent_under_the_names_that_the_model_takes() -> None:
    traits = ModelTraits(max_output_tokens=77, require_max_tokens=True)
    with RawServer(Raw(whole({"content": "hi"}))) as server:
        ask(Endpoint("openai/o3-mini", server.url, KEY, traits=traits), ASKED)
    assert server.bodies[0] == {"model": "o3-mini", "messages": ASKED, "max_completion_tokens": 77}


@pytest.mark.parametrize(
    ("said", "left"), [({"temperature": 0.1}, {}), ({"top_p": 0.5}, {}), ({"temperature": 1.0}, {"temperature": 1.0})]
)
def test_a_model_that_takes_no_temperature_or_top_p_is_asked_without(
    said: dict[str, float], left: dict[str, float]
) -> None:
    with RawServer(Raw(whole({"content": "hi"}))) as server:
        ask(Endpoint("openai/gpt-5-mini", server.url, KEY), ASKED, **said)
    assert server.bodies[0] == {"model": "gpt-5-mini", "messages": ASKED, **left}


def test_an_organization_and_the_headers_of_the_configuration_go_along(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, str] = {}
    request = urllib3.PoolManager.request

    def noted(*args: Any, **how: Any) -> Any:
        found.update(how["headers"])
        return request(*args, **how)

    monkeypatch.setattr(urllib3.PoolManager, "request", noted)
    asked(
        Raw(whole({"content": "hi"})), options={"organization": "org"}, traits=ModelTraits(patch_headers={"X-Own": "1"})
    )
    assert (found["OpenAI-Organization"], found["X-Own"]) == ("org", "1")


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with RawServer(Raw(whole({"content": "hi"}))) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
        assert ask(Endpoint("openai/gpt-test", "http://models.invalid/v1", KEY), ASKED).text == "hi"
        monkeypatch.setenv("no_proxy", "elsewhere.invalid")
        with pytest.raises(CallFailed, match=r"^elsewhere.invalid: \[Errno"):
            ask(Endpoint("openai/gpt-test", "http://elsewhere.invalid/v1", KEY), ASKED)


def test_a_conversation_with_calls_is_sent_completely_and_unchanged() -> None:
    first = asked(Raw(whole({"content": "one moment", "tool_calls": [call("f", "{}", id="a")]}, "tool_calls")))
    messages = [*ASKED, first.message, {"role": "tool", "tool_call_id": "a", "content": "1"}]
    with RawServer(Raw(whole({"content": "one"}))) as server:
        assert ask(Endpoint("openai/gpt-test", server.url, KEY), messages, tools=[TOOL]).text == "one"
    assert server.bodies[0]["messages"] == messages


# What comes back


def test_an_answer_has_text_calls_finish_and_usage() -> None:
    written = [call("f", '{"x":1}', id="a"), call("g", {"y": 2}, id="b"), call("h", None, id="c")]
    answer = asked(Raw(whole({"content": "so", "tool_calls": written}, "tool_calls")))
    assert (answer.text, answer.finish, answer.cost_usd) == ("so", "tool_calls", None)
    assert (answer.input_tokens, answer.output_tokens) == (3, 2)
    assert answer.calls == (
        RequestedCall("a", "f", '{"x":1}'),
        RequestedCall("b", "g", '{"y": 2}'),
        RequestedCall("c", "h", "{}"),
    )


def test_a_stream_is_passed_on_as_it_arrives_and_gives_the_same_answer() -> None:
    pieces = [delta({"role": "assistant", "content": "he"}), delta({"content": "llo"}), delta({}, "stop"), used(7, 2)]
    answer, heard = streamed([*pieces, "[DONE]"])
    assert heard == ["he", "llo"]
    assert answer == Answer("hello", (), "stop", 7, 2, None, {"role": "assistant", "content": "hello"})


def test_calls_in_a_stream_are_put_together() -> None:
    pieces = [
        delta({"tool_calls": [call("f", "", index=0, id="a")]}),
        delta({"tool_calls": [call(None, '{"x"', index=0)]}),
        delta({"tool_calls": [call(None, ":1}", index=0)]}),
        delta({"tool_calls": [call("g", "{}", index=1)]}),
        delta({"tool_calls": [call("h", {"z": 1}, id="c", index=2)]}),
        delta({}, "tool_calls"),
    ]
    answer, heard = streamed([*pieces, "[DONE]"])
    assert [(each.name, each.arguments) for each in answer.calls] == [("f", '{"x":1}'), ("g", "{}"), ("h", '{"z": 1}')]
    assert answer.calls[1].id.startswith("call_")
    assert (heard, answer.finish, answer.message["content"]) == ([], "tool_calls", None)


def test_a_stream_without_usage_gets_an_estimate() -> None:
    answer, _ = streamed([delta({"content": "hello"}), delta({}, "stop"), "[DONE]"])
    assert answer.input_tokens > 0
    assert answer.output_tokens > 0


def test_streams_one_after_the_other_use_one_connection() -> None:
    pieces = [delta({"content": "hello"}), delta({}, "stop"), used(7, 2), "[DONE]"]
    with RawServer(Raw(pieces=pieces)) as server:
        for _ in range(3):
            ask(Endpoint("openai/gpt-test", server.url, KEY), ASKED, on_text=lambda text: None)
            wait_until(lambda: "llm-call" not in {thread.name for thread in threading.enumerate()}, "the call is over")
        assert server.connections == 1


def test_reasoning_of_a_stream_is_kept_by_either_name() -> None:
    for name in ("reasoning_content", "reasoning"):
        pieces = [delta({name: "hm"}), delta({"tool_calls": [call("f", "{}", id="a")]}), delta({}, "tool_calls")]
        answer, heard = streamed([*pieces, "[DONE]"])
        assert (answer.message["reasoning_content"], heard) == ("hm", [])


def test_the_answer_of_a_model_that_cannot_stream_is_one_piece() -> None:
    heard: list[str] = []
    answer, body = sent(Raw(whole({"content": "hi"})), traits=ModelTraits(no_stream=True), on_text=heard.append)
    assert (answer.text, heard, "stream" in body) == ("hi", ["hi"], False)


CLAUDE = "anthropic/claude-3-5-haiku-20241022"
CLAUDE_BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": "hi"},
    {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
]


def claude_pieces() -> list[dict[str, Any]]:
    """The events of Anthropic's protocol for CLAUDE_BLOCKS."""
    started = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": None}
    deltas: list[list[dict[str, Any]]] = [
        [{"type": "thinking_delta", "thinking": part} for part in "hm"]
        + [{"type": "signature_delta", "signature": "s"}],
        [{"type": "text_delta", "text": "hi"}],
        [{"type": "input_json_delta", "partial_json": part} for part in ('{"x"', ": 1}")],
    ]
    empty: dict[str, Any] = {"thinking": "", "signature": "", "text": "", "input": {}}
    blocks = [{key: empty.get(key, value) for key, value in block.items()} for block in CLAUDE_BLOCKS]
    return [
        {"type": "message_start", "message": {**started, "usage": {"input_tokens": 3, "output_tokens": 0}}},
        *(
            event
            for index, block in enumerate(blocks)
            for event in (
                {"type": "content_block_start", "index": index, "content_block": block},
                *({"type": "content_block_delta", "index": index, "delta": each} for each in deltas[index]),
                {"type": "content_block_stop", "index": index},
            )
        ),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]


def claude_body() -> str:
    usage = {"input_tokens": 3, "output_tokens": 2}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": CLAUDE_BLOCKS}
    return json.dumps({**message, "stop_reason": "tool_use", "usage": usage})


@pytest.mark.parametrize("on_text", [None, lambda text: None])
def test_another_protocol_gives_the_same_answer_and_gets_back_what_it_wants(on_text: Any) -> None:
    with RawServer(Raw(claude_body(), claude_pieces() if on_text else None)) as server:
        endpoint = Endpoint(CLAUDE, server.url.removesuffix("/v1"), KEY, traits=ModelTraits(prices=Prices(1.0, 1.0)))
        answer = ask(endpoint, ASKED, tools=[TOOL], on_text=on_text)
        assert (answer.text, answer.finish) == ("hi", "tool_calls")
        assert answer.calls == (RequestedCall("t1", "f", '{"x": 1}'),)
        assert (answer.input_tokens, answer.output_tokens, answer.cost_usd) == (3, 2, pytest.approx(5e-6))
        server.raw = Raw(claude_body())
        ask(endpoint, [*ASKED, answer.message, {"role": "tool", "tool_call_id": "t1", "content": "5"}], tools=[TOOL])
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": CLAUDE_BLOCKS}


# Prices


@pytest.mark.parametrize("pieces", [None, [delta({"content": "a"}), delta({}, "stop"), used(3, 2), "[DONE]"]])
def test_a_configured_price_is_per_million_tokens(pieces: list[Any] | None) -> None:
    how: dict[str, Any] = {} if pieces is None else {"on_text": lambda text: None}
    answer = asked(Raw(whole({"content": "a"}), pieces), traits=ModelTraits(prices=Prices(2.0, 10.0)), **how)
    assert answer.cost_usd == pytest.approx(3 * 2e-6 + 2 * 10e-6)


def test_a_cost_that_the_provider_reports_is_used() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "cost": 0.25}
    assert asked(Raw(whole({"content": "a"}, usage=usage))).cost_usd == 0.25


@pytest.mark.parametrize("on_text", [None, lambda text: None])
def test_a_model_of_litellms_list_has_its_price(on_text: Any) -> None:
    pieces = [delta({"content": "a"}), delta({}, "stop"), used(3, 2), "[DONE]"] if on_text else None
    with RawServer(Raw(whole({"content": "a"}), pieces)) as server:
        answer = ask(Endpoint("openai/gpt-4o-mini", server.url, KEY), ASKED, on_text=on_text)
    assert answer.cost_usd is not None
    assert 0 < answer.cost_usd < 0.0001


# Failures


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (whole({"content": "a"}, choices=[]), "the model's reply holds no choices"),
        ('{"id": "x"}', "choices"),
        ("[1]", "the answer is no object: [1]"),
        ("no json", "the provider's answer is not JSON: Expecting value"),
        (
            whole({"tool_calls": [call("f", [1], id="a")]}),
            "calls 'f' with arguments that are neither text nor an object, but list",
        ),
        (whole({"tool_calls": [call(None, "{}", id="a")]}), "calls a tool without a name"),
    ],
)
def test_an_answer_of_a_wrong_shape_is_an_error_with_the_reason(body: str, message: str) -> None:
    error = failed(Raw(body))
    assert message in str(error)
    assert (error.kind, error.transient) == ("model_call", False)


def test_garbage_in_a_stream_is_an_error_and_not_transient() -> None:
    for garbage in ("{nonsense", "5", {"error": {"message": "overloaded"}}):
        error = failed(Raw(pieces=[delta({"content": "a"}), garbage, "[DONE]"]), on_text=lambda text: None)
        assert not error.transient
        assert "Original exception" not in str(error)


def test_garbage_is_reported_with_the_message_of_the_parser() -> None:
    error = failed(Raw(pieces=[delta({"content": "a"}), "{nonsense", "[DONE]"]), on_text=lambda text: None)
    assert str(error).startswith("the provider's answer is not JSON: Expecting property name")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (Raw(pieces=[delta({"content": "a"})], cut=True), "the server closed the connection in the middle"),
        (Raw(pieces=[delta({"content": "a"})]), "the stream ended before the model had finished its answer"),
        (Raw(pieces=[delta({"content": "a"}), "[DONE]"]), "the stream ended before the model had finished its answer"),
        (Raw(pieces=["[DONE]"]), "the model produced no output"),
        (Raw(pieces=[]), "the model produced no output"),
        (Raw(whole({"content": "a"})), "`no_stream: true`"),
    ],
)
def test_a_stream_that_is_cut_off_is_no_answer_and_transient(raw: Raw, message: str) -> None:
    error = failed(raw, on_text=lambda text: None)
    assert message in str(error)
    assert error.transient


@pytest.mark.conformance("M08", "M09")
@pytest.mark.parametrize(
    ("status", "headers", "kind", "transient", "wait_s"),
    [
        (429, {}, "rate_limit", True, None),
        (429, {"Retry-After": "7"}, "rate_limit", True, 7.0),
        (429, {"Retry-After": "soon"}, "rate_limit", True, None),
        (429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, "rate_limit", True, 0.0),
        (503, {"Retry-After": "2"}, "model_call", True, 2.0),
        (503, {}, "model_call", False, None),
        (500, {}, "model_call", False, None),
        (401, {}, "model_call", False, None),
    ],
)
def test_a_status_gives_the_kind_of_failure_and_the_time_of_the_next_try(
    status: int, headers: dict[str, str], kind: str, transient: bool, wait_s: float | None
) -> None:
    error = failed(Raw('{"error": {"message": "no"}}', status=status, headers=headers))
    assert (error.status, error.kind, error.transient, error.retry_after_s) == (status, kind, transient, wait_s)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"error": {"message": "no"}}', "the provider answered 502 Bad Gateway: no"),
        ('{"error": "no"}', "the provider answered 502 Bad Gateway: no"),
        ("<html>\n  no </html>", "the provider answered 502 Bad Gateway: <html> no </html>"),
        ("", "the provider answered 502 Bad Gateway"),
    ],
)
@pytest.mark.parametrize("on_text", [None, lambda text: None])
def test_the_message_of_a_refusing_server_is_passed_on(body: str, said: str, on_text: Any) -> None:
    assert str(failed(Raw(body, status=502), on_text=on_text)) == said


def test_a_server_that_is_not_there_is_named_and_the_failure_is_transient() -> None:
    with RawServer(Raw()) as server:
        url = server.url
    with pytest.raises(CallFailed) as caught:
        ask(Endpoint("openai/gpt-test", url, KEY), ASKED)
    assert str(caught.value) == f"{url[7:-3]}: [Errno 111] Connection refused"
    assert caught.value.transient


def test_a_key_that_the_provider_repeats_is_taken_out() -> None:
    echo = Raw(f'{{"error": {{"message": "bad key {KEY}"}}}}', status=401)
    assert "bad key [out]" in str(failed(echo, clean=lambda text: text.replace(KEY, "[out]")))


@pytest.mark.conformance("M10")
def test_a_call_that_takes_too_long_is_left() -> None:
    goes_on = threading.Event()
    try:
        error = failed(Raw(pieces=[], hang_after=goes_on), timeout_s=0.2, on_text=lambda text: None)
    finally:
        goes_on.set()
    assert (str(error), error.kind, error.transient) == ("the model call timed out after 0.2s", "timeout", True)


def test_what_is_raised_while_we_wait_ends_the_call_and_closes_the_stream() -> None:
    class Stopped(BaseException):
        pass

    heard = threading.Event()

    def stop() -> None:
        if heard.is_set():
            raise Stopped

    goes_on = threading.Event()
    with RawServer(Raw(pieces=[delta({"content": "a"})], hang_after=goes_on)) as server:
        with pytest.raises(Stopped):
            ask(Endpoint("openai/gpt-test", server.url, KEY), ASKED, on_text=lambda _: heard.set(), tick=stop)
        goes_on.set()
        assert server.gone.wait(20), "the server can still write to a stream that nobody reads"


@pytest.mark.parametrize(("timeout_s", "http_s"), [(0.1, 2), (1.4, 2), (1.6, 4), (60, 64), (600, 600), (10_000, 600)])
def test_few_timeouts_are_used_because_clients_are_kept_by_timeout(timeout_s: float, http_s: float) -> None:
    assert chat_request.http_timeout_s(timeout_s) == http_s


# litellm


def test_a_stream_records_whether_the_provider_ended_it() -> None:
    for ending, is_complete in (([delta({}, "stop"), "[DONE]"], True), ([], False)):
        with RawServer(Raw(pieces=[delta({"content": "a"}), *ending])) as server:
            arguments = {"model": "hosted_vllm/m", "messages": ASKED, "api_base": server.url, "api_key": "k"}
            stream = litellm_compat.completion_stream(arguments)
            pieces = list(stream)
            for name in ("received_finish_reason", "intermittent_finish_reason", "completion_stream"):
                assert hasattr(stream._stream, name), (
                    f"litellm {version('litellm')}: a stream has no {name}, which litellm_compat.py reads"
                )
            assert pieces and stream.is_complete == is_complete
            stream.close()


def test_an_error_of_litellm_keeps_the_headers_of_the_response() -> None:
    litellm = litellm_compat.library()
    with (
        RawServer(Raw('{"error": {"message": "no"}}', status=429, headers={"Retry-After": "7"})) as server,
        pytest.raises(litellm.exceptions.RateLimitError) as caught,
    ):
        arguments = {"model": "hosted_vllm/m", "messages": ASKED, "api_base": server.url, "api_key": "k"}
        litellm_compat.completion({**arguments, "max_retries": 0})
    headers = litellm_compat.headers_of(caught.value) or caught.value.response.headers
    assert headers["retry-after"] == "7"
