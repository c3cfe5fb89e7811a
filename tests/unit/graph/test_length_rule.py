"""The rule about the length of an answer."""

from __future__ import annotations

import pytest

from sleipnir.graph.length_rule import LengthRuleError, parse_length_rule


@pytest.mark.conformance("I04")
@pytest.mark.parametrize(
    ("rule", "accepted"),
    [
        ("len(input) > 2", ["abc", "abcd"]),
        ("len(input) >= 2", ["ab", "abc", "abcd"]),
        ("len(input) < 2", ["", "a"]),
        ("len(input) <= 2", ["", "a", "ab"]),
        ("len(input)==2", ["ab"]),
        ("  len(input)  >=  02  ", ["ab", "abc", "abcd"]),
    ],
)
def test_each_operator_compares_the_number_of_characters(rule: str, accepted: list[str]) -> None:
    parsed = parse_length_rule(rule)
    assert [answer for answer in ("", "a", "ab", "abc", "abcd") if parsed.accepts(answer)] == accepted


def test_a_letter_of_several_bytes_counts_once() -> None:
    assert parse_length_rule("len(input) == 3").accepts("äö€")


def test_a_refusal_quotes_the_rule_and_counts_the_answer() -> None:
    assert parse_length_rule("len(input) > 3").refusal("äb") == "Input failed validation 'len(input) > 3' (got 2 chars)"


@pytest.mark.parametrize(
    "rule", ["", "len(input) >", "len(input) > 1.5", "len(input) > ²", "len(input) > " + "9" * 5000]
)
def test_a_text_that_is_no_rule_is_an_error(rule: str) -> None:
    with pytest.raises(LengthRuleError):
        parse_length_rule(rule)
