"""Graphs written in Python on a real scheduler, real workers and a real Redis: the same final state as in process."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sleipnir import GraphRecursionError, InvalidUpdateError
from sleipnir.client.batch import SubmittedRows
from sleipnir.errors import RunFailure, UsageError
from sleipnir.python_graph.agent_modules import load
from sleipnir.runs.views import RunInfo
from sleipnir.runs.visits import Failure
from tests.processes import RedisServer, Stack, wait_until, write_agent

LINEAR = """
from typing import TypedDict

from sleipnir import END, START, StateGraph


class State(TypedDict, total=False):
    n: int
    text: str


def double(state: State) -> dict:
    return {"n": state["n"] * 2}


def write(state: State) -> dict:
    return {"text": f"n is {state['n']}"}


graph = StateGraph(State).add_sequence([double, write]).add_edge(START, "double").add_edge("write", END).compile()
"""

PLANNER = '''
from __future__ import annotations

import operator
import time
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from sleipnir import START, Command, Runtime, Send, StateGraph, get_config
from helpers import longest, shout
from nodes.summary import summarise


class State(TypedDict, total=False):
    topic: str
    hold: str
    parts: list[str]
    found: Annotated[list[str], operator.add]
    best: Annotated[str, longest]
    seen: Annotated[set[str], operator.or_]
    threads: list[str | None]
    answer: str


def plan(state: State, config: dict, runtime: Runtime) -> dict:
    threads = [config["configurable"]["thread_id"], runtime.execution_info.thread_id]
    return {"parts": [f"{state['topic']}-{n}" for n in range(3)], "threads": threads}


def fan(state: State) -> list[Send]:
    """The state that it gets has the writes of its node."""
    return [Send("look", {"part": part, "hold": state.get("hold")}) for part in state["parts"]]


async def look(state: dict) -> dict:
    """Waits while the file `hold` exists, and leaves a mark beside it."""
    if state["hold"]:
        Path(state["hold"] + f".{state['part']}").touch()
        while Path(state["hold"]).exists():
            time.sleep(0.05)
    part = state["part"]
    return {"found": [shout(part)], "best": part * (1 + part.endswith("1")), "seen": {part, "all"}}


def decide(state: State) -> Command[Literal["summarise", "nothing"]]:
    assert get_config()["configurable"] is not None
    assert isinstance(state["seen"], set)
    return Command(update={"answer": "?"}, goto="summarise" if state["found"] else "nothing")


def nothing(state: State) -> dict:
    return {"answer": "nothing"}


def built() -> StateGraph:
    graph = StateGraph(State).add_node(plan).add_node(look).add_node(decide).add_node(summarise).add_node(nothing)
    graph.add_edge(START, "plan").add_conditional_edges("plan", fan, ["look"]).add_edge("look", "decide")
    return graph


graph = built()
'''
HELPERS = """
def longest(old, new):
    return new if len(new) > len(old) else old


def shout(text):
    return text.upper()
"""
SUMMARY = """
from helpers import shout


def summarise(state):
    return {"answer": shout(", ".join(state["found"]) + "; " + state["best"])}
"""


@pytest.fixture
def own(redis_server: RedisServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack of its own, of which nothing runs yet."""
    with Stack(redis_server, tmp_path / "home", key_prefix=request.node.name[:40], owner_ttl_s=0.5) as stack:
        yield stack


def planner(folder: Path) -> Path:
    return write_agent(folder / "planner", None, graph_py=PLANNER, helpers_py=HELPERS, nodes__summary_py=SUMMARY)


def in_process(agent: Path, input: dict[str, Any]) -> Any:
    """The final state of a run of the agent's graph in this process, as it is stored."""
    graph = load((agent / "graph.py").resolve()).graph
    compiled = graph if hasattr(graph, "invoke") else graph.compile()
    return compiled.objects.encoded(compiled.invoke(input, {"configurable": {"thread_id": None}}))


def of_run(state: dict[str, Any]) -> dict[str, Any]:
    """The keys of the graph; sets in one order."""
    return {
        key: sorted(value) if key == "seen" else value for key, value in state.items() if key not in ("initial_prompt",)
    }


def completed(info: RunInfo) -> None:
    assert (info.status, info.error) == ("completed", None)


def test_a_graph_of_functions_runs_on_a_worker(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "linear", None, graph_py=LINEAR)
    with stack.client() as client:
        run = client.submit(agent, state={"n": 4})
        completed(run.wait(60))
        assert of_run(run.state()) == {"n": 8, "text": "n is 8"} == in_process(agent, {"n": 4})
        assert [step.node for step in run.history() if step.node] == ["double", "write"]
        (agent / "graph.py").write_text(LINEAR.replace("* 2", "* 3"))
        changed = client.submit(agent, state={"n": 4})
        completed(changed.wait(60))
        assert changed.state()["text"] == "n is 12", "a change of the file is noticed"


def test_branches_reducers_sends_and_commands_give_the_state_of_a_run_in_process(stack: Stack, tmp_path: Path) -> None:
    agent = planner(tmp_path)
    with stack.client() as client:
        run = client.submit(agent, state={"topic": "sea"})
        completed(run.wait(60))
        assert of_run(run.state()) == of_run(in_process(agent, {"topic": "sea"}))
        assert run.state()["answer"] == "SEA-0, SEA-1, SEA-2; SEA-1SEA-1"


def test_a_worker_is_killed_while_it_executes_a_graph(own: Stack, tmp_path: Path) -> None:
    agent, hold = planner(tmp_path), tmp_path / "hold"
    hold.touch()
    own.start_scheduler()
    own.start_worker("first", concurrency=4)
    with own.client() as client:
        run = client.submit(agent, state={"topic": "sea", "hold": str(hold)})
        wait_until(lambda: len(list(tmp_path.glob("hold.sea-*"))) == 3, "all visits of the Sends are executed")
        own.kill("first")
        hold.unlink()
        own.start_worker("second")
        completed(run.wait(120))
        expected = in_process(agent, {"topic": "sea", "hold": str(hold)})
        assert of_run(run.state()) == of_run(expected)
        assert len([step for step in run.history() if step.node == "look" and step.role == "node"]) == 3


PIPELINE = """
import operator
import sys
from typing import Annotated, TypedDict

from sleipnir import START, Client, Send, StateGraph
from pieces.work import join, look


class State(TypedDict, total=False):
    words: list[str]
    found: Annotated[list[str], operator.add]
    text: Annotated[str, join]


def begin(state: State):
    return {"text": "begin"}


def fan(state):
    return [Send("look", {"word": word}) for word in state["words"]]


builder = StateGraph(State).add_node(begin).add_node(look)
builder.add_edge(START, "begin").add_conditional_edges("begin", fan)
graph = builder.compile(name="pipeline")
INPUT = {"words": ["a", "b"], "text": "input"}

if __name__ == "__main__":
    if sys.argv[1] == "graph":
        run = graph.submit(INPUT)
    else:
        run = Client().submit(graph, INPUT)
    result = run.result(60)
    assert result == run.state() == graph.invoke(INPUT), result
    print(result["found"], result["text"], run.info().agent)
"""
WORK = """
from .text import upper


def look(state):
    return {"found": [upper(state["word"])], "text": state["word"]}


def join(left, right):
    return f"{left}+{right}" if left else right
"""
TEXT = "def upper(text):\n    return text.upper()\n"


def program(folder: Path, text: str) -> Path:
    """A program with a package beside it, and files that it does not use."""
    write_agent(folder, None, pipeline_py=text, pieces__work_py=WORK, pieces__text_py=TEXT)
    (folder / "pieces" / "__init__.py").touch()
    (folder / "unused.py").write_text("raise RuntimeError\n")
    (folder / "data.bin").write_bytes(b"0" * 1000)
    return folder / "pipeline.py"


def executed(stack: Stack, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=stack.environment(), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", ["graph", "client"])
def test_a_program_submits_its_own_graph_and_gets_the_state_of_a_run_in_process(
    stack: Stack, tmp_path: Path, how: str
) -> None:
    done = executed(stack, program(tmp_path / "work", PIPELINE), how)
    assert (done.stdout, done.stderr) == ("['A', 'B'] input+begin+a+b pipeline\n", "")


def test_the_bundle_of_a_program_has_its_python_files_only(stack: Stack, tmp_path: Path) -> None:
    text = PIPELINE.replace("result = run.result(60)", "print(run.id)\n    raise SystemExit")
    done = executed(stack, program(tmp_path / "work", text), "graph")
    with stack.client() as client:
        spec = client.store.runs.spec(done.stdout.strip())
        packed = client.store.bundles.get(spec.bundle)
    assert packed is not None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == [
            "graph.yaml", "pieces/__init__.py", "pieces/text.py", "pieces/work.py", "pipeline.py",
        ]  # fmt: skip


def test_a_program_without_the_guard_is_refused_before_anything_is_stored(stack: Stack, tmp_path: Path) -> None:
    text = PIPELINE.replace('if __name__ == "__main__":', "if True:")
    with stack.client() as client:
        before = client.run_count()
        done = executed(stack, program(tmp_path / "work", text), "graph")
        assert done.returncode == 1
        line = text.splitlines().index("        run = graph.submit(INPUT)") + 1
        assert f"pipeline.py:{line}: workers import this file to find its functions" in done.stderr
        assert 'write `if __name__ == "__main__":` above this call' in done.stderr
        assert client.run_count() == before


def test_functions_that_cannot_travel_are_refused_all_at_once(stack: Stack, tmp_path: Path) -> None:
    text = PIPELINE.replace(
        'graph = builder.compile(name="pipeline")',
        "def made():\n    def inner(state): ...\n    return inner\n\n"
        'builder.add_node("x", lambda state: None).add_node("y", made()).add_sequence([("z", made())])\n'
        'builder.add_edge("begin", "x").add_edge("x", "y").add_edge("y", "z")\n'
        "graph = builder.compile()",
    )
    done = executed(stack, program(tmp_path / "work", text), "graph")
    line = text.splitlines().index("def made():") + 1
    for expected in (
        f"pipeline.py:{line + 4}: node 'x' cannot be found by a worker: it is a lambda",
        f"pipeline.py:{line + 1}: node 'y' cannot be found by a worker: it is defined inside a function",
        f"pipeline.py:{line + 1}: node 'z' cannot be found by a worker: it is defined inside a function",
    ):
        assert expected in done.stderr


def test_a_module_of_a_package_that_runs_as_a_program_submits_its_graph(stack: Stack, tmp_path: Path) -> None:
    file = program(tmp_path / "work", PIPELINE.replace("from pieces.work", "from .pieces.work"))
    package = tmp_path / "work"
    (package / "__init__.py").touch()
    (package / "unused.py").write_text("")
    command = [sys.executable, "-m", f"work.{file.stem}", "graph"]
    done = subprocess.run(command, env=stack.environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("['A', 'B'] input+begin+a+b pipeline\n", "")


def test_functions_of_two_folders_are_refused(stack: Stack, tmp_path: Path) -> None:
    file = program(tmp_path / "work", "import sys\nsys.path.append('../other')\n" + PIPELINE)
    (tmp_path / "other").mkdir()
    (tmp_path / "work" / "pieces").rename(tmp_path / "other" / "pieces")
    file.write_text(file.read_text().replace("'../other'", repr(str(tmp_path / "other"))))
    done = executed(stack, file, "graph")
    assert "UsageError: the functions of the graph are imported from several folders; move them to one:" in done.stderr


def test_a_failure_names_the_line_of_the_graphs_own_code(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "linear", None, graph_py=LINEAR)
    with stack.client() as client:
        run = client.submit(agent, state={"n": [None]})
        assert run.wait(60).status == "completed"
        failing = client.submit(agent)
        info = failing.wait(60)
        assert info.status == "failed"
        assert "Function 'graph.py:double' raised KeyError: 'n' (graph.py:13: return {\"n\": state[\"n\"] * 2})" in str(
            info.error
        )
        with pytest.raises(KeyError, match=f"run {failing.id} failed: .*KeyError") as raised:
            failing.result()
        assert isinstance(raised.value, RunFailure)


def test_contradicting_writes_raise_the_same_error_as_in_process(stack: Stack, tmp_path: Path) -> None:
    text = LINEAR.replace('START, "double"', 'START, "double").add_edge(START, "again"')
    text = text.replace(".add_sequence", '.add_node("again", double).add_sequence')
    agent = write_agent(tmp_path / "linear", None, graph_py=text)
    with stack.client() as client:
        run = client.submit(agent, state={"n": 4})
        with pytest.raises(InvalidUpdateError, match=f"run {run.id} failed: .*At key 'n': Can receive only one value"):
            run.result(60)
        assert run.info().failure == Failure("writes")


def test_code_that_a_worker_cannot_load_fails_the_visit(stack: Stack, tmp_path: Path) -> None:
    text = "import sys\nif 'sleipnir_workers.app' in sys.modules:\n    raise OSError('not here')\n" + LINEAR
    agent = write_agent(tmp_path / "linear", None, graph_py=text)
    with stack.client() as client:
        info = client.submit(agent, state={"n": 4}).wait(60)
        assert (info.status, "raised OSError: not here (graph.py:3" in str(info.error)) == ("failed", True), info.error


def test_a_notebook_cannot_submit_its_cells(stack: Stack) -> None:
    code = PIPELINE.partition("from pieces")[0] + (
        "class State(TypedDict):\n    n: int\n"
        "def double(state): ...\n"
        "StateGraph(State).add_node(double).add_edge(START, 'double').compile().submit({'n': 1})\n"
    )
    done = executed(stack, "-c", code)
    assert "node 'double' cannot be found by a worker: it is defined in a notebook or an interactive" in done.stderr


def test_input_from_the_command_line_goes_through_the_reducers(stack: Stack, tmp_path: Path) -> None:
    agent = planner(tmp_path)
    given = {"topic": "sea", "best": "x", "found": ["first"], "seen": ["given"]}
    words = [word for key, value in given.items() for word in ("--state", f"{key}={json.dumps(value)}")]
    done = stack.sleipnir("submit", str(agent), *words)
    with stack.client() as client:
        run = client.run(done.stdout.split()[0])
        completed(run.wait(60))
        assert of_run(run.state()) == of_run(in_process(agent, {**given, "seen": {"given"}}))
        assert run.state()["found"][0] == "first"


TALKER = """
import time
from pathlib import Path
from typing import TypedDict

from sleipnir import START, StateGraph, get_stream_writer


class State(TypedDict, total=False):
    taken: str
    done: bool


def talk(state: State, writer) -> dict:
    writer({"at": "begin", "who": "Łukasz"})
    while not Path(state["taken"]).exists():
        time.sleep(0.02)
    get_stream_writer()(["end"])
    writer("x" * 5000)
    while not Path(state["taken"] + ".all").exists():
        time.sleep(0.02)
    return {"done": True}


graph = StateGraph(State).add_node(talk).add_edge(START, "talk").compile()
"""


def test_a_watcher_gets_custom_chunks_while_the_node_runs(stack: Stack, tmp_path: Path) -> None:
    agent, taken = write_agent(tmp_path / "talker", None, graph_py=TALKER), tmp_path / "taken"
    with stack.client() as client:
        run = client.submit(agent, state={"taken": str(taken)})
        events = []
        for event in run.stream(modes=["custom"]):
            events.append(event)
            taken.touch()
            if event.data.get("lost"):
                (tmp_path / "taken.all").touch()
        own = [event for event in events if event.mode == "custom"]
        place = {"seq": 1, "attempt": 1, "node": "talk"}
        assert [event.data for event in own] == [
            {**place, "lost": 0, "chunk": {"at": "begin", "who": "Łukasz"}},
            {**place, "lost": 0, "chunk": ["end"]},
            {**place, "lost": 1},
        ]
        assert events[-1].type == "run_ended"
        assert [event.data for event in run.stream(["custom"], own[0].id)][:2] == [event.data for event in own[1:]]
        assert not any(event.type in ("custom", "text") for event in run.stream(["messages", "updates"]))
        assert run.state()["done"] is True


def test_a_chunk_that_is_not_json_is_counted_and_fails_no_node(stack: Stack, tmp_path: Path) -> None:
    text = TALKER.replace('["end"]', "object()")
    agent, taken = write_agent(tmp_path / "talker", None, graph_py=text), tmp_path / "taken"
    taken.touch()
    (tmp_path / "taken.all").touch()
    with stack.client() as client:
        run = client.submit(agent, state={"taken": str(taken)})
        assert run.result(60)["done"] is True
        assert sum(event.data["lost"] for event in run.stream(["custom"]) if event.type == "custom") == 2


GREETER = """
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from sleipnir import START, Runtime, StateGraph


@dataclass
class Who:
    name: str
    born: datetime


class State(TypedDict, total=False):
    text: str


def greet(state: State, runtime: Runtime[Who], config: dict) -> dict:
    who = config["configurable"]["title"] + runtime.context.name
    return {"text": f"{state.get('text', '')}{who} {runtime.context.born:%Y}"}


def again(state: State) -> str:
    return "greet"


builder = StateGraph(State, context_schema=Who).add_node(greet).add_edge(START, "greet")
graph = builder.add_conditional_edges("greet", again).compile().with_config(configurable={"title": "Countess "})
"""


def test_context_and_a_limit_from_the_command_line_reach_the_nodes(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "greeter", None, graph_py=GREETER)
    given = ("--context", 'name="Ada"', "--context", 'born="1815-12-10T00:00:00"', "--recursion-limit", "2")
    done = stack.sleipnir("submit", str(agent), *given)
    here = stack.sleipnir("run", "--in-process", str(agent), "--json", *given)
    with stack.client() as client:
        run = client.run(done.stdout.split()[0])
        with pytest.raises(GraphRecursionError, match="Recursion limit of 2 reached without"):
            run.result(60)
        assert run.state()["text"] == "Countess Ada 1815" * 2
    outcome = json.loads(here.stdout)
    assert "Recursion limit of 2 reached" in outcome["error"]


def test_a_context_that_its_class_refuses_is_refused_before_anything_is_stored(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "greeter", None, graph_py=GREETER)
    with stack.client() as client:
        before = client.run_count()
        with pytest.raises(UsageError, match=r"the context cannot be used:\n.*missing 1 required .*'born'"):
            client.submit(agent, context={"name": "Ada"})
        with pytest.raises(UsageError, match=r"the context cannot be used:\n.*\nborn\n.*valid datetime"):
            client.submit(agent, context={"name": "Ada", "born": "once"})
        with pytest.raises(UsageError, match="'api_key' marks a secret"):
            client.submit(agent, context={"name": "Ada", "api_key": "x"})
        linear = write_agent(tmp_path / "yaml", "name: yaml\nstart: a\nnodes:\n  a: {type: end}\n")
        with pytest.raises(UsageError, match="agent 'yaml' takes no config=, because its graph is not"):
            client.submit(linear, config={"recursion_limit": 3})
        assert client.run_count() == before


BATCHED = """
import json
import operator
from datetime import datetime, timedelta
from typing import Annotated, TypedDict

from sleipnir import START, Client, StateGraph, add_messages


def longest(old, new):
    return new if len(new) > len(old) else old


class State(TypedDict, total=False):
    prompt: list[str]
    begin: datetime
    best: Annotated[str, longest]
    seen: Annotated[set[str], operator.or_]
    messages: Annotated[list, add_messages]


def step(state: State) -> dict:
    content = state["messages"][-1].content if state["messages"] else ""
    return {"begin": state["begin"] + timedelta(days=1), "best": "row", "seen": {content, *state["prompt"]}}


graph = StateGraph(State).add_node(step).add_edge(START, "step").compile()
ROWS = [
    {"prompt": ["a"], "begin": datetime(2026, 1, 1), "best": "longer", "seen": {"x"}, "messages": "hello"},
    {"prompt": ["b"], "begin": datetime(2026, 2, 1), "best": "r", "seen": {"y"}},
    {"prompt": ["c"], "begin": datetime(2026, 3, 1), "best": 3},
]


def plain(state):
    found = {**state, "seen": sorted(state["seen"]), "messages": [each["content"] for each in state["messages"]]}
    found.pop("initial_prompt", None)
    return found


if __name__ == "__main__":
    bad = []
    with Client() as client:
        batch = client.batch(graph, ({**row, "id": f"r{n}"} for n, row in enumerate(ROWS)), id="inputs", key="id",
                             on_bad=lambda row: bad.append(row.message))
        again = client.batch(graph, ({**row, "id": f"r{n}"} for n, row in enumerate(ROWS[:2])), id="inputs", key="id")
        batch.wait(60)
        fleet = [plain(client.run(result.run).result()) for result in batch.results()]
    here = [plain(graph.objects.encoded(graph.invoke(row))) for row in ROWS[:2]]
    print(json.dumps([fleet, here, bad, again.submitted.known]))
"""


def test_rows_of_a_batch_are_inputs_of_the_graph_that_a_program_has_built(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "batched.py").write_text(BATCHED)
    done = executed(stack, str(tmp_path / "batched.py"))
    assert done.stderr == ""
    fleet, here, bad, known = json.loads(done.stdout)
    assert fleet == here
    assert fleet[0] == {
        "prompt": ["a"], "begin": "2026-01-02T00:00:00", "best": "longer", "seen": ["a", "hello", "x"],
        "messages": ["hello"],
    }  # fmt: skip
    assert bad == ["its input cannot be used: TypeError: object of type 'int' has no len()"]
    assert known == 2


def test_rows_of_a_batch_are_runs_of_a_graph_in_python(stack: Stack, tmp_path: Path) -> None:
    with stack.client() as client:
        batch = client.batch(planner(tmp_path), [{"topic": "a"}, {"topic": "b"}])
        batch.wait(60)
        assert [result.status for result in batch.results()] == ["completed", "completed"]
        assert client.run(batch.run_id(1)).state()["answer"] == "B-0, B-1, B-2; B-1B-1"


COUNTER = """
from typing import Annotated, TypedDict

from sleipnir import START, StateGraph


def joined(old, new):
    if new == "bad":
        raise ValueError("it is bad")
    return f"{old}<{new}>"


class State(TypedDict, total=False):
    text: Annotated[str, joined]
    plain: int


def note(state: State) -> dict:
    return {"text": "note"}


graph = StateGraph(State).add_node(note).add_edge(START, "note").compile()
"""


def test_rows_of_a_batch_of_a_folder_go_through_reducers_of_its_code(stack: Stack, tmp_path: Path) -> None:
    agent = write_agent(tmp_path / "counter", None, graph_py=COUNTER)
    rows = [{"text": "a", "plain": 1}, {"text": "bad"}, {"plain": 2}, {"text": "b"}]
    with stack.client() as client:
        batch = client.batch(agent, rows, id="letters", on_bad=(bad := []).append)
        batch.wait(60)
        assert [row.message for row in bad] == ["its input cannot be used: ValueError: it is bad"]
        assert [client.run(batch.run_id(row)).state()["text"] for row in range(3)] == [
            "<a><note>",
            "<note>",
            "<b><note>",
        ]
        alone = client.submit(agent, state=rows[0])
        assert alone.result(60) == client.run(batch.run_id(0)).state()
        again = client.batch(agent, rows, id="letters")
        assert again.submitted == SubmittedRows(added=0, known=3, bad=1), "a row is compared as it was given"
        with pytest.raises(UsageError, match="there is no row that could be run"):
            client.batch(agent, [{"text": "bad"}])
