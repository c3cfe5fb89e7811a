"""Regular expressions of authors: what they match, what is refused, and that they end.

A test here that does not end fails by its timeout: a backtracking engine would take 2^5000 steps.
"""

from __future__ import annotations

import pytest

from sleipnir.graph.patterns import MOST_CHARACTERS, MOST_TEXT, MOST_TEXT_OF_LARGE, PatternRefused, compiled


@pytest.mark.timeout(30)
@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(.*a){20}!", "^(([a-z])+.)+[A-Z]$"])
def test_a_pattern_that_a_backtracking_engine_never_ends_is_matched(pattern: str) -> None:
    """Finding S1."""
    assert not compiled(pattern).found_in("a" * 5_000 + "?")


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("b", "abc", True),  # anywhere
        ("^b", "abc", False),
        ("^abc$", "abc\n", False),
        (r"^\d+$", "12", True),
        (r"^\d+$", "١٢", False),  # ECMA 262: ASCII
        (r"^\p{L}+$", "Öl", True),
        (r"^[\w.-]+@[\w-]+\.[a-z]{2,}$", "a.b@c-d.org", True),
        (r"^[0-9a-f]{8}-[0-9a-f]{4}$", "0123abcd-00ff", True),
        (r"^.{1,500}$", "x" * 500, True),
        (r"^.{1,500}$", "x" * 501, False),
        (r"^(?:yes|no)$", "no", True),
        (r"(?i)^yes$", "YES", True),
        ("\\u0041", "A", True),
    ],
)
def test_patterns_are_those_of_json_schema(pattern: str, text: str, matches: bool) -> None:
    assert compiled(pattern).found_in(text) is matches


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)b", "uses look-around, which cannot be bounded. Write what must match"),
        ("(?!a)b", "uses look-around"),
        ("(?<=a)b", "uses look-around"),
        ("(?<!a)b", "uses look-around"),
        (r"(a)\1", "uses a back-reference, which cannot be bounded"),
        ("(?P<x>a)(?P=x)", "uses a back-reference"),
        ("(?>a+)b", "write \\(\\?:...\\)"),
        (r"a\Z", r"uses \\Z, which is Python's own: write \$"),
        ("(", r"'\(' is not a 'regex'"),
        (r"(\w{50}){500}", "needs more than 1,048,576 bytes"),
        (r"(\p{L}{100}){100}", "needs more than 1,048,576 bytes"),
        ("a" * (MOST_CHARACTERS + 1), "has 1,001 characters, at most 1,000 are possible"),
        ("(" * 500 + ")" * 500, "is not a 'regex'|needs more than"),
    ],
)
def test_a_pattern_that_cannot_be_bounded_is_refused_with_a_way_out(pattern: str, reason: str) -> None:
    """Finding S1."""
    with pytest.raises(PatternRefused, match=reason):
        compiled(pattern)


def test_an_escaped_backslash_before_a_digit_is_no_back_reference() -> None:
    assert compiled(r"^\\1$").found_in("\\1")


def test_a_text_is_bounded_by_the_size_of_the_pattern() -> None:
    assert compiled("a$").found_in("a" * MOST_TEXT)
    with pytest.raises(PatternRefused, match="at most 200,000 characters, not 200,001"):
        compiled("a$").found_in("a" * (MOST_TEXT + 1))
    with pytest.raises(PatternRefused, match="at most 10,000 characters"):
        compiled("^.{1,500}$").found_in("a" * (MOST_TEXT_OF_LARGE + 1))
