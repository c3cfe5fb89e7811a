"""One turn of an llm node with tools, and one call: against a real HTTP server that speaks the protocol."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import LlmNode
from sleipnir.messages import ANSWER, MESSAGES, PERSON, RESULT, ToolCall, VisitResult
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.visits import Part
from sleipnir.testing import Call, ModelServer, Reply
from sleipnir_workers.llm.turn import run_turn
from sleipnir_workers.tools.node import run_tool
from tests.unit.workers.visits import host, visit

pytestmark = pytest.mark.filterwarnings("ignore:Item 'summary' on TypedDict class:UserWarning")

TOOLS = '''
def lookup(ip: str):
    """Look an address up."""
    return {"ip": ip, "city": "Oslo"}

def secret():
    """Nothing for this node."""
    return "s"
'''
TOLD = json.dumps([{"role": "user", "content": "hello"}])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    return tmp_path


def turn(
    folder: Path,
    replies: list[Any],
    *,
    talk: StoredConversation | None = None,
    mcp: list[str] | None = None,
    depth: int = 0,
    **fields: Any,
) -> tuple[VisitResult, ModelServer]:
    node = LlmNode(id="ask", **{"prompt": "hello", "model": "openai:gpt-test", "tools": ["lookup"], **fields})
    said = talk or StoredConversation()
    place = {"role": "turn", "part": Part(7, len(said.turns)), "talk": said, "depth": depth}
    with ModelServer(replies) as server:
        env = {**server.env(), "LOKI_CONFIG_DIR": str(folder / "loki")}
        at = visit(node, folder, graph={"mcp_servers": mcp or []}, **place)
        return run_turn(node, at, host(env)), server


def talk_of(*turns: tuple[str, list[tuple[str, str, str]], list[Any]]) -> StoredConversation:
    """Text, calls (id, name, arguments) and results of each turn."""
    said = []
    for text, calls, results in turns:
        called = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
        message = {"role": "assistant", "content": text, "tool_calls": called}
        said.append((json.dumps(message), tuple(map(json.dumps, results))))
    return StoredConversation(TOLD, tuple(said))


@pytest.mark.conformance("M03")
def test_the_model_gets_only_the_listed_tools_and_its_calls_are_delivered(folder: Path) -> None:
    result, server = turn(folder, [Reply("let me see", calls=[Call("lookup", {"ip": "1.2.3.4"}, id="c1")])])
    assert server.requests[0].tools == ["lookup"]
    function = server.requests[0].body["tools"][0]["function"]
    assert function["parameters"]["properties"] == {"ip": {"type": "string"}}
    assert (result.ok, result.calls) == (True, (ToolCall("c1", "lookup", "scripts"),))
    assert result.delta[MESSAGES] == json.loads(TOLD)
    assert result.delta[ANSWER]["content"] == "let me see"
    assert result.usage is not None
    assert result.usage.calls == 1


@pytest.mark.conformance("M16")
def test_a_turn_without_calls_ends_the_node_with_the_text_of_all_turns(folder: Path) -> None:
    talk = talk_of(("one", [("c1", "lookup", "{}"), ("c2", "lookup", '{"ip": "x"}')], [{"city": "Oslo"}, "DONE"]))
    result, server = turn(folder, ["two"], talk=talk, state_updates={"said": "{{output}}"})
    assert (result.ok, result.calls, result.delta) == (True, (), {"said": "one\ntwo"})
    _, assistant, *answers = server.requests[0].messages
    assert [call["id"] for call in assistant["tool_calls"]] == ["c1", "c2"]
    assert answers == [
        {"role": "tool", "tool_call_id": "c1", "content": '{"city": "Oslo"}'},
        {"role": "tool", "tool_call_id": "c2", "content": '"DONE"'},
    ]


@pytest.mark.conformance("W13")
def test_questions_of_child_runs_are_the_result_of_a_call_that_the_model_has_not_made(folder: Path) -> None:
    call = ("c1", "lookup", "{}")
    talk = replace(talk_of(("", [call], ["x"]), ("", [call], ["y"])), announced={0: '{"a":1}', 1: '{"b":2}'})
    _, server = turn(folder, ["done"], talk=talk)
    _, first, *answers, second, _, again = server.requests[0].messages
    asked = {"name": "__escalation_notification", "arguments": "{}"}
    assert first["tool_calls"][1] == {"id": "escalation_check", "type": "function", "function": asked}
    assert answers[1] == {"role": "tool", "tool_call_id": "escalation_check", "content": '{"a":1}'}
    assert second["tool_calls"][1]["id"] == again["tool_call_id"] == "escalation_check_1"
    assert again["content"] == '{"b":2}'


@pytest.mark.conformance("M04", "X17")
def test_a_server_is_offered_as_three_functions_whose_calls_go_to_workers_that_have_it(folder: Path) -> None:
    called = [Reply(calls=[Call("mcp_search_docs", {"query": "x"})])]
    result, server = turn(folder, called, tools=["mcp:docs"], mcp=["docs", "other"])
    assert server.requests[0].tools == ["mcp_search_docs", "mcp_describe_docs", "mcp_invoke_docs"]
    assert [call.where for call in result.calls] == ["llm"]


@pytest.mark.conformance("M04", "M05")
def test_one_function_of_a_server_can_be_named(folder: Path) -> None:
    _, server = turn(folder, ["hi"], tools=["mcp_search_docs", "lookup.py"], mcp=["docs"])
    assert server.requests[0].tools == ["mcp_search_docs", "lookup"]


@pytest.mark.parametrize(
    ("tools", "error"),
    [
        (["nope.sh"], "llm node references unknown tool 'nope'. Agent 'triage' provides: lookup, secret, mcp_search"),
        (["mcp:web"], "llm node references unknown MCP server 'mcp:web'. Agent 'triage' has MCP servers: [docs]"),
    ],
)  # fmt: skip
@pytest.mark.conformance("M06")
def test_what_no_tool_is_behind_fails_the_node_before_the_model_is_asked(
    folder: Path, tools: list[str], error: str
) -> None:
    result, server = turn(folder, ["hi"], tools=tools, mcp=["docs"])
    assert (result.ok, result.error_kind, server.requests) == (False, "tools", [])
    assert str(result.error).startswith(f"LLM node failed: {error}")


@pytest.mark.conformance("Q02")
def test_people_are_asked_by_the_scheduler_and_a_question_that_cannot_be_asked_is_answered_at_once(
    folder: Path,
) -> None:
    calls = [
        Call("user__confirm", {"question": "Sure?"}),
        Call("user__ask", {"question": "Which?", "options": "red"}),
        Call("user__checkbox", {"question": "Which?"}),
        Call("user__input", {}),
    ]
    tools = ["user__confirm", "user__ask", "user__checkbox", "user__input"]
    result, server = turn(folder, [Reply(calls=calls)], tools=tools)
    assert server.requests[0].tools == tools
    assert [call.where for call in result.calls] == [PERSON, "", "", ""]
    errors = [result.delta[f"{RESULT}.{number}"]["tool_call_error"] for number in (1, 2, 3)]
    assert errors == [
        "User interaction failed: 'options' was a string but did not parse as a JSON array. Pass options as a native "
        'JSON array, e.g. ["yes", "no"].',
        "User interaction failed: 'options' is required and must be an array of strings",
        "User interaction failed: 'question' is required",
    ]


@pytest.mark.conformance("CY79", "CY80")
@pytest.mark.parametrize(("listed", "called"), [("user__select", "user__ask"), ("user__ask", "user__select")])
def test_a_tool_may_be_listed_and_called_by_its_former_name(folder: Path, listed: str, called: str) -> None:
    """Finding U7 of the second review."""
    call = Call(called, {"question": "Which?", "options": '["red", "blue"]'})
    result, server = turn(folder, [Reply(calls=[call])], tools=[listed])
    assert server.requests[0].tools == [listed]
    assert [call.where for call in result.calls] == [PERSON]


@pytest.mark.conformance("M03")
def test_a_question_that_the_node_does_not_list_is_not_asked(folder: Path) -> None:
    result, _ = turn(folder, [Reply(calls=[Call("user__confirm", {"question": "May I?"})])])
    assert [call.where for call in result.calls] == [""]
    expected = "The tool 'user__confirm' is not among the tools of this node."
    assert result.delta[f"{RESULT}.0"] == {"tool_call_error": expected}


@pytest.mark.conformance("X14")
def test_the_third_same_call_in_a_row_is_answered_with_an_alert_and_does_not_run(folder: Path) -> None:
    same = ("lookup", '{"ip": "1"}')
    talk = talk_of(("", [("c1", *same)], [1]), ("", [("c2", *same)], [1]))
    result, _ = turn(folder, [Reply(calls=[Call("lookup", {"ip": "1"}), Call("lookup", {"ip": "2"})])], talk=talk)
    assert [call.where for call in result.calls] == ["", "scripts"]
    assert result.delta[f"{RESULT}.0"]["tool_call_loop_alert"]["error"]["code"] == 400


@pytest.mark.conformance("X14")
def test_an_agent_that_another_one_has_started_may_make_the_same_call_four_times(folder: Path) -> None:
    talk = talk_of(*(("", [(f"c{number}", "lookup", '{"ip": "1"}')], [1]) for number in range(3)))
    again = Call("lookup", {"ip": "1"})
    result, _ = turn(folder, [Reply(calls=[again, again])], talk=talk, depth=1)
    assert [call.where for call in result.calls] == ["scripts", ""]
    assert "tool_call_loop_alert" in result.delta[f"{RESULT}.1"]


def test_a_failure_of_the_model_is_a_failure_of_the_node(folder: Path) -> None:
    result, _ = turn(folder, [Reply(status=401, error="no such key")], state_updates={"said": "{{output}}"})
    assert (result.ok, result.calls) == (False, ())
    assert result.delta["said"].startswith("LLM node failed: ")


# Calls


def call(folder: Path, name: str, arguments: str, *, tools: list[str]) -> VisitResult:
    node = LlmNode(id="ask", prompt="hello", tools=tools)
    reply = {"tool_calls": [{"id": "c0"}, {"id": "c1", "function": {"name": name, "arguments": arguments}}]}
    place = {
        "role": "tool",
        "part": Part(7, 0, 1, name, "c1"),
        "talk": StoredConversation("", ((json.dumps(reply), ()),)),
    }
    at = visit(node, folder, graph={"mcp_servers": ["docs"]}, **place)
    return run_tool(node, at, host({"LOKI_CONFIG_DIR": str(folder / "loki")}, warm_python=False))


def test_an_error_that_quotes_half_a_surrogate_pair_can_be_stored(folder: Path) -> None:
    result = call(folder, "lookup", '{"ip": "1.2.3.4", "\\ud800": 1}', tools=["lookup"])
    assert "(unknown: ?)" in result.delta[RESULT]["tool_call_error"]
    json.dumps(result.delta, ensure_ascii=False).encode()


def test_a_call_leaves_what_the_model_reads(folder: Path) -> None:
    result = call(folder, "lookup", '{"ip": "1.2.3.4"}', tools=["lookup"])
    assert (result.ok, result.delta) == (True, {RESULT: {"ip": "1.2.3.4", "city": "Oslo"}})


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "text"),
    [
        ("secret", "{}", "not_allowed", "The tool 'secret' is not among the tools of this node"),
        ("nope", "{}", "unknown", "Unexpected call: 'nope' is no tool. Available tools: lookup. This tool"),
        ("lookup", "{not json", "arguments", "invalid arguments: {not json"),
        ("mcp_search_docs", "{}", "not_allowed", "'mcp_search_docs' is not among the tools"),
    ],
)
def test_what_may_not_run_or_cannot_is_an_error_that_the_model_reads(
    folder: Path, name: str, arguments: str, kind: str, text: str
) -> None:
    result = call(folder, name, arguments, tools=["lookup"])
    assert (result.ok, result.error_kind) == (False, kind)
    assert text in result.delta[RESULT]["tool_call_error"]


def test_a_server_that_is_not_configured_on_this_worker_is_an_error_that_the_model_reads(folder: Path) -> None:
    result = call(folder, "mcp_search_docs", '{"query": "x"}', tools=["mcp:docs"])
    assert result.delta[RESULT] == {
        "tool_call_error": "MCP search failed: MCP server 'docs' is not in mcp.json; there are none"
    }
