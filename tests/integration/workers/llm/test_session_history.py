"""What a run in a session begins with and leaves there: against a real HTTP server that speaks the protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode, LoopAgent
from sleipnir.messages import INSTEAD, MESSAGES, SAID, SessionAddition, VisitResult
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.visits import Part
from sleipnir.testing import Call, ModelServer, Reply
from sleipnir_workers.llm.session_history import SUMMARIZATION_PROMPT, SUMMARY_CONTEXT_PROMPT
from sleipnir_workers.llm.todo import Todo, TodoList
from sleipnir_workers.llm.turn import run_turn
from sleipnir_workers.results.encoding import encoded
from tests.unit.workers.visits import host, visit

pytestmark = pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning")

HISTORY = [{"role": "user", "content": "I am Kim"}, {"role": "assistant", "content": "Hello Kim"}]
SYSTEM = {"role": "system", "content": "be kind"}
ASKED = {"role": "user", "content": "who am I"}
CALL = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"q": 1}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
FOUND = {"role": "tool", "tool_call_id": "c1", "content": '"Kim"'}
SECOND_TURN = StoredConversation(json.dumps([SYSTEM, *HISTORY, ASKED]), ((json.dumps(CALLED), ('"Kim"',)),))


def turn(
    folder: Path,
    replies: list[Any],
    talk: StoredConversation,
    *,
    session: str | None = "desk",
    threshold: int | None = None,
) -> tuple[VisitResult, ModelServer]:
    (folder / "tools.py").write_text('def lookup(q: int):\n    """Look up."""\n')
    node = LlmNode(
        id="ask", prompt="who am I", model="openai:gpt-test", tools=["lookup"],
        state_updates={"output": "{{output}}"},
    )  # fmt: skip
    graph = {"loop": LoopAgent(instructions="be kind", compression_threshold=threshold)}
    place = {"role": "turn", "part": Part(7, len(talk.turns)), "talk": talk, "session": session, "graph": graph}
    with ModelServer(replies) as server:
        return run_turn(node, visit(node, folder, **place), host(server.env())), server


def test_the_session_is_between_the_system_message_and_the_question(tmp_path: Path) -> None:
    result, server = turn(tmp_path, ["Kim"], StoredConversation(history=json.dumps(HISTORY)))
    system, *others = server.requests[0].messages
    assert system["content"].startswith("be kind")
    assert others == [*HISTORY, ASKED]
    assert result.delta == {"output": "Kim"}
    assert result.said == SessionAddition((ASKED, {"role": "assistant", "content": "Kim"}))


def test_a_turn_that_calls_tools_leaves_nothing_and_keeps_the_session_for_the_next_one(tmp_path: Path) -> None:
    result, _ = turn(
        tmp_path, [Reply(calls=[Call("lookup", {"q": 1})])], StoredConversation(history=json.dumps(HISTORY))
    )
    assert (result.said, result.delta[MESSAGES][1:]) == (None, [*HISTORY, ASKED])


def test_all_messages_since_the_question_are_added_with_calls_and_results(tmp_path: Path) -> None:
    result, server = turn(tmp_path, ["You are Kim"], SECOND_TURN)
    assert server.requests[0].messages == [SYSTEM, *HISTORY, ASKED, CALLED, FOUND]
    answer = {"role": "assistant", "content": "You are Kim"}
    assert result.said == SessionAddition((ASKED, CALLED, FOUND, answer))
    _, values = encoded(result, "ask", 10_000)
    assert [json.loads(line) for line in values[SAID].split("\n")] == [ASKED, CALLED, FOUND, answer]


def test_a_run_without_a_session_and_a_model_that_fails_leave_nothing(tmp_path: Path) -> None:
    assert turn(tmp_path, ["Kim"], StoredConversation(), session=None)[0].said is None
    failed, _ = turn(tmp_path, [Reply(status=400)], StoredConversation())
    assert (failed.ok, failed.said) == (False, None)


def test_a_session_that_has_grown_to_the_threshold_is_replaced_by_a_summary(tmp_path: Path) -> None:
    result, server = turn(tmp_path, ["You are Kim", " The user is Kim.\n"], SECOND_TURN, threshold=10)
    system, record = server.requests[1].messages
    assert system == {"role": "system", "content": SUMMARIZATION_PROMPT}
    assert record["content"] == (
        "user: I am Kim\n\nassistant: Hello Kim\n\nuser: who am I\n\n"
        'assistant calls lookup with {"q": 1}\n\ntool: "Kim"\n\nassistant: You are Kim'
    )
    assert result.said == SessionAddition(
        ({"role": "user", "content": SUMMARY_CONTEXT_PROMPT + "The user is Kim."},), instead=True
    )
    assert encoded(result, "ask", 10_000)[1][SAID].split("\n")[0] == INSTEAD
    assert result.delta == {"output": "You are Kim"}
    assert result.usage is not None
    assert result.usage.calls == 2, "the summary is paid for too"
    assert "the session is summarised: 6 messages" in result.notes


def test_the_todo_list_outlives_the_summary(tmp_path: Path) -> None:
    """As calls: the list is what the calls of a conversation make of it."""
    calls = [("todo__init", '{"goal": "tea"}'), ("todo__add", '{"task": "boil"}'), ("todo__add", '{"task": "pour"}')]
    calls.append(("todo__done", '{"id": 1}'))
    called = [{"id": f"c{n}", "function": {"name": name, "arguments": a}} for n, (name, a) in enumerate(calls)]
    history = [
        {"role": "user", "content": "make tea"},
        {"role": "assistant", "content": None, "tool_calls": called},
        *({"role": "tool", "tool_call_id": f"c{n}", "content": '{"status": "ok"}'} for n in range(4)),
    ]
    result, _ = turn(
        tmp_path, ["later", "tea is being made"], StoredConversation(history=json.dumps(history)), threshold=5
    )
    assert result.said is not None
    summary, *kept = result.said.messages
    assert summary["content"].endswith("tea is being made")
    assert TodoList.of(kept) == TodoList("tea", (Todo(1, "boil", done=True), Todo(2, "pour")))
    assert [message["role"] for message in kept] == ["assistant", "tool", "tool", "tool", "tool"]


@pytest.mark.parametrize("reply", [Reply(status=400), ""])
def test_a_session_that_cannot_be_summarised_stays_complete(tmp_path: Path, reply: Reply | str) -> None:
    result, _ = turn(tmp_path, ["You are Kim", reply], SECOND_TURN, threshold=10)
    assert result.ok
    assert result.said == SessionAddition((ASKED, CALLED, FOUND, {"role": "assistant", "content": "You are Kim"}))
    assert any(note.startswith("the session is not summarised: ") for note in result.notes)
