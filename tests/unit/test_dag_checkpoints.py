"""What a run of a `dag` goes on with after a step, read from its journal."""

from __future__ import annotations

from sleipnir.messages import OVERLAY_END
from sleipnir.runs.checkpoints import KeptCheckpoint
from sleipnir.runs.dag_checkpoints import DagReader
from sleipnir.runs.events import Paused, Retried
from sleipnir.runs.journal import read_entry
from sleipnir.runs.run import Checkpoint
from tests.model_store import Driver

GRAPH = """
version: sleipnir/1
name: g
engine: dag
start: a
nodes:
  a: {type: script, script: a.sh, next: [b, c]}
  b: {type: script, script: b.sh}
  c: {type: script, script: c.sh, next: d}
  d: {type: script, script: d.sh}
  e: {type: script, script: e.sh, wait_for: [b, d]}
"""


def read(driver: Driver, at: int | None = None) -> tuple[DagReader, KeptCheckpoint]:
    """The journal of a run, and what was kept of the step `at` (None: the last one)."""
    reader = DagReader(driver.graph, Checkpoint(0, (driver.graph.start,)))
    for entry in driver.memory.entries:
        step = read_entry(entry)[0]
        reader.add(step)
        if at is None or step.step == at:
            reader.keep()
    kept = reader.kept
    assert kept is not None
    return reader, kept


def unfinished(driver: Driver, at: int | None = None) -> list[tuple[str, bool]]:
    return [(visit.rank[1], visit.begun) for visit in read(driver, at)[1].checkpoint.visits]


def test_what_ended_visits_have_opened_is_unfinished_until_it_ends_too() -> None:
    driver = Driver(GRAPH).start().does("a").does("c").does("b").does("d")
    assert unfinished(driver, 0) == [("a", False)]
    assert unfinished(driver, 1) == [("b", False), ("c", False)]
    assert unfinished(driver, 2) == [("b", True), ("d", False)], "of what an earlier step has opened, some may be done"
    assert unfinished(driver, 3) == [("d", True)]
    point = read(driver, 3)[1].checkpoint
    assert [sorted(sources) for sources in point.arrived.values()] == [["b"]], "a join waits for the other source"
    assert (point.steps, point.counts) == (3, {"a": 1, "b": 1, "c": 1})
    assert unfinished(driver) == [("e", False)] and not read(driver)[1].checkpoint.arrived


def test_a_visit_that_has_failed_is_unfinished_and_nothing_of_it_is_in_doubt() -> None:
    driver = Driver(GRAPH).start().does("a").fails("b").does("c")
    assert driver.run.status == "failed" and unfinished(driver) == [("b", False), ("d", False)]
    driver.send(Retried())
    assert unfinished(driver.does("d"), None) == [("b", True)]


def test_commands_are_unfinished_one_by_one_with_their_values() -> None:
    driver = Driver(GRAPH).start().does("a", sends=[("b", {"k": n}) for n in range(3)])
    driver.does("b")
    [commands] = read(driver)[1].checkpoint.lists
    assert (commands.nodes, commands.begun) == (["", "b", "b"], True)
    texts = read(driver)[1].overlays[str(commands.seq)].split(OVERLAY_END)
    assert [bool(text) for text in texts] == [False, True, True]
    assert read(driver.does("b").does("b"))[1].checkpoint.lists == ()


def test_no_step_counts_at_which_the_ways_on_of_an_ended_visit_are_not_chosen() -> None:
    driver = Driver(GRAPH.replace("next: d}", 'branch: {call: "f.py:choose", to: {x: d}}}'))
    driver.start().does("a").does("c")
    assert not read(driver)[0].is_whole
    driver.does("c", "x").send(Paused("me"))
    assert read(driver)[0].is_whole and unfinished(driver) == [("b", True), ("d", False)]


def test_a_journal_with_visits_that_nothing_has_opened_is_strange() -> None:
    driver = Driver(GRAPH).start().does("a").does("b")
    reader = DagReader(driver.graph, Checkpoint(0, ("c",)))
    for entry in driver.memory.entries:
        reader.add(read_entry(entry)[0])
    assert reader.is_strange and not read(driver)[0].is_strange


def test_a_visit_that_ended_well_and_leads_nowhere_has_failed_in_version_1_0() -> None:
    driver = Driver("""
name: g
engine: dag
start: a
nodes:
  a: {type: script, script: s.sh, next: [x, y]}
  x: {type: script, script: s.sh}
  y: {type: script, script: s.sh, next: end}
  end: {type: end, output: x}
""").start()
    driver.does("a").does("x", k=1)
    assert (driver.live(), driver.failed()) == (["y"], ["x"])
    reader = DagReader(driver.graph, Checkpoint(0, ("a",)))
    for entry in driver.memory.entries:
        reader.add(read_entry(entry)[0])
    reader.keep()
    assert reader.kept is not None and not reader.is_strange
    assert [visit.rank[1] for visit in reader.kept.checkpoint.visits] == ["x", "y"], "a fork runs both"


def test_a_visit_that_ended_with_an_empty_list_of_commands_has_not_failed() -> None:
    driver = Driver("""
name: g
engine: dag
start: a
nodes:
  a: {type: script, script: s.sh, next: [x, y]}
  x: {type: script, script: s.sh}
  y: {type: script, script: s.sh, next: end}
  end: {type: end, output: x}
""").start()
    driver.does("a").does("x", sends=[])
    assert (driver.live(), driver.failed()) == (["y"], [])
    assert [node for node, _ in unfinished(driver)] == ["y"]
