"""The examples of docs/python-graphs.md on the fleet: each ends in the state that it has in process."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sleipnir.commands import Command
from sleipnir.python_graph.agent_modules import load
from tests.processes import Stack, wait_until

FOLDER = Path(__file__).parents[2] / "docs" / "python_graphs"

INPUTS: dict[str, dict[str, Any]] = {
    "chatbot_with_tools": {"messages": [{"role": "user", "content": "What is the weather in Oslo?", "id": "m1"}]},
    "conditional_loop": {"number": 2},
    "human_in_the_loop": {"topic": "bells"},
    "map_reduce": {"topics": ["bells", "bridges", "boats"]},
    "parallel": {"text": "yesterday Ada met Grace"},
    "plan_and_execute": {"goal": "train fares"},
    "react_loop": {"question": "How many people live in Norway's capital?"},
    "reflection": {"task": "a note on bells"},
    "subgraph": {"topic": "bells"},
    "supervisor": {"work": ["2 + 3 + 4", "the bell is cracked"]},
}


def test_every_example_is_run() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == INPUTS.keys()


@pytest.mark.parametrize("name", INPUTS)
def test_an_example_ends_on_the_fleet_in_the_state_that_it_has_in_process(
    name: str, stack: Stack, tmp_path: Path
) -> None:
    agent = tmp_path / name
    agent.mkdir()
    shutil.copy(FOLDER / f"{name}.py", agent / "graph.py")
    with stack.client() as client:
        run = client.submit(agent, state=INPUTS[name])
        if name == "human_in_the_loop":
            wait_until(lambda: bool(run.gates()), "the run asks")
            run.answer("yes")
        info = run.wait(60)
        assert (info.status, info.error) == ("completed", None)
        state = {key: value for key, value in run.state().items() if key != "initial_prompt"}
    assert without_ids(state) == without_ids(in_process(agent, INPUTS[name]))


def in_process(agent: Path, input: dict[str, Any]) -> Any:
    """The final state in this process, as it is stored."""
    graph = load((agent / "graph.py").resolve()).graph
    config = {"configurable": {"thread_id": "1"}}
    state = graph.invoke(input, config)
    if "__interrupt__" in state:
        state = graph.invoke(Command(resume="yes"), config)
    return graph.objects.encoded(state)


def without_ids(state: dict[str, Any]) -> dict[str, Any]:
    """Messages that a node wrote without an id have a random one."""
    messages = [{**message, "id": None} for message in state.get("messages", ())]
    return {**state, "messages": messages} if messages else state
