"""Placeholders and state_updates: paths, rendering, strict and lenient, and what a node may see."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sleipnir.graph.model import (
    AgentNode,
    ApprovalNode,
    EndNode,
    FunctionNode,
    InputNode,
    LlmNode,
    RagNode,
    ScriptNode,
)
from sleipnir.graph.template import (
    MISSING,
    TemplateError,
    apply_updates,
    keys_read,
    lookup,
    render,
    render_lenient,
    state_read_by,
    updates_read,
)
from tests.examples import examples

STATE: dict[str, Any] = {
    "topic": "bells",
    "n": 42,
    "half": 0.5,
    "whole": 1.0,
    "yes": True,
    "no": False,
    "nothing": None,
    "empty": "",
    "list": ["a", "b", "ü"],
    "matrix": [[1, 2], [3, 4]],
    "a": {"b": {"c": "deep", "arr": [0, 1, {"field": "f"}]}, "0": "zero"},
    "users": [{"name": "Ann"}, {"name": "Bob"}],
    "with space": "s",
    "dotted.key": "d",
    "_x1": "under",
    "": {"inner": "of the empty key"},
}


@pytest.mark.conformance("P01", "P02", "P03", "P04")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("topic", "bells"),
        ("_x1", "under"),
        ("a.b.c", "deep"),
        ("a.0", "zero"),
        ("list[0]", "a"),
        ("list[002]", "ü"),
        ("matrix[0][1]", 2),
        ("users[1].name", "Bob"),
        ("a.b.arr[2].field", "f"),
        ("list.[0]", "a"),
        ("a..b.c", "deep"),
        ("a.b.", {"c": "deep", "arr": [0, 1, {"field": "f"}]}),
        (".inner", "of the empty key"),
        ("nothing", None),
    ],
)
def test_a_path_leads_to_its_value(path: str, value: Any) -> None:
    assert lookup(path, STATE) == value
    assert render(f"<{{{{{path}}}}}>", STATE) == render_lenient(f"<{{{{{path}}}}}>", STATE)


@pytest.mark.conformance("P11")
@pytest.mark.parametrize(
    "path",
    [
        "other", "Topic", "topic.x", "topic[0]", "n[0]", "list[3]", "list[x]", "list[-1]", "list[", "list]", "list[]",
        "list[0]x", "list[0][0]", "list.0", "matrix[0,1]", "a[0]", "a.x", "a.b.c.d", "nothing.x", "nothing[0]",
        "dotted.key", "users.name", "users[0].age", "list[" + "9" * 5000 + "]", "list[1", "list[1]]", "[0]",
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_is_missing(path: str) -> None:
    assert lookup(path, STATE) is MISSING


@pytest.mark.conformance("P05", "P06")
@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{topic}}", "bells"),
        ("{{n}} {{yes}} {{nothing}}", "42 true null"),
        ("{{no}} {{half}} {{whole}}", "false 0.5 1.0"),
        ("{{empty}}", ""),
        ("{{list}}", '["a","b","ü"]'),
        ("{{users}}", '[{"name":"Ann"},{"name":"Bob"}]'),
        ("{{a.b.arr}}", '[0,1,{"field":"f"}]'),
        ("no placeholders at all", "no placeholders at all"),
        ("", ""),
        ("{{topic}}{{topic}}", "bellsbells"),
        ("{{{topic}}}", "{bells}"),
    ],
)
def test_values_are_rendered_as_text_or_compact_json(template: str, text: str) -> None:
    assert render(template, STATE) == text


@pytest.mark.conformance("P10", "P13")
@pytest.mark.parametrize(
    "text",
    [
        "{{ topic }}", "{{topic }}", "{{my-key}}", "{{with space}}", "{{}}", "{{tüte}}", "{{topic|upper}}", "{topic}",
        '{"a":1}', '{"a":{"b":[1]}}', "}} {{", "{{topic", "{{topic\n}}", "${topic}", "{{n+1}}", "{{list[0:1]}}",
    ],
)  # fmt: skip
def test_what_is_no_placeholder_stays_as_it_is(text: str) -> None:
    assert render(text, STATE) == render_lenient(text, STATE) == text


@pytest.mark.conformance("P07")
def test_strict_rendering_names_every_missing_path_in_order_with_repetitions() -> None:
    with pytest.raises(TemplateError) as caught:
        render("{{b}} {{topic}} {{a.x}} {{b}}", STATE)
    assert str(caught.value) == "Template interpolation failed: 'b', 'a.x', 'b' not found in state"
    assert caught.value.missing == ["b", "a.x", "b"]


def test_a_present_null_is_not_missing() -> None:
    assert render("<{{nothing}}>", STATE) == "<null>"


@pytest.mark.conformance("P08", "P09")
def test_lenient_rendering_turns_missing_paths_into_nothing() -> None:
    assert render_lenient("<{{b}}|{{topic}}|{{list[9]}}>", STATE) == "<|bells|>"


@pytest.mark.conformance("P12")
def test_a_value_is_never_rendered_again() -> None:
    state = {"x": "{{y}}", "y": "{{x}}", "z": "{{", "w": "y}}"}
    assert render("{{x}} {{y}} {{z}}{{w}}", state) == "{{y}} {{x}} {{y}}"


# --- state_updates


@pytest.mark.conformance("U01", "U04")
def test_updates_are_stored_under_their_keys_as_text() -> None:
    updates = {
        "copy": "{{list}}",
        "n": "{{n}}",
        "flag": "{{yes}}",
        "none": "{{nothing}}",
        "gone": "[{{b}}]",
        "raw": "x",
    }
    written = apply_updates(updates, STATE)
    assert written == {
        "copy": '["a","b","ü"]', "n": "42", "flag": "true", "none": "null", "gone": "[]", "raw": "x",
    }  # fmt: skip
    assert json.loads(written["copy"]) == STATE["list"]


def test_no_updates_write_nothing() -> None:
    assert apply_updates(None, STATE, scoped="output", value=1) == apply_updates({}, STATE) == {}


@pytest.mark.conformance("U02")
@pytest.mark.parametrize("scoped", ["output", "choice", "input"])
def test_a_node_reads_its_own_result_in_its_updates(scoped: str) -> None:
    updates = {"all": f"{{{{{scoped}}}}}", "part": f"{{{{{scoped}.k[0]}}}}"}
    assert apply_updates(updates, {}, scoped=scoped, value={"k": [5]}) == {"all": '{"k":[5]}', "part": "5"}


@pytest.mark.conformance("U03", "U10")
def test_the_result_itself_never_enters_the_state() -> None:
    state = {"output": "of before"}
    assert apply_updates({"kept": "{{output}}"}, state, scoped="output", value="new") == {"kept": "new"}
    assert state == {"output": "of before"}


def test_an_entry_of_the_scoped_name_is_kept() -> None:
    updates = {"output": "<{{output}}>", "after": "{{output}}"}
    assert apply_updates(updates, {}, scoped="output", value="x") == {"output": "<x>", "after": "<x>"}


@pytest.mark.conformance("U09")
def test_without_a_scope_output_is_a_key_of_the_state() -> None:
    assert EndNode.scoped is ScriptNode.scoped is FunctionNode.scoped is None
    assert apply_updates({"kept": "{{output}}", "none": "{{choice}}"}, {"output": "s"}) == {"kept": "s", "none": ""}


@pytest.mark.conformance("U07")
def test_an_entry_reads_the_state_after_the_body_and_the_entries_above_it() -> None:
    after_body = {"fresh": [1, 2]}
    updates = {"first": "{{fresh[1]}}", "second": "{{first}}{{third}}", "third": "t", "first_again": "{{first}}"}
    assert apply_updates(updates, after_body) == {"first": "2", "second": "2", "third": "t", "first_again": "2"}


@pytest.mark.conformance("U08")
def test_the_updates_of_an_end_node_are_seen_by_its_output() -> None:
    end = EndNode(id="done", state_updates={"status": "completed"}, output="[{{status}}] {{answer}}{{gone}}")
    state = {"answer": "42"}
    assert render_lenient(end.output, state | apply_updates(end.state_updates, state)) == "[completed] 42"


# --- what a node reads


def test_the_keys_a_text_reads_are_the_first_names_of_its_paths() -> None:
    assert keys_read("{{a.b}} {{c[0].d}} {{ e }}", None, "", "{{a}} {{f}}") == {"a", "c", "f"}


def test_a_node_reads_the_keys_of_its_texts_and_of_its_updates_but_not_its_own_result() -> None:
    updates = {"k": "{{output.x}} {{more}}"}
    llm = LlmNode(id="a", prompt="{{p}}", instructions="{{i}}", model="{{m}}", state_updates=updates)
    assert updates_read(llm) == frozenset({"more"})
    review = ApprovalNode(id="a", question="{{q}}", options=["{{no}}"], routes={}, on_other="b")
    end = EndNode(id="a", output="{{o}}", state_updates={"k": "{{output}}"})
    for node, keys in (
        (llm, {"p", "i", "more"}),
        (AgentNode(id="a", agent="{{no}}", prompt="{{p}} {{output}}"), {"p", "output"}),
        (RagNode(id="a", documents=["{{no}}"]), {"initial_prompt"}),
        (review, {"q"}),
        (InputNode(id="a", question="{{q}}", default="{{d}}", validation="{{no}}"), {"q", "d"}),
        (end, {"o", "output"}),
    ):
        assert state_read_by(node) == frozenset(keys)


def test_scripts_and_functions_read_everything() -> None:
    assert state_read_by(ScriptNode(id="a", script="s.py")) is None
    assert state_read_by(FunctionNode(id="a", call="m:f")) is None


# --- properties

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from("abc"), children, max_size=3),
    max_leaves=8,
)
STATES = st.dictionaries(st.sampled_from(["a", "b", "c", "", "0", "_x"]), JSON)
TEMPLATES = st.lists(
    st.sampled_from(["{{", "}}", "a", "b", ".", "[", "]", "0", "1", "{{a}}", "{{b[0]}}", " ", "é", "}"])
)


@settings(max_examples=examples(300), deadline=None)
@given(TEMPLATES.map("".join), STATES)
def test_rendering_raises_nothing_but_the_missing_paths(template: str, state: dict[str, Any]) -> None:
    lenient = render_lenient(template, state)
    try:
        strict = render(template, state)
    except TemplateError as error:
        assert error.missing
    else:
        assert strict == lenient


@settings(max_examples=examples(300), deadline=None)
@given(st.text(max_size=20) | TEMPLATES.map("".join), STATES)
def test_looking_up_never_raises(path: str, state: dict[str, Any]) -> None:
    found = lookup(path, state)
    assert found is MISSING or json.dumps(found) is not None


@settings(max_examples=examples(200), deadline=None)
@given(JSON)
def test_a_rendered_value_that_is_no_text_can_be_parsed_back(value: Any) -> None:
    text = render("{{a}}", {"a": value})
    assert text == value if isinstance(value, str) else json.loads(text) == value


@settings(max_examples=examples(200), deadline=None)
@given(TEMPLATES.map("".join), STATES)
def test_only_the_keys_that_are_read_matter(template: str, state: dict[str, Any]) -> None:
    read = keys_read(template)
    assert render_lenient(template, {key: state[key] for key in read & state.keys()}) == render_lenient(template, state)
