"""Where scripts and functions go on: `_next` in its forms, and the Commands of Python functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sleipnir.graph.model import FunctionNode
from sleipnir.messages import MOST_KEYS, MOST_SENDS, Send, VisitResult
from sleipnir_workers.nodes.function import run_function
from sleipnir_workers.results.routing import Route, route_of
from tests.unit.workers.visits import visit

IMPORT = "from sleipnir.commands import Command\n"


def returning(folder: Path, expression: str) -> VisitResult:
    """The result of a function that returns this."""
    folder.mkdir(exist_ok=True)
    (folder / "steps.py").write_text(f"{IMPORT}def plan(state):\n    return {expression}\n")
    node = FunctionNode(id="plan", call="steps.py:plan")
    return run_function(node, visit(node, folder))


def way(result: VisitResult) -> tuple[Any, Any]:
    assert result.ok, result.error
    return result.next, result.sends


# `_next`


@pytest.mark.conformance("FO-03", "FO-04")
@pytest.mark.parametrize(
    ("found", "route"),
    [
        ("", Route(next="")),
        ([], Route(sends=())),
        (["a"], Route(next=("a",))),
        ([{"to": "w", "update": None}], Route(sends=(Send("w"),))),
        ([{"update": {"i": 1}}], Route(sends=(Send("", {"i": 1}),))),
        (["a", {}], Route(sends=(Send("a"), Send("")))),
        ([{"to": "w", "update": {"_next": "x", "i": 1}}], Route(sends=(Send("w", {"i": 1}),))),
        (5, Route()),
        (None, Route()),
        ({"to": "w"}, Route()),
    ],
)
def test_next_in_all_its_forms(found: Any, route: Route) -> None:
    assert route_of(found) == route


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ([{}, {}, {}, {"to": 5}], "_next[3].to must be the name of a node, got 5"),
        ([{"to": "w", "update": [1]}], "_next[0].update must be an object of state keys, got [1]"),
        (["a", 7], '_next[1] must be the name of a node or {"to": node, "update": {...}}, got 7'),
        ([None], '_next[0] must be the name of a node or {"to": node, "update": {...}}, got null'),
        ([{"goto": "w"}], "_next[0] has 'goto'; a command has `to` and `update`, and nothing else"),
        (
            [{"update": dict.fromkeys(map(str, range(MOST_KEYS + 1)))}],
            "_next[0].update has 2,001 keys, at most 2,000 are possible; nest them",
        ),
        (
            ["w"] * (MOST_SENDS + 1),
            "_next names 10,001 visits, at most 10,000 are possible; a map node takes more",
        ),
    ],
)
def test_a_list_that_cannot_be_followed_fails_the_node_and_reports_where(
    tmp_path: Path, found: Any, problem: str
) -> None:
    result = returning(tmp_path, repr({"_next": found, "n": 1}))
    message = f"Function 'steps.py:plan': {problem}"
    assert (result.ok, result.error, result.error_kind) == (False, message, "output")
    assert result.delta == {"_error": {"node": "plan", "message": message}, "last_error": message}


@pytest.mark.parametrize(
    ("found", "note"),
    [
        ("x", "function set _next = 'x'"),
        (["x", "y"], "function set _next = 'x', 'y'"),
        ([], "function set _next = []"),
        ([{"to": "w"}], "1 command: w"),
        ([{"to": "w"}, {}, {"to": "v"}], "3 commands: w, plan, v"),
        ([{"to": "w"}] * 1_200, "1,200 commands: w, w, w, w, w, w and 1,194 more"),
    ],
)
def test_the_narration_reports_what_was_chosen(tmp_path: Path, found: Any, note: str) -> None:
    assert returning(tmp_path, repr({"_next": found})).notes[-1] == note


# Commands of functions


@pytest.mark.parametrize(
    ("expression", "route"),
    [
        ("Command(update={'n': 1}, goto='a')", ("a", None)),
        ("Command(update={'n': 1}, goto=['a', 'b'])", (("a", "b"), None)),
        ("Command(update={'n': 1}, goto=('a',))", (("a",), None)),
        ("Command(update={'n': 1})", (None, None)),
        ("Command(update={'n': 1}, goto='')", (None, None)),
        ("Command(update={'n': 1, '_next': 'b'})", (None, None)),
    ],
)
def test_one_command_writes_its_update_and_continues(tmp_path: Path, expression: str, route: tuple[Any, Any]) -> None:
    result = returning(tmp_path, expression)
    assert (way(result), result.delta) == (route, {"n": 1})


@pytest.mark.parametrize(
    ("expression", "sends"),
    [
        ("[]", ()),
        ("()", ()),
        ("[Command(goto='w', update={'i': i}) for i in range(2)]", (Send("w", {"i": 0}), Send("w", {"i": 1}))),
        ("[Command(update={'i': 1})]", (Send("", {"i": 1}),)),
        ("[Command(goto=['v', 'w'], update={'i': 1})]", (Send("v", {"i": 1}), Send("w", {"i": 1}))),
        ("(Command('w' and {}, 'w'),)", (Send("w"),)),
    ],
)
def test_a_list_of_commands_is_a_visit_each_and_writes_nothing(
    tmp_path: Path, expression: str, sends: tuple[Send, ...]
) -> None:
    result = returning(tmp_path, expression)
    assert (way(result), result.delta) == ((None, sends), {})


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("[Command(), {'to': 'w'}]", "returned a list with a dict at [1]; it may hold Commands only"),
        ("Command(update=[1])", "returned a Command whose update is a list; update is a dict"),
        ("Command(goto=5)", "returned a Command whose goto is a int; goto names a node or several"),
        ("Command(update={'a': {1}})", "returned something that is not JSON: key 'a' is a set, which is not JSON"),
        (
            "[Command(update={'a': {1}})]",
            "returned something that is not JSON: key '_next[0].update.a' is a set, which is not JSON",
        ),
    ],
)
def test_a_command_that_cannot_be_used_fails_the_node(tmp_path: Path, expression: str, problem: str) -> None:
    result = returning(tmp_path, expression)
    assert (result.ok, result.error, result.error_kind) == (False, f"Function 'steps.py:plan' {problem}", "output")


@pytest.mark.parametrize("expression", ["[Command(goto=5)]", "{'_next': [{'to': 5}]}"])
def test_a_target_that_is_no_name_is_reported_with_its_position(tmp_path: Path, expression: str) -> None:
    message = "Function 'steps.py:plan': _next[0].to must be the name of a node, got 5"
    assert returning(tmp_path, expression).error == message
