"""Node streams in one process: the text of a model reaches another node while it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import pytest

from sleipnir import RESET, START, StateGraph, open_stream
from sleipnir.settings import Settings
from sleipnir.testing import Call, Reply, Request, RunResult, run
from tests.processes import write_agent

GRAPH = """
name: lines
version: sleipnir/1
start: setup
model: openai:gpt-test
nodes:
  setup: {{type: router, next: [ask, read]}}
  ask: {{type: llm, prompt: go, stream_output: draft, {ask} state_updates: {{answer: "{{{{output}}}}"}}}}
  read: {{{read}, stream_input: draft}}
  join: {{type: end, wait_for: [ask, read], output: "{{{{items}}}}"}}
"""
FUNCTION = 'type: function, call: "read.py:read"'
READ = """
import time
from sleipnir import RESET, open_stream


def read(state):
    items, times = [], []
    for item in open_stream("draft"):
        items.append("RESET" if item is RESET else item)
        times.append(time.time())
    return {"items": items, "span": times[-1] - times[0] if times else 0}
"""
TEXT = "one\ntwo ö 😀\nthree\nfour\n"


def lines(folder: Path, model: Any, *, ask: str = "", read: str = FUNCTION, **files: str) -> RunResult:
    agent = write_agent(folder / "lines", GRAPH.format(ask=ask, read=read), **({"read_py": READ} | files))
    return run(agent, model=model)


def text_of(items: list[str]) -> str:
    """The text of items after the last reset."""
    last = max((place for place, item in enumerate(items) if item == "RESET"), default=-1)
    return "".join(items[last + 1 :])


@pytest.mark.conformance("SH-01", "EX-41")
def test_the_deltas_of_a_model_reach_another_node_in_order_while_they_come(tmp_path: Path) -> None:
    """SH-01, EX-41. Deltas that come together may be one piece; pauses between them keep them apart here."""
    done = lines(tmp_path, [Reply(TEXT, piece_characters=4, pause_s=0.05)])
    assert (done.status, done.error) == ("completed", None)
    items = done.state["items"]
    assert "".join(items) == TEXT == done.state["answer"]
    assert len(items) > 3
    assert done.state["span"] > 0.1, "the first piece came while the model was still writing"
    assert done.nodes.count("join") == 1


@pytest.mark.conformance("SH-01")
@pytest.mark.parametrize("ask", ["generation: {stream: false},", "generation: {stream: false}, max_attempts: 2,"])
def test_without_deltas_the_final_text_is_the_stream(tmp_path: Path, ask: str) -> None:
    done = lines(tmp_path, [Reply(TEXT)], ask=ask)
    assert done.state["items"] == [TEXT]


@pytest.mark.conformance("SH-04")
def test_a_call_that_is_repeated_resets_the_stream(tmp_path: Path) -> None:
    broken = Reply("half of an answer", close="within", piece_characters=2, pause_s=0.02)
    done = lines(tmp_path, [broken, Reply(TEXT)], ask="max_attempts: 2,")
    items = done.state["items"]
    assert items.count("RESET") == 1
    assert items[0] != "RESET"
    assert text_of(items) == TEXT


@pytest.mark.conformance("SH-04")
def test_a_visit_that_is_retried_resets_the_stream(tmp_path: Path) -> None:
    broken = Reply("half of an answer", close="within", piece_characters=2, pause_s=0.02)
    retry = "retry: {max_attempts: 2, initial_interval: 1ms},"
    done = lines(tmp_path, [broken, Reply(TEXT)], ask=retry)
    assert done.status == "completed", done.error
    assert text_of(done.state["items"]) == TEXT
    assert done.state["items"].count("RESET") == 1


@pytest.mark.conformance("SH-02")
def test_the_error_of_the_writer_reaches_the_reader(tmp_path: Path) -> None:
    catching = READ.replace("    for item", "    try:\n      for item").replace(
        "    return {",
        '    except Exception as error:\n        return {"items": f"{type(error).__name__}: {error}"}\n    return {',
    )
    catching = catching.replace("        items.append", "          items.append").replace(
        "        times", "          times"
    )
    done = lines(tmp_path, [Reply(status=400, error="no such thing")], ask="on_error: continue,", read_py=catching)
    assert done.status == "completed", done.error
    assert done.state["items"].startswith("StreamError: node 'ask', which writes the stream 'draft', has failed: ")
    assert "no such thing" in done.state["items"]


@pytest.mark.conformance("SH-02")
def test_a_reader_that_does_not_handle_the_error_of_the_writer_fails(tmp_path: Path) -> None:
    done = lines(tmp_path, [Reply(status=400, error="no such thing")], ask="on_error: continue,")
    assert done.status == "failed"
    assert "raised StreamError: node 'ask'" in (done.error or "")


SCRIPT = """
import json, sys
lines = [json.loads(line) for line in sys.stdin]
print(json.dumps({"items": lines}))
"""


@pytest.mark.conformance("SH-01")
def test_a_script_reads_the_stream_as_lines_on_its_stdin(tmp_path: Path) -> None:
    done = lines(tmp_path, [Reply(TEXT, piece_characters=4)], read="type: script, script: read.py", read_py=SCRIPT)
    items = done.state["items"]
    assert "".join(item["text"] for item in items[:-1]) == TEXT
    assert items[-1] == {"end": True}


def test_a_script_is_told_of_resets_and_errors(tmp_path: Path) -> None:
    broken = Reply("half of an answer", close="within", piece_characters=2, pause_s=0.02)
    replies = [broken, Reply(status=400, error="no such thing")]
    done = lines(
        tmp_path, replies, ask="max_attempts: 2, on_error: continue,", read="type: script, script: read.py",
        read_py=SCRIPT,
    )  # fmt: skip
    items = done.state["items"]
    assert "no such thing" in items[-1]["error"]


def test_a_script_that_reads_nothing_ends_and_so_does_the_run(tmp_path: Path) -> None:
    silent = "print('{\"items\": []}')"
    done = lines(
        tmp_path, [Reply("x" * 300_000, piece_characters=10_000)], read="type: script, script: read.py", read_py=silent
    )
    assert (done.status, done.state["items"]) == ("completed", [])


def test_a_writer_that_does_not_begin_is_reported(tmp_path: Path) -> None:
    code = READ.replace('open_stream("draft")', 'open_stream("draft", timeout=0.2)')
    graph = GRAPH.format(ask="", read=FUNCTION).replace("start:", "limits: {max_concurrency: 1}\nstart:")
    graph = graph.replace("ask: {", "zask: {").replace("[ask,", "[zask,")
    done = run(write_agent(tmp_path / "lines", graph, read_py=code), model=[Reply(TEXT)])
    assert done.status == "failed"
    assert "within 0.2s: it waits for a slot of the run (max_concurrency)" in (done.error or "")


def test_a_node_reads_only_its_own_stream(tmp_path: Path) -> None:
    done = lines(tmp_path, [Reply(TEXT)], read_py=READ.replace('"draft"', '"other"'))
    assert "node 'read' reads the stream 'draft' (`stream_input`), not 'other'" in (done.error or "")
    with pytest.raises(RuntimeError, match="outside of a node"):
        open_stream("draft")


def test_rounds_of_a_loop_have_texts_of_their_own(tmp_path: Path) -> None:
    graph = """
name: rounds
version: sleipnir/1
start: setup
model: openai:gpt-test
nodes:
  setup: {type: router, next: [ask, read]}
  ask: {type: llm, prompt: go, stream_output: draft}
  read: {type: function, call: "read.py:read", stream_input: draft}
  again: {type: router, wait_for: [ask, read], branch: {cases: [{when: "size(state.texts) < 3", to: setup}, {else: e}]}}
  e: {type: end, output: "{{texts}}"}
"""
    code = "from sleipnir import open_stream\ndef read(state):\n" + (
        '    return {"texts": [*state.get("texts", []), open_stream("draft").text()]}\n'
    )
    done = run(write_agent(tmp_path / "rounds", graph, read_py=code), model=[Reply(f"text {n}") for n in range(3)])
    assert done.status == "completed", done.error
    assert done.state["texts"] == ["text 0", "text 1", "text 2"]


CONFIG = "name: writer\nmodel: openai:gpt-test\ninstructions: write\n"
TOOLS = '''
def look(what: str):
    """Looks something up.
    Args:
        what: what
    """
    return "found"
'''


@pytest.mark.conformance("SH-03")
def test_the_turns_of_an_agent_are_one_stream(tmp_path: Path) -> None:
    """SH-03: of an agent of a config.yaml, the texts of all turns come as they do; their lines are its output."""
    write_agent(tmp_path / "writer", None, config_yaml=CONFIG, tools_py=TOOLS)
    graph = GRAPH.format(ask="", read=FUNCTION).replace("type: llm, prompt", "type: agent, agent: writer, prompt")
    agent = write_agent(tmp_path / "lines", graph, read_py=READ)
    settings = Settings(home=tmp_path / "home", agents_dir=tmp_path)
    replies = [
        Reply("I look it up.", calls=[Call("look", {"what": "x"})], piece_characters=4, pause_s=0.02),
        Reply(TEXT, piece_characters=4, pause_s=0.02),
    ]
    done = run(agent, model=replies, settings=settings)
    assert done.status == "completed", done.error
    items = done.state["items"]
    assert "".join(items) == f"I look it up.\n{TEXT}" == done.state["answer"]
    assert len(items) > 3


@pytest.mark.conformance("SH-03")
@pytest.mark.parametrize("output", ["{{answer}}", "It says: {{answer}}"])
def test_the_output_of_a_graph_agent_is_what_its_reader_gets(tmp_path: Path, output: str) -> None:
    """SH-03: the text of the model that ends the graph comes first; what the graph makes of it counts."""
    below = f"""
name: below
version: sleipnir/1
start: say
model: openai:gpt-test
nodes:
  say: {{type: llm, prompt: go, state_updates: {{answer: "{{{{output}}}}"}}, next: e}}
  e: {{type: end, output: "{output}"}}
"""
    write_agent(tmp_path / "below", below)
    graph = GRAPH.format(ask="", read=FUNCTION).replace("type: llm, prompt", "type: agent, agent: below, prompt")
    agent = write_agent(tmp_path / "lines", graph, read_py=READ)
    settings = Settings(home=tmp_path / "home", agents_dir=tmp_path)
    done = run(agent, model=[Reply(TEXT, pause_s=0.02)], settings=settings)
    assert done.status == "completed", done.error
    assert text_of(done.state["items"]) == output.replace("{{answer}}", TEXT)


class Draft(TypedDict, total=False):
    text: str


async def read_later(state: Draft) -> Draft:
    text = ""
    async for item in open_stream("draft"):
        text = "" if item is RESET else text + str(item)
    return {"text": text}


@pytest.mark.conformance("SH-01")
def test_a_node_of_a_graph_in_python_reads_a_stream(tmp_path: Path) -> None:
    builder = StateGraph(Draft)
    builder.add_llm_node("ask", prompt="go", model="openai:gpt-test", stream_output="draft")
    builder.add_node("read", read_later, stream_input="draft")
    builder.add_edge(START, "ask").add_edge(START, "read")
    done = run(builder.compile(), {}, model=lambda _: Reply(TEXT, piece_characters=4, pause_s=0.01))
    assert done.status == "completed", done.error
    assert done.state["text"] == TEXT


def only(request: Request) -> Reply:
    return Reply(TEXT)


def test_a_reader_after_its_writer_gets_the_whole_text(tmp_path: Path) -> None:
    graph = """
name: later
version: sleipnir/1
start: ask
model: openai:gpt-test
nodes:
  ask: {type: llm, prompt: go, stream_output: draft, next: read}
  read: {type: function, call: "read.py:read", stream_input: draft}
"""
    done = run(write_agent(tmp_path / "later", graph, read_py=READ), model=only)
    assert "".join(done.state["items"]) == TEXT
