"""What the planner writes to keys that have a schema: how much work it does for that."""

from __future__ import annotations

import json

from sleipnir.graph import schema as json_schema
from sleipnir.runs.events import Submitted
from tests.model_store import Driver

ROWS = """
name: g
version: sleipnir/1
start: r
state:
  rows: {type: list, schema: {items: {required: [n], properties: {n: {type: integer, minimum: 0}}}}}
  more: {type: list, schema: {items: {type: integer}}}
nodes:
  r: {type: router, state_updates: {rows: "{{text}}", more: "{{few}}"}, next: e}
  e: {type: end, output: "{{more}}"}
"""


def routed(count: int, few: str = "[1]") -> Driver:
    driver = Driver(ROWS, {"text": json.dumps([{"n": number} for number in range(count)]), "few": few})
    driver.send(Submitted())
    return driver


def error_of(driver: Driver) -> str:
    assert driver.last is not None
    return driver.last.error or ""


def test_values_that_a_scheduler_can_check_soon_are_written() -> None:
    driver = routed(500)
    assert (driver.run.status, error_of(driver)) == ("completed", "")


def test_a_value_that_a_scheduler_would_check_for_long_fails_its_node_with_that_reason() -> None:
    """A gap after finding S1 of the second review: 200,000 steps held up all runs of a scheduler for a second."""
    driver = routed(5_000)
    assert driver.run.status == "failed"
    assert "'rows' cannot be checked, it needs more than 10,000 steps; use a smaller value" in error_of(driver)
    assert json_schema.violation({"items": {"required": ["n"]}}, [{"n": 1}] * 5_000) is None, "as before"


def test_a_problem_of_a_list_is_reported_for_the_list_and_not_for_its_text() -> None:
    driver = routed(1, few='["x"]')
    assert "'more' does not match its schema: $[0]: 'x' is not of type 'integer'" in error_of(driver)
