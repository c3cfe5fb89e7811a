"""Messages as state: what llm nodes without a prompt send and write (spec/graph-package.md F03-F05, F20, F21)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from sleipnir.testing import Call, ModelServer, Reply, RunResult, run

HEAD = """
name: talk
version: sleipnir/1
model: openai:gpt-test
start: {start}
state: {{messages: messages{keys}}}
nodes:
"""


def agent(folder: Path, nodes: str, *, start: str = "ask", keys: str = "", **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    graph = HEAD.format(start=start, keys=keys) + indent(dedent(nodes), "  ")
    (folder / "graph.yaml").write_text(graph)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(dedent(text))
    return folder


def plain(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in messages]


def talk(
    folder: Path, replies: list[Reply | str], prompt: str = "hello", *, state: Mapping[str, Any] | None = None
) -> tuple[RunResult, list[list[tuple[str, Any]]]]:
    """The result, and the messages of each request."""
    with ModelServer(replies) as server:
        result = run(folder, prompt, state=state, model=server)
        return result, [plain(request.messages) for request in server.requests]


ONE = "ask: {type: llm}"


@pytest.mark.conformance("LL-04", "LL-07", "LL-11")
def test_the_users_input_follows_the_history_and_is_used_once(tmp_path: Path) -> None:
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
    result, sent = talk(agent(tmp_path / "talk", ONE), ["the bell"], "which bell?", state={"messages": history})
    assert sent == [[("user", "hi"), ("assistant", "yes?"), ("user", "which bell?")]]
    assert plain(result.state["messages"]) == [*sent[0], ("assistant", "the bell")]
    assert (result.state["user_input"], result.state["last_response"]) == ("", "the bell")
    assert result.state["node_responses"] == {"ask": "the bell"}
    assert result.state["last_response_id"], "the provider's id of the answer"


@pytest.mark.conformance("LL-05", "LL-06")
@pytest.mark.parametrize("last", ["hello", "other"])
def test_a_history_that_ends_with_the_user_gets_no_second_message(tmp_path: Path, last: str) -> None:
    history = [{"role": "user", "content": last, "name": "ada"}]
    result, sent = talk(agent(tmp_path / "talk", ONE), ["yes"], state={"messages": history})
    assert sent == [[("user", "hello")]]
    assert plain(result.state["messages"]) == [("user", "hello"), ("assistant", "yes")]
    assert result.state["messages"][0]["name"] == "ada", "its other fields stay"


@pytest.mark.conformance("LL-08")
def test_without_an_input_the_history_is_sent_as_it_is(tmp_path: Path) -> None:
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
    nodes = "ask: {type: llm, input: history}"
    result, sent = talk(agent(tmp_path / "talk", nodes), ["more"], "unread", state={"messages": history})
    assert sent == [plain(history)]
    assert plain(result.state["messages"]) == [*plain(history), ("assistant", "more")]
    assert result.state["user_input"] == "unread"


ONE_SHOT = [{"role": "system", "content": "Only yes or no."}, {"role": "user", "content": "Is it?"}]
OTHER = [{"role": "user", "content": "from all"}]


@pytest.mark.conformance("LL-01", "LL-03", "ST-14")
def test_one_shot_messages_of_the_node_come_before_those_of_all(tmp_path: Path) -> None:
    state = {
        "one_shot_messages_by_node": {"ask": ONE_SHOT, "other": OTHER},
        "one_shot_messages": OTHER,
        "messages": [{"role": "user", "content": "long ago"}],
    }
    result, sent = talk(agent(tmp_path / "talk", ONE), ["yes"], state=state)
    assert sent == [plain(ONE_SHOT)]
    assert plain(result.state["messages"]) == [("user", "Is it?"), ("assistant", "yes")]
    assert result.state["one_shot_messages_by_node"] == {"other": OTHER}
    assert (result.state["one_shot_messages"], result.state["user_input"]) == (OTHER, "hello")


@pytest.mark.conformance("LL-02")
def test_without_ones_of_the_node_the_one_shot_messages_of_all_are_sent_and_removed(tmp_path: Path) -> None:
    state = {"one_shot_messages_by_node": {"other": ONE_SHOT}, "one_shot_messages": OTHER}
    result, sent = talk(agent(tmp_path / "talk", ONE), ["yes"], state=state)
    assert sent == [plain(OTHER)]
    assert result.state["one_shot_messages"] == []
    assert result.state["one_shot_messages_by_node"] == {"other": ONE_SHOT}


@pytest.mark.conformance("LL-09")
def test_another_key_can_hold_the_users_input(tmp_path: Path) -> None:
    nodes = "ask: {type: llm, user_input_key: q2}"
    result, sent = talk(agent(tmp_path / "talk", nodes), ["yes"], state={"q2": "second question"})
    assert sent == [[("user", "second question")]]
    assert (result.state["q2"], result.state["user_input"]) == ("", "hello")


@pytest.mark.conformance("LL-10")
def test_instructions_are_sent_first_and_not_stored(tmp_path: Path) -> None:
    nodes = 'ask: {type: llm, instructions: "About {{topic}}.", state_updates: {again: "{{output}}"}}'
    folder = agent(tmp_path / "talk", nodes, keys=", topic: string")
    result, sent = talk(folder, ["yes"], state={"topic": "bells"})
    assert sent == [[("system", "About bells."), ("user", "hello")]]
    assert plain(result.state["messages"]) == [("user", "hello"), ("assistant", "yes")]
    assert result.state["again"] == "yes"
    _, sent = talk(folder, ["yes"], state={"topic": "bells", "one_shot_messages": ONE_SHOT})
    assert sent == [plain(ONE_SHOT)], "the first message is a system one already"


@pytest.mark.conformance("LL-12", "LL-13", "LL-14")
@pytest.mark.parametrize(
    ("reply", "error"),
    [(Reply(status=400), "400"), (Reply(body='{"choices": []}'), "no choices")],
)
def test_a_failed_call_writes_no_message(tmp_path: Path, reply: Reply, error: str) -> None:
    result, _ = talk(agent(tmp_path / "talk", "ask: {type: llm, generation: {stream: false}}"), [reply])
    assert result.status == "failed"
    assert error in (result.error or "")
    assert (result.state["messages"], result.state["user_input"]) == ([], "hello")


def test_a_node_with_nothing_to_send_fails_and_says_so(tmp_path: Path) -> None:
    result, sent = talk(agent(tmp_path / "talk", ONE), [], "")
    assert (result.status, sent) == ("failed", [])
    assert "has nothing to send: one-shot messages, 'user_input', 'messages' are empty" in (result.error or "")


@pytest.mark.conformance("LL-29", "MS-08")
def test_operations_prepare_the_messages_for_a_second_model(tmp_path: Path) -> None:
    nodes = """
    ask: {type: llm, next: turn}
    turn:
      type: router
      state_updates:
        user_input: 'Check this: "{{last_response}}"'
        messages: [{op: remove_all}, {role: system, content: 'About "{{initial_prompt}}"'}]
      next: check
    check: {type: llm}
    """
    result, sent = talk(agent(tmp_path / "talk", nodes), ['a "bell"', "right"])
    assert sent[1] == [("system", 'About "hello"'), ("user", 'Check this: "a "bell""')]
    assert plain(result.state["messages"]) == [*sent[1], ("assistant", "right")]
    assert result.state["node_responses"] == {"ask": 'a "bell"', "check": "right"}


def test_a_node_can_prepare_one_shot_messages_for_another(tmp_path: Path) -> None:
    nodes = """
    plan:
      type: router
      state_updates: {one_shot_messages_by_node: {right: [{role: user, content: "right: {{initial_prompt}}"}]}}
      next: [left, right]
    left: {type: llm}
    right: {type: llm}
    """
    folder = agent(tmp_path / "talk", nodes, start="plan")
    for _ in range(3):
        with ModelServer(lambda request: f"to {request.prompt}") as server:
            result = run(folder, "hello", model=server)
        # left adds two messages; right, later in visit order, replaces the text of the last user message
        assert plain(result.state["messages"]) == [
            ("user", "right: hello"),
            ("assistant", "to hello"),
            ("assistant", "to right: hello"),
        ]
        assert result.state["last_response"] == "to right: hello"
        assert result.state["one_shot_messages_by_node"] == {}


def test_messages_have_ids_that_follow_from_their_visit(tmp_path: Path) -> None:
    result, _ = talk(agent(tmp_path / "talk", ONE), ["yes"])
    ids = [message["id"] for message in result.state["messages"]]
    assert [name.rpartition("/")[2] for name in ids] == ["user", "reply"]
    with ModelServer(["yes"]) as server:
        run(agent(tmp_path / "talk", ONE), "hello", model=server)
        assert "id" not in server.requests[0].messages[0]


@pytest.mark.conformance("LL-17", "LL-16")
def test_settings_of_the_model_reach_the_request(tmp_path: Path) -> None:
    generation = "{temperature: 0.25, top_p: 0.5, max_tokens: 77, stop: [END], seed: 3, stream: false}"
    folder = agent(tmp_path / "talk", f"ask: {{type: llm, generation: {generation}}}")
    with ModelServer(["yes"]) as server:
        result = run(folder, "hello", model=server)
        body = server.requests[0].body
    assert result.status == "completed", result.error
    settings = {key: body.get(key) for key in ("temperature", "top_p", "max_tokens", "stop", "seed")}
    assert settings == {"temperature": 0.25, "top_p": 0.5, "max_tokens": 77, "stop": ["END"], "seed": 3}
    assert not body.get("stream")


def test_placeholders_of_trpc_are_filled_from_the_state(tmp_path: Path) -> None:
    nodes = """
    ask:
      type: llm
      placeholders: trpc
      instructions: 'A {topic} and {{topic}}, {missing?}{{missing?}}{missing} {data} {"json": 1}'
    """
    folder = agent(tmp_path / "talk", nodes, keys=", topic: string, data: object")
    _, sent = talk(folder, ["yes"], state={"topic": "{data}", "data": {"a": 1}})
    assert sent[0][0] == ("system", 'A {data} and {data}, {missing} {"a":1} {"json": 1}')


def test_a_node_with_a_prompt_adds_no_message(tmp_path: Path) -> None:
    result, sent = talk(agent(tmp_path / "talk", 'ask: {type: llm, prompt: "Say {{user_input}}"}'), ["yes"])
    assert sent == [[("user", "Say hello")]]
    assert (result.state["messages"], result.state["user_input"]) == ([], "hello")
    assert (result.state["last_response"], result.state["node_responses"]) == ("yes", {"ask": "yes"})


@pytest.mark.conformance("LL-23")
def test_calls_of_tools_without_a_tools_node_are_kept_and_not_executed(tmp_path: Path) -> None:
    tools = """
    def ring(count: int):
        '''Ring the bell.'''
        raise AssertionError("nobody calls it")
    """
    folder = agent(tmp_path / "talk", "ask: {type: llm, tools: [ring]}", tools_py=tools)
    result, _ = talk(folder, [Reply(calls=[Call("ring", {"count": 1})])])
    assert result.status == "completed", result.error
    [call] = result.state["messages"][-1]["tool_calls"]
    assert call["function"]["name"] == "ring"
    assert result.nodes == ["ask"]


def test_a_function_can_prepare_one_shot_messages(tmp_path: Path) -> None:
    nodes = """
    plan: {type: function, call: "plan.py:plan", next: ask}
    ask: {type: llm, next: other}
    other: {type: llm}
    """
    plan = """
    from sleipnir.commands import append, one_shot

    def plan(state):
        first = one_shot([{"role": "user", "content": "only this"}], node="ask")
        return {**first, **one_shot([{"role": "user", "content": "and that"}])}
    """
    folder = agent(tmp_path / "talk", nodes, start="plan", plan_py=plan)
    _, sent = talk(folder, ["one", "two"])
    assert sent == [[("user", "only this")], [("user", "and that")]]


EXAMPLES = "[{role: user, content: '2+2?'}, {role: assistant, content: '{{four}}'}]"
SENT = [("user", "2+2?"), ("assistant", "{{four}}")]


@pytest.mark.conformance("SP-01")
def test_examples_follow_the_instructions_and_are_not_stored(tmp_path: Path) -> None:
    nodes = f"ask: {{type: llm, instructions: Calculate., few_shot: {EXAMPLES}}}"
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}]
    result, sent = talk(agent(tmp_path / "talk", nodes), ["6"], "3+3?", state={"messages": history})
    assert sent == [[("system", "Calculate."), *SENT, *plain(history), ("user", "3+3?")]]
    assert plain(result.state["messages"]) == [*plain(history), ("user", "3+3?"), ("assistant", "6")]
    with_prompt = f'ask: {{type: llm, prompt: "{{{{user_input}}}}", few_shot: {EXAMPLES}}}'
    _, sent = talk(agent(tmp_path / "talk", with_prompt), ["6"], "3+3?")
    assert sent == [[*SENT, ("user", "3+3?")]]


def test_examples_of_a_patch_replace_those_of_the_node(tmp_path: Path) -> None:
    from sleipnir.settings import Settings
    from sleipnir_inprocess.agent_run import AgentRun

    nodes = f"ask: {{type: llm, few_shot: {EXAMPLES}}}"
    folder = agent(tmp_path / "talk", nodes)
    patches = {"ask#few_shot": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "one"}]}
    with ModelServer(["three"]) as server:
        settings = Settings(agents_dir=tmp_path)
        run = AgentRun(folder, "3?", settings=settings, env=server.env(), patches=patches)
        for _ in run.steps():
            pass
        assert run.status == "completed", run.error
        assert plain(server.requests[0].messages) == [("user", "1?"), ("assistant", "one"), ("user", "3?")]


MALFORMED = {
    '{"text": "a b"}': '{"text": "a b"}',
    r'{"text": "a \"b': r'{"text": "a \"b"}',
    '{"list": [1, 2,': '{"list": [1, 2]}',
    "text=a": "{}",
    "[1]": "{}",
}


@pytest.mark.conformance("LL-28")
@pytest.mark.parametrize("repairs", [True, False])
def test_malformed_arguments_of_calls_are_repaired_only_on_demand(tmp_path: Path, repairs: bool) -> None:
    calls = [
        {"id": str(number), "type": "function", "function": {"name": "count", "arguments": arguments}}
        for number, arguments in enumerate(MALFORMED)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "?"} for call in calls]
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    nodes = f"ask: {{type: llm, input: history, repair_calls: {str(repairs).lower()}}}"
    with ModelServer(["yes"]) as server:
        result = run(agent(tmp_path / "talk", nodes), "x", state={"messages": history}, model=server)
        assert result.status == "completed", result.error
        sent = [call["function"]["arguments"] for call in server.requests[0].messages[1]["tool_calls"]]
    assert sent == list(MALFORMED.values() if repairs else MALFORMED)
    stored = [call["function"]["arguments"] for call in result.state["messages"][1]["tool_calls"]]
    assert stored == list(MALFORMED)
