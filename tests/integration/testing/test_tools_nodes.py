"""Tools nodes: what executes the tool calls of a message (spec/graph-package.md F22, F23, F60)."""

from __future__ import annotations

import json
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
start: ask
state: {messages: messages}
nodes:
  ask: {type: llm, tools_node: work}
"""
TOOLS = """
import json, os, time

def add(a: int, b: int = 1):
    '''Adds.

    Args:
        a: one number
        b: the other
    '''
    return a + b

def note(text: str):
    '''Notes a text.

    Args:
        text: what
    '''
    with open("noted.txt", "a") as file:
        file.write(text + "\\n")
    return {"noted": text}

def fail(text: str):
    '''Fails.

    Args:
        text: how
    '''
    raise ValueError(text)
"""


def agent(folder: Path, work: str = "work: {type: tools, tools: [add, note, fail], next: ask}", **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "graph.yaml").write_text(HEAD + indent(dedent(work), "  "))
    (folder / "tools.py").write_text(TOOLS)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(dedent(text))
    return folder


def calling(*calls: tuple[str, Mapping[str, Any]], text: str = "") -> Reply:
    return Reply(text=text, calls=[Call(name, dict(arguments)) for name, arguments in calls])


def talk(folder: Path, replies: list[Reply | str], **options: Any) -> RunResult:
    with ModelServer(replies) as server:
        return run(folder, "hello", model=server, cwd=folder.parent, **options)


def tools_visits(result: RunResult) -> list[tuple[str, bool]]:
    return [(visit.role, visit.ok) for visit in result.visits if visit.node == "work"]


@pytest.mark.conformance("TL-04", "TL-08", "LL-29", "RT-22")
def test_calls_are_executed_in_order_and_their_results_become_messages(tmp_path: Path) -> None:
    folder = agent(tmp_path / "talk")
    with ModelServer([calling(("add", {"a": 2}), ("note", {"text": "x"})), "three"]) as server:
        result = run(folder, "hello", model=server, cwd=tmp_path)
        first, second = server.requests
    assert result.status == "completed", result.error
    assert first.tools == ["add", "note", "fail"], "those of its tools node"
    roles = [message["role"] for message in result.state["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    assert [message["role"] for message in second.messages] == roles[:-1], "nothing is repeated"
    assert [each.text for each in second.tool_results] == ["3", '{"noted":"x"}']
    assert result.state["last_tool_response"] == '{"noted":"x"}'
    ids = [call["id"] for call in result.state["messages"][1]["tool_calls"]]
    assert json.loads(result.state["node_responses"]["work"]) == [
        {"tool_id": ids[0], "tool_name": "add", "output": 3},
        {"tool_id": ids[1], "tool_name": "note", "output": {"noted": "x"}},
    ]
    assert result.nodes == ["ask", "work", "work", "work", "ask"]
    assert tools_visits(result) == [("tool", True), ("tool", True), ("node", True)]
    assert result.state["last_response"] == "three"


@pytest.mark.conformance("TL-01")
def test_without_messages_the_node_fails(tmp_path: Path) -> None:
    folder = agent(tmp_path / "talk")
    graph = (folder / "graph.yaml").read_text().replace("start: ask", "start: work")
    (folder / "graph.yaml").write_text(graph)
    result = talk(folder, [])
    assert (result.status, "tools node 'work' found no messages" in str(result.error)) == ("failed", True)


@pytest.mark.conformance("TL-02")
def test_calls_before_the_last_message_of_the_user_are_not_executed(tmp_path: Path) -> None:
    folder = agent(tmp_path / "talk")
    graph = (folder / "graph.yaml").read_text().replace("start: ask", "start: work")
    (folder / "graph.yaml").write_text(graph)
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "user", "content": "no"}]
    result = talk(folder, [], state={"messages": messages})
    assert result.status == "failed"
    assert "no message with tool calls after the last message of the user" in str(result.error)


@pytest.mark.conformance("TL-06")
def test_an_unknown_tool_fails_the_node_and_is_named(tmp_path: Path) -> None:
    result = talk(agent(tmp_path / "talk"), [calling(("invented", {}))])
    assert result.status == "failed"
    assert "tool 'invented' failed: Unexpected call: 'invented' is no tool" in str(result.error)


def test_the_list_of_tools_is_enforced_where_a_call_is_executed(tmp_path: Path) -> None:
    folder = agent(tmp_path / "talk", "work: {type: tools, tools: [add], next: ask}")
    result = talk(folder, [calling(("note", {"text": "x"}))])
    assert result.status == "failed"
    assert "'note' is not among the tools of this node" in str(result.error)
    assert not (tmp_path / "noted.txt").exists()


@pytest.mark.conformance("TL-07", "TL-13", "TL-29")
def test_the_first_error_fails_the_node_and_ends_the_other_calls(tmp_path: Path) -> None:
    folder = agent(tmp_path / "talk")
    result = talk(folder, [calling(("note", {"text": "x"}), ("fail", {"text": "broken"}), ("note", {"text": "y"}))])
    assert result.status == "failed"
    assert "tool 'fail' failed" in str(result.error)
    assert "broken" in str(result.error)
    assert (tmp_path / "noted.txt").read_text() == "x\n", "the third call is not begun"
    assert [message["role"] for message in result.state["messages"]] == ["user", "assistant"]


def test_errors_can_be_results_for_the_model(tmp_path: Path) -> None:
    folder = agent(tmp_path / "talk", "work: {type: tools, tools: [add, fail], on_error: message, next: ask}")
    replies = [calling(("fail", {"text": "broken"}), ("invented", {}), ("add", {"a": 1})), "done"]
    result = talk(folder, replies)
    assert result.status == "completed", result.error
    contents = [message["content"] for message in result.state["messages"] if message["role"] == "tool"]
    assert ["broken" in contents[0], "is no tool" in contents[1], contents[2]] == [True, True, "2"]


@pytest.mark.conformance("TL-24")
def test_a_call_that_is_denied_is_answered_with_a_text(tmp_path: Path) -> None:
    work = "work: {type: tools, tools: [add, note], permissions: {note: deny}, next: ask}"
    result = talk(agent(tmp_path / "talk", work), [calling(("note", {"text": "x"}), ("add", {"a": 1})), "done"])
    assert result.status == "completed", result.error
    assert not (tmp_path / "noted.txt").exists()
    [denied, added] = [message["content"] for message in result.state["messages"] if message["role"] == "tool"]
    assert "was not called: this graph does not permit it" in denied
    assert added == "2"


@pytest.mark.parametrize(("answer", "noted"), [("yes", True), ("no", False)])
def test_a_person_may_be_asked_before_a_call(tmp_path: Path, answer: str, noted: bool) -> None:
    work = "work: {type: tools, tools: [note], permissions: {note: ask}, next: ask}"
    replies = [calling(("note", {"text": "x"})), "done"]
    result = talk(agent(tmp_path / "talk", work), replies, answers=[answer])
    assert result.status == "completed", result.error
    assert 'May it be called: note {"text":' in result.questions[0].question
    assert (tmp_path / "noted.txt").exists() is noted
    [content] = [message["content"] for message in result.state["messages"] if message["role"] == "tool"]
    assert ("a person has refused it" in content) is not noted


EXTERNAL = """
work:
  type: tools
  tools: [add, {name: browse, external: true, description: Opens a page., schema: {properties: {url: {type: string}}}}]
  parallel: true
  next: ask
"""


@pytest.mark.conformance("TL-28")
def test_an_external_tool_is_executed_by_whom_answers_its_question(tmp_path: Path) -> None:
    folder = agent(tmp_path / "talk", EXTERNAL)
    replies = [calling(("browse", {"url": "a"}), ("add", {"a": 1}), ("browse", {"url": "b"})), "done"]
    with ModelServer(replies) as server:
        waiting = run(folder, "hello", model=server, cwd=tmp_path)
        assert waiting.status == "waiting"
        assert len(waiting.questions) == 2
        assert server.requests[0].tools == ["add", "browse"]
    result = talk(folder, replies, answers=['{"title": "A"}', "just text"])
    assert result.status == "completed", result.error
    contents = [message["content"] for message in result.state["messages"] if message["role"] == "tool"]
    assert contents == ['{"title":"A"}', "2", '"just text"']


def test_results_of_an_external_tool_may_be_in_the_messages_already(tmp_path: Path) -> None:
    folder = agent(tmp_path / "talk", EXTERNAL)
    graph = (folder / "graph.yaml").read_text().replace("start: ask", "start: work")
    (folder / "graph.yaml").write_text(graph)
    calls = [
        {"id": name, "type": "function", "function": {"name": tool, "arguments": '{"a": 1}'}}
        for name, tool in (("1", "browse"), ("2", "add"))
    ]
    messages = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "seen"},
    ]
    result = talk(folder, ["done"], state={"messages": messages, "user_input": ""})
    assert result.status == "completed", result.error
    assert [each["content"] for each in result.state["messages"][1:3]] == ["seen", "2"]


FUNCTIONS = """
import time

TRIES = []

def add(a, b=1):
    return a + b

def seldom(text):
    TRIES.append(text)
    if len(TRIES) % 3:
        raise ConnectionError("not yet")
    return "at last"

def wrong():
    return {1, 2}
"""


@pytest.mark.conformance("TL-15", "TL-18", "TL-26")
def test_python_functions_are_tools_with_retries(tmp_path: Path) -> None:
    work = """
    work:
      type: tools
      tools:
        - {name: plus, call: "steps.py:add", schema: {properties: {a: {type: integer}}}}
        - {name: seldom, call: "steps.py:seldom"}
        - {name: wrong, call: "steps.py:wrong"}
      tool_retry: {max_attempts: 3, on: [transient]}
      on_error: message
      next: ask
    """
    folder = agent(tmp_path / "talk", work, steps_py=FUNCTIONS)
    replies = [calling(("plus", {"a": 4}), ("seldom", {"text": "x"}), ("wrong", {}), ("plus", {"c": 1})), "done"]
    result = talk(folder, replies)
    assert result.status == "completed", result.error
    contents = [message["content"] for message in result.state["messages"] if message["role"] == "tool"]
    assert contents[:2] == ["5", '"at last"']
    assert "not JSON" in contents[2]
    assert "unexpected keyword argument 'c'" in contents[3]
    attempts = [visit.attempt for visit in result.visits if visit.role == "tool"]
    assert attempts == [1, 3, 1, 1]


def test_arguments_that_are_wrong_are_not_tried_again(tmp_path: Path) -> None:
    work = "work: {type: tools, tools: [add], tool_retry: {max_attempts: 5}, next: ask}"
    result = talk(agent(tmp_path / "talk", work), [calling(("add", {"c": 1}))])
    assert result.status == "failed"
    assert [visit.attempt for visit in result.visits if visit.role == "tool"] == [1]


BARRIER = """
import time, threading

UNDER_WAY, PEAKS = {}, {}
LOCK = threading.Lock()

def _during(name):
    with LOCK:
        UNDER_WAY[name] = UNDER_WAY.get(name, 0) + 1
        UNDER_WAY["all"] = UNDER_WAY.get("all", 0) + 1
        for key in (name, "all"):
            PEAKS[key] = max(PEAKS.get(key, 0), UNDER_WAY[key])
    time.sleep(0.05)
    with LOCK:
        UNDER_WAY[name] -= 1
        UNDER_WAY["all"] -= 1
    return dict(PEAKS)

def db(number):
    return _during("db")

def web(number):
    return _during("web")
"""


@pytest.mark.conformance("TL-05", "TL-09", "TL-10", "TL-12")
@pytest.mark.parametrize(
    ("parallel", "peak", "of_db"),
    [("false", 1, 1), ("{max: 3}", 3, 3), ("{max: 4, groups: [{tools: [db], limit: 1}]}", 4, 1)],
)
def test_calls_run_at_once_as_far_as_the_limits_allow(tmp_path: Path, parallel: str, peak: int, of_db: int) -> None:
    work = f"""
    work:
      type: tools
      tools: [{{name: db, call: "steps.py:db"}}, {{name: web, call: "steps.py:web"}}]
      parallel: {parallel}
      next: ask
    """
    folder = agent(tmp_path / "talk", work, steps_py=BARRIER)
    calls = [(name, {"number": number}) for number in range(3) for name in ("db", "web")]
    result = talk(folder, [calling(*calls), "done"])
    assert result.status == "completed", result.error
    responses = json.loads(result.state["node_responses"]["work"])
    assert [each["tool_name"] for each in responses] == [name for name, _ in calls], "the results are in call order"
    most = {key: max(each["output"].get(key, 0) for each in responses) for key in ("all", "db")}
    assert most["all"] <= peak
    assert most["db"] <= of_db
    if peak > 1:
        assert most["all"] > 1


def test_a_branch_can_choose_by_the_calls_of_the_last_message(tmp_path: Path) -> None:
    folder = tmp_path / "talk"
    agent(folder)
    graph = """
    name: talk
    version: sleipnir/1
    model: openai:gpt-test
    start: ask
    state: {messages: messages}
    nodes:
      ask: {type: llm, tools: [add], next: check}
      check: {type: router, branch: {tools: work, default: done}}
      work: {type: tools, tools: [add], next: ask}
      done: {type: end, output: "{{last_response}}"}
    """
    (folder / "graph.yaml").write_text(dedent(graph))
    result = talk(folder, [calling(("add", {"a": 1})), "two"])
    assert (result.status, result.output) == ("completed", "two"), result.error
    assert [visit.node for visit in result.visits if visit.role == "node"] == [
        *("ask", "check", "work", "ask", "check", "done"),
    ]


def test_updates_of_the_state_see_the_results(tmp_path: Path) -> None:
    work = 'work: {type: tools, tools: [add], state_updates: {found: "{{output[0].output}}"}, next: ask}'
    result = talk(agent(tmp_path / "talk", work), [calling(("add", {"a": 1})), "done"])
    assert result.state["found"] == "2"
