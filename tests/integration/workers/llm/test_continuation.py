"""Turns of an agent with a todo list: its calls, and how it goes on by itself (spec 5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode, LoopAgent
from sleipnir.graph.tools import TODO_TOOLS
from sleipnir.messages import ANSWER, FOLLOW_UP, RESULT, ResultHeader, VisitResult
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.visits import Part
from sleipnir.testing import Call, ModelServer, Reply
from sleipnir_workers.llm.continuation import REMINDER, Continuation, continuation
from sleipnir_workers.llm.todo import Todo, TodoList
from sleipnir_workers.llm.turn import run_turn
from tests.unit.workers.visits import host, visit

pytestmark = pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning")

GOES_ON = LoopAgent(auto_continue=True, max_auto_continues=3)
OPEN = TodoList("ship", (Todo(1, "write", True), Todo(2, "test")))
TOLD = [{"role": "user", "content": "hello"}]
FURTHER = {"role": "user", "content": "go on"}


def reply(text: str, *calls: tuple[str, Any]) -> str:
    asked = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return json.dumps({"role": "assistant", "content": text} | ({"tool_calls": asked} if asked else {}))


def talk(*turns: tuple[str, list[Any]], told: list[Any] = TOLD) -> StoredConversation:
    """Replies and the results of their calls; after one without calls the agent was told to go on."""
    said = tuple((text, tuple(map(json.dumps, results))) for text, results in turns)
    follow_ups = {n: json.dumps(FURTHER) for n, (text, _) in enumerate(turns) if "tool_calls" not in json.loads(text)}
    return StoredConversation(json.dumps(told), said, follow_ups)


ADDED = (reply("", ("todo__add", {"task": "a"}), ("todo__add", {"task": "b"})), [{"status": "ok"}, {"status": "ok"}])


def turn(
    folder: Path,
    replies: list[Any],
    said: StoredConversation | None = None,
    agent: LoopAgent | None = GOES_ON,
    tools: tuple[str, ...] = TODO_TOOLS,
    **config: Any,
) -> tuple[VisitResult, ModelServer]:
    node = LlmNode(id="agent", prompt="hello", model="openai:gpt-test", tools=list(tools), max_iterations=1000)
    said = said or StoredConversation()
    place = {"role": "turn", "part": Part(7, len(said.turns)), "talk": said}
    with ModelServer(replies) as server:
        env = {**server.env(), "LOKI_CONFIG_DIR": str(folder / "loki")}
        return run_turn(node, visit(node, folder, graph={"loop": agent}, **place), host(env, **config)), server


# Calls


@pytest.mark.conformance("D01")
def test_calls_of_the_list_are_answered_at_once_in_their_order_after_those_of_earlier_turns(tmp_path: Path) -> None:
    calls = [
        Call("todo__done", {"id": 2}), Call("todo__add", {"task": "c"}), Call("todo__done", {"id": "3"}),
        Call("todo__list", {}), Call("todo__done", {"id": 4}),
    ]  # fmt: skip
    result, server = turn(tmp_path, [Reply("so", calls=calls)], talk(ADDED))
    assert server.requests[0].tools == list(TODO_TOOLS)
    assert [call.where for call in result.calls] == [""] * 5
    assert [result.delta[f"{RESULT}.{number}"] for number in range(5)] == [
        {"status": "ok", "message": "Marked todo 2 as done"},
        {"status": "ok", "id": 3},
        {"status": "ok", "message": "Marked todo 3 as done"},
        {"goal": "", "todos": [
            {"id": 1, "desc": "a", "done": False}, {"id": 2, "desc": "b", "done": True},
            {"id": 3, "desc": "c", "done": True},
        ]},
        {"error": "Todo 4 not found"},
    ]  # fmt: skip
    again, _ = turn(tmp_path, [Reply("so", calls=calls)], talk(ADDED))
    assert again.delta == result.delta, "a turn that is repeated sees the same list"


def test_the_todo_list_of_a_given_conversation_belongs_to_it(tmp_path: Path) -> None:
    history = [*TOLD, json.loads(ADDED[0]), {"role": "tool", "tool_call_id": "c0", "content": "{}"}]
    result, _ = turn(tmp_path, [Reply(calls=[Call("todo__add", {"task": "c"})])], talk(told=history))
    assert result.delta[f"{RESULT}.0"] == {"status": "ok", "id": 3}


def test_the_third_same_call_in_a_row_is_refused_and_adds_nothing(tmp_path: Path) -> None:
    same = Call("todo__add", {"task": "a"})
    result, _ = turn(tmp_path, [Reply(calls=[same, same, same, Call("todo__list", {})])])
    assert "tool_call_loop_alert" in result.delta[f"{RESULT}.2"]
    assert len(result.delta[f"{RESULT}.3"]["todos"]) == 2


@pytest.mark.conformance("D01")
def test_an_agent_that_does_not_continue_by_itself_has_no_list(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def look():\n    '''Look.'''\n")
    called = [Reply(calls=[Call("todo__list", {})])]
    result, server = turn(tmp_path, called, agent=LoopAgent(), tools=("look",))
    assert server.requests[0].tools == ["look"]
    expected = "Auto-continue is not enabled. Set 'auto_continue: true' in your config to use todo tools."
    assert result.delta[f"{RESULT}.0"] == {"tool_call_error": expected}
    assert [call.where for call in result.calls] == [""]


@pytest.mark.parametrize("agent", [None, LoopAgent()])
def test_a_graph_and_an_agent_without_a_list_cannot_name_its_tools(tmp_path: Path, agent: LoopAgent | None) -> None:
    result, server = turn(tmp_path, ["hi"], agent=agent, tools=("todo__add",))
    assert (result.ok, result.error_kind, server.requests) == (False, "tools", [])
    assert "llm node references unknown tool 'todo__add'" in str(result.error)


def test_of_a_graph_the_name_of_a_todo_tool_is_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def todo__add():\n    '''Add.'''\n")
    result, _ = turn(tmp_path, [Reply(calls=[Call("todo__add", {})])], agent=None, tools=("todo__add",))
    assert [call.where for call in result.calls] == ["scripts"]


def test_a_model_that_cannot_call_functions_has_no_list_and_does_not_continue(tmp_path: Path) -> None:
    folder = tmp_path / "loki"
    folder.mkdir()
    (folder / "config.yaml").write_text(
        "clients: [{type: openai, models: [{name: gpt-test, supports_function_calling: false}]}]\n"
    )
    result, server = turn(tmp_path, [Reply(calls=[Call("todo__list", {})])])
    assert server.requests[0].tools == []
    error = {"tool_call_error": "Cannot use todo tools: function calling is disabled."}
    assert result.delta[f"{RESULT}.0"] == error
    result, _ = turn(tmp_path, ["so far"], talk(ADDED))
    assert (result.ok, result.goes_on) == (True, False)


# Going on


@pytest.mark.conformance("D02")
def test_an_agent_with_an_unfinished_list_is_asked_to_continue(tmp_path: Path) -> None:
    result, _ = turn(tmp_path, ["so far"], talk(ADDED))
    assert (result.ok, result.goes_on, result.calls) == (True, True, ())
    text = f"{REMINDER}\n\nProgress: 0/2 completed\n  ○ 1. a\n  ○ 2. b"
    assert result.delta == {
        ANSWER: {"role": "assistant", "content": "so far"}, FOLLOW_UP: {"role": "user", "content": text},
    }  # fmt: skip
    assert result.notes == ("📋 Auto-continuing (1/3): 2 incomplete todo(s) remain",)
    assert result.usage is not None
    assert result.usage.calls == 1


def test_an_agent_that_made_no_list_ends_with_its_reply(tmp_path: Path) -> None:
    result, _ = turn(tmp_path, ["so far"])
    assert (result.ok, result.goes_on, FOLLOW_UP in result.delta) == (True, False, False)


def test_the_continuation_message_follows_the_reply_of_the_model(tmp_path: Path) -> None:
    said = talk(ADDED, (reply("so far"), []), (reply("", ("todo__done", {"id": 1})), [{"status": "ok"}]))
    result, server = turn(tmp_path, ["further"], said)
    roles = [message["role"] for message in server.requests[0].messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool"]
    assert server.requests[0].messages[5] == FURTHER
    assert result.notes == ("📋 Auto-continuing (2/3): 1 incomplete todo(s) remain",)


@pytest.mark.conformance("D02")
def test_an_agent_with_a_list_that_is_done_ends_with_the_text_of_all_turns(tmp_path: Path) -> None:
    done = (reply("", ("todo__done", {"id": 1}), ("todo__done", {"id": 2})), [{}, {}])
    result, _ = turn(tmp_path, ["done"], talk(ADDED, (reply("so far"), []), done))
    assert (result.ok, result.goes_on) == (True, False)


@pytest.mark.conformance("D02")
@pytest.mark.parametrize(
    ("turns", "text", "goes_on"),
    [
        ([], "x", True),
        ([(reply("a"), []), (reply("b"), [])], "x", True),
        ([(reply("a"), []), (reply("b"), []), (reply("c"), [])], "x", False),
        ([(reply("a"), [])], "a", False),
        ([(reply("a"), []), (reply("b"), [])], "a", True),
        ([(reply("a"), []), ADDED], "a", False),
        ([(reply(""), [])], "", False),
    ],
    ids=["first", "third", "no more than max", "the same again", "as before the last", "after calls", "nothing again"],
)
def test_an_agent_continues_so_often_and_not_after_the_same_reply(turns: list[Any], text: str, goes_on: bool) -> None:
    assert (continuation(GOES_ON, talk(ADDED, *turns), text, OPEN) is not None) == goes_on


@pytest.mark.parametrize(
    ("agent", "todos"),
    [
        (LoopAgent(), OPEN),
        (LoopAgent(auto_continue=True, max_auto_continues=0), OPEN),
        (GOES_ON, TodoList()),
        (GOES_ON, TodoList("ship", (Todo(1, "write", True),))),
    ],
)
def test_an_agent_that_has_nothing_left_or_may_not_does_not_continue(agent: LoopAgent, todos: TodoList) -> None:
    assert continuation(agent, talk(), "x", todos) is None


@pytest.mark.conformance("D03")
def test_an_agent_may_have_its_own_continuation_message() -> None:
    agent = LoopAgent(auto_continue=True, continuation_prompt="Weiter!")
    text = "Weiter!\n\nGoal: ship\nProgress: 1/2 completed\n  ✓ 1. write\n  ○ 2. test"
    note = "📋 Auto-continuing (1/10): 1 incomplete todo(s) remain"
    assert continuation(agent, talk(), "x", OPEN) == Continuation({"role": "user", "content": text}, note)


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_header_marks_a_turn_as_continued_only_if_it_is(goes_on: bool) -> None:
    header = ResultHeader(ok=True, goes_on=goes_on)
    assert ("goes_on" in header.to_json()) == goes_on
    assert ResultHeader.from_json(json.loads(json.dumps(header.to_json()))) == header
