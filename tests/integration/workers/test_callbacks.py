"""Callbacks beside keys of models: around models, their calls, and tools. The functions run in a child process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import dedent

import pytest

from sleipnir.settings import Settings
from sleipnir.testing import Call, ModelServer, Reply, Request
from sleipnir_inprocess.agent_run import AgentRun
from tests.processes import write_agent

Replies = Iterable[Reply | str] | Callable[[Request], Reply]

ASK = """
name: hooked
version: sleipnir/1
start: ask
model: openai:gpt-test
TOP
nodes:
  ask: {type: llm, prompt: "Say {{word}}.", state_updates: {out: "{{output}}"}, NODE next: done}
  done: {type: end, output: "{{out}} {{word}}"}
"""
TOOLS = """
name: hooked
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages, scene: string}
TOP
nodes:
  ask: {type: llm, instructions: "Add.", tools_node: work, next: done}
  work: {type: tools, tools: [add, {name: where, call: "hooks.py:where", schema: {type: object}}], NODE next: ask}
  done: {type: end, output: "{{last_response}}"}
"""
TOOL_FILE = '''
import json
import os


def add(a: int, b: int):
    """Add two numbers."""
    if a < 0:
        raise ValueError("too small")
    return {"sum": a + b, "context": json.loads(os.environ.get("LLM_CALL_CONTEXT", "{}"))}
'''
HOOKS = """
import json
import os
import time
from sleipnir import get_call_context
def ran(*what):
    with open("PLACE", "a") as seen:
        seen.write(json.dumps(what) + chr(10))
def where(**arguments):
    return get_call_context()
"""


class Hooked:
    """A run of the graph, to its end. `seen` is what its functions noted, `marks` what callbacks decided."""

    def __init__(self, folder: Path, graph: str, hooks: str, replies: Replies, node: str = "", top: str = "") -> None:
        agent = folder / "hooked"
        agent.mkdir()
        (agent / "graph.yaml").write_text(graph.replace("NODE", f"{node}, " if node else "").replace("TOP", top))
        (agent / "tools.py").write_text(TOOL_FILE)
        (agent / "hooks.py").write_text(HOOKS.replace("PLACE", str(folder / "seen")) + dedent(hooks))
        with ModelServer(replies) as model:
            state = {"word": "hello"} if "{{word}}" in graph else {"scene": "s1"}
            run = AgentRun(agent, "go", state=state, settings=Settings(agents_dir=folder), env=model.env())
            for _ in run.steps():
                pass
            self.requests = model.requests
        file = folder / "seen"
        self.seen = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        info = run.info()
        self.ended = info.status, run.output if info.status == "completed" else info.error
        self.marks = [mark for step, _ in run.record.values.journal for mark in step.callbacks]
        self.state = run.state()


# Around nodes


def test_a_model_has_callbacks_which_run_without_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    hooks = """
    def before(state, info): ran("before", info.node, os.environ.get("OPENAI_API_KEY"), os.getpid())
    def after(state, info, result, error): ran("after", result, error)
    """
    node = "callbacks: {before: 'hooks.py:before', after: 'hooks.py:after'}"
    hooked = Hooked(tmp_path, ASK, hooks, ["Hi"], node)
    assert hooked.ended == ("completed", "Hi hello")
    [before, after] = hooked.seen
    assert before[:3] == ["before", "ask", None]
    assert before[3] != os.getpid()
    assert after == ["after", {"out": "Hi"}, None]
    assert hooked.marks == []


def test_before_gives_the_result_of_a_model_and_after_recovers_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    skip = "def before(state, info): return {'out': 'given'}\n"
    hooked = Hooked(tmp_path / "a", ASK, skip, [], "callbacks: {before: 'hooks.py:before'}")
    assert (hooked.ended, hooked.requests) == (("completed", "given hello"), [])
    assert hooked.marks == ["skipped by before hooks.py:before"]
    mend = """
    def after(state, info, result, error):
        return {"out": "mended"} if error else None
    def note(state, info, error): ran(error)
    """
    failing = [Reply(status=400)]
    node = "callbacks: {after: 'hooks.py:after', error: 'hooks.py:note'}"
    hooked = Hooked(tmp_path / "b", ASK, mend, failing, node)
    assert hooked.ended == ("completed", "mended hello")
    assert hooked.marks == ["recovered by after hooks.py:after"]
    assert "LLM node failed" in hooked.seen[0][0]


def test_before_changes_what_the_model_sees_and_not_what_is_stored(tmp_path: Path) -> None:
    hooks = "def before(state, info): state['word'] = 'bye'\n"
    hooked = Hooked(tmp_path, ASK, hooks, ["Bye"], "callbacks: {before: 'hooks.py:before'}")
    assert hooked.requests[0].prompt == "Say bye."
    assert (hooked.ended, hooked.state["word"]) == (("completed", "Bye hello"), "hello")
    assert hooked.marks == ["input changed: word by before hooks.py:before"]


def test_around_a_conversation_with_tools_before_and_after_run_once(tmp_path: Path) -> None:
    hooks = """
    def before(state, info): ran("before")
    def after(state, info, result, error): ran("after", result)
    """
    node = "tools: [add], callbacks: {before: 'hooks.py:before', after: 'hooks.py:after'}"
    hooked = Hooked(tmp_path, ASK, hooks, [Reply(calls=[Call("add", {"a": 1, "b": 2})]), "Three"], node)
    assert hooked.ended == ("completed", "Three hello")
    assert hooked.seen == [["before"], ["after", {"out": "Three"}]]


# Around calls of models


@pytest.mark.conformance("LL-18")
def test_a_response_of_before_stands_in_the_place_of_the_call(tmp_path: Path) -> None:
    hooks = """
    def before(state, info, request):
        ran(request["model"], [each["content"] for each in request["messages"]], state["word"])
        return "given"
    def after(state, info, request, response, error): ran("after")
    """
    node = "callbacks: {model: {before: 'hooks.py:before', after: 'hooks.py:after'}}"
    hooked = Hooked(tmp_path, ASK, hooks, [], node)
    assert (hooked.ended, hooked.requests) == (("completed", "given hello"), [])
    assert hooked.seen == [["openai:gpt-test", ["Say hello."], "hello"]]
    assert hooked.marks == ["model call skipped by before hooks.py:before"]


def test_before_changes_the_messages_of_a_call(tmp_path: Path) -> None:
    hooks = "def before(state, info, request): request['messages'][-1]['content'] += ' Please.'\n"
    hooked = Hooked(tmp_path, ASK, hooks, ["Hi"], "callbacks: {model: {before: 'hooks.py:before'}}")
    assert hooked.requests[0].prompt == "Say hello. Please."
    assert hooked.marks == ["model call changed by before hooks.py:before"]


@pytest.mark.conformance("LL-19")
@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_callback_of_a_call_that_raises_fails_the_node_without_a_retry(tmp_path: Path, phase: str) -> None:
    hooks = """
    def before(state, info, request):
        ran("before")
        raise PermissionError("not allowed")
    def after(state, info, request, response, error): raise PermissionError("not allowed")
    """
    node = f"retry: {{max_attempts: 3}}, callbacks: {{model: {{{phase}: 'hooks.py:{phase}'}}}}"
    hooked = Hooked(tmp_path, ASK, hooks, ["Hi"] * 3, node)
    status, error = hooked.ended
    assert status == "failed"
    assert "raised PermissionError: not allowed (hooks.py:" in (error or "")
    assert len(hooked.requests) == (0 if phase == "before" else 1)
    assert hooked.marks == [f"model call failed by {phase} hooks.py:{phase}"]


@pytest.mark.conformance("LL-20")
def test_after_replaces_a_response_and_recovers_a_failed_call(tmp_path: Path) -> None:
    hooks = """
    def after(state, info, request, response, error):
        return {"content": "mended"} if error else response["content"] + "!"
    """
    for folder, replies, out, what in (
        ("a", ["Hi"], "Hi!", "replaced"),
        ("b", [Reply(status=400)], "mended", "recovered"),
    ):
        (tmp_path / folder).mkdir()
        hooked = Hooked(tmp_path / folder, ASK, hooks, replies, "callbacks: {model: {after: 'hooks.py:after'}}")
        assert hooked.ended == ("completed", f"{out} hello")
        assert hooked.marks == [f"model call {what} by after hooks.py:after"]


def test_a_response_may_call_tools(tmp_path: Path) -> None:
    hooks = """
    def before(state, info, request):
        if request["messages"][-1]["role"] == "user":
            return {"tool_calls": [{"id": "c1", "name": "add", "arguments": {"a": 1, "b": 2}}]}
    """
    hooked = Hooked(tmp_path, TOOLS, hooks, ["Three"], top="callbacks: {model: {before: 'hooks.py:before'}}")
    assert hooked.ended == ("completed", "Three")
    assert [json.loads(result.text)["sum"] for result in hooked.requests[0].tool_results] == [3]


def test_the_callbacks_of_the_node_beat_those_of_the_graph(tmp_path: Path) -> None:
    hooks = """
    def graph(state, info, request): return "of the graph"
    def node(state, info, request): return "of the node"
    def after_graph(state, info, request, response, error): return response["content"] + " and the graph"
    def after_node(state, info, request, response, error): return response["content"] + " and the node"
    """
    top, node = ("callbacks: {model: {before: 'hooks.py:graph'}}", "callbacks: {model: {before: 'hooks.py:node'}}")
    (tmp_path / "a").mkdir()
    assert Hooked(tmp_path / "a", ASK, hooks, [], node, top).ended[1] == "of the node hello"
    top, node = (
        top.replace("before: 'hooks.py:", "after: 'hooks.py:after_"),
        node.replace("before: 'hooks.py:", "after: 'hooks.py:after_"),
    )
    (tmp_path / "b").mkdir()
    hooked = Hooked(tmp_path / "b", ASK, hooks, ["Hi"], node, top)
    assert hooked.ended[1] == "Hi and the node hello"


def test_a_callback_that_does_not_return_json_fails_the_node(tmp_path: Path) -> None:
    hooks = "def before(state, info, request): return {'content': object()}\n"
    hooked = Hooked(tmp_path, ASK, hooks, [], "callbacks: {model: {before: 'hooks.py:before'}}")
    assert "Callback 'hooks.py:before' left something that is not JSON" in (hooked.ended[1] or "")


def test_a_process_that_dies_fails_the_node(tmp_path: Path) -> None:
    hooks = "def before(state, info, request): os._exit(3)\n"
    hooked = Hooked(tmp_path, ASK, hooks, [], "callbacks: {model: {before: 'hooks.py:before'}}")
    assert "Callback 'hooks.py:before' ended its process (exit status 3)" in (hooked.ended[1] or "")


# Around calls of tools

ADD: list[Reply | str] = [Reply(calls=[Call("add", {"a": 1, "b": 2})]), "The end"]


@pytest.mark.conformance("TL-19")
def test_before_edits_the_arguments_of_a_call_and_sees_the_state(tmp_path: Path) -> None:
    hooks = """
    def before(state, info, call):
        ran(info.node, call["name"], call["arguments"], state["scene"])
        call["arguments"]["b"] = 40
    """
    hooked = Hooked(tmp_path, TOOLS, hooks, ADD, "callbacks: {tool: {before: 'hooks.py:before'}}")
    assert hooked.ended == ("completed", "The end")
    assert hooked.seen == [["work", "add", {"a": 1, "b": 2}, "s1"]]
    [result] = hooked.requests[1].tool_results
    assert json.loads(result.text)["sum"] == 41
    assert hooked.marks == ["tool call changed by before hooks.py:before"]


@pytest.mark.conformance("TL-20")
def test_what_before_returns_is_the_result_of_the_call(tmp_path: Path) -> None:
    hooks = """
    def before(state, info, call): return {"given": call["id"] is not None}
    def after(state, info, call, result, error): ran("after")
    """
    node = "callbacks: {tool: {before: 'hooks.py:before', after: 'hooks.py:after'}}"
    hooked = Hooked(tmp_path, TOOLS, hooks, [Reply(calls=[Call("add", {"a": -1, "b": 2})]), "The end"], node)
    assert hooked.ended == ("completed", "The end")
    assert hooked.seen == []
    assert [json.loads(result.text) for result in hooked.requests[1].tool_results] == [{"given": True}]
    assert hooked.marks == ["tool call skipped by before hooks.py:before"]


@pytest.mark.conformance("TL-21")
def test_after_replaces_an_error_by_a_result(tmp_path: Path) -> None:
    hooks = """
    def after(state, info, call, result, error):
        ran(call["arguments"], error)
        return {"sum": 0} if error else None
    """
    replies: Replies = [Reply(calls=[Call("add", {"a": -1, "b": 2})]), "The end"]
    node = "tool_retry: {max_attempts: 2, initial_interval: 1ms}, callbacks: {tool: {after: 'hooks.py:after'}}"
    hooked = Hooked(tmp_path, TOOLS, hooks, replies, node)
    assert hooked.ended == ("completed", "The end"), "without the callback the error fails the node"
    assert len(hooked.seen) == 1, "a failure that is retried is not the outcome"
    assert "too small" in hooked.seen[0][1]
    assert [json.loads(result.text) for result in hooked.requests[1].tool_results] == [{"sum": 0}]
    assert hooked.marks == ["tool call recovered by after hooks.py:after"]


@pytest.mark.conformance("TL-22")
def test_callbacks_of_the_tools_node_beat_those_of_the_graph_which_are_for_all_others(tmp_path: Path) -> None:
    hooks = """
    def graph(state, info, call): return "of the graph"
    def node(state, info, call): return "of the node"
    """
    top, node = "callbacks: {tool: {before: 'hooks.py:graph'}}", "callbacks: {tool: {before: 'hooks.py:node'}}"
    for folder, own, text in (("a", node, "of the node"), ("b", "", "of the graph")):
        (tmp_path / folder).mkdir()
        hooked = Hooked(tmp_path / folder, TOOLS, hooks, ADD, own, top)
        assert [json.loads(result.text) for result in hooked.requests[1].tool_results] == [text]


@pytest.mark.conformance("TL-25")
def test_what_before_puts_into_the_context_is_there_in_the_tool_and_after(tmp_path: Path) -> None:
    hooks = """
    def before(state, info, call): info.context["trace"] = call["name"]
    def after(state, info, call, result, error): ran(info.context, result)
    """
    calls = Reply(calls=[Call("add", {"a": 1, "b": 2}), Call("where", {})])
    node = "callbacks: {tool: {before: 'hooks.py:before', after: 'hooks.py:after'}}"
    hooked = Hooked(tmp_path, TOOLS, hooks, [calls, "The end"], node)
    assert hooked.seen == [
        [{"trace": "add"}, {"sum": 3, "context": {"trace": "add"}}],
        [{"trace": "where"}, {"trace": "where"}],
    ]


def test_a_tool_callback_that_raises_fails_the_call_and_the_node(tmp_path: Path) -> None:
    hooks = "def before(state, info, call): raise PermissionError('not allowed')\n"
    node = "tool_retry: {max_attempts: 3}, callbacks: {tool: {before: 'hooks.py:before'}}"
    hooked = Hooked(tmp_path, TOOLS, hooks, ADD, node)
    status, error = hooked.ended
    assert status == "failed"
    assert "not allowed" in (error or "")
    assert hooked.marks == ["tool call failed by before hooks.py:before"]


def test_tools_of_a_conversation_have_the_callbacks_of_their_model(tmp_path: Path) -> None:
    hooks = "def before(state, info, call): call['arguments']['a'] = 10\n"
    node = "tools: [add], callbacks: {tool: {before: 'hooks.py:before'}}"
    hooked = Hooked(tmp_path, ASK, hooks, ADD, node)
    assert hooked.ended == ("completed", "The end hello")
    assert [json.loads(result.text)["sum"] for result in hooked.requests[1].tool_results] == [12]


# Keys of caches


def test_a_key_function_of_a_model_runs_without_keys(tmp_path: Path) -> None:
    hooks = """
    def key(state):
        ran(os.getpid())
        return state["word"]
    """
    second = "  second: {type: llm, prompt: x, cache: true, next: done}\n  done:"
    graph = ASK.replace("  done:", second)
    hooked = Hooked(tmp_path, graph, hooks, ["Hi", "x"], "cache: {key_func: 'hooks.py:key'}")
    assert hooked.ended == ("completed", "Hi hello")
    assert len(hooked.seen) == 1 and hooked.seen[0][0] != os.getpid()


def test_callbacks_of_a_model_emit_in_process(tmp_path: Path) -> None:
    hooks = """
    from sleipnir import emit, emit_progress
    def before(state, info): emit("first", state["word"])
    def after(state, info, result, error): emit("last", result["out"])
    def answered(state, info, request, response, error): emit_progress(50, response["content"])
    """
    node = "callbacks: {before: 'h.py:before', after: 'h.py:after', model: {after: 'h.py:answered'}},"
    text = ASK.replace("TOP", "").replace("NODE", node)
    agent = write_agent(tmp_path / "hooked", text, h_py=dedent(hooks))
    with ModelServer(["Hi"]) as model:
        run = AgentRun(agent, state={"word": "hello"}, settings=Settings(agents_dir=tmp_path), env=model.env())
        told = [event.data for event in run.stream(["custom"]) if event.mode == "custom"]
    assert [each.get("payload", each.get("progress")) for each in told] == ["hello", 50, "Hi"]
