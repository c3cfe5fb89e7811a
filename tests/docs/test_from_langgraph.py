"""docs/from-langgraph.md is true: of every name of LangGraph it says whether we have it, and with which parameters.

tests/fixtures/langgraph_names.json has LangGraph's names and parameters; ops/bench/langgraph_names.py makes it, run by
the interpreter of the bench's peers.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pytest

import sleipnir
from ops.bench.peers import REQUIREMENTS, VENV
from sleipnir import START, Command, StateGraph
from sleipnir.errors import SleipnirError
from sleipnir.python_graph.compiled import CompiledGraph

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "from-langgraph.md").read_text()
RECORDED = json.loads((ROOT / "tests" / "fixtures" / "langgraph_names.json").read_text())
HEADINGS = {
    "langgraph.graph": "langgraph.graph",
    "Methods of StateGraph": "StateGraph",
    "Methods of CompiledStateGraph": "CompiledStateGraph",
    "langgraph.types": "langgraph.types",
    "langgraph.func": "langgraph.func",
}
"""The part of the list that each table is about."""

OWNERS: Mapping[str, Any] = {"StateGraph": StateGraph, "CompiledStateGraph": CompiledGraph}


class Row(NamedTuple):
    """A row of a table. `part` is that of the recorded list."""

    part: str
    name: str
    state: str
    note: str

    def __str__(self) -> str:
        return f"{self.part}.{self.name}"

    @property
    def ours(self) -> Any:
        owner = OWNERS.get(self.part, sleipnir)
        return getattr(owner, self.name, None) if self.name in names_of(owner) else None


def names_of(owner: Any) -> set[str]:
    return set(sleipnir.__all__) if owner is sleipnir else {name for name in dir(owner) if not name.startswith("_")}


def rows_below(heading: str) -> list[Row]:
    _, _, rest = PAGE.partition(f"\n### {heading}\n")
    lines = [line for line in rest.partition("\n### ")[0].splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|", 2)] for line in lines]
    return [Row(HEADINGS[heading], name.strip("`"), state, note) for name, state, note in cells]


ROWS = [row for heading in HEADINGS for row in rows_below(heading)]


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_table_has_every_name_of_langgraph_and_no_other(heading: str) -> None:
    assert [row.name for row in rows_below(heading)] == list(RECORDED[HEADINGS[heading]])


def test_the_page_names_the_version_and_the_bench_installs_it() -> None:
    assert f"Of LangGraph {RECORDED['version']}. " in PAGE
    assert f"langgraph=={RECORDED['version']}\n" in REQUIREMENTS.read_text()


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_a_row_says_of_us_is_true(row: Row) -> None:
    assert row.state in ("same", "differs", "no")
    if row.state == "no":
        assert row.ours is None, "the page says that it does not exist"
    else:
        assert row.ours is not None, "the page says that it exists"
    if row.state == "same":
        assert lacking(row.ours, RECORDED[row.part][row.name] or []) == []
    else:
        assert row.note, "the page must say what differs, or why it is not there"


def lacking(ours: Any, theirs: list[str]) -> list[str]:
    """The parameters of theirs that ours does not have, or has at another place."""
    if not theirs:
        return []
    by_place, _, by_name = "\n".join(theirs).partition("*")
    parameters = [parameter for name, parameter in inspect.signature(ours).parameters.items() if name != "self"]
    places = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    names = {parameter.name for parameter in parameters}
    moved = [name for name, own in zip(by_place.split(), [*places, *theirs], strict=False) if name != own]
    return moved + [name for name in by_name.split() if name not in names]


def test_a_parameter_that_is_missing_or_moved_is_found() -> None:
    def ours(first: int, second: int, *, third: int) -> None: ...

    assert lacking(ours, ["first", "second", "*", "third"]) == []
    assert lacking(ours, ["second", "first"]) == ["second", "first"]
    assert lacking(ours, ["first", "*", "fourth"]) == ["fourth"]


# --- what differs on purpose


class State(TypedDict):
    notes: list
    seen: set[int]


def graph_of(node: Callable[..., Any], **options: Any) -> CompiledGraph:
    return StateGraph(State).add_node("node", node, **options).add_edge(START, "node").compile()


def test_values_of_declared_types_are_converted_and_others_fail_their_node() -> None:
    assert graph_of(lambda state: {"seen": {1, 2}}).invoke({"notes": []}) == {"notes": [], "seen": {1, 2}}
    with pytest.raises(TypeError, match="node 'node': Type is not JSON serializable"):
        graph_of(lambda state: {"notes": [object()]}).invoke({"notes": []})


def test_a_node_gets_a_copy_of_the_state() -> None:
    assert graph_of(lambda state: state["notes"].append(1)).invoke({"notes": []}) == {"notes": []}


def test_a_target_that_does_not_exist_fails_the_run() -> None:
    with pytest.raises(SleipnirError, match="Node 'nowhere' not found"):
        graph_of(lambda state: Command(goto="nowhere")).invoke({"notes": []})


def test_an_async_node_runs_under_invoke() -> None:
    async def node(state: State) -> dict[str, Any]:
        return {"notes": [1]}

    assert graph_of(node).invoke({"notes": []}) == {"notes": [1]}


def test_a_timeout_applies_to_nodes_that_are_not_async_and_is_an_hour_without_one() -> None:
    bounded, unbounded = graph_of(lambda state: time.sleep(3), timeout=1), graph_of(lambda state: None)
    with pytest.raises(SleipnirError, match="timed out after 1s"):
        bounded.invoke({"notes": []})
    assert getattr(unbounded.model.nodes["node"], "timeout") == 3600  # noqa: B009  (nodes of other types have none)


def test_an_unknown_keyword_or_stream_mode_is_an_error() -> None:
    with pytest.raises(TypeError, match="retries"):
        graph_of(lambda state: None, retries=3)
    with pytest.raises(ValueError, match="unknown stream_mode 'message'"):
        list(graph_of(lambda state: None).stream({"notes": []}, stream_mode="message"))


# --- the list


def test_the_list_is_what_langgraph_has() -> None:
    """Where `make bench` has made the environment of the peers."""
    if not (VENV / ".requirements").exists():
        pytest.skip("the environment of the bench's peers is not there; make bench makes it")
    command = [str(VENV / "bin" / "python"), str(ROOT / "ops" / "bench" / "langgraph_names.py")]
    assert json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout) == RECORDED
