"""Agents as models of OpenAI's protocol: the real `openai` client against a server, a scheduler and workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from sleipnir.client.client import Client
from sleipnir.testing import ModelServer, Reply, Request
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.waiting import wait_until

TALK = """
name: talk
version: sleipnir/1
description: Repeats what it hears.
start: think
nodes:
  think: {type: llm, model: "mine:gpt", prompt: "quiet {{initial_prompt}}", next: say}
  say: {type: llm, model: "mine:gpt", prompt: "loud {{initial_prompt}}", next: done,
    state_updates: {said: "{{output}}"}}
  done: {type: end, output: "{{said}}"}
"""
COUNT = """
name: count
version: sleipnir/1
start: add
state:
  heard: {type: list, reducer: append}
nodes:
  add: {type: function, call: "f.py:add", next: done}
  done: {type: end, output: "{{heard}}"}
"""
CHAT = """
name: chat
version: sleipnir/1
start: add
state:
  messages: {type: messages}
nodes:
  add: {type: function, call: "f.py:seen", next: done}
  done: {type: end, output: "{{found}}"}
"""
ASK = """
name: ask
version: sleipnir/1
start: pay
nodes:
  pay:
    type: approval
    question: "Pay {{initial_prompt}}?"
    options: [pay, refuse]
    routes: {pay: order, refuse: refused}
    on_other: refused
  order: {type: function, call: "f.py:order", next: done}
  done: {type: end, output: "ordered {{ordered}}"}
  refused: {type: end, output: "refused"}
"""
WAIT = """
name: wait
version: sleipnir/1
start: long
nodes:
  long: {type: wait, event: "never", next: done}
  done: {type: end, output: "never"}
"""
FAIL = """
name: fail
version: sleipnir/1
start: bad
nodes:
  bad: {type: function, call: "f.py:bad", next: done}
  done: {type: end, output: "never"}
"""
SLOWLY = "loud and so slowly that one can read it"
F = """
from sleipnir import interrupt
def add(state):
    return {"heard": [state["initial_prompt"]]}
def seen(state):
    said = [f"{m['role']}: {m['content']}" for m in state["messages"]]
    return {"found": said + [state["user_input"]]}
def order(state):
    return {"ordered": interrupt("How many?", key="count", response_schema={"type": "integer", "maximum": 9})}
def bad(state):
    raise ValueError("no such bell")
"""


def reply(request: Request) -> Reply:
    """Says its prompt again; of one, the second half only when it is let."""
    return Reply(request.prompt, input_tokens=7, output_tokens=3, stall=request.prompt == SLOWLY)


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer(reply, models=["gpt"]) as server:
        yield server


@pytest.fixture(scope="module")
def own(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("openai")
    agents = {"talk": TALK, "count": COUNT, "chat": CHAT, "ask": ASK, "wait": WAIT, "fail": FAIL}
    for name, graph in agents.items():
        write_agent(folder / "agents" / name, graph, f_py=F)
    (folder / "agents" / "broken").mkdir()
    (folder / "agents" / "broken" / "graph.yaml").write_text("name: broken\nstart: nowhere\nnodes: {}\n")
    client = {"type": "openai-compatible", "name": "mine", "api_base": model.url, "api_key": "sk-of-the-test"}
    (folder / "config.yaml").write_text(json.dumps({"clients": [{**client, "models": [{"name": "gpt"}]}]}))
    with Stack(redis_server, folder / "home", key_prefix="openai", agents_dir=folder / "agents") as stack:
        stack.start_scheduler()
        stack.start_worker("w", "llm,scripts,functions", env={"LOKI_CONFIG_DIR": str(folder)}, ready=False)
        stack.wait_for_worker("w", 90)
        with stack.client() as opened:
            for role in ("operator", "viewer"):
                opened.access.add_user(role, None, {"default": role})
        yield stack


@pytest.fixture(scope="module")
def console(own: Stack) -> Iterator[Console]:
    with console_of(own, SLEIPNIR_CONSOLE_BODY_BYTES="1000000") as running:
        yield running


@pytest.fixture
def client(own: Stack) -> Iterator[Client]:
    with own.client() as opened:
        yield opened


@pytest.fixture
def chat(console: Console, client: Client) -> Iterator[openai.OpenAI]:
    with chat_of(console, client.access.create_token("operator").text) as opened:
        yield opened


def chat_of(console: Console, token: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(api_key=token, base_url=f"http://127.0.0.1:{console.port}/v1", timeout=60, **options)


def user(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


def told(text: str) -> ChatCompletionMessageParam:
    return {"role": "assistant", "content": text}


def said(chat: openai.OpenAI, model: str, *messages: ChatCompletionMessageParam, **options: Any) -> str:
    completion = chat.chat.completions.create(model=model, messages=list(messages), **options)
    [choice] = completion.choices
    assert choice.finish_reason == "stop"
    return str(choice.message.content)


def test_the_models_are_the_agents_that_can_run(chat: openai.OpenAI) -> None:
    models = {model.id: model for model in chat.models.list()}
    assert {"talk", "count", "chat", "ask"} <= models.keys() and "broken" not in models
    assert (models["talk"].owned_by, models["talk"].object) == ("sleipnir", "model")
    assert chat.models.retrieve("talk") == models["talk"]
    with pytest.raises(openai.NotFoundError) as none:
        chat.models.retrieve("broken")
    assert none.value.code == "model_not_found"


def test_a_completion_is_the_output_of_a_run_with_its_usage(chat: openai.OpenAI, client: Client) -> None:
    completion = chat.chat.completions.create(model="talk", messages=[user("bells")], temperature=0.3, max_tokens=5)
    assert completion.choices[0].message.content == "loud bells"
    usage = completion.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (14, 6, 20)
    run = client.run(completion.id.removeprefix("chatcmpl-"))
    assert (run.output, run.info().agent) == ("loud bells", "talk")
    assert completion.created == run.info().created_ms // 1000
    facts = (completion.model_extra or {})["sleipnir"]
    assert facts == {"run_id": run.id, "status": "completed", "question": None}


def test_a_stream_has_the_text_of_the_last_node_and_the_usage(chat: openai.OpenAI) -> None:
    stream = chat.chat.completions.create(
        model="talk", messages=[user("bells")], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "loud bells"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 20
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_text_comes_while_the_model_speaks(chat: openai.OpenAI, client: Client, model: ModelServer) -> None:
    words = SLOWLY.removeprefix("loud ")
    text, run = "", None
    for chunk in chat.chat.completions.create(model="talk", messages=[user(words)], stream=True):
        text += chunk.choices[0].delta.content or ""
        if text and run is None:
            run = client.run(chunk.id.removeprefix("chatcmpl-"))
            assert SLOWLY.startswith(text) and text != SLOWLY and run.status == "running"
            model.release()
    assert run is not None and (text, run.output) == (SLOWLY, SLOWLY)


def test_the_same_key_again_is_the_same_run(chat: openai.OpenAI) -> None:
    ids = {
        chat.chat.completions.create(
            model="count", messages=[user("once")], extra_headers={"Idempotency-Key": "once-1"}
        ).id
        for _ in range(2)
    }
    assert len(ids) == 1


def test_without_a_session_the_agent_gets_the_whole_history(chat: openai.OpenAI) -> None:
    assert said(chat, "count", user("one")) == '["one"]'
    [heard] = json.loads(said(chat, "count", user("one"), told("1"), user("two")))
    assert heard.endswith("user: one\n\nassistant: 1\n\nAnswer this message of the user:\n\ntwo")
    history: list[ChatCompletionMessageParam] = [{"role": "system", "content": "Be kind."}, user("one"), told("1")]
    found = json.loads(said(chat, "chat", *history, user("two")))
    assert found == ["system: Be kind.", "user: one", "assistant: 1", "two"]


def test_in_a_session_the_agent_keeps_the_conversation(chat: openai.OpenAI, client: Client) -> None:
    header = {"X-Sleipnir-Session": "desk"}
    assert said(chat, "count", user("one"), extra_headers=header) == '["one"]'
    assert said(chat, "count", user("one"), told("x"), user("two"), extra_headers=header) == '["one","two"]'
    thread = client.thread("count", "desk")
    assert thread is not None and thread.turns == 2
    assert said(chat, "count", user("one"), user="ann@example.com") == '["one"]'
    assert said(chat, "count", user("two"), user="ann@example.com") == '["one","two"]'
    assert said(chat, "count", user("one"), user="bob@example.com") == '["one"]'
    assert not any("ann" in thread.name for thread in client.threads("count"))


def test_a_question_is_a_message_and_the_next_message_answers_it(chat: openai.OpenAI, client: Client) -> None:
    first = chat.chat.completions.create(model="ask", messages=[user("12 EUR")])
    question = str(first.choices[0].message.content)
    facts = (first.model_extra or {})["sleipnir"]
    assert question.startswith("Pay 12 EUR?\n\nOptions: pay, refuse\n\n[question ")
    assert (facts["status"], facts["question"]["options"]) == ("waiting", ["pay", "refuse"])
    history = [user("12 EUR"), told(question), user("pay")]
    second = said(chat, "ask", *history)
    assert second.startswith("How many?\n\nThe answer is JSON that matches: ")
    history += [told(second), user("70")]
    third = said(chat, "ask", *history)
    assert third.startswith("The answer does not fit: ") and third.endswith(second)
    history += [told(third), user("7")]
    assert said(chat, "ask", *history) == "ordered 7"
    run = client.run(facts["run_id"])
    answers = [change.by for change in run.info().changes if change.what == "answered"]
    assert len(answers) == 1 and answers[0].startswith("operator/")
    assert said(chat, "ask", *history).startswith("Your answer was not used: operator/")
    with pytest.raises(openai.NotFoundError):
        said(chat, "count", *history)


def test_a_question_of_a_session_is_answered_without_the_history(chat: openai.OpenAI) -> None:
    options: dict[str, Any] = {"extra_headers": {"X-Sleipnir-Session": "cash"}}
    assert said(chat, "ask", user("3 EUR"), **options).startswith("Pay 3 EUR?")
    with chat.chat.completions.create(model="ask", messages=[user("pay")], stream=True, **options) as stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text.startswith("How many?")
    assert said(chat, "ask", user("2"), **options) == "ordered 2"
    assert said(chat, "ask", user("4 EUR"), **options).startswith("Pay 4 EUR?")


def test_a_run_that_fails_is_an_error_and_is_not_repeated(chat: openai.OpenAI, client: Client) -> None:
    with pytest.raises(openai.InternalServerError, match="no such bell") as failed:
        said(chat, "fail", user("x"))
    assert failed.value.code == "run-failed"
    body = failed.value.body
    assert isinstance(body, dict) and body["status"] == "failed"
    assert client.run_count(agents=["fail"]) == 1
    with pytest.raises(openai.APIError, match="no such bell"):
        list(chat.chat.completions.create(model="fail", messages=[user("x")], stream=True))


def test_errors_have_the_form_and_the_status_of_openai(console: Console, chat: openai.OpenAI, client: Client) -> None:
    with pytest.raises(openai.AuthenticationError) as unknown, chat_of(console, "slp_wrong") as other:
        other.models.list()
    assert (unknown.value.code, unknown.value.type) == ("unauthenticated", "authentication_error")
    with chat_of(console, client.access.create_token("viewer").text) as other:
        assert "talk" in {model.id for model in other.models.list()}
        with pytest.raises(openai.PermissionDeniedError):
            said(other, "count", user("x"))
    with pytest.raises(openai.NotFoundError) as none:
        said(chat, "nobody", user("x"))
    assert none.value.code == "model_not_found"
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    tool = {"type": "function", "function": {"name": "f"}}
    for options in (
        {"messages": []}, {"messages": [told("x")]}, {"tools": [tool]}, {"n": 2}, {"messages": [user("  ")]},
        {"response_format": {"type": "json_object"}}, {"messages": [{"role": "user", "content": [part]}]},
        {"extra_headers": {"X-Sleipnir-Session": "no/name"}}, {"model": "../count"},
    ):  # fmt: skip
        given: dict[str, Any] = {"model": "count", "messages": [user("x")], **options}
        with pytest.raises(openai.BadRequestError):
            chat.chat.completions.create(**given)
    with pytest.raises(openai.NotFoundError):
        chat.files.list()
    with pytest.raises(openai.APIStatusError, match="a body may have") as large:
        said(chat, "count", user("x" * 1_000_000))
    assert large.value.status_code == 413


def test_a_busy_session_is_a_conflict(console: Console, client: Client) -> None:
    with chat_of(console, client.access.create_token("operator").text, max_retries=0) as chat:
        run = client.submit("wait", "x", thread="full")
        with pytest.raises(openai.ConflictError) as busy:
            said(chat, "wait", user("x"), extra_headers={"X-Sleipnir-Session": "full"})
        assert busy.value.code == "busy"
        run.cancel()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("disconnect", ["cancel", "continue"])
def test_a_client_that_leaves_cancels_the_run_unless_it_says_otherwise(
    console: Console, client: Client, stream: bool, disconnect: str
) -> None:
    token, name = client.access.create_token("operator").text, f"left-{disconnect}-{stream}"
    body = {"model": "wait", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    headers = {
        "Authorization": f"Bearer {token}", "Content-Type": "application/json", "X-Sleipnir-Session": name,
        "X-Sleipnir-Disconnect": disconnect, "X-Request-ID": name,
    }  # fmt: skip
    connection = console.connection()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    thread = wait_until(lambda: client.thread("wait", name), "the run is submitted")
    run = client.run(thread.run)
    wait_until(lambda: run.status == "waiting", "it waits for its event")
    connection.close()
    wait_until(lambda: name in console.stack.log("console"), "the server has noticed")
    if disconnect == "cancel":
        wait_until(lambda: run.status == "cancelled", "the run is cancelled")
    else:
        assert run.status == "waiting"
        run.cancel()


def test_a_server_that_is_stopped_leaves_the_run_alone(own: Stack, client: Client) -> None:
    token = client.access.create_token("operator").text
    with console_of(own, "stopped") as console, chat_of(console, token) as chat:
        stream = chat.chat.completions.create(
            model="wait", messages=[user("x")], stream=True, extra_headers={"X-Sleipnir-Session": "stopped"}
        )
        assert next(stream).choices[0].delta.role == "assistant"
        run = client.run(wait_until(lambda: client.thread("wait", "stopped"), "the run is submitted").run)
        wait_until(lambda: run.status == "waiting", "it waits for its event")
        process = own.processes["stopped"]
        process.terminate()
        with pytest.raises(openai.APIError, match="is being stopped; run"):
            list(stream)
        assert process.wait(60) in (0, -15)
        assert run.status == "waiting"
        run.cancel()


def test_without_redis_completions_are_refused_for_now(tmp_path: Path) -> None:
    server = RedisServer()
    try:
        write_agent(tmp_path / "agents" / "count", COUNT, f_py=F)
        with (
            Stack(server, tmp_path / "home", key_prefix="away", agents_dir=tmp_path / "agents") as stack,
            console_of(stack) as console,
            chat_of(console, "x", max_retries=0) as chat,
        ):
            server.kill()
            with pytest.raises(openai.InternalServerError) as away:
                said(chat, "count", user("x"))
            assert (away.value.status_code, away.value.code) == (503, "store-unavailable")
            assert away.value.response.headers["Retry-After"] == "2"
    finally:
        server.stop()
