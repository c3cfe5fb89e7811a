"""Programs written for LangGraph (tests/langgraph_cases) on the fleet: each call ends in the state that it has in
process, or fails there too.

What LangGraph gave for them is compared in process. Here the runner of the programs makes each call twice: of the graph
in this process, and of a graph whose `invoke` submits a run. Streams are compared by the state in which they end. The
functions and lambdas in `build` are moved to the top level of the program first, as the refusal at submission asks.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.langgraph_cases import runner
from tests.langgraph_cases.test_cases import FUNCTIONS
from tests.processes import Stack

TRAVEL = {
    "01_linear": 8, "04_write_conflict": 2, "05_send_map_reduce": 5, "06_command_goto": 9, "07_command_parent": 3,
    "08_subgraph_shared": 5, "09_subgraph_other_schema": 3, "10_interrupt_single": 4, "11_interrupt_several": 1,
    "13_interrupt_loop": 1, "14_interrupt_subgraph": 2, "15_validation_loop": 1, "19_fork": 1, "20_history": 2,
    "21_stream_modes": 10, "22_stream_messages": 4, "23_stream_custom": 4, "24_stream_tasks": 3, "25_retry": 5,
    "26_error_and_resume": 1, "27_recursion_limit": 6, "29_messages_state": 6, "31_conditional_loop": 3,
    "32_schemas_and_private": 5, "33_pydantic_state": 8, "34_dataclass_state": 6, "35_async_nodes": 4,
    "36_context_and_config": 6, "37_cache": 4,
}  # fmt: skip
"""The programs that run on the fleet, with the number of their calls: each `invoke` and `stream` with an input. Answers
to questions, states and histories have tests of their own."""

CLOSURES = "functions that a function makes, with a value each, which are refused when they are submitted"
LAMBDAS = "lambdas that a loop makes, with a value each, which cannot be moved to the top level"
NO_CALLS = "it makes no run: its steps build wrong graphs"

CANNOT = {
    "02_branch": CLOSURES,
    "03_parallel_reducers": CLOSURES,
    "12_interrupt_parallel": CLOSURES,
    "16_breakpoint_compiled": CLOSURES,
    "17_breakpoint_at_call": LAMBDAS,
    "18_update_state": LAMBDAS,
    "28_defer": LAMBDAS,
    "30_mistakes": NO_CALLS,
    "38_func_tasks": FUNCTIONS,
    "39_func_interrupt": FUNCTIONS,
    "40_func_previous": FUNCTIONS,
}
"""Why the others do not: what is in this list must fail, so whoever changes that takes it off."""

WHY = {
    CLOSURES: "it is defined inside a function",
    LAMBDAS: "name 'name' is not defined",
    FUNCTIONS: "cannot import name 'entrypoint'",
}
"""What says so, in the refusal of the graph or in the error of the program."""

PKG = '''
"""The public names of sleipnir, whichever of its modules holds them."""
import importlib

PLACES = ("", ".commands", *(f".python_graph.{name}" for name in ("errors", "runtime", "policies", "messages")))


def __getattr__(name):
    for module in (importlib.import_module(f"sleipnir{place}") for place in PLACES):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(name)
'''

DRIVER = """
import importlib
import json
import sys
import time
import uuid
import warnings

import runner
from sleipnir import Client
from sleipnir.errors import GraphError
from sleipnir.python_graph.schema import keys_of

import PKG

ONLY = {"do", "input", "loose", "config", "thread", "unordered", "stream_mode", "context", "subgraphs", "version"}
CALLS = {"invoke", "ainvoke", "stream", "astream"}


class Submitted:
    \"\"\"A graph whose runs are on the fleet, to be waited for together.\"\"\"

    def __init__(self, graph, client):
        self.graph, self.client = graph, client

    def invoke(self, input, config, context=None):
        config = {**config, "configurable": {k: v for k, v in config["configurable"].items() if k != "thread_id"}}
        return self.client.submit(self.graph, input, config=config, context=context)


def ended(graph, run):
    state = graph.objects.decoded(run.result(60))
    accepted = graph.parts.keys if graph.parts.output_schema is graph.parts.state_schema else ()
    names = accepted or keys_of(graph.parts.output_schema)
    return {name: value for name, value in state.items() if name in names}


def outcome(what):
    try:
        return runner.normal(what())
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}


def calls_of(case):
    steps = (step for step in case.STEPS if step["do"] in CALLS and not set(step) - ONLY)
    steps = (step for step in steps if type(step["input"]) is dict)
    left_out = ("stream_mode", "subgraphs", "version", "unordered")
    return [{**{k: v for k, v in step.items() if k not in left_out}, "do": "invoke"} for step in steps]


def main():
    warnings.simplefilter("ignore")
    client, started, found = Client(), [], {}
    for name in sys.argv[1:]:
        found[name] = []
        try:
            case = importlib.import_module(f"case_{name}")
            graph = case.build()
        except Exception as error:
            found[name].append({"unbuilt": repr(error)})
            continue
        for step in calls_of(case):
            case.RUN = str(uuid.uuid4())
            try:
                run = runner.take(step, case, Submitted(graph, client), PKG)
                started.append((name, graph, case, step, run))
            except GraphError as error:
                found[name].append({"refused": str(error)})
            except Exception as error:
                here = outcome(lambda: runner.take(step, case, graph, PKG))
                found[name].append({"fleet": {"error": type(error).__name__, "text": str(error)}, "here": here})
    for name, graph, case, step, run in started:
        case.RUN = str(uuid.uuid4())
        here = outcome(lambda: runner.take(step, case, graph, PKG))
        if isinstance(here, dict) and "__interrupt__" in here:
            while not run.gates():
                time.sleep(0.05)
            fleet = {"asks": len(run.gates())}
            here = {"asks": len(here["__interrupt__"])}
        else:
            fleet = outcome(lambda: ended(graph, run))
        found[name].append({"fleet": fleet, "here": here})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
"""


class Lifted(ast.NodeTransformer):
    """Gives the lambdas of a statement names; `functions` are their definitions."""

    def __init__(self, count: int) -> None:
        self.functions: list[ast.stmt] = []
        self._count = count

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        name = f"lambda_{self._count + len(self.functions)}"
        body: list[ast.stmt] = [ast.Return(self.visit(node.body))]
        self.functions.append(ast.FunctionDef(name, node.args, body, [], None))
        return ast.Name(name, ast.Load())


def at_the_top(text: str) -> str:
    """A program whose `build` is carried out at its top level, without lambdas."""
    written: list[ast.stmt] = []
    statements: list[ast.stmt] = []
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "build":
            statements += statement.body
        else:
            statements.append(statement)
    count = 0
    for statement in statements:
        if isinstance(statement, ast.Return):
            statement = ast.Assign([ast.Name("BUILT", ast.Store())], statement.value or ast.Constant(None))
        lifted = Lifted(count)
        named = lifted.visit(statement)
        count += len(lifted.functions)
        written += [*lifted.functions, named]
    tree = ast.fix_missing_locations(ast.Module(written, []))
    return ast.unparse(tree) + "\n\n\ndef build():\n    return BUILT\n"


def test_programs_end_on_the_fleet_in_the_state_that_they_have_in_process(stack: Stack, tmp_path: Path) -> None:
    programs = sorted(runner.PROGRAMS.glob("[0-9]*.py"))
    for file in programs:
        (tmp_path / f"case_{file.name}").write_text(at_the_top(file.read_text()))
    (tmp_path / "runner.py").write_text(Path(runner.__file__).read_text())
    (tmp_path / "PKG.py").write_text(PKG)
    (tmp_path / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "driver.py"), *(file.stem for file in programs)],
        env=stack.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == TRAVEL.keys() | CANNOT.keys()
    for name, reason in CANNOT.items():
        failures = [call.get("refused") or call.get("unbuilt") for call in found[name]]
        assert all(failure and WHY[reason] in failure for failure in failures), f"{name}: {failures}"
        assert bool(failures) == (reason != NO_CALLS), name
    assert {name: len(found[name]) for name in TRAVEL} == TRAVEL
    for name in TRAVEL:
        for number, call in enumerate(found[name]):
            assert is_same(call["fleet"], call["here"]), f"{name} {number}: {call}"


def is_same(fleet: Any, here: Any) -> bool:
    """Whether two outcomes are the same. An exception of a program's own class is told as RunFailure, with its name."""
    if not isinstance(here, dict) or "error" not in here:
        return bool(fleet == here)
    return fleet.get("error") == here["error"] or (
        fleet.get("error") in ("RunFailure", "UsageError")
        and (f"raised {here['error']}" in fleet["text"] or here["text"] in fleet["text"])
    )
