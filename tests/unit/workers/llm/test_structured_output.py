"""From a model's text to a value that matches a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sleipnir.errors import NodeFailed
from sleipnir_workers.llm import structured_output

OBJECT = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


class Extractor:
    """Answers with the given replies and remembers what it was asked."""

    def __init__(self, *replies: str) -> None:
        self._replies = list(replies)
        self.asked: list[tuple[str, str]] = []
        self.notes: list[str] = []

    def __call__(self, system: str, user: str) -> str:
        self.asked.append((system, user))
        return self._replies.pop(0)


def extract(text: str, schema: Any, *replies: str) -> tuple[Any, Extractor]:
    extractor = Extractor(*replies)
    return structured_output.extract(text, schema, extractor, extractor.notes.append), extractor


@pytest.mark.conformance("O03")
@pytest.mark.parametrize(
    "text",
    ['{"n": 1}', ' \n{"n": 1}\n', '```json\n{"n": 1}\n```', '```\n{"n": 1}```', '```json {"n": 1}'],
)
def test_json_with_or_without_a_fence_needs_no_second_call(text: str) -> None:
    value, extractor = extract(text, OBJECT)
    assert (value, extractor.asked, extractor.notes) == ({"n": 1}, [], [])


@pytest.mark.conformance("O12", "CY94")
def test_leading_think_blocks_are_dropped() -> None:
    text = '<think>is it {"n": 2}?\n</think>\n <think></think>```json\n{"n": 1}\n```'
    assert extract(text, OBJECT)[0] == {"n": 1}


@pytest.mark.conformance("O07")
@pytest.mark.parametrize(("text", "value"), [("42", 42), ('"x"', "x"), ("[1, {}]", [1, {}]), ("null", None)])
def test_any_json_value_that_the_schema_allows_is_taken(text: str, value: Any) -> None:
    assert extract(text, {})[0] == value


@pytest.mark.conformance("O04")
def test_text_around_the_json_goes_to_the_extractor_once() -> None:
    value, extractor = extract('Sure! {"n": 1}', OBJECT, '```json\n{"n": 1}\n```')
    assert value == {"n": 1}
    [(system, user)] = extractor.asked
    assert system == structured_output.EXTRACTOR
    pretty = json.dumps(OBJECT, indent=2)
    assert user == f'Schema:\n{pretty}\n\nInput:\nSure! {{"n": 1}}'
    assert extractor.notes == ["structured-output: parsing raw output failed, invoking extractor"]


@pytest.mark.conformance("O05")
def test_a_bad_reply_of_the_extractor_is_repaired_once() -> None:
    value, extractor = extract("one", OBJECT, "it is 1", '{"n": 1}')
    assert value == {"n": 1}
    assert extractor.asked[1][1].startswith("Your previous reply could not be used: it is not valid JSON")
    assert extractor.asked[1][1].endswith("Input:\nit is 1")
    assert extractor.notes[1] == "structured-output: extractor returned invalid JSON, retrying"


@pytest.mark.conformance("O05")
def test_two_bad_replies_are_a_failure() -> None:
    with pytest.raises(NodeFailed) as caught:
        extract("one", OBJECT, "it is 1", "one!")
    assert str(caught.value) == (
        "Structured-output extractor failed to produce valid JSON after repair retry. Last response:\none!"
    )
    assert caught.value.kind == "structured"


def test_a_violation_of_the_schema_uses_the_same_turns_and_is_named() -> None:
    value, extractor = extract('{"n": "one"}', OBJECT, "{}", '{"n": 1}')
    assert value == {"n": 1}
    assert extractor.notes == [
        "structured-output: it does not match the schema: $.n: 'one' is not of type 'integer', invoking extractor",
        "structured-output: extractor reply: it does not match the schema: $: 'n' is a required property, retrying",
    ]
    assert "it does not match the schema: $: 'n' is a required property" in extractor.asked[1][1]


def test_a_violation_to_the_end_is_a_failure_that_names_it() -> None:
    with pytest.raises(NodeFailed, match=r"matches the schema after repair retry \(.*\$: 'n' is a required property\)"):
        extract("{}", OBJECT, "{}", "{}")


@pytest.mark.parametrize("text", ['{"n": NaN}', "[" * 100_000])
def test_what_is_not_quite_json_is_not_taken(text: str) -> None:
    assert extract(text, OBJECT, '{"n": 1}')[0] == {"n": 1}


def test_a_schema_that_is_no_json_schema_guides_but_does_not_check() -> None:
    value, extractor = extract('{"a": 1}', {"type": "strng"})
    assert value == {"a": 1}
    assert "output_schema is not valid JSON Schema" in extractor.notes[0]


def test_a_reference_to_another_document_is_not_fetched() -> None:
    assert extract('{"a": 1}', {"$ref": "http://127.0.0.1:9/schema.json"})[0] == {"a": 1}


def test_a_reference_inside_the_schema_is_followed() -> None:
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}
    assert extract('"text"', schema, "1")[0] == 1


def test_a_very_long_useless_reply_is_shortened() -> None:
    with pytest.raises(NodeFailed) as caught:
        extract("one", OBJECT, "no", "x" * 100_000)
    assert len(str(caught.value)) < 3_000


@pytest.mark.timeout(60)
def test_a_reply_made_for_a_pattern_that_backtracks_is_refused_like_any_other() -> None:
    """Finding S1."""
    schema = {"type": "object", "properties": {"n": {"pattern": "^(a+)+$"}}}
    value, extractor = extract(json.dumps({"n": "a" * 500 + "!"}), schema, '{"n": "aaa"}')
    assert value == {"n": "aaa"}
    assert "does not match the schema" in extractor.notes[0]


@pytest.mark.parametrize(
    ("schema", "reply", "message"),
    [
        ({"pattern": "(?=a)b"}, '"ab"', "output_schema cannot be applied: the pattern '(?=a)b' uses look-around"),
        ({"uniqueItems": True}, json.dumps(list(range(900_000))), "cannot be checked against output_schema: it needs"),
    ],
)
def test_a_reply_that_cannot_be_checked_fails_the_node(schema: Any, reply: str, message: str) -> None:
    """Finding S1: what is not checked has not passed."""
    with pytest.raises(NodeFailed) as raised:
        extract(reply, schema)
    assert message in str(raised.value)
    assert raised.value.kind == "structured"


@pytest.mark.timeout(60)
def test_any_number_of_think_blocks_is_left_out_in_linear_time() -> None:
    assert structured_output.without_thinking("<think></think>" * 200_000 + "x") == "x"
