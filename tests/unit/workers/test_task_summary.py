"""What Flower is told of a visit's end."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery.utils.saferepr import saferepr

from sleipnir_workers.consumer.task_summary import (
    MOST_ERROR,
    MOST_RESULT,
    MOST_TEXT,
    TaskSummary,
    event_of,
    shown_error,
)

KEYS = [f"key_{number:04}" for number in range(2000)]


@pytest.mark.parametrize(
    ("summary", "type_", "fields"),
    [
        (
            {"keys": ["word"], "next": "b", "ok": True},
            "task-succeeded", {"result": "{'keys': ['word'], 'next': 'b'}"},
        ),
        (
            {"keys": [], "next": None, "ok": False, "error": "exit: it's \"4\" {'keys'}"},
            "task-failed",
            {"exception": "exit: it's \"4\" {'keys'}", "traceback": None, "result": "{'keys': [], 'next': None}"},
        ),
        ({"later": "rpm of gpt"}, "task-retried", {"exception": "rpm of gpt", "traceback": None}),
        ({"refused": "gone"}, "task-revoked", {"terminated": False, "signum": None, "expired": False}),
        ({"lost": True}, "task-revoked", {"terminated": False, "signum": None, "expired": False}),
    ],
)  # fmt: skip
def test_each_end_has_its_event_also_after_celery_has_made_a_text_of_it(
    summary: dict[str, Any], type_: str, fields: dict[str, Any]
) -> None:
    assert event_of(repr(TaskSummary(summary))) == (type_, fields)
    assert event_of(saferepr(TaskSummary(summary), MOST_TEXT)) == (type_, fields)


def test_many_keys_and_long_errors_are_cut() -> None:
    summary = {"keys": KEYS, "next": None, "ok": False, "error": shown_error("x" * 100_000, {})}
    type_, fields = event_of(saferepr(TaskSummary(summary), MOST_TEXT))
    assert type_ == "task-failed"
    assert len(fields["exception"]) == MOST_ERROR + len(" ... ")
    assert len(fields["result"]) == MOST_RESULT + len(" ...")


def test_an_error_is_one_line_with_the_keys_of_the_values_that_it_quotes() -> None:
    state = {
        "customer": {"name": "Ada Lovelace", "orders": [{"card": 4111111111111111}], "vip": True, "mail": None},
        "given": "Ada Lovelace of London",
        "text": "A long text\nof two lines",
        "n": 42,
    }
    error = "no credit:\n  Ada Lovelace (4111111111111111), 'Ada Lovelace of London', A long text\nof two lines; 42"
    shown = shown_error(error, {key: json.dumps(value) for key, value in state.items()})
    assert shown == "no credit: <customer> (<customer>), '<given>', <text>; 42"


def test_an_error_that_the_state_holds_as_an_earlier_one_stays() -> None:
    error = "node 'classify' writes 9,000 bytes"
    state = {"last_error": "9,000 bytes", "_error": {"node": "classify", "message": error}, "said": error}
    assert shown_error(error, {key: json.dumps(value) for key, value in state.items()}) == error
