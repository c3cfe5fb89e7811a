"""`skip`: a visit ends with the value that a person gives, as if its node had returned it."""

from __future__ import annotations

from typing import Any

import pytest

from sleipnir.messages import ANSWER, MESSAGES, RESULT, ToolCall
from sleipnir.runs.checkpoints import CheckpointReader
from sleipnir.runs.events import Answered, ChildEnded, LeaseLost, Paused, Resumed, Retried, Skipped, Told
from sleipnir.runs.journal import state_after
from sleipnir.runs.run import Checkpoint
from sleipnir.runs.transitions import TellChild, Transition
from sleipnir.runs.visits import Doubt, Visit
from sleipnir.store.visit_records import read_visit, visit_text
from sleipnir_scheduler.planner.plan import IgnoredEvent
from tests.model_store import Driver, ok

CHAIN = """
name: chain
version: sleipnir/1
engine: ENGINE
start: a
state: {n: int, log: {type: list, reducer: append}}
nodes:
  a: {type: script, script: a.sh, next: b}
  b: {type: KIND, next: c, state_updates: {seen: "{{SEEN}}"}}
  c: {type: script, script: c.sh, next: done, ends: {stop: done}}
  done: {type: end, output: "{{n}}"}
"""

KINDS = {
    "script": "script, script: b.sh",
    "llm": "llm, prompt: p",
    "talk": "llm, prompt: p, tools: [t]",
    "approval": 'approval, question: ok?, options: ["yes"], routes: {"yes": c}, on_other: done',
    "input": "input, question: n?",
    "agent": "agent, agent: worker, prompt: p",
    "wait": "wait, for: 9s",
    "once": "script, script: b.sh, effect: once",
}
SCOPED = {"llm": "output", "talk": "output", "agent": "output", "approval": "choice", "input": "input"}
BY = "ann@desk (cli)"


def chain(kind: str, engine: str = "bsp") -> Driver:
    text = CHAIN.replace("ENGINE", engine).replace("KIND", KINDS[kind]).replace("SEEN", SCOPED.get(kind, "n"))
    if kind == "approval":
        text = text.replace("on_other: done, next: c,", "on_other: done,")
    return Driver(text).start().does("a", n=1)


def skip(driver: Driver, visit: Visit, value: Any, *to: str, reason: str | None = "it is known") -> Any:
    return driver.try_(Skipped(visit.seq, value, to, BY, reason))


def the(driver: Driver, node: str) -> Visit:
    return next(visit for visit in driver.run.frontier.values() if visit.node == node and visit.is_branch)


def steps(driver: Driver) -> list[Any]:
    return [step for step, _ in driver.memory.values.journal]


@pytest.mark.parametrize("engine", ["bsp", "dag"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_visit_writes_the_value_and_takes_its_edges(kind: str, engine: str) -> None:
    driver = chain(kind, engine)
    value: Any = "yes" if kind in SCOPED else {"n": 5}
    moved = skip(driver, the(driver, "b"), value)
    assert isinstance(moved, Transition)
    assert driver.live() == ["c"]
    assert driver.state["seen"] in ("yes", 5, "5")
    step = next(step for step in steps(driver) if step.node == "b")
    assert (step.by, step.reason, step.ok) == (BY, "it is known", True)
    assert step.skipped
    assert state_after(driver.memory.entries) == driver.state
    driver.does("c")
    assert driver.run.status == "completed"


def test_the_types_of_the_state_and_the_reducers_apply() -> None:
    driver = chain("script")
    refused = skip(driver, the(driver, "b"), {"n": "many"})
    assert isinstance(refused, IgnoredEvent)
    assert refused.notice is not None
    assert "state key 'n' must be int" in refused.notice.data["error"]
    assert driver.live() == ["b"]
    skip(driver, the(driver, "b"), {"log": ["x"]})
    assert driver.state["log"] == ["x"]


@pytest.mark.parametrize(
    ("kind", "value", "to", "why"),
    [
        ("script", "text", (), "needs an object of state keys"),
        ("llm", {"n": 1}, (), "needs a text"),
        ("script", {"_next": [{"to": "c"}]}, (), "a skip gives no commands"),
        ("script", {}, ("nowhere",), "no node 'nowhere' to go on at"),
        ("wait", {"_next": "c"}, (), "choose the node to go on at with --to"),
    ],
)
def test_a_value_that_does_not_fit_changes_nothing(kind: str, value: Any, to: tuple[str, ...], why: str) -> None:
    driver = chain(kind)
    before = driver.run
    refused = skip(driver, the(driver, "b"), value, *to)
    assert isinstance(refused, IgnoredEvent)
    assert why in refused.reason
    assert driver.run is before


def test_the_way_on_may_be_chosen_by_the_person_or_the_value() -> None:
    driver = chain("script")
    skip(driver, the(driver, "b"), {}, "done")
    assert driver.run.status == "completed"
    driver = chain("script")
    skip(driver, the(driver, "b"), {"_next": "c"})
    skip(driver, the(driver, "c"), {"_next": "stop"})
    assert driver.run.status == "completed"


def test_an_approval_leads_where_the_answer_would() -> None:
    driver = chain("approval")
    skip(driver, the(driver, "b"), "no")
    assert driver.run.status == "completed"


def test_the_second_skip_finds_no_visit() -> None:
    driver = chain("script")
    visit = the(driver, "b")
    skip(driver, visit, {"n": 2})
    assert isinstance(skip(driver, visit, {"n": 2}), IgnoredEvent)
    assert isinstance(skip(driver, visit, {"n": 3}), IgnoredEvent)
    assert driver.state["n"] == 2


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_a_late_result_of_the_worker_is_refused(engine: str) -> None:
    driver = chain("script", engine)
    visit = the(driver, "b")
    skip(driver, visit, {"n": 2})
    late = driver.try_(ok(visit.seq, keys=("n",)), {"n": 3})
    assert isinstance(late, IgnoredEvent)
    assert late.notice is not None
    assert late.notice.type == "late_result"


def test_the_child_run_is_cancelled_and_its_end_changes_nothing() -> None:
    driver = chain("agent")
    visit = the(driver, "b")
    child = visit.children[0]
    moved = skip(driver, visit, "known")
    assert TellChild(child, "cancelled") in moved.effects
    event = ChildEnded(visit.seq, visit.attempt, child, "completed")
    assert isinstance(driver.try_(event, {RESULT: "late"}), IgnoredEvent)


def test_a_doubt_about_an_effect_is_settled_by_a_skip() -> None:
    driver = chain("once")
    visit = the(driver, "b")
    driver.send(LeaseLost(visit.seq, 1, "w"))
    assert isinstance(the(driver, "b").body, Doubt)
    moved = skip(driver, the(driver, "b"), {"n": 7})
    assert any(closed.is_asking for closed in moved.close)
    assert isinstance(driver.try_(Answered(visit.seq, "run again")), IgnoredEvent)
    assert driver.state["n"] == 7


def test_a_loop_ends_with_its_turns() -> None:
    driver = chain("talk")
    loop = the(driver, "b")
    assert len(driver.run.frontier) == 2
    skip(driver, loop, "said")
    assert driver.live() == ["c"]
    assert not [field for field in driver.memory.items if field.startswith(f"{loop.seq}.")]


def test_a_paused_run_takes_a_skip_and_goes_on_later() -> None:
    driver = chain("script")
    driver.send(Paused("ann"))
    moved = skip(driver, the(driver, "b"), {"n": 2})
    assert (moved.status, moved.dispatches) == ("paused", ())
    driver.send(Resumed())
    assert driver.on_workers() == ["c"]


PARALLEL = """
name: parallel
version: sleipnir/1
engine: ENGINE
start: split
state: {log: {type: list, reducer: append}}
nodes:
  split: {type: router, next: [left, right]}
  left: {type: script, script: l.sh}
  right: {type: script, script: r.sh}
  after: {type: script, script: a.sh, wait_for: [left, right], next: done}
  done: {type: end, output: "{{log}}"}
"""


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_a_failed_run_goes_on_with_the_value_and_runs_nothing_of_it_again(engine: str) -> None:
    driver = chain("script", engine).fails("b")
    assert driver.run.status == "failed"
    moved = skip(driver, the(driver, "b"), {"n": 9})
    assert moved.revives
    assert driver.on_workers() == ["c"]
    assert driver.state["n"] == 9
    kinds = [(step.kind, step.by) for step in steps(driver)][-2:]
    assert kinds == [("script", BY), ("retried", BY)]
    assert state_after(driver.memory.entries) == driver.state
    driver.does("c")
    assert (driver.run.status, driver.output) == ("completed", "9")


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_only_the_other_failed_visits_run_again(engine: str) -> None:
    driver = Driver(PARALLEL.replace("ENGINE", engine)).start()
    driver.does("left", log=["l"])
    driver.fails("right")
    skip(driver, the(driver, "right"), {"log": ["given"]})
    assert driver.on_workers() == ["after"]
    assert driver.state["log"] == ["l", "given"]
    assert state_after(driver.memory.entries) == driver.state
    both = Driver(PARALLEL.replace("ENGINE", "bsp")).start().fails("left").fails("right")
    skip(both, the(both, "left"), {"log": ["given"]})
    assert both.on_workers() == ["right"]
    both.does("right", log=["r"])
    assert both.state["log"] == ["given", "r"]


def test_a_checkpoint_follows_a_skip_of_a_failed_run() -> None:
    driver = chain("script").fails("b")
    skip(driver, the(driver, "b"), {})
    reader = CheckpointReader(Checkpoint(0, ("a",))).over(steps(driver)[1:])
    assert (reader.last.step, reader.last.nodes) == (steps(driver)[-1].step, ("c",))


def test_a_refused_skip_of_a_failed_run_leaves_it_failed_and_retryable() -> None:
    driver = chain("script").fails("b")
    moved = skip(driver, the(driver, "b"), {"n": "many"})
    assert (moved.status, driver.failed()) == ("failed", ["b"])
    assert "a skip was refused: the graph's `state:` does not allow it" in (moved.error or "")
    driver.send(Retried())
    assert driver.on_workers() == ["b"]


MAP = """
name: map
version: sleipnir/1
engine: ENGINE
start: each
nodes:
  each: {type: map, over: "{{items}}", as: item, branch: BODY, output_key: r, collect_into: found, next: done}
  first: {type: script, script: f.sh}
  work: {type: script, script: w.sh}
  ask: {type: input, question: q?, state_updates: {r: "{{input}}"}}
  done: {type: end, output: "{{found}}"}
"""


def mapped(body: str, engine: str = "bsp") -> Driver:
    return Driver(MAP.replace("ENGINE", engine).replace("BODY", body), {"items": [1, 2, 3]}).start()


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_a_map_is_skipped_with_its_items(engine: str) -> None:
    driver = mapped("work", engine).does("work", item=0, r="a")
    late = driver.visit("work", 1)
    skip(driver, the(driver, "each"), ["x", "y"])
    assert (driver.run.status, driver.state["found"]) == ("completed", ["x", "y"])
    assert isinstance(driver.try_(ok(late.seq, keys=("r",)), {"r": "b"}), IgnoredEvent)
    assert driver.memory.items == {}


@pytest.mark.parametrize(("body", "value"), [("work", {"r": "given"}), ("ask", "given")])
def test_one_item_is_skipped(body: str, value: Any) -> None:
    driver = mapped(body)
    skip(driver, driver.visit(body, 1), value)
    for item in (0, 2):
        if body == "ask":
            visit = driver.visit(body, item)
            driver.send(Answered(visit.seq, "x", visit.attempt))
        else:
            driver.does(body, item=item, r="x")
    assert driver.state["found"] == ["x", "given", "x"]


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_failed_items_are_skipped_one_by_one(engine: str) -> None:
    driver = mapped("work", engine).does("work", item=0, r="a").fails("work", item=1).fails("work", item=2)
    assert driver.run.status == "failed"
    items = {visit.item.index: visit for visit in driver.run.frontier.values() if visit.item is not None}
    skip(driver, items[1], {"r": "b"})
    assert driver.on_workers() == ["work"]
    driver.fails("work", item=2)
    again = next(visit for visit in driver.run.frontier.values() if visit.item is not None)
    skip(driver, again, {"r": "c"})
    assert (driver.run.status, driver.state["found"]) == ("completed", ["a", "b", "c"])


def test_a_failed_item_of_a_chain_goes_on_with_the_next_node() -> None:
    driver = mapped("[first, work]")
    for item in (1, 2):
        driver.does("first", item=item, k=1).does("work", item=item, r=item)
    driver.fails("first", item=0)
    failed = next(visit for visit in driver.run.frontier.values() if visit.item is not None)
    skip(driver, failed, {"k": 5})
    assert driver.on_workers() == ["work"]
    assert driver.sees(driver.visit("work"))["k"] == 5
    driver.does("work", r=0)
    assert driver.state["found"] == [0, 1, 2]


def test_a_run_that_needs_a_slot_goes_on_with_the_value_once_it_has_one() -> None:
    text = CHAIN.replace("ENGINE", "bsp").replace("KIND", KINDS["script"]).replace("SEEN", "n")
    driver = Driver(text + "concurrency: {limit: 1}\n").start()
    granted = Told("slot_granted", {"ticket": driver.run.slot.ticket if driver.run.slot else 0})
    driver.send(granted)
    driver.does("a", n=1).fails("b")
    skip(driver, the(driver, "b"), {"n": 4})
    assert driver.run.waits_for_slot
    assert driver.run.slot is not None
    driver.send(Told("slot_granted", {"ticket": driver.run.slot.ticket}))
    assert driver.on_workers() == ["c"]
    assert driver.state["n"] == 4


def test_a_part_of_a_loop_is_not_skipped_by_itself() -> None:
    driver = chain("talk")
    turn = next(visit for visit in driver.run.frontier.values() if visit.part is not None)
    refused = skip(driver, turn, "x")
    assert isinstance(refused, IgnoredEvent)
    assert "only a part of node 'b'" in refused.reason


def test_a_result_that_came_first_counts() -> None:
    driver = chain("script")
    visit = the(driver, "b")
    driver.does("b", n=2)
    assert isinstance(skip(driver, visit, {"n": 3}), IgnoredEvent)
    assert driver.state["n"] == 2


def test_a_skipped_map_of_a_failed_run_forgets_what_its_items_have_said() -> None:
    text = MAP.replace("ENGINE", "bsp").replace("BODY", "talk").replace("settings", "")
    text = text.replace("  first:", "  talk: {type: llm, prompt: p, tools: [t]}\n  first:") + "settings: {timeout: 5}\n"
    driver = Driver(text, {"items": [1]}).start()
    turn = next(visit for visit in driver.run.frontier.values() if visit.part is not None)
    calls = (ToolCall("c0", "t", "scripts"),)
    answer = {"role": "assistant", "tool_calls": [{"id": "c0"}]}
    driver.ends(turn, calls=calls, **{MESSAGES: [], ANSWER: answer})
    call = next(visit for visit in driver.run.frontier.values() if visit.part is not None)
    driver.now_ms += 9_000
    driver.send(LeaseLost(call.seq, call.attempt, "w"))
    assert driver.run.status == "failed"
    assert driver.memory.items
    skip(driver, the(driver, "each"), ["x"])
    assert (driver.run.status, driver.memory.items) == ("completed", {})


LOOP = """
name: again
version: sleipnir/1
engine: ENGINE
start: a
settings: {max_loop_iterations: 2}
limits: {max_steps: STEPS}
nodes:
  a: {type: script, script: a.sh, next: [b, c]}
  b: {type: script, script: b.sh, next: d}
  c: {type: script, script: c.sh}
  d: {type: script, script: d.sh}
"""


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_a_visit_beyond_a_limit_is_counted_when_it_is_skipped(engine: str) -> None:
    driver = Driver(LOOP.replace("ENGINE", engine).replace("STEPS", "1")).start().does("a")
    assert driver.run.status == "failed"
    assert (driver.run.counts.get("b", 0), driver.run.counts.get("c", 0)) == (0, 0)
    for visit in driver.run.frontier.values():
        assert read_visit(visit_text(visit)) == visit
    skip(driver, the(driver, "b"), {})
    assert (driver.run.counts["b"], driver.run.counts["c"]) == (1, 1), "one was let end, the other runs again"


def test_of_a_step_the_visit_after_the_one_beyond_the_cap_is_counted_when_it_is_skipped() -> None:
    text = LOOP.replace("ENGINE", "bsp").replace("max_steps: STEPS", "").replace("next: d", "next: [b, d]")
    driver = Driver(text).start().does("a").does("c").does("b").does("d").does("b")
    assert driver.run.status == "failed", "the third entry of b is one too many"
    assert (driver.run.counts["b"], driver.run.counts["d"]) == (3, 1)
    skip(driver, the(driver, "d"), {})
    assert (driver.run.counts["b"], driver.run.counts["d"]) == (1, 2), "b runs again, and is forgiven"


@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_one_of_two_visits_of_a_node_beyond_a_limit_is_not_counted_twice(engine: str) -> None:
    text = LOOP.replace("ENGINE", engine).replace("STEPS", "1").replace("next: [b, c]", "ends: {b: b}")
    driver = Driver(text).start().does("a", sends=[("b", {}), ("b", {})])
    assert driver.run.status == "failed"
    skip(driver, the(driver, "b"), {})
    assert driver.run.counts["b"] == 1
    skip(driver, the(driver, "b"), {})
    assert driver.run.counts["b"] == 1
