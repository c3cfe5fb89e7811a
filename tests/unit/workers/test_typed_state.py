"""State keys with declared types: what nodes may write, and what Python functions see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import Branch, FunctionNode, StateField
from sleipnir.messages import VisitResult
from sleipnir_workers.results import typed_state
from sleipnir_workers.visits.guard import execute
from tests.unit.workers.visits import EXECUTORS, visit

assert EXECUTORS

FIELDS = {
    "n": StateField(type="int"),
    "x": StateField(type="float"),
    "ok": StateField(type="bool"),
    "text": StateField(type="string"),
    "words": StateField(type="list", items="string", reducer="append"),
    "numbers": StateField(type="list", items="int", reducer="append"),
    "data": StateField(type="object"),
    "total": StateField(type="int", reducer="sum"),
    "when": StateField(type="datetime"),
    "times": StateField(type="list", items="datetime"),
    "raw": StateField(type="bytes"),
    "doc": StateField(type="types_.py:Doc"),
    "docs": StateField(type="list", items="types_.py:Doc", reducer="append"),
    "any": StateField(),
    "best": StateField(type="types_.py:Doc", reducer="merge.py:best"),
    "late": StateField(type="datetime", reducer="merge.py:latest"),
}

TYPES = """
from datetime import datetime
from pydantic import BaseModel

class Doc(BaseModel):
    title: str
    at: datetime | None = None
"""

MERGE = """
from types_ import Doc

def best(current, incoming):
    if isinstance(incoming, dict):
        incoming = Doc(title=incoming["name"])
    return incoming if current is None or incoming.title > current.title else current

def latest(current, incoming):
    return incoming if current is None or incoming > current else current
"""


def call(folder: Path, returned: str, *, above: str = "", state: dict[str, Any] | None = None, **fields: Any) -> Any:
    """The result of a function that returns this, in a graph that declares FIELDS."""
    folder.mkdir(exist_ok=True)
    (folder / "types_.py").write_text(TYPES)
    (folder / "merge.py").write_text(MERGE)
    (folder / "steps.py").write_text(
        "from datetime import datetime, timedelta\nfrom sleipnir.commands import Command\nfrom types_ import Doc\n"
        f"def step(state):\n    {above or 'pass'}\n    return {returned}\n"
    )
    updates = fields.pop("state_updates", None)
    branch = Branch(call="steps.py:step")
    node = FunctionNode(id="step", call="steps.py:step", state_updates=updates, branch=branch)
    graph = {"state": FIELDS, "version": "sleipnir/1"}
    result = execute(visit(node, folder, graph=graph, state=state or {}, **fields))
    assert result is not None
    return result


def refusal(problem: str) -> str:
    return f"node 'step' writes what the graph's `state:` does not allow: {problem}"


# What nodes may write


@pytest.mark.conformance("ST-04")
@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("{'n': 'five', 'text': 'x'}", "state key 'n' must be int, not string 'five'"),
        ("{'n': True}", "state key 'n' must be int, not bool True"),
        ("{'n': 1.0}", "state key 'n' must be int, not float 1.0"),
        ("{'words': ['a', 5]}", "state key 'words' [1] must be string, not int 5"),
        ("{'total': 'x'}", "state key 'total' must be int, not string 'x'"),
        ("{'when': 'soon'}", "state key 'when' must be datetime (ISO-8601 text), not string 'soon'"),
    ],
)
def test_a_value_of_another_type_fails_the_node_and_is_named(tmp_path: Path, returned: str, problem: str) -> None:
    result = call(tmp_path, returned)
    message = refusal(problem)
    assert (result.ok, result.error_kind, result.error) == (False, "state", message)
    assert result.delta == {"_error": {"node": "step", "message": message}, "last_error": message}


@pytest.mark.conformance("ST-12")
def test_what_fits_is_written_and_undeclared_keys_hold_anything(tmp_path: Path) -> None:
    written = {"n": 1, "x": 2, "words": "a", "total": 5, "any": [None], "free": {"n": "five"}}
    assert call(tmp_path, repr(written)).delta == written


def test_a_graph_that_declares_nothing_checks_nothing(tmp_path: Path) -> None:
    node = FunctionNode(id="step", call="steps.py:step", state_updates={"m": "{{n}}"})
    (tmp_path / "steps.py").write_text("def step(state): return {'n': 5}")
    result = execute(visit(node, tmp_path))
    assert result is not None
    assert result.delta == {"n": 5, "m": "5"}


@pytest.mark.parametrize(
    ("key", "value", "written"),
    [
        ("n", 5, 5),
        ("n", "5", 5),
        ("x", 1.5, 1.5),
        ("ok", True, True),
        ("text", 5, "5"),
        ("text", "true", "true"),
        ("data", {"a": [1]}, {"a": [1]}),
        ("words", "a", "a"),
        ("words", ["a"], '["a"]'),
        ("numbers", 5, 5),
        ("numbers", [5, 6], [5, 6]),
        ("any", 5, "5"),
        ("free", 5, "5"),
    ],
)
def test_text_of_state_updates_becomes_the_value_that_the_key_is_declared_to_hold(
    tmp_path: Path, key: str, value: Any, written: Any
) -> None:
    result = call(tmp_path, "{}", state={"given": value}, state_updates={key: "{{given}}"})
    assert (result.ok, result.delta) == (True, {key: written})


@pytest.mark.parametrize("text", ["five", "5.5", "NaN", '"5"', ""])
def test_text_that_spells_no_such_value_fails_the_node(tmp_path: Path, text: str) -> None:
    result = call(tmp_path, "{}", state={"given": text}, state_updates={"n": "{{given}}"})
    assert result.error == refusal(f"state key 'n' must be int, not string {text!r}")


def test_a_failure_leaves_the_keys_that_fit(tmp_path: Path) -> None:
    its_visit = visit(FunctionNode(id="step", call="a.py:b"), tmp_path, graph={"state": FIELDS})
    failure = VisitResult(ok=False, delta={"n": "LLM node failed: x", "text": "LLM node failed: x"}, error="x")
    assert typed_state.checked(its_visit, failure).delta == {"text": "LLM node failed: x"}


def test_an_update_of_a_command_is_checked_against_the_whole_type(tmp_path: Path) -> None:
    good = call(tmp_path / "good", "[Command('w' and {'n': 1, 'words': ['a']}, 'w')]")
    assert [dict(send.update) for send in good.sends] == [{"n": 1, "words": ["a"]}]
    bad = call(tmp_path / "bad", "[Command(), Command({'words': 'a'})]")
    assert bad.error == refusal("_next[1].update: state key 'words' must be list, not string 'a'")


# What functions see


def test_functions_get_and_return_times_and_bytes_as_objects(tmp_path: Path) -> None:
    state = {"when": "2026-01-02T03:04:05+01:00", "raw": "AAEC", "times": ["2026-01-02"]}
    result = call(
        tmp_path,
        "{'when': state['when'] + timedelta(days=1), 'raw': state['raw'][::-1], 'times': state['times'] * 2}",
        state=state,
    )
    assert result.delta == {
        "when": "2026-01-03T03:04:05+01:00",
        "raw": "AgEA",
        "times": ["2026-01-02T00:00:00", "2026-01-02T00:00:00"],
    }


def test_functions_get_and_return_pydantic_objects(tmp_path: Path) -> None:
    result = call(
        tmp_path,
        "{'doc': Doc(title=state['doc'].title.upper(), at=datetime(2026, 1, 2)), 'docs': state['docs'][-1]}",
        above="assert isinstance(state['doc'], Doc) and isinstance(state['docs'][0], Doc)",
        state={"doc": {"title": "a"}, "docs": [{"title": "b", "at": None}]},
    )
    assert (result.error, result.delta) == (
        None,
        {"doc": {"title": "A", "at": "2026-01-02T00:00:00"}, "docs": {"title": "b", "at": None}},
    )


def test_a_dict_for_a_pydantic_object_is_completed_or_refused(tmp_path: Path) -> None:
    assert call(tmp_path, "{'doc': {'title': 'a'}}").delta == {"doc": {"title": "a", "at": None}}
    result = call(tmp_path / "bad", "{'doc': {'title': 5}}")
    assert (result.error_kind, result.error) == (
        "state",
        "state key 'doc' holds a value that is not of type types_.py:Doc: title: Input should be a valid string",
    )


def test_a_value_that_is_no_such_object_any_more_reports_it(tmp_path: Path) -> None:
    result = call(tmp_path, "{}", state={"docs": [{"title": "a"}, {}]})
    assert (
        result.error
        == "state key 'docs' holds a value that is not of type list of types_.py:Doc: title: Field required"
    )


def test_updates_of_commands_may_hold_objects(tmp_path: Path) -> None:
    result = call(tmp_path, "[Command({'when': datetime(2026, 1, 2), 'doc': Doc(title='a')}, 'w')]")
    assert [dict(send.update) for send in result.sends] == [
        {"when": "2026-01-02T00:00:00", "doc": {"title": "a", "at": None}}
    ]


def test_objects_that_are_not_declared_are_refused_as_ever(tmp_path: Path) -> None:
    assert "key 'free' is a datetime, which is not JSON" in call(tmp_path, "{'free': datetime(2026, 1, 2)}").error


def test_the_function_of_a_conditional_edge_reads_objects(tmp_path: Path) -> None:
    state = {"when": "2026-01-02", "doc": {"title": "a"}}
    assert call(tmp_path, "f\"{state['when'].year} {state['doc'].title}\"", state=state, role="branch").next == "2026 a"


def test_reducers_get_and_return_objects(tmp_path: Path) -> None:
    overlay = {
        "best": {"incoming": [{"title": "a"}, {"title": "c"}, {"name": "b"}]},
        "late": {"current": "2026-01-02", "incoming": ["2026-01-01", "2026-01-03"]},
    }
    result = call(tmp_path, "{}", state=overlay, role="reduce")
    assert (result.error, result.delta) == (
        None,
        {"best": {"title": "c", "at": None}, "late": "2026-01-03T00:00:00"},
    )


def test_a_reducer_must_return_what_the_key_holds(tmp_path: Path) -> None:
    (tmp_path / "merge.py").write_text("def add(current, incoming): return [incoming]")
    graph = {"state": {"n": StateField(type="int", reducer="merge.py:add")}}
    node = FunctionNode(id="step", call="a.py:b")
    result = execute(visit(node, tmp_path, graph=graph, role="reduce", state={"n": {"incoming": ["x"]}}))
    assert result is not None
    assert result.error == refusal("state key 'n' must be int, not list")
