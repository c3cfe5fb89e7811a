"""Programs written for LangGraph (tests/langgraph_cases) on the fleet: each call that can travel ends in the state that
it has in process, or fails there too.

What LangGraph gave for them is compared in process. Threads, streams, contexts and answers do not travel with a run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.langgraph_cases.runner import PROGRAMS
from tests.processes import Stack

TRAVEL = {
    "01_linear": 8, "04_write_conflict": 2, "05_send_map_reduce": 5, "11_interrupt_several": 1, "13_interrupt_loop": 1,
    "15_validation_loop": 1, "22_stream_messages": 3, "23_stream_custom": 4, "25_retry": 5, "29_messages_state": 6,
    "32_schemas_and_private": 5, "33_pydantic_state": 7, "35_async_nodes": 4,
}  # fmt: skip
"""The programs whose functions workers can find, with the number of their calls. The others have lambdas, functions
inside functions and graphs as nodes."""

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
import uuid
import warnings

from sleipnir import Client
from sleipnir.errors import GraphError

ONLY = {"do", "input", "loose", "config", "thread", "unordered", "stream_mode"}


def in_process(graph, step):
    config = {**step.get("config", {}), "configurable": {"thread_id": str(uuid.uuid4())}}
    try:
        state = graph.invoke(step["input"], config)
        return {"state": graph.objects.encoded(state)}
    except Exception as error:
        return {"error": repr(error)}


def on_fleet(run):
    try:
        return {"state": run.result(60)}
    except Exception as error:
        return {"error": repr(error)}


def calls_of(case):
    calls = {"invoke", "ainvoke", "stream", "astream"}
    return [step for step in case.STEPS if step["do"] in calls and not set(step) - ONLY and type(step["input"]) is dict]


def main():
    warnings.simplefilter("ignore")
    client, started, ended = Client(), [], {}
    for name in sys.argv[1:]:
        case = importlib.import_module(f"case_{name}")
        case.RUN = str(uuid.uuid4())
        graph = case.build()
        for step in calls_of(case):
            try:
                started.append((name, graph, step, client.submit(graph, step["input"])))
            except GraphError as error:
                ended.setdefault(name, []).append({"refused": str(error)})
    for name, graph, step, run in started:
        ended.setdefault(name, []).append({"fleet": on_fleet(run), "here": in_process(graph, step)})
    print(json.dumps(ended, default=lambda value: sorted(value) if isinstance(value, set) else repr(value)))


if __name__ == "__main__":
    main()
"""


def without_ids(state: dict[str, Any]) -> dict[str, Any]:
    """Messages that a node wrote without an id have a random one."""
    messages = [{**each, "id": None} if len(each.get("id") or "") > 30 else each for each in state.get("messages", ())]
    return {**state, "messages": messages} if messages else state


def test_programs_end_on_the_fleet_in_the_state_that_they_have_in_process(stack: Stack, tmp_path: Path) -> None:
    for file in PROGRAMS.glob("[0-9]*.py"):
        (tmp_path / f"case_{file.name}").write_text(file.read_text())
    (tmp_path / "PKG.py").write_text(PKG)
    (tmp_path / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "driver.py"), *TRAVEL, "06_command_goto", "07_command_parent"],
        env=stack.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all("it is a lambda" in call["refused"] for call in found.pop("06_command_goto"))
    assert all("is a graph of its own" in call["refused"] for call in found.pop("07_command_parent"))
    assert {name: len(calls) for name, calls in found.items()} == TRAVEL
    for name, calls in found.items():
        for number, call in enumerate(calls):
            fleet, here = call["fleet"], call["here"]
            assert fleet.keys() == here.keys(), f"{name} {number}: {call}"
            if "state" in here:
                outputs = {key: value for key, value in fleet["state"].items() if key in here["state"]}
                assert without_ids(outputs) == without_ids(here["state"]), f"{name} {number}"
