"""Conditions: what they see, which keys they read, that they are true or false, and what an author is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sleipnir.graph.expression import FUNCTIONS, MOST_CHARACTERS, MOST_LEVELS, ExpressionError, parse

STATE: dict[str, Any] = {
    "n": 3,
    "half": 0.5,
    "whole": 1.0,
    "name": "ann",
    "a b": 1,
    "list": [1, 2, 3],
    "deep": {"state": {"n": 4}},
    "nothing": None,
    "yes": True,
    "at": "2021-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("state.n > 2", True),
        ("state.n > 2.5 && state.half < 1", True),
        ("state.whole == 1", True),
        ("state.yes == 1", False),
        ("state.name == 'ann' || state.name == 'bob'", True),
        ("!(state.name in ['ann'])", False),
        ('state["a b"] == 1', True),
        ("state.deep.state.n == 4", True),
        ("state.list.exists(item, item > 2)", True),
        ("state.list.filter(item, item > 1).size() == 2", True),
        ("has(state.missing)", False),
        ("has(state.n) && state.n == 3", True),
        ("state.nothing == null", True),
        ("state.name.matches('^a+n')", True),
        ("timestamp(state.at) > timestamp('2020-12-31T00:00:00Z')", True),
        ("state.n == 3 ? true : false", True),
        ("'n' in state && size(state) > 5", True),
        ("type(state.n) == int", True),
    ],
)
def test_an_expression_is_true_or_false_of_a_state(text: str, holds: bool) -> None:
    assert parse(text).holds(STATE) is holds


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("state.a > 1 && state . b == 'state.c'", {"a", "b"}),
        ("state['a b'] == 1 || state[\"c\"]==1", {"a b", "c"}),
        ("has(state.a) && state.b.state.c == 1", {"a", "b"}),
        ("state.a.exists(x, x.state == state.b) // not state.c", {"a", "b"}),
        ('r"state.c" == state.a', {"a"}),
        ("true", set()),
        ("size(state) > 1", None),
        ("'a' in state", None),
        ("state[state.a] == 1", None),
        ("state['a' + state.b] == 1", None),
        ("state['a\\x62'] == 1", None),
        ("[state].size() == 1", None),
        ("state.size() == 1", None),
    ],
)
def test_the_keys_that_an_expression_reads_are_known_before_it_is_evaluated(text: str, keys: set[str] | None) -> None:
    assert parse(text).keys == keys


@given(st.sets(st.sampled_from(["n", "half", "name", "list", "yes"])), st.booleans())
def test_a_value_that_is_not_read_changes_nothing(others: set[str], there: bool) -> None:
    state = {name: object() for name in others if there} | {"whole": 1.0}
    assert parse("state.whole == 1.0").holds(state)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("state.n >", "ends too early"),
        ("", "is empty"),
        ("state.n = 1", "unexpected =; for = write == (at character 9)"),
        ("state.n and state.half", "unexpected and; for and write && (at character 9)"),
        ("not state.yes", "unexpected state; for not write ! (at character 5)"),
        ("state.n > 1 &&\n  state.half )", "unexpected ) (at line 2, character 14)"),
        ("state.yes == True", "'True' does not exist; write true"),
        ("n > 1", "'n' does not exist; write state.n for a state key, and put text in quotes"),
        ("state.list.all(x, y > 1)", "'y' does not exist; write state.y for a state key, and put text in quotes"),
        ("{{n}} > 1", "placeholders are not allowed in conditions; write state.key"),
        ("exec(state.n)", f"function 'exec' does not exist; available are has, {', '.join(sorted(FUNCTIONS))}"),
        ("'x' == '" + "x" * MOST_CHARACTERS + "'", "has 4,009 characters, at most 4,000 are possible"),
    ],
)
def test_what_is_no_expression_is_refused_before_any_run_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text)
    shown = " ".join(text.split())
    shown = shown if len(shown) < 200 else shown[:200] + "..."
    assert str(error.value) == f"expression `{shown}`: {problem}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("state.missing > 1", "'missing' does not exist; check for it first with has(...)"),
        ("state.deep.other == 1", "'other' does not exist; check for it first with has(...)"),
        ("state.name", "is neither true nor false but of type string"),
        ("state.n + 1", "is neither true nor false but of type number"),
        ("state.nothing", "is neither true nor false but of type null"),
        (
            "state.n > 'a'",
            "No such overload: the operation is not defined for the given operand types;"
            " int(), double() and string() convert",
        ),
        ("state.half / 2 > 1.0", "Unsupported operation: float / int; int(), double() and string() convert"),
        ("state.n / 0 == 1", "division by zero in CEL expression"),
        ("state.list[7] == 1", "index out of bounds: 7"),
    ],
)
def test_an_expression_without_a_truth_is_an_error_that_names_it(text: str, problem: str) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text).holds(STATE)
    assert str(error.value) == f"expression `{text}`: {problem}"


def test_every_function_that_is_offered_exists() -> None:
    at = "timestamp('2020-01-01T00:00:00Z')"
    for name in FUNCTIONS:
        results = [_error_of(call) for call in (f"{name}('1')", f"{name}('1s')", f"'1'.{name}('1')", f"{at}.{name}()")]
        results.append(None if name == "timestamp" and _error_of(at) is None else "never tried")
        assert None in results, f"{name}: {results}"


def test_a_value_nested_too_deep_is_an_error_not_a_crash() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ExpressionError, match=f"reads a value of more than {MOST_LEVELS} levels"):
        parse("state.deep == 1").holds({"deep": deep})
    assert parse("state.n == 1").holds({"deep": deep, "n": 1})
    while deep:  # or its end would be one recursion too
        deep = deep.pop()


def test_an_expression_nested_too_deep_is_an_error_not_a_crash() -> None:
    with pytest.raises(ExpressionError):
        parse("(" * 1_900 + "1" + ")" * 1_900)


@given(st.text("state.[]()'\"! <>=&|?:1xn+-{}\\\n", max_size=30))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        parse(text).holds(STATE)
    except ExpressionError as error:
        assert "\n" not in str(error)


def test_one_text_is_parsed_once() -> None:
    assert parse("state.n == 3") is parse("state.n == 3")


def _error_of(text: str) -> str | None:
    try:
        parse(text + " == 1").holds({})
    except ExpressionError as error:
        return str(error)
    return None
