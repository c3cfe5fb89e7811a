"""The YAML that is read: what a scalar is, where a value stands, and what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.graph.source import MAX_ALIASED, MAX_DEPTH, read, scalar
from tests.examples import examples

SCALARS: list[tuple[str, Any]] = [
    ("", None), ("~", None), ("null", None), ("Null", None), ("NULL", None),
    ("true", True), ("True", True), ("TRUE", True), ("false", False), ("False", False), ("FALSE", False),
    ("0", 0), ("7", 7), ("-3", -3), ("+3", 3), ("-0", 0), ("0x1F", 31), ("-0x10", -16), ("0o17", 15), ("0b101", 5),
    ("18446744073709551615", 2**64 - 1), ("-9223372036854775808", -(2**63)),
    ("1.0", 1.0), ("-1.5", -1.5), ("+.5", 0.5), ("1.", 1.0), (".5", 0.5), ("1e3", 1000.0), ("1.5E-2", 0.015),
    ("6.02e+23", 6.02e23), (".inf", math.inf), ("-.Inf", -math.inf), ("+.INF", math.inf),
    ("100000000000000000000", 1e20),
    ("01.5", 1.5),
]  # fmt: skip

TEXTS = [
    "yes", "no", "on", "off", "Yes", "NO", "On", "OFF", "y", "n", "Y", "N", "tRUE", "nULL", "nil", "None",
    "2024-01-01", "2024-01-01T12:30:45Z", "12:30:45", "190:20:30", "1_000", "0x_1", "0xG", "0o8", "0b2", "007", "00",
    ".infinity", "1,000", "1.2.3", "v1", "1e", "e5", ".", "-", "+", "--1", "+-1", "- 1", "inf", "nan", "-inf",
    "infinity", "1e999", "9" * 5000, "0x" + "f" * 17, "=", "<<", "１２", "1 ", "1\n",
]  # fmt: skip


@pytest.mark.conformance("T14")
@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_an_unquoted_scalar_has_the_value_and_the_type_of_yaml_1_2(text: str, value: Any) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)


@pytest.mark.conformance("T14")
@pytest.mark.parametrize("text", TEXTS)
def test_what_yaml_1_2_does_not_know_is_text(text: str) -> None:
    assert scalar(text) == text


def test_not_a_number_is_a_float() -> None:
    assert all(math.isnan(scalar(text)) for text in (".nan", ".NaN", ".NAN"))


@pytest.mark.parametrize("quoted", ['"true"', "'5'", '"~"', "!!str true", "! 5", "|-\n  5", ">-\n  null"])
def test_a_quoted_scalar_is_text(quoted: str) -> None:
    assert isinstance(read(f"a: {quoted}\n", "g.yaml").data["a"], str)


def test_tags_of_plain_values_are_understood_and_others_refused() -> None:
    assert read("[!!int 5, !!float 1, !!bool true, !!null ~, !!str 5]", "g.yaml").data == [5, 1, True, None, "5"]
    for text in ("a: !!int x", "a: !thing 1", "a: !!python/object:os.system [x]", "a: !!set {b: ~}"):
        (problem,) = read(text, "g.yaml").problems
        assert problem.level == "error"
        assert "tag" in problem.message


def test_every_value_has_its_position_and_its_spelling() -> None:
    document = read("name: g\nnodes:\n  a:\n    options: [yes, 0x10]\n    other:\n      - 1.50\n      - x\n", "g.yaml")
    assert document.data == {"name": "g", "nodes": {"a": {"options": ["yes", 16], "other": [1.5, "x"]}}}
    assert document.positions == {
        (): (1, 1),
        ("name",): (1, 1),
        ("nodes",): (2, 1),
        ("nodes", "a"): (3, 3),
        ("nodes", "a", "options"): (4, 5),
        ("nodes", "a", "options", 0): (4, 15),
        ("nodes", "a", "options", 1): (4, 20),
        ("nodes", "a", "other"): (5, 5),
        ("nodes", "a", "other", 0): (6, 9),
        ("nodes", "a", "other", 1): (7, 9),
    }
    assert document.texts == {("nodes", "a", "options", 1): "0x10", ("nodes", "a", "other", 0): "1.50"}


def test_columns_count_characters_and_not_bytes() -> None:
    assert read("{ä€😀: 1, b: 2}", "g.yaml").positions["b",] == (1, 10)


def test_a_duplicate_key_is_an_error_that_names_both_places() -> None:
    document = read("nodes:\n  a: 1\n  b: 2\n  a: 3\n", "g.yaml")
    assert [str(problem) for problem in document.problems] == [
        "g.yaml:4:3: duplicate key 'a': it is already set at line 2, column 3\n    Keep one of the two."
    ]


def test_keys_with_the_same_text_are_duplicates() -> None:
    problems = read('1: a\n"1": b\n', "g.yaml").problems
    assert [problem.message for problem in problems if problem.level == "error"] == [
        "duplicate key '1': it is already set at line 1, column 1"
    ]


def test_a_key_that_is_not_text_becomes_the_text_it_was_written_as() -> None:
    document = read("{true: a, 0x10: b, 1.50: c, ~: d, yes: e}", "g.yaml")
    assert document.data == {"true": "a", "0x10": "b", "1.50": "c", "~": "d", "yes": "e"}
    assert [problem.message for problem in document.problems] == [
        "key true is not text; it is read as 'true'",
        "key 0x10 is not text; it is read as '0x10'",
        "key 1.50 is not text; it is read as '1.50'",
        "key ~ is not text; it is read as '~'",
    ]
    assert {problem.level for problem in document.problems} == {"warning"}


def test_a_mapping_as_a_key_is_an_error_in_its_place() -> None:
    (problem,) = read("a:\n  prompt: {{topic}}\n", "g.yaml").problems
    assert (problem.level, problem.line, problem.column) == ("error", 2, 12)
    assert problem.message == "a key must be text, not a list or a mapping"


def test_an_alias_repeats_the_value_of_its_anchor() -> None:
    document = read("a: &x {b: [1, 2]}\nc: *x\n", "g.yaml")
    assert document.data == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}
    assert document.positions["c", "b", 1] == document.positions["a", "b", 1] == (1, 15)
    assert document.texts["c", "b", 1] == "2"


def test_a_merge_key_is_left_out_with_a_warning() -> None:
    document = read("base: &x {b: 1}\nc:\n  <<: *x\n  d: 2\n", "g.yaml")
    assert document.data == {"base": {"b": 1}, "c": {"d": 2}}
    assert [str(problem).splitlines()[0] for problem in document.problems] == [
        "g.yaml:3:3: warning: merge keys (`<<`) are not applied; this entry is ignored"
    ]


def test_aliases_that_make_a_file_explode_are_refused() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 9)]
    document = read("\n".join(lines), "g.yaml")
    assert not document.readable
    assert [problem.message for problem in document.problems] == [
        f"aliases make this file grow by more than {MAX_ALIASED} values"
    ]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_nesting_without_end_is_refused_and_does_not_kill_the_process(opening: str) -> None:
    document = read(opening * 200_000, "g.yaml")
    assert not document.readable
    assert [problem.message for problem in document.problems] == [
        f"values are nested more than {MAX_DEPTH} levels deep"
    ]


def test_nesting_by_aliases_is_bounded_too() -> None:
    half = MAX_DEPTH // 2 + 1
    document = read(f"a: &a {'[' * half}{']' * half}\nb: {'[' * half}*a{']' * half}\n", "g.yaml")
    assert not document.readable
    assert "nested" in document.problems[0].message


UNREADABLE = [
    ("", None, "the file is empty"),
    ("# nothing\n", None, "the file is empty"),
    ("a: 1\n---\nb: 2\n", (2, 1), "a second YAML document starts here"),
    ("a:\n\t- b\n", (2, 1), "YAML parsing error: a tab is not valid as indentation"),
    ("a: 'x\nb: y\n", (1, 4), "YAML parsing error: the quote that opens here is never closed"),
    ('a: "x\nb: y\n', (1, 4), "YAML parsing error: the quote that opens here is never closed"),
    ("a: @x\n", (1, 4), "YAML parsing error: a value cannot start with '@'"),
    ("a: `x`\n", (1, 4), "YAML parsing error: a value cannot start with '`'"),
    ("a: b: c\n", (1, 5), "YAML parsing error: a ':' is not allowed here"),
    ('a: "\\q"\n', (1, 5), "YAML parsing error: while parsing a quoted scalar: found unknown escape character"),
    ("a: [1, 2\nb: 3\n", (2, 2), "YAML parsing error: while parsing a flow sequence: did not find expected ',' or ']'"),
    ("a: 1\n  b\n c: 2\n", (3, 3), "YAML parsing error: a ':' is not allowed here"),
    ("a: *x\n", (1, 4), "alias '*x' has no anchor '&x' that ends above it"),
    ("a: &x [*x]\n", (1, 8), "alias '*x' has no anchor '&x' that ends above it"),
    ("a: 1\nb: x\x00y\n", (2, 5), "YAML parsing error: the character U+0000 is not allowed here"),
    ("a: \ud800\n", (1, 4), "YAML parsing error: the character U+D800 is not allowed here"),
]


@pytest.mark.parametrize(("text", "position", "message"), UNREADABLE)
def test_text_that_is_no_yaml_is_refused_with_its_place(
    text: str, position: tuple[int, int] | None, message: str
) -> None:
    document = read(text, "g.yaml")
    assert not document.readable
    (problem,) = document.problems
    assert (problem.level, problem.message) == ("error", message)
    assert ((problem.line, problem.column) if problem.line else None) == position


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert read("\ufeffa: 1\n", "g.yaml").data == {"a": 1}


YAML_LIKE = st.text(st.sampled_from("ab:-[]{}&*!|>'\"%@`#,?~<.01 \n\t\ufeff\x00é\ud800"), max_size=60)


@settings(max_examples=examples(400), deadline=None)
@given(st.one_of(st.text(max_size=80), YAML_LIKE))
def test_reading_never_raises(text: str) -> None:
    document = read(text, "g.yaml")
    assert document.readable or any(problem.level == "error" for problem in document.problems)


PLANE_0 = st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])  # JSON escapes the others as surrogates
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(PLANE_0, max_size=8),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(PLANE_0, max_size=6), children),
    max_leaves=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(JSON)
def test_json_is_read_as_the_data_it_is(data: Any) -> None:
    document = read(json.dumps(data), "g.yaml")
    assert document.problems == ()
    assert document.data == data


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(TEXT, st.lists(TEXT, max_size=3), max_size=5))
def test_what_pyyaml_writes_is_read_back(data: dict[str, list[str]]) -> None:
    written = yaml.safe_dump(data, allow_unicode=True, default_style='"')
    assert read(written, "g.yaml").data == data
