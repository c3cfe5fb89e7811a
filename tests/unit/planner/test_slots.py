"""Runs of an agent that may have few at once: what they ask for, wait for, and give back."""

from __future__ import annotations

import pytest

from sleipnir.messages import RunStatus
from sleipnir.runs.events import (
    RUN_DEADLINE,
    SLOT_GRANTED,
    Cancelled,
    ChildEnded,
    Paused,
    Resumed,
    Retried,
    Submitted,
    TimerFired,
    Told,
)
from sleipnir.runs.run import Slot, changed
from sleipnir.runs.transitions import AskSlot, Effect, FreeSlot
from sleipnir_scheduler.planner.plan import IgnoredEvent, fail
from tests.model_store import Driver, ok

LIMITED = """
name: limited
start: a
concurrency: {key: "{{tenant}}", limit: 2}
settings: {timeout: 10}
nodes:
  a: {type: script, script: a.sh, next: b}
  b: {type: script, script: b.sh}
  done: {type: end, output: "{{tenant}}"}
"""


def submitted(graph: str = LIMITED, tenant: object = "acme") -> Driver:
    driver = Driver(graph, {"tenant": tenant})
    driver.send(Submitted())
    return driver


def slot_of(driver: Driver) -> Slot:
    assert driver.run.slot is not None
    return driver.run.slot


def grant(driver: Driver, after_ms: int = 1) -> Driver:
    driver.send(Told(SLOT_GRANTED, {"ticket": slot_of(driver).ticket}), after_ms=after_ms)
    return driver


def owed(driver: Driver) -> tuple[Effect, ...]:
    assert driver.last is not None
    return driver.last.effects


def deadline(driver: Driver) -> int | None:
    assert driver.last is not None
    return driver.last.timers.get(RUN_DEADLINE)


def test_a_run_asks_for_a_slot_before_anything_of_it_starts() -> None:
    driver = submitted()
    assert owed(driver) == (AskSlot("agent", "acme", 2, 1),)
    assert (driver.run.status, driver.run.slot, driver.live(), deadline(driver)) == (
        "running", Slot("acme", 2, 1), [], None,
    )  # fmt: skip
    assert driver.last is not None and driver.last.started_ms is None
    assert [notice.type for notice in driver.last.notices] == ["slot_asked"]


def test_a_row_of_a_batch_notifies_no_run_of_its_question() -> None:
    driver = Driver(LIMITED, {"tenant": "acme"})
    driver.run = changed(driver.run, batch="batch0000001/7")
    assert (driver.send(Submitted()).notices, slot_of(driver).granted) == ((), False)


def test_it_starts_when_it_has_the_slot_and_its_time_begins_then() -> None:
    driver = grant(submitted(), after_ms=60_000)
    assert (driver.on_workers(), slot_of(driver).granted, owed(driver)) == (["a"], True, ())
    assert (driver.run.started_ms, deadline(driver)) == (driver.now_ms, driver.now_ms + 10_001)


def test_repeated_and_obsolete_messages_change_nothing() -> None:
    driver = submitted()
    assert isinstance(driver.try_(Submitted()), IgnoredEvent)
    assert isinstance(driver.try_(Told(SLOT_GRANTED, {"ticket": 7})), IgnoredEvent)
    assert isinstance(driver.try_(ok(1)), IgnoredEvent)
    assert isinstance(driver.try_(TimerFired(RUN_DEADLINE)), IgnoredEvent)
    assert isinstance(driver.try_(Retried()), IgnoredEvent)
    grant(driver)
    assert isinstance(driver.try_(Told(SLOT_GRANTED, {"ticket": 1})), IgnoredEvent)
    assert isinstance(driver.try_(Submitted()), IgnoredEvent)


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_every_end_frees_the_slot(status: RunStatus) -> None:
    driver = grant(submitted())
    if status == "completed":
        driver.does("a").does("b", "done")
    elif status == "failed":
        driver.does("a").fails("b")
    else:
        driver.send(Cancelled())
    assert (driver.run.status, driver.run.slot) == (status, None)
    assert owed(driver) == (FreeSlot("agent", "acme", 1),)


def test_a_run_that_is_cancelled_while_it_waits_waits_no_more() -> None:
    driver = submitted()
    driver.send(Cancelled())
    assert (driver.run.status, driver.run.slot, owed(driver)) == ("cancelled", None, (FreeSlot("agent", "acme", 1),))
    assert isinstance(driver.try_(Told(SLOT_GRANTED, {"ticket": 1})), IgnoredEvent)


def test_a_run_that_cannot_be_planned_frees_its_slot_too() -> None:
    assert fail("limited", submitted().run, "its bundle is gone", 5).effects == (FreeSlot("agent", "acme", 1),)


def test_a_retried_run_asks_again_and_continues_once_it_has_a_slot() -> None:
    driver = grant(submitted()).does("a").fails("b")
    driver.send(Retried())
    asked = slot_of(driver)
    assert owed(driver) == (AskSlot("agent", "acme", 2, asked.ticket),)
    assert (driver.run.status, driver.on_workers(), driver.failed(), asked.ticket > 1) == ("running", [], ["b"], True)
    assert isinstance(driver.try_(Told(SLOT_GRANTED, {"ticket": 1})), IgnoredEvent)
    grant(driver, after_ms=60_000)
    assert (driver.on_workers(), driver.failed(), slot_of(driver).granted) == (["b"], [], True)
    assert (driver.run.started_ms, deadline(driver)) == (driver.now_ms, driver.now_ms + 10_001)
    driver.does("b", "done")
    assert (driver.run.status, owed(driver)) == ("completed", (FreeSlot("agent", "acme", asked.ticket),))
    assert [entry.split('"kind":"')[1].split('"')[0] for entry in driver.memory.entries] == [
        "submitted", "script", "script", "retried", "script", "end",
    ]  # fmt: skip


def test_a_retried_run_that_is_cancelled_while_it_waits_keeps_nothing() -> None:
    driver = grant(submitted()).does("a").fails("b")
    driver.send(Retried())
    driver.send(Cancelled())
    assert (driver.run.status, dict(driver.run.frontier), len(owed(driver))) == ("cancelled", {}, 1)


def test_a_waiting_run_gets_the_cost_of_a_child() -> None:
    driver = grant(submitted()).does("a").fails("b")
    driver.send(Retried())
    told = driver.send(ChildEnded(1, 1, "child1", "completed", usage={"calls": 1}))
    assert (told.usage, told.usage_of, driver.run.waits_for_slot) == ({"calls": 1}, "child1", True)


def test_a_pause_before_the_start_takes_nothing_of_the_runs_time() -> None:
    driver = submitted()
    driver.send(Paused("ann"), after_ms=5_000)
    driver.send(Resumed(), after_ms=5_000)
    assert deadline(driver) is None
    grant(driver)
    assert deadline(driver) == driver.now_ms + 10_001


def test_a_paused_run_that_gets_its_slot_keeps_it_and_starts_when_it_continues() -> None:
    driver = submitted()
    driver.send(Paused("ann"), after_ms=5_000)
    assert driver.run.status == "paused"
    grant(driver, after_ms=5_000)
    assert driver.last is not None
    assert (driver.run.status, driver.last.dispatches) == ("paused", ())
    resumed = driver.send(Resumed(), after_ms=5_000)
    assert ([visit.node for visit in resumed.dispatches], driver.run.slot) == (["a"], Slot("acme", 2, 1, granted=True))
    assert deadline(driver) == driver.now_ms + 10_001


@pytest.mark.parametrize(
    ("key", "tenant", "rendered"),
    [("", "acme", ""), ("one", "acme", "one"), ("{{tenant.id}}-{{tenant.n}}", {"id": "x", "n": [1]}, "x-[1]")],
)
def test_the_key_is_rendered_from_the_state_at_the_start(key: str, tenant: object, rendered: str) -> None:
    driver = submitted(LIMITED.replace("{{tenant}}", key, 1), tenant)
    assert slot_of(driver).key == rendered


def test_a_missing_state_key_fails_the_run_and_requests_no_slot() -> None:
    driver = submitted(LIMITED.replace("{{tenant}}", "{{tenant.id}}", 1))
    assert (driver.run.status, driver.run.slot, owed(driver)) == ("failed", None, ())
    assert driver.error == (
        "Graph execution failed for agent 'agent': 'concurrency.key' cannot be rendered: "
        "Template interpolation failed: 'tenant.id' not found in state"
    )
    assert driver.send(Retried()).status == "failed"


def test_a_key_that_is_very_long_fails_the_run() -> None:
    driver = submitted(tenant="x" * 1001)
    assert str(driver.error).endswith("'concurrency.key' renders to 1,001 characters; at most 1,000 are allowed")
