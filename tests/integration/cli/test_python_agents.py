"""`validate`, `draw` and `agents`, on folders with a graph.py, which is executed in a process of its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sleipnir.cli import main
from sleipnir.graph import python_file
from sleipnir.graph.load import load_python
from sleipnir.waiting import in_loop

GOOD = """\
from typing import TypedDict

from sleipnir import END, START, StateGraph
from steps import first

print("executed")


class State(TypedDict, total=False):
    n: int


def second(state: State) -> dict:
    return {}


def route(state: State) -> str:
    return END


graph = StateGraph(State)
graph.add_node(first)
graph.add_node(second)
graph.add_edge(START, "first")
graph.add_edge("first", "second")
graph.add_conditional_edges("second", route, ["first", END])
"""
STEPS = "def first(state):\n    return {'n': 1}\n"


@pytest.fixture(autouse=True)
def agents_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of agents that the command line finds first, and nothing else of this machine's set-up."""
    folder = tmp_path / "agents"
    folder.mkdir()
    monkeypatch.setenv("SLEIPNIR_AGENTS_DIR", str(folder))
    monkeypatch.setenv("SLEIPNIR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOKI_CONFIG_DIR", str(tmp_path / "loki"))
    return folder


def write(agents_dir: Path, text: str, **files: str) -> Path:
    folder = agents_dir / "counter"
    folder.mkdir()
    (folder / "graph.py").write_text(text)
    for name, content in {"steps": STEPS, **files}.items():
        (folder / f"{name}.py").write_text(content)
    return folder


def errors_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The errors that `validate` reports: `FILE:LINE: message`."""
    assert main(["validate", str(folder), "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)
    return [
        f"{Path(problem['file']).name}:{problem['line']}: {problem['message']}"
        for problem in problems
        if problem["level"] == "error"
    ]


def test_commands_take_an_agent_with_a_graph_py(agents_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(agents_dir, GOOD)
    for target in ("counter", str(folder), str(folder / "graph.py")):
        assert main(["validate", target]) == 0
        assert capsys.readouterr().out.endswith(": 2 nodes, 3 edges, 0 warnings\n")
    assert main(["draw", "counter"]) == 0
    drawing = capsys.readouterr().out
    assert "first" in drawing
    assert "second" in drawing
    assert main(["agents", "show", "counter", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "graph"
    assert main(["agents", "--json"]) == 0
    assert "counter" in [agent["name"] for agent in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("import steps\nsteps.broken()\n", "steps.py:5: its code raised ValueError: no", id="exception"),
        pytest.param("def broken(:\n", "graph.py:1: Python cannot read this file: invalid syntax", id="syntax"),
        pytest.param("import sys\nsys.exit(3)\n", "graph.py:2: its code raised SystemExit: 3", id="exit"),
        pytest.param(
            "import os\nos._exit(3)\n", "graph.py:None: graph.py ended its process with exit code 3", id="death"
        ),
        pytest.param(
            "n = 1\n",
            "graph.py:1: it defines no `graph`. A graph.py ends with `graph = builder.compile()`",
            id="no graph",
        ),
        pytest.param(
            "def graph(): ...\n",
            "graph.py:1: its `graph` is a function. A graph.py ends with `graph = builder.compile()`",
            id="a function",
        ),
        pytest.param(
            GOOD + "\ngraph.compile().submit({})\n",
            "graph.py:28: its code raised UsageError: a run is submitted while graph.py is imported, which each worker "
            'does: write `if __name__ == "__main__":` above that call',
            id="submits",
        ),
    ],
)  # fmt: skip
def test_a_file_that_defines_no_graph_is_an_error_with_its_line(
    agents_dir: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    folder = write(agents_dir, text, steps=STEPS + "\ndef broken():\n    raise ValueError('no')\n")
    assert [error.replace("'(' was never closed", "invalid syntax") for error in errors_of(folder, capsys)] == [
        expected
    ]
    assert main(["draw", str(folder)]) != 0


def test_a_file_that_does_not_end_is_stopped(agents_dir: Path) -> None:
    folder = write(agents_dir, "import time\ntime.sleep(600)\n")
    (problem,) = python_file.answer_of(folder / "graph.py", timeout_s=1)["problems"]
    assert problem.message.startswith("graph.py did not define its graph within 1 s.")


def test_two_definitions_in_one_folder_are_an_error(agents_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(agents_dir, GOOD)
    (folder / "graph.yaml").write_text("name: x\nstart: a\nnodes: {a: {type: end}}\n")
    (error,) = errors_of(folder, capsys)
    assert "has both graph.yaml and graph.py" in error


def test_all_mistakes_of_a_graph_have_the_line_of_their_call(
    agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "def add(graph):\n    graph.add_node('third', max)\n    graph.add_edge('third', 'forth')\n"
    folder = write(agents_dir, GOOD + "graph.add_edge('second', 'thrid')\nimport more\nmore.add(graph)\n", more=more)
    assert errors_of(folder, capsys) == [
        "graph.py:27: Found edge ending at unknown node `thrid`",
        "more.py:3: Found edge ending at unknown node `forth`",
    ]


def test_a_finding_of_the_rules_has_the_file_of_the_call(agents_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = "graph.add_script_node('third', script='missing.sh')"
    more = f"\ndef add(graph):\n    {call}\n    graph.add_edge('first', 'third')\n"
    folder = write(agents_dir, GOOD + "import more\nmore.add(graph)\n", more=more)
    (error,) = errors_of(folder, capsys)
    assert error.startswith("more.py:3: Script file not found")


def test_functions_that_no_worker_can_find_are_refused_all_at_once(
    agents_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GOOD + (
        "graph.add_node('third', lambda state: {})\n"
        "def made():\n    def inner(state): ...\n    return inner\n"
        "graph.add_node('fourth', made())\n"
        "for name in ('third', 'fourth'):\n    graph.add_edge('first', name)\n"
    )
    folder = write(agents_dir, text)
    assert errors_of(folder, capsys) == [
        "graph.py:27: node 'third' cannot be found by a worker: it is a lambda",
        "graph.py:29: node 'fourth' cannot be found by a worker: it is defined inside a function",
    ]


def test_an_event_loop_goes_on_while_a_file_is_executed(agents_dir: Path) -> None:
    waits = (
        "import time\nfrom pathlib import Path\nwhile not Path(__file__).with_name('go').exists(): time.sleep(0.01)\n"
    )
    file = write(agents_dir, waits + GOOD) / "graph.py"

    async def read() -> dict[str, Any]:
        reading = asyncio.create_task(in_loop(python_file.answer_of, file, 30))
        await asyncio.sleep(0)  # the reading begins first
        (file.parent / "go").touch()
        return await reading

    assert asyncio.run(read())["problems"] == []


LEFT_OUT = """\
from typing import TypedDict

from sleipnir import START, StateGraph


class State(TypedDict):
    n: int


def f(state: State) -> None: ...


builder = StateGraph(State).add_node("a", f).add_edge(START, "a")
builder.add_node("left_out", f)
graph = builder.compile()
"""


def test_a_node_that_no_edge_leads_to_is_a_warning_of_validate_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "graph.py"
    file.write_text(LEFT_OUT)
    loaded = load_python(file)
    found = [(problem.level, problem.file, problem.line, problem.message) for problem in loaded.problems]
    assert found == [("warning", str(file), 14, "Node 'left_out' is unreachable: no edge leads to it")]
    assert loaded.graph is not None
    assert "left_out" not in capfd.readouterr().err, "the process of the file says it in its answer"
