"""Maps: items run as visits of their own, so many at once, and their results come back in input order."""

from __future__ import annotations

import pytest

from sleipnir.runs.events import Cancelled, LeaseLost, Retried, TimerFired
from tests.model_store import Driver

MAP = """
name: g
start: fan
nodes:
  fan: {type: map, over: "{{items}}", as: item, branch: work, collect_into: results, max_concurrency: 2, next: e}
  work: {type: script, script: s.sh}
  e: {type: end, output: "{{results}}"}
"""


def started(text: str = MAP, items: object = None, **more: object) -> Driver:
    return Driver(text, {"items": ["x", "y", "z"] if items is None else items, **more}).start()


@pytest.mark.conformance("Y04")
def test_results_are_in_input_order_for_any_order_of_ends() -> None:
    driver = (
        started().does("work", item=1, output="Y").does("work", item=2, output="Z").does("work", item=0, output="X")
    )
    assert (driver.run.status, driver.output) == ("completed", '["X","Y","Z"]')
    assert driver.state["results"] == ["X", "Y", "Z"]
    assert driver.memory.items == {}, "nothing of the items is left"
    assert "output" not in driver.state
    assert "item" not in driver.state


@pytest.mark.conformance("Y04")
def test_an_empty_list_is_an_empty_result() -> None:
    driver = started(items=[])
    assert (driver.run.status, driver.state["results"]) == ("completed", [])


@pytest.mark.conformance("Y05")
def test_no_more_items_run_at_once_than_the_map_allows() -> None:
    driver = started()
    assert driver.on_workers() == ["work", "work"]
    driver.does("work", item=0, output=1)
    assert [driver.run.frontier[seq].item.index for seq in sorted(driver.run.frontier)[1:]] == [1, 2]  # type: ignore[union-attr]


def test_an_item_reads_itself_and_the_state_and_not_the_others() -> None:
    driver = started(other="seen")
    seen = [driver.sees(driver.visit("work", item)) for item in (0, 1)]
    assert [state["item"] for state in seen] == ["x", "y"]
    assert [state["other"] for state in seen] == ["seen", "seen"]


def test_a_chain_of_bodies_hands_its_writes_on_within_the_item() -> None:
    text = MAP.replace("branch: work", "node: [work, sum]").replace("as: item", "as: item, ")
    text = text.replace("as: item, ,", "as: item,") + "  sum: {type: script, script: s.sh}\n"
    driver = started(text, items=["x"]).does("work", item=0, part=5)
    assert driver.sees(driver.visit("sum", 0)) == {"items": ["x"], "item": "x", "part": 5}
    driver.does("sum", item=0, output=6)
    assert driver.state["results"] == [6]
    assert "part" not in driver.state


def test_all_items_run_even_if_one_fails_and_the_first_in_input_order_is_named() -> None:
    driver = started().fails("work", "no y", item=1).fails("work", "no x", item=0)
    assert driver.run.status == "running"
    driver.does("work", item=2, output="Z")
    assert driver.error == (
        "Graph execution failed for agent 'agent': at node 'fan': map node 'fan': sub-branch [0] failed: no x"
    )


def test_retry_runs_only_the_items_that_failed() -> None:
    driver = started().does("work", item=0, output="X").fails("work", item=1).does("work", item=2, output="Z")
    assert driver.run.status == "failed"
    driver.send(Retried())
    assert [driver.run.frontier[seq].item.index for seq in driver.run.frontier if driver.run.frontier[seq].item] == [1]  # type: ignore[union-attr]
    driver.does("work", item=1, output="Y")
    assert (driver.run.status, driver.state["results"]) == ("completed", ["X", "Y", "Z"])


@pytest.mark.parametrize("version", ["1.0", "sleipnir/1"])
@pytest.mark.parametrize("rule", ["continue", "after"])
def test_a_run_that_goes_on_after_a_failed_map_keeps_none_of_its_items(version: str, rule: str) -> None:
    text = f"""
name: g
version: {version}
start: fan
nodes:
  fan:
    {{type: map, over: "{{{{items}}}}", as: item, branch: work, collect_into: results, next: after, on_error: {rule}}}
  work: {{type: script, script: s.sh}}
  after: {{type: script, script: s.sh, next: end}}
  end: {{type: end, output: over}}
"""
    driver = started(text).does("work", item=0, output="X").fails("work", item=1).does("work", item=2, output="Z")
    assert (driver.live(), driver.memory.items) == (["after"], {})
    driver.does("after")
    assert driver.run.status == "completed"


def test_failed_items_are_left_out_or_reported_in_their_place_if_the_author_wants_so() -> None:
    for how, results in (("skip", ["X", "Z"]), ("collect", ["X", {"error": "no y"}, "Z"])):
        driver = started(MAP.replace("as: item", f"as: item, on_item_error: {how}"))
        driver.does("work", item=0, output="X").fails("work", "no y", item=1).does("work", item=2, output="Z")
        assert (driver.run.status, driver.state["results"]) == ("completed", results)


def test_retry_does_not_wait_again_for_items_that_a_map_has_skipped() -> None:
    text = """
name: g
version: sleipnir/1
start: split
engine: dag
nodes:
  split: {type: router, next: [fan, bad]}
  fan: {type: map, for_each: "{{items}}", as: item, node: work, collect: results, max_parallel: 1, on_item_error: skip}
  work: {type: script, script: s.sh}
  bad: {type: script, script: s.sh}
"""
    driver = started(text).fails("work", item=0).fails("bad").does("work", item=1, output="Y")
    assert driver.run.status == "failed"
    driver.send(Retried())
    driver.does("bad").does("work", item=2, output="Z")
    assert (driver.run.status, driver.state["results"]) == ("completed", ["Y", "Z"])


def test_an_item_whose_worker_dies_runs_again_with_its_own_item() -> None:
    driver = started()
    visit = driver.visit("work", 1)
    [again] = driver.send(LeaseLost(visit.seq, 1, "w")).dispatches
    assert (again.attempt, driver.sees(again)["item"]) == (2, "y")


def test_a_list_as_json_text_is_a_list() -> None:
    assert started(items='["x"]').on_workers() == ["work"]


@pytest.mark.parametrize(
    ("items", "kind"), [(None, "null"), (True, "bool"), (1, "number"), ("text", "string"), ({}, "object")]
)
def test_anything_else_than_a_list_is_an_error_that_reports_what_it_is(items: object, kind: str) -> None:
    driver = Driver(MAP, {"items": items}).start()
    assert driver.error is not None
    assert f"map node 'fan': `over` template '{{{{items}}}}' must resolve to an array, got {kind}" in driver.error


def test_a_missing_list_is_an_error_that_names_it() -> None:
    driver = Driver(MAP).start()
    assert driver.error is not None
    assert (
        "map node 'fan': evaluating `over` template: Template interpolation failed: 'items' not found" in driver.error
    )


def test_progress_is_reported_about_a_hundred_times_for_any_number_of_items() -> None:
    driver = started(MAP.replace("max_concurrency: 2", "max_concurrency: 1"), items=list(range(1000)))
    told = 0
    for _ in range(1000):
        driver.does("work", output=0)
        told += sum(notice.type == "map_progress" for notice in driver.last.notices if driver.last)  # type: ignore[union-attr]
    assert told == 100
    assert driver.run.status == "completed"


def test_the_loop_cap_does_not_count_items() -> None:
    driver = started("settings: {max_loop_iterations: 1}" + MAP, items=list("abcde"))
    for index in range(5):
        driver.does("work", item=index, output=index)
    assert driver.run.status == "completed"


def test_two_maps_in_parallel_branches_inside_a_loop_keep_their_items_apart() -> None:
    text = """
name: g
version: sleipnir/1
start: split
engine: bsp
nodes:
  split: {type: router, next: [left, right]}
  left: {type: map, for_each: "{{items}}", as: item, node: work, collect: lefts}
  right: {type: map, for_each: "{{items}}", as: item, node: work, collect: rights}
  work: {type: script, script: s.sh}
  meet: {type: script, script: s.sh, wait_for: [left, right], branch: [{when: "state.n < 2", to: split}, {else: end}]}
"""
    driver = Driver(text, {"items": ["x", "y"]}).start()
    for n in (1, 2):
        while "work" in driver.on_workers():
            visit = driver.visit("work")
            driver.ends(visit, output=f"{driver.sees(visit)['item']}{visit.item.map if visit.item else 0}")
        assert len({*driver.state["lefts"], *driver.state["rights"]}) == 4
        driver.does("meet", n=n)
    assert (driver.run.status, driver.memory.items) == ("completed", {})


def test_a_cancelled_map_leaves_nothing() -> None:
    driver = started()
    driver.send(Cancelled())
    assert driver.run.frontier == {}


def test_what_a_map_collects_goes_through_the_reducer_of_its_key() -> None:
    text = MAP.replace("start: fan", "start: fan\nreducers: {results: extend}")
    driver = started(text, items=["x"], results=["before"]).does("work", item=0, output="X")
    assert driver.state["results"] == ["before", "X"]


def test_a_limit_of_the_run_holds_for_all_its_maps_and_branches_and_a_maps_own_below_it() -> None:
    text = """
name: g
version: sleipnir/1
start: split
limits: {max_concurrency: 4}
nodes:
  split: {type: router, next: [left, right, work]}
  left: {type: map, for_each: "{{items}}", as: item, node: body, collect: lefts, max_parallel: 1}
  right: {type: map, for_each: "{{items}}", as: item, node: body, collect: rights}
  work: {type: script, script: s.sh}
  body: {type: script, script: s.sh}
"""
    driver = Driver(text, {"items": list("abcdefgh")}).start()
    items = [visit.item.of for visit in driver.run.frontier.values() if visit.item and visit.state == "queued"]
    assert (len(driver.on_workers()), items.count("left")) == (4, 1)


TIMED = """
name: g
start: m
settings: {timeout: 10}
nodes:
  m: {type: map, over: "{{items}}", as: item, branch: work, collect_into: all, max_concurrency: 2, next: e}
  work: {type: script, script: w.sh}
  e: {type: end}
"""


def test_no_item_is_started_after_the_deadline_and_the_run_ends_with_those_that_run() -> None:
    driver = Driver(TIMED, {"items": [1, 2, 3, 4]}).start()
    assert driver.send(TimerFired("deadline"), after_ms=10_001).unless_claimed
    driver = Driver(TIMED, {"items": [1, 2, 3, 4]}).start()
    driver.now_ms += 11_000
    driver.does("work", item=0, output="one")
    assert driver.on_workers() == ["work"]
    assert driver.last is not None
    assert driver.last.timers == {"deadline": driver.now_ms + 1}
    driver.does("work", item=1, output="two")
    assert driver.run.status == "failed"
    assert str(driver.error).endswith("Graph 'g' timed out after 10s at 'm'")
    driver.send(Retried())
    assert [driver.visit("work", item).item is not None for item in (2, 3)] == [True, True]
    assert driver.on_workers() == ["work", "work"]


def test_the_next_body_of_an_item_is_not_started_after_the_deadline() -> None:
    chain = TIMED.replace("branch: work, collect_into: all", "node: [work, more], collect: all")
    driver = Driver(chain + "  more: {type: script, script: m.sh}\n", {"items": [1]}).start()
    driver.now_ms += 11_000
    driver.does("work", item=0, output="one")
    assert driver.run.status == "failed"
    driver.send(Retried())
    assert driver.on_workers() == ["more"]


def test_a_map_whose_last_items_end_after_the_deadline_ends_before_the_run_does() -> None:
    driver = Driver(TIMED, {"items": [1, 2]}).start()
    driver.does("work", item=0, output="one")
    driver.now_ms += 11_000
    driver.does("work", item=1, output="two")
    assert str(driver.error).endswith("timed out after 10s at 'e'")


@pytest.mark.parametrize("handled", ["on_error: continue", "on_error: c"])
@pytest.mark.parametrize("engine", ["bsp", "dag"])
def test_a_map_whose_failure_is_handled_leaves_no_failed_item_behind(engine: str, handled: str) -> None:
    """The run would stay open for them: no event would come."""
    driver = Driver(
        f"name: g\nversion: sleipnir/1\nengine: {engine}\nstart: m\nnodes:\n"
        "  m: {type: map, over: '{{items}}', as: item, branch: body, output_key: k, collect_into: all, HOW, next: c}\n"
        "  body: {type: script, script: s.sh}\n"
        "  c: {type: script, script: s.sh}\n".replace("HOW", handled),
        {"items": ["x", "y"]},
    ).start()
    driver.fails("body", item=0).fails("body", item=1)
    assert (driver.live(), driver.failed()) == (["c"], [])
    driver.does("c")
    assert (driver.run.status, driver.run.failed_visits.own) == ("completed", int("continue" in handled))
