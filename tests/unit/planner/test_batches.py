"""Runs that are rows of a batch: their ends are owed to it."""

from __future__ import annotations

from dataclasses import replace

from sleipnir.runs.events import Cancelled
from sleipnir.runs.run import RunSpec
from sleipnir.runs.transitions import StartRow, TellBatch, TellParent, effect_fields, effect_of
from tests.model_store import Driver, bad, ok

GRAPH = """
name: g
start: a
nodes:
  a: {type: script, script: a.sh, next: e}
  e: {type: end}
"""


def row(spec: RunSpec | None = None) -> Driver:
    driver = Driver(GRAPH)
    driver.run = replace(driver.run, batch="b1/7", spec=spec or driver.run.spec)
    return driver.start()


def test_every_end_of_a_row_is_sent_to_its_batch_with_the_version_of_the_run() -> None:
    for event in (ok(1, "e"), bad(1), Cancelled()):
        driver = row()
        assert driver.last is not None
        assert driver.last.effects == ()
        driver.send(event)
        assert driver.run.is_final
        assert driver.last.effects == (TellBatch("b1/7", driver.run.version),)


def test_a_child_of_a_row_notifies_its_parent_and_no_batch() -> None:
    driver = row(RunSpec("agent", "digest", parent="p", parent_seq=1, root="p"))
    driver.send(ok(1, "e"))
    assert driver.last is not None
    assert [effect for effect in driver.last.effects if isinstance(effect, TellBatch | TellParent)] == [TellParent()]


def test_effects_of_batches_are_stored_and_read_again() -> None:
    for effect in (StartRow("b1", 7, "{}"), TellBatch("b1/7", 3)):
        assert effect_of(effect_fields(effect)) == effect
