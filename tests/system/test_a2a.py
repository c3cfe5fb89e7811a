"""Agents as servers of A2A: the real `a2a` client, in both versions of the protocol, against servers and workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types.a2a_pb2 import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict

from sleipnir.testing import ModelServer
from tests.console import Console, console_of
from tests.processes import RedisServer, Stack, write_agent
from tests.system.test_openai_api import ASK, COUNT, FAIL, SLOWLY, TALK, WAIT, F, reply

VALUES = """
name: values
version: sleipnir/1
start: done
state:
  place: {type: string, required: true}
nodes:
  done: {type: end, output: '{"place": "{{place}}", "said": "{{initial_prompt}}"}'}
"""
VERSIONS = ("1.0", "0.3")
Use = Callable[[Client], Awaitable[Any]]


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer(reply, models=["gpt"]) as server:
        yield server


@pytest.fixture(scope="module")
def own(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("a2a")
    agents = {"talk": TALK, "count": COUNT, "values": VALUES, "ask": ASK, "wait": WAIT, "fail": FAIL}
    for name, graph in agents.items():
        write_agent(folder / "agents" / name, graph, f_py=F)
    client = {"type": "openai-compatible", "name": "mine", "api_base": model.url, "api_key": "sk-of-the-test"}
    (folder / "config.yaml").write_text(json.dumps({"clients": [{**client, "models": [{"name": "gpt"}]}]}))
    with Stack(redis_server, folder / "home", key_prefix="a2a", agents_dir=folder / "agents") as stack:
        stack.start_scheduler()
        stack.start_worker("w", "llm,scripts,functions", env={"LOKI_CONFIG_DIR": str(folder)}, ready=False)
        stack.wait_for_worker("w", 90)
        with stack.client() as opened:
            for role in ("operator", "viewer"):
                opened.access.add_user(role, None, {"default": role})
        yield stack


@pytest.fixture(scope="module")
def console(own: Stack) -> Iterator[Console]:
    with console_of(own) as running:
        yield running


@pytest.fixture(scope="module")
def token(own: Stack) -> str:
    with own.client() as client:
        return client.access.create_token("operator").text


@asynccontextmanager
async def talking(
    console: Console, agent: str, token: str, version: str = "1.0", **config: Any
) -> AsyncIterator[Client]:
    """A client that has read the card, and knows this version of the protocol alone."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        card = await A2ACardResolver(http, f"http://127.0.0.1:{console.port}/a2a/{agent}").get_agent_card()
        kept = [each for each in card.supported_interfaces if each.protocol_version == version]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(kept)
        yield ClientFactory(ClientConfig(httpx_client=http, **config)).create(card)


def message(
    text: str, id_: str, task: str = "", context: str = "", *, gate: str = "", data: Any = None
) -> SendMessageRequest:
    parts = [Part(text=text)] if text else []
    if data is not None:
        parts.append(ParseDict({"data": data}, Part()))
    metadata = {"gate": gate} if gate else None
    said = Message(
        message_id=id_, role=Role.ROLE_USER, parts=parts, task_id=task, context_id=context, metadata=metadata
    )
    return SendMessageRequest(message=said)


async def sent(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    return [event async for event in client.send_message(request)]


async def task_after(client: Client, request: SendMessageRequest) -> Task:
    """The task of the answer that does not stream."""
    [answer] = await sent(client, request)
    return answer.task


def output_of(task: Task) -> str:
    [artifact] = task.artifacts
    return str(artifact.parts[0].text)


def test_the_card_says_what_the_agent_does_and_how_it_is_reached(console: Console, token: str) -> None:
    async def use() -> AgentCard:
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
            return await A2ACardResolver(http, f"http://127.0.0.1:{console.port}/a2a/talk").get_agent_card()

    card = asyncio.run(use())
    assert (card.name, card.description) == ("talk", "Repeats what it hears.")
    assert [each.protocol_version for each in card.supported_interfaces] == ["1.0", "0.3"]
    assert {each.url for each in card.supported_interfaces} == {f"http://127.0.0.1:{console.port}/a2a/talk"}
    assert card.capabilities.streaming and not card.capabilities.push_notifications
    assert card.security_schemes["bearer"].http_auth_security_scheme.scheme == "bearer"
    assert [skill.id for skill in card.skills] == ["talk"]
    answer = console.request("GET", "/talk/.well-known/agent-card.json", base="/a2a")
    assert (answer.status, answer.problem) == (401, "unauthenticated")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_message_begins_a_task_once(own: Stack, console: Console, token: str, version: str) -> None:
    async def use() -> None:
        async with talking(console, "talk", token, version, streaming=False) as client:
            first = await task_after(client, message("bells", f"once-{version}"))
            assert (first.status.state, output_of(first)) == (TaskState.TASK_STATE_COMPLETED, "loud bells")
            again = await task_after(client, message("bells", f"once-{version}"))
            other = await task_after(client, message("bells", f"other-{version}"))
            assert again.id == first.id != other.id
            found = await client.get_task(GetTaskRequest(id=first.id))
            assert (found.id, found.context_id, output_of(found)) == (first.id, first.id, "loud bells")
            with own.client() as opened:
                assert opened.run(first.id).output == "loud bells"

    asyncio.run(use())


@pytest.mark.parametrize("version", VERSIONS)
def test_any_server_knows_a_task_and_its_context_is_a_thread(
    own: Stack, console: Console, token: str, version: str
) -> None:
    async def use() -> None:
        context = f"desk-{version}"
        with console_of(own, f"second-{version}") as second:
            async with (
                talking(console, "count", token, version, streaming=False) as here,
                talking(second, "count", token, version, streaming=False) as there,
            ):
                first = await task_after(here, message("one", "m1", context=context))
                assert (first.context_id, output_of(first)) == (context, '["one"]')
                assert await there.get_task(GetTaskRequest(id=first.id)) == first
                assert output_of(await task_after(there, message("two", "m2", context=context))) == '["one","two"]'

    asyncio.run(use())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stream_has_the_task_its_output_and_its_end(console: Console, token: str, version: str) -> None:
    async def use() -> list[StreamResponse]:
        async with talking(console, "talk", token, version) as client:
            return await sent(client, message("bells", f"stream-{version}"))

    first, *updates, last = asyncio.run(use())
    assert first.HasField("task") and first.task.status.state != TaskState.TASK_STATE_COMPLETED
    text = ""
    for update in updates:
        change = update.artifact_update
        text = (text if change.append else "") + change.artifact.parts[0].text
    assert (text, updates[-1].artifact_update.last_chunk) == ("loud bells", True)
    assert last.status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert {update.artifact_update.task_id for update in updates} == {
        first.task.id,
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_question_is_input_required_and_a_message_to_the_task_answers_it(
    own: Stack, console: Console, token: str, version: str
) -> None:
    async def use() -> str:
        async with (
            talking(console, "ask", token, version, streaming=False) as client,
            talking(console, "ask", token, version) as streaming,
        ):
            task = await task_after(client, message("12 EUR", f"ask-{version}"))
            assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            asked = task.status.message
            assert asked.parts[0].text == "Pay 12 EUR?"
            facts = MessageToDict(asked.parts[1].data)
            assert facts["options"] == ["pay", "refuse"]
            gate = facts["gate"]
            *_, last = await sent(streaming, message("pay", "a1", task.id, gate=gate))
            status = last.status_update.status
            assert status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            assert status.message.parts[0].text == "How many?"
            with pytest.raises(UnsupportedOperationError):
                await task_after(client, message("pay", "a2", task.id, gate=gate))
            with pytest.raises(InvalidParamsError):
                await task_after(client, message("70", "a3", task.id))
            seven = {"data": 7} if version == "1.0" else {}  # the data of 0.3 are objects
            done = await task_after(client, message("" if seven else "7", "a4", task.id, **seven))
            assert (done.id, output_of(done)) == (task.id, "ordered 7")
            with pytest.raises(UnsupportedOperationError):
                await task_after(client, message("again", "a5", task.id))
            return str(task.id)

    run_id = asyncio.run(use())
    with own.client() as opened:
        [answered] = [each for each in opened.run(run_id).info().changes if each.what == "answered"]
        assert answered.by.startswith("operator/")


@pytest.mark.parametrize("version", VERSIONS)
def test_data_are_values_of_the_state_and_an_object_is_data_again(console: Console, token: str, version: str) -> None:
    async def use() -> None:
        async with talking(console, "values", token, version, streaming=False) as client:
            task = await task_after(client, message("hi", f"values-{version}", data={"place": "Oslo"}))
            [artifact] = task.artifacts
            assert MessageToDict(artifact.parts[1].data) == {"place": "Oslo", "said": "hi"}
            with pytest.raises(InvalidParamsError, match="place"):
                await task_after(client, message("hi", f"nothing-{version}"))

    asyncio.run(use())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_that_fails_is_a_task_that_failed(console: Console, token: str, version: str) -> None:
    async def use() -> Task:
        async with talking(console, "fail", token, version, streaming=False) as client:
            return await task_after(client, message("x", f"fail-{version}"))

    task = asyncio.run(use())
    assert task.status.state == TaskState.TASK_STATE_FAILED and not task.artifacts
    assert "no such bell" in task.status.message.parts[0].text


@pytest.mark.parametrize("version", VERSIONS)
def test_a_task_goes_on_without_its_client_is_followed_again_and_cancelled(
    console: Console, token: str, version: str
) -> None:
    async def use() -> None:
        async with (
            talking(console, "wait", token, version, polling=True, streaming=False) as polling,
            talking(console, "wait", token, version) as client,
        ):
            stream = aiter(client.send_message(message("x", f"wait-{version}")))
            task = (await anext(stream)).task
            await stream.aclose()  # type: ignore[attr-defined]
            at_once = await task_after(polling, message("x", f"wait-{version}"))
            assert at_once.id == task.id and at_once.status.state != TaskState.TASK_STATE_CANCELED
            followed = aiter(client.subscribe(SubscribeToTaskRequest(id=task.id)))
            assert (await anext(followed)).task.id == task.id
            cancelled = await client.cancel_task(CancelTaskRequest(id=task.id))
            assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
            last = [event async for event in followed][-1]
            assert last.status_update.status.state == TaskState.TASK_STATE_CANCELED
            with pytest.raises(TaskNotCancelableError):
                await client.cancel_task(CancelTaskRequest(id=task.id))
            with pytest.raises(UnsupportedOperationError):
                [event async for event in client.subscribe(SubscribeToTaskRequest(id=task.id))]

    asyncio.run(use())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_task_of_another_agent_is_not_there(console: Console, token: str, version: str) -> None:
    async def use() -> None:
        async with (
            talking(console, "count", token, version, streaming=False) as count,
            talking(console, "talk", token, version, streaming=False) as talk,
        ):
            task = await task_after(count, message("one", f"own-{version}"))
            for request in (GetTaskRequest(id=task.id), GetTaskRequest(id="z" * 12), GetTaskRequest(id=task.id[:8])):
                with pytest.raises(TaskNotFoundError):
                    await talk.get_task(request)
            with pytest.raises(TaskNotFoundError):
                await task_after(talk, message("two", "m", task.id))

    asyncio.run(use())


def test_the_output_comes_while_the_model_speaks(own: Stack, console: Console, token: str, model: ModelServer) -> None:
    async def use() -> str:
        text = ""
        async with talking(console, "talk", token) as client:
            async for event in client.send_message(message(SLOWLY.removeprefix("loud "), "slowly")):
                if event.HasField("artifact_update"):
                    if not text:
                        with own.client() as opened:
                            assert opened.run(event.artifact_update.task_id).status == "running"
                        model.release()
                    change = event.artifact_update
                    text = (text if change.append else "") + change.artifact.parts[0].text
        return text

    assert asyncio.run(use()) == SLOWLY


def call(console: Console, token: str, body: bytes, agent: str = "count", **headers: str) -> Any:
    given = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    answer = console.request("POST", f"/{agent}", raw=body, headers=given, base="/a2a")
    assert answer.status == 200
    return answer.data


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"id": 1, "method": "GetTask"}', -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "GetTask"}', -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "Nothing"}', -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": []}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "tasks/pushNotificationConfig/set", "params": {}}', -32003),
    ],
)
def test_a_wrong_call_is_an_error_of_json_rpc(console: Console, token: str, body: bytes, code: int) -> None:
    answer = call(console, token, body)
    assert answer["error"]["code"] == code and answer["jsonrpc"] == "2.0"


def test_files_other_versions_and_busy_contexts_are_refused(own: Stack, console: Console, token: str) -> None:
    def sent_parts(parts: list[Any], context: str = "", **headers: str) -> Any:
        said = {"role": "user", "messageId": f"m {parts}", "parts": parts, "contextId": context}
        body = {"jsonrpc": "2.0", "id": "x", "method": "message/send", "params": {"message": said}}
        return call(console, token, json.dumps(body).encode(), **headers)

    assert sent_parts([{"kind": "file", "file": {"uri": "https://example.com/x"}}])["error"]["code"] == -32005
    assert sent_parts([{"text": "x"}], **{"A2A-Version": "2.0"})["error"]["code"] == -32009
    assert sent_parts([{"text": "x"}], "no/name")["error"]["code"] == -32602
    assert sent_parts([])["error"]["code"] == -32602
    with own.client() as opened:
        run = opened.submit("wait", "x", thread="busy")
        said = {"role": "user", "messageId": "m", "parts": [{"text": "y"}], "contextId": "busy"}
        body = {"jsonrpc": "2.0", "id": "x", "method": "message/send", "params": {"message": said}}
        answer = call(console, token, json.dumps(body).encode(), agent="wait")
        assert answer["error"]["code"] == -32004 and run.id in answer["error"]["message"]
        run.cancel()
