"""Very wide runs: what one event costs must not depend on how many visits, commands or items there are.

Costs are counted (calls of functions, visits and fields of a commit), never timed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sleipnir.messages import MOST_SENDS, ResultHeader
from sleipnir.runs.events import Cancelled, Continued, Resulted, Retried
from sleipnir.runs.frontier import Frontier
from sleipnir.runs.run import changed
from sleipnir.runs.transitions import GatherResults, PutValues, SetValue, Transition
from sleipnir.runs.visits import Fan, Visit
from sleipnir_scheduler.planner.engines.steps import WIDE
from sleipnir_scheduler.planner.nodes.maps import CHUNK
from sleipnir_scheduler.planner.plan import plan
from sleipnir_scheduler.planner.settle import MOST_STARTS
from tests.model_store import Driver, fetch_and_plan

both = pytest.mark.parametrize("engine", ["bsp", "dag"])

FAN = """
name: g
version: sleipnir/1
start: plan
engine: {engine}
settings: {{max_concurrency: {slots}}}
state: {{results: {{type: list, reducer: append}}}}
nodes:
  plan: {{type: function, call: "f.py:plan", next: sum}}
  worker: {{type: function, call: "f.py:work", next: {after}}}
  other: {{type: function, call: "f.py:work", next: {after}}}
  idle: {{type: router, next: {after}}}
  sum: {{type: function, call: "f.py:sum", {join}}}
"""


def fan(engine: str, targets: Iterable[str], slots: int = 4) -> Driver:
    """Commands to these nodes, each with its number in `n`; what follows all of them is `sum`."""
    after = {"bsp": ("sum", "next: end"), "dag": ("end", "wait_for: [worker], next: end")}[engine]
    text = FAN.format(engine=engine, slots=slots, after=after[0], join=after[1])
    return Driver(text, {"results": []}).start().does("plan", sends=[(to, {"n": n}) for n, to in enumerate(targets)])


def work(driver: Driver, visits: Iterable[Visit]) -> None:
    """These visits end; each writes the number that it was given."""
    for visit in visits:
        driver.ends(visit, results=driver.sees(visit)["n"])


def finish(driver: Driver) -> None:
    while queued := [v for v in driver.run.frontier.values() if v.state == "queued" and v.node != "sum"]:
        work(driver, queued[-1:])


def calls(does: Callable[[], Any]) -> int:
    """How many Python functions are entered, generators counted by step."""
    count = 0

    def note(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        does()
    finally:
        sys.setprofile(None)
    return count


@both
def test_a_visit_costs_the_same_among_ten_thousand_as_among_some_hundred(engine: str) -> None:
    """Finding C22 of the second review."""

    def cost(width: int) -> int:
        driver = fan(engine, ["worker"] * width)
        for _ in range(2 * WIDE):  # past the first ones
            driver.does("worker", results=1)
        return min(calls(lambda: driver.does("worker", results=1)) for _ in range(20))

    few, many = cost(3 * WIDE), cost(MOST_SENDS)
    assert many < 1.2 * few, f"{many} calls among {MOST_SENDS} visits, {few} among {3 * WIDE}"


@pytest.mark.parametrize("writes", [{}, {"results": 1}], ids=["nothing", "reduced"])
def test_a_step_of_many_visits_closes_without_many_calls_for_each(writes: dict[str, int]) -> None:
    """Finding C22 of the second review: with 10,000 visits, the event took a second."""

    def cost(width: int) -> int:
        driver = fan("bsp", ["worker"] * width, slots=64)
        while len(queued := [visit for visit in driver.run.frontier.values() if visit.state == "queued"]) > 1:
            for visit in queued[1:]:
                driver.ends(visit, **writes)
        header = ResultHeader(ok=True, keys=tuple(writes))
        last = Resulted(queued[0].seq, 1, header)
        made = calls(lambda: fetch_and_plan(driver.graph, driver.run, last, driver.now_ms, driver.memory, writes))
        driver.ends(queued[0], **writes)
        assert driver.on_workers() == ["sum"]
        assert driver.state["results"] == list(writes.values()) * width
        assert (len(driver.run.frontier), driver.memory.items) == (1, {})
        assert driver.last is not None
        assert len(driver.last.close) == 1, "the others have ended before"
        return made

    more = (cost(9 * WIDE) - cost(3 * WIDE)) / (6 * WIDE)
    assert more < 25, f"{more:.1f} calls for each visit"


def test_ten_thousand_commands_are_opened_without_a_call_for_each() -> None:
    """Finding C22 of the second review."""
    driver = Driver(FAN.format(engine="bsp", slots=64, after="sum", join="next: end"), {"results": []}).start()
    visit = driver.visit("plan")
    opened = Resulted(visit.seq, visit.attempt, ResultHeader(ok=True, sends=("worker",) * MOST_SENDS))
    assert calls(lambda: plan(driver.graph, driver.run, opened, driver.now_ms)) < MOST_SENDS


@both
def test_no_commit_of_ten_thousand_commands_opens_more_than_some_hundred_visits(engine: str) -> None:
    """Findings C2 and C22 of the second review."""
    driver = fan(engine, ["worker"] * MOST_SENDS)
    assert len(driver.run.frontier) <= WIDE + 4 + 1
    most = 0
    for _ in range(3 * WIDE):
        driver.does("worker", results=1)
        assert driver.last is not None
        most = max(most, len(driver.last.open))
    assert most <= WIDE


@both
def test_each_of_many_commands_runs_once_and_reducers_fold_in_the_order_of_commands(engine: str) -> None:
    """Finding C22 of the second review."""
    width = 3 * WIDE + 5
    driver = fan(engine, ["worker"] * width)
    seen: list[int] = []
    rng = random.Random(7)
    while len(seen) < width:
        visit = rng.choice([v for v in driver.run.frontier.values() if v.state == "queued"])
        seen.append(driver.sees(visit)["n"])
        driver.ends(visit, results=seen[-1])
    assert sorted(seen) == list(range(width))
    assert driver.state["results"] == list(range(width))
    assert driver.on_workers() == ["sum"], "what follows runs once, after all of them"
    assert (driver.run.counts["worker"], driver.memory.items, driver.memory.windows) == (1, {}, {})
    driver.does("sum")
    assert (driver.run.status, len(driver.run.frontier)) == ("completed", 0)


@both
def test_commands_to_several_nodes_and_to_the_end_are_distinguished(engine: str) -> None:
    """Finding C22 of the second review."""
    targets = [("worker", "other", "end", "idle")[n % 4] for n in range(4 * WIDE)]
    driver = fan(engine, targets, slots=3)
    order: list[int] = []
    while queued := [v for v in driver.run.frontier.values() if v.state == "queued" and v.node != "sum"]:
        order.append(driver.sees(queued[0])["n"])
        work(driver, queued[:1])
    assert sorted(order) == [n for n, to in enumerate(targets) if to in ("worker", "other")]
    assert driver.on_workers() == ["sum"]
    assert {node: driver.run.counts[node] for node in ("worker", "other", "idle")} == dict.fromkeys(
        ("worker", "other", "idle"), 1
    )


@both
def test_visits_without_a_worker_start_by_the_thousand_and_the_rest_by_events_of_their_own(engine: str) -> None:
    """Finding C22 of the second review: no event starts more than MOST_STARTS visits."""
    driver = fan(engine, ["idle"] * (2 * MOST_STARTS + 1) + ["worker"], slots=1)
    assert driver.own_events >= 2
    finish(driver)
    assert driver.on_workers() == ["sum"]


@both
def test_a_run_that_failed_amid_its_commands_continues_with_those_that_are_left(engine: str) -> None:
    """Finding C22 of the second review."""
    width = 2 * WIDE
    text = FAN.format(engine=engine, slots=2, after="end", join="next: end")
    driver = (
        Driver(text.replace('work", next: end', 'work"'), {"results": []})
        .start()
        .does("plan", sends=[("worker", {"n": n}) for n in range(width)])
    )
    driver.fails("worker")
    finish(driver)
    assert driver.run.status == "failed"
    driver.send(Retried())
    finish(driver)
    assert driver.run.status == "completed", driver.error
    assert driver.state["results"] == list(range(width))


@both
def test_a_cancelled_run_leaves_none_of_its_commands(engine: str) -> None:
    driver = fan(engine, ["worker"] * (4 * WIDE))
    driver.send(Cancelled())
    assert (driver.run.status, len(driver.run.frontier)) == ("cancelled", 0)


MAP = """
name: g
start: fan
settings: {max_concurrency: 8}
nodes:
  fan: {type: map, over: "{{items}}", as: item, branch: body, collect_into: results, next: done}
  body: {type: function, call: "f.py:body"}
  done: {type: end, output: "{{results}}"}
"""


def fields_of(transition: Transition) -> int:
    """Fields of `items` that the commit writes, deletes or reads."""
    return sum(len(op.overlays) if isinstance(op, PutValues) else op.count if isinstance(op, GatherResults) else 1
               for op in transition.items)  # fmt: skip


def fan_of(driver: Driver) -> Visit:
    return next(visit for visit in driver.run.frontier.values() if isinstance(visit.body, Fan))


def test_a_map_of_a_million_items_opens_and_is_collected_in_chunks() -> None:
    """Finding C2 of the second review: one commit took a million arguments, which Redis refuses by closing the
    connection."""
    total = 1_000_000
    driver = Driver(MAP, {"items": list(range(total))}).start()
    assert driver.last is not None
    assert fields_of(driver.last) == CHUNK + total // CHUNK - 1
    opened = [visit for visit in driver.run.frontier.values() if visit.item]
    assert [driver.sees(visit)["item"] for visit in opened] == list(range(8))
    texts = [op for op in driver.last.items if isinstance(op, SetValue)]
    assert max(len(op.text) for op in texts) < 16_000

    # All items but those of the last chunk have ended: their results are where the store keeps them.
    of, done = fan_of(driver), total - CHUNK
    chunk = f"{of.body.id}.chunk.{done}"
    driver.memory.items = {f"{of.body.id}.{n}": f"{n}" for n in range(done)} | {chunk: driver.memory.items[chunk]}
    at_the_end = changed(of, body=changed(of.body, next=done, done=done, put=done))
    driver.run = changed(driver.run, frontier=Frontier.of({of.seq: at_the_end}))
    commits = counted_commits(driver)
    driver.try_(Continued())
    for n in range(done, total):
        visit = driver.visit("body")
        assert driver.sees(visit)["item"] == n
        driver.ends(visit, output=n)
    assert (driver.run.status, driver.memory.items) == ("completed", {})
    assert driver.state["results"] == list(range(total))
    assert max(commits) <= CHUNK + 1
    assert driver.own_events == total // CHUNK + 1, "one for each piece, and one for the list"


def counted_commits(driver: Driver) -> list[int]:
    """How many fields each commit from now on is about."""
    counts: list[int] = []
    apply = driver.memory.apply

    def counting(transition: Transition, *values: Any) -> None:
        counts.append(fields_of(transition))
        apply(transition, *values)

    driver.memory.apply = counting  # type: ignore[method-assign]
    return counts


@pytest.mark.parametrize("policy", ["fail", "skip", "collect"])
def test_a_map_in_chunks_leaves_what_a_small_one_leaves(policy: str) -> None:
    """Finding C2 of the second review."""
    text = MAP.replace("collect_into", f"on_item_error: {policy}, collect_into")
    total = 2 * CHUNK + 7
    driver = Driver(text, {"items": list(range(total))}).start()
    retried = False
    while bodies := [visit for visit in driver.run.frontier.values() if visit.item and visit.state == "queued"]:
        visit = bodies[-1]
        n = driver.sees(visit)["item"]
        if n in (3, CHUNK + 3) and not retried:
            driver.send(Resulted(visit.seq, visit.attempt, ResultHeader(ok=False, error="boom")))
        else:
            driver.ends(visit, output=n)
        if driver.run.status == "failed":
            assert policy == "fail"
            driver.send(Retried())
            retried = True
    assert driver.run.status == "completed", driver.error
    bad = {"fail": lambda n: [n], "skip": lambda n: [], "collect": lambda n: [{"error": "boom"}]}[policy]
    expected = [each for n in range(total) for each in (bad(n) if n in (3, CHUNK + 3) else [n])]
    assert driver.state["results"] == expected
    assert driver.memory.items == {}
