"""Every Python block of the documents: programs run as written, functions are called by what the page says calls them.

The files of tests in docs/testing.md are run by tests/system/test_testing_page.py.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sleipnir import RESET
from sleipnir.client.client import Client
from sleipnir.graph import model
from sleipnir.runs.conversation import StoredConversation
from sleipnir.runs.interrupts import UsedAnswer, answers_text
from sleipnir.settings import Settings
from sleipnir.testing import Call, ModelServer, Reply
from sleipnir.testing import run as run_agent
from sleipnir_workers.execution import registry
from sleipnir_workers.nodes.function import run_function
from tests.docs.pages import Block, blocks
from tests.docs.reader import Machine, open_page
from tests.processes import write_agent
from tests.unit.workers.visits import visit

PYTHON = blocks("python")
PRINTED = {
    "docs/python-graphs.md": "Hello, Ada",
    "README.md": "completed Likely cause",
    "docs/batches.md": "19 completed a cracked bell (urgent: true)",
    "docs/operations.md": '{"topic": "a cracked bell", "urgent": true}',
}


def functions_of(block: Block) -> list[str]:
    """The functions that the page's tests call; none of a program, which the guard shows."""
    if 'if __name__ == "__main__":' in block.text:
        return []
    return [each.name for each in ast.parse(block.text).body if isinstance(each, ast.FunctionDef)]


PROGRAMS = [block for block in PYTHON if not functions_of(block)]


def the_block(*functions: str) -> Block:
    [found] = [block for block in PYTHON if functions_of(block) == list(functions)]
    return found


def test_every_block_is_run_by_this_module_or_by_the_test_that_it_names() -> None:
    kinds = {" ".join(functions_of(block)) for block in PYTHON} - {""}
    assert kinds == {
        "allowed mended noted", "welcome farewell", "short signed bounded empty",
        "grade plan", "pay", "copy", "lines", "forecast", "run_sleep",
        "run_command test_a_letter_is_sorted_on_a_deployment",
        "test_a_letter_is_sorted_by_what_the_model_found test_a_person_reads_what_no_model_can",
        "write test_an_article_is_written_until_it_is_accepted",
    }  # fmt: skip


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_runs(block: Block, machine: Machine) -> None:
    reader = open_page(block.page, machine)
    (reader.folder / "program.py").write_text(block.text)
    done = reader.type(f"SLEIPNIR_REDIS_URL='{machine.home.redis_url}' python program.py")
    assert done.code == 0, f"{block}\n{done.text}"
    if "print(" in block.text:
        assert PRINTED.get(block.page, "") in done.text


def test_functions_that_return_commands_continue_by_them(machine: Machine, tmp_path: Path) -> None:
    graph = """\
name: rules
version: sleipnir/1
start: plan
state: {seen: {type: list, reducer: append}}
nodes:
  plan: {type: function, call: "steps.py:plan", ends: [check]}
  check: {type: script, script: check.py}
  again: {type: function, call: "steps.py:grade", wait_for: [check], ends: [publish]}
  publish: {type: end, output: "{{grade}}: {{seen}}"}
"""
    check = "import json, os\nprint(json.dumps({'seen': json.loads(os.environ['GRAPH_STATE'])['rule']}))\n"
    agent = write_agent(tmp_path / "rules", graph, steps_py=the_block("grade", "plan").text, check_py=check)
    with Client(Settings(redis_url=machine.home.redis_url, home=machine.home.root)) as client:
        run = client.submit(agent, state={"rules": ["a", "b"]})
        info = run.wait(60)
    assert (info.error, run.output) == (None, 'good: ["a","b"]')


def test_callbacks_skip_and_mend_a_node(tmp_path: Path) -> None:
    graph = """\
name: hooked
version: sleipnir/1
start: send
callbacks: {error: "hooks.py:noted"}
nodes:
  send: {type: script, script: send.sh, callbacks: {before: "hooks.py:allowed", after: "hooks.py:mended"}, next: done}
  done: {type: end, output: "{{sent}}"}
"""
    hooks = the_block("allowed", "mended", "noted").text
    agent = write_agent(tmp_path / "hooked", graph, hooks_py=hooks, send_sh="exit 1\n")
    outputs = [run_agent(agent, state={"draft_only": only}).output for only in (True, False)]
    assert outputs == ["false", "null"]


def test_callbacks_answer_in_the_place_of_a_run_and_recover_one(tmp_path: Path) -> None:
    graph = """\
name: greeting
version: sleipnir/1
start: answer
callbacks: {agent: {before: "hooks.py:welcome", after: "hooks.py:farewell"}}
nodes:
  answer: {type: script, script: answer.sh, next: done}
  done: {type: end, output: "{{asked_by}}"}
"""
    hooks, outputs = the_block("welcome", "farewell").text, []
    for question, code in ((" ", 0), ("why", 0), ("why", 1)):
        script = f"echo '{{}}'\nexit {code}\n"
        agent = write_agent(tmp_path / f"greeting{len(outputs)}", graph, hooks_py=hooks, answer_sh=script)
        outputs.append(run_agent(agent, state={"question": question}).output)
    assert outputs == ["Please ask something.", "guest", "Something went wrong. Please try again."]


def test_callbacks_run_around_calls_of_models_and_tools(tmp_path: Path) -> None:
    graph = """\
name: searching
version: sleipnir/1
start: ask
model: openai:gpt-test
state: {messages: messages, question: string, user: string}
callbacks:
  model: {before: "hooks.py:short", after: "hooks.py:signed"}
  tool: {before: "hooks.py:bounded", after: "hooks.py:empty"}
nodes:
  ask: {type: llm, tools_node: work, next: done}
  work: {type: tools, tools: [{name: search, call: "hooks.py:search"}], next: ask}
  done: {type: end, output: "{{last_response}}"}
"""
    search = """

def search(limit: int):
    from sleipnir import get_call_context
    if get_call_context() != {"user": "ann"} or limit > 10:
        raise ValueError("not bounded")
    raise TimeoutError("no answer")
"""
    hooks = the_block("short", "signed", "bounded", "empty").text + search
    agent = write_agent(tmp_path / "searching", graph, hooks_py=hooks)
    server = ModelServer([Reply(calls=[Call("search", {"limit": 99})]), "Nothing"])
    state = {"user": "ann"}
    with server as model:
        outputs = [
            run_agent(agent, "go", state={**state, "question": question}, model=model).output
            for question in ("ping", "bells")
        ]
        prompts = [request.prompt for request in model.requests]
        results = [message["content"] for message in model.requests[1].messages if message["role"] == "tool"]
    assert outputs == ["pong", "Nothing (written by a model)"]
    assert prompts == ["Answer in one sentence."] * 2
    assert [json.loads(text) for text in results] == [{"hits": []}]


def test_a_function_that_asks_gets_the_answer(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(the_block("pay").text)
    node = model.FunctionNode(id="pay", call="steps.py:pay")
    asked = run_function(node, visit(node, tmp_path, state={"amount": 7})).interrupt
    assert asked is not None
    assert (asked.name, asked.value, asked.schema) == ("sure", {"pay": 7}, {"type": "boolean"})
    talk = StoredConversation(answers_text([UsedAnswer("sure", 0, True)]))
    assert run_function(node, visit(node, tmp_path, state={"amount": 7}, talk=talk)).delta == {"paid": True}


def test_the_function_of_a_tools_file_is_a_tool_that_can_be_called(machine: Machine) -> None:
    reader = open_page("docs/tools.md", machine)
    agent = write_agent(reader.folder / "agents" / "weather", "", tools_py=the_block("forecast").text)
    (agent / "graph.yaml").unlink()
    (agent / "config.yaml").write_text("name: weather\n")
    called = reader.type("""sleipnir tools call weather forecast '{"city": "Oslo", "unit": "C"}'""")
    assert (called.code, json.loads(called.text)) == (0, {"city": "Oslo", "text": "rain"})


def test_the_executor_of_a_new_kind_of_node_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class SleepNode(model.JoinNode):
        seconds: float = 0.0

    monkeypatch.setattr(model, "SleepNode", SleepNode, raising=False)
    monkeypatch.setattr(registry, "EXECUTORS", {})
    names: dict[str, object] = {}
    exec(compile(the_block("run_sleep").text, "sleep.py", "exec"), names)
    result = registry.EXECUTORS["sleep"](SleepNode(id="nap"), visit(SleepNode(id="nap"), tmp_path))
    assert (result.ok, result.delta) == (True, {"slept": 0.0})


def test_a_function_tells_what_it_has_done(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(the_block("copy").text)
    told: list[str] = []

    class Told:
        has_room = True
        write = staticmethod(told.append)

        def skip(self, count: int) -> None:
            raise AssertionError(count)

    node = model.FunctionNode(id="copy", call="work.py:copy")
    result = run_function(node, visit(node, tmp_path, state={"files": ["a", "b"]}, emissions=Told()))
    assert result.delta == {"copied": 2}, result.error
    assert [json.loads(text).get("progress") for text in told] == [0, None, 50, None, None]
    assert json.loads(told[-1]) == {"category": "text", "text": "All files are copied.\n"}


def test_a_function_reads_what_another_node_writes(tmp_path: Path) -> None:
    (tmp_path / "lines.py").write_text(the_block("lines").text)
    items = iter(["half of it\nan", RESET, "one\nt", "wo\n", None])

    class Streams:
        def open(self, name: str, timeout: float | None) -> Any:
            assert (name, timeout) == ("poem", None)
            return lambda: next(items)

    node = model.FunctionNode(id="lines", call="lines.py:lines", stream_input="poem")
    result = run_function(node, visit(node, tmp_path, streams=Streams()))
    assert result.delta == {"lines": 2}, result.error
