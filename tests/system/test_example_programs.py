"""The example programs of spec/graph-package.md 5.1 as small graphs, on both engines, with a scripted model. Those of
fan-outs, joins, interrupts, checkpoints and time travel are in the test files of these subjects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

from sleipnir import START, CachePolicy, InMemoryCache, StateGraph
from sleipnir.cli import main
from sleipnir.client.client import Client
from sleipnir.runs.views import TreeEvent
from sleipnir.testing import Call, Reply, Request
from tests.both_engines import ENGINES, Engine, Fleet, engine_of
from tests.branching import GRAPHS
from tests.integration.workers.mcp.servers import write_mcp_json
from tests.processes import RedisServer, write_agent
from tests.waiting import wait_until

HEAD = "version: sleipnir/1\nmodel: openai:gpt-test\n"
TOOLS = """
def count(text: str):
    '''Count words.

    Args:
        text: the text
    '''
    return len(text.split())

def add(a: int, b: int):
    '''Adds.

    Args:
        a: one number
        b: the other
    '''
    return a + b
"""

BASIC = """
name: basic
start: preprocess
state: {messages: messages, document: string, level: string, formatted: {type: list, reducer: append}}
nodes:
  preprocess: {type: function, call: "f.py:preprocess", next: analyze}
  analyze: {type: llm, instructions: "Name the level of the document.", tools_node: tools, next: route_complexity}
  tools: {type: tools, tools: [count], next: analyze}
  route_complexity: {type: router, state_updates: {level: "{{last_response}}"},
                     branch: {by: "{{last_response}}", to: {simple: enhance, moderate: enhance, complex: summarize},
                              default: enhance}}
  enhance: {type: llm, prompt: "Enhance: {{document}}", next: format_output}
  summarize: {type: llm, prompt: "Summarize: {{document}}", next: format_output}
  format_output: {type: function, call: "f.py:format_output", next: done}
  done: {type: end, output: "{{formatted}}"}
"""
BASIC_PY = """
def preprocess(state):
    return {"document": state["initial_prompt"].strip(), "user_input": state["initial_prompt"].strip()}

def format_output(state):
    return {"formatted": [f"[{state['level']}] {state['last_response']}"]}
"""

REACT = """
name: react
start: planner
state: {messages: messages, plan: string}
nodes:
  planner: {type: llm, prompt: "Plan: {{user_input}}", state_updates: {plan: "{{output}}"}, next: reasoning}
  reasoning: {type: llm, instructions: "Follow the plan: {{plan}}", tools_node: tool, next: final}
  tool: {type: tools, tools: [add], next: reasoning}
  final: {type: llm, input: history, instructions: Answer finally., next: format}
  format: {type: end, output: "ANSWER {{last_response}}"}
"""

IO = """
name: conventions
start: parse
state: {messages: messages, when: string, captured: string, collected: object}
nodes:
  parse: {type: function, call: "f.py:parse", next: llm_summary}
  llm_summary: {type: llm, prompt: "Summarize: {{initial_prompt}}", next: capture}
  capture: {type: function, call: "f.py:capture", next: assistant}
  assistant: {type: agent, agent: assistant, next: collect}
  collect: {type: function, call: "f.py:collect"}
"""
IO_PY = """
def parse(state):
    return {"when": state["initial_prompt"].partition(" ")[2]}

def capture(state):
    return {"captured": state["node_responses"]["llm_summary"]}

def collect(state):
    return {"collected": {"nodes": sorted(state["node_responses"]), "last": state["last_response"]}}
"""
ASSISTANT = """
name: assistant
start: reply
nodes:
  reply: {type: llm, prompt: "As an assistant: {{initial_prompt}}", state_updates: {said: "{{output}}"}, next: done}
  done: {type: end, output: "{{said}}"}
"""
IO_TOOLS = """
name: conventions-tools
start: parse
state: {messages: messages, fetched: string, collected: object}
nodes:
  parse: {type: function, call: "f.py:parse", next: llm_decider}
  llm_decider: {type: llm, tools_node: tools, next: assistant}
  tools: {type: tools, tools: [count], next: capture_tool}
  capture_tool: {type: function, call: "f.py:capture_tool", next: collect}
  assistant: {type: agent, agent: assistant, input: {from: last_response}, next: collect}
  collect: {type: function, call: "f.py:collect"}
"""
IO_TOOLS_PY = """
import json

def parse(state):
    return {}

def capture_tool(state):
    [call] = json.loads(state["node_responses"]["tools"])
    assert call["tool_name"] == "count" and str(call["output"]) == state["last_tool_response"]
    return {"fetched": state["last_tool_response"]}

def collect(state):
    return {"collected": {"nodes": sorted(state["node_responses"]), "fetched": state.get("fetched") or ""}}
"""

ONE_SHOT = """
name: one-shot
start: set_oneshot
state: {messages: messages}
nodes:
  set_oneshot:
    type: router
    state_updates: {one_shot_messages: [{role: system, content: "Only this."}, {role: user, content: "user X"}]}
    next: ask
  ask: {type: llm}
"""
BY_NODE = """
name: one-shot-by-node
start: split
state: {messages: messages}
nodes:
  split: {type: router, next: [prep_a, prep_b]}
  prep_a: {type: function, call: "f.py:prep_a", next: ask_a}
  prep_b: {type: function, call: "f.py:prep_b", next: ask_b}
  ask_a: {type: llm}
  ask_b: {type: llm}
"""
BY_NODE_PY = """
from sleipnir.commands import one_shot

def prep_a(state):
    return one_shot([{"role": "user", "content": "for a"}], node="ask_a")

def prep_b(state):
    return one_shot([{"role": "user", "content": "for b"}], node="ask_b")

def prep_both(state):
    return {"one_shot_messages_by_node": {f"ask_{name}": [{"role": "user", "content": f"for {name}"}] for name in "ab"}}
"""
PREPROCESS = """
name: one-shot-preprocess
start: prep
state: {messages: messages}
nodes:
  prep: {type: function, call: "f.py:prep_both", next: [ask_a, ask_b]}
  ask_a: {type: llm}
  ask_b: {type: llm}
"""
ONCE = """
name: once
start: ask
state: {messages: messages, seen: {type: list, reducer: append}}
nodes:
  ask: {type: llm, next: verify}
  verify: {type: function, call: "f.py:verify"}
"""
ONCE_PY = """
def verify(state):
    return {"seen": [state["user_input"], [message["role"] for message in state["messages"]]]}
"""

ISOLATED = """
name: isolating
start: before
state: {messages: messages}
nodes:
  before: {type: llm, next: worker}
  worker: {type: agent, agent: looping, isolated: true, prompt: "Count: a b c", next: done}
  done: {type: end, output: "{{last_response}}"}
"""
LOOPING = """
name: looping
start: think
state: {messages: messages}
nodes:
  think: {type: llm, tools_node: tool, next: done}
  tool: {type: tools, tools: [count], next: think}
  done: {type: end, output: "{{last_response}}"}
"""

PARSED = """
name: parsed
start: parse
state: {messages: messages, text: string, n: int, said: string, collected: object}
nodes:
  parse: {type: function, call: "f.py:parse", next: worker}
  worker: {type: agent, agent: looping, prompt: "Count: {{text}}", event_scope: counting,
           map_in: {n: "{{n}}"}, map_out: {n: "{{child.state.n}}", said: "{{child.output}}"}, next: collect}
  collect: {type: function, call: "f.py:collect", next: done}
  done: {type: end, output: "{{said}}"}
"""
PARSED_PY = """
def parse(state):
    return {"text": state["initial_prompt"].strip(), "n": 7}

def collect(state):
    return {"collected": {"said": state["said"], "n": state["n"]}}
"""

EXTERNAL = """
name: external
start: ask
state: {messages: messages}
nodes:
  ask: {type: llm, tools_node: work, next: done}
  work: {type: tools, tools: [{name: browse, external: true, schema: {properties: {url: {type: string}}}}], next: ask}
  done: {type: end, output: "{{last_response}}"}
"""
EXTERNAL_AGENT = """
name: external-agent
start: agent
state: {messages: messages}
nodes:
  agent: {type: agent, agent: external, prompt: "{{initial_prompt}}", next: gate}
  gate: {type: router, branch: [{when: "state.last_response == 'again'", to: agent}, {else: done}]}
  done: {type: end, output: "{{last_response}}"}
"""
TOOL_RETRY = """
name: tool-retry
start: ask
state: {messages: messages}
nodes:
  ask: {type: llm, tools_node: work, next: done}
  work: {type: tools, tools: [{name: fetch, call: "f.py:fetch", schema: {properties: {}}}], RETRY next: ask}
  done: {type: end, output: "{{last_response}}"}
"""
TOOL_RETRY_PY = """
from pathlib import Path

FILE = Path("CALLS")

def fetch():
    with FILE.open("a") as file:
        file.write("x")
    if len(FILE.read_text()) == 1:
        raise ConnectionError("temporarily away")
    return {"fetched": True}
"""

RETRY = """
name: retry
start: unstable
state: {messages: messages}
nodes:
  unstable: {type: function, call: "f.py:unstable", next: ask,
             retry: {max_attempts: 3, initial_interval: 200ms, backoff: 2, max_interval: 1s, jitter: true}}
  ask: {type: llm, prompt: "It took {{tries}} tries.", next: done}
  done: {type: end, output: "{{last_response}}"}
"""
RETRY_PY = """
from pathlib import Path

FILE = Path("CALLS")

def unstable(state):
    with FILE.open("a") as file:
        file.write("x")
    tries = len(FILE.read_text())
    if tries < 3:
        raise ConnectionError("away")
    return {"tries": tries}
"""

ERRORS = """
name: errors
start: lookup
errors: {collect: true}
nodes:
  lookup: {type: function, call: "f.py:lookup", next: BEHIND}
  write: {type: function, call: "f.py:write", next: finalize}
  finalize: {type: function, call: "f.py:finalize", next: done}
  done: {type: end, output: "{{note}}"}
"""
ERRORS_PY = """
from sleipnir import RecoverableError

class Denied(Exception):
    code = "DENIED"

def lookup(state):
    raise RecoverableError("no such entry", code="NO_ENTRY", value={"found": "fallback"})

def write(state):
    raise Denied("read only")

def finalize(state):
    return {"note": f"with {state.get('found')}"}

def parent_finalize(state):
    [record] = state["errors_below"]
    return {"note": f"the child failed with {state['fatal']} after {record['code']}"}
"""
ERRORS_ABOVE = """
name: errors-above
start: child
state: {errors_below: {type: list, reducer: append}}
nodes:
  child: {type: agent, agent: errors, prompt: go, on_error: continue, next: parent_finalize,
          map_out: {errors_below: "{{child.state.execution_errors}}", fatal: "{{child.error_code}}"}}
  parent_finalize: {type: function, call: "f.py:parent_finalize", next: done}
  done: {type: end, output: "{{note}}"}
"""

EXPORT = """
name: assistant-graph
start: begin
state: {messages: messages}
nodes:
  begin: {type: router, next: [llm, prepare]}
  llm: {type: llm, instructions: Help., tools_node: tools}
  tools: {type: tools, tools: [count], next: llm}
  prepare: {type: function, call: "f.py:prepare"}
  meet: {type: function, call: "f.py:meet", wait_for: [llm, prepare], ends: {finish: done, retry: begin}}
  done: {type: end, output: "{{last_response}}"}
"""
EXPORT_PY = """
def prepare(state):
    return {}

def meet(state):
    return {"_next": "finish"}
"""

MCP = """
name: mcp
start: ask
mcp_servers: [plain]
state: {messages: messages}
nodes:
  ask: {type: llm, tools_node: work, next: done}
  work: {type: tools, tools: ["mcp:plain"], next: ask}
  done: {type: end, output: "{{last_response}}"}
"""
CACHED = """
name: cached
start: compute
nodes:
  compute: {type: function, call: "f.py:compute", cache: {ttl: 3s, key: [n]}, next: done}
  done: {type: end, output: "{{out}}"}
"""
CACHED_PY = """
from pathlib import Path

def compute(state):
    with Path("CALLS").open("a") as file:
        file.write("x")
    return {"out": state["n"] * 2}
"""

EXAMPLES: dict[str, tuple[str, str]] = {
    "basic": (BASIC, BASIC_PY),
    "react": (REACT, ""),
    "conventions": (IO, IO_PY),
    "conventions-tools": (IO_TOOLS, IO_TOOLS_PY),
    "assistant": (ASSISTANT, ""),
    "one-shot": (ONE_SHOT, ""),
    "one-shot-by-node": (BY_NODE, BY_NODE_PY),
    "one-shot-preprocess": (PREPROCESS, BY_NODE_PY),
    "once": (ONCE, ONCE_PY),
    "isolating": (ISOLATED, ""),
    "parsed": (PARSED, PARSED_PY),
    "looping": (LOOPING, ""),
    "external": (EXTERNAL, ""),
    "external-agent": (EXTERNAL_AGENT, ""),
    "tool-retry": (TOOL_RETRY.replace("RETRY ", ""), TOOL_RETRY_PY),
    "retry": (RETRY, RETRY_PY),
    "mcp": (MCP, ""),
    "cached": (CACHED, CACHED_PY),
    "errors": (ERRORS.replace("BEHIND", "finalize"), ERRORS_PY),
    "errors-above": (ERRORS_ABOVE, ERRORS_PY),
    "assistant-graph": (EXPORT, EXPORT_PY),
}


@pytest.fixture(scope="module")
def fleet(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    home = tmp_path_factory.mktemp("fleet")
    write_mcp_json(home / "config")
    with Fleet(redis_server, home, env={"LOKI_CONFIG_DIR": str(home / "config")}) as fleet:
        yield fleet


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    yield from engine_of(request)


def example(folder: Path, name: str, *others: str, **changed: str) -> Path:
    """The folder of an example, beside those of other ones. `changed`: another text in the place of a word."""
    for each in (*others, name):
        text, code = EXAMPLES[each]
        for old, new in {"CALLS": str(folder / "calls"), **changed}.items():
            text, code = text.replace(old, new), code.replace(old, new)
        write_agent(folder / each, HEAD + text, f_py=code, tools_py=TOOLS)
    return folder / name


def sent(request: Request) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in request.messages]


def asks_for(name: str, **arguments: Any) -> Reply:
    return Reply(calls=[Call(name, arguments)])


@pytest.mark.conformance("EX-01")
@pytest.mark.parametrize(
    ("level", "chosen"), [("simple", "Enhance"), ("moderate", "Enhance"), ("complex", "Summarize"), ("odd", "Enhance")]
)
def test_basic(engine: Engine, tmp_path: Path, level: str, chosen: str) -> None:
    engine.replies([asks_for("count", text="a b"), asks_for("count", text="c"), level, "the text"])
    outcome = engine.run(example(tmp_path, "basic"), " a document ")
    assert (outcome.status, outcome.error) == ("completed", None)
    assert outcome.output == f'["[{level}] the text"]', "formatted once"
    assert [request.turn for request in engine.requests] == [1, 2, 3, 1], "while the model asks for tools"
    assert engine.requests[3].prompt == f"{chosen}: a document"
    tools = [message["content"] for message in outcome.state["messages"] if message["role"] == "tool"]
    assert tools == ["2", "1"]


@pytest.mark.conformance("EX-09")
def test_react(engine: Engine, tmp_path: Path) -> None:
    engine.replies(["add twice", asks_for("add", a=2, b=3), asks_for("add", a=5, b=4), "it is 9", "9"])
    outcome = engine.run(example(tmp_path, "react"), "2 + 3 + 4?")
    assert (outcome.status, outcome.output) == ("completed", "ANSWER 9"), outcome.error
    visits = Counter(step.node for step in outcome.trace.steps)
    assert (visits["reasoning"], visits["tool"], visits["final"]) == (3, 2, 1)
    assert [text for role, text in sent(engine.requests[-1]) if role == "tool"] == ["5", "9"]
    assert engine.requests[1].system == "Follow the plan: add twice"


@pytest.mark.conformance("EX-13", "AG-08")
def test_io_conventions(engine: Engine, tmp_path: Path) -> None:
    engine.replies(lambda request: f"<{request.prompt}>")
    outcome = engine.run(example(tmp_path, "conventions", "assistant"), "meet tomorrow 10am")
    assert outcome.status == "completed", outcome.error
    summary, said = "<Summarize: meet tomorrow 10am>", "<As an assistant: meet tomorrow 10am>"
    assert outcome.state["node_responses"] == {"llm_summary": summary, "assistant": said}
    assert (outcome.state["when"], outcome.state["captured"]) == ("tomorrow 10am", summary)
    assert outcome.state["collected"] == {"nodes": ["assistant", "llm_summary"], "last": said}
    assert (outcome.state["last_response"], outcome.state["user_input"]) == (said, "")
    assert outcome.state["messages"] == []


@pytest.mark.conformance("EX-14")
@pytest.mark.parametrize("calls", [True, False], ids=["a call", "no call"])
def test_io_conventions_with_tools(engine: Engine, tmp_path: Path, calls: bool) -> None:
    engine.replies([asks_for("count", text="a b c")] if calls else ["no tool needed", "I see"])
    outcome = engine.run(example(tmp_path, "conventions-tools", "assistant"), "count")
    assert outcome.status == "completed", outcome.error
    if calls:
        assert outcome.state["collected"] == {"nodes": ["llm_decider", "tools"], "fetched": "3"}
    else:
        assert outcome.state["collected"] == {"nodes": ["assistant", "llm_decider"], "fetched": ""}
        assert engine.requests[-1].prompt == "As an assistant: no tool needed"


@pytest.mark.conformance("EX-15")
def test_one_shot_messages_replace_what_the_user_typed(engine: Engine, tmp_path: Path) -> None:
    engine.replies(["yes"])
    outcome = engine.run(
        example(tmp_path, "one-shot"), "user Y", state={"messages": [{"role": "user", "content": "old"}]}
    )
    assert outcome.status == "completed", outcome.error
    assert sent(engine.requests[0]) == [("system", "Only this."), ("user", "user X")]
    assert (outcome.state["one_shot_messages"], outcome.state["user_input"]) == ([], "user Y")


@pytest.mark.conformance("EX-16", "EX-17")
@pytest.mark.parametrize("name", ["one-shot-by-node", "one-shot-preprocess"])
def test_each_model_sees_its_own_one_shot_messages(engine: Engine, tmp_path: Path, name: str) -> None:
    engine.replies(lambda request: f"to {request.prompt}")
    outcome = engine.run(example(tmp_path, name), "unread")
    assert outcome.status == "completed", outcome.error
    assert sorted(map(sent, engine.requests)) == [[("user", "for a")], [("user", "for b")]]
    assert outcome.state["node_responses"] == {"ask_a": "to for a", "ask_b": "to for b"}
    assert outcome.state["one_shot_messages_by_node"] == {}


@pytest.mark.conformance("EX-18")
def test_the_users_input_is_used_once(engine: Engine, tmp_path: Path) -> None:
    engine.replies(["yes"])
    outcome = engine.run(example(tmp_path, "once"), "hello")
    assert (outcome.status, outcome.state["seen"]) == ("completed", ["", ["user", "assistant"]]), outcome.error


@pytest.mark.conformance("EX-19", "AG-22")
def test_events_of_an_agent_are_in_the_stream_of_its_parent(fleet: Fleet, tmp_path: Path) -> None:
    """EX-19: with their authors, which are the nodes of the child, and its scope. AG-22: its end is shown with
    `subgraphs` alone; the output is the same."""
    fleet.replies([asks_for("count", text="a b c"), "three"])
    with Client(fleet.stack.settings.replaced(agents_dir=example(tmp_path, "parsed", "looping").parent)) as client:
        run = client.submit("parsed", " a b c ")
        events = [event for event in client.stream(run, None, subgraphs=True) if isinstance(event, TreeEvent)]
        assert run.status == "completed", run.error
        assert run.state()["collected"] == {"said": "three", "n": 7}
        below = [event for event in events if event.path]
        [child] = {event.run for event in below}
        assert {(event.path, event.event_scope) for event in below} == {(("worker",), "counting")}
        assert {event.run for event in events if not event.path} == {run.id}
        closed = [(*event.path, event.data["node"]) for event in events if event.type == "visit_closed"]
        assert closed == [
            ("parse",), ("worker", "think"), ("worker", "tool"), ("worker", "think"), ("worker", "done"), ("worker",),
            ("collect",), ("done",),
        ]  # fmt: skip
        assert "".join(event.data["text"] for event in below if event.type == "text") == "three"
        assert [event.path for event in events if event.type == "run_ended"] == [("worker",), ()]
        own = list(client.run(child).stream(None))
        assert [(event.type, event.data) for event in below] == [(event.type, event.data) for event in own]

        hidden = list(client.stream(run, None))
        assert [event.type for event in hidden].count("run_ended") == 1
        assert not any(event.data.get("node") == "think" for event in hidden)
        assert [(event.type, event.data) for event in events if not event.path] == [
            (event.type, event.data) for event in hidden
        ]
        assert client.run(child).output == "three"
        told = [json.loads(json.dumps(event.to_json())) for event in client.stream(run, None, subgraphs=True)]

    narrated = fleet.stack.sleipnir("watch", run.id, "--children")
    assert (narrated.returncode, narrated.stdout) == (0, "three\n"), narrated.stderr
    lines = narrated.stderr.splitlines()
    assert (
        lines.index("▸ parse (function)") < lines.index("▸ worker: think (llm)") < lines.index("▸ collect (function)")
    )
    assert "think (llm)" not in fleet.stack.sleipnir("watch", run.id).stderr
    data = fleet.stack.sleipnir("watch", run.id, "--children", "--stream", "--json")
    printed = [json.loads(line) for line in data.stdout.splitlines()]
    assert printed[:-1] == told
    assert printed[-1]["type"] == "result"


@pytest.mark.conformance("EX-21")
def test_an_isolated_agent_sees_its_own_tool_results_and_nothing_of_its_parent(engine: Engine, tmp_path: Path) -> None:
    engine.replies(["said above", asks_for("count", text="a b c"), "three"])
    outcome = engine.run(example(tmp_path, "isolating", "looping"), "a secret of the parent")
    assert (outcome.status, outcome.output) == ("completed", "three"), outcome.error
    _, first, second = engine.requests
    assert sent(first) == [("user", "Count: a b c")]
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool"]
    assert [result.text for result in second.tool_results] == ["3"]
    assert [message["role"] for message in outcome.state["messages"]] == ["user", "assistant"]


@pytest.mark.conformance("EX-24")
def test_an_external_tool_is_a_question_and_its_answer_a_tool_message(engine: Engine, tmp_path: Path) -> None:
    engine.replies([asks_for("browse", url="a.example"), "read it"])
    outcome = engine.run(example(tmp_path, "external"), "look", answers={"work": {"title": "A"}})
    assert (outcome.status, outcome.output, len(outcome.asked)) == ("completed", "read it", 1), outcome.error
    [call] = outcome.state["messages"][1]["tool_calls"]
    result = outcome.state["messages"][2]
    assert (result["role"], result["tool_call_id"], json.loads(result["content"])) == (
        "tool",
        call["id"],
        {"title": "A"},
    )
    assert len(engine.requests) == 2, "the model is called again once"


@pytest.mark.conformance("EX-23")
def test_an_agent_node_with_an_external_tool_asks_once_per_call_and_its_gate_may_lead_back(
    engine: Engine, tmp_path: Path
) -> None:
    """Upstream's gate node asks for the agent and runs it again. Here the child asks itself, and waits."""
    engine.replies([asks_for("browse", url="a"), "again", asks_for("browse", url="b"), "it says B"])
    outcome = engine.run(example(tmp_path, "external-agent", "external"), "look", answers={"work": "page"})
    assert (outcome.status, outcome.output) == ("completed", "it says B"), outcome.error
    assert [gate.payload["arguments"] for gate in outcome.asked] == [{"url": "a"}, {"url": "b"}]
    assert len({gate.run for gate in outcome.asked}) == 2, "each visit of the agent node is a run of its own"
    assert len(engine.requests) == 4


@pytest.mark.conformance("EX-25")
@pytest.mark.parametrize("retries", [False, True], ids=["no policy", "one more try"])
def test_a_tool_that_fails_once(engine: Engine, tmp_path: Path, retries: bool) -> None:
    agent = example(tmp_path, "tool-retry")
    if retries:
        text = (agent / "graph.yaml").read_text()
        policy = "tool_retry: {max_attempts: 2, initial_interval: 1ms, on: [transient]}, next: ask}"
        (agent / "graph.yaml").write_text(text.replace("next: ask}", policy))
    engine.replies([asks_for("fetch"), "fetched"])
    outcome = engine.run(agent, "go")
    assert (tmp_path / "calls").read_text() == ("xx" if retries else "x")
    if not retries:
        assert outcome.status == "failed" and "ConnectionError: temporarily away" in (outcome.error or "")
        return
    assert (outcome.status, outcome.output) == ("completed", "fetched"), outcome.error
    assert [message["role"] for message in outcome.state["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [step.node for step in outcome.trace.steps].count("work") == 1, "the node itself is not run again"


@pytest.mark.conformance("EX-26")
def test_the_tools_of_an_mcp_server_are_found_and_called(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mcp_json(tmp_path / "config")
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "config"))
    invoke = asks_for("mcp_invoke_plain", tool="echo", arguments={"value": "hello"})
    engine.replies([asks_for("mcp_search_plain", query="echo"), invoke, "it echoes"])
    outcome = engine.run(example(tmp_path, "mcp"), "try the server")
    assert (outcome.status, outcome.output) == ("completed", "it echoes"), outcome.error
    assert engine.requests[0].tools == ["mcp_search_plain", "mcp_describe_plain", "mcp_invoke_plain"]
    found, called = [message["content"] for message in outcome.state["messages"] if message["role"] == "tool"]
    assert json.loads(found)[0]["name"] == "echo"
    assert json.loads(json.loads(called)["content"][0]["text"]) == {"value": "hello"}


@pytest.mark.conformance("EX-27")
def test_an_unstable_node_is_tried_three_times_and_the_model_is_called_once(engine: Engine, tmp_path: Path) -> None:
    engine.replies(["fine"])
    outcome = engine.run(example(tmp_path, "retry"))
    assert (outcome.status, outcome.output) == ("completed", "fine"), outcome.error
    assert [request.prompt for request in engine.requests] == ["It took 3 tries."]
    first, second = [data["delay_ms"] for data in outcome.data("visit_retrying")]
    assert 200 <= first < 400 <= second < 800


@pytest.mark.conformance("EX-28")
def test_a_slow_node_is_computed_once_until_its_result_expires(fleet: Fleet, tmp_path: Path) -> None:
    agent = example(tmp_path, "cached")
    first, second = (fleet.run(agent, state={"n": 21}) for _ in range(2))
    assert (first.output, second.output) == ("42", "42"), first.error
    assert [step.cached for step in second.trace.steps if step.node == "compute"] == [True]
    assert (tmp_path / "calls").read_text() == "x"

    def is_computed_again() -> bool:
        return fleet.run(agent, state={"n": 21}).output == "42" and (tmp_path / "calls").read_text() == "xx"

    wait_until(is_computed_again, "the result has expired", 30)


class Doubled(TypedDict, total=False):
    n: int
    out: int


@pytest.mark.conformance("EX-28")
def test_a_slow_node_is_computed_once_in_process() -> None:
    calls: list[int] = []

    def compute(state: Doubled) -> Doubled:
        calls.append(state["n"])
        return {"out": state["n"] * 2}

    builder = StateGraph(Doubled).add_node("compute", compute, cache_policy=CachePolicy(ttl=60))
    graph = builder.add_edge(START, "compute").compile(cache=InMemoryCache())
    chunks = [list(graph.stream({"n": 21}, stream_mode="updates")) for _ in range(2)]
    assert chunks[0] == [{"compute": {"out": 42}}]
    assert chunks[1][0]["compute"] == {"out": 42} and chunks[1][0]["__metadata__"] == {"cached": True}
    assert calls == [21]


@pytest.mark.conformance("EX-44")
def test_a_recoverable_failure_a_fatal_one_and_one_of_a_child(engine: Engine, tmp_path: Path) -> None:
    outcome = engine.run(example(tmp_path / "a", "errors"))
    assert (outcome.status, outcome.output) == ("completed", "with fallback"), outcome.error
    [record] = outcome.state["execution_errors"]
    assert (record["severity"], record["code"], record["node"]) == ("recoverable", "NO_ENTRY", "lookup")

    fatal = example(tmp_path / "b", "errors-above", "errors")
    text = (tmp_path / "b" / "errors" / "graph.yaml").read_text()
    (tmp_path / "b" / "errors" / "graph.yaml").write_text(text.replace("next: finalize}", "next: write}", 1))
    outcome = engine.run(tmp_path / "b" / "errors")
    assert outcome.status == "failed" and "read only" in (outcome.error or "")
    assert [(each["severity"], each["code"]) for each in outcome.errors] == [
        ("recoverable", "NO_ENTRY"),
        ("fatal", "DENIED"),
    ]

    outcome = engine.run(fatal)
    assert (outcome.status, outcome.output) == ("completed", "the child failed with DENIED after NO_ENTRY"), (
        outcome.error
    )


def exported(agent: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert main(["--agents-dir", str(agent.parent), "structure", "export", agent.name, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.conformance("EX-46")
def test_the_structure_of_a_graph_with_a_tool_loop_and_a_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = exported(example(tmp_path, "assistant-graph"), capsys)
    nodes = [node["id"] for node in found["nodes"] if node["id"] != "."]
    assert nodes == ["begin", "llm", "tools", "prepare", "meet", "done"], "in the order of the file"
    assert {(edge["source"], edge["target"], edge["label"]) for edge in found["edges"]} == {
        (".", "begin", None),
        ("begin", "llm", None),
        ("begin", "prepare", None),
        ("llm", "tools", None),
        ("llm", "meet", None),
        ("prepare", "meet", None),
        ("tools", "llm", None),
        ("meet", "done", "finish"),
        ("meet", "begin", "retry"),
    }
    assert {each["id"] for each in found["surfaces"]} >= {"llm#instruction", "llm#model", "llm#tools"}


@pytest.mark.conformance("EX-47")
def test_the_dot_text_of_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", str(example(tmp_path, "basic")), "--format", "dot"]) == 0
    basic = capsys.readouterr().out
    for node in ("preprocess", "analyze", "tools", "route_complexity", "enhance", "summarize", "format_output", "done"):
        assert f'label="{node}\\n' in basic
    for label in ("simple", "moderate", "complex"):
        assert any(f'label="{label}"' in line and 'style="dashed"' in line for line in basic.splitlines()), basic
    assert main(["draw", str(example(tmp_path, "assistant-graph")), "--format", "dot"]) == 0
    dotted = [line for line in capsys.readouterr().out.splitlines() if 'style="dotted"' in line]
    assert len(dotted) == 2 and any('label="finish"' in line for line in dotted)


@pytest.mark.conformance("EX-51")
@pytest.mark.parametrize("name", [*EXAMPLES, *GRAPHS])
def test_every_example_validates_draws_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if name in EXAMPLES:
        agent = example(tmp_path, *({name: None} | dict.fromkeys(each for each in EXAMPLES if each != name)))
    else:
        text, functions, edge, _ = GRAPHS[name]
        text = text.replace("ENGINE", "bsp").replace("EDGE", edge or "ends: {}").replace(" JOIN", "")
        agent = write_agent(tmp_path / name, text, f_py=functions + "\ndef did(state, name): ...\n")
    assert main(["--agents-dir", str(tmp_path), "validate", str(agent)]) == 0, capsys.readouterr().out
    for form in ("mermaid", "dot", "svg", "text"):
        assert main(["--agents-dir", str(tmp_path), "draw", str(agent), "--format", form]) == 0
        assert capsys.readouterr().out
    assert exported(agent, capsys)["edges"]
