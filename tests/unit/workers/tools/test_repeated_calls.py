"""When a model repeats itself (spec 4.5.4)."""

from __future__ import annotations

import json

import pytest

from sleipnir_workers.tools.repeated_calls import CHILD, ROOT, PastCall, RepeatRule, alert


def calls(*arguments: str, name: str = "search") -> list[PastCall]:
    return [PastCall(name, text) for text in arguments]


SAME = PastCall("search", '{"q": "x", "n": 1}')


@pytest.mark.conformance("X14")
@pytest.mark.parametrize(("patience", "refused"), [(ROOT, 3), (CHILD, 5)])
def test_the_third_identical_call_in_a_row_is_refused_and_a_childs_fifth(patience: RepeatRule, refused: int) -> None:
    for number in range(1, refused + 3):
        found = alert([SAME] * (number - 1), SAME, patience)
        assert (found is not None) == (number >= refused)


@pytest.mark.conformance("X14")
def test_the_alert_is_an_object_with_the_last_calls() -> None:
    earlier = [*calls("{}", name="other"), *[SAME] * 2]
    found = alert(earlier, SAME)
    assert found is not None
    (content,) = json.loads(json.dumps(found)).values()
    assert content["error"]["message"] == "⚠️ Tool-call loop detected! ⚠️"
    assert content["error"]["code"] == 400
    assert content["error"]["param"].startswith("Use the output of the last call ")
    assert content["call_history"] == [
        {"name": "other", "arguments": {}},
        *[{"name": "search", "arguments": {"q": "x", "n": 1}}] * 2,
    ]


@pytest.mark.conformance("X14")
def test_only_the_latest_calls_of_a_chain_are_shown() -> None:
    found = alert([*calls("{}", name="other") * 9, *[SAME] * 2], SAME)
    assert found is not None
    assert [each["name"] for each in found["tool_call_loop_alert"]["call_history"]] == ["other", "search", "search"]


@pytest.mark.conformance("X14")
@pytest.mark.parametrize(
    "earlier",
    [
        [],
        [SAME],
        [SAME, *calls('{"q": "y"}')],
        [SAME, SAME, *calls("{}", name="other")],
        [SAME, PastCall("find", SAME.arguments)],
        [SAME, *calls("not json")],
    ],
)
def test_other_calls_in_between_are_no_loop(earlier: list[PastCall]) -> None:
    assert alert(earlier, SAME) is None


def test_spaces_and_the_order_of_keys_make_no_other_call() -> None:
    assert alert([PastCall("search", {"n": 1, "q": "x"}), *calls('{"n":1,\n"q":"x"}')], SAME) is not None


def test_arguments_that_are_no_json_are_compared_as_text() -> None:
    assert alert(calls("{oops", "{oops"), *calls("{oops")) is not None
