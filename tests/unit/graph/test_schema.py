"""JSON Schemas of authors: what they accept, and that applying them is bounded whatever the schema and the value."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

from sleipnir.graph import schema as json_schema
from sleipnir.graph.model import StateField
from sleipnir.graph.schema import NotChecked, Unresolvable, violation
from sleipnir.graph.state import problem
from tests.unit.graph.writing import checked

HOSTILE = "a" * 500 + "!"
DRAFTS = [
    "http://json-schema.org/draft-03/schema#",
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": "^(a+)+$"}, HOSTILE),
        ({"items": {"pattern": "^(a+)+$"}}, [HOSTILE]),
        ({"patternProperties": {"^(a+)+$": True}, "additionalProperties": False}, {HOSTILE: 1}),
        ({"propertyNames": {"pattern": "^(a+)+$"}}, {HOSTILE: 1}),
        ({"properties": {"k": {"$schema": DRAFTS[3], "pattern": "^(a+)+$"}}}, {"k": HOSTILE}),
        *(({"$schema": draft, "pattern": "^(a+)+$"}, HOSTILE) for draft in DRAFTS),
    ],
)
def test_a_value_made_for_backtracking_is_refused_at_once(schema: Any, value: Any) -> None:
    """Finding S1: of one answer the scheduler never came back."""
    found = problem(StateField(schema=schema), value)
    assert found is not None
    assert found.startswith("does not match its schema: $")


DOUBLING = {
    "$ref": "#/$defs/a0",
    "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)} | {"a60": True},
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("schema", "make"),
    [
        (DOUBLING, lambda: 1),
        ({"items": {"enum": list(range(10_000))}}, lambda: list(range(-5_000, 0))),
        ({"anyOf": [{"type": "string"}] * 1_000}, lambda: list(range(100_000))),
        ({"uniqueItems": True}, lambda: [{"n": n} for n in range(500_000)]),
        ({"items": {"type": "integer"}}, lambda: list(range(1_000_000))),
        ({"items": True}, lambda: list(range(1_000_000))),
        ({"items": {"type": "integer"}}, lambda: ["x"] * 100_000),
        ({"items": {"pattern": "a"}}, lambda: ["b" * 100_000] * 100),
    ],
    ids=["doubling $ref", "enum", "anyOf", "uniqueItems", "items", "true", "errors", "long texts"],
)
def test_the_work_of_a_check_is_bounded(schema: Any, make: Callable[[], Any]) -> None:
    """Finding S1: the steps are counted, and what is not checked to the end has not passed."""
    value = make()
    with pytest.raises(NotChecked, match="it needs more than 200,000 steps"):
        violation(schema, value)
    assert "cannot be checked, it needs" in str(problem(StateField(schema=schema), value))


def test_checks_that_share_an_allowance_have_it_in_all() -> None:
    schema = {"items": {"type": "integer", "minimum": 0}}
    with json_schema.at_most(1_000):
        assert violation(schema, [1] * 300) is None
        with pytest.raises(NotChecked, match="it needs more than 1,000 steps"):
            violation(schema, [1] * 300)
        with pytest.raises(NotChecked, match="it needs more than 1,000 steps"):
            violation(schema, [1])
    assert violation(schema, [1] * 3_000) is None
    with json_schema.at_most(1_000):
        assert violation(schema, [1] * 300) is None


def test_a_value_that_is_too_large_is_not_looked_through() -> None:
    assert json_schema._size([[1]] * 1_000_000, 40) < 60


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "#"}, 1),
        ({"items": {"$ref": "#"}}, reduce(lambda inner, _: [inner], range(900), 1)),
    ],
    ids=["a $ref to itself", "a deep value"],
)
def test_what_never_ends_is_a_problem_of_the_value_and_no_crash(schema: Any, value: Any) -> None:
    """Finding S1."""
    assert "too many levels" in str(problem(StateField(schema=schema), value))


def test_a_schema_that_is_none_is_a_problem_of_the_value_and_no_crash() -> None:
    assert "its schema is not a JSON Schema: UnknownType" in str(problem(StateField(schema={"type": "strin"}), 1))


def test_a_large_ordinary_value_is_checked() -> None:
    rows = [{"name": "abc", "count": n, "kind": "x"} for n in range(5_000)]
    schema = {
        "items": {
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z]+$"},
                "count": {"type": "integer"},
                "kind": {"enum": ["x", "y"]},
            },
        }
    }
    assert violation(schema, rows) is None
    rows[4_999]["kind"] = "z"
    assert violation(schema, rows) == "$[4999].kind: 'z' is not one of ['x', 'y']"


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 2], True),
        ([1, 1.0], False),
        ([1, True], True),
        ([0, False], True),
        ([None, 0], True),
        (["1", 1], True),
        ([[1], [2]], True),
        ([{"a": 1, "b": 2.0}, {"b": 2, "a": 1}], False),
    ],
)
def test_unique_items_are_those_of_json(items: list[Any], unique: bool) -> None:
    assert (violation({"uniqueItems": True}, items) is None) is unique


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"x-a": 1, "name": 2}, None),
        ({"x-a": "no"}, "$['x-a']: 'no' is not of type 'integer'"),
        ({"y": 1}, "$: 'y' does not match any of the regexes: '^x-'"),
    ],
)
def test_properties_are_matched_by_patterns(value: Any, message: str | None) -> None:
    schema = {
        "properties": {"name": True},
        "patternProperties": {"^x-": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert violation(schema, value) == message


def test_additional_properties_have_a_schema_of_their_own() -> None:
    schema = {"properties": {"a": True}, "additionalProperties": {"type": "string"}}
    assert violation(schema, {"a": 1, "b": "x"}) is None
    assert violation(schema, {"b": 1}) == "$.b: 1 is not of type 'string'"
    assert violation({"additionalProperties": False}, {"b": 1, "c": 1}) == (
        "$: Additional properties are not allowed ('b', 'c' were unexpected)"
    )


def test_a_reference_to_another_document_is_named() -> None:
    with pytest.raises(Unresolvable, match=r"refers to 'http://example.com/a.json', which is not in it"):
        violation({"$ref": "http://example.com/a.json"}, 1)


REFUSED = [
    ("pattern: '(?=a)b'", "uses look-around"),
    ("properties: {k: {pattern: '(a)\\1'}}", "uses a back-reference"),
    ("patternProperties: {'(?!a)': true}", "uses look-around"),
    (
        "patternProperties: {a: true}, unevaluatedProperties: false",
        "`unevaluatedProperties` cannot be applied in a schema with `patternProperties`",
    ),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED)
def test_a_schema_that_cannot_be_bounded_is_refused_with_its_line(schema: str, message: str) -> None:
    """Finding S1."""
    state = checked("a: {type: end}", top=f"state: {{k: {{schema: {{{schema}}}}}}}")
    output = checked(f"""
        b: {{type: llm, prompt: p, next: a, output_schema: {{{schema}}}}}
        a: {{type: end}}
        """)
    for found in (state, output):
        (refused,) = [each for each in found if each.level == "error" and "cannot be applied" in each.message]
        assert message in refused.message
        assert refused.line is not None


def test_a_run_that_was_accepted_with_such_a_schema_fails_visibly() -> None:
    """Finding S1: the graph was checked by an older release."""
    found = problem(StateField(schema={"pattern": "(?=a)b"}), "ab")
    assert found is not None
    assert found.startswith("cannot be checked, the pattern '(?=a)b' uses look-around")


@pytest.mark.parametrize("place", ["const", "enum", "default", "examples"])
def test_what_only_looks_like_a_pattern_is_none(place: str) -> None:
    said = {"pattern": "(?=a)b"}
    assert json_schema.problem({place: [said] if place in ("enum", "examples") else said}) is None


def test_a_property_may_be_called_pattern() -> None:
    assert json_schema.problem({"properties": {"pattern": {"type": "string"}}}) is None
