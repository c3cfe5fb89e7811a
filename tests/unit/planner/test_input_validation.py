"""The `validation` grammar of input nodes (spec 2.7.4)."""

from __future__ import annotations

import pytest

from sleipnir_scheduler.planner.validation import checked_input


@pytest.mark.conformance("I04")
@pytest.mark.parametrize(
    ("operator", "passing", "failing"),
    [(">", "abcd", "abc"), (">=", "abc", "ab"), ("<", "ab", "abc"), ("<=", "abc", "abcd"), ("==", "abc", "ab")],
)
def test_each_operator_compares_the_length(operator: str, passing: str, failing: str) -> None:
    rule = f"len(input) {operator} 3"
    assert checked_input(rule, passing) is None
    assert checked_input(rule, failing) == f"Input failed validation '{rule}' (got {len(failing)} chars)"


def test_white_space_around_the_operator_does_not_matter() -> None:
    assert checked_input("  len(input)>3 ", "abcd") is None
    assert checked_input("len(input)  <=   3", "abcd") is not None


def test_length_counts_characters_not_bytes() -> None:
    assert checked_input("len(input) == 3", "äöü") is None


@pytest.mark.conformance("I06")
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("input != ''", "Unsupported validation expression 'input != '''; only `len(input) OP N` is supported"),
        ("len(input) 3", "No comparison operator in validation expression 'len(input) 3'"),
        ("len(input) != 3", "No comparison operator in validation expression 'len(input) != 3'"),
        ("len(input) > three", "Invalid right-hand side in validation 'len(input) > three'"),
        ("len(input) > 3.5", "Invalid right-hand side in validation 'len(input) > 3.5'"),
        ("len(input) > -1", "Invalid right-hand side in validation 'len(input) > -1'"),
        ("len(input) >", "Invalid right-hand side in validation 'len(input) >'"),
    ],
)
def test_anything_else_is_an_error_that_names_the_expression(rule: str, message: str) -> None:
    assert checked_input(rule, "anything") == message


def test_no_rule_accepts_everything() -> None:
    assert checked_input(None, "") is None
