"""Breakpoints: a run stops before or after nodes, once for a super-step, and goes on when a person resumes it."""

from __future__ import annotations

import pytest

from sleipnir.runs.events import Cancelled, ChildEnded, Paused, Resumed, Retried, TimerFired
from sleipnir.runs.run import RunView, changed
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver

both = pytest.mark.parametrize("engine", ["bsp", "dag"])

CHAIN = """
name: g
version: sleipnir/1
start: a
engine: {engine}
{top}
nodes:
  a: {{type: script, script: s.sh, next: b}}
  b: {{type: script, script: s.sh, next: c, {b}}}
  c: {{type: script, script: s.sh, {c}}}
"""


def chain(engine: str, *, top: str = "", b: str = "", c: str = "") -> Driver:
    return Driver(CHAIN.format(engine=engine, top=top, b=b, c=c)).start()


def stops(run: RunView) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Where a run stands: phase, flagged nodes, planned nodes."""
    points = [hold.breakpoint for hold in run.holds]
    return [(point.phase, point.nodes, point.planned) for point in points if point is not None]


def person() -> Resumed:
    return Resumed("person", "ann@host (cli)")


@both
@pytest.mark.parametrize("way", ["node", "graph"])
@pytest.mark.conformance("SI-01", "DG-06")
def test_a_run_stops_before_a_node_and_starts_it_when_it_is_resumed(engine: str, way: str) -> None:
    driver = chain(engine, b="interrupt: before") if way == "node" else chain(engine, top="interrupt_before: [b]")
    driver.does("a", a=1)
    assert (driver.run.status, stops(driver.run)) == ("paused", [("before", ("b",), ("b",))])
    assert (driver.on_workers(), driver.last and driver.last.dispatches) == ([], ())
    driver.send(person())
    assert (driver.run.status, driver.run.holds, driver.on_workers()) == ("running", (), ["b"])
    driver.does("b", b=1).does("c")
    assert (driver.run.status, driver.state) == ("completed", {"a": 1, "b": 1})


@both
@pytest.mark.parametrize("way", ["node", "graph"])
@pytest.mark.conformance("SI-02", "DG-07")
def test_a_run_stops_after_a_node_whose_writes_count_and_does_not_run_it_again(engine: str, way: str) -> None:
    driver = chain(engine, b="interrupt: after") if way == "node" else chain(engine, top="interrupt_after: [b]")
    driver.does("a", a=1).does("b", b=1)
    assert (driver.run.status, stops(driver.run)) == ("paused", [("after", ("b",), ("c",))])
    assert driver.state == {"a": 1, "b": 1}
    driver.send(person())
    assert (driver.run.status, driver.on_workers()) == ("running", ["c"])
    driver.does("c", c=1)
    assert (driver.run.status, driver.state) == ("completed", {"a": 1, "b": 1, "c": 1})
    assert driver.run.counts == {"a": 1, "b": 1, "c": 1}


@both
@pytest.mark.conformance("SI-03")
def test_a_node_after_and_the_next_before_are_two_stops(engine: str) -> None:
    driver = chain(engine, b="interrupt: after", c="interrupt: before").does("a").does("b")
    assert stops(driver.run) == [("after", ("b",), ("c",))]
    driver.send(person(), after_ms=5_000)
    assert (driver.run.status, stops(driver.run)) == ("paused", [("before", ("c",), ("c",))])
    driver.send(person(), after_ms=5_000)
    assert driver.on_workers() == ["c"]
    driver.does("c")
    assert (driver.run.status, driver.run.counts) == ("completed", {"a": 1, "b": 1, "c": 1})
    assert driver.run.idle_ms == 10_000, "the time of both"


@pytest.mark.conformance("EX-35")
@both
def test_a_node_with_both_stops_the_run_twice(engine: str) -> None:
    driver = chain(engine, b="interrupt: both").does("a")
    assert stops(driver.run) == [("before", ("b",), ("b",))]
    driver.send(person())
    driver.does("b")
    assert stops(driver.run) == [("after", ("b",), ("c",))]
    driver.send(person())
    driver.does("c")
    assert driver.run.status == "completed"


FORKED = """
name: g
version: sleipnir/1
engine: {engine}
start: root
nodes:
  root: {{type: script, script: s.sh, next: [b, c, d]}}
  b: {{type: script, script: s.sh, interrupt: before}}
  c: {{type: script, script: s.sh, interrupt: before}}
  d: {{type: script, script: s.sh}}
"""


@both
@pytest.mark.conformance("SI-04")
def test_a_super_step_stops_the_run_once_before_anything_of_it_runs(engine: str) -> None:
    driver = Driver(FORKED.format(engine=engine)).start().does("root")
    assert stops(driver.run) == [("before", ("b", "c"), ("b", "c", "d"))]
    assert driver.on_workers() == []
    driver.send(person())
    assert sorted(driver.on_workers()) == ["b", "c", "d"]
    for node in "bcd":
        driver.does(node)
    assert (driver.run.status, driver.run.counts) == ("completed", {"root": 1, "b": 1, "c": 1, "d": 1})


@both
@pytest.mark.conformance("SI-06")
def test_a_resumption_needs_no_value_and_a_repeated_one_passes_nothing_else(engine: str) -> None:
    driver = chain(engine, top="interrupt_before: [b, c]").does("a")
    driver.send(person())
    assert isinstance(driver.try_(person()), IgnoredEvent)
    driver.does("b")
    assert stops(driver.run) == [("before", ("c",), ("c",))]


@both
def test_a_resumption_passes_only_what_was_seen_when_it_was_asked_for(engine: str) -> None:
    """Two requests before the first one is read: the second one is no word about what the first one leads to."""
    driver = chain(engine, b="interrupt: after", c="interrupt: before").does("a").does("b")
    seen_ms = driver.now_ms
    twice = Resumed("person", "ann", seen_ms)
    driver.send(twice)
    assert stops(driver.run) == [("before", ("c",), ("c",))]
    assert isinstance(driver.try_(twice), IgnoredEvent)
    driver.send(Paused("ann", None, "person"))
    driver.send(twice)
    assert (driver.run.status, stops(driver.run)) == ("paused", [("before", ("c",), ("c",))]), "the pause has ended"
    driver.send(Resumed("person", "ann", driver.now_ms))
    assert driver.on_workers() == ["c"]


@both
def test_the_first_node_can_be_stopped_at(engine: str) -> None:
    driver = chain(engine, top="interrupt_before: [a]")
    assert (driver.run.status, stops(driver.run), driver.on_workers()) == ("paused", [("before", ("a",), ("a",))], [])
    driver.send(person())
    assert driver.on_workers() == ["a"]


@both
def test_after_the_last_node_nothing_comes_next_and_the_run_ends_when_it_is_resumed(engine: str) -> None:
    driver = chain(engine, c="interrupt: after").does("a").does("b").does("c", c=3)
    assert (driver.run.status, stops(driver.run)) == ("paused", [("after", ("c",), ())])
    driver.send(person())
    assert (driver.run.status, driver.state) == ("completed", {"c": 3})


ENDING = """
name: g
version: {version}
engine: {engine}
start: a
nodes:
  a: {{type: script, script: s.sh, next: done}}
  done: {{type: end, output: "{{{{a}}}} done", state_updates: {{b: "2"}}}}
"""


@both
@pytest.mark.parametrize("version", ["sleipnir/1", '"1.0"'])
def test_a_run_stops_before_an_end_node_and_after_it(engine: str, version: str) -> None:
    driver = Driver(ENDING.format(engine=engine, version=version))
    driver.run = changed(driver.run, spec=driver.run.spec.stopping(["done"], ["a", "done"]))
    driver.start().does("a", a=1)
    assert stops(driver.run) == [("after", ("a",), ("done",))]
    driver.send(person())
    assert stops(driver.run) == [("before", ("done",), ("done",))]
    last = driver.send(person())
    if version == "sleipnir/1":
        assert (stops(driver.run), driver.state["b"]) == ([("after", ("done",), ())], "2")
        assert last.output == "1 done"
        driver.send(person())
    assert (driver.run.status, driver.state["b"]) == ("completed", "2")


AFTER_A_ROUTER = """
name: g
version: sleipnir/1
engine: {engine}
start: r
nodes:
  r: {{type: router, next: [s, q, t], {r}}}
  s: {{type: script, script: s.sh, {s}}}
  q: {{type: input, question: "how many?"}}
  t: {{type: router, next: u}}
  u: {{type: agent, agent: other, prompt: p}}
"""


@both
@pytest.mark.parametrize(("phase", "node"), [("after", "r"), ("before", "s")])
def test_a_breakpoint_after_a_node_that_needs_no_worker_starts_nothing(engine: str, phase: str, node: str) -> None:
    """Such a node ends in the event that starts it, and so does what follows."""
    flags = {"r": "", "s": "", node: f"interrupt: {phase}"}
    driver = Driver(AFTER_A_ROUTER.format(engine=engine, **flags)).start()
    assert stops(driver.run) == [(phase, (node,), ("q", "s", "t"))]
    assert {visit.state for visit in driver.run.frontier.values()} == {"ready"}
    first = driver.last
    assert first is not None
    assert (first.gates, first.effects, driver.run.counts) == ((), (), {"r": 1, "q": 1, "s": 1, "t": 1})
    gone = driver.send(person())
    assert (len(gone.gates), driver.on_workers()) == (1, ["s"])


LOOP = """
name: g
version: sleipnir/1
engine: {engine}
start: a
nodes:
  a: {{type: script, script: s.sh, interrupt: before, branch: {{by: "{{{{way}}}}", to: {{again: a, out: end}}}}}}
"""


@both
def test_each_visit_of_a_loop_stops_again(engine: str) -> None:
    driver = Driver(LOOP.format(engine=engine)).start()
    for _ in range(3):
        assert stops(driver.run) == [("before", ("a",), ("a",))]
        driver.send(person())
        driver.does("a", way="again")
    driver.send(person())
    driver.does("a", way="out")
    assert (driver.run.status, driver.run.counts) == ("completed", {"a": 4})


CONTROL = """
name: g
version: sleipnir/1
engine: {engine}
start: a
nodes:
  a: {{type: script, script: s.sh, next: [m, q, w, r, g]}}
  m: {{type: map, for_each: "{{{{items}}}}", as: x, node: s, collect: found, interrupt: before}}
  s: {{type: script, script: s.sh}}
  q: {{type: input, question: "how many?"}}
  w: {{type: wait, for: 1s}}
  r: {{type: router, next: t}}
  t: {{type: script, script: s.sh}}
  g: {{type: agent, agent: other, prompt: p}}
"""


@both
def test_nodes_that_need_no_worker_do_not_start_either(engine: str) -> None:
    driver = Driver(CONTROL.format(engine=engine), {"items": [1, 2]}).start().does("a")
    held = driver.last
    assert held is not None
    assert (held.status, held.gates, held.timers, held.effects) == ("paused", (), {}, ())
    assert {visit.state for visit in driver.run.frontier.values()} == {"ready"}
    assert stops(driver.run) == [("before", ("m",), ("g", "m", "q", "r", "w"))]
    gone = driver.send(person())
    assert (len(gone.gates), len(gone.effects), len(driver.on_workers())) == (1, 1, 2 + (engine == "dag"))


WIDE = """
name: g
version: sleipnir/1
engine: {engine}
start: a
nodes:
  a: {{type: script, script: s.sh}}
  b: {{type: script, script: s.sh, interrupt: {phase}}}
"""


@both
@pytest.mark.parametrize("count", [3, 300])
def test_a_list_of_commands_is_stopped_before_as_a_whole(engine: str, count: int) -> None:
    driver = Driver(WIDE.format(engine=engine, phase="before")).start()
    driver.does("a", sends=[("b", {"x": number}) for number in range(count)])
    assert stops(driver.run) == [("before", ("b",), ("b",))]
    driver.send(person())
    seen = []
    while driver.on_workers():
        assert driver.run.status == "running"
        seen.append(driver.sees(driver.visit("b"))["x"])
        driver.does("b")
    assert (driver.run.status, sorted(seen)) == ("completed", list(range(count)))


def test_a_super_step_of_many_commands_is_stopped_after_once() -> None:
    driver = Driver(WIDE.format(engine="bsp", phase="after")).start()
    driver.does("a", sends=[("b", {"x": number}) for number in range(300)])
    while driver.on_workers():
        driver.does("b")
    assert (driver.run.status, stops(driver.run)) == ("paused", [("after", ("b",), ())])
    driver.send(person())
    assert driver.run.status == "completed"


def test_in_a_dag_what_ends_meanwhile_joins_the_stop() -> None:
    driver = (
        Driver(
            """
name: g
version: sleipnir/1
engine: dag
start: root
nodes:
  root: {type: script, script: s.sh, next: [a, x, y]}
  a: {type: script, script: s.sh, next: b}
  x: {type: script, script: s.sh, next: z, interrupt: after}
  y: {type: script, script: s.sh, next: b}
  b: {type: script, script: s.sh, interrupt: before}
  z: {type: script, script: s.sh, interrupt: before}
"""
        )
        .start()
        .does("root")
    )
    driver.does("a")
    assert stops(driver.run) == [("before", ("b",), ("b",))]
    driver.does("x")
    assert stops(driver.run) == [("before", ("b",), ("b",)), ("after", ("x",), ("b", "z"))]
    driver.does("y")
    assert (driver.run.status, driver.on_workers()) == ("paused", [])
    driver.send(person())
    assert stops(driver.run) == [("before", ("z",), ("b", "z"))], "x was flagged too: it stops before z now"
    driver.send(person())
    assert driver.on_workers() == ["b", "z"]
    for node in ("b", "b", "z"):
        driver.does(node)
    assert (driver.run.status, driver.run.counts["b"], driver.run.counts["z"]) == ("completed", 2, 1)


# With others who hold the run


@both
def test_one_resumption_of_a_person_ends_a_pause_and_a_breakpoint(engine: str) -> None:
    paused_first = chain(engine, b="interrupt: before")
    paused_first.send(Paused("ann", None, "person"))
    paused_first.does("a")
    stopped_first = chain(engine, b="interrupt: before").does("a")
    stopped_first.send(Paused("ann", None, "person"))
    for driver in (paused_first, stopped_first):
        assert (driver.run.status, len(driver.run.holds)) == ("paused", 2)
        driver.send(person())
        assert (driver.run.status, driver.on_workers()) == ("running", ["b"])


@both
def test_a_parent_that_goes_on_does_not_pass_the_breakpoint_of_its_child(engine: str) -> None:
    driver = chain(engine, b="interrupt: before").does("a")
    driver.send(Paused("ann", None, "parent"))
    driver.send(Resumed("parent", "ann"))
    assert (driver.run.status, stops(driver.run)) == ("paused", [("before", ("b",), ("b",))])
    driver.send(Paused("ann", None, "parent"))
    driver.send(person())
    assert (driver.run.status, driver.on_workers()) == ("paused", [])
    driver.send(Resumed("parent", "ann"))
    assert driver.on_workers() == ["b"]


PARENT = """
name: g
version: sleipnir/1
engine: dag
start: root
nodes:
  root: {type: script, script: s.sh, next: [agent, a]}
  agent: {type: agent, agent: other, prompt: p, timeout: 60}
  a: {type: script, script: s.sh, next: b}
  b: {type: script, script: s.sh, interrupt: both, next: c}
  c: {type: script, script: s.sh, interrupt: before}
"""


def test_child_runs_are_held_with_their_parent_and_their_time_stands_still() -> None:
    driver = Driver(PARENT).start().does("root")
    child = driver.run.frontier[2].children[0]
    assert driver.does("a").last.effects[0].what == "paused"
    assert [effect.what for effect in driver.send(person(), after_ms=50_000).effects] == ["resumed"]
    assert [effect.what for effect in driver.does("b").last.effects] == ["paused"]
    assert driver.send(person(), after_ms=50_000).effects == (), "it stops before c"
    assert [effect.what for effect in driver.send(person(), after_ms=50_000).effects] == ["resumed"]
    assert isinstance(driver.try_(TimerFired(driver.run.frontier[2].timer)), object)
    assert driver.run.frontier[2].state == "waiting"
    driver.send(ChildEnded(2, 1, child, "completed"))
    driver.does("c")
    assert driver.run.status == "completed"


@both
def test_time_at_a_breakpoint_does_not_count_for_the_deadline(engine: str) -> None:
    driver = chain(engine, top="settings: {timeout: 10}", b="interrupt: before").does("a")
    assert isinstance(driver.try_(TimerFired("deadline"), after_ms=60_000), IgnoredEvent)
    gone = driver.send(person())
    assert gone.timers["deadline"] > driver.now_ms + 9_000
    driver.does("b").does("c")
    assert driver.run.status == "completed"


# Ends and retries


@both
def test_a_run_at_a_breakpoint_can_be_cancelled(engine: str) -> None:
    driver = chain(engine, b="interrupt: before").does("a")
    driver.send(Cancelled())
    assert (driver.run.status, driver.run.holds, dict(driver.run.frontier)) == ("cancelled", (), {})


@both
def test_a_retry_does_not_stop_before_nodes_that_it_runs_again(engine: str) -> None:
    driver = chain(engine, b="interrupt: before", c="interrupt: before").does("a")
    driver.send(person())
    driver.fails("b")
    assert driver.run.status == "failed"
    driver.send(Retried())
    assert (driver.run.status, driver.on_workers()) == ("running", ["b"])
    driver.does("b")
    assert stops(driver.run) == [("before", ("c",), ("c",))]


@both
def test_a_child_run_that_was_cancelled_at_a_breakpoint_is_there_again_when_it_is_retried(engine: str) -> None:
    driver = Driver(CHAIN.format(engine=engine, top="settings: {timeout: 10}", b="interrupt: before", c=""))
    driver.run = changed(driver.run, spec=changed(driver.run.spec, parent="parent"))
    driver.start().does("a")
    driver.send(Cancelled(keeps=True))
    assert driver.run.status == "cancelled"
    driver.send(Retried(), after_ms=100_000)
    assert (driver.run.status, stops(driver.run)) == ("paused", [("before", ("b",), ("b",))])
    gone = driver.send(person(), after_ms=100_000)
    assert (driver.run.status, driver.on_workers()) == ("running", ["b"])
    assert gone.timers["deadline"] > driver.now_ms + 9_000


@both
def test_a_run_whose_visit_has_failed_fails_when_it_goes_on(engine: str) -> None:
    text = """
name: g
version: sleipnir/1
engine: dag
start: root
nodes:
  root: {type: script, script: s.sh, next: [a, x]}
  x: {type: script, script: s.sh}
  a: {type: script, script: s.sh, next: b}
  b: {type: script, script: s.sh, interrupt: before}
"""
    driver = Driver(text).start().does("root").fails("x").does("a")
    assert (driver.run.status, stops(driver.run)) == ("paused", [("before", ("b",), ("b",))])
    driver.send(person())
    assert driver.run.status == "failed"
    driver.send(Retried())
    assert sorted(driver.on_workers()) == ["b", "x"]


# Of one run


@both
def test_the_breakpoints_of_a_submission_replace_those_of_the_graph(engine: str) -> None:
    text = CHAIN.format(engine=engine, top="", b="interrupt: both", c="")
    before = Driver(text)
    before.run = changed(before.run, spec=before.run.spec.stopping(["c"], None))
    before.start().does("a").does("b")
    assert stops(before.run) == [("after", ("b",), ("c",))], "the graph's after stays"
    before.send(person())
    assert stops(before.run) == [("before", ("c",), ("c",))]
    none = Driver(text)
    none.run = changed(none.run, spec=none.run.spec.stopping([], []))
    none.start().does("a").does("b").does("c")
    assert none.run.status == "completed"


def test_a_node_that_failed_and_that_the_run_goes_on_after_has_ended() -> None:
    driver = chain("bsp", b="on_error: continue, interrupt: after").does("a").fails("b")
    assert stops(driver.run) == [("after", ("b",), ("c",))]
    driver.send(person())
    assert driver.on_workers() == ["c"]


def test_the_journal_says_where_the_run_stopped_and_who_resumed_it() -> None:
    driver = chain("bsp", b="interrupt: before").does("a")
    driver.send(person())
    steps = [(step.kind, step.by, step.reason) for step, _ in driver.memory.values.journal[1:] if step.seq is None]
    assert steps == [("paused", "breakpoint", "before 'b'; next: 'b'"), ("resumed", "ann@host (cli)", None)]
