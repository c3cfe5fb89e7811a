"""Bodies of map nodes: what a visit for one item delivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import FunctionNode, MapNode, Node
from sleipnir.messages import VisitResult
from sleipnir.runs.visits import Item
from sleipnir_workers.visits.guard import execute
from tests.unit.workers.visits import visit


def run(folder: Path, returned: str, *, position: int = 0, body: tuple[str, ...] = ("step",), **fields: Any) -> Any:
    """The result of a function that returns this, as a body of the map `each`, for its third item."""
    folder.mkdir(exist_ok=True)
    (folder / "steps.py").write_text(f"def step(state):\n    return {returned}\n")
    node: Node = FunctionNode(id="step", call="steps.py:step", **fields)
    owner = MapNode(id="each", over="{{items}}", item="item", body=list(body), collect_into="all")
    item = Item(map=3, index=2, position=position, of="each")
    result = execute(visit(node, folder, others=[owner], item=item, state={"item": 5}))
    assert result is not None
    return result


def test_the_last_body_leaves_the_output_key_alone(tmp_path: Path) -> None:
    result = run(tmp_path, "{'output': state['item'] * 2, 'more': 1}")
    assert (result.ok, dict(result.delta)) == (True, {"output": 10})


def test_state_updates_may_set_the_output_key(tmp_path: Path) -> None:
    result = run(tmp_path, "{'n': 1}", state_updates={"output": "{{n}} of {{item}}"})
    assert dict(result.delta) == {"output": "1 of 5"}


def test_without_the_output_key_the_whole_object_is_the_result(tmp_path: Path) -> None:
    assert dict(run(tmp_path, "{'n': 1, '_next': 'x'}").delta) == {"output": {"n": 1}}


@pytest.mark.parametrize("returned", ["None", "{}", "{'_next': 'x'}"])
def test_a_body_that_leaves_nothing_fails_its_item(tmp_path: Path, returned: str) -> None:
    message = "map node 'each': sub-branch [2] did not write `output_key` 'output'"
    assert run(tmp_path, returned) == VisitResult(ok=False, error=message, error_kind="output")


def test_a_body_before_the_last_leaves_all_it_wrote(tmp_path: Path) -> None:
    result = run(tmp_path, "{'n': 1, 'm': 2}", body=("step", "other"))
    assert dict(result.delta) == {"n": 1, "m": 2}


def test_the_same_node_may_be_in_a_chain_twice(tmp_path: Path) -> None:
    first, last = (run(tmp_path, "{'output': 1, 'm': 2}", body=("step", "step"), position=n) for n in (0, 1))
    assert (dict(first.delta), dict(last.delta)) == ({"output": 1, "m": 2}, {"output": 1})


@pytest.mark.parametrize("chosen", ["'x'", "['x', 'y']", "[{'to': 'x', 'update': {}}]", "[]"])
@pytest.mark.parametrize("position", [0, 1])
def test_the_next_of_a_body_is_ignored(tmp_path: Path, chosen: str, position: int) -> None:
    result = run(tmp_path, f"{{'output': 1, '_next': {chosen}}}", body=("step", "step"), position=position)
    assert (result.ok, result.next, result.sends) == (True, None, None)


def test_a_body_that_fails_leaves_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, "1 / 0")
    assert (result.ok, result.error_kind, result.error_type) == (False, "exception", "builtins:ZeroDivisionError")
    assert dict(result.delta) == {}


def test_a_crash_of_the_executor_leaves_nothing(tmp_path: Path) -> None:
    result = run(tmp_path, "exec('raise KeyboardInterrupt')")
    assert (result.ok, result.error_kind, dict(result.delta)) == (False, "crash", {})
