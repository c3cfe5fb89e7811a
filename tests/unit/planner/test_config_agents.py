"""Agents of a config.yaml as the planner sees them: one loop, and no way on from a failure."""

from __future__ import annotations

from sleipnir.graph.load import load_graph
from sleipnir.messages import ResultHeader
from sleipnir.runs.events import Resulted, Retried
from tests.model_store import Driver

GRAPH = load_graph("name: helper", "config.yaml", "helper")


def turn(driver: Driver, *, ok: bool, said: str) -> None:
    [visit] = [visit for visit in driver.run.frontier.values() if visit.role == "turn"]
    header = ResultHeader(ok=ok, keys=("output",), error=None if ok else said)
    driver.try_(Resulted(visit.seq, visit.attempt, header), {"output": said})


def test_the_last_message_of_the_model_is_the_output() -> None:
    driver = Driver(GRAPH).start()
    turn(driver, ok=True, said="Hello.")
    assert (driver.run.status, driver.output) == ("completed", "Hello.")


def test_a_model_that_cannot_be_asked_fails_the_run_which_can_be_retried() -> None:
    driver = Driver(GRAPH).start()
    turn(driver, ok=False, said="LLM node failed: no key")
    assert (driver.run.status, driver.output) == ("failed", None)
    assert "LLM node failed: no key" in (driver.error or "")
    driver.send(Retried())
    turn(driver, ok=True, said="Hello.")
    assert (driver.run.status, driver.output) == ("completed", "Hello.")
