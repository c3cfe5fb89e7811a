"""What the scripted model server answers, and what it remembers."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sleipnir.testing import Call, ModelServer, Reply, Request, ToolResult
from sleipnir.testing.script import Chooser
from tests.unit.testing.asking import Answer, ask, get, post, turns

BELLS = Call("search", {"q": "bells"})


def answer_to(reply: Reply | str, **fields: Any) -> Answer:
    with ModelServer([reply]) as server:
        return ask(server, "hi", **fields)


# Whole answers


def test_a_text_is_the_assistants_message() -> None:
    answer = answer_to(Reply("hello", input_tokens=7, output_tokens=2))
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.data == {
        "id": "chatcmpl-test",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
    }


def test_calls_are_numbered_by_turn_and_place_so_that_a_turn_asked_twice_gets_the_same_ids() -> None:
    reply = Reply(calls=[BELLS, Call("read", '{"half', id="mine"), Call("now")])
    with ModelServer(lambda request: reply) as server:
        first = ask(server, *turns("go", ("search", "none")))
        assert first.data == ask(server, *turns("go", ("search", "none"))).data
    assert first.data["choices"][0]["finish_reason"] == "tool_calls"
    assert first.message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_2_1", "type": "function", "function": {"name": "search", "arguments": '{"q": "bells"}'}},
            {"id": "mine", "type": "function", "function": {"name": "read", "arguments": '{"half'}},
            {"id": "call_2_3", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    }


def test_a_reply_can_have_text_and_calls_and_another_finish_reason() -> None:
    answer = answer_to(Reply("Let me look.", calls=[BELLS], finish="length", model="other"))
    assert (answer.message["content"], len(answer.message["tool_calls"])) == ("Let me look.", 1)
    assert (answer.data["choices"][0]["finish_reason"], answer.data["model"]) == ("length", "other")


@pytest.mark.parametrize("text", ["", None])
def test_an_answer_may_be_empty(text: str | None) -> None:
    assert answer_to(Reply(text)).message == {"role": "assistant", "content": text}


def test_a_failure_has_its_status_its_message_and_when_to_come_back() -> None:
    answer = answer_to(Reply(status=429, error="slow down", retry_after=2, headers={"x-ratelimit-remaining": "0"}))
    assert (answer.status, answer.error) == (429, "slow down")
    assert (answer.headers["Retry-After"], answer.headers["x-ratelimit-remaining"]) == ("2", "0")


@pytest.mark.parametrize("stream", [True, False])
def test_a_body_and_a_content_type_of_ones_own_replace_what_would_be_sent(stream: bool) -> None:
    answer = answer_to(Reply("never", body="<html>busy", content_type="text/html", status=502), stream=stream)
    assert (answer.status, answer.headers["Content-Type"], answer.text) == (502, "text/html", "<html>busy")


# Streams


def test_a_stream_sends_the_text_in_pieces() -> None:
    answer = answer_to(Reply("ringing", piece_characters=3), stream=True)
    assert answer.headers["Content-Type"] == "text/event-stream"
    choices = [chunk["choices"][0] for chunk in answer.chunks]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "rin"},
        {"content": "gin"},
        {"content": "g"},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, None, "stop"]
    assert all("usage" not in chunk for chunk in answer.chunks)


def test_a_stream_opens_each_call_and_sends_its_arguments_in_pieces() -> None:
    answer = answer_to(Reply(calls=[Call("a", "12345"), Call("b", "6")], piece_characters=4), stream=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in answer.chunks]
    assert deltas == [
        {"role": "assistant", "content": None},
        {"tool_calls": [opening(0, "call_1_1", "a")]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1234"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "5"}}]},
        {"tool_calls": [opening(1, "call_1_2", "b")]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "6"}}]},
        {},
    ]
    assert answer.chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def opening(index: int, key: str, name: str) -> dict[str, Any]:
    return {"index": index, "id": key, "type": "function", "function": {"name": name, "arguments": ""}}


def test_a_stream_ends_with_the_token_counts_on_request() -> None:
    answer = answer_to(Reply("hi", input_tokens=3), stream=True, stream_options={"include_usage": True})
    *others, last = answer.chunks
    assert (last["choices"], last["usage"]["prompt_tokens"]) == ([], 3)
    assert {chunk["usage"] for chunk in others} == {None}


def test_a_failure_of_a_stream_is_no_stream() -> None:
    answer = answer_to(Reply(status=500), stream=True)
    assert (answer.status, answer.headers["Content-Type"]) == (500, "application/json")


def test_a_stream_can_have_garbage_in_the_middle() -> None:
    answer = answer_to(Reply("abcd", piece_characters=1, garbage='data: {"half'), stream=True)
    assert len(answer.events) == 8
    assert answer.events[3] == '{"half'


# Connections


@pytest.mark.parametrize(
    ("close", "error"),
    [
        ("before", http.client.RemoteDisconnected),
        ("reset", ConnectionResetError),
        ("within", http.client.IncompleteRead),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_connection_can_end_before_or_within_an_answer(close: Any, error: type[Exception], stream: bool) -> None:
    with ModelServer([Reply("a text that is cut", close=close), "whole"]) as server:
        with pytest.raises(error) as raised:
            ask(server, "hi", stream=stream)
        assert type(raised.value) is error
        assert ask(server).message["content"] == "whole"
        assert server.counts() == {None: {1: 1}}


@pytest.mark.parametrize("reply", [Reply("late", hang=True), Reply("late, and in two halves", stall=True)])
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_waits_until_it_is_released(reply: Reply, stream: bool) -> None:
    with ModelServer([reply, "other"]) as server, ThreadPoolExecutor() as pool:
        waiting = pool.submit(ask, server, "hi", stream=stream)
        server.wait_for_requests(1)
        assert ask(server).message["content"] == "other"
        assert not waiting.done()
        assert post(server, "", "/release").status == 200
        answer = waiting.result(timeout=60)
        assert (answer.events[-1] == "[DONE]") if stream else (answer.message["content"] == reply.text)


def test_latency_is_waited_for_and_ends_with_the_server() -> None:
    with ThreadPoolExecutor() as pool:
        with ModelServer([Reply("late", delay_s=3600.0)]) as server:
            waiting = pool.submit(ask, server)
            server.wait_for_requests(1)
            assert not waiting.done()
        waiting.exception(timeout=60)  # answered or cut off, but not an hour later


def test_a_connection_that_was_kept_is_not_answered_by_a_server_that_has_stopped() -> None:
    with ModelServer(["hi"]) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server._http.server_address[1], timeout=60)
        connection.request("GET", "/requests")
        assert connection.getresponse().read() == b"[]"
    with pytest.raises(OSError):
        connection.request("GET", "/requests")
        connection.getresponse()
    connection.close()


def test_it_counts_the_concurrent_calls() -> None:
    with ModelServer(lambda request: Reply(hang=True)) as server, ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(ask, server) for _ in range(16)]
        server.wait_for_requests(16)
        server.release()
        assert {one.result(timeout=60).status for one in asked} == {200}
        assert server.most_at_once == 16


# What it remembers


def test_a_request_is_recorded_as_it_came() -> None:
    tool = {"type": "function", "function": {"name": "search", "parameters": {}}}
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    with ModelServer(["x", "y"]) as server:
        ask(server, {"role": "system", "content": "be brief"}, parts, tools=[tool], stream=False)
        ask(server)
    request, bare = server.requests
    assert (request.path, request.authorization, request.model) == ("/v1/chat/completions", "Bearer k", "m")
    assert (request.system, request.prompt, request.turn, request.tools) == ("be brief", "ab", 1, ["search"])
    assert (bare.system, bare.prompt, bare.tools, bare.tool_results, bare.conversation) == (None, "hi", [], [], None)
    assert 0 < request.at_s <= bare.at_s


def test_results_of_tools_are_those_of_the_last_turn_with_the_names_of_their_tools() -> None:
    messages = turns("go", ("search", "old"), ("read", "new"))
    messages.append({"role": "tool", "tool_call_id": "unknown", "content": "?"})
    request = Request("/", None, {"messages": messages})
    assert request.turn == 3
    assert request.tool_results == [ToolResult("c2", "read", "new"), ToolResult("unknown", None, "?")]
    assert Request("/", None, {"messages": [*messages, {"role": "user", "content": "on"}]}).tool_results == []


def test_it_counts_how_often_each_turn_of_each_conversation_was_answered() -> None:
    def script(request: Request) -> Reply | str:
        return Reply(status=500) if request.conversation == "b" and request.turn == 2 else "ok"

    with ModelServer(script) as server:
        for key in ("a", "b"):
            ask(server, *turns(f"Count. [conversation {key}]"))
            ask(server, *turns(f"Count. [conversation {key}]", ("search", "1 [conversation z]")))
        ask(server, *turns("Count. [conversation a]"))
        ask(server, "no marker")
        assert server.counts() == {"a": {1: 2, 2: 1}, "b": {1: 1}, None: {1: 1}}
        assert (server.answered("a", 1), server.answered("b", 2), server.answered("c", 1)) == (2, 0, 0)
        assert [request.turn for request in server.calls_of("b")] == [1, 2]
        assert get(server, "/counts").data == {"a": {"1": 2, "2": 1}, "b": {"1": 1}, "": {"1": 1}}
        recorded = get(server, "/requests").data
        assert [request["conversation"] for request in recorded] == ["a", "a", "b", "b", "a", None]


def test_conversations_can_be_identified_by_another_pattern() -> None:
    with ModelServer(lambda request: "ok", conversation=r"ticket #(\d+)") as server:
        ask(server, {"role": "system", "content": "About ticket #17."}, "and ticket #18")
        assert server.counts() == {"17": {1: 1}}


def test_many_threads_are_counted_one_by_one() -> None:
    with ModelServer(numbered()) as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(server, "[conversation c]"), range(64)))
        assert sorted(int(answer.message["content"]) for answer in answers) == list(range(64))
        assert server.counts() == {"c": {1: 64}}


def numbered() -> Chooser:
    numbers = iter(range(1000))
    return lambda request: str(next(numbers))


# Mistakes


def test_an_exception_of_a_function_is_sent_to_the_client_and_raised_at_the_end() -> None:
    def script(request: Request) -> str:
        assert request.model == "other", "the model is wrong"
        return "never"

    with pytest.raises(AssertionError, match="the model is wrong"), ModelServer(script) as server:
        answer = ask(server)
        assert (answer.status, "the script failed" in answer.error) == (400, True)


def test_a_function_may_ask_the_server_what_came_before() -> None:
    def script(request: Request) -> str:
        return f"{len(server.calls_of('c'))} {server.answered('c', 1)}"

    with ModelServer(script) as server:
        assert [ask(server, "[conversation c]").message["content"] for _ in range(2)] == ["1 0", "2 1"]


def test_an_unexpected_call_gets_an_error_and_is_not_retried() -> None:
    with ModelServer(["only"]) as server:
        ask(server)
        answer = ask(server, "one more")
    assert (answer.status, answer.error) == (
        400,
        "model server: no reply is left in the script for turn 1; the last message is 'one more'",
    )


@pytest.mark.parametrize(
    ("path", "content", "status"), [("/v1/chat/completions", "[", 400), ("/v1/completions", "{}", 404)]
)
def test_what_is_no_chat_completion_is_refused_and_not_recorded(path: str, content: str, status: int) -> None:
    with ModelServer(["hi"]) as server:
        assert post(server, content, path).status == status
        assert (get(server, "/else").status, server.requests) == (404, [])


def test_the_models_are_those_it_was_given() -> None:
    with ModelServer(models=["a", "b"]) as server:
        assert [model["id"] for model in get(server, "/v1/models").data["data"]] == ["a", "b"]


def test_a_client_is_sent_to_it_by_two_variables() -> None:
    server = ModelServer()
    server.start()
    server.stop()
    assert server.env("my-box", key="k") == {"MY_BOX_API_BASE": server.url, "MY_BOX_API_KEY": "k"}
    with pytest.raises(TimeoutError, match="0 of 1 model calls after 0 s"):
        server.wait_for_requests(1, timeout_s=0)
